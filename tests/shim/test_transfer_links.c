/* Links that fail under copies between GPUs. */
#include "transfers.h"

#include <sched.h>

#include "residency/context.h"

static uint64_t fail_seed;
static int fail_element, fail_port;
static unsigned *failed; /* how many links did fail under a copy */

static bool is_up(int element, int port)
{
    int (*ask)(int, int, struct sg_node_port *) =
        (int (*)(int, int, struct sg_node_port *))driver_symbol("sg_node_port");
    struct sg_node_port p;
    CHECK(ask(element, port, &p) == 0);
    return p.up;
}

/* DGX-1V, GPU 0 to GPU 5: two hops at least. GPU 0's links lead to 1, 2, 3, 3, 4, 4. */
static void link_fails(void)
{
    enum { BYTES = 16 * MIB };
    machine_of("dgx1v,vram=256M,host=1G", 8);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(5, BYTES);
    put(0, from, BYTES, fail_seed);
    put(5, to, BYTES, fail_seed + 1);
    CUstream s = stream_on(fail_seed % 2 ? 0 : 5);
    OK(cuMemcpyPeerAsync(to, context[5], from, context[0], BYTES, s));
    if (fail_seed % 3 == 0) { /* in whatever way the job hears that it is done */
        CUresult r;
        while ((r = cuStreamQuery(s)) == CUDA_ERROR_NOT_READY)
            sched_yield();
        OK(r);
    } else if (fail_seed % 3 == 1) {
        OK(cuStreamSynchronize(s));
    } else {
        CUevent e;
        OK(cuCtxSetCurrent(context[fail_seed % 2 ? 0 : 5]));
        OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
        OK(cuEventRecord(e, s));
        OK(cuEventSynchronize(e));
    }
    holds(5, to, BYTES, fail_seed);
    *failed += !is_up(fail_element, fail_port);
    OK(cuMemcpyPeerAsync(from, context[0], to, context[5], BYTES, s)); /* and the machine is usable afterwards */
    OK(cuStreamSynchronize(s));
    holds(0, from, BYTES, fail_seed);
}

Test(transfer_links, a_link_that_dies_under_it_costs_the_job_nothing, .timeout = 1800)
{
    unsigned rounds = is_long() ? 1000 : 24;
    failed = mmap(NULL, sizeof *failed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(failed != MAP_FAILED);
    for (unsigned i = 0; i < rounds; i++) {
        static const int element[] = {0, 0, 1, 4, 2, 3}, port[] = {0, 1, 3, 2, 3, 4};
        char text[64];
        fail_seed = 1000 + i;
        fail_element = element[i % 6];
        fail_port = port[i % 6];
        unsigned at = 1 + (unsigned)(pattern(7, i) % (2 * MIB));
        snprintf(text, sizeof text, "fail:%d.%d@%u", fail_element, fail_port, at);
        setenv("SIMGPU_LINK", text, 1);
        char *report = apart(link_fails);
        was_safe(report);
        free(report);
    }
    cr_assert(*failed >= rounds / 2, "only %u links of %u failed", *failed, rounds);
}

/* A word in the host's memory, and what a stream copies there last: so nothing has to be asked of the driver, which would tell of the link. */
static volatile uint32_t *word;
static CUdeviceptr one;

static void make_word(int gpu)
{
    one = allocate_on(gpu, 4);
    OK(cuMemsetD32_v2(one, 1, 1));
    OK(cuMemHostAlloc((void **)&word, 4, CU_MEMHOSTALLOC_PORTABLE));
    *word = 0;
    OK(cuCtxSynchronize());
}

static void wait_for_word(CUstream s)
{
    OK(cuMemcpyDtoHAsync_v2((void *)word, one, 4, s));
    while (*word == 0)
        sched_yield();
}

/* The first who asks is the library itself, when the job destroys its stream. */
static void stream_goes_before_anyone_asks(void)
{
    enum { BYTES = 16 * MIB };
    machine_of("dgx1v,vram=256M,host=1G", 8);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(5, BYTES);
    put(0, from, BYTES, 1);
    put(5, to, BYTES, 2);
    make_word(0);
    CUstream s = stream_on(0);
    OK(cuMemcpyPeerAsync(to, context[5], from, context[0], BYTES, s));
    wait_for_word(s);
    OK(cuStreamDestroy_v2(s));
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, cuCtxSynchronize()); /* other work was submitted: too late to copy again */
    OK(cuMemcpyPeerAsync(to, context[5], from, context[0], BYTES, NULL));
    OK(cuCtxSynchronize());
    holds(5, to, BYTES, 1);
}

/* The same of a copy that the driver made by itself, while no transfer runs. */
static void drivers_copy_fails_unasked(void)
{
    enum { BYTES = 768 * 1024 };
    machine_of("dgx1v,vram=256M,host=1G", 2);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(1, BYTES);
    put(0, from, BYTES, 1);
    put(1, to, BYTES, 2);
    make_word(0);
    CUstream s = stream_on(0);
    OK(cuMemcpyPeerAsync(to, context[1], from, context[0], BYTES, s));
    CHECK(!hr_transfer_any());
    wait_for_word(s);
    hr_quiet_now(HR_ALL_GPUS);
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, cuStreamSynchronize(s));
    OK(cuStreamSynchronize(s)); /* once */
}

/* The driver's own copy is what the link fails under; the transfer behind it can be made again, that one not. */
static void drivers_copy_fails_before_a_transfer(void)
{
    enum { SMALL = 768 * 1024, BYTES = 16 * MIB };
    machine_of("dgx1v,vram=256M,host=1G", 4);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    CUdeviceptr from = allocate_on(0, SMALL), to = allocate_on(1, SMALL);
    CUdeviceptr far_from = allocate_on(0, BYTES), far_to = allocate_on(1, BYTES);
    put(0, from, SMALL, 1);
    put(1, to, SMALL, 2);
    put(0, far_from, BYTES, 3);
    put(1, far_to, BYTES, 4);
    CUstream s = stream_on(0);
    OK(cuMemcpyPeerAsync(to, context[1], from, context[0], SMALL, s));
    OK(cuMemcpyPeerAsync(far_to, context[1], far_from, context[0], BYTES, s));
    CHECK(hr_transfer_any());
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, cuStreamSynchronize(s));
}

Test(transfer_links, the_job_hears_of_a_link_that_failed_under_what_no_transfer_can_repair, .timeout = 120)
{
    setenv("SIMGPU_LINK", "fail:0.0@100000", 1);
    free(apart(drivers_copy_fails_before_a_transfer));
    setenv("SIMGPU_DENY", "routers", 1);
    free(apart(drivers_copy_fails_before_a_transfer));
}

Test(transfer_links, the_job_hears_of_a_link_that_failed_though_the_library_asked_first, .timeout = 120)
{
    setenv("SIMGPU_DENY", "routers", 1);
    setenv("SIMGPU_LINK", "fail:0.0@100000", 1);
    free(apart(drivers_copy_fails_unasked));
    setenv("SIMGPU_LINK", "fail:0.0@1000000,fail:0.1@1000000", 1);
    free(apart(stream_goes_before_anyone_asks));
}

/* While one copy is waited for that GPU 4 passes on, a link fails under another one of GPU 4's, which nobody has asked about yet. */
static struct {
    CUdeviceptr from, to;
    CUstream stream;
    size_t bytes;
    bool begun;
} beside;
static __typeof__(hr_drv.cuMemcpyDtoDAsync_v2) real_copy;
static _Thread_local bool is_beside;

static void *copy_beside(void *arg)
{
    is_beside = true;
    OK(cuCtxSetCurrent(context[4]));
    OK(cuMemcpyPeerAsync(beside.to, context[6], beside.from, context[4], beside.bytes, beside.stream));
    wait_for_word(beside.stream);
    return arg;
}

static CUresult CUDAAPI copy_and_another(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    CUdevice here = -1;
    pthread_t thread;
    if (!beside.begun && !is_beside && hr_drv.cuCtxGetDevice(&here) == CUDA_SUCCESS && here == 4) {
        beside.begun = true;
        CHECK(pthread_create(&thread, NULL, copy_beside, NULL) == 0);
        pthread_join(thread, NULL);
    }
    return real_copy(to, from, bytes, s);
}

static void waits_beside_a_failure(void)
{
    enum { BYTES = 16 * MIB };
    machine_of("dgx1v,vram=256M,host=1G", 8);
    OK(cuCtxSetCurrent(context[4]));
    OK(cuCtxEnablePeerAccess(context[6], 0));
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(5, BYTES);
    beside.from = allocate_on(4, beside.bytes);
    beside.to = allocate_on(6, beside.bytes);
    put(0, from, BYTES, 1);
    put(5, to, BYTES, 2);
    put(4, beside.from, beside.bytes, 3);
    put(6, beside.to, beside.bytes, 4);
    make_word(4);
    beside.stream = stream_on(4);
    real_copy = hr_drv.cuMemcpyDtoDAsync_v2;
    hr_drv.cuMemcpyDtoDAsync_v2 = copy_and_another;
    OK(cuCtxSetCurrent(context[0]));
    CUresult r = cuMemcpyPeer(to, context[5], from, context[0], BYTES);
    CHECK(beside.begun, "GPU 4 passed nothing on");
    OK(cuCtxSetCurrent(context[4]));
    CUresult then = cuStreamSynchronize(beside.stream);
    CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_NVLINK_UNCORRECTABLE, "%d", (int)r);
    CHECK(then == CUDA_SUCCESS || then == CUDA_ERROR_NVLINK_UNCORRECTABLE, "%d", (int)then);
    if (r == CUDA_SUCCESS && then == CUDA_SUCCESS) { /* the job was not told: then all is right */
        holds(5, to, BYTES, 1);
        holds(6, beside.to, beside.bytes, 3);
    }
    CHECK(hr_lock_violations() == 0);
}

Test(transfer_links, a_copy_that_is_waited_for_does_not_hide_that_a_link_failed_under_another, .timeout = 120)
{
    static const size_t sizes[] = {768 * 1024, 16 * MIB}; /* the driver's copy, and a transfer */
    setenv("SIMGPU_DENY", "routers", 1);
    setenv("SIMGPU_LINK", "fail:4.3@200000", 1);
    for (size_t i = 0; i < 2; i++) {
        beside.bytes = sizes[i];
        free(apart(waits_beside_a_failure));
    }
}

/* Nothing can be copied again, and no router tells of the link: it is left alone all the same from then on. */
static void goes_on(void)
{
    enum { BYTES = 16 * MIB };
    machine_of("dgx1v,vram=256M,host=1G", 8);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(5, BYTES), other = allocate_on(0, MIB);
    CUstream s = stream_on(0);
    unsigned told = 0;
    for (uint64_t round = 0; round < 6; round++) {
        put(0, from, BYTES, round);
        OK(cuMemcpyPeerAsync(to, context[5], from, context[0], BYTES, s));
        OK(cuMemsetD32Async(other, 1, MIB / 4, s));
        CUresult r = cuStreamSynchronize(s);
        told += r == CUDA_ERROR_NVLINK_UNCORRECTABLE;
        if (r == CUDA_SUCCESS)
            holds(5, to, BYTES, round);
    }
    CHECK(told == 1, "the job was told %u times of one link", told);
}

Test(transfer_links, a_link_that_failed_under_what_could_not_be_repaired_is_not_used_again, .timeout = 120)
{
    setenv("SIMGPU_DENY", "routers", 1);
    setenv("SIMGPU_LINK", "fail:0.0@1000000", 1);
    free(apart(goes_on));
}
