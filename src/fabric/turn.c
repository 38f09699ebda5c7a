#include "fabric/turn.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_WAITING 4096
#define MOST_REFUSALS 1000

/* The first byte is 0. Of a long path the end, which differs most; files with one name in common only wait for each other. */
static socklen_t name_of(const char *place, struct sockaddr_un *address_out)
{
    enum { KEPT = 72 };
    size_t length = strlen(place);
    const char *end = length > KEPT ? place + length - KEPT : place;

    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(address_out->sun_path + 1, sizeof address_out->sun_path - 1, "headroom-paths-%lu-%s",
                     (unsigned long)geteuid(), end);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static bool is_of_this_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* Nothing is ever sent: the socket becomes readable at the other side's end. */
static bool wait_for_end(int fd, uint64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int ready;

    do {
        uint64_t now_ns = hr_clock_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        ready = poll(&poll_fd, 1, (int)(left_ns / 1000000 < 3600000 ? left_ns / 1000000 : 3600000));
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
}

/* false: neither bound nor connected just now, ask again. That is a holder between two of its calls, or one that was forked and has
 * the name still, which nothing tells the end of. */
static bool ask(const char *place, uint64_t deadline_ns, struct hr_turn *turn_out, enum hr_turn_answer *answer_out)
{
    struct sockaddr_un address;
    socklen_t length = name_of(place, &address);
    bool refused = false;

    int fd = open_socket();
    *answer_out = HR_TURN_NONE;
    if (fd < 0)
        return true;
    if (bind(fd, (struct sockaddr *)&address, length) == 0) {
        if (listen(fd, MOST_WAITING) == 0) {
            turn_out->fd = fd;
            *answer_out = HR_TURN_MINE;
            return true;
        }
    } else if (errno == EADDRINUSE) {
        if (connect(fd, (struct sockaddr *)&address, length) != 0)
            refused = errno == ECONNREFUSED;
        else if (is_of_this_user(fd) && wait_for_end(fd, deadline_ns))
            *answer_out = HR_TURN_WAITED;
    }
    close(fd);
    return !refused;
}

enum hr_turn_answer hr_turn_take(const char *place, uint64_t deadline_ns, struct hr_turn *turn_out)
{
    enum hr_turn_answer answer;

    turn_out->fd = -1;
    for (int i = 0; i < MOST_REFUSALS; i++) {
        if (ask(place, deadline_ns, turn_out, &answer))
            return answer;
        if (hr_clock_ns() >= deadline_ns)
            break;
        poll(NULL, 0, 1); /* a holder that does not listen yet: there is nothing to wait on */
    }
    return HR_TURN_NONE;
}

void hr_turn_end(struct hr_turn *turn)
{
    if (turn->fd < 0)
        return;
    shutdown(turn->fd, SHUT_RDWR); /* nobody connects any more */
    for (int waiting; (waiting = accept4(turn->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        close(waiting);
    close(turn->fd);
    turn->fd = -1;
}
