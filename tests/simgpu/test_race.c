/* Races of operations: what nothing orders is found, what something orders is let be. Scenes, see test_strict.c. */
#include "strict.h"

static int scene_two_kernels(void)
{
    set_up();
    put(memory + 64, stream[0]);
    copy_word(memory, memory + 64, stream[1]);
    MUST(cuCtxSynchronize());
    return 0;
}

/* That one is over by luck when the other begins orders nothing. */
static int scene_by_luck(void)
{
    set_up();
    put(memory, stream[0]);
    void *pinned;
    MUST(cuMemAllocHost_v2(&pinned, 64));
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory + 4096, 8, stream[1]));
    MUST(cuStreamSynchronize(stream[1]));
    put(memory, stream[1]);
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_copy_and_kernel(void)
{
    void *pinned;
    set_up();
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    put(memory + 128, stream[0]);
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream[1]));
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_count_and_copy(void)
{
    void *pinned;
    set_up();
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    count(memory, stream[0]);
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream[1]));
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_host_memory(void)
{
    void *pinned;
    set_up();
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream[0]));
    MUST(cuMemcpyHtoDAsync_v2(memory + 8192, pinned, 4096, stream[1]));
    MUST(cuCtxSynchronize());
    return 0;
}

/* Full warps, whose accesses take the interpreter's fast ways. */
static int scene_warps(void)
{
    uint32_t v = 1, n = 4096;
    set_up();
    for (int i = 0; i < 2; i++) {
        CUdeviceptr p = memory + (CUdeviceptr)i * (4 * n - 4); /* one word belongs to both */
        MUST(cuLaunchKernel(function("fill"), n / 256, 1, 1, 256, 1, 1, 0, stream[i], (void *[]){&p, &v, &n}, NULL));
    }
    MUST(cuCtxSynchronize());
    return 0;
}

/* A pager's copy, during which the page is written: it is made again before anybody uses it, or it is not. */
static int move_pages(bool again)
{
    CUdeviceptr pages;
    set_up();
    MUST(cuMemAlloc_v2(&pages, 2 * PAGE));
    MUST(cuMemsetD8_v2(pages, 0, 2 * PAGE));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoDAsync_v2(pages + PAGE, pages, PAGE, stream[0]));
    put(pages + 64, stream[1]);
    MUST(cuCtxSynchronize());
    if (again)
        MUST(cuMemcpyDtoDAsync_v2(pages + PAGE, pages, PAGE, stream[0]));
    copy_word(memory, pages + PAGE + 128, stream[0]);
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_moved(void)
{
    return move_pages(false);
}

static int scene_moved_again(void)
{
    return move_pages(true);
}

/* Pageable memory is read during the call: here while a copy into it waits behind a gate. */
static int scene_staged(void)
{
    static _Alignas(4096) char buffer[8192];
    static struct gate gate = GATE_INIT;
    set_up();
    MUST(cuMemHostRegister_v2(buffer, 4096, 0));
    MUST(cuLaunchHostFunc(stream[0], gate_wait, &gate));
    MUST(cuMemcpyDtoHAsync_v2(buffer, memory, 4096, stream[0]));
    MUST(cuMemcpyHtoD_v2(memory + 8192, buffer, 4096));
    gate_open(&gate);
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_fatal(void)
{
    set_up();
    put(memory, stream[0]);
    put(memory, stream[1]);
    return (int)cuCtxSynchronize();
}

static void ordered_by_events(void)
{
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 20; i++) { /* an event that is over or not when it is waited for */
        put(memory, stream[i % 2]);
        MUST(cuEventRecord(event, stream[i % 2]));
        MUST(cuStreamWaitEvent(stream[(i + 1) % 2], event, 0));
        if (i % 3 == 0)
            while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
            }
    }
}

static void ordered_by_the_host(void)
{
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    put(memory, stream[0]);
    MUST(cuStreamSynchronize(stream[0]));
    put(memory, stream[1]);
    while (cuStreamQuery(stream[1]) == CUDA_ERROR_NOT_READY) {
    }
    put(memory, stream[0]);
    MUST(cuEventRecord(event, stream[0]));
    MUST(cuEventSynchronize(event));
    put(memory, stream[1]);
    MUST(cuCtxSynchronize());
    put(memory, stream[0]);
    uint32_t word;
    MUST(cuStreamSynchronize(stream[0]));
    MUST(cuMemcpyDtoH_v2(&word, memory, 4));
}

static void ordered_by_the_legacy_stream(void)
{
    CUstream blocking[2];
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&blocking[i], 0));
    for (int i = 0; i < 4; i++) {
        put(memory + 512, blocking[i % 2]);
        put(memory + 512, CU_STREAM_LEGACY);
    }
}

static void neighbours(void)
{
    for (unsigned i = 0; i < 64; i++) /* bytes of the same words */
        put8(memory + 1024 + i, stream[i % 2]);
    MUST(cuMemsetD8Async(memory + 2048 + 3, 1, 5, stream[0]));
    MUST(cuMemsetD8Async(memory + 2048 + 8, 2, 7, stream[1]));
    MUST(cuMemsetD2D8Async(memory + 4096, 64, 1, 32, 8, stream[0]));
    MUST(cuMemsetD2D8Async(memory + 4096 + 32, 64, 2, 32, 8, stream[1]));
}

static void atomics_and_flags(void)
{
    CUdeviceptr data = memory + 65536, flag = memory + 65536 + 256;
    for (int i = 0; i < 6; i++)
        count(memory + 3072, stream[i % 2]);
    MUST(try("consume", 1, stream[0], (void *[]){&data, &flag}));
    MUST(try("produce", 1, stream[1], (void *[]){&data, &flag}));
    copy_word(memory + 70000, data + 4, stream[0]);
}

/* A kernel tells the host through pinned memory that another may begin, and does not end meanwhile. */
static void told_through_host_memory(void)
{
    volatile uint32_t *words;
    CUdeviceptr at, data = memory + 80000;
    MUST(cuMemAllocHost_v2((void **)&words, 64));
    memset((void *)words, 0, 64);
    MUST(cuMemcpyHtoD_v2(memory + 90000, &data, 8));
    MUST(cuCtxSynchronize());
    at = (CUdeviceptr)(uintptr_t)words;
    CUdeviceptr pointer = memory + 90000;
    MUST(try("hidden", 1, stream[0], (void *[]){&pointer, &at}));
    while (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) == 0) {
    }
    put(data, stream[1]);
    MUST(cuStreamSynchronize(stream[1]));
    __atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
}

static void used_again_after_a_free(void)
{
    CUdeviceptr p;
    for (int i = 0; i < 8; i++) {
        MUST(cuMemAlloc_v2(&p, 3000));
        put(p, stream[i % 2]);
        MUST(cuStreamSynchronize(stream[i % 2]));
        MUST(cuMemFree_v2(p));
    }
}

static int scene_ordered(void)
{
    static void (*const parts[])(void) = {
        ordered_by_events, ordered_by_the_host,      ordered_by_the_legacy_stream, neighbours,
        atomics_and_flags, told_through_host_memory, used_again_after_a_free};
    set_up();
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i]();
        MUST(cuCtxSynchronize());
    }
    return 0;
}

SCENES({"two_kernels", scene_two_kernels}, {"by_luck", scene_by_luck}, {"copy_and_kernel", scene_copy_and_kernel},
       {"count_and_copy", scene_count_and_copy}, {"host_memory", scene_host_memory}, {"staged", scene_staged},
       {"warps", scene_warps}, {"moved", scene_moved}, {"moved_again", scene_moved_again}, {"fatal", scene_fatal},
       {"ordered", scene_ordered})

Test(race, two_operations_that_nothing_orders_are_a_race)
{
    finds("two_kernels", "race", 0, "race", 1,
          WORDS("kernel put (stream ", "kernel copy_word (stream ", " writes ", " reads ",
                "64 bytes into the allocation 0x", "of 1048576 bytes on device 0"));
    finds("by_luck", "race", 0, "race", 1, WORDS("kernel put (stream "));
    finds("copy_and_kernel", "race", 0, "race", 1,
          WORDS("kernel put (stream ", "a copy of 4096 bytes to host memory", "128 bytes into the allocation 0x"));
    finds("count_and_copy", "race", 0, "race", 1, WORDS("kernel count (stream "));
    finds("warps", "race", 0, "race", 1, WORDS("16380 bytes into the allocation 0x"));
    finds("two_kernels", "off", 0, "race", 0, WORDS(""));
}

Test(race, host_memory_that_a_copy_still_uses_is_a_race)
{
    finds("host_memory", "race", 0, "host_race", 1, WORDS("0 bytes into the pinned host range 0x"));
    finds("staged", "race", 0, "host_race", 1, WORDS("race on host memory: ", "a copy of 4096 bytes "));
}

Test(race, a_copy_of_pages_that_were_written_meanwhile_counts_when_it_is_used)
{
    finds("moved", "race", 0, "race", 1,
          WORDS("a copy of 2097152 bytes", ", and kernel copy_word uses what was copied\n"));
    finds_nothing("moved_again", "race");
}

Test(race, a_fatal_race_is_a_sticky_error)
{
    finds("fatal", "race,fatal", CUDA_ERROR_LAUNCH_FAILED, "race", 1, WORDS("the context fails because of this: race"));
}

Test(race, what_is_ordered_is_no_race)
{
    finds_nothing("ordered", "race");
    finds_nothing("ordered", "race,redzone,deadlock");
}
