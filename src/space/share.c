#include "space/share.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define MAGIC UINT64_C(0x3172656764656c68) /* "hledger1" */
#define SLOTS 1024
#define LOCK_WAIT_NS UINT64_C(50000000)

struct slot {
    uint64_t pid, started; /* pid 0 = free; start time in clock ticks since boot */
    uint64_t promised_bytes, used_bytes;
};
struct table {
    uint64_t magic;
    struct slot slot[SLOTS];
};

static _Atomic(bool) is_in_table; /* this process, or the one that it was forked from */

/* Field 22 of /proc/PID/stat; 0 = no such process. */
static uint64_t start_time(uint64_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    char *at = strrchr(text, ')'); /* the command's name may hold anything */
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

/* Opens the user's file; -1 = cannot, or it is not the user's own. (The stat functions of new C libraries are new symbols.) */
static int open_file(void)
{
    char path[1100];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime != NULL && runtime[0] == '/' && strlen(runtime) < 1024) {
        snprintf(path, sizeof path, "%s/headroom-host", runtime);
    } else {
        snprintf(path, sizeof path, "/tmp/headroom-%u", (unsigned)getuid());
        mkdir(path, 0700);
        struct stat folder;
        if (syscall(SYS_newfstatat, AT_FDCWD, path, &folder, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(folder.st_mode) ||
            folder.st_uid != getuid())
            return -1;
        strcat(path, "/host");
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat file;
    if (fd >= 0 && (syscall(SYS_fstat, fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != getuid())) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool lock_file(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    uint64_t deadline_ns = hr_clock_ns() + LOCK_WAIT_NS;
    while (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        if (hr_clock_ns() > deadline_ns)
            return false;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    return true;
}

/* Before the close: a child that was forked meanwhile shares the open file and would keep the lock. */
static void unlock_and_close(int fd)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &lock);
    close(fd);
}

/* Opens, locks and reads; a file that is not a table counts as an empty one. -1 = the file cannot be used. */
static int begin(struct table *table)
{
    int fd = open_file();
    if (fd < 0 || !lock_file(fd)) {
        if (fd >= 0)
            close(fd);
        hr_log_once(HR_LOG_INFO,
                    "the per-user host ledger cannot be used: this process counts its host memory for itself");
        return -1;
    }
    if (pread(fd, table, sizeof *table, 0) != (ssize_t)sizeof *table || table->magic != MAGIC) {
        memset(table, 0, sizeof *table);
        table->magic = MAGIC;
    }
    return fd;
}

static size_t outstanding(const struct slot *s)
{
    return s->promised_bytes > s->used_bytes ? s->promised_bytes - s->used_bytes : 0;
}

/* NULL = it has none. */
static struct slot *own_slot(struct table *table)
{
    uint64_t pid = (uint64_t)getpid(), started = 0;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &table->slot[i];
        if (s->pid != pid)
            continue;
        if (started == 0)
            started = start_time(pid);
        if (s->started == started)
            return s;
    }
    return NULL;
}

/* A free one or a dead process's for this process; NULL = the table is full. */
static struct slot *new_slot(struct table *table)
{
    struct slot *unused = NULL;
    for (int i = 0; i < SLOTS && unused == NULL; i++)
        unused = table->slot[i].pid == 0 ? &table->slot[i] : NULL;
    for (int i = 0; i < SLOTS && unused == NULL; i++)
        unused = start_time(table->slot[i].pid) != table->slot[i].started ? &table->slot[i] : NULL;
    if (unused != NULL) {
        uint64_t pid = (uint64_t)getpid();
        *unused = (struct slot){.pid = pid, .started = start_time(pid)};
    }
    return unused;
}

/* Only those that count are asked whether they live; the dead ones' slots become free. */
static size_t sum_of_others(struct table *table, const struct slot *own)
{
    size_t sum = 0;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &table->slot[i];
        if (s == own || s->pid == 0 || outstanding(s) == 0)
            continue;
        if (start_time(s->pid) == s->started)
            sum += outstanding(s);
        else
            memset(s, 0, sizeof *s);
    }
    return sum;
}

static void end(int fd, const struct table *table)
{
    if (pwrite(fd, table, sizeof *table, 0) != (ssize_t)sizeof *table)
        hr_log_once(HR_LOG_INFO, "the per-user host ledger cannot be written");
    unlock_and_close(fd);
}

bool hr_share_promise(size_t promised_bytes, size_t used_bytes, size_t available_bytes)
{
    struct table *table = malloc(sizeof *table); /* 32 KiB: not on a stack of unknown size */
    int fd = table != NULL ? begin(table) : -1;
    bool granted = true;
    if (fd >= 0) {
        struct slot *own = own_slot(table);
        size_t others = sum_of_others(table, own);
        if (own == NULL)
            own = new_slot(table);
        size_t mine = promised_bytes > used_bytes ? promised_bytes - used_bytes : 0;
        if (own != NULL && promised_bytes > own->promised_bytes)
            granted = mine <= available_bytes && others <= available_bytes - mine;
        if (own != NULL && granted) {
            own->promised_bytes = promised_bytes;
            own->used_bytes = used_bytes;
        }
        atomic_store(&is_in_table, true);
        end(fd, table);
    }
    free(table);
    return granted;
}

/* Reads only: where hundreds of processes start at once, each waits for the others' turns. */
size_t hr_share_others(void)
{
    struct table *table = malloc(sizeof *table);
    int fd = table != NULL ? begin(table) : -1;
    size_t sum = 0;
    if (fd >= 0) {
        unlock_and_close(fd);
        sum = sum_of_others(table, own_slot(table));
    }
    free(table);
    return sum;
}

void hr_share_leave(void)
{
    struct table *table = atomic_load(&is_in_table) ? malloc(sizeof *table) : NULL;
    int fd = table != NULL ? begin(table) : -1;
    if (fd >= 0) {
        struct slot *own = own_slot(table);
        if (own != NULL)
            memset(own, 0, sizeof *own);
        end(fd, table);
    }
    free(table);
}
