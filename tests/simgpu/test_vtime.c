/* Virtual time: the same in every run, what questions and waits learn of it, and what is reported. Rates: test_vrates.c. */
#include "scene.h"
#include "virtual.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the same in every run ---- */

/* Copies, kernels, two streams tied by events, a host function, polling; prints the thread's clock and an elapsed time. */
static void nothing(void *arg)
{
    (void)arg;
}

static int scene_mixed(void)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    CUevent begin, end, tie;
    void *host;
    float ms;
    CUstream a = stream(), b;
    OK(cuStreamCreate(&b, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventCreate(&tie, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc_v2(&p, 8 * MIB));
    OK(cuMemAllocHost_v2(&host, 4 * MIB));
    memset(host, 1, 4 * MIB);
    OK(cuEventRecord(begin, a));
    for (unsigned i = 0; i < 12; i++) {
        uint32_t word = i;
        OK(cuMemcpyHtoDAsync_v2(p, host, 4 * MIB, a));
        launch_fill(f, 40 + 30 * i, p + 4 * MIB, b);
        launch_fill(f, 200, p, a);
        OK(cuEventRecord(tie, a));
        OK(cuStreamWaitEvent(b, tie, 0));
        OK(cuMemcpyDtoHAsync_v2(host, p, 1 * MIB, b));
        OK(cuMemsetD32Async(p + 6 * MIB, i, 1000, NULL));
        OK(cuMemcpyHtoD_v2(p + 7 * MIB, &word, sizeof word));
        if (i % 4 == 1)
            OK(cuLaunchHostFunc(a, nothing, NULL));
        while (cuEventQuery(tie) == CUDA_ERROR_NOT_READY)
            ;
        if (i % 3 == 2)
            while (cuStreamQuery(b) == CUDA_ERROR_NOT_READY)
                ;
        if (i % 5 == 4)
            OK(cuStreamSynchronize(a));
    }
    OK(cuEventRecord(end, a));
    while (cuEventElapsedTime_v2(&ms, begin, end) == CUDA_ERROR_NOT_READY)
        ;
    OK(cuCtxSynchronize());
    printf("%llu %.6f\n", (unsigned long long)now_ns(), (double)ms);
    return 0;
}

static void pause_us(void *us)
{
    usleep((unsigned)(uintptr_t)us);
}

/* Host functions that take longer together than anybody waits for one of them, then a copy; and a copy that this one could
 * displace. */
static int scene_host_functions(void)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p;
    void *host;
    CUstream a = stream(), b = stream();
    OK(cuMemAlloc_v2(&p, 32 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    for (int i = 0; i < 60; i++)
        OK(cuLaunchHostFunc(a, pause_us, (void *)(uintptr_t)2000));
    OK(cuMemcpyHtoDAsync_v2(p, host, MIB, a));
    for (int i = 0; i < 10; i++)
        OK(cuMemcpyHtoDAsync_v2(p + 16 * MIB, host, 16 * MIB, b));
    OK(cuStreamSynchronize(b));
    return 0;
}

/* ---- reports ---- */

static int scene_report(void)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    void *host;
    CUstream a = stream(), b = stream();
    OK(cuMemAlloc_v2(&p, 8 * MIB));
    OK(cuMemAllocHost_v2(&host, 4 * MIB));
    for (int i = 0; i < 3; i++) {
        launch_fill(f, 132, p, a);
        OK(cuMemcpyHtoDAsync_v2(p + 4 * MIB, host, 4 * MIB, b));
    }
    OK(cuCtxSynchronize());
    return 0;
}

SCENES({"mixed", scene_mixed}, {"host functions", scene_host_functions}, {"report", scene_report})

Test(vtime, a_single_threaded_job_takes_the_same_nanoseconds_twenty_times)
{
    char first[128] = "";
    for (int i = 0; i < 20; i++) {
        struct hr_test_result r = play("SIM_SCENE=mixed", NULL);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
        cr_assert(strlen(r.out) > 10 && strlen(r.out) < sizeof first, "%s", r.out);
        if (!i)
            strcpy(first, r.out);
        cr_assert_str_eq(r.out, first, "run %d", i);
        hr_test_result_finish(&r);
    }
}

Test(vtime, a_row_of_slow_host_functions_is_not_given_up)
{
    char report[64];
    snprintf(report, sizeof report, "SIMGPU_REPORT=/tmp/simgpu-vtime-%d.json", (int)getpid());
    struct hr_test_result r = play("SIM_SCENE=host functions", (const char *[]){report, NULL});
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    hr_test_result_finish(&r);
    const char *text = slurp(strchr(report, '=') + 1);
    unlink(strchr(report, '=') + 1);
    cr_assert_eq(reported(text, "given_up"), 0, "%s", text);
}

/* ---- questions ---- */

Test(vtime, a_question_is_answered_by_virtual_time_and_asking_again_ends)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUdeviceptr p;
    void *host;
    CUevent e, first;
    float ms;
    CUstream s = stream();
    OK(cuMemAlloc_v2(&p, 16 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    OK(cuEventCreate(&e, 0));
    OK(cuEventCreate(&first, 0));
    OK(cuEventRecord(first, s));
    for (int i = 0; i < 10; i++)
        OK(cuMemcpyHtoDAsync_v2(p, host, 16 * MIB, s)); /* 3.4 ms of the link */
    OK(cuEventRecord(e, s));
    uint64_t begin = now_ns();
    GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&ms, first, e));
    unsigned asked = 0;
    while (cuEventQuery(e) == CUDA_ERROR_NOT_READY)
        cr_assert_lt(++asked, 200);
    cr_assert_gt(asked, 3);
    OK(cuStreamQuery(s));
    OK(cuEventElapsedTime_v2(&ms, first, e));
    double waited = (double)(now_ns() - begin) * 1e-6;
    cr_assert(waited > 0.9 * (double)ms && waited < 1.02 * (double)ms, "%f ms, the work takes %f", waited, (double)ms);
}

Test(vtime, questions_and_waits_pass_by_a_kernel_that_spins, .timeout = 60)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUfunction spin = kernel("spin"), fill = kernel("fill");
    uint32_t *flag;
    CUdeviceptr p, none = 0;
    CUevent e;
    void *host;
    CUstream held = stream(), other = stream();
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAllocHost_v2((void **)&flag, 4096));
    OK(cuMemAllocHost_v2(&host, MIB));
    OK(cuEventCreate(&e, 0));
    *flag = 0;
    CUdeviceptr flag_va = (CUdeviceptr)(uintptr_t)flag;
    launch(spin, 1, 1, held, (void *[]){&flag_va, &none, &none});
    OK(cuEventRecord(e, held));
    for (int i = 0; i < 100; i++) {
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
        GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e));
        OK(cuMemcpyHtoDAsync_v2(p, host, MIB, other));
        launch_fill(fill, 20, p, other);
        if (i % 10 == 0)
            launch_fill(fill, 500, p, other); /* more than the SMs that are left */
        OK(cuStreamSynchronize(other));
    }
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(held));
    OK(cuEventQuery(e));
}

Test(vtime, work_behind_a_host_function_that_waits_does_not_hold_up_other_streams, .timeout = 60)
{
    machine_with_context("h200,vram=64M,host=64M");
    static struct gate gate = GATE_INIT;
    CUdeviceptr p;
    void *host;
    CUstream held = stream(), other = stream();
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAllocHost_v2(&host, MIB));
    OK(cuLaunchHostFunc(held, gate_wait, &gate));
    gate_await_arrival(&gate);
    for (int i = 0; i < 200; i++) {
        OK(cuMemcpyHtoDAsync_v2(p, host, MIB, held)); /* needs the engine, before the other one */
        OK(cuMemcpyHtoDAsync_v2(p + 2 * MIB, host, MIB, other));
        OK(cuStreamSynchronize(other));
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
    }
    gate_open(&gate);
    OK(cuStreamSynchronize(held));
    OK(cuStreamQuery(held));
}

#if defined(__SANITIZE_THREAD__)
#define PENDING 20000
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PENDING 20000
#endif
#endif
#ifndef PENDING
#define PENDING 100000
#endif

Test(vtime, waiting_beside_many_pending_kernels_takes_no_square_of_them, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    CUstream full = stream(), other = stream();
    OK(cuMemAlloc_v2(&p, MIB));
    for (int i = 0; i < PENDING; i++)
        launch_fill(f, 1, p, full);
    launch_fill(f, 200, p, other); /* any of those before may take its SMs */
    OK(cuStreamSynchronize(other));
    OK(cuStreamSynchronize(full));
}

static void note_time(void *at)
{
    *(uint64_t *)at = now_ns();
}

Test(vtime, a_host_function_runs_at_its_place_in_time)
{
    machine_with_context("h200,vram=64M,host=64M");
    static uint64_t seen_ns;
    CUdeviceptr p;
    void *host;
    CUstream s = stream();
    OK(cuMemAlloc_v2(&p, 16 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    uint64_t begin = now_ns();
    OK(cuMemcpyHtoDAsync_v2(p, host, 16 * MIB, s));
    OK(cuLaunchHostFunc(s, note_time, &seen_ns));
    OK(cuStreamSynchronize(s));
    double copy_ns = 16 * MIB / 50.0;
    cr_assert_gt(seen_ns - begin, copy_ns);
    cr_assert_geq(now_ns(), seen_ns);
}

Test(vtime, a_host_function_sees_the_end_of_a_copy_that_waited_for_the_engine)
{
    machine_with_context("h200,vram=64M,host=64M");
    static uint64_t seen_ns;
    CUfunction f = kernel("fill");
    CUdeviceptr p;
    void *host;
    CUevent begin, end;
    CUstream a = stream(), b = stream();
    OK(cuMemAlloc_v2(&p, 32 * MIB));
    OK(cuMemAllocHost_v2(&host, 16 * MIB));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    uint64_t start_ns = now_ns();
    OK(cuEventRecord(begin, b));
    for (int i = 0; i < 8; i++) /* long in reality */
        launch_fill(f, 10000, p, a);
    OK(cuMemcpyHtoDAsync_v2(p, host, 16 * MIB, a));
    for (int i = 0; i < 8; i++) /* the copy before has its place between two of these, once it is known */
        OK(cuMemcpyHtoDAsync_v2(p + 16 * MIB, host, 8 * MIB, b));
    OK(cuEventRecord(end, b));
    OK(cuLaunchHostFunc(b, note_time, &seen_ns));
    OK(cuCtxSynchronize());
    double ends = seconds_between(begin, end) * 1e9;
    cr_assert_gt((double)(seen_ns - start_ns), ends, "it runs after what stands before it in its stream");
}

/* ---- reports ---- */

static const char *member(const char *text, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = strstr(text, key);
    cr_assert_not_null(at, "%s in %s", name, text);
    return at + strlen(key);
}

Test(vtime, the_report_and_the_timeline_tell_what_ran_when)
{
    char report[64], timeline[64];
    snprintf(report, sizeof report, "SIMGPU_REPORT=/tmp/simgpu-vtime-%d.json", (int)getpid());
    snprintf(timeline, sizeof timeline, "SIMGPU_TIMELINE=/tmp/simgpu-line-%d.json", (int)getpid());
    const char *env[] = {report, timeline, NULL};
    struct hr_test_result r = play("SIM_SCENE=report", env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    hr_test_result_finish(&r);
    const char *text = slurp(strchr(report, '=') + 1);
    unlink(strchr(report, '=') + 1);
    long long total = strtoll(member(text, "virtual_time_ns"), NULL, 10), sms = strtoll(member(text, "sms"), NULL, 10);
    long long h2d = strtoll(member(text, "h2d"), NULL, 10),
              both = strtoll(member(text, "compute_and_copy_ns"), NULL, 10);
    cr_assert(sms > 3000 && sms < total, "%lld of %lld", sms, total);
    cr_assert(h2d > 3 * 83886 && h2d < total, "%lld", h2d);
    cr_assert(both > 0 && both <= sms, "%lld", both);
    cr_assert_not_null(strstr(text, "{\"name\": \"fill\", \"count\": 3, \"ns\": "), "%s", text);
    cr_assert_not_null(strstr(text, "\"launch\": {\"count\": 3, \"ns\": 7500}"), "%s", text);
    text = slurp(strchr(timeline, '=') + 1);
    unlink(strchr(timeline, '=') + 1);
    int kernels = 0, copies = 0;
    long long end = 0;
    for (const char *at = text; (at = strstr(at, "{\"gpu\": 0, ")); at++) {
        kernels += strncmp(member(at, "engine"), "\"sms\"", 5) == 0;
        copies += strncmp(member(at, "engine"), "\"h2d\"", 5) == 0;
        end = strtoll(member(at, "end_ns"), NULL, 10);
        cr_assert_lt(strtoll(member(at, "start_ns"), NULL, 10), end);
        cr_assert_leq(end, total);
    }
    cr_assert_eq(kernels, 3);
    cr_assert_eq(copies, 3);
}

Test(vtime, a_report_that_goes_to_a_link_leaves_it_there)
{
    char link[64], target[64], settings[2][96];
    struct stat at;
    snprintf(link, sizeof link, "/tmp/simgpu-link-%d", (int)getpid());
    snprintf(target, sizeof target, "/tmp/simgpu-target-%d", (int)getpid());
    cr_assert_eq(symlink(target, link), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(settings[i], sizeof settings[i], "%s=%s", i ? "SIMGPU_TIMELINE" : "SIMGPU_REPORT", link);
        struct hr_test_result r = play("SIM_SCENE=report", (const char *[]){settings[i], NULL});
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
        hr_test_result_finish(&r);
        cr_expect(lstat(link, &at) == 0 && S_ISLNK(at.st_mode), "%s", settings[i]);
        cr_expect_not_null(strstr(slurp(target), "virtual_time_ns"), "%s", settings[i]);
        unlink(target);
    }
    unlink(link);
}
