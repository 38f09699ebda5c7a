#include "residency/ipc_internal.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "shim/shim.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * The thread that hands exported memory over. It serves one importer after the other, each with a deadline. Its socket has no name in
 * any file system, and is gone with the process.
 */

#define WAITING_MOST 128 /* importers that wait to be served; more of them wait to connect */
#define LEAVE_NS UINT64_C(50000000)

static struct hr_mutex start_lock = HR_MUTEX_INIT(HR_RANK_CONTEXT + 8, "server of memory");
static _Atomic(int) listener = -1, client = -1;
static _Atomic(int) in_hand[HR_IPC_BATCH]; /* descriptor + 1 of chunks that are on their way */
static _Atomic(bool) leaving;
static struct hr_mutex busy_lock = HR_MUTEX_INIT(HR_RANK_QUEUE, "server of memory, busy");
static struct hr_cond idle; /* made before the thread is */
static bool busy;           /* guarded by busy_lock */

/* A descriptor is told of after it is there, and forgotten before it is closed: a forked child closes no other. */
static void close_noted(_Atomic(int) *note, int none)
{
    int fd = atomic_exchange(note, none) - (none == 0);
    if (fd >= 0)
        close(fd);
}

static bool send_reply(int socket, struct hr_ipc_reply *reply, const int *fds, uint64_t deadline_ns)
{
    uint64_t step_ns = hr_clock_ns() + HR_IPC_STEP_NS;
    return hr_ipc_send(socket, reply, sizeof *reply, fds, reply->count, step_ns < deadline_ns ? step_ns : deadline_ns);
}

/* The chunks from `first` on, as many as a message takes. */
static bool hand_over(int socket, const struct hr_hold *hold, uint32_t first, struct hr_ipc_reply *reply,
                      uint64_t deadline_ns)
{
    int fds[HR_IPC_BATCH];
    reply->count = reply->chunks - first < HR_IPC_BATCH ? reply->chunks - first : HR_IPC_BATCH;
    CUresult r = hr_exported_open(hold, first, reply->count, fds);
    if (r != CUDA_SUCCESS) { /* freed meanwhile */
        reply->result = (int32_t)r;
        reply->count = 0;
        send_reply(socket, reply, NULL, deadline_ns);
        return false;
    }
    for (uint32_t i = 0; i < reply->count; i++)
        atomic_store(&in_hand[i], fds[i] + 1);
    bool sent = send_reply(socket, reply, fds, deadline_ns);
    for (uint32_t i = 0; i < reply->count; i++)
        close_noted(&in_hand[i], 0);
    return sent;
}

static void serve(int socket)
{
    uint64_t now_ns = hr_clock_ns(), deadline_ns = now_ns + HR_IPC_DEADLINE_NS;
    struct hr_ipc_request request;
    struct hr_ipc_reply reply = {.magic = HR_IPC_MAGIC, .chunk_bytes = hr_chunk_bytes()};
    struct hr_hold hold;
    unsigned none;
    if (!hr_ipc_is_own_user(socket) ||
        !hr_ipc_receive(socket, &request, sizeof request, NULL, &none, now_ns + HR_IPC_STEP_NS) ||
        request.magic != HR_IPC_MAGIC)
        return;
    bool known = hr_ipc_exported(request.key, &hold);
    reply.result = known ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
    reply.chunks = known ? hold.end_chunk - hold.first_chunk : 0;
    bool sent = send_reply(socket, &reply, NULL, deadline_ns);
    for (uint32_t first = 0; sent && first < reply.chunks && !atomic_load(&leaving); first += reply.count)
        sent = hand_over(socket, &hold, first, &reply, deadline_ns);
}

static void set_busy(bool now)
{
    hr_mutex_lock(&busy_lock);
    busy = now;
    hr_cond_signal(&idle);
    hr_mutex_unlock(&busy_lock);
}

static void *run(void *unused)
{
    (void)unused;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    hr_depth = 1; /* for good: nothing that this thread calls is the job's */
    hr_drv.cuThreadExchangeStreamCaptureMode(&mode);
    while (!atomic_load(&leaving)) {
        int fd = accept4(atomic_load(&listener), NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            poll(NULL, 0, 10); /* who waits stays in line until there are descriptors again */
            continue;
        }
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
            break;
        if (fd < 0)
            continue;
        atomic_store(&client, fd);
        set_busy(true);
        if (!atomic_load(&leaving))
            serve(fd);
        set_busy(false);
        close_noted(&client, -1);
    }
    return NULL;
}

/* The job's signals are not for this thread. */
static bool start_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, &attributes, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (started)
        pthread_setname_np(thread, "headroom-ipc");
    return started;
}

CUresult hr_ipc_serve(void)
{
    struct sockaddr_un address;
    socklen_t length = hr_ipc_address((uint32_t)getpid(), hr_ipc_start_time(), &address);
    if (atomic_load(&listener) >= 0)
        return CUDA_SUCCESS;
    hr_mutex_lock(&start_lock);
    int fd = atomic_load(&listener) < 0 ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, length) == 0 && listen(fd, WAITING_MOST) == 0) {
        hr_cond_init(&idle);
        atomic_store(&listener, fd);
        if (!start_thread())
            close_noted(&listener, -1);
    } else if (fd >= 0) {
        close(fd);
    }
    bool serves = atomic_load(&listener) >= 0;
    hr_mutex_unlock(&start_lock);
    if (serves)
        return CUDA_SUCCESS;
    hr_log(HR_LOG_WARN, "memory cannot be shared: no socket, or no thread, to hand it over (errno %d)", errno);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

void hr_ipc_leave(void)
{
    uint64_t deadline_ns = hr_clock_ns() + LEAVE_NS;
    atomic_store(&leaving, true);
    if (atomic_load(&listener) < 0)
        return;
    shutdown(atomic_load(&listener), SHUT_RDWR);
    shutdown(atomic_load(&client), SHUT_RDWR);
    hr_mutex_lock(&busy_lock);
    while (busy && hr_cond_wait_until(&idle, &busy_lock, deadline_ns))
        ;
    hr_mutex_unlock(&busy_lock);
}

void hr_ipc_forked(void)
{
    close_noted(&listener, -1);
    close_noted(&client, -1);
    for (unsigned i = 0; i < HR_IPC_BATCH; i++)
        close_noted(&in_hand[i], 0);
}
