/* A replay gives the same interleaving each time; another seed gives another. */
#include "strict.h"

static void host_bit(void *arg)
{
    ++*(int *)arg;
}

/* Two streams append bits to one word, without any order. */
static int scene_interleave(void)
{
    uint32_t word = 0, bit[2] = {0, 1};
    int calls = 0;
    set_up();
    for (int i = 0; i < 14; i++)
        MUST(try("append", 1, stream[i % 2], (void *[]){&memory, &bit[i % 2]}));
    MUST(cuLaunchHostFunc(stream[0], host_bit, &calls));
    MUST(cuMemsetD32Async(memory + 64, 3, 100, stream[1]));
    while (cuStreamQuery(stream[0]) == CUDA_ERROR_NOT_READY) {
    }
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&word, memory, 4));
    printf("%x %d\n", word, calls);
    return 0;
}

/* The same with one stream that waits for a value, which the other one writes between its kernels. */
static int scene_values(void)
{
    uint32_t word = 0, bit[2] = {0, 1};
    set_up();
    CUdeviceptr turn = memory + 128;
    MUST(cuMemsetD32_v2(turn, 0, 1));
    MUST(cuStreamWaitValue32_v2(stream[1], turn, 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (uint32_t i = 0; i < 28; i++) {
        MUST(try("append", 1, stream[i % 2], (void *[]){&memory, &bit[i % 2]}));
        if (i == 10)
            MUST(cuStreamWriteValue32_v2(stream[0], turn, 1, 0));
        usleep(500); /* who looks meanwhile must not matter */
    }
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&word, memory, 4));
    printf("%x\n", word);
    return 0;
}

SCENES({"interleave", scene_interleave}, {"values", scene_values})

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPLAYS 5
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPLAYS 5 /* each is a process that starts slowly */
#endif
#endif
#ifndef REPLAYS
#define REPLAYS 20
#endif

static void replays(const char *scene)
{
    char first[64] = "", first_trace[32] = "", setting[64];
    int others = 0;
    for (int i = 0; i < REPLAYS; i++) {
        struct hr_test_result r = strict(scene, "off", "SIMGPU=v100,vram=64M,host=64M,replay=7");
        const char *trace = strstr(report, "\"trace\": \"");
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0 && trace, "%s", r.err);
        cr_assert_not_null(strstr(report, "\"repeatable\": true"), "%s", report);
        if (!i) {
            snprintf(first, sizeof first, "%s", r.out);
            memcpy(first_trace, trace + 10, 16);
        }
        cr_assert_str_eq(r.out, first, "run %d", i);
        cr_assert_eq(memcmp(trace + 10, first_trace, 16), 0, "run %d", i);
        hr_test_result_finish(&r);
    }
    for (int seed = 8; seed < 14; seed++) {
        snprintf(setting, sizeof setting, "SIMGPU=v100,vram=64M,host=64M,replay=%d", seed);
        struct hr_test_result r = strict(scene, "off", setting);
        others += strcmp(r.out, first) != 0;
        hr_test_result_finish(&r);
    }
    cr_assert_gt(others, 0, "seven seeds, one interleaving: %s", first);
}

Test(replay, a_replay_gives_the_same_interleaving_each_time)
{
    replays("interleave");
}

Test(replay, a_replay_gives_the_same_interleaving_with_waits_for_values)
{
    replays("values");
}
