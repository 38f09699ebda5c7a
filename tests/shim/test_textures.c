/* Textures, tensor maps and arrays beside window memory. */
#include "core_test.h"

#include "residency/texture.h"
#include "support/sanitizer.h"

/* out[i] = texel i of a linear texture, i < n. */
static const char fetch_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fetch(.param .u64 pt, .param .u64 pout, .param .u32 pn)\n{\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<8>;\n    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [pt];\n    ld.param.u64 %rd2, [pout];\n    ld.param.u32 %r6, [pn];\n"
    "    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %ntid.x;\n    mov.u32 %r3, %tid.x;\n"
    "    mad.lo.s32 %r1, %r1, %r2, %r3;\n    setp.ge.u32 %p1, %r1, %r6;\n    @%p1 ret;\n"
    "    tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [%rd1, {%r1}];\n"
    "    mul.wide.u32 %rd3, %r1, 4;\n    add.s64 %rd2, %rd2, %rd3;\n    st.global.u32 [%rd2], %r2;\n    ret;\n}\n";

static CUfunction fetch_kernel(void)
{
    CUmodule m;
    CUfunction f;
    OK(cuModuleLoadData(&m, fetch_ptx));
    OK(cuModuleGetFunction(&f, m, "fetch"));
    return f;
}

static CUresult linear(CUtexObject *t, CUdeviceptr p, size_t bytes)
{
    CUDA_RESOURCE_DESC r = {.resType = CU_RESOURCE_TYPE_LINEAR,
                            .res.linear = {p, CU_AD_FORMAT_UNSIGNED_INT32, 1, bytes}};
    CUDA_TEXTURE_DESC d = {.flags = CU_TRSF_READ_AS_INTEGER};
    return cuTexObjectCreate(t, &r, &d, NULL);
}

static size_t resident(CUdeviceptr p, size_t bytes)
{
    size_t n = 0;
    for (size_t at = 0; at < bytes; at += CHUNK)
        n += atomic_load(&hr_space_chunk(p + at)->state) == HR_CHUNK_RESIDENT;
    return n;
}

/* Twelve textures of 4 MiB and a result each on a card of 32 MiB, read in turn: kernels name their memory by a texture only. */
#define TEXTURES 12
#define TEXELS (4 * MIB / 4)
#define READ (SANITIZED_THREADS ? TEXELS / 16 : TEXELS)
static void textures_are_moved_in(const char *deny)
{
    static uint32_t words[TEXELS];
    CUdeviceptr p[TEXTURES], out;
    CUtexObject t[TEXTURES];
    setenv("HEADROOM_COMMIT", "lazy", 1);
    machine("h200,vram=32M,host=512M", deny);
    CUfunction f = fetch_kernel();
    OK(cuMemAlloc_v2(&out, 4 * MIB));
    for (uint32_t k = 0; k < TEXTURES; k++) {
        OK(cuMemAlloc_v2(&p[k], 4 * MIB));
        OK(linear(&t[k], p[k], 4 * MIB)); /* never touched before: the driver wants memory there */
        for (uint32_t i = 0; i < TEXELS; i++)
            words[i] = i * 2654435761u + k;
        OK(cuMemcpyHtoD_v2(p[k], words, 4 * MIB));
    }
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t k = 0; k < TEXTURES; k++) {
            hr_access_evict_range(hr_thread_self(), p[k], 4 * MIB);
            uint32_t n = READ;
            OK(cuLaunchKernel(f, READ / 256, 1, 1, 256, 1, 1, 0, NULL, (void *[]){&t[k], &out, &n}, NULL));
            CHECK(resident(p[k], 4 * MIB) == 2, "texture %u was read where it lay", k);
            OK(cuMemcpyDtoH_v2(words, out, 4 * MIB));
            for (uint32_t i = 0; i < READ; i++)
                CHECK(words[i] == i * 2654435761u + k, "texel %u of texture %u is %x", i, k, words[i]);
        }
    }
    for (uint32_t k = 0; k < TEXTURES; k++) {
        OK(cuTexObjectDestroy(t[k]));
        OK(cuMemFree_v2(p[k]));
    }
    CHECK(atomic_load(&hr_texture_count) == 0);
}
Test(textures, memory_that_only_a_texture_names_is_moved_in)
{
    textures_are_moved_in("");
}
Test(textures, memory_that_only_a_texture_names_is_moved_in_where_host_memory_cannot_be_mapped)
{
    textures_are_moved_in("host_numa");
}

Test(textures, many_come_and_go)
{
    CUdeviceptr p;
    CUtexObject t[300], one;
    machine("h200,vram=64M,host=256M", "");
    OK(cuMemAlloc_v2(&p, MIB));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++)
            OK(linear(&t[i], p + 512 * (unsigned)i, 512));
        for (int i = 0; i < 300; i++)
            CHECK(hr_texture_address(t[i]) == p + 512 * (unsigned)i);
        for (int i = 0; i < 300; i++)
            OK(cuTexObjectDestroy(t[i]));
        for (int i = 0; i < 300; i++)
            CHECK(hr_texture_address(t[i]) == 0);
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, linear(&one, p + MIB - 256, 4096)); /* beyond the end */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(t[0]));
    CHECK(atomic_load(&hr_texture_count) == 0);
}

static CUresult tiled(CUtensorMap *map, CUdeviceptr p)
{
    static const cuuint64_t dim[2] = {1024, 1024}, stride[1] = {4096};
    static const cuuint32_t box[2] = {32, 32}, step[2] = {1, 1};
    return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)(uintptr_t)p, dim, stride, box, step,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* A kernel that takes 128 bytes by value and does nothing with them. */
static const char map_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                              ".visible .entry take(.param .align 64 .b8 map[128])\n{\n    ret;\n}\n";

Test(textures, memory_that_only_a_tensor_map_names_is_moved_in)
{
    CUdeviceptr p, other, table;
    CUtensorMap map __attribute__((aligned(64)));
    CUmodule m;
    CUfunction f;
    setenv("HEADROOM_COMMIT", "lazy", 1);
    machine("h200,vram=32M,host=256M", "");
    OK(cuModuleLoadData(&m, map_ptx));
    OK(cuModuleGetFunction(&f, m, "take"));
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAlloc_v2(&other, 4 * MIB));
    OK(tiled(&map, p)); /* reserved until now */
    OK(cuMemsetD8_v2(p, 7, 4 * MIB));
    OK(cuMemsetD8_v2(other, 8, 4 * MIB));
    OK(cuCtxSynchronize());
    CHECK(hr_access_evict_range(hr_thread_self(), p, 4 * MIB) == 2);
    OK(launch(f, 1, 1, NULL, (void *[]){&map}));
    CHECK(resident(p, 4 * MIB) == 2);
    CHECK(hr_access_evict_range(hr_thread_self(), other, 4 * MIB) == 2);
    OK(cuTensorMapReplaceAddress(&map, (void *)(uintptr_t)other));
    OK(launch(f, 1, 1, NULL, (void *[]){&map}));
    CHECK(resident(other, 4 * MIB) == 2);
    /* In memory, where a kernel finds it. */
    OK(cuCtxSynchronize());
    OK(cuMemAlloc_v2(&table, 4 * MIB));
    OK(cuMemcpyHtoD_v2(table + 128, &map, sizeof map));
    CHECK(hr_access_evict_range(hr_thread_self(), other, 4 * MIB) == 2);
    OK(stride_add(table, 1024, 1, 0, NULL));
    CHECK(resident(other, 4 * MIB) == 2);
    GIVES(CUDA_ERROR_INVALID_VALUE, tiled(&map, p + 8));
}

/* --- arrays --- */

Test(arrays, room_is_made_for_them_and_given_back)
{
    CUdeviceptr p;
    CUarray a;
    size_t before;
    machine("h200,vram=64M,host=256M", "");
    OK(cuMemAlloc_v2(&p, 80 * MIB));
    OK(cuMemsetD8_v2(p, 5, 80 * MIB)); /* fills the card */
    OK(cuCtxSynchronize());
    before = hr_tier_vram_limit(0);
    CUDA_ARRAY_DESCRIPTOR d = {2048, 3072, CU_AD_FORMAT_FLOAT, 1}; /* 24 MiB */
    OK(cuArrayCreate_v2(&a, &d));
    CHECK(hr_tier_vram_limit(0) + 11 <= before, "%zu chunks of %zu", (size_t)hr_tier_vram_limit(0), before);
    OK(cuArrayDestroy(a));
    CHECK(hr_tier_vram_limit(0) == before);
    CUDA_ARRAY3D_DESCRIPTOR huge = {
        16384, 16384, 4, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_LAYERED}; /* more than there is */
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuArray3DCreate_v2(&a, &huge));
    CHECK(hr_tier_vram_limit(0) == before);
    unsigned char byte;
    OK(cuMemcpyDtoH_v2(&byte, p + 79 * MIB, 1));
    CHECK(byte == 5);
}

/* Linear copies both ways, over memory in VRAM, in host memory, and both. */
static void linear_copies(const char *deny)
{
    static unsigned char bytes[6 * MIB];
    CUdeviceptr p;
    CUarray a;
    machine("h200,vram=64M,host=256M", deny);
    CUDA_ARRAY_DESCRIPTOR d = {16384, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4}; /* 64 KiB */
    OK(cuArrayCreate_v2(&a, &d));
    OK(cuMemAlloc_v2(&p, 6 * MIB));
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 31 + i / 4096);
    OK(cuMemcpyHtoD_v2(p, bytes, sizeof bytes));
    CHECK(hr_access_evict_range(hr_thread_self(), p, CHUNK) == 1);
    size_t across = CHUNK - 30000; /* out in its first part, in VRAM in its second */
    OK(cuMemcpyDtoA_v2(a, 4, p + across, 60000));
    OK(cuMemsetD8_v2(p + 4 * MIB, 0, 2 * MIB));
    CHECK(hr_access_evict_range(hr_thread_self(), p + 4 * MIB, CHUNK) == 1);
    OK(cuMemcpyAtoD_v2_ptds(p + 4 * MIB + 1024, a, 4, 60000));
    static unsigned char got[60000];
    OK(cuMemcpyDtoH_v2(got, p + 4 * MIB + 1024, sizeof got));
    CHECK(memcmp(got, bytes + across, sizeof got) == 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoA_v2(a, 0, p + 6 * MIB - 16, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoA_v2(a, 65536, p, 64));
    OK(cuArrayDestroy(a));
}
Test(arrays, linear_copies_are_cut_where_the_window_changes_tier)
{
    linear_copies("");
}
Test(arrays, linear_copies_take_what_lies_in_unmapped_host_memory)
{
    linear_copies("host_numa");
}
