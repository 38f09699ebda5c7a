/*
 * Events of several processes. Their recordings are numbered in shared memory, with the number of the latest one that has run;
 * a process that waits on the CPU sleeps on that word. A stream that waits for another process's recording looks at it again
 * and again, as for a value in memory. In virtual time such a wait takes none: processes have clocks of their own.
 */
#include "simgpu/check.h"
#include "simgpu/share.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x676d69732d747665)

struct numbers { /* in shared memory */
    uint64_t magic;
    _Atomic(uint64_t) recorded, done;
    _Atomic(uint32_t) ends; /* how often `done` was written: what sleepers sleep on */
};

struct sg_shared_event {
    unsigned refs;
    int fd; /* -1: opened, another process has it */
    uint64_t inode;
    struct numbers *numbers;
};

struct handle { /* the bytes of a CUipcEventHandle */
    uint64_t magic, inode;
    int32_t pid, fd;
    uint64_t spare[5];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcEventHandle), "as large as cuda.h says");

void sg_shared_event_unref(struct sg_shared_event *shared)
{
    if (!shared || --shared->refs)
        return;
    if (shared->numbers)
        munmap(shared->numbers, sizeof *shared->numbers);
    if (shared->fd >= 0)
        close(shared->fd);
    free(shared);
}

static bool map_numbers(struct sg_shared_event *shared, int fd)
{
    void *p = mmap(NULL, sizeof *shared->numbers, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shared->numbers = p == MAP_FAILED ? NULL : p;
    return shared->numbers != NULL;
}

CUresult sg_shared_event_create(struct sg_shared_event **shared_out)
{
    struct stat st;
    struct sg_shared_event *shared = calloc(1, sizeof *shared);
    if (!shared)
        return CUDA_ERROR_OUT_OF_MEMORY;
    shared->refs = 1;
    shared->fd = memfd_create("simgpu-event:0", MFD_CLOEXEC);
    if (shared->fd < 0 || ftruncate(shared->fd, sizeof *shared->numbers) || fstat(shared->fd, &st) ||
        !map_numbers(shared, shared->fd)) {
        sg_shared_event_unref(shared);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    shared->inode = st.st_ino;
    shared->numbers->magic = MAGIC;
    *shared_out = shared;
    return CUDA_SUCCESS;
}

void sg_shared_event_recorded(struct sg_shared_event *shared, struct sg_mark *mark)
{
    shared->refs++;
    mark->shared = shared;
    mark->shared_number = atomic_fetch_add(&shared->numbers->recorded, 1) + 1;
}

void sg_shared_event_done(const struct sg_mark *mark)
{
    struct numbers *n = mark->shared->numbers;
    uint64_t done = atomic_load(&n->done);
    while (done < mark->shared_number && !atomic_compare_exchange_weak(&n->done, &done, mark->shared_number))
        ;
    atomic_fetch_add(&n->ends, 1);
    syscall(SYS_futex, &n->ends, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool sg_shared_event_is_done(const struct sg_mark *mark)
{
    return mark->done || atomic_load(&mark->shared->numbers->done) >= mark->shared_number;
}

void sg_shared_event_wait(const struct sg_mark *mark)
{
    struct numbers *n = mark->shared->numbers;
    sg.blocked_threads++;
    for (;;) {
        uint32_t ends = atomic_load(&n->ends);
        if (sg_shared_event_is_done(mark))
            break;
        if (sg_work_once()) /* the other process may wait for this one's work */
            continue;
        pthread_mutex_unlock(&sg.lock);
        syscall(SYS_futex, &n->ends, FUTEX_WAIT, ends, NULL, NULL, 0);
        pthread_mutex_lock(&sg.lock);
    }
    sg.blocked_threads--;
}

bool sg_event_is_recorded(const struct sg_event *e)
{
    return e->mark || (e->shared && atomic_load(&e->shared->numbers->recorded));
}

struct sg_mark *sg_event_latest(struct sg_event *e, CUresult *result_out)
{
    *result_out = CUDA_SUCCESS;
    uint64_t number = e->shared ? atomic_load(&e->shared->numbers->recorded) : 0;
    if (!e->shared || !number || (e->mark && e->mark->shared_number == number))
        return e->mark ? sg_mark_ref(e->mark) : NULL;
    struct sg_mark *mark = calloc(1, sizeof *mark);
    if (!mark) {
        *result_out = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    e->shared->refs++;
    *mark = (struct sg_mark){
        .refs = 1, .context = e->context, .placed = true, .shared = e->shared, .shared_number = number, .remote = true};
    return mark;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle_out, CUevent event)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuIpcGetEventHandle", &context);
    if (r)
        return r;
    struct sg_event *e = SG_FIND(event, SG_EVENT);
    if (!handle_out)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!e || !e->shared || e->shared->fd < 0)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE); /* made for it, and here */
    struct handle h = {.magic = MAGIC, .inode = e->shared->inode, .pid = getpid(), .fd = e->shared->fd};
    memcpy(handle_out, &h, sizeof h);
    return sg_leave(CUDA_SUCCESS);
}

static CUresult open_shared(const struct handle *h, struct sg_shared_event **shared_out)
{
    struct stat st;
    struct sg_shared_event *shared = calloc(1, sizeof *shared);
    if (!shared)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *shared = (struct sg_shared_event){.refs = 1, .fd = -1, .inode = h->inode};
    int fd = sg_file_of_process(h->pid, h->fd, h->inode);
    bool mapped =
        fd >= 0 && !fstat(fd, &st) && (size_t)st.st_size >= sizeof *shared->numbers && map_numbers(shared, fd);
    if (fd >= 0)
        close(fd);
    if (!mapped || shared->numbers->magic != MAGIC) {
        sg_shared_event_unref(shared);
        return CUDA_ERROR_MAP_FAILED; /* its owner, or the event, is gone */
    }
    *shared_out = shared;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuIpcOpenEventHandle", &context);
    if (r)
        return r;
    struct handle h;
    memcpy(&h, &handle, sizeof h);
    if (!event)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (h.magic != MAGIC || h.pid <= 0 || h.fd < 0)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (h.pid == getpid())
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT); /* as with memory: another process's only */
    struct sg_event *e = calloc(1, sizeof *e);
    r = e ? open_shared(&h, &e->shared) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r) {
        free(e);
        return sg_leave(r);
    }
    e->context = context;
    e->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    sg_object_add(&e->object, SG_EVENT);
    DL_APPEND(context->events, e);
    *event = SG_HANDLE(CUevent, e);
    return sg_leave(CUDA_SUCCESS);
}
