/* Virtual time is that of the model: rates of copies and kernels, and the overlap that hardware has. */
#include "virtual.h"

#include "simgpu/sim.h"

#include <math.h>

#define COPY_BYTES (64 * MIB)

static const struct sg_model models[] = {
#define SG_MODEL(key_, name_)                                                                                          \
    {                                                                                                                  \
        .key = key_,
#define SG_FIGURE(field, value, source) .field = value,
#define SG_MODEL_END                                                                                                   \
    }                                                                                                                  \
    ,
#include "simgpu/models.def"
};

static const struct sg_model *figures_of(const char *key)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (!strcmp(models[i].key, key))
            return &models[i];
    cr_assert_fail("%s", key);
    return NULL;
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
    const struct sg_model *m = figures_of(key);
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

Test(vrates, copies_reach_the_bandwidth_of_pcie_5)
{
    copies_reach_the_bandwidth("h200");
}

Test(vrates, copies_reach_the_bandwidth_of_pcie_4)
{
    copies_reach_the_bandwidth("a100-pcie");
}

Test(vrates, copies_reach_the_bandwidth_of_pcie_3)
{
    copies_reach_the_bandwidth("v100");
}

/* How long `seconds` of work take from one synchronisation to the next. */
static double clocked(uint64_t since_ns)
{
    OK(cuCtxSynchronize());
    return (double)(now_ns() - since_ns) * 1e-9;
}

Test(vrates, both_directions_and_compute_overlap)
{
    enum { COUNT = 16, BYTES = 4 << 20 };
    machine_with_context("a100-pcie,vram=64M,host=64M");
    const struct sg_model *m = figures_of("a100-pcie");
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

Test(vrates, kernels_and_copies_of_different_streams_do_not_wait_for_each_other)
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

Test(vrates, elapsed_time_is_the_sum_of_what_lies_between)
{
    enum { COUNT = 10 };
    machine_with_context("h200,vram=64M,host=64M");
    const struct sg_model *m = figures_of("h200");
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

Test(vrates, few_blocks_use_few_sms_and_host_memory_is_slower)
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
static double kernel_ns(const struct sg_model *m, const char *ptx, unsigned threads)
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

Test(vrates, doubles_and_matrices_take_the_time_of_their_units)
{
    machine_with_context("rtx4090,vram=64M");
    const struct sg_model *m = figures_of("rtx4090");
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

Test(vrates, a_copy_waits_for_one_before_it_that_leaves_by_the_same_device)
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
