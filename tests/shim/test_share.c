#include "core_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "space/share.h"
#include "support/spawn.h"

/* The per-user host ledger, in a runtime folder of its own for each test. */
static char folder[] = "/tmp/headroom-share-XXXXXX";
static char file[64];

static void make_folder(void)
{
    cr_assert_not_null(mkdtemp(folder));
    setenv("XDG_RUNTIME_DIR", folder, 1);
    snprintf(file, sizeof file, "%s/headroom-host", folder);
}
static void remove_folder(void)
{
    unlink(file);
    rmdir(folder);
}
TestSuite(share, .init = make_folder, .fini = remove_folder);

/* A process that promises and waits to be killed; returns once it has. */
static pid_t promiser(size_t promised, size_t used)
{
    int ready[2];
    char byte;
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool ok = hr_share_promise(promised, used, 1000);
        if (write(ready[1], ok ? "y" : "n", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    cr_assert_eq(byte, 'y');
    close(ready[0]);
    close(ready[1]);
    return pid;
}

Test(share, counts_what_another_process_has_promised_and_not_used)
{
    pid_t other = promiser(400, 100);
    cr_expect_eq(hr_share_others(), 300);
    cr_expect(!hr_share_promise(800, 0, 1000), "800 of 1000 beside 300");
    cr_expect(hr_share_promise(700, 0, 1000));
    cr_expect(hr_share_promise(900, 400, 1000), "500 of them are still to come");
    cr_expect(hr_share_promise(100, 0, 0), "giving back is always granted");
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

/* K20: a slot belongs to a pid and its start time. */
Test(share, K20_a_killed_process_leaves_nothing_behind)
{
    pid_t other = promiser(900, 0);
    cr_expect(!hr_share_promise(200, 0, 1000));
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    cr_expect_eq(hr_share_others(), 0);
    cr_expect(hr_share_promise(1000, 0, 1000));
}

static atomic_bool promising;

static void *promise_again(void *unused)
{
    (void)unused;
    while (atomic_load(&promising)) {
        cr_assert(hr_share_promise(100, 0, 1000));
        cr_assert(hr_share_promise(0, 0, 0));
    }
    return NULL;
}

/* Programs that are started while the lock is held do not hold it, too. */
Test(share, K22_no_descriptor_is_left_to_another_program, .timeout = 60)
{
    static const char *const argv[] = {"ls", "-l", "/proc/self/fd", NULL};
    pthread_t thread;
    atomic_store(&promising, true);
    cr_assert_eq(pthread_create(&thread, NULL, promise_again, NULL), 0);
    for (int i = 0; i < 100; i++) {
        struct hr_test_result r = hr_test_run(argv, NULL);
        cr_expect_null(strstr(r.out, "headroom-host"), "%s", r.out);
        hr_test_result_finish(&r);
    }
    atomic_store(&promising, false);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

Test(share, gives_its_slot_back)
{
    cr_assert(hr_share_promise(900, 0, 1000));
    hr_share_leave();
    pid_t other = promiser(900, 0);
    cr_expect_eq(hr_share_others(), 900);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

/* K21: a state file that is garbage, or cannot be had, costs the sharing, not the job. */
Test(share, K21_garbage_in_the_file_counts_as_nothing)
{
    int fd = open(file, O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 5000; i++)
        cr_assert_eq(write(fd, "garbage!", 8), 8);
    close(fd);
    cr_expect_eq(hr_share_others(), 0);
    cr_expect(hr_share_promise(1000, 0, 1000));
}
Test(share, K21_a_file_that_cannot_be_had_costs_only_the_sharing)
{
    setenv("XDG_RUNTIME_DIR", "/nonexistent/folder", 1);
    cr_expect(hr_share_promise(5000, 0, 1000));
    cr_expect_eq(hr_share_others(), 0);
}

/* K19: the lock's holder is stopped: nobody waits for long. */
Test(share, K19_a_stopped_holder_of_the_lock_delays_by_little, .timeout = 20)
{
    cr_assert(hr_share_promise(1, 0, 1000));
    int fd = open(file, O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    cr_assert_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
    cr_expect(hr_share_promise(2000, 0, 1000), "without the file each process counts for itself");
    close(fd);
}
