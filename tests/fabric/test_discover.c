/* Discovery from inside a job: the library's own objects, a simulated node as the driver, the built command as the helper. */
#include "fabric/discover.h"

#include "driver/driver.h"
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

static void machine(const char *description, const char *faults)
{
    setenv("SIMGPU", description, 1);
    setenv("SIMGPU_LINK", faults, 1);
    setenv("HEADROOM_TOPO_CACHE", "off", 1);
    cr_assert(hr_driver_load());
    cr_assert_eq(hr_drv.cuInit(0), CUDA_SUCCESS);
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
