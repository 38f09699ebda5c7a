#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *right_or(CUresult r, long at)
{
    return r != CUDA_SUCCESS ? gpu_error(r) : at == -1 ? "right" : at == -2 ? "unreadable" : "WRONG";
}

/* [0] device, [1] host, [2] and [3] device. The middle of [0][1] is what is copied. */
void probe_span(void)
{
    struct vm vm;
    size_t half = here.chunk_bytes / 2, bytes = here.chunk_bytes;
    NEED_HOST();
    MUST(vm_reserve(&vm, 4));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(vm_back(&vm, 1, 1, VM_HOST));
    MUST(vm_back(&vm, 2, 2, VM_DEVICE));
    uint32_t *words = malloc(bytes);
    MUST(words ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr across = vm.base + half, beside = vm_at(&vm, 2) + half;

    MUST(gpu_fill(vm.base, 2 * bytes, 0));
    CUresult r = drv.cuMemcpyDtoD_v2(beside, across, bytes);
    SAW("from", "%s", right_or(r, gpu_compare(beside, bytes, (uint32_t)(half / 4))));
    MUST(gpu_fill(vm_at(&vm, 2), 2 * bytes, 500));
    r = drv.cuMemcpyDtoD_v2(across, beside, bytes);
    SAW("to", "%s",
        right_or(r, gpu_compare(across, half, 500 + (uint32_t)(half / 4)) != -1
                        ? 0
                        : gpu_compare(vm_at(&vm, 1), half, 500 + (uint32_t)(bytes / 4))));
    r = drv.cuMemcpyDtoH_v2(words, across, bytes);
    SAW("to-pageable", "%s",
        right_or(r, words[0] == 500 + half / 4 && words[bytes / 4 - 1] == 500 + (half + bytes) / 4 - 1 ? -1 : 0));
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = 70000 + (uint32_t)i;
    r = drv.cuMemcpyHtoD_v2(across, words, bytes);
    SAW("from-pageable", "%s",
        right_or(r, gpu_compare(across, half, 70000) != -1
                        ? 0
                        : gpu_compare(vm_at(&vm, 1), half, 70000 + (uint32_t)(half / 4))));
    r = drv.cuMemsetD32_v2(across, 6, bytes / 4);
    uint32_t edge[2] = {0, 0};
    MUST(drv.cuMemcpyDtoH_v2(&edge[0], vm_at(&vm, 1) - 4, 4));
    MUST(drv.cuMemcpyDtoH_v2(&edge[1], vm_at(&vm, 1), 4));
    SAW("fill", "%s", right_or(r, edge[0] == 6 && edge[1] == 6 ? -1 : 0));
    free(words);
    MUST(vm_finish(&vm));
}

/* ---- nodes of graphs ---- */

/* An address that changes its chunk: [0] is it, [1] and [2] are where the old and the new chunk can always be reached. */
struct moved {
    struct vm vm;
    CUmemGenericAllocationHandle old, new;
};

static CUresult alias(struct vm *vm, size_t at, CUmemGenericAllocationHandle handle)
{
    TRY(drv.cuMemMap(vm_at(vm, at), here.chunk_bytes, 0, handle, 0));
    return vm_access(vm, at, 1);
}

static CUresult moved_begin(struct moved *m, enum vm_where second)
{
    TRY(vm_reserve(&m->vm, 3));
    TRY(vm_create(VM_DEVICE, &m->old));
    TRY(vm_create(second, &m->new));
    TRY(vm_map(&m->vm, 0, m->old));
    TRY(vm_access(&m->vm, 0, 1));
    TRY(alias(&m->vm, 1, m->old));
    TRY(alias(&m->vm, 2, m->new));
    TRY(gpu_fill(vm_at(&m->vm, 1), here.chunk_bytes, 1000));
    return gpu_fill(vm_at(&m->vm, 2), here.chunk_bytes, 2000);
}

static CUresult moved_move(struct moved *m)
{
    TRY(vm_unmap(&m->vm, 0, 1));
    TRY(vm_map(&m->vm, 0, m->new));
    return vm_access(&m->vm, 0, 1);
}

static CUresult moved_finish(struct moved *m)
{
    TRY(drv.cuMemUnmap(vm_at(&m->vm, 1), here.chunk_bytes));
    TRY(drv.cuMemUnmap(vm_at(&m->vm, 2), here.chunk_bytes));
    return vm_finish(&m->vm);
}

/* Launches the graph that `record` made; what the launch said. */
static CUresult graph_of(CUstream stream, CUgraphExec *exec_out)
{
    CUgraph graph;
    TRY(drv.cuStreamEndCapture(stream, &graph));
    TRY(drv.cuGraphInstantiateWithFlags(exec_out, graph, 0));
    return drv.cuGraphDestroy(graph);
}

static CUresult launch(CUgraphExec exec, CUstream stream)
{
    TRY(drv.cuGraphLaunch(exec, stream));
    return drv.cuStreamSynchronize(stream);
}

static void copy_node(enum vm_where second, const char *name)
{
    struct moved m;
    CUdeviceptr y;
    CUstream stream;
    CUgraphExec exec;
    uint32_t word = 0;
    MUST(moved_begin(&m, second));
    MUST(drv.cuMemAlloc_v2(&y, here.chunk_bytes));
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(drv.cuMemcpyDtoDAsync_v2(y, m.vm.base, here.chunk_bytes, stream));
    MUST(graph_of(stream, &exec));
    MUST(moved_move(&m));
    CUresult r = launch(exec, stream);
    if (r == CUDA_SUCCESS)
        r = drv.cuMemcpyDtoH_v2(&word, y, 4);
    ASSUMED(word != 2000, name, "%s",
            r != CUDA_SUCCESS ? gpu_error(r)
            : word == 1000    ? "it copied from the old chunk"
            : word == 2000    ? "it copied from the new chunk"
                              : "it copied something else");
    MUST(drv.cuGraphExecDestroy(exec));
    MUST(drv.cuStreamDestroy_v2(stream));
    MUST(drv.cuMemFree_v2(y));
    MUST(moved_finish(&m));
}

void probe_graph_copy(void)
{
    CUmemLocation location;
    copy_node(VM_DEVICE, "to-device");
    if (vm_host_location(&location) == CUDA_SUCCESS)
        copy_node(VM_HOST, "to-host");
}

static void fill_node(enum vm_where second, const char *name)
{
    struct moved m;
    CUstream stream;
    CUgraphExec exec;
    uint32_t word[2] = {0, 0};
    MUST(moved_begin(&m, second));
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(drv.cuMemsetD32Async(m.vm.base, 5, here.chunk_bytes / 4, stream));
    MUST(graph_of(stream, &exec));
    MUST(moved_move(&m));
    CUresult r = launch(exec, stream);
    for (int i = 0; i < 2 && r == CUDA_SUCCESS; i++)
        r = drv.cuMemcpyDtoH_v2(&word[i], vm_at(&m.vm, 1 + (size_t)i), 4);
    ASSUMED(word[1] != 5, name, "%s",
            r != CUDA_SUCCESS ? gpu_error(r)
            : word[1] == 5    ? "it filled the new chunk"
            : word[0] == 5    ? "it filled the old chunk"
                              : "it filled neither");
    MUST(drv.cuGraphExecDestroy(exec));
    MUST(drv.cuStreamDestroy_v2(stream));
    MUST(moved_finish(&m));
}

void probe_graph_fill(void)
{
    CUmemLocation location;
    fill_node(VM_DEVICE, "to-device");
    if (vm_host_location(&location) == CUDA_SUCCESS)
        fill_node(VM_HOST, "to-host");
}

void probe_buffer_id(void)
{
    struct vm vm;
    CUmemGenericAllocationHandle handle[2];
    unsigned long long id[3] = {0, 0, 0};
    MUST(vm_reserve(&vm, 1));
    for (int i = 0; i < 2; i++)
        MUST(vm_create(VM_DEVICE, &handle[i]));
    for (int i = 0; i < 3; i++) {
        MUST(vm_map(&vm, 0, handle[i % 2]));
        MUST(vm_access(&vm, 0, 1));
        MUST(drv.cuPointerGetAttribute(&id[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, vm.base));
        MUST(vm_unmap(&vm, 0, 1));
    }
    ASSUMED(id[0] != id[1], NULL, "%llu, another chunk: %llu, the first one again: %llu", id[0], id[1], id[2]);
    MUST(vm_finish(&vm));
}

/* ---- textures and tensor maps ---- */

static CUresult texel(CUtexObject object, CUdeviceptr out, uint32_t *word_out)
{
    uint32_t n = 1;
    void *params[] = {&object, &out, &n};
    TRY(drv.cuLaunchKernel(gpu_kernel("texel"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    return drv.cuMemcpyDtoH_v2(word_out, out, 4);
}

void probe_texture(void)
{
    struct moved m;
    CUdeviceptr out;
    CUtexObject object[2];
    uint32_t before = 0, after = 0;
    NEED(cuTexObjectCreate);
    MUST(moved_begin(&m, VM_DEVICE));
    MUST(drv.cuMemAlloc_v2(&out, 4096));
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR,
                                   .res.linear = {.devPtr = m.vm.base,
                                                  .format = CU_AD_FORMAT_UNSIGNED_INT32,
                                                  .numChannels = 1,
                                                  .sizeInBytes = here.chunk_bytes}};
    CUDA_TEXTURE_DESC texture = {.flags = CU_TRSF_READ_AS_INTEGER};
    for (int i = 0; i < 2; i++)
        MUST(drv.cuTexObjectCreate(&object[i], &resource, &texture, NULL));
    ASSUMED(object[0] != m.vm.base && object[0] != object[1], "number", "%#llx and %#llx over %#llx",
            (unsigned long long)object[0], (unsigned long long)object[1], (unsigned long long)m.vm.base);
    MUST(texel(object[0], out, &before));
    MUST(drv.cuCtxSynchronize());
    MUST(moved_move(&m));
    CUresult r = texel(object[0], out, &after);
    ASSUMED(after == 2000, "remap", "%s; it read %u, after the remap %u",
            r != CUDA_SUCCESS ? gpu_error(r)
            : after == 2000   ? "the new chunk"
            : after == 1000   ? "the old chunk"
                              : "something else",
            before, after);
    for (int i = 0; i < 2; i++)
        MUST(drv.cuTexObjectDestroy(object[i]));
    MUST(drv.cuMemFree_v2(out));
    MUST(moved_finish(&m));
}

void probe_tensor_map(void)
{
    struct vm vm;
    CUtensorMap map[2];
    cuuint64_t dims[2] = {64, 64}, strides[1] = {256};
    cuuint32_t box[2] = {32, 8}, steps[2] = {1, 1};
    char where[256] = "";
    int differ = 0, holds = -1;
    NEED(cuTensorMapEncodeTiled);
    memset(map, 0, sizeof map);
    MUST(vm_reserve(&vm, 2));
    MUST(vm_back(&vm, 0, 2, VM_DEVICE));
    for (int i = 0; i < 2; i++) {
        CUresult r = drv.cuTensorMapEncodeTiled(&map[i], CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2,
                                                (void *)(uintptr_t)vm_at(&vm, (size_t)i), dims, strides, box, steps,
                                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_DEVICE) {
            gpu_row(GPU_LACKS_, NULL, "%s", gpu_error(r));
            return;
        }
        MUST(r);
    }
    for (int i = 0; i < 16; i++) {
        if (map[0].opaque[i] == vm_at(&vm, 0) && map[1].opaque[i] == vm_at(&vm, 1))
            holds = i;
        if (map[0].opaque[i] != map[1].opaque[i]) {
            size_t n = strlen(where);
            snprintf(where + n, sizeof where - n, " [%d] %#llx, %#llx", i, (unsigned long long)map[0].opaque[i],
                     (unsigned long long)map[1].opaque[i]);
            differ++;
        }
    }
    ASSUMED(holds >= 0, NULL, "address in word %d; %d words differ:%s", holds, differ, where);
    MUST(vm_finish(&vm));
}

/* ---- hints, places, charges ---- */

static void hints_on(CUdeviceptr p, const char *name)
{
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device};
    int read_mostly = -1;
    CUresult prefetch = drv.cuMemPrefetchAsync_v2 ? drv.cuMemPrefetchAsync_v2(p, here.chunk_bytes, device, 0, NULL)
                                                  : CUDA_ERROR_NOT_FOUND;
    CUresult advise = drv.cuMemAdvise_v2
                          ? drv.cuMemAdvise_v2(p, here.chunk_bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, device)
                          : CUDA_ERROR_NOT_FOUND;
    CUresult range = drv.cuMemRangeGetAttribute(&read_mostly, sizeof read_mostly, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p,
                                                here.chunk_bytes);
    SAW(name, "prefetch %s, advice %s, range attribute %s (%d)", gpu_error(prefetch), gpu_error(advise),
        gpu_error(range), read_mostly);
}

void probe_hints(void)
{
    struct vm vm;
    CUdeviceptr p;
    CUmemLocation location;
    MUST(drv.cuMemAlloc_v2(&p, here.chunk_bytes));
    hints_on(p, "plain");
    MUST(drv.cuMemFree_v2(p));
    MUST(vm_reserve(&vm, 2));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    hints_on(vm_at(&vm, 0), "mapped");
    if (vm_host_location(&location) == CUDA_SUCCESS) {
        MUST(vm_back(&vm, 1, 1, VM_HOST));
        hints_on(vm_at(&vm, 1), "mapped-host");
    }
    MUST(drv.cuCtxSynchronize());
    MUST(vm_finish(&vm));
}

void probe_host_kinds(void)
{
    static const struct {
        const char *name;
        CUmemLocation location;
    } kinds[] = {{"numa-0", {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0}},
                 {"host", {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0}},
                 {"numa-current", {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, .id = 0}},
                 {"numa-none", {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = -1}}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = kinds[i].location};
        CUmemGenericAllocationHandle handle;
        size_t granularity = 0;
        CUresult ask = drv.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        CUresult r = drv.cuMemCreate(&handle, here.chunk_bytes, &prop, 0);
        if (r == CUDA_SUCCESS)
            drv.cuMemRelease(handle);
        SAW(kinds[i].name, "%s; granularity %zu (%s)", gpu_error(r), granularity, gpu_error(ask));
    }
}

static CUresult free_bytes(size_t *free_out)
{
    size_t total;
    return drv.cuMemGetInfo_v2(free_out, &total);
}

/* Other processes may use the card; so these are rows to read, not to rely on. */
void probe_charge(void)
{
    struct vm vm;
    CUmemLocation location;
    CUmemGenericAllocationHandle handle;
    size_t at_first, made, mapped, after_host;
    MUST(vm_reserve(&vm, 2));
    MUST(free_bytes(&at_first));
    MUST(vm_create(VM_DEVICE, &handle));
    MUST(free_bytes(&made));
    MUST(vm_map(&vm, 0, handle));
    MUST(vm_access(&vm, 0, 1));
    MUST(free_bytes(&mapped));
    ASSUMED(at_first - made == here.chunk_bytes && made == mapped, "device", "%lld bytes when made, %lld when mapped",
            (long long)(at_first - made), (long long)(made - mapped));
    if (vm_host_location(&location) == CUDA_SUCCESS) {
        MUST(vm_back(&vm, 1, 1, VM_HOST));
        MUST(free_bytes(&after_host));
        ASSUMED(mapped == after_host, "host", "%lld bytes of the device", (long long)(mapped - after_host));
    }
    MUST(vm_finish(&vm));
}
