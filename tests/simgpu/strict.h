/* What the tests of simgpu as an instrument share: kernels and calls for scenes, and reading what was found from messages and report. */
#ifndef SIM_STRICT_H
#define SIM_STRICT_H

#include "kernels.h"
#include "scene.h"
#include "sim_test.h"

#include <stdio.h>
#include <unistd.h>

/* clang-format off */
static const char strict_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry put(.param .u64 put_p, .param .u32 put_v)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [put_p];\n    ld.param.u32 %r1, [put_v];\n"
    "    st.global.u32 [%rd1], %r1;\n    ret;\n}\n"
    ".visible .entry put8(.param .u64 put8_p, .param .u32 put8_v)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [put8_p];\n    ld.param.u32 %r1, [put8_v];\n"
    "    st.global.u8 [%rd1], %r1;\n    ret;\n}\n"
    ".visible .entry copy_word(.param .u64 copy_to, .param .u64 copy_from)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [copy_to];\n    ld.param.u64 %rd2, [copy_from];\n"
    "    ld.global.u32 %r1, [%rd2];\n    st.global.u32 [%rd1], %r1;\n    ret;\n}\n"
    ".visible .entry count(.param .u64 count_p)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [count_p];\n"
    "    atom.global.add.u32 %r1, [%rd1], 1;\n    ret;\n}\n"
    "// writes the data, then the flag\n"
    ".visible .entry produce(.param .u64 produce_data, .param .u64 produce_flag)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [produce_data];\n    ld.param.u64 %rd2, [produce_flag];\n"
    "    mov.u32 %r1, 1;\n    st.global.u32 [%rd1], %r1;\n    membar.gl;\n"
    "    st.volatile.global.u32 [%rd2], %r1;\n    ret;\n}\n"
    "// waits for the flag, then reads the data\n"
    ".visible .entry consume(.param .u64 consume_data, .param .u64 consume_flag)\n{\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<3>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [consume_data];\n    ld.param.u64 %rd2, [consume_flag];\n"
    "LOOP:\n    ld.volatile.global.u32 %r1, [%rd2];\n    setp.eq.u32 %p1, %r1, 0;\n    @%p1 bra LOOP;\n"
    "    membar.gl;\n    ld.global.u32 %r2, [%rd1];\n    add.u32 %r2, %r2, 1;\n    st.global.u32 [%rd1+4], %r2;\n    ret;\n}\n"
    "// all blocks wait for the one with the highest number\n"
    ".visible .entry last_one(.param .u64 last_flag)\n{\n"
    "    .reg .pred %p<3>;\n    .reg .b32 %r<5>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [last_flag];\n    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %nctaid.x;\n"
    "    sub.u32 %r2, %r2, 1;\n    setp.ne.u32 %p1, %r1, %r2;\n    mov.u32 %r3, 1;\n"
    "    @%p1 bra LOOP;\n    st.volatile.global.u32 [%rd1], %r3;\n    ret;\n"
    "LOOP:\n    ld.volatile.global.u32 %r4, [%rd1];\n    setp.eq.u32 %p2, %r4, 0;\n    @%p2 bra LOOP;\n    ret;\n}\n"
    "// v = v * 2 + bit, many times over: which of several comes last shows in v\n"
    ".visible .entry append(.param .u64 append_p, .param .u32 append_bit)\n{\n"
    "    .reg .b32 %r<4>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [append_p];\n    ld.param.u32 %r1, [append_bit];\n"
    "    ld.global.u32 %r2, [%rd1];\n    mad.lo.u32 %r3, %r2, 2, %r1;\n    st.global.u32 [%rd1], %r3;\n    ret;\n}\n";
/* clang-format on */

static CUcontext context;
static CUstream stream[2];
static CUmodule module, spinning;
static CUdeviceptr memory; /* 1 MiB */

static inline CUfunction function(const char *name)
{
    CUfunction f;
    if (cuModuleGetFunction(&f, module, name))
        MUST(cuModuleGetFunction(&f, spinning, name));
    return f;
}

static inline void set_up(void)
{
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, strict_ptx));
    MUST(cuModuleLoadData(&spinning, kernels_ptx));
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&memory, MIB));
    MUST(cuMemsetD8_v2(memory, 0, MIB));
    MUST(cuCtxSynchronize());
}

static inline CUresult try(const char *name, unsigned blocks, CUstream s, void **params)
{
    return cuLaunchKernel(function(name), blocks, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static inline void put(CUdeviceptr p, CUstream s)
{
    uint32_t v = 5;
    MUST(try("put", 1, s, (void *[]){&p, &v}));
}

static inline void put8(CUdeviceptr p, CUstream s)
{
    uint32_t v = 5;
    MUST(try("put8", 1, s, (void *[]){&p, &v}));
}

static inline void count(CUdeviceptr p, CUstream s)
{
    MUST(try("count", 1, s, (void *[]){&p}));
}

static inline void copy_word(CUdeviceptr to, CUdeviceptr from, CUstream s)
{
    MUST(try("copy_word", 1, s, (void *[]){&to, &from}));
}

/* ---- outside the scene ---- */

static char report[16384];

/* Plays a scene with SIMGPU_CHECK; leaves its report in `report`. */
static inline struct hr_test_result strict(const char *name, const char *check, const char *machine_setting)
{
    char scene_setting[64], check_setting[64], report_setting[64];
    snprintf(scene_setting, sizeof scene_setting, "SIM_SCENE=%s", name);
    snprintf(check_setting, sizeof check_setting, "SIMGPU_CHECK=%s", check);
    snprintf(report_setting, sizeof report_setting, "SIMGPU_REPORT=/tmp/simgpu-strict-%d.json", (int)getpid());
    const char *env[] = {machine_setting, check_setting, report_setting, "SIMGPU_LOG=warn", NULL};
    struct hr_test_result r = play(scene_setting, env);
    FILE *f = fopen(strchr(report_setting, '/'), "r");
    cr_assert_not_null(f, "no report: %s", r.err);
    report[fread(report, 1, sizeof report - 1, f)] = 0;
    fclose(f);
    unlink(strchr(report_setting, '/'));
    return r;
}

#define MACHINE "SIMGPU=v100,vram=64M,host=64M"

/* Ends with this status, with these words in its messages, and with this many findings of a kind. */
static inline void finds(const char *name, const char *check, int status, const char *kind, int count,
                         const char *const *words)
{
    struct hr_test_result r = strict(name, check, MACHINE);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == (status & 255), "%s: 0x%x: %s", name, (unsigned)r.status,
              r.err);
    cr_assert_eq(reported(report, kind), count, "%s: %s\n%s", name, r.err, report);
    for (; *words; words++)
        cr_assert_not_null(strstr(r.err, *words), "%s: no '%s' in: %s", name, *words, r.err);
    hr_test_result_finish(&r);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline void finds_nothing(const char *name, const char *check)
{
    static const char *const kinds[] = {"race", "host_race", "red_zone", "leak", "deadlock"};
    struct hr_test_result r = strict(name, check, MACHINE);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s: 0x%x: %s", name, (unsigned)r.status, r.err);
    cr_assert_str_empty(r.err, "%s: %s", name, r.err);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        cr_assert_eq(reported(report, kinds[i]), 0, "%s: %s", name, kinds[i]);
    hr_test_result_finish(&r);
}

#endif
