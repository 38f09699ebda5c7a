#include "residency/ipc_internal.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Messages between two processes of one user, each with its descriptors, and none of them waited for beyond a deadline. */

uint64_t hr_ipc_start_time(void)
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *at = strrchr(text, ')'); /* the second field, a name, may hold anything */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

socklen_t hr_ipc_address(uint32_t pid, uint64_t start_time, struct sockaddr_un *address_out)
{
    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address_out->sun_path + 1, sizeof address_out->sun_path - 1, "headroom-ipc-%u-%u-%llu",
                          (unsigned)geteuid(), pid, (unsigned long long)start_time);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

bool hr_ipc_is_own_user(int socket)
{
    struct ucred other;
    socklen_t length = sizeof other;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == geteuid();
}

/* false: the deadline passed. */
static bool wait_for(int socket, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = hr_clock_ns();
        if (now_ns >= deadline_ns)
            return false;
        struct pollfd p = {.fd = socket, .events = events};
        int n = poll(&p, 1, (int)((deadline_ns - now_ns) / 1000000) + 1);
        if (n > 0)
            return true; /* an end or an error too: the call that follows says so */
        if (n < 0 && errno != EINTR)
            return false;
    }
}

union control {
    struct cmsghdr header; /* for its alignment */
    char room[CMSG_SPACE(HR_IPC_BATCH * sizeof(int))];
};

bool hr_ipc_send(int socket, const void *data, size_t bytes, const int *fds, unsigned fd_count, uint64_t deadline_ns)
{
    union control control = {0};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(fd_count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), fds, fd_count * sizeof(int));
    }
    while (wait_for(socket, POLLOUT, deadline_ns)) {
        ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            return n == (ssize_t)bytes;
        if (errno != EINTR && errno != EAGAIN)
            return false;
    }
    return false;
}

/* Descriptors of a message; what does not fit was closed by the kernel. */
static void take_descriptors(struct msghdr *message, int *fds_out, unsigned *count_out)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds_out, CMSG_DATA(c), n * sizeof(int));
        *count_out = n;
        return; /* a message has one such part */
    }
}

bool hr_ipc_receive(int socket, void *data, size_t bytes, int *fds_out, unsigned *fd_count_out, uint64_t deadline_ns)
{
    union control control = {0};
    struct iovec part = {data, bytes};
    *fd_count_out = 0;
    while (wait_for(socket, POLLIN, deadline_ns)) {
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = fds_out ? control.room : NULL,
                                 .msg_controllen = fds_out ? sizeof control.room : 0};
        ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n > 0 && fds_out)
            take_descriptors(&message, fds_out, fd_count_out);
        if (n == (ssize_t)bytes && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
            return true;
        while (*fd_count_out > 0)
            close(fds_out[--*fd_count_out]);
        return false;
    }
    return false;
}
