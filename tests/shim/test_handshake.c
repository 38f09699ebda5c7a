/*
 * Kernels on two GPUs that wait for each other, through counters in host memory. Whoever launches them one after the other
 * must get to the second launch while the first kernel runs, whatever has to be moved for it.
 */
#include "core_test.h"

#include <sched.h>

enum { ROUNDS = 2, N = 1024, DATA = 2 * MIB, HOGS = 3 };

/* A repetition that hangs ends the process, and the test with it. */
static void watch(void)
{
    alarm(10);
}

struct half { /* what one GPU has of it */
    CUcontext context;
    CUfunction shake, add;
    CUstream stream;
    CUdeviceptr data, hog[HOGS];
};

static void set_up(struct half *half, int device)
{
    CUmodule module;
    OK(cuCtxCreate_v2(&half->context, 0, device));
    OK(cuModuleLoadData(&module, shim_ptx));
    OK(cuModuleGetFunction(&half->shake, module, "shake_hands"));
    OK(cuModuleGetFunction(&half->add, module, "stride_add"));
    OK(cuStreamCreate(&half->stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&half->data, DATA));
    OK(cuMemsetD32_v2(half->data, 0, DATA / 4));
    for (int i = 0; i < HOGS; i++) {
        OK(cuMemAlloc_v2(&half->hog[i], DATA));
        OK(cuMemsetD32_v2(half->hog[i], 0, DATA / 4));
    }
    OK(cuCtxSynchronize());
}

static void shake(const struct half *half, CUdeviceptr mine, CUdeviceptr theirs, uint32_t repetition)
{
    CUdeviceptr data = half->data;
    uint32_t before = repetition * ROUNDS, rounds = ROUNDS, n = N;
    OK(cuCtxSetCurrent(half->context));
    OK(launch(half->shake, 1, 64, half->stream, (void *[]){&mine, &theirs, &before, &rounds, &data, &n}));
}

/* Kernels that need all of the VRAM for themselves, on the same GPU. */
static void crowd_out(const struct half *half)
{
    uint64_t stride = 512;
    uint32_t n = N, a = 1;
    OK(cuCtxSetCurrent(half->context));
    for (int i = 0; i < HOGS; i++) {
        CUdeviceptr hog = half->hog[i];
        OK(launch(half->add, 2, 128, half->stream, (void *[]){&hog, &stride, &n, &a}));
    }
}

static void data_is_right(const struct half *half, uint32_t repetitions)
{
    static uint32_t seen[DATA / 4];
    uint32_t last = repetitions * ROUNDS, expected = last * (last + 1) / 2;
    OK(cuCtxSetCurrent(half->context));
    OK(cuMemcpyDtoH_v2(seen, half->data, DATA));
    for (size_t i = 0; i < N; i++)
        CHECK(seen[i * 512] == expected, "word %zu is %u, not %u", i, seen[i * 512], expected);
    for (int k = 0; k < HOGS; k++) {
        OK(cuMemcpyDtoH_v2(seen, half->hog[k], DATA));
        for (size_t i = 0; i < N; i++)
            CHECK(seen[i * 512] == repetitions, "word %zu of hog %d is %u", i, k, seen[i * 512]);
    }
}

/* --- one thread ---------------------------------------------------------------------------------------------------- */

static struct {
    const char *machine, *deny;
    bool peers, evict;
    int repetitions;
} scene;

static void one_thread(void)
{
    struct half half[2];
    uint32_t *flags;
    CUdeviceptr counter[2];
    size_t evicted = 0;
    setenv("SIMGPU", scene.machine, 1);
    setenv("HEADROOM_STATS", "off", 0);
    if (scene.deny)
        setenv("SIMGPU_DENY", scene.deny, 1);
    OK(cuInit(0));
    for (int g = 0; g < 2; g++)
        set_up(&half[g], g);
    for (int g = 0; g < 2 && scene.peers; g++) {
        OK(cuCtxSetCurrent(half[g].context));
        OK(cuCtxEnablePeerAccess(half[1 - g].context, 0));
    }
    OK(cuMemHostAlloc((void **)&flags, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(flags, 0, 4096);
    for (int g = 0; g < 2; g++)
        OK(cuMemHostGetDevicePointer_v2(&counter[g], flags + g * 64, 0));
    for (int r = 0; r < scene.repetitions; r++) {
        int first = r % 2, second = 1 - first;
        watch();
        crowd_out(&half[first]);
        OK(cuStreamSynchronize(half[first].stream));
        shake(&half[first], counter[first], counter[second], (uint32_t)r);
        if (scene.evict)
            evicted += hr_access_evict_range(hr_thread_self(), half[second].data, DATA);
        crowd_out(&half[second]); /* and now the second one's data is out of the way */
        shake(&half[second], counter[second], counter[first], (uint32_t)r);
        OK(cuStreamSynchronize(half[second].stream));
        OK(cuStreamSynchronize(half[first].stream));
    }
    alarm(0);
    CHECK(!scene.evict || evicted > 0);
    for (int g = 0; g < 2; g++)
        data_is_right(&half[g], (uint32_t)scene.repetitions);
}

static void run_one_thread(void)
{
    char *report = apart(one_thread);
    was_safe(report);
    free(report);
}

/* Shown failing (in the first repetition) by a settling of all GPUs without a deadline. */
Test(handshake, two_kernels_from_one_thread_meet_with_eviction_between_their_launches, .timeout = 2000)
{
    scene.machine = "h200,gpus=2,vram=8M,host=512M";
    scene.evict = true;
    scene.repetitions = 200;
    run_one_thread();
}

/* Each GPU may touch the other's memory, so that a move would have to wait for both: it is given up instead. */
Test(handshake, two_kernels_of_peers_meet, .timeout = 2000)
{
    scene.machine = "h200,gpus=2,vram=8M,host=512M";
    scene.peers = true;
    scene.repetitions = is_long() ? 200 : 20;
    run_one_thread();
}

/* What is out has to come in before the second kernel may run; the first one does not stand in the way. */
Test(handshake, two_kernels_meet_where_host_memory_cannot_be_mapped, .timeout = 2000)
{
    scene.machine = "h200,gpus=2,vram=8M,host=512M";
    scene.deny = "host_numa";
    scene.repetitions = is_long() ? 200 : 20;
    run_one_thread();
}

/* --- two processes ------------------------------------------------------------------------------------------------- */

static void pass_on(int fd)
{
    CHECK(write(fd, "", 1) == 1);
}
static void await(int fd)
{
    char c;
    CHECK(read(fd, &c, 1) == 1);
}

static uint32_t *shared_flags;
static int to_other[2][2]; /* pipes: [i] is written by process i */

/* The processes take turns in being the first to launch. */
static void one_process(int me, int repetitions)
{
    struct half half;
    CUdeviceptr counter[2];
    setenv("SIMGPU", "h200,gpus=2,vram=8M,host=512M", 1);
    setenv("HEADROOM_STATS", "off", 0);
    OK(cuInit(0));
    set_up(&half, me);
    OK(cuMemHostRegister_v2(shared_flags, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    for (int g = 0; g < 2; g++)
        OK(cuMemHostGetDevicePointer_v2(&counter[g], shared_flags + g * 64, 0));
    size_t evicted = 0;
    for (int r = 0; r < repetitions; r++) {
        watch();
        if (r % 2 != me)
            await(to_other[1 - me][0]); /* the other's kernel runs */
        evicted += hr_access_evict_range(hr_thread_self(), half.data, DATA);
        crowd_out(&half);
        shake(&half, counter[me], counter[1 - me], (uint32_t)r);
        if (r % 2 == me)
            pass_on(to_other[me][1]);
        OK(cuStreamSynchronize(half.stream));
    }
    alarm(0);
    CHECK(evicted > 0);
    data_is_right(&half, (uint32_t)repetitions);
    OK(cuMemHostUnregister(shared_flags));
}

static void two_processes(void)
{
    int repetitions = 200, status;
    shared_flags = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared_flags != MAP_FAILED && pipe(to_other[0]) == 0 && pipe(to_other[1]) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsetenv("SIMGPU_REPORT");
        one_process(1, repetitions);
        exit(0);
    }
    one_process(0, repetitions);
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the other process: 0x%x", status);
}

Test(handshake, two_kernels_of_two_processes_meet, .timeout = 2000)
{
    char *report = apart(two_processes);
    was_safe(report);
    free(report);
}
