/*
 * Instructions whose effects take more than a line to see: order between threads, shared memory, control flow, matrices.
 * They are listed here, and tested where it says.
 */
#include "ptx/conformance/conform.h"

#define FLOW .tested_in = "tests/ptx/test_flow.c"
#define MEMORY .tested_in = "tests/ptx/test_memory.c"
#define TEXTURE .tested_in = "tests/simgpu/test_texture.c"
#define MATRIX .tested_in = "tests/ptx/test_matrix.c"
#define ELEMENTS "<.b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.f32|.b64|.u64|.s64|.f64|.b128>"
#define SCOPES "<|.cta|.cluster|.gpu|.sys>"
#define HINTS "<|.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate>"
#define BLOCK "<.m16n16k16|.m32n8k16|.m8n32k16>"

const struct conform_row rows_other[] = {
    {"ld<|.weak|.volatile|.relaxed|.acquire>" SCOPES
     "<|.global|.shared|.local|.const|.param><|.ca|.cg|.cs|.lu|.cv|.nc>" HINTS
     "<|.L2::64B|.L2::128B|.L2::256B><|.v2|.v4|.v8>" ELEMENTS,
     MEMORY},
    {"ldu<|.global><|.v2|.v4>" ELEMENTS, MEMORY},
    {"st<|.weak|.volatile|.relaxed|.release>" SCOPES "<|.global|.shared|.local|.param><|.wb|.cg|.cs|.wt>" HINTS
     "<|.v2|.v4|.v8>" ELEMENTS,
     MEMORY},
    {"atom<|.relaxed|.acquire|.release|.acq_rel>" SCOPES "<|.global|.shared>"
     "<.add|.min|.max|.inc|.dec|.and|.or|.xor|.exch|.cas><.u32|.s32|.b32|.u64|.s64|.b64|.f32|.f64>",
     MEMORY},
    {"atom<|.relaxed|.acquire|.release|.acq_rel>" SCOPES "<|.global|.shared><.exch|.cas>.b128", MEMORY},
    {"atom<|.relaxed|.acquire|.release|.acq_rel>" SCOPES ".global<.v2|.v4>.add.f32", MEMORY},
    {"atom<|.relaxed|.acquire|.release|.acq_rel>" SCOPES
     ".global<.v2|.v4|.v8><.add|.min|.max>.noftz<.f16|.bf16|.f16x2|.bf16x2>",
     MEMORY},
    {"red<|.relaxed|.release>" SCOPES "<|.global|.shared>"
     "<.add|.min|.max|.inc|.dec|.and|.or|.xor><.u32|.s32|.b32|.u64|.s64|.b64|.f32|.f64>",
     MEMORY},
    {"cvta<|.to><.global|.shared|.local|.const|.param><.u32|.u64>", FLOW},
    {"isspacep<.global|.shared|.local|.const|.param>", MEMORY},
    {"prefetch<|.global|.local><.L1|.L2|.L2::evict_last|.L2::evict_normal>", MEMORY},
    {"prefetchu.L1", MEMORY},
    {"applypriority<|.global>.L2::evict_normal", MEMORY},
    {"discard<|.global>.L2", MEMORY},
    {"createpolicy<.fractional|.range|.cvt>.b64", MEMORY},
    {"membar<.cta|.gl|.sys>", MEMORY},
    {"fence<|.sc|.acq_rel|.acquire|.release><.cta|.cluster|.gpu|.sys>", MEMORY},
    {"fence.proxy<.alias|.async|.async.global|.async.shared::cta>", MEMORY},
    {"bra<|.uni>", FLOW},
    {"brx.idx<|.uni>", FLOW},
    {"call<|.uni>", FLOW},
    {"ret<|.uni>", FLOW},
    {"exit", FLOW},
    {"trap", FLOW},
    {"brkpt", FLOW},
    {"bar<|.cta><.sync|.arrive|.red.popc.u32|.red.and.pred|.red.or.pred>", FLOW},
    {"bar.warp.sync", FLOW},
    {"barrier<|.cta><.sync|.arrive|.red.popc.u32|.red.and.pred|.red.or.pred><|.aligned>", FLOW},
    {"barrier.cluster<.arrive|.wait><|.release|.relaxed|.acquire><|.aligned>", MEMORY},
    {"nanosleep.u32", MEMORY},
    {"pmevent<|.mask>", MEMORY},
    {"setmaxnreg<.inc|.dec>.sync.aligned.u32", MEMORY},
    {"griddepcontrol<.launch_dependents|.wait>", MEMORY},
    {"cp.async<.ca|.cg><.shared|.shared::cta>.global", MEMORY},
    {"cp.async<.commit_group|.wait_group|.wait_all>", MEMORY},
    {"cp.async.mbarrier.arrive<|.noinc><|.shared>.b64", MEMORY},
    {"cp.async.bulk<.shared::cluster|.shared::cta>.global.mbarrier::complete_tx::bytes", MEMORY},
    {"cp.async.bulk.global.shared::cta.bulk_group", MEMORY},
    {"cp.async.bulk<.commit_group|.wait_group|.wait_group.read>", MEMORY},
    {"mbarrier<.init|.inval><|.shared>.b64", MEMORY},
    {"mbarrier<.arrive|.arrive_drop><|.noComplete|.expect_tx><|.release|.relaxed><|.cta|.cluster><|.shared>.b64",
     MEMORY},
    {"mbarrier<.test_wait|.try_wait><|.parity><|.acquire|.relaxed><|.cta|.cluster><|.shared>.b64", MEMORY},
    {"mbarrier<.expect_tx|.complete_tx><|.relaxed><|.cta|.cluster><|.shared>.b64", MEMORY},
    {"mbarrier.pending_count.b64", MEMORY},
    {"mma.sync.aligned.m8n8k4<.row|.col><.row|.col><.f16|.f32>.f16.f16<.f16|.f32>", MATRIX},
    {"wmma.load<.a|.b>.sync.aligned<.row|.col>" BLOCK "<|.global|.shared><.f16|.bf16|.s8|.u8>", MATRIX},
    {"wmma.load.c.sync.aligned<.row|.col>" BLOCK "<|.global|.shared><.f16|.f32|.s32>", MATRIX},
    {"wmma.store.d.sync.aligned<.row|.col>" BLOCK "<|.global|.shared><.f16|.f32|.s32>", MATRIX},
    {"wmma.load<.a|.b|.c>.sync.aligned<.row|.col><.m16n16k8|.m8n8k4><|.global|.shared><.tf32|.f32|.f64>", MATRIX},
    {"wmma.store.d.sync.aligned<.row|.col><.m16n16k8|.m8n8k4><|.global|.shared><.f32|.f64>", MATRIX},
    {"wmma.mma.sync.aligned<.row|.col><.row|.col>" BLOCK "<.f16|.f32><.f16|.f32>", MATRIX},
    {"wmma.mma.sync.aligned<.row|.col><.row|.col>" BLOCK ".f32.bf16.bf16.f32", MATRIX},
    {"wmma.mma.sync.aligned<.row|.col><.row|.col>" BLOCK ".s32<.s8|.u8><.s8|.u8>.s32<|.satfinite>", MATRIX},
    {"wmma.mma.sync.aligned<.row|.col><.row|.col>.m16n16k8.f32.tf32.tf32.f32", MATRIX},
    {"wmma.mma.sync.aligned<.row|.col><.row|.col>.m8n8k4<|.rn>.f64.f64.f64.f64", MATRIX},
    {"ldmatrix.sync.aligned.m8n8<.x1|.x2|.x4><|.trans><|.shared>.b16", MATRIX},
    {"stmatrix.sync.aligned.m8n8<.x1|.x2|.x4><|.trans><|.shared>.b16", MATRIX},
    {"tex<.1d|.2d|.3d|.a1d|.a2d>.v4<.u32|.s32|.f32><.s32|.f32>", TEXTURE},
    {"tex.level<.1d|.2d|.3d|.a1d|.a2d>.v4<.u32|.s32|.f32>.f32", TEXTURE},
    {"tld4<.r|.g|.b|.a>.2d.v4<.u32|.s32|.f32>.f32", TEXTURE},
    {"txq<.width|.height|.depth|.array_size|.num_mipmap_levels|.channel_data_type|.channel_order|.normalized_coords|."
     "num_samples>.b32",
     TEXTURE},
    {"txq.level<.width|.height|.depth>.b32", TEXTURE},
    {"suld.b<.1d|.2d|.3d|.a1d|.a2d><|.ca|.cg|.cs|.cv><|.v2|.v4><.b8|.b16|.b32><.trap|.clamp|.zero>", TEXTURE},
    {"suld.b<.1d|.2d|.3d|.a1d|.a2d><|.ca|.cg|.cs|.cv><|.v2>.b64<.trap|.clamp|.zero>", TEXTURE},
    {"sust.b<.1d|.2d|.3d|.a1d|.a2d><|.wb|.cg|.cs|.wt><|.v2|.v4><.b8|.b16|.b32><.trap|.clamp|.zero>", TEXTURE},
    {"sust.b<.1d|.2d|.3d|.a1d|.a2d><|.wb|.cg|.cs|.wt><|.v2>.b64<.trap|.clamp|.zero>", TEXTURE},
    {"suq<.width|.height|.depth|.array_size|.channel_data_type|.channel_order>.b32", TEXTURE},
};
const size_t rows_other_count = sizeof(rows_other) / sizeof(rows_other[0]);
