/*
 * Kernels written in PTX for single tests: one parameter, the address of `out`, and a word of it per thread.
 * %rd0 is out, %r0 the thread's number, %rd1 the address of its word; the kernel leaves what it found in %r1.
 */
#ifndef TEST_PTX_KERNEL_H
#define TEST_PTX_KERNEL_H

#include "ptx/machine.h"

#include <criterion/criterion.h>
#include <string.h>

#define OUT_BYTES (1u << 16)

#define HEAD_WITH(registers)                                                                                           \
    ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p<8>; .reg .b16 %rs<16>; .reg .b32 %r<64>; .reg .f32 %f<32>;"  \
    " .reg .b64 %rd<16>; .reg .f64 %fd<16>;\n" registers                                                               \
    "ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1;\n"
#define HEAD HEAD_WITH("")
#define TAIL "\nst.global.u32 [%rd1], %r1;\nret;\n}\n"

static struct machine m;
static uint64_t out;

static inline void kernel_start(void)
{
    machine_init(&m);
    out = machine_alloc(&m, OUT_BYTES);
}

static inline void kernel_stop(void)
{
    machine_finish(&m);
}

static inline uint32_t *kernel_words(void)
{
    return machine_at(&m, out);
}

/* For the newest target, so that no instruction is too new. */
static inline void kernel_load(const char *body)
{
    static const char header[] = ".version 8.6\n.target sm_90a\n.address_size 64\n";
    size_t bytes = sizeof(header) - 1 + strlen(body);
    char *text = malloc(bytes + 1);
    cr_assert(text);
    memcpy(text, header, sizeof(header) - 1);
    memcpy(text + sizeof(header) - 1, body, strlen(body) + 1);
    machine_load(&m, text, bytes);
    free(text);
}

/* Runs with `out` as it is. */
static inline struct outcome kernel_launch(struct launch launch)
{
    launch.name = "k";
    launch.params = &out;
    return machine_run(&m, &launch);
}

static inline struct outcome kernel_outcome(const char *body, struct launch launch)
{
    kernel_load(body);
    memset(kernel_words(), 0, OUT_BYTES);
    return kernel_launch(launch);
}

static inline const uint32_t *kernel_run(const char *body, uint32_t threads)
{
    struct outcome outcome = kernel_outcome(body, (struct launch){.block = {threads}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE, "fault %d at line %u", outcome.fault.kind, outcome.fault.line);
    return kernel_words();
}

static inline enum ptx_fault_kind kernel_fault(const char *body, uint32_t threads)
{
    return kernel_outcome(body, (struct launch){.block = {threads}}).fault.kind;
}

#endif
