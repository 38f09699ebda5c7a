/* Discovery from inside a job: the library's own objects, a simulated node as the driver, the built command as the helper. */
#include "fabric/discover.h"

#include "driver/driver.h"
#include "fabric/pathcache.h"
#include "fabric/verify.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void machine_with(const char *description, const char *faults, const char *cache)
{
    setenv("SIMGPU", description, 1);
    setenv("SIMGPU_LINK", faults, 1);
    setenv("HEADROOM_TOPO_CACHE", cache, 1);
    cr_assert(hr_driver_load());
    cr_assert_eq(hr_drv.cuInit(0), CUDA_SUCCESS);
}

static void machine(const char *description, const char *faults)
{
    machine_with(description, faults, "off");
}

static struct hr_topology *discover(void)
{
    struct hr_topology *topology = NULL;
    struct hr_text_error why;

    int rc = hr_discover(&topology, &why);
    cr_assert(rc == 0, "%d: %s", rc, why.text);
    return topology;
}

static double rate(const struct hr_topology *topology, uint32_t from, uint32_t to)
{
    double gbps;

    hr_topology_links(topology, topology->gpus[from], topology->gpus[to], HR_LINKS_FABRIC, &gbps);
    return gbps;
}

static _Atomic int children;

static void count_children(int number)
{
    (void)number;
    children++;
}

Test(discover, a_job_learns_what_its_links_carry_and_notices_nothing)
{
    struct sigaction action = {.sa_handler = count_children};

    machine("square4,vram=64M", "");
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    sigaction(SIGCHLD, &action, NULL);
    cr_expect_null(hr_discovery_of_process());
    struct hr_topology *topology = discover();
    cr_expect(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD && children == 0);
    cr_assert_eq(topology->gpu_count, 4);
    cr_expect_float_eq(rate(topology, 0, 1), 46, 0.5, "two links of 23, %g", rate(topology, 0, 1));
    const struct hr_discovery *found = hr_discovery_of_process();
    cr_assert_not_null(found);
    cr_expect(found->topology != topology, "the caller's is its own");
    cr_expect_eq(found->pair[1].state, HR_PAIR_GOOD);
    cr_expect(found->pair[1].start_ns > 0 && found->pair[1].start_ns < 20000, "%u", found->pair[1].start_ns);
    cr_expect(hr_pair_usable(found, 0, 1) && !hr_pair_usable(found, 0, 3));
    hr_topology_destroy(topology);
}

Test(discover, a_way_that_corrupts_is_down_in_the_jobs_topology)
{
    machine("square4,vram=64M", "corrupt:2-3");
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    struct hr_topology *topology = discover();
    cr_expect_eq(rate(topology, 2, 3), 0);
    cr_expect_eq(rate(topology, 3, 2), 0);
    cr_expect_float_eq(rate(topology, 0, 2), 46, 0.5);
    cr_expect(!hr_pair_usable(hr_discovery_of_process(), 2, 3));
    hr_topology_destroy(topology);
}

/* A command that leaves a mark when it is started. */
static void use_marking_command(char *script, char *mark)
{
    char text[160];
    int fd = mkstemp(script);

    strcpy(mark, script);
    strcat(mark, ".started");
    int length = snprintf(text, sizeof text, "#!/bin/sh\n: > %s\n", mark);
    cr_assert(fd >= 0 && write(fd, text, (size_t)length) == length && fchmod(fd, 0700) == 0 && close(fd) == 0);
    hr_verify_use_command(script);
}

static void set_link(int element, int port, bool up)
{
    void *driver = dlopen(hr_driver_path(), RTLD_LAZY | RTLD_NOLOAD);
    int (*set)(int, int, bool) = driver ? (int (*)(int, int, bool))dlsym(driver, "sg_node_link_set") : NULL;

    cr_assert(set && set(element, port, up) == 0);
}

Test(discover, asked_again_it_sees_links_that_went_and_came_and_tries_no_copy_again)
{
    char script[] = "/tmp/headroom-mark-XXXXXX", mark[64];
    static const struct {
        bool first, second;
        double gbps;
    } steps[] = {{false, true, 23}, {false, false, 0}, {true, true, 46}};

    machine("square4,vram=64M", "corrupt:2-3");
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    hr_topology_destroy(discover());
    use_marking_command(script, mark);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        set_link(0, 0, steps[i].first);
        set_link(0, 1, steps[i].second);
        struct hr_topology *topology = discover();
        cr_expect_float_eq(rate(topology, 0, 1), steps[i].gbps, 0.5, "step %zu: %g", i, rate(topology, 0, 1));
        cr_expect_eq(rate(topology, 2, 3), 0, "it corrupted");
        cr_expect_float_eq(rate(topology, 0, 2), 46, 0.5);
        hr_topology_destroy(topology);
    }
    cr_expect(access(mark, F_OK) != 0, "copies were tried again");
    unlink(script);
    unlink(mark);
}

Test(discover, a_job_whose_memory_is_full_still_gets_an_answer)
{
    CUdeviceptr all;
    CUcontext context;

    machine("square4,vram=64M", "");
    cr_assert_eq(hr_drv.cuCtxCreate_v2(&context, 0, 1), CUDA_SUCCESS);
    for (size_t bytes = (size_t)64 << 20; bytes >= (size_t)16 << 10; bytes /= 2) { /* until nothing fits any more */
        while (hr_drv.cuMemAlloc_v2(&all, bytes) == CUDA_SUCCESS)
            continue;
    }
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    struct hr_topology *topology = discover();
    cr_expect_leq(hr_discovery_of_process()->pair[1].state, HR_PAIR_GOOD, "a lack of memory is nothing bad");
    cr_expect_float_eq(rate(topology, 2, 3), 46, 0.5);
    hr_topology_destroy(topology);
}

Test(discover, without_a_command_or_where_it_is_off_the_driver_is_believed)
{
    machine("square4,vram=64M", "corrupt:0-1");
    struct hr_topology *topology = discover();
    cr_expect_float_eq(rate(topology, 0, 1), 50, 1e-9, "as the generation implies");
    cr_expect_eq(hr_discovery_of_process()->pair[1].state, HR_PAIR_UNPROVEN);
    hr_topology_destroy(topology);
}

Test(discover, verification_can_be_turned_off)
{
    setenv("HEADROOM_VERIFY", "off", 1);
    machine("square4,vram=64M", "corrupt:0-1");
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    struct hr_topology *topology = discover();
    cr_expect_eq(hr_discovery_of_process()->pair[1].state, HR_PAIR_UNPROVEN);
    hr_topology_destroy(topology);
}

Test(discover, a_helper_that_is_none_does_no_harm)
{
    machine("square4,vram=64M", "");
    hr_verify_use_command("/bin/echo");
    struct hr_topology *topology = discover();
    cr_expect_eq(hr_discovery_of_process()->pair[1].state, HR_PAIR_UNPROVEN);
    cr_expect_eq(topology->gpu_count, 4);
    hr_topology_destroy(topology);
}

/* As when the job forks in another thread just while the helper is started. */
Test(discover, a_process_that_has_the_helpers_pipe_too_does_not_hold_the_job, .timeout = 30)
{
    static const char text[] = "#!/bin/sh\nsleep 50 &\necho ready\nshift 3; i=0\n"
                               "for pair; do echo begin $i; echo end $i good 1000 10; i=$((i + 1)); done\n";
    char script[] = "/tmp/headroom-pipe-XXXXXX";
    int fd = mkstemp(script);

    cr_assert(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1 && fchmod(fd, 0700) == 0);
    close(fd);
    machine("square4,vram=64M", "");
    hr_verify_use_command(script);
    struct hr_topology *topology = discover();
    cr_expect_eq(hr_discovery_of_process()->pair[1].state, HR_PAIR_GOOD);
    cr_expect_eq(hr_discovery_of_process()->pair[1].start_ns, 10);
    hr_topology_destroy(topology);
    unlink(script);
}

static __typeof__(hr_drv.cuDeviceGetAttribute) real_attribute;

/* GPU 1 belongs to one process at a time. */
static CUresult CUDAAPI gpu_1_is_exclusive(int *value_out, CUdevice_attribute attribute, CUdevice device)
{
    CUresult r = real_attribute(value_out, attribute, device);

    if (r == CUDA_SUCCESS && attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE && device == 1)
        *value_out = CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    return r;
}

Test(discover, the_helper_keeps_nobody_from_a_gpu_that_takes_one_process)
{
    machine("square4,vram=64M", "");
    real_attribute = hr_drv.cuDeviceGetAttribute;
    hr_drv.cuDeviceGetAttribute = gpu_1_is_exclusive;
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    struct hr_topology *topology = discover();
    const struct hr_discovery *found = hr_discovery_of_process();
    for (uint32_t gpu = 0; gpu < 4; gpu++) {
        cr_expect_eq(found->pair[gpu * 4 + 1].state, HR_PAIR_UNPROVEN);
        cr_expect_eq(found->pair[4 + gpu].state, HR_PAIR_UNPROVEN);
    }
    cr_expect_eq(found->gpu[1].to_host_gbps, 0);
    cr_expect_eq(found->pair[2].state, HR_PAIR_GOOD);
    cr_expect_gt(found->gpu[0].to_host_gbps, 0);
    hr_topology_destroy(topology);
}

/* ---- what is kept, and by whom ---- */

static char kept[96];

static void keep_paths(void)
{
    strcpy(kept, "/tmp/headroom-kept-XXXXXX");
    cr_assert_not_null(mkdtemp(kept));
    strcat(kept, "/paths");
}

static void drop_paths(void)
{
    unlink(kept);
    *strrchr(kept, '/') = 0;
    rmdir(kept);
}

/* As `machine`, with a file for what copies show. */
static void machine_that_keeps(const char *faults)
{
    machine_with("square4,vram=64M", faults, kept);
}

static struct hr_discovery *discovery(enum hr_discover_copies copies)
{
    struct hr_discovery *found = NULL;
    struct hr_text_error why;

    int rc = hr_discover_machine(copies, &found, &why);
    cr_assert(rc == 0, "%d: %s", rc, why.text);
    return found;
}

static uint8_t state_now(enum hr_discover_copies copies)
{
    struct hr_discovery *found = discovery(copies);
    uint8_t state = found->pair[1].state;

    hr_discovery_destroy(found);
    return state;
}

/* As if it had been found so long ago. */
static void age(uint64_t seconds)
{
    struct hr_discovery *found = discovery(HR_COPIES_KEPT);

    for (uint32_t i = 0; i < found->gpus * found->gpus; i++)
        found->pair[i].found_s -= seconds;
    cr_assert_eq(hr_pathcache_write(kept, found), 0);
    hr_discovery_destroy(found);
}

Test(discover, a_bad_way_is_tried_again_after_a_week_and_a_good_one_is_not)
{
    char script[] = "/tmp/headroom-mark-XXXXXX", mark[64];

    keep_paths();
    machine_that_keeps("corrupt:0-1");
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    cr_expect_eq(state_now(HR_COPIES_MISSING), HR_PAIR_CORRUPTS);
    setenv("SIMGPU_LINK", "", 1); /* mended, for the helper's node */
    cr_expect_eq(state_now(HR_COPIES_MISSING), HR_PAIR_CORRUPTS, "it was found just now");
    age(8 * 24 * 3600);
    cr_expect_eq(state_now(HR_COPIES_KEPT), HR_PAIR_CORRUPTS, "nothing is tried");
    cr_expect_eq(state_now(HR_COPIES_MISSING), HR_PAIR_GOOD);
    age(8 * 24 * 3600);
    use_marking_command(script, mark);
    cr_expect_eq(state_now(HR_COPIES_MISSING), HR_PAIR_GOOD);
    cr_expect(access(mark, F_OK) != 0, "good ones were tried again");
    unlink(script);
    drop_paths();
}

Test(discover, a_bad_way_that_cannot_be_tried_again_stays_bad)
{
    char script[] = "/tmp/headroom-mark-XXXXXX", mark[64];

    keep_paths();
    machine_that_keeps("corrupt:0-1");
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    cr_expect_eq(state_now(HR_COPIES_MISSING), HR_PAIR_CORRUPTS);
    age(8 * 24 * 3600);
    use_marking_command(script, mark); /* which ends without a word */
    cr_expect_eq(state_now(HR_COPIES_MISSING), HR_PAIR_CORRUPTS);
    cr_expect(access(mark, F_OK) == 0, "it was not tried");
    cr_expect_eq(state_now(HR_COPIES_ALL), HR_PAIR_CORRUPTS);
    hr_verify_use_command("/none");
    cr_expect_eq(state_now(HR_COPIES_MISSING), HR_PAIR_CORRUPTS);
    unlink(script);
    unlink(mark);
    drop_paths();
}

/* The command, which leaves a line in a file whenever it is started. */
static void use_counting_command(char *script, char *lines)
{
    char text[512];
    int fd = mkstemp(script);

    strcpy(lines, script);
    strcat(lines, ".lines");
    int length =
        snprintf(text, sizeof text, "#!/bin/sh\necho x >> %s\nexec %s \"$@\"\n", lines, getenv("TEST_HEADROOM"));
    cr_assert(fd >= 0 && write(fd, text, (size_t)length) == length && fchmod(fd, 0700) == 0 && close(fd) == 0);
    hr_verify_use_command(script);
}

enum { RANKS = 4 };

/* In a process of its own, which asserts nothing: Criterion does not know it. It begins when nobody has the other end of `start`. */
static int run_rank(const char *faults, uint8_t want, const int start[2])
{
    struct hr_discovery *found = NULL;
    char byte;

    setenv("SIMGPU", "square4,vram=64M", 1);
    setenv("SIMGPU_LINK", faults, 1);
    setenv("HEADROOM_TOPO_CACHE", kept, 1);
    close(start[1]);
    if (!hr_driver_load() || hr_drv.cuInit(0) != CUDA_SUCCESS || read(start[0], &byte, 1) != 0 ||
        hr_discover_machine(HR_COPIES_MISSING, &found, NULL) != 0)
        return 2;
    int status = found->pair[1].state != want || found->pair[2].state != HR_PAIR_GOOD;
    hr_discovery_destroy(found);
    return status;
}

/* Ranks that begin together; how many of them failed. */
static int run_ranks(const char *faults, uint8_t want)
{
    pid_t rank[RANKS];
    int start[2], failed = 0;

    cr_assert_eq(pipe(start), 0);
    for (int i = 0; i < RANKS; i++) {
        rank[i] = fork();
        if (rank[i] == 0)
            _exit(run_rank(faults, want, start));
    }
    close(start[0]);
    close(start[1]);
    for (int i = 0; i < RANKS; i++) {
        int status;
        cr_assert_eq(waitpid(rank[i], &status, 0), rank[i]);
        failed += status != 0;
    }
    return failed;
}

Test(discover, of_ranks_that_begin_together_one_tries_the_copies_and_all_know)
{
    char script[] = "/tmp/headroom-count-XXXXXX", lines[64];
    struct stat about = {0};

    keep_paths();
    use_counting_command(script, lines);
    cr_expect_eq(run_ranks("corrupt:0-1", HR_PAIR_CORRUPTS), 0);
    cr_expect_eq(stat(lines, &about), 0);
    cr_expect_leq(about.st_size, 4, "%d starts", (int)about.st_size / 2); /* the helper of a bad pair may not go on */
    unlink(lines);
    cr_expect_eq(run_ranks("", HR_PAIR_CORRUPTS), 0);
    cr_expect(access(lines, F_OK) != 0, "all was known");
    unlink(script);
    drop_paths();
}

/* Where nothing can be kept nobody learns from anybody, and nobody waits in vain for more than one. */
Test(discover, ranks_that_cannot_keep_what_they_find_all_find_it)
{
    char folder[] = "/tmp/headroom-kept-XXXXXX";

    cr_assert_not_null(mkdtemp(folder));
    snprintf(kept, sizeof kept, "%s/file/paths", folder);
    *strrchr(kept, '/') = 0;
    FILE *f = fopen(kept, "we"); /* a file where a folder should be */
    cr_assert(f && fclose(f) == 0);
    strcat(kept, "/paths");
    hr_verify_use_command(getenv("TEST_HEADROOM"));
    cr_expect_eq(run_ranks("corrupt:0-1", HR_PAIR_CORRUPTS), 0);
    *strrchr(kept, '/') = 0;
    unlink(kept);
    rmdir(folder);
}
