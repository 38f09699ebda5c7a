/* Whose turn it is to try copies: one process of those that use a file, until it says so or is gone. */
#include "fabric/turn.h"

#include "base/clock.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_NS (hr_clock_ns() + UINT64_C(60000000000))

static char place[64];

static void set_up(void)
{
    snprintf(place, sizeof place, "/nowhere/of-%ld", (long)getpid());
}

TestSuite(turn, .init = set_up, .timeout = 90);

/* The answer that a process of its own gets, as its status. It has the caller's turn as well, as processes have that are forked meanwhile. */
static pid_t ask_in_child(const char *file)
{
    pid_t pid = fork();

    if (pid == 0) {
        struct hr_turn turn;
        _exit((int)hr_turn_take(file, LONG_NS, &turn));
    }
    cr_assert_gt(pid, 0);
    return pid;
}

static int answer_of(pid_t pid)
{
    int status;

    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void wait_for_somebody(const struct hr_turn *turn)
{
    struct pollfd poll_fd = {.fd = turn->fd, .events = POLLIN};

    while (poll(&poll_fd, 1, -1) < 1) {
    }
}

Test(turn, who_comes_second_waits_for_the_first_one_to_end_its_turn)
{
    struct hr_turn turn;

    cr_assert_eq(hr_turn_take(place, LONG_NS, &turn), HR_TURN_MINE);
    pid_t second = ask_in_child(place);
    wait_for_somebody(&turn);
    cr_expect_eq(waitpid(second, NULL, WNOHANG), 0);
    hr_turn_end(&turn);
    cr_expect_eq(turn.fd, -1);
    cr_expect_eq(answer_of(second), HR_TURN_WAITED);
    cr_assert_eq(hr_turn_take(place, LONG_NS, &turn), HR_TURN_MINE, "it is free again");
    hr_turn_end(&turn);
    hr_turn_end(&turn); /* harmless */
}

Test(turn, other_files_are_other_turns)
{
    struct hr_turn turn;

    cr_assert_eq(hr_turn_take(place, LONG_NS, &turn), HR_TURN_MINE);
    cr_expect_eq(answer_of(ask_in_child("/another")), HR_TURN_MINE);
    hr_turn_end(&turn);
}

Test(turn, a_holder_that_is_killed_holds_nobody)
{
    int ready[2];
    char byte;

    cr_assert_eq(pipe(ready), 0);
    pid_t holder = fork();
    if (holder == 0) {
        struct hr_turn turn;
        if (hr_turn_take(place, LONG_NS, &turn) != HR_TURN_MINE || write(ready[1], "x", 1) != 1)
            _exit(1);
        wait_for_somebody(&turn);
        raise(SIGKILL);
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    cr_expect_eq(answer_of(ask_in_child(place)), HR_TURN_WAITED);
    cr_expect_eq(answer_of(holder), -1);
}

Test(turn, waiting_ends_at_the_deadline)
{
    struct hr_turn turn, second;

    cr_assert_eq(hr_turn_take(place, LONG_NS, &turn), HR_TURN_MINE);
    cr_expect_eq(hr_turn_take(place, hr_clock_ns(), &second), HR_TURN_NONE);
    cr_expect_eq(second.fd, -1);
    hr_turn_end(&turn);
}

/* A process that was forked while the turn was held keeps the socket. Nobody is told of its end, so nobody may wait for it. */
Test(turn, a_forked_process_that_lives_on_does_not_hold_it)
{
    struct hr_turn turn, after;
    int forever[2];
    char byte;

    cr_assert_eq(pipe(forever), 0);
    cr_assert_eq(hr_turn_take(place, LONG_NS, &turn), HR_TURN_MINE);
    pid_t fork_of_us = fork();
    if (fork_of_us == 0) {
        close(forever[1]);
        _exit(read(forever[0], &byte, 1) != 0);
    }
    hr_turn_end(&turn);
    cr_expect_eq(hr_turn_take(place, LONG_NS, &after), HR_TURN_NONE);
    close(forever[1]);
    cr_expect_eq(answer_of(fork_of_us), 0);
    cr_expect_eq(hr_turn_take(place, LONG_NS, &after), HR_TURN_MINE);
    hr_turn_end(&after);
}

Test(turn, names_of_any_length_are_names)
{
    char file[4096];
    struct hr_turn turn, other;

    memset(file, 'x', sizeof file - 1);
    file[sizeof file - 1] = 0;
    cr_assert_eq(hr_turn_take(file, LONG_NS, &turn), HR_TURN_MINE);
    cr_assert_eq(hr_turn_take("", LONG_NS, &other), HR_TURN_MINE);
    hr_turn_end(&turn);
    hr_turn_end(&other);
}
