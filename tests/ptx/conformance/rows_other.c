/*
 * Memory, control flow and what warps do together: listed here, tested where their effects can be seen. Rows without kinds
 * need more than a line to stand in, and are only listed.
 */
#include "ptx/conformance/conform.h"

#define FLOW .tested_in = "tests/ptx/test_flow.c"

const struct conform_row rows_other[] = {
    {"ld<|.weak|.volatile|.relaxed|.acquire><|.cta|.gpu|.sys><|.global|.shared|.local|.const|.param>"
     "<|.ca|.cg|.cs|.lu|.cv|.nc><|.v2|.v4><.b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.f32|.b64|.u64|.s64|.f64>",
     FLOW},
    {"ldu.global<|.v2|.v4><.b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.f32|.b64|.u64|.s64|.f64>", FLOW},
    {"st<|.weak|.volatile|.relaxed|.release><|.cta|.gpu|.sys><|.global|.shared|.local|.param>"
     "<|.wb|.cg|.cs|.wt><|.v2|.v4><.b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.f32|.b64|.u64|.s64|.f64>",
     FLOW},
    {"atom<|.relaxed|.acquire|.release|.acq_rel><|.cta|.gpu|.sys><|.global|.shared>"
     "<.add|.min|.max|.inc|.dec|.and|.or|.xor|.exch|.cas><.b32|.u32|.s32|.b64|.u64|.s64|.f32|.f64>",
     FLOW},
    {"red<|.relaxed|.release><|.cta|.gpu|.sys><|.global|.shared><.add|.min|.max|.inc|.dec|.and|.or|.xor>"
     "<.b32|.u32|.s32|.b64|.u64|.s64|.f32|.f64>",
     FLOW},
    {"cvta<|.to><.global|.shared|.local|.const><.u32|.u64>", FLOW},
    {"isspacep<.global|.shared|.local|.const>", FLOW},
    {"prefetch<|.global|.local><.L1|.L2>", FLOW},
    {"prefetchu.L1", FLOW},
    {"membar<.cta|.gl|.sys>", FLOW},
    {"fence<|.sc|.acq_rel><.cta|.gpu|.sys>", FLOW},
    {"bra<|.uni>", FLOW},
    {"brx.idx<|.uni>", FLOW},
    {"call<|.uni>", FLOW},
    {"ret<|.uni>", FLOW},
    {"exit", FLOW},
    {"trap", FLOW},
    {"brkpt", FLOW},
    {"bar<.sync|.arrive|.red.popc.u32|.red.and.pred|.red.or.pred|.warp.sync>", FLOW},
    {"barrier<.sync|.arrive|.red.popc.u32|.red.and.pred|.red.or.pred><|.aligned>", FLOW},
    {"shfl<|.sync><.up|.down|.bfly|.idx>.b32", FLOW},
    {"vote<|.sync><.all.pred|.any.pred|.uni.pred|.ballot.b32>", FLOW},
    {"activemask.b32", FLOW},
    {"match<.any|.all>.sync<.b32|.b64>", FLOW},
    {"nanosleep.u32", FLOW},
};
const size_t rows_other_count = sizeof(rows_other) / sizeof(rows_other[0]);
