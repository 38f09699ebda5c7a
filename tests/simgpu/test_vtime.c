/* Virtual time: the same in every run, at the model's rates, with the overlap that hardware has. */
#include "kernels.h"
#include "scene.h"
#include "sim_test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define COPY_BYTES (64 * MIB)

struct figures {
    const char *key;
    double h2d_gbps, d2h_gbps, both_ways_gbps, vram_gbps, host_read_gbps, fp64_tflops, tensor_tflops;
    int sm_count;
};

static const struct figures models[] = {
#define SG_MODEL(key_, name_)                                                                                          \
    {                                                                                                                  \
        .key = key_,
#define SG_FIGURE(field, value, source) SG_FIGURE_##field(value)
#define SG_MODEL_END                                                                                                   \
    }                                                                                                                  \
    ,
#define SG_FIGURE_h2d_gbps(v) .h2d_gbps = v,
#define SG_FIGURE_d2h_gbps(v) .d2h_gbps = v,
#define SG_FIGURE_both_ways_gbps(v) .both_ways_gbps = v,
#define SG_FIGURE_vram_gbps(v) .vram_gbps = v,
#define SG_FIGURE_host_read_gbps(v) .host_read_gbps = v,
#define SG_FIGURE_major(v)
#define SG_FIGURE_minor(v)
#define SG_FIGURE_vram_bytes(v)
#define SG_FIGURE_context_bytes(v)
#define SG_FIGURE_sm_count(v) .sm_count = v,
#define SG_FIGURE_blocks_per_sm(v)
#define SG_FIGURE_threads_per_sm(v)
#define SG_FIGURE_shared_per_sm_bytes(v)
#define SG_FIGURE_shared_optin_bytes(v)
#define SG_FIGURE_l2_bytes(v)
#define SG_FIGURE_clock_khz(v)
#define SG_FIGURE_memory_clock_khz(v)
#define SG_FIGURE_bus_bits(v)
#define SG_FIGURE_pci_device_id(v)
#define SG_FIGURE_copy_engines(v)
#define SG_FIGURE_fp64_ratio(v)
#define SG_FIGURE_peer(v)
#define SG_FIGURE_peer_atomics(v)
#define SG_FIGURE_ecc(v)
#define SG_FIGURE_rdma(v)
#define SG_FIGURE_fp32_tflops(v)
#define SG_FIGURE_fp64_tflops(v) .fp64_tflops = v,
#define SG_FIGURE_tensor_tflops(v) .tensor_tflops = v,
#define SG_FIGURE_host_write_gbps(v)
#define SG_FIGURE_peer_gbps(v)
#define SG_FIGURE_memory_latency_cycles(v)
#define SG_FIGURE_host_latency_ns(v)
#define SG_FIGURE_schedulers_per_sm(v)
#include "simgpu/models.def"
};

static const struct figures *figures_of(const char *key)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (!strcmp(models[i].key, key))
            return &models[i];
    cr_assert_fail("%s", key);
    return NULL;
}

static uint64_t now_ns(void)
{
    static uint64_t (*now)(void);
    if (!now)
        *(void **)&now = dlsym(RTLD_DEFAULT, "sg_virtual_now_ns");
    cr_assert_not_null(now);
    return now();
}

static void launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **params)
{
    OK(cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, params, NULL));
}

static void launch_fill(CUfunction f, unsigned blocks, CUdeviceptr p, CUstream s)
{
    unsigned value = 3, n = blocks * 128;
    launch(f, blocks, 128, s, (void *[]){&p, &value, &n});
}

static CUstream stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static double seconds_between(CUevent a, CUevent b)
{
    float ms = -1;
    OK(cuEventElapsedTime_v2(&ms, a, b));
    return (double)ms * 1e-3;
}

/* ---- the same in every run ---- */

/* Copies, kernels, two streams tied by events, a host function, polling; prints the thread's clock and an elapsed time. */
static void nothing(void *arg)
{
    (void)arg;
}

static int scene_mixed(void)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    CUevent begin, end, tie;
    void *host;
    float ms;
    CUstream a = stream(), b;
    OK(cuStreamCreate(&b, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventCreate(&tie, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc_v2(&p, 8 * MIB));
    OK(cuMemAllocHost_v2(&host, 4 * MIB));
    memset(host, 1, 4 * MIB);
    OK(cuEventRecord(begin, a));
    for (unsigned i = 0; i < 12; i++) {
        uint32_t word = i;
        OK(cuMemcpyHtoDAsync_v2(p, host, 4 * MIB, a));
        launch_fill(f, 40 + 30 * i, p + 4 * MIB, b);
        launch_fill(f, 200, p, a);
        OK(cuEventRecord(tie, a));
        OK(cuStreamWaitEvent(b, tie, 0));
        OK(cuMemcpyDtoHAsync_v2(host, p, 1 * MIB, b));
        OK(cuMemsetD32Async(p + 6 * MIB, i, 1000, NULL));
        OK(cuMemcpyHtoD_v2(p + 7 * MIB, &word, sizeof word));
        if (i % 4 == 1)
            OK(cuLaunchHostFunc(a, nothing, NULL));
        while (cuEventQuery(tie) == CUDA_ERROR_NOT_READY)
            ;
        if (i % 3 == 2)
            while (cuStreamQuery(b) == CUDA_ERROR_NOT_READY)
                ;
        if (i % 5 == 4)
            OK(cuStreamSynchronize(a));
    }
    OK(cuEventRecord(end, a));
    while (cuEventElapsedTime_v2(&ms, begin, end) == CUDA_ERROR_NOT_READY)
        ;
    OK(cuCtxSynchronize());
    printf("%llu %.6f\n", (unsigned long long)now_ns(), (double)ms);
    return 0;
}

static void pause_us(void *us)
{
    usleep((unsigned)(uintptr_t)us);
}

/* Host functions that take longer together than anybody waits for one of them, then a copy; and a copy that this one could
 * displace. */
static int scene_host_functions(void)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p;
    void *host;
    CUstream a = stream(), b = stream();
    OK(cuMemAlloc_v2(&p, 32 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    for (int i = 0; i < 60; i++)
        OK(cuLaunchHostFunc(a, pause_us, (void *)(uintptr_t)2000));
    OK(cuMemcpyHtoDAsync_v2(p, host, MIB, a));
    for (int i = 0; i < 10; i++)
        OK(cuMemcpyHtoDAsync_v2(p + 16 * MIB, host, 16 * MIB, b));
    OK(cuStreamSynchronize(b));
    return 0;
}

/* ---- reports ---- */

static int scene_report(void)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    void *host;
    CUstream a = stream(), b = stream();
    OK(cuMemAlloc_v2(&p, 8 * MIB));
    OK(cuMemAllocHost_v2(&host, 4 * MIB));
    for (int i = 0; i < 3; i++) {
        launch_fill(f, 132, p, a);
        OK(cuMemcpyHtoDAsync_v2(p + 4 * MIB, host, 4 * MIB, b));
    }
    OK(cuCtxSynchronize());
    return 0;
}

SCENES({"mixed", scene_mixed}, {"host functions", scene_host_functions}, {"report", scene_report})

Test(vtime, a_single_threaded_job_takes_the_same_nanoseconds_twenty_times)
{
    char first[128] = "";
    for (int i = 0; i < 20; i++) {
        struct hr_test_result r = play("SIM_SCENE=mixed", NULL);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
        cr_assert(strlen(r.out) > 10 && strlen(r.out) < sizeof first, "%s", r.out);
        if (!i)
            strcpy(first, r.out);
        cr_assert_str_eq(r.out, first, "run %d", i);
        hr_test_result_finish(&r);
    }
}

Test(vtime, a_row_of_slow_host_functions_is_not_given_up)
{
    char report[64];
    snprintf(report, sizeof report, "SIMGPU_REPORT=/tmp/simgpu-vtime-%d.json", (int)getpid());
    struct hr_test_result r = play("SIM_SCENE=host functions", (const char *[]){report, NULL});
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    hr_test_result_finish(&r);
    const char *text = slurp(strchr(report, '=') + 1);
    unlink(strchr(report, '=') + 1);
    cr_assert_eq(reported(text, "given_up"), 0, "%s", text);
}

static void expect_rate(const char *what, double seconds, double bytes, double gbps)
{
    double rate = bytes / seconds * 1e-9;
    cr_assert(fabs(rate - gbps) <= 0.01 * gbps, "%s: %.3f GB/s, the model says %.3f", what, rate, gbps);
}

/* Large copies, each between two events. */
static void copies_reach_the_bandwidth(const char *key)
{
    char description[64];
    snprintf(description, sizeof description, "%s,vram=256M,host=256M", key);
    machine_with_context(description);
    const struct figures *m = figures_of(key);
    CUdeviceptr p;
    CUevent e[4];
    void *host;
    OK(cuMemAlloc_v2(&p, 2 * COPY_BYTES));
    OK(cuMemAllocHost_v2(&host, COPY_BYTES));
    for (int i = 0; i < 4; i++)
        OK(cuEventCreate(&e[i], 0));
    CUstream s = stream();
    OK(cuEventRecord(e[0], s));
    OK(cuMemcpyHtoDAsync_v2(p, host, COPY_BYTES, s));
    OK(cuEventRecord(e[1], s));
    OK(cuMemcpyDtoHAsync_v2(host, p, COPY_BYTES, s));
    OK(cuEventRecord(e[2], s));
    for (int i = 0; i < 20; i++)
        OK(cuMemcpyDtoDAsync_v2(p + COPY_BYTES, p, COPY_BYTES, s));
    OK(cuEventRecord(e[3], s));
    OK(cuStreamSynchronize(s));
    expect_rate("H2D", seconds_between(e[0], e[1]), COPY_BYTES, m->h2d_gbps);
    expect_rate("D2H", seconds_between(e[1], e[2]), COPY_BYTES, m->d2h_gbps);
    /* each copy reads and writes; the engine's latency weighs more beside VRAM's bandwidth */
    double least = 20 * 2.0 * COPY_BYTES / (m->vram_gbps * 0.9e9), most = least + 20 * 5e-6;
    double took = seconds_between(e[2], e[3]);
    cr_assert(took >= least && took <= most, "%g s, expected %g to %g", took, least, most);
}

Test(vtime, copies_reach_the_bandwidth_of_pcie_5)
{
    copies_reach_the_bandwidth("h200");
}

Test(vtime, copies_reach_the_bandwidth_of_pcie_4)
{
    copies_reach_the_bandwidth("a100-pcie");
}

Test(vtime, copies_reach_the_bandwidth_of_pcie_3)
{
    copies_reach_the_bandwidth("v100");
}

/* How long `seconds` of work take from one synchronisation to the next. */
static double clocked(uint64_t since_ns)
{
    OK(cuCtxSynchronize());
    return (double)(now_ns() - since_ns) * 1e-9;
}

Test(vtime, both_directions_and_compute_overlap)
{
    enum { COUNT = 16, BYTES = 4 << 20 };
    machine_with_context("a100-pcie,vram=64M,host=64M");
    const struct figures *m = figures_of("a100-pcie");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    char *host;
    CUstream in = stream(), out = stream(), compute = stream();
    OK(cuMemAlloc_v2(&p, 3 * (size_t)BYTES));
    OK(cuMemAllocHost_v2((void **)&host, 2 * (size_t)BYTES));
    double took[4];
    for (int round = 0; round < 4; round++) { /* in alone, out alone, compute alone, all three */
        OK(cuCtxSynchronize());
        uint64_t begin = now_ns();
        for (int i = 0; i < COUNT; i++) {
            if (round == 0 || round == 3)
                OK(cuMemcpyHtoDAsync_v2(p, host, BYTES, in));
            if (round == 1 || round == 3)
                OK(cuMemcpyDtoHAsync_v2(host + BYTES, p + BYTES, BYTES, out));
            if (round == 2 || round == 3)
                launch_fill(f, 216, p + 2 * (size_t)BYTES, compute);
        }
        took[round] = clocked(begin);
    }
    double bytes = (double)COUNT * BYTES;
    cr_assert(fabs(took[0] * 1e9 - bytes / m->h2d_gbps) < COUNT * 5000 + 50000, "%g", took[0]);
    cr_assert(fabs(took[1] * 1e9 - bytes / m->d2h_gbps) < COUNT * 5000 + 50000, "%g", took[1]);
    double both = bytes / (m->both_ways_gbps * 1e9);
    cr_assert(took[3] > 0.97 * both && took[3] < 1.08 * both, "%g s; both ways at once they should take %g", took[3],
              both);
    cr_assert_lt(took[2], took[0], "the kernels are the shortest part here");
}

Test(vtime, kernels_and_copies_of_different_streams_do_not_wait_for_each_other)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    void *host;
    CUevent e[4];
    CUstream a = stream(), b = stream();
    OK(cuMemAlloc_v2(&p, 16 * MIB));
    OK(cuMemAllocHost_v2(&host, 8 * MIB));
    for (int i = 0; i < 4; i++)
        OK(cuEventCreate(&e[i], 0));
    OK(cuEventRecord(e[0], a));
    OK(cuMemcpyHtoDAsync_v2(p, host, 8 * MIB, a)); /* 160 us and more */
    OK(cuEventRecord(e[1], a));
    launch_fill(f, 132, p + 8 * MIB, b);
    OK(cuEventRecord(e[2], b));
    OK(cuStreamWaitEvent(b, e[1], 0));
    launch_fill(f, 132, p + 8 * MIB, b);
    OK(cuEventRecord(e[3], b));
    OK(cuCtxSynchronize());
    double copy_end = seconds_between(e[0], e[1]);
    cr_assert_lt(seconds_between(e[0], e[2]), copy_end / 2, "the first kernel ran beside the copy");
    cr_assert_gt(seconds_between(e[0], e[3]), copy_end, "the second one was told to wait");
}

Test(vtime, elapsed_time_is_the_sum_of_what_lies_between)
{
    enum { COUNT = 10 };
    machine_with_context("h200,vram=64M,host=64M");
    const struct figures *m = figures_of("h200");
    CUdeviceptr p;
    void *host;
    CUevent a, b;
    CUstream s = stream();
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAllocHost_v2(&host, 4 * MIB));
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventRecord(a, s));
    for (int i = 0; i < COUNT; i++)
        OK(cuMemcpyHtoDAsync_v2(p, host, 4 * MIB, s));
    OK(cuEventRecord(b, s));
    OK(cuEventSynchronize(b));
    double expected = COUNT * (4 * MIB / m->h2d_gbps + 4000); /* each with the engine's latency */
    double ns = seconds_between(a, b) * 1e9;
    cr_assert(fabs(ns - expected) < 2500, "%f, expected %f: the first one starts when its call is over", ns, expected);
}

Test(vtime, few_blocks_use_few_sms_and_host_memory_is_slower)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr vram, mapped;
    void *host;
    CUevent e[4];
    CUstream s = stream();
    unsigned value = 1, n = 132 * 1024;
    OK(cuMemAlloc_v2(&vram, 4 * n));
    OK(cuMemAllocHost_v2(&host, 4 * n));
    OK(cuMemHostGetDevicePointer_v2(&mapped, host, 0));
    for (int i = 0; i < 4; i++)
        OK(cuEventCreate(&e[i], 0));
    OK(cuEventRecord(e[0], s));
    launch(f, 132, 1024, s, (void *[]){&vram, &value, &n});
    OK(cuEventRecord(e[1], s));
    launch(f, 132, 1024, s, (void *[]){&mapped, &value, &n});
    OK(cuEventRecord(e[2], s));
    for (unsigned i = 0; i < 132; i++) /* one block each: one SM each, one after the other */
        launch(f, 1, 1024, s, (void *[]){&vram, &value, &n});
    OK(cuEventRecord(e[3], s));
    OK(cuStreamSynchronize(s));
    double near = seconds_between(e[0], e[1]), far = seconds_between(e[1], e[2]), single = seconds_between(e[2], e[3]);
    cr_assert_gt(far, 4.0 * n / 53e9, "%g", far);
    cr_assert_lt(near, far);
    cr_assert_gt(single, 10 * near);
}

#define ARITHMETIC_HEAD ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\n"
#define TIMES_4(text) text text text text

/* Nanoseconds between events around a kernel of one block on each SM. */
static double kernel_ns(const struct figures *m, const char *ptx, unsigned threads)
{
    CUmodule module;
    CUfunction f;
    CUevent e[2];
    CUstream s = stream();
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&f, module, "k"));
    for (int i = 0; i < 2; i++)
        OK(cuEventCreate(&e[i], 0));
    OK(cuEventRecord(e[0], s));
    launch(f, (unsigned)m->sm_count, threads, s, NULL);
    OK(cuEventRecord(e[1], s));
    OK(cuStreamSynchronize(s));
    return seconds_between(e[0], e[1]) * 1e9;
}

Test(vtime, doubles_and_matrices_take_the_time_of_their_units)
{
    machine_with_context("rtx4090,vram=64M");
    const struct figures *m = figures_of("rtx4090");
    double empty = kernel_ns(m, ARITHMETIC_HEAD "ret; }", 256);
    double ns = kernel_ns(m,
                          ARITHMETIC_HEAD ".reg .f64 %d<3>;\nmov.f64 %d1, 0d3FF0000000000000;\n" TIMES_4(
                              TIMES_4(TIMES_4("fma.rn.f64 %d1, %d1, %d1, %d1;\n"))) "ret; }",
                          256) -
                empty;
    double expected = m->sm_count * 256.0 * 64 * 2 / m->fp64_tflops / 1e3;
    cr_assert(fabs(ns - expected) < expected / 50, "doubles: %f ns, expected %f", ns, expected);
    ns = kernel_ns(m,
                   ARITHMETIC_HEAD
                   ".reg .b32 %a<4>, %b<2>;\n.reg .f32 %c<4>;\n"
                   "mov.b32 %a0, 0; mov.b32 %a1, 0; mov.b32 %a2, 0; mov.b32 %a3, 0; mov.b32 %b0, 0; mov.b32 %b1, 0;\n"
                   "mov.f32 %c0, 0f00000000; mov.f32 %c1, 0f00000000; mov.f32 %c2, 0f00000000; mov.f32 %c3, "
                   "0f00000000;\n" TIMES_4(TIMES_4(TIMES_4(
                       "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%c0, %c1, %c2, %c3}, {%a0, %a1, %a2, %a3}, "
                       "{%b0, %b1}, {%c0, %c1, %c2, %c3};\n"))) "ret; }",
                   256) -
         empty;
    expected = m->sm_count * 8.0 * 64 * (2 * 16 * 8 * 16) / m->tensor_tflops / 1e3;
    cr_assert(fabs(ns - expected) < expected / 20, "matrices: %f ns, expected %f", ns, expected);
}

Test(vtime, a_copy_waits_for_one_before_it_that_leaves_by_the_same_device)
{
    machine("h200,vram=64M,host=64M,gpus=2");
    CUcontext context[2];
    CUdeviceptr p[2];
    CUstream s[2];
    uint64_t begin, took[2];
    for (int i = 1; i >= 0; i--) {
        OK(cuCtxCreate_v2(&context[i], 0, i));
        OK(cuMemAlloc_v2(&p[i], 40 * MIB));
        s[i] = stream();
    }
    CUfunction f = kernel("fill");
    for (int round = 0; round < 2;
         round++) { /* alone; beside one that the other device fetches, after a while in reality */
        OK(cuCtxSetCurrent(context[0]));
        for (int i = 0; i < 30 * round; i++)
            launch_fill(f, 1000, p[0] + 32 * MIB, s[0]);
        begin = now_ns();
        if (round)
            OK(cuMemcpyPeerAsync(p[0], context[0], p[1], context[1], 16 * MIB, s[0]));
        OK(cuCtxSetCurrent(context[1]));
        for (int i = 0; i < 4; i++) /* not all of them end before it begins */
            OK(cuMemcpyPeerAsync(p[0] + 16 * MIB, context[0], p[1], context[1], 16 * MIB, s[1]));
        OK(cuStreamSynchronize(s[1]));
        took[round] = now_ns() - begin;
    }
    cr_assert_gt(took[1], took[0] + took[0] / 5, "%llu, alone %llu", (unsigned long long)took[1],
                 (unsigned long long)took[0]);
}

/* ---- questions ---- */

Test(vtime, a_question_is_answered_by_virtual_time_and_asking_again_ends)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUdeviceptr p;
    void *host;
    CUevent e, first;
    float ms;
    CUstream s = stream();
    OK(cuMemAlloc_v2(&p, 16 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    OK(cuEventCreate(&e, 0));
    OK(cuEventCreate(&first, 0));
    OK(cuEventRecord(first, s));
    for (int i = 0; i < 10; i++)
        OK(cuMemcpyHtoDAsync_v2(p, host, 16 * MIB, s)); /* 3.4 ms of the link */
    OK(cuEventRecord(e, s));
    uint64_t begin = now_ns();
    GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&ms, first, e));
    unsigned asked = 0;
    while (cuEventQuery(e) == CUDA_ERROR_NOT_READY)
        cr_assert_lt(++asked, 200);
    cr_assert_gt(asked, 3);
    OK(cuStreamQuery(s));
    OK(cuEventElapsedTime_v2(&ms, first, e));
    double waited = (double)(now_ns() - begin) * 1e-6;
    cr_assert(waited > 0.9 * (double)ms && waited < 1.02 * (double)ms, "%f ms, the work takes %f", waited, (double)ms);
}

Test(vtime, questions_and_waits_pass_by_a_kernel_that_spins, .timeout = 60)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUfunction spin = kernel("spin"), fill = kernel("fill");
    uint32_t *flag;
    CUdeviceptr p, none = 0;
    CUevent e;
    void *host;
    CUstream held = stream(), other = stream();
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAllocHost_v2((void **)&flag, 4096));
    OK(cuMemAllocHost_v2(&host, MIB));
    OK(cuEventCreate(&e, 0));
    *flag = 0;
    CUdeviceptr flag_va = (CUdeviceptr)(uintptr_t)flag;
    launch(spin, 1, 1, held, (void *[]){&flag_va, &none, &none});
    OK(cuEventRecord(e, held));
    for (int i = 0; i < 100; i++) {
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
        GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e));
        OK(cuMemcpyHtoDAsync_v2(p, host, MIB, other));
        launch_fill(fill, 20, p, other);
        if (i % 10 == 0)
            launch_fill(fill, 500, p, other); /* more than the SMs that are left */
        OK(cuStreamSynchronize(other));
    }
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(held));
    OK(cuEventQuery(e));
}

Test(vtime, work_behind_a_host_function_that_waits_does_not_hold_up_other_streams, .timeout = 60)
{
    machine_with_context("h200,vram=64M,host=64M");
    static struct gate gate = GATE_INIT;
    CUdeviceptr p;
    void *host;
    CUstream held = stream(), other = stream();
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAllocHost_v2(&host, MIB));
    OK(cuLaunchHostFunc(held, gate_wait, &gate));
    gate_await_arrival(&gate);
    for (int i = 0; i < 200; i++) {
        OK(cuMemcpyHtoDAsync_v2(p, host, MIB, held)); /* needs the engine, before the other one */
        OK(cuMemcpyHtoDAsync_v2(p + 2 * MIB, host, MIB, other));
        OK(cuStreamSynchronize(other));
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
    }
    gate_open(&gate);
    OK(cuStreamSynchronize(held));
    OK(cuStreamQuery(held));
}

#if defined(__SANITIZE_THREAD__)
#define PENDING 20000
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PENDING 20000
#endif
#endif
#ifndef PENDING
#define PENDING 100000
#endif

Test(vtime, waiting_beside_many_pending_kernels_takes_no_square_of_them, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    CUstream full = stream(), other = stream();
    OK(cuMemAlloc_v2(&p, MIB));
    for (int i = 0; i < PENDING; i++)
        launch_fill(f, 1, p, full);
    launch_fill(f, 200, p, other); /* any of those before may take its SMs */
    OK(cuStreamSynchronize(other));
    OK(cuStreamSynchronize(full));
}

static void note_time(void *at)
{
    *(uint64_t *)at = now_ns();
}

Test(vtime, a_host_function_runs_at_its_place_in_time)
{
    machine_with_context("h200,vram=64M,host=64M");
    static uint64_t seen_ns;
    CUdeviceptr p;
    void *host;
    CUstream s = stream();
    OK(cuMemAlloc_v2(&p, 16 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    uint64_t begin = now_ns();
    OK(cuMemcpyHtoDAsync_v2(p, host, 16 * MIB, s));
    OK(cuLaunchHostFunc(s, note_time, &seen_ns));
    OK(cuStreamSynchronize(s));
    double copy_ns = 16 * MIB / 50.0;
    cr_assert_gt(seen_ns - begin, copy_ns);
    cr_assert_geq(now_ns(), seen_ns);
}

Test(vtime, a_host_function_sees_the_end_of_a_copy_that_waited_for_the_engine)
{
    machine_with_context("h200,vram=64M,host=64M");
    static uint64_t seen_ns;
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    void *host;
    CUevent begin, end;
    CUstream a = stream(), b = stream();
    OK(cuMemAlloc_v2(&p, 32 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    uint64_t start_ns = now_ns();
    OK(cuEventRecord(begin, b));
    for (int i = 0; i < 8; i++) /* long in reality */
        launch_fill(f, 10000, p, a);
    OK(cuMemcpyHtoDAsync_v2(p, host, 16 * MIB, a));
    for (int i = 0; i < 8; i++) /* the copy before has its place between two of these, once it is known */
        OK(cuMemcpyHtoDAsync_v2(p + 16 * MIB, host, 8 * MIB, b));
    OK(cuEventRecord(end, b));
    OK(cuLaunchHostFunc(b, note_time, &seen_ns));
    OK(cuCtxSynchronize());
    double ends = seconds_between(begin, end) * 1e9;
    cr_assert_gt((double)(seen_ns - start_ns), ends, "it runs after what stands before it in its stream");
}

/* ---- reports ---- */

static const char *member(const char *text, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = strstr(text, key);
    cr_assert_not_null(at, "%s in %s", name, text);
    return at + strlen(key);
}

Test(vtime, the_report_and_the_timeline_tell_what_ran_when)
{
    char report[64], timeline[64];
    snprintf(report, sizeof report, "SIMGPU_REPORT=/tmp/simgpu-vtime-%d.json", (int)getpid());
    snprintf(timeline, sizeof timeline, "SIMGPU_TIMELINE=/tmp/simgpu-line-%d.json", (int)getpid());
    const char *env[] = {report, timeline, NULL};
    struct hr_test_result r = play("SIM_SCENE=report", env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    hr_test_result_finish(&r);
    const char *text = slurp(strchr(report, '=') + 1);
    unlink(strchr(report, '=') + 1);
    long long total = strtoll(member(text, "virtual_time_ns"), NULL, 10), sms = strtoll(member(text, "sms"), NULL, 10);
    long long h2d = strtoll(member(text, "h2d"), NULL, 10),
              both = strtoll(member(text, "compute_and_copy_ns"), NULL, 10);
    cr_assert(sms > 3000 && sms < total, "%lld of %lld", sms, total);
    cr_assert(h2d > 3 * 83886 && h2d < total, "%lld", h2d);
    cr_assert(both > 0 && both <= sms, "%lld", both);
    cr_assert_not_null(strstr(text, "{\"name\": \"fill\", \"count\": 3, \"ns\": "), "%s", text);
    cr_assert_not_null(strstr(text, "\"launch\": {\"count\": 3, \"ns\": 7500}"), "%s", text);
    text = slurp(strchr(timeline, '=') + 1);
    unlink(strchr(timeline, '=') + 1);
    int kernels = 0, copies = 0;
    long long end = 0;
    for (const char *at = text; (at = strstr(at, "{\"gpu\": 0, ")); at++) {
        kernels += strncmp(member(at, "engine"), "\"sms\"", 5) == 0;
        copies += strncmp(member(at, "engine"), "\"h2d\"", 5) == 0;
        end = strtoll(member(at, "end_ns"), NULL, 10);
        cr_assert_lt(strtoll(member(at, "start_ns"), NULL, 10), end);
        cr_assert_leq(end, total);
    }
    cr_assert_eq(kernels, 3);
    cr_assert_eq(copies, 3);
}

Test(vtime, a_report_that_goes_to_a_link_leaves_it_there)
{
    char link[64], target[64], settings[2][96];
    struct stat at;
    snprintf(link, sizeof link, "/tmp/simgpu-link-%d", (int)getpid());
    snprintf(target, sizeof target, "/tmp/simgpu-target-%d", (int)getpid());
    cr_assert_eq(symlink(target, link), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(settings[i], sizeof settings[i], "%s=%s", i ? "SIMGPU_TIMELINE" : "SIMGPU_REPORT", link);
        struct hr_test_result r = play("SIM_SCENE=report", (const char *[]){settings[i], NULL});
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
        hr_test_result_finish(&r);
        cr_expect(lstat(link, &at) == 0 && S_ISLNK(at.st_mode), "%s", settings[i]);
        cr_expect_not_null(strstr(slurp(target), "virtual_time_ns"), "%s", settings[i]);
        unlink(target);
    }
    unlink(link);
}
