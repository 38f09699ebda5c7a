/* Arrays: making them, and copies to and from them. */
#include "sim_test.h"
#include "strict.h"

static CUarray array(size_t width, size_t height, size_t depth, CUarray_format format, unsigned channels,
                     unsigned flags)
{
    CUarray a;
    CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, format, channels, flags};
    OK(cuArray3DCreate_v2(&a, &d));
    return a;
}

#define U8 CU_AD_FORMAT_UNSIGNED_INT8
#define F32 CU_AD_FORMAT_FLOAT

Test(array, descriptors_come_back)
{
    machine_with_context("h200,vram=64M");
    CUDA_ARRAY_DESCRIPTOR d2 = {100, 50, F32, 2}, got2;
    CUDA_ARRAY3D_DESCRIPTOR d3 = {16, 8, 4, U8, 4, CUDA_ARRAY3D_SURFACE_LDST}, got3;
    CUarray a, b;
    size_t before = free_vram();
    OK(cuArrayCreate_v2(&a, &d2));
    OK(cuArrayGetDescriptor_v2(&got2, a));
    cr_assert_eq(memcmp(&d2, &got2, sizeof d2), 0);
    OK(cuArray3DGetDescriptor_v2(&got3, a));
    cr_assert(got3.Width == 100 && got3.Height == 50 && !got3.Depth && !got3.Flags);
    OK(cuArray3DCreate_v2(&b, &d3));
    OK(cuArray3DGetDescriptor_v2(&got3, b));
    cr_assert(got3.Depth == 4 && got3.NumChannels == 4 && got3.Flags == CUDA_ARRAY3D_SURFACE_LDST);
    cr_assert_lt(free_vram(), before);
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
    CUarray plane;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&sparse, a)); /* it is none of these */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&requirements, a, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&plane, a, 0));
    OK(cuArrayDestroy(a));
    OK(cuArrayDestroy(b));
    cr_assert_eq(free_vram(), before);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(a));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayGetDescriptor_v2(&got2, a));
}

Test(array, what_makes_no_array_is_refused)
{
    machine_with_context("h200,vram=64M");
    CUarray a;
    static const struct {
        CUDA_ARRAY3D_DESCRIPTOR d;
        CUresult r;
    } wrong[] = {
        {{0, 4, 0, F32, 1, 0}, CUDA_ERROR_INVALID_VALUE},
        {{4, 4, 0, F32, 3, 0}, CUDA_ERROR_INVALID_VALUE},
        {{4, 4, 0, (CUarray_format)7, 1, 0}, CUDA_ERROR_INVALID_VALUE},
        {{4, 0, 4, F32, 1, 0}, CUDA_ERROR_INVALID_VALUE},
        {{4, 4, 0, F32, 1, CUDA_ARRAY3D_LAYERED}, CUDA_ERROR_INVALID_VALUE},
        {{4, 8, 6, F32, 1, CUDA_ARRAY3D_CUBEMAP}, CUDA_ERROR_INVALID_VALUE},
        {{4, 4, 5, F32, 1, CUDA_ARRAY3D_CUBEMAP}, CUDA_ERROR_INVALID_VALUE},
        {{1 << 20, 0, 0, F32, 1, 0}, CUDA_ERROR_INVALID_VALUE},
        {{4, 4, 0, F32, 1, 1u << 20}, CUDA_ERROR_INVALID_VALUE},
        {{4, 4, 0, F32, 1, CUDA_ARRAY3D_SPARSE}, CUDA_ERROR_NOT_SUPPORTED},
        {{4, 4, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0}, CUDA_ERROR_NOT_SUPPORTED},
        {{100000, 1000, 0, F32, 4, 0}, CUDA_ERROR_OUT_OF_MEMORY},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CUresult r = cuArray3DCreate_v2(&a, &wrong[i].d);
        cr_assert_eq(r, wrong[i].r, "%zu: %d", i, (int)r);
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate_v2(NULL, &wrong[0].d));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayCreate_v2(&a, NULL));
}

Test(array, linear_copies_are_those_of_one_dimension)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUarray a = array(1000, 0, 0, F32, 1, 0), b = array(1000, 0, 0, F32, 1, 0), plane = array(10, 10, 0, F32, 1, 0);
    float in[1000], out[1000] = {0};
    CUdeviceptr d;
    CUstream s;
    for (int i = 0; i < 1000; i++)
        in[i] = (float)i;
    OK(cuMemAlloc_v2(&d, 4000));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyHtoA_v2(a, 0, in, 4000));
    OK(cuMemcpyAtoA_v2(b, 40, a, 400, 1000));
    OK(cuMemcpyAtoD_v2(d, b, 40, 1000));
    OK(cuMemcpyDtoA_v2(b, 2000, d, 1000));
    OK(cuMemcpyAtoH_v2(out, b, 2000, 1000));
    for (int i = 0; i < 250; i++)
        cr_assert_eq(out[i], in[100 + i]);
    OK(cuCtxSynchronize());
    OK(cuMemcpyHtoAAsync_v2(a, 4, in, 8, s));
    OK(cuMemcpyAtoHAsync_v2(out, a, 0, 16, s));
    OK(cuStreamSynchronize(s));
    cr_assert(out[0] == 0 && out[1] == 0 && out[2] == 1 && out[3] == 3);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA_v2(a, 4, in, 4000)); /* beyond the end */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA_v2(a, 2, in, 4));    /* within an element */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA_v2(plane, 0, in, 4));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuMemcpyHtoA_v2((CUarray)0x123, 0, in, 4));
}

Test(array, planes_and_boxes_are_copied_by_rows)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUarray a = array(20, 10, 0, U8, 4, 0), box = array(20, 10, 5, U8, 4, 0);
    static uint32_t in[10][20], out[10][20], cube[5][10][20], back[5][10][20];
    for (unsigned y = 0; y < 10; y++)
        for (unsigned x = 0; x < 20; x++)
            in[y][x] = y * 100 + x;
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = in,
                        .srcPitch = 80,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = a,
                        .WidthInBytes = 80,
                        .Height = 10};
    OK(cuMemcpy2D_v2(&up));
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                          .srcArray = a,
                          .srcXInBytes = 8,
                          .srcY = 3,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstPitch = 80,
                          .WidthInBytes = 40,
                          .Height = 5};
    OK(cuMemcpy2D_v2(&down));
    for (unsigned y = 0; y < 5; y++)
        for (unsigned x = 0; x < 20; x++)
            cr_assert_eq(out[y][x], x < 10 ? (y + 3) * 100 + x + 2 : 0);
    down.Height = 8;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&down));
    down.Height = 5;
    down.srcXInBytes = 48;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&down));
    for (unsigned z = 0; z < 5; z++)
        memcpy(cube[z], in, sizeof in);
    cube[3][4][5] = 4711;
    CUDA_MEMCPY3D in_3d = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = cube,
                           .srcPitch = 80,
                           .srcHeight = 10,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = box,
                           .WidthInBytes = 80,
                           .Height = 10,
                           .Depth = 5};
    OK(cuMemcpy3D_v2(&in_3d));
    CUDA_MEMCPY3D out_3d = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                            .srcArray = box,
                            .srcXInBytes = 20,
                            .srcY = 4,
                            .srcZ = 3,
                            .dstMemoryType = CU_MEMORYTYPE_HOST,
                            .dstHost = back,
                            .dstPitch = 80,
                            .dstHeight = 10,
                            .WidthInBytes = 4,
                            .Height = 1,
                            .Depth = 2};
    OK(cuMemcpy3D_v2(&out_3d));
    cr_assert(back[0][0][0] == 4711 && back[1][0][0] == 405);
    out_3d.srcZ = 4;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2(&out_3d));
}

Test(array, batches_count_in_elements)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUarray a = array(16, 4, 2, F32, 2, 0);
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    static float in[2][4][16][2], out[2][4][16][2];
    for (int i = 0; i < 256; i++)
        (&in[0][0][0][0])[i] = (float)i;
    CUDA_MEMCPY3D_BATCH_OP op = {.extent = {16, 4, 2}, .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)in;
    op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op.dst.op.array.array = a;
    OK(cuMemcpy3DBatchAsync_v2(1, &op, 0, s));
    OK(cuStreamSynchronize(s));
    op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.dst.op.ptr.ptr = (CUdeviceptr)(uintptr_t)out;
    op.dst.op.ptr.rowLength = 16;
    op.dst.op.ptr.layerHeight = 4;
    op.src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op.src.op.array.array = a;
    op.src.op.array.offset = (CUoffset3D){2, 1, 1};
    op.extent = (CUextent3D){3, 2, 1};
    OK(cuMemcpy3DBatchAsync_v2(1, &op, 0, s));
    OK(cuStreamSynchronize(s));
    for (int y = 0; y < 2; y++)
        for (int x = 0; x < 6; x++)
            cr_assert_eq(out[0][y][x / 2][x % 2], in[1][1 + y][2 + x / 2][x % 2]);
    cr_assert_eq(out[0][0][3][0], 0);
    op.src.op.array.offset.x = 14;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2(1, &op, 0, s));
}

Test(array, mipmaps_have_levels)
{
    machine_with_context("h200,vram=64M");
    CUmipmappedArray m;
    CUarray level;
    CUDA_ARRAY3D_DESCRIPTOR d = {20, 6, 0, F32, 1, 0}, got;
    OK(cuMipmappedArrayCreate(&m, &d, 100)); /* more than there can be are clamped */
    for (unsigned l = 0; l < 5; l++) {
        OK(cuMipmappedArrayGetLevel(&level, m, l));
        OK(cuArray3DGetDescriptor_v2(&got, level));
        cr_assert(got.Width == 20u >> l && got.Height == (6u >> l ? 6u >> l : 1));
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, m, 5));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayDestroy(level)); /* of the whole */
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetSparseProperties(&sparse, m));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetMemoryRequirements(&requirements, m, 0));
    OK(cuMipmappedArrayDestroy(m));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(m));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuArray3DGetDescriptor_v2(&got, level));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&m, &d, 0));
}

/* Two copies to one array that nothing orders; and an array that is left. */
static int copies_race(void)
{
    CUarray a;
    CUDA_ARRAY_DESCRIPTOR d = {1024, 0, F32, 1};
    void *in;
    set_up();
    MUST(cuArrayCreate_v2(&a, &d));
    MUST(cuMemAllocHost_v2(&in, 4096));
    MUST(cuMemcpyHtoAAsync_v2(a, 0, in, 4096, stream[0]));
    MUST(cuMemcpyHtoAAsync_v2(a, 2048, in, 1024, stream[1]));
    MUST(cuCtxSynchronize());
    MUST(cuMemFree_v2(memory));
    MUST(cuMemFreeHost(in));
    MUST(cuCtxDestroy_v2(context));
    return 0;
}

static int leaves_one(void)
{
    CUarray a;
    CUDA_ARRAY_DESCRIPTOR d = {1024, 0, F32, 1};
    set_up();
    MUST(cuArrayCreate_v2(&a, &d));
    return 0;
}

SCENES({"copies_race", copies_race}, {"leaves_one", leaves_one})

Test(array, a_race_on_an_array_is_found)
{
    finds("copies_race", "race,leak", 0, "race", 1, WORDS("a copy of 4096 bytes", "a copy of 1024 bytes"));
}

Test(array, an_array_that_is_left_is_told)
{
    struct hr_test_result r = strict("leaves_one", "leak", MACHINE);
    cr_assert_not_null(strstr(r.err, "an array of 4096 bytes"), "%s", r.err);
    hr_test_result_finish(&r);
}
