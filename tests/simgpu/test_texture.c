/* Textures and surfaces in kernels: tex, tld4, txq, suld, sust, suq, against the same arithmetic on the CPU. */
#include "sim_test.h"

#include <math.h>
#include <stdio.h>

#define W 13
#define H 7
#define D 5
#define POINTS 256

static CUtexObject texture(const CUDA_RESOURCE_DESC *r, CUaddress_mode mode, CUfilter_mode filter, unsigned flags)
{
    CUtexObject t;
    CUDA_TEXTURE_DESC d = {
        .addressMode = {mode, mode, mode}, .filterMode = filter, .flags = flags, .borderColor = {0.5f, 0.25f, 8, 4}};
    OK(cuTexObjectCreate(&t, r, &d, NULL));
    return t;
}

static CUDA_RESOURCE_DESC of_array(CUarray a)
{
    return (CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = a};
}

static CUarray array_with(size_t width, size_t height, size_t depth, CUarray_format format, unsigned channels,
                          unsigned flags, const void *data, size_t element_bytes)
{
    CUarray a;
    CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, format, channels, flags};
    OK(cuArray3DCreate_v2(&a, &d));
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = data,
                       .srcPitch = width * element_bytes,
                       .srcHeight = height ? height : 1,
                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                       .dstArray = a,
                       .WidthInBytes = width * element_bytes,
                       .Height = height ? height : 1,
                       .Depth = depth ? depth : 1};
    OK(cuMemcpy3D_v2(&c));
    return a;
}

/* out[i] = {four words} of `instruction`, whose results are %r1 .. %r4 and whose coordinates {%f1 .. %f4} are in[i]; %rd1 is the
 * handle, and %r9 an integer of in[i], its bits. */
static CUfunction kernel(const char *instruction)
{
    static char text[4096];
    CUmodule m;
    CUfunction f;
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_70\n.address_size 64\n"
             ".visible .entry fetch(.param .u64 pt, .param .u64 pin, .param .u64 pout)\n{\n"
             "    .reg .b16 %%h<9>;\n    .reg .b32 %%r<16>;\n    .reg .f32 %%f<9>;\n    .reg .b64 %%rd<9>;\n"
             "    ld.param.u64 %%rd1, [pt];\n    ld.param.u64 %%rd2, [pin];\n    ld.param.u64 %%rd3, [pout];\n"
             "    mov.u32 %%r10, %%tid.x;\n    mul.wide.u32 %%rd4, %%r10, 16;\n"
             "    add.s64 %%rd2, %%rd2, %%rd4;\n    add.s64 %%rd3, %%rd3, %%rd4;\n"
             "    ld.global.v4.f32 {%%f1, %%f2, %%f3, %%f4}, [%%rd2];\n"
             "    ld.global.v4.u32 {%%r5, %%r6, %%r7, %%r8}, [%%rd2];\n"
             "    mov.u32 %%r1, 0;\n    mov.u32 %%r2, 0;\n    mov.u32 %%r3, 0;\n    mov.u32 %%r4, 0;\n"
             "    %s\n"
             "    st.global.v4.u32 [%%rd3], {%%r1, %%r2, %%r3, %%r4};\n    ret;\n}\n",
             instruction);
    OK(cuModuleLoadData(&m, text));
    OK(cuModuleGetFunction(&f, m, "fetch"));
    return f;
}

static CUresult try_run(CUfunction f, uint64_t handle, const void *in, void *out, unsigned count)
{
    CUdeviceptr d_in, d_out;
    OK(cuMemAlloc_v2(&d_in, 16 * POINTS));
    OK(cuMemAlloc_v2(&d_out, 16 * POINTS));
    OK(cuMemcpyHtoD_v2(d_in, in, 16 * count));
    OK(cuMemsetD8_v2(d_out, 0, 16 * POINTS));
    OK(cuLaunchKernel(f, 1, 1, 1, count, 1, 1, 0, NULL, (void *[]){&handle, &d_in, &d_out}, NULL));
    CUresult r = cuMemcpyDtoH_v2(out, d_out, 16 * count);
    if (!r) {
        OK(cuMemFree_v2(d_in));
        OK(cuMemFree_v2(d_out));
    }
    return r;
}

static void run(CUfunction f, uint64_t handle, const void *in, void *out, unsigned count)
{
    OK(try_run(f, handle, in, out, count));
}

/* ---- what is expected ---- */

static int fold(CUaddress_mode mode, int i, int n)
{
    if (mode == CU_TR_ADDRESS_MODE_CLAMP)
        return i < 0 ? 0 : i >= n ? n - 1 : i;
    if (mode == CU_TR_ADDRESS_MODE_BORDER)
        return i < 0 || i >= n ? -1 : i;
    int period = mode == CU_TR_ADDRESS_MODE_WRAP ? n : 2 * n;
    i = ((i % period) + period) % period;
    return i < n ? i : 2 * n - 1 - i;
}

static float image[D][H][W];

static double texel(CUaddress_mode mode, int x, int y, int z, int dims)
{
    x = fold(mode, x, W);
    y = dims > 1 ? fold(mode, y, H) : 0;
    z = dims > 2 ? fold(mode, z, D) : 0;
    return x < 0 || y < 0 || z < 0 ? 0.5 : (double)image[z][y][x];
}

static float expected(CUaddress_mode mode, bool linear, bool normalized, const float at[4], int dims)
{
    float size[3] = {W, H, D}, u[3];
    int i[3] = {0, 0, 0};
    double a[3] = {0, 0, 0}, sum = 0;
    if (!normalized && (mode == CU_TR_ADDRESS_MODE_WRAP || mode == CU_TR_ADDRESS_MODE_MIRROR))
        mode = CU_TR_ADDRESS_MODE_CLAMP;
    for (int d = 0; d < dims && d < 3; d++) {
        u[d] = normalized ? at[d] * size[d] : at[d];
        float base = linear ? u[d] - 0.5f : u[d];
        i[d] = (int)floorf(base);
        a[d] = linear ? (double)rintf((base - floorf(base)) * 256.0f) / 256.0 : 0;
    }
    for (int corner = 0; corner < 8; corner++) {
        double w = 1;
        for (int d = 0; d < 3; d++)
            w *= corner >> d & 1 ? a[d] : 1 - a[d];
        if (w > 0)
            sum += w * texel(mode, i[0] + (corner & 1), i[1] + (corner >> 1 & 1), i[2] + (corner >> 2), dims);
    }
    return (float)sum;
}

static float random_between(float low, float high)
{
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * (float)(state >> 8) / 16777216.0f;
}

static uint32_t bits(float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

static void draw_image(void)
{
    for (int i = 0; i < D * H * W; i++)
        (&image[0][0][0])[i] = random_between(-10, 10);
}

static void sample_all(int dims)
{
    static const char *const forms[] = {"tex.1d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1}];",
                                        "tex.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2}];",
                                        "tex.3d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2, %f3, %f4}];"};
    char text[300];
    draw_image();
    snprintf(text, sizeof text, "%s mov.b32 %%r1, %%f5; mov.b32 %%r2, %%f6; mov.b32 %%r4, %%f8;", forms[dims - 1]);
    CUfunction f = kernel(text);
    CUarray a = array_with(W, dims > 1 ? H : 0, dims > 2 ? D : 0, CU_AD_FORMAT_FLOAT, 1, 0, image, 4);
    CUDA_RESOURCE_DESC r = of_array(a);
    for (int mode = 0; mode < 4; mode++) {
        for (int flags = 0; flags < 4; flags++) {
            bool linear = flags & 1, normalized = flags & 2;
            CUtexObject t =
                texture(&r, (CUaddress_mode)mode, linear ? CU_TR_FILTER_MODE_LINEAR : CU_TR_FILTER_MODE_POINT,
                        normalized ? CU_TRSF_NORMALIZED_COORDINATES : 0);
            float in[POINTS][4], out[POINTS][4];
            for (int i = 0; i < POINTS; i++)
                for (int d = 0; d < 4; d++)
                    in[i][d] = normalized ? random_between(-2, 3) : random_between(-4, 18);
            run(f, t, in, out, POINTS);
            for (int i = 0; i < POINTS; i++) {
                float want = expected((CUaddress_mode)mode, linear, normalized, in[i], dims);
                cr_assert(bits(out[i][0]) == bits(want),
                          "%dD, mode %d, flags %d, at (%.9g, %.9g, %.9g): %.9g, not %.9g", dims, mode, flags,
                          (double)in[i][0], (double)in[i][1], (double)in[i][2], (double)out[i][0], (double)want);
            }
            OK(cuTexObjectDestroy(t));
        }
    }
}

Test(texture, samples_of_one_dimension_are_exact)
{
    machine_with_context("h200,vram=64M");
    sample_all(1);
}

Test(texture, samples_of_two_dimensions_are_exact)
{
    machine_with_context("h200,vram=64M");
    sample_all(2);
}

Test(texture, samples_of_three_dimensions_are_exact)
{
    machine_with_context("h200,vram=64M");
    sample_all(3);
}

Test(texture, integers_are_fractions_or_themselves)
{
    machine_with_context("h200,vram=64M");
    static const int8_t small[4][4] = {{-128, -127, 0, 127}, {1, 2, 3, 4}, {-1, -2, -3, -4}, {5, 6, 7, 8}};
    CUarray a = array_with(4, 0, 0, CU_AD_FORMAT_SIGNED_INT8, 4, 0, small, 4);
    CUarray b = array_with(4, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0, small, 4);
    CUarray c = array_with(2, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 2, 0, small, 8);
    CUDA_RESOURCE_DESC ra = of_array(a), rb = of_array(b), rc = of_array(c);
    CUfunction f = kernel("tex.1d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1}];"
                          "mov.b32 %r1, %f5; mov.b32 %r2, %f6; mov.b32 %r3, %f7; mov.b32 %r4, %f8;");
    CUfunction g = kernel("tex.1d.v4.s32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1}];");
    float in[4][4] = {{0.5f}, {1.5f}, {2.5f}, {3.5f}}, out[4][4];
    int32_t words[4][4];
    run(f, texture(&ra, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), in, out, 4);
    cr_assert(out[0][0] == -1 && out[0][1] == -1 && out[0][2] == 0 && out[0][3] == 1);
    cr_assert_eq(out[1][2], (float)(3 / 127.0));
    run(f, texture(&rb, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), in, out, 4);
    cr_assert(out[0][0] == (float)(128 / 255.0) && out[2][0] == 1);
    run(g, texture(&ra, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, CU_TRSF_READ_AS_INTEGER), in, words, 4);
    cr_assert_eq(memcmp(words[0], (int32_t[]){-128, -127, 0, 127}, 16), 0);
    run(g, texture(&rc, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), in, words, 2);
    cr_assert_eq((uint32_t)words[0][0], 0x7f008180u);
    cr_assert(words[0][2] == 0 && words[0][3] == 1); /* channels that are missing */
    CUDA_TEXTURE_DESC wrong = {.filterMode = CU_TR_FILTER_MODE_LINEAR, .flags = CU_TRSF_READ_AS_INTEGER};
    CUtexObject t;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &ra, &wrong, NULL));
}

Test(texture, halves_become_floats)
{
    machine_with_context("h200,vram=64M");
    static const uint16_t halves[4] = {0x3c00, 0xc000, 0x0001, 0x7bff};
    CUarray a = array_with(4, 0, 0, CU_AD_FORMAT_HALF, 1, 0, halves, 2);
    CUDA_RESOURCE_DESC r = of_array(a);
    CUfunction f = kernel("tex.1d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1}]; mov.b32 %r1, %f5;");
    float in[4][4] = {{0.5f}, {1.5f}, {2.5f}, {3.5f}}, out[4][4];
    run(f, texture(&r, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), in, out, 4);
    cr_assert(out[0][0] == 1 && out[1][0] == -2 && out[2][0] == ldexpf(1, -24) && out[3][0] == 65504);
}

Test(texture, layers_are_chosen_by_number)
{
    machine_with_context("h200,vram=64M");
    draw_image();
    CUarray a = array_with(W, H, D, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED, image, 4);
    CUDA_RESOURCE_DESC r = of_array(a);
    CUfunction f = kernel("tex.a2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%r5, %f2, %f3, %f3}]; mov.b32 %r1, %f5;");
    uint32_t in[3][4] = {{0}, {4}, {9}};
    float out[3][4], x = 3.5f, y = 2.5f;
    for (int i = 0; i < 3; i++) {
        memcpy(&in[i][1], &x, 4);
        memcpy(&in[i][2], &y, 4);
    }
    run(f, texture(&r, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), in, out, 3);
    cr_assert(out[0][0] == image[0][2][3] && out[1][0] == image[4][2][3] && out[2][0] == image[4][2][3]);
}

Test(texture, memory_is_fetched_by_index_or_by_rows)
{
    machine_with_context("h200,vram=64M");
    draw_image();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemcpyHtoD_v2(p, image, sizeof(float) * W * H));
    CUDA_RESOURCE_DESC linear = {.resType = CU_RESOURCE_TYPE_LINEAR,
                                 .res.linear = {p, CU_AD_FORMAT_FLOAT, 1, sizeof(float) * W}};
    CUfunction f = kernel("tex.1d.v4.f32.s32 {%f5, %f6, %f7, %f8}, [%rd1, {%r5}]; mov.b32 %r1, %f5;");
    int32_t in[4][4] = {{0}, {W - 1}, {W}, {-1}};
    float out[4][4];
    run(f, texture(&linear, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), in, out, 4);
    cr_assert(out[0][0] == image[0][0][0] && out[1][0] == image[0][0][W - 1] && out[2][0] == 0 && out[3][0] == 0);
    CUDA_RESOURCE_DESC rows = {.resType = CU_RESOURCE_TYPE_PITCH2D,
                               .res.pitch2D = {p, CU_AD_FORMAT_FLOAT, 1, 8, 3, 64}};
    CUfunction g = kernel("tex.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2}]; mov.b32 %r1, %f5;");
    float at[1][4] = {{5.5f, 2.5f}};
    run(g, texture(&rows, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), at, out, 1);
    cr_assert_eq(out[0][0], (&image[0][0][0])[2 * 16 + 5]);
    CUtexObject t;
    CUDA_TEXTURE_DESC d = {.filterMode = CU_TR_FILTER_MODE_POINT};
    linear.res.linear.devPtr += 4;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &linear, &d, NULL));
    rows.res.pitch2D.pitchInBytes = 40;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &rows, &d, NULL));
    rows.res.pitch2D.pitchInBytes = 64;
    rows.res.pitch2D.height = 1000; /* beyond the allocation */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &rows, &d, NULL));
}

Test(texture, tld4_gathers_the_four_neighbours)
{
    machine_with_context("h200,vram=64M");
    draw_image();
    CUarray a = array_with(W, H, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_TEXTURE_GATHER, image, 4);
    CUDA_RESOURCE_DESC r = of_array(a);
    CUfunction f = kernel("tld4.r.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2}];"
                          "mov.b32 %r1, %f5; mov.b32 %r2, %f6; mov.b32 %r3, %f7; mov.b32 %r4, %f8;");
    float in[1][4] = {{4.2f, 3.1f}}, out[1][4]; /* between 3 and 4, and between 2 and 3 */
    run(f, texture(&r, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0), in, out, 1);
    cr_assert(out[0][0] == image[0][3][3] && out[0][1] == image[0][3][4] && out[0][2] == image[0][2][4] &&
              out[0][3] == image[0][2][3]);
}

Test(texture, levels_are_chosen_and_blended)
{
    machine_with_context("h200,vram=64M");
    CUmipmappedArray m;
    CUarray level;
    CUDA_ARRAY3D_DESCRIPTOR d = {8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    OK(cuMipmappedArrayCreate(&m, &d, 3));
    for (unsigned l = 0; l < 3; l++) {
        float value[64];
        for (int i = 0; i < 64; i++)
            value[i] = (float)(l + 1) * 10;
        OK(cuMipmappedArrayGetLevel(&level, m, l));
        CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = value,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = level,
                           .WidthInBytes = 32u >> l,
                           .Height = 8u >> l};
        OK(cuMemcpy2D_v2(&c));
    }
    CUDA_RESOURCE_DESC r = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, .res.mipmap.hMipmappedArray = m};
    CUDA_TEXTURE_DESC desc = {.flags = CU_TRSF_NORMALIZED_COORDINATES,
                              .mipmapFilterMode = CU_TR_FILTER_MODE_LINEAR,
                              .maxMipmapLevelClamp = 2};
    CUtexObject t;
    OK(cuTexObjectCreate(&t, &r, &desc, NULL));
    CUfunction f = kernel("tex.level.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2}], %f3; mov.b32 %r1, %f5;");
    float in[5][4] = {{.5f, .5f, 0}, {.5f, .5f, 1}, {.5f, .5f, 0.25f}, {.5f, .5f, 9}, {.5f, .5f, -3}}, out[5][4];
    run(f, t, in, out, 5);
    cr_assert(out[0][0] == 10 && out[1][0] == 20 && out[2][0] == 12.5f && out[3][0] == 30 && out[4][0] == 10);
    CUfunction q =
        kernel("txq.width.b32 %r1, [%rd1]; txq.height.b32 %r2, [%rd1]; txq.num_mipmap_levels.b32 %r3, [%rd1];"
               "txq.level.width.b32 %r4, [%rd1], 1;");
    uint32_t words[1][4];
    run(q, t, in, words, 1);
    cr_assert(words[0][0] == 8 && words[0][1] == 8 && words[0][2] == 3 && words[0][3] == 4);
}

Test(texture, descriptors_come_back)
{
    machine_with_context("h200,vram=64M");
    draw_image();
    CUarray a = array_with(W, H, 0, CU_AD_FORMAT_FLOAT, 1, 0, image, 4);
    CUDA_RESOURCE_DESC r = of_array(a), got;
    CUDA_TEXTURE_DESC desc;
    CUtexObject t = texture(&r, CU_TR_ADDRESS_MODE_MIRROR, CU_TR_FILTER_MODE_LINEAR, CU_TRSF_NORMALIZED_COORDINATES);
    CUsurfObject s;
    OK(cuTexObjectGetResourceDesc(&got, t));
    cr_assert(got.resType == CU_RESOURCE_TYPE_ARRAY && got.res.array.hArray == a);
    OK(cuTexObjectGetTextureDesc(&desc, t));
    cr_assert(desc.addressMode[1] == CU_TR_ADDRESS_MODE_MIRROR && desc.borderColor[2] == 8);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&s, &r)); /* made without CUDA_ARRAY3D_SURFACE_LDST */
    OK(cuTexObjectDestroy(t));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(t));
    CUDA_RESOURCE_VIEW_DESC view;
    t = texture(&r, CU_TR_ADDRESS_MODE_MIRROR, CU_TR_FILTER_MODE_LINEAR, CU_TRSF_NORMALIZED_COORDINATES);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceViewDesc(&view, t)); /* it has none */
    OK(cuTexObjectDestroy(t));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetTextureDesc(&desc, t));
    size_t width;
    OK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 1, 0));
    cr_assert_geq(width, 1 << 27);
}

Test(surface, loads_and_stores_reach_the_array)
{
    machine_with_context("h200,vram=64M");
    static uint32_t words[H][W], back[H][W];
    for (unsigned i = 0; i < W * H; i++)
        (&words[0][0])[i] = i * 7;
    CUarray a = array_with(W, H, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST, words, 4);
    CUDA_RESOURCE_DESC r = of_array(a), got;
    CUsurfObject s;
    OK(cuSurfObjectCreate(&s, &r));
    OK(cuSurfObjectGetResourceDesc(&got, s));
    cr_assert_eq(got.res.array.hArray, a);
    /* x counts in bytes; what is read goes, plus one, a row further down. */
    CUfunction f = kernel("suld.b.2d.b32.trap %r1, [%rd1, {%r5, %r6}]; add.u32 %r9, %r1, 1; add.u32 %r6, %r6, 1;"
                          "sust.b.2d.b32.trap [%rd1, {%r5, %r6}], %r9;");
    int32_t in[2][4] = {{12, 2}, {48, 5}};
    uint32_t out[2][4];
    run(f, s, in, out, 2);
    cr_assert(out[0][0] == words[2][3] && out[1][0] == words[5][12]);
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                       .srcArray = a,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = back,
                       .WidthInBytes = W * 4,
                       .Height = H};
    OK(cuMemcpy2D_v2(&c));
    words[3][3] = words[2][3] + 1;
    words[6][12] = words[5][12] + 1;
    cr_assert_eq(memcmp(words, back, sizeof words), 0);
    /* Outside: zeros, or the edge. */
    CUfunction zero = kernel("suld.b.2d.b32.zero %r1, [%rd1, {%r5, %r6}]; suld.b.2d.b32.clamp %r2, [%rd1, {%r5, %r6}];"
                             "suq.width.b32 %r3, [%rd1]; suq.height.b32 %r4, [%rd1];");
    int32_t far[1][4] = {{4 * W, -3}};
    run(zero, s, far, out, 1);
    cr_assert(out[0][0] == 0 && out[0][1] == words[0][W - 1] && out[0][2] == W && out[0][3] == H);
    /* Vectors and small elements. */
    CUfunction wide = kernel("suld.b.2d.v2.b32.trap {%r1, %r2}, [%rd1, {%r5, %r6}];"
                             "suld.b.2d.b8.trap %h1, [%rd1, {%r5, %r6}]; cvt.u32.u16 %r3, %h1;");
    int32_t pair[1][4] = {{8, 1}};
    run(wide, s, pair, out, 1);
    cr_assert(out[0][0] == words[1][2] && out[0][1] == words[1][3] && out[0][2] == (words[1][2] & 255));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, try_run(f, s, far, out, 1)); /* it traps */
}

Test(texture, what_is_no_texture_is_an_error_in_the_kernel)
{
    machine_with_context("h200,vram=64M");
    draw_image();
    CUarray a = array_with(W, H, 0, CU_AD_FORMAT_FLOAT, 1, 0, image, 4);
    CUDA_RESOURCE_DESC r = of_array(a);
    CUtexObject t = texture(&r, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0);
    CUfunction f = kernel("tex.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2}]; mov.b32 %r1, %f5;");
    float in[1][4] = {{0}}, out[1][4];
    run(f, t, in, out, 1);
    OK(cuTexObjectDestroy(t));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, try_run(f, t, in, out, 1));
}

Test(texture, an_instruction_of_another_geometry_is_illegal)
{
    machine_with_context("h200,vram=64M");
    draw_image();
    CUarray a = array_with(W, H, 0, CU_AD_FORMAT_FLOAT, 1, 0, image, 4);
    CUDA_RESOURCE_DESC r = of_array(a);
    CUtexObject t = texture(&r, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0);
    CUfunction f = kernel("tex.3d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2, %f3, %f3}]; mov.b32 %r1, %f5;");
    float in[1][4] = {{0}}, out[1][4];
    GIVES(CUDA_ERROR_ILLEGAL_INSTRUCTION, try_run(f, t, in, out, 1));
}

Test(texture, a_destroyed_array_is_gone_for_kernels)
{
    machine_with_context("h200,vram=64M");
    static float big[512][512];
    CUarray a = array_with(512, 512, 0, CU_AD_FORMAT_FLOAT, 1, 0, big, 4),
            b = array_with(512, 512, 0, CU_AD_FORMAT_FLOAT, 1, 0, big, 4);
    (void)b;
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    OK(cuArray3DCreate_v2(&a, &d)); /* large: its pages are its own */
    CUDA_RESOURCE_DESC r = of_array(a);
    CUtexObject t = texture(&r, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0);
    CUfunction f = kernel("tex.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2}]; mov.b32 %r1, %f5;");
    float in[1][4] = {{0}}, out[1][4];
    run(f, t, in, out, 1);
    OK(cuArrayDestroy(a));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, try_run(f, t, in, out, 1));
}

/* ---- references of a module ---- */

static const char reference_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".global .texref image;\n.global .surfref plane;\n"
    ".visible .entry look(.param .u64 out)\n{\n"
    "    .reg .b32 %r<4>;\n    .reg .f32 %f<8>;\n    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [out];\n    mov.f32 %f1, 0f40200000;\n    mov.u32 %r1, 4;\n    mov.u32 %r2, 1;\n"
    "    tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [image, {%f1, %f1}];\n    st.global.f32 [%rd1], %f2;\n"
    "    suld.b.2d.b32.trap %r3, [plane, {%r1, %r2}];\n    st.global.u32 [%rd1+4], %r3;\n    ret;\n}\n";

Test(texture, references_are_bound_in_order)
{
    machine_with_context("h200,vram=64M");
    draw_image();
    CUarray a = array_with(W, H, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST, image, 4), got;
    CUarray b = array_with(W, H, 0, CU_AD_FORMAT_FLOAT, 1, 0, image[1], 4);
    CUmodule m;
    CUfunction f;
    CUtexref t, same;
    CUsurfref s;
    CUdeviceptr out;
    float result[4];
    OK(cuModuleLoadData(&m, reference_ptx));
    OK(cuModuleGetFunction(&f, m, "look"));
    OK(cuModuleGetTexRef(&t, m, "image"));
    OK(cuModuleGetTexRef(&same, m, "image"));
    cr_assert_eq(t, same);
    OK(cuModuleGetSurfRef(&s, m, "plane"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&same, m, "plane"));
    OK(cuTexRefSetAddressMode(t, 0, CU_TR_ADDRESS_MODE_CLAMP));
    OK(cuTexRefSetFilterMode(t, CU_TR_FILTER_MODE_POINT));
    OK(cuTexRefSetArray(t, a, CU_TRSA_OVERRIDE_FORMAT));
    OK(cuSurfRefSetArray(s, a, 0));
    OK(cuMemAlloc_v2(&out, 16));
    CUdeviceptr second = out + 8;
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&out}, NULL));
    OK(cuTexRefSetArray(t, b, CU_TRSA_OVERRIDE_FORMAT));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&second}, NULL));
    OK(cuMemcpyDtoH_v2(result, out, 16));
    cr_assert(result[0] == image[0][2][2] && result[1] == image[0][1][1]);
    cr_assert(result[2] == image[1][2][2] && result[3] == image[0][1][1]);
    OK(cuTexRefGetArray(&got, t));
    cr_assert_eq(got, b);
    OK(cuSurfRefGetArray(&got, s));
    cr_assert_eq(got, a);
    CUstream capturing;
    CUgraph g;
    OK(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, capturing, (void *[]){&out}, NULL));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(capturing, &g));
    OK(cuParamSetTexRef(f, CU_PARAM_TR_DEFAULT, t));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefDestroy(t)); /* the module's */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuSurfRefSetArray(s, b, 0));
    OK(cuModuleUnload(m));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuTexRefGetArray(&got, t));
}

Test(texture, references_tell_what_was_set)
{
    machine_with_context("h200,vram=64M");
    CUtexref t;
    CUaddress_mode mode;
    CUfilter_mode filter;
    CUarray_format format;
    CUdeviceptr p, back;
    CUmipmappedArray mipmap;
    CUarray got;
    int channels, anisotropy;
    unsigned flags;
    float bias, least, most, color[4] = {1, 2, 3, 4}, colors[4];
    size_t offset;
    OK(cuTexRefCreate(&t));
    OK(cuTexRefSetFormat(t, CU_AD_FORMAT_SIGNED_INT16, 2));
    OK(cuTexRefGetFormat(&format, &channels, t));
    cr_assert(format == CU_AD_FORMAT_SIGNED_INT16 && channels == 2);
    OK(cuTexRefSetAddressMode(t, 2, CU_TR_ADDRESS_MODE_MIRROR));
    OK(cuTexRefGetAddressMode(&mode, t, 2));
    cr_assert_eq(mode, CU_TR_ADDRESS_MODE_MIRROR);
    OK(cuTexRefSetFlags(t, CU_TRSF_READ_AS_INTEGER));
    OK(cuTexRefGetFlags(&flags, t));
    cr_assert_eq(flags, CU_TRSF_READ_AS_INTEGER);
    OK(cuTexRefGetFilterMode(&filter, t));
    cr_assert_eq(filter, CU_TR_FILTER_MODE_POINT);
    OK(cuTexRefSetMipmapFilterMode(t, CU_TR_FILTER_MODE_LINEAR));
    OK(cuTexRefGetMipmapFilterMode(&filter, t));
    cr_assert_eq(filter, CU_TR_FILTER_MODE_LINEAR);
    OK(cuTexRefSetMipmapFilterMode(t, CU_TR_FILTER_MODE_POINT));
    OK(cuTexRefSetMipmapLevelBias(t, 0.5f));
    OK(cuTexRefGetMipmapLevelBias(&bias, t));
    OK(cuTexRefSetMipmapLevelClamp(t, 1, 2));
    OK(cuTexRefGetMipmapLevelClamp(&least, &most, t));
    cr_assert(bias == 0.5f && least == 1 && most == 2);
    OK(cuTexRefSetMaxAnisotropy(t, 1));
    OK(cuTexRefGetMaxAnisotropy(&anisotropy, t));
    cr_assert_eq(anisotropy, 1);
    OK(cuTexRefSetBorderColor(t, color));
    OK(cuTexRefGetBorderColor(colors, t));
    for (int i = 0; i < 4; i++)
        cr_assert_eq(colors[i], color[i]);
    OK(cuMemAlloc_v2(&p, 8192));
    OK(cuTexRefSetAddress_v2(&offset, t, p + 16, 1024));
    OK(cuTexRefGetAddress_v2(&back, t));
    cr_assert(offset == 16 && back == p);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddress_v2(NULL, t, p + 16, 1024));
    CUDA_ARRAY_DESCRIPTOR rows = {16, 4, CU_AD_FORMAT_FLOAT, 1};
    OK(cuTexRefSetAddress2D_v3(t, &rows, p, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddress2D_v3(t, &rows, p, 60));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&got, t));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefGetMipmappedArray(&mipmap, t));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuTexRefSetMipmappedArray(t, (CUmipmappedArray)0x123, CU_TRSA_OVERRIDE_FORMAT));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddressMode(t, 3, CU_TR_ADDRESS_MODE_WRAP));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFormat(t, CU_AD_FORMAT_FLOAT, 3));
    OK(cuTexRefDestroy(t));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuTexRefDestroy(t));
}
