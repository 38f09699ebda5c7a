/* SIMGPU_CHECK=host: the CPU touches pinned memory that work in flight uses. Scenes as in test_strict.c. */
#include "kernels.h"
#include "scene.h"
#include "sim_test.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PAGE_4K 4096

#define HOLDS(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #what);                                           \
            exit(91);                                                                                                  \
        }                                                                                                              \
    } while (0)

static CUcontext context;
static CUstream stream[2];
static CUmodule module;
static CUdeviceptr memory; /* 1 MiB of 7 */
static volatile uint8_t *pinned;
static volatile uint8_t sink;

static void set_up(size_t pinned_bytes)
{
    void *p;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, kernels_ptx));
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&memory, MIB));
    MUST(cuMemsetD8_v2(memory, 7, MIB));
    MUST(cuMemAllocHost_v2(&p, pinned_bytes));
    pinned = p;
    MUST(cuCtxSynchronize());
}

/* A kernel that spins until *flag, in front of what is to stay pending. */
static void hold(CUstream s, uint32_t *flag)
{
    CUfunction spin;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)flag, none = 0;
    MUST(cuModuleGetFunction(&spin, module, "spin"));
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&at, &none, &none}, NULL));
}

static uint32_t *new_flag(void)
{
    void *p;
    MUST(cuMemAllocHost_v2(&p, 64));
    memset(p, 0, 64);
    return p;
}

static void copy_out(size_t at, size_t bytes, CUstream s)
{
    MUST(cuMemcpyDtoHAsync_v2((void *)(pinned + at), memory, bytes, s));
}

static int scene_read(void)
{
    set_up(3 * PAGE_4K);
    uint32_t *flag = new_flag();
    hold(stream[0], flag);
    copy_out(0, 3 * PAGE_4K, stream[0]);
    sink = pinned[PAGE_4K + 5];
    sink = pinned[9]; /* told once for a copy */
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    HOLDS(pinned[0] == 7 && pinned[3 * PAGE_4K - 1] == 7);
    return 0;
}

/* Really over, since one engine carries both out; but nothing says so. */
static int scene_read_by_luck(void)
{
    set_up(100);
    void *other;
    MUST(cuMemAllocHost_v2(&other, 100));
    copy_out(0, 100, stream[0]);
    MUST(cuMemcpyDtoHAsync_v2(other, memory, 100, stream[1]));
    MUST(cuStreamSynchronize(stream[1]));
    sink = pinned[99];
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_write(void)
{
    set_up(2 * MIB + 100);
    uint32_t *flag = new_flag();
    hold(stream[0], flag);
    MUST(cuMemcpyHtoDAsync_v2(memory, (void *)pinned, MIB, stream[0]));
    sink = pinned[5]; /* reading is fine */
    pinned[MIB - 1] = 3;
    pinned[MIB] = 4; /* not the copy's */
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    HOLDS(pinned[MIB - 1] == 3 && pinned[MIB] == 4);
    return 0;
}

static int scene_set(void)
{
    CUdeviceptr p;
    set_up(PAGE_4K);
    uint32_t *flag = new_flag();
    hold(stream[0], flag);
    MUST(cuMemHostGetDevicePointer_v2(&p, (void *)pinned, 0));
    MUST(cuMemsetD8Async(p, 1, PAGE_4K, stream[0]));
    pinned[17] = 3;
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    return (int)cuCtxSynchronize();
}

static atomic_bool called;
static void call(void *unused)
{
    (void)unused;
    sink = pinned[0]; /* what stands before it is over */
    atomic_store(&called, true);
}

static int scene_ordered(void)
{
    CUevent event;
    set_up(4 * PAGE_4K);
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int way = 0; way < 5; way++) {
        copy_out(0, 4 * PAGE_4K, stream[0]);
        if (way == 0)
            MUST(cuStreamSynchronize(stream[0]));
        if (way == 1 || way == 2)
            MUST(cuEventRecord(event, stream[0]));
        if (way == 1)
            MUST(cuEventSynchronize(event));
        while (way == 2 && cuEventQuery(event) == CUDA_ERROR_NOT_READY)
            ;
        while (way == 3 && cuStreamQuery(stream[0]) == CUDA_ERROR_NOT_READY)
            ;
        if (way == 4) {
            MUST(cuLaunchHostFunc(stream[0], call, NULL));
            while (!atomic_load(&called))
                ;
        }
        HOLDS(pinned[0] == 7 && pinned[4 * PAGE_4K - 1] == 7);
        pinned[PAGE_4K] = 9;
        MUST(cuMemcpyHtoDAsync_v2(memory + MIB / 2, (void *)pinned, 4 * PAGE_4K, stream[way % 2]));
        MUST(cuStreamSynchronize(stream[way % 2]));
        pinned[PAGE_4K] = 8;
    }
    MUST(cuMemcpyDtoH_v2((void *)pinned, memory + MIB / 2, 2 * PAGE_4K));
    HOLDS(pinned[PAGE_4K] == 9);
    return 0;
}

/* What else lies in the same pages and allocations is nobody's business. */
static int scene_neighbours(void)
{
    set_up(3 * PAGE_4K);
    uint32_t *flag = new_flag();
    hold(stream[0], flag);
    copy_out(1000, PAGE_4K, stream[0]);
    for (size_t i = 0; i < 3 * PAGE_4K; i++)
        if (i < 1000 || i >= 1000 + PAGE_4K)
            pinned[i] = 1;
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    HOLDS(pinned[999] == 1 && pinned[1000] == 7 && pinned[999 + PAGE_4K] == 7 && pinned[1000 + PAGE_4K] == 1);
    void *again = (void *)pinned;
    copy_out(0, 3 * PAGE_4K, stream[0]);
    MUST(cuMemFreeHost(again)); /* in flight: told elsewhere; but the memory is anybody's afterwards */
    return 0;
}

/* The host learns in memory: from a small copy that comes after, or from a kernel that still runs. */
static int scene_told_in_memory(void)
{
    CUfunction f;
    set_up(PAGE_4K);
    uint32_t *flag = new_flag(), *go = new_flag();
    CUdeviceptr cell, pointed = memory, go_at = (CUdeviceptr)(uintptr_t)go;
    copy_out(0, PAGE_4K, stream[0]);
    MUST(cuMemcpyDtoHAsync_v2(flag, memory, 4, stream[0]));
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != 0x07070707)
        ;
    HOLDS(pinned[PAGE_4K - 1] == 7);
    MUST(cuMemAlloc_v2(&cell, 64));
    MUST(cuMemcpyHtoD_v2(cell, &pointed, 8));
    MUST(cuModuleGetFunction(&f, module, "hidden"));
    copy_out(0, PAGE_4K, stream[0]);
    MUST(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream[0], (void *[]){&cell, &go_at}, NULL));
    while (!__atomic_load_n(&go[1], __ATOMIC_ACQUIRE))
        ;
    HOLDS(pinned[5] == 7);
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    return 0;
}

static void leave(int number)
{
    (void)number;
    _exit(44);
}

/* A fault that has nothing to do with all this goes where it would go. */
static int scene_fault(void)
{
    signal(SIGSEGV, leave);
    set_up(PAGE_4K);
    copy_out(0, PAGE_4K, stream[0]);
    sink = pinned[0]; /* comes back */
    static volatile uintptr_t nowhere = 16;
    *(volatile int *)nowhere = 1;
    return 0;
}

/* Whoever waits for a context waits for what its streams left behind, and so does the legacy stream. */
static int scene_streams_that_are_gone(void)
{
    CUstream blocking;
    set_up(3 * PAGE_4K);
    copy_out(0, 3 * PAGE_4K, stream[0]);
    MUST(cuStreamDestroy_v2(stream[0]));
    MUST(cuCtxSynchronize());
    HOLDS(pinned[5] == 7);
    MUST(cuMemsetD8Async(memory, 8, MIB, stream[1])); /* after the copy, which read it */
    MUST(cuCtxSynchronize());
    MUST(cuStreamCreate(&blocking, 0));
    copy_out(0, 3 * PAGE_4K, blocking);
    MUST(cuStreamDestroy_v2(blocking));
    usleep(50000);
    MUST(cuMemsetD8Async(memory, 9, MIB, NULL));
    MUST(cuStreamSynchronize(NULL));
    HOLDS(pinned[5] == 8);
    return 0;
}

static void *copy_in_own_stream(void *unused)
{
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    copy_out(0, 3 * PAGE_4K, CU_STREAM_PER_THREAD);
    return NULL;
}

static int scene_threads_that_are_gone(void)
{
    pthread_t thread;
    set_up(3 * PAGE_4K);
    pthread_create(&thread, NULL, copy_in_own_stream, NULL);
    pthread_join(thread, NULL);
    usleep(50000);
    MUST(cuCtxSynchronize());
    HOLDS(pinned[5] == 7);
    return 0;
}

/* A memset of a word may be a signal, as a copy of one may. */
static int scene_flag_set(void)
{
    set_up(PAGE_4K);
    uint32_t *flag = new_flag(), *go = new_flag();
    hold(stream[0], go);
    MUST(cuMemsetD32Async((CUdeviceptr)(uintptr_t)flag, 5, 1, stream[0]));
    void *word;
    MUST(cuMemAllocHost_v2(&word, 4)); /* all of its allocation */
    MUST(cuMemsetD32Async((CUdeviceptr)(uintptr_t)word, 6, 1, stream[0]));
    HOLDS(__atomic_load_n((uint32_t *)word, __ATOMIC_ACQUIRE) != 6);
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n((uint32_t *)word, __ATOMIC_ACQUIRE) != 6)
        ;
    HOLDS(*flag == 5);
    return 0;
}

/* Reading what a copy writes is one mistake, though another copy reads it too. */
static int scene_read_beside_a_reader(void)
{
    set_up(PAGE_4K);
    uint32_t *go = new_flag();
    hold(stream[0], go);
    copy_out(0, PAGE_4K, stream[0]);
    MUST(cuMemcpyHtoDAsync_v2(memory + MIB / 2, (void *)pinned, PAGE_4K, stream[0]));
    sink = pinned[3];
    sink = pinned[4];
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    return 0;
}

/* Its thread takes faults as others do. */
static int scene_host_function(void)
{
    set_up(PAGE_4K);
    uint32_t *go = new_flag();
    hold(stream[0], go);
    copy_out(0, PAGE_4K, stream[0]);
    MUST(cuLaunchHostFunc(stream[1], call, NULL));
    MUST(cuStreamSynchronize(stream[1]));
    HOLDS(atomic_load(&called));
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    return 0;
}

/* A call's result goes there, and its thread faults with everything locked. */
static int scene_result_of_a_call(void)
{
    set_up(PAGE_4K);
    uint32_t *go = new_flag();
    hold(stream[0], go);
    copy_out(0, PAGE_4K, stream[0]);
    MUST(cuMemAlloc_v2((CUdeviceptr *)(uintptr_t)pinned, 64));
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    return 0;
}

/* The error says that nothing runs any more; no call that waits succeeds from then on. */
static int scene_after_an_error(void)
{
    CUfunction stop;
    void *other;
    set_up(PAGE_4K);
    MUST(cuMemAllocHost_v2(&other, 100));
    copy_out(0, PAGE_4K, stream[0]);
    MUST(cuMemcpyDtoHAsync_v2(other, memory, 100, stream[1]));
    MUST(cuStreamSynchronize(stream[1])); /* one engine: so the first copy is over, which nothing has said yet */
    MUST(cuModuleGetFunction(&stop, module, "stop"));
    MUST(cuLaunchKernel(stop, 1, 1, 1, 1, 1, 1, 0, stream[1], NULL, NULL));
    HOLDS(cuStreamSynchronize(stream[0]) == CUDA_SUCCESS || cuStreamSynchronize(stream[0]) == CUDA_ERROR_LAUNCH_FAILED);
    HOLDS(cuStreamSynchronize(stream[1]) == CUDA_ERROR_LAUNCH_FAILED);
    HOLDS(pinned[0] == 7);
    return 0;
}

/* Any number may be pending, also of one piece of memory. */
static int scene_many(void)
{
    enum { COPIES = 10000, PAGES = 4000 };
    set_up(PAGES * PAGE_4K);
    uint32_t *go = new_flag();
    hold(stream[0], go);
    for (int i = 0; i < COPIES; i++)
        MUST(cuMemcpyHtoDAsync_v2(memory, (void *)pinned, PAGE_4K, stream[0]));
    for (size_t i = 0; i < PAGES; i += 2)
        copy_out(i * PAGE_4K, PAGE_4K, stream[0]);
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    for (size_t i = 0; i < PAGES; i++)
        pinned[i * PAGE_4K] = 1;
    return 0;
}

/* What the job protects itself is its own. */
static int scene_own_protection(void)
{
    signal(SIGSEGV, leave);
    alarm(60);
    set_up(2 * PAGE_4K);
    HOLDS(!mprotect((void *)(uintptr_t)pinned, PAGE_4K, PROT_NONE));
    sink = pinned[0];
    return 0;
}

/* A forked child is none of this: it goes on with its copy of the protection. */
static int scene_forked(void)
{
    int status;
    set_up(PAGE_4K);
    uint32_t *go = new_flag();
    hold(stream[0], go);
    copy_out(0, PAGE_4K, stream[0]);
    pid_t child = fork();
    if (!child) {
        sink = pinned[0];
        _exit(5);
    }
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    return 0;
}

/* The host's memory, but not the CPU's to look at: no kernel tells it anything there. */
static int scene_chunk_of_the_host(void)
{
    CUfunction fill;
    CUdeviceptr va;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_host_node(0);
    CUmemAccessDesc access = access_of(0);
    uint32_t value = 1, count = 16;
    set_up(64);
    MUST(cuMemAddressReserve(&va, PAGE, 0, 0, 0));
    MUST(cuMemCreate(&handle, PAGE, &prop, 0));
    MUST(cuMemMap(va, PAGE, 0, handle, 0));
    MUST(cuMemSetAccess(va, PAGE, &access, 1));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    for (int i = 0; i < 2; i++) {
        MUST(cuLaunchKernel(fill, 1, 1, 1, 16, 1, 1, 0, stream[i], (void *[]){&va, &value, &count}, NULL));
        usleep(50000);
    }
    return (int)cuCtxSynchronize();
}

SCENES({"read", scene_read}, {"read_by_luck", scene_read_by_luck}, {"write", scene_write}, {"set", scene_set},
       {"ordered", scene_ordered}, {"neighbours", scene_neighbours}, {"told_in_memory", scene_told_in_memory},
       {"fault", scene_fault}, {"streams_that_are_gone", scene_streams_that_are_gone},
       {"threads_that_are_gone", scene_threads_that_are_gone}, {"flag_set", scene_flag_set},
       {"read_beside_a_reader", scene_read_beside_a_reader}, {"host_function", scene_host_function},
       {"result_of_a_call", scene_result_of_a_call}, {"after_an_error", scene_after_an_error}, {"many", scene_many},
       {"own_protection", scene_own_protection}, {"forked", scene_forked},
       {"chunk_of_the_host", scene_chunk_of_the_host})

/* Plays a scene; its report is in `report`. */
static struct hr_test_result play_with(const char *name, const char *check, const char **report_out)
{
    char scene[64], setting[64], path[64];
    snprintf(scene, sizeof scene, "SIM_SCENE=%s", name);
    snprintf(setting, sizeof setting, "SIMGPU_CHECK=%s", check);
    snprintf(path, sizeof path, "SIMGPU_REPORT=/tmp/simgpu-host-%d.json", (int)getpid());
    struct hr_test_result r = play(scene, (const char *[]){"SIMGPU=v100,vram=64M,host=64M", setting,
                                                           report_out ? path : "", "SIMGPU_LOG=warn", NULL});
    if (report_out) {
        *report_out = slurp(strchr(path, '/'));
        unlink(strchr(path, '/'));
    }
    return r;
}

static void finds(const char *name, const char *check, int status, int count, const char *words)
{
    const char *report;
    struct hr_test_result r = play_with(name, check, &report);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == (status & 255), "%s: 0x%x: %s", name, (unsigned)r.status,
              r.err);
    cr_assert_eq(reported(report, "host_access"), count, "%s: %s", name, r.err);
    cr_assert(count ? strstr(r.err, words) != NULL : !strstr(r.err, "host access"), "%s: '%s' in: %s", name, words,
              r.err);
    hr_test_result_finish(&r);
}

Test(host_access, pending_memory_is_touched)
{
    finds("read", "host", 0, 1, "host access to pending memory: the CPU reads 0x");
    finds("read", "host", 0, 1, "4101 bytes into the pinned host range 0x");
    finds("read_by_luck", "host", 0, 1, "which a copy or memset of 100 bytes (stream ");
    finds("write", "all", 0, 1, "the CPU writes 0x");
    finds("set", "host", 0, 1, "writes; the host has not waited for it");
    finds("read", "race", 0, 0, "");
    finds("read_beside_a_reader", "host", 0, 1, "the CPU reads 0x");
    finds("host_function", "host", 0, 1, "the CPU reads 0x");
    finds("result_of_a_call", "host", 0, 1, "the CPU writes 0x");
}

Test(host_access, it_can_end_the_context)
{
    finds("set", "host,fatal", CUDA_ERROR_LAUNCH_FAILED, 1, "the context fails because of this: host access");
}

Test(host_access, programs_that_keep_the_order_are_left_alone)
{
    finds("ordered", "host", 0, 0, "");
    finds("neighbours", "host", 0, 0, "");
    finds("told_in_memory", "host", 0, 0, "");
    finds("threads_that_are_gone", "host", 0, 0, "");
    finds("flag_set", "host", 0, 0, "");
    finds("after_an_error", "host", 0, 0, "");
    finds("many", "host", 0, 0, "");
    finds("forked", "host", 0, 0, "");
}

Test(host_access, races_are_found_as_without)
{
    for (int with = 0; with < 2; with++) {
        const char *report;
        struct hr_test_result r = play_with("chunk_of_the_host", with ? "host" : "race", &report);
        cr_assert_eq(reported(report, "race") + reported(report, "host_race"), 1, "with %d: %s", with, r.err);
        hr_test_result_finish(&r);
    }
}

Test(host_access, streams_leave_their_order_behind)
{
    const char *report;
    finds("streams_that_are_gone", "host", 0, 0, "");
    struct hr_test_result r = play_with("streams_that_are_gone", "race", &report);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "0x%x: %s", (unsigned)r.status, r.err);
    cr_assert_eq(reported(report, "race"), 0, "%s", r.err);
    hr_test_result_finish(&r);
}

Test(host_access, the_jobs_own_protection_is_the_jobs)
{
    struct hr_test_result r = play_with("own_protection", "host", NULL);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 44, "0x%x: %s", (unsigned)r.status, r.err);
    hr_test_result_finish(&r);
}

Test(host_access, other_faults_go_where_they_would)
{
    struct hr_test_result r = play_with("fault", "host", NULL);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 44, "0x%x: %s", (unsigned)r.status, r.err);
    cr_assert_not_null(strstr(r.err, "host access to pending memory"), "%s", r.err);
    hr_test_result_finish(&r);
}
