/*
 * Every driver call that a move, a first backing or a release makes fails once. The calls are counted in the library's own table
 * of driver functions, so that each single one is hit; the same once more through simgpu's SIMGPU_FAIL.
 */
#include "core_test.h"

#include "residency/gpu.h"
#include "residency/quarantine.h"
#include "space/ledger.h"
#include "support/sanitizer.h"

#define BUFFERS 4
#define BYTES (6 * MIB)
#define WORDS ((uint32_t)(BYTES / 2048))

static size_t real_free(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    OK(hr_drv.cuMemGetInfo_v2(&free_bytes, &total_bytes));
    return free_bytes;
}

static struct hr_driver real; /* the table before anything was put in front of it */
static _Atomic(uint64_t) calls, fail_at;
static CUresult failure;
static bool keeps_failing;

/* Counts a call of the function under test; true = this is the one that fails. */
static bool fails(void)
{
    uint64_t call = atomic_fetch_add(&calls, 1) + 1, at = atomic_load(&fail_at);
    return call == at || (keeps_failing && call > at);
}

#define FRONT(name, parameters, arguments)                                                                             \
    static CUresult front_##name parameters                                                                            \
    {                                                                                                                  \
        return fails() ? failure : real.name arguments;                                                                \
    }
FRONT(cuMemCreate, (CUmemGenericAllocationHandle * h, size_t n, const CUmemAllocationProp *p, unsigned long long f),
      (h, n, p, f))
FRONT(cuMemMap, (CUdeviceptr p, size_t n, size_t o, CUmemGenericAllocationHandle h, unsigned long long f),
      (p, n, o, h, f))
FRONT(cuMemUnmap, (CUdeviceptr p, size_t n), (p, n))
FRONT(cuMemSetAccess, (CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t c), (p, n, d, c))
FRONT(cuMemRelease, (CUmemGenericAllocationHandle h), (h))
FRONT(cuMemAddressReserve, (CUdeviceptr * p, size_t n, size_t a, CUdeviceptr w, unsigned long long f), (p, n, a, w, f))
FRONT(cuMemHostAlloc, (void **p, size_t n, unsigned f), (p, n, f))
FRONT(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))
FRONT(cuStreamSynchronize, (CUstream s), (s))
FRONT(cuStreamQuery, (CUstream s), (s))
FRONT(cuStreamCreate, (CUstream * s, unsigned f), (s, f))
FRONT(cuCtxGetCurrent, (CUcontext * c), (c))
FRONT(cuCtxPushCurrent_v2, (CUcontext c), (c))

#define ROW(name)                                                                                                      \
    {                                                                                                                  \
#name, offsetof(struct hr_driver, name), (void *)front_##name                                                  \
    }
static const struct {
    const char *name;
    size_t offset;
    void *front;
} rows[] = {
    ROW(cuMemCreate),         ROW(cuMemMap),       ROW(cuMemUnmap),          ROW(cuMemSetAccess),
    ROW(cuMemRelease),        ROW(cuMemHostAlloc), ROW(cuMemAddressReserve), ROW(cuMemcpyAsync),
    ROW(cuStreamSynchronize), ROW(cuStreamQuery),  ROW(cuStreamCreate),      ROW(cuCtxGetCurrent),
    ROW(cuCtxPushCurrent_v2),
};
#define ROWS (sizeof rows / sizeof *rows)

static void put_front(size_t row, uint64_t at)
{
    atomic_store(&calls, 0);
    atomic_store(&fail_at, at);
    memcpy((char *)&hr_drv + rows[row].offset, &rows[row].front, sizeof(void *));
}
/* Takes it away; true = the failure happened. */
static bool take_front(size_t row)
{
    memcpy((char *)&hr_drv + rows[row].offset, (char *)&real + rows[row].offset, sizeof(void *));
    return atomic_load(&calls) >= atomic_load(&fail_at);
}

/* --- a job whose every call may be refused once ------------------------------------------------------------------- */

static CUdeviceptr buffer[BUFFERS];
static uint32_t expected[BUFFERS];
static bool refused; /* by an error that the failure explains */

/* Makes a call of the job; refused, it is made again, and then it has to work. */
#define JOB(call)                                                                                                      \
    do {                                                                                                               \
        CUresult job_ = (call);                                                                                        \
        if (job_ != CUDA_SUCCESS) {                                                                                    \
            CHECK(!refused &&                                                                                          \
                      (job_ == failure || job_ == CUDA_ERROR_OUT_OF_MEMORY || job_ == CUDA_ERROR_INVALID_CONTEXT),     \
                  "%s gave %d", #call, (int)job_);                                                                     \
            refused = true;                                                                                            \
            OK(call);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void begin(void)
{
    for (int i = 0; i < BUFFERS; i++) {
        JOB(cuMemAlloc_v2(&buffer[i], BYTES));
        expected[i] = 100 + (uint32_t)i;
        JOB(cuMemsetD32_v2(buffer[i], expected[i], BYTES / 4));
    }
    JOB(cuCtxSynchronize());
}

static void add(int i)
{
    JOB(stride_add(buffer[i], 512, WORDS, 1, NULL));
    expected[i]++;
}

/* One word in 512 was added to. */
static void verify(const char *when)
{
    static uint32_t seen[BYTES / 4];
    for (int i = 0; i < BUFFERS; i++) {
        uint32_t right[512];
        for (int k = 0; k < 512; k++)
            right[k] = k ? 100 + (uint32_t)i : expected[i];
        JOB(cuMemcpyDtoH_v2(seen, buffer[i], BYTES));
        for (uint32_t k = 0; k < BYTES / 4; k += 512)
            CHECK(memcmp(seen + k, right, sizeof right) == 0, "%s: buffer %d is wrong at word %u", when, i, k);
    }
}

/* The moves that follow from launches, and forced ones. */
static void work(void)
{
    struct hr_thread *t = hr_thread_self();
    for (int i = 0; i < BUFFERS; i++)
        add(i);
    JOB(cuCtxSynchronize());
    hr_access_evict_range(t, buffer[3], BYTES);
    hr_access_restore_range(t, buffer[3], BYTES);
    add(3);
    add(0);
    JOB(cuCtxSynchronize());
}

static void end(void)
{
    for (int i = 0; i < BUFFERS; i++)
        JOB(cuMemFree_v2(buffer[i]));
    JOB(cuCtxSynchronize());
}

/* Nothing is in use, and all that the pools hold goes back to the driver: it has as much free as at the start. */
static void nothing_leaked(size_t free_at_start, const char *when)
{
    for (int i = 0; i < 10 && hr_quarantine_any(); i++)
        OK(cuCtxSynchronize());
    hr_space_flush_thread(hr_thread_self());
    CHECK(hr_tier_vram.in_use_chunks(0) == 0, "%s: %zu chunks of VRAM", when, hr_tier_vram.in_use_chunks(0));
    CHECK(hr_tier_host.in_use_chunks(0) == 0, "%s: %zu chunks of host memory", when, hr_tier_host.in_use_chunks(0));
    CHECK(hr_ledger_charged(0) == 0, "%s: %zu bytes charged", when, hr_ledger_charged(0));
    hr_tier_vram.trim(0, SIZE_MAX);
    CHECK(real_free() == free_at_start, "%s: %zu bytes of VRAM are gone", when, free_at_start - real_free());
}

static void start(const char *deny)
{
    machine("h200,vram=24M,host=512M", deny);
    kernel("stride_add");
}

/* --- each call, in each place ------------------------------------------------------------------------------------- */

enum phase { BEGIN, WORK, END, PHASES };
static const char *const phase_names[] = {"first backing", "moves", "release"};

/* The whole job with one call failing in one phase; false = the phase makes fewer calls of that function. */
static bool run_once(size_t row, enum phase phase, uint64_t at, size_t free_at_start)
{
    static void (*const parts[])(void) = {begin, work, end};
    char when[128];
    bool hit = false;
    snprintf(when, sizeof when, "call %llu of %s failed in %s", (unsigned long long)at, rows[row].name,
             phase_names[phase]);
    refused = false;
    for (int p = BEGIN; p < PHASES; p++) {
        if (p == END)
            verify(when);
        if (p == (int)phase)
            put_front(row, at);
        parts[p]();
        if (p == (int)phase)
            hit = take_front(row);
    }
    nothing_leaked(free_at_start, when);
    return hit;
}

#define FEW (SANITIZED_THREADS ? 2 : 6)
static void every_call_fails_once(const char *deny)
{
    start(deny);
    failure = CUDA_ERROR_OUT_OF_MEMORY;
    begin(); /* binds every function that is used */
    work();
    verify("without a failure");
    end();
    hr_tier_vram.trim(0, SIZE_MAX);
    size_t free_at_start = real_free();
    memcpy(&real, &hr_drv, sizeof real);
    unsigned hits = 0;
    for (size_t row = 0; row < ROWS; row++) {
        for (int phase = 0; phase < PHASES; phase++) {
            /* the first ones each, then ever larger steps */
            for (uint64_t at = 1; at < 200; at += is_long() || at < FEW ? 1 : SANITIZED_THREADS ? at : at / 3) {
                failure = at % 2 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY;
                if (!run_once(row, (enum phase)phase, at, free_at_start))
                    break;
                hits++;
            }
        }
    }
    CHECK(hits > (SANITIZED_THREADS ? 30 : 60), "%u failures happened", hits);
}
static void every_call_fails_once_mapped(void)
{
    every_call_fails_once("");
}
static void every_call_fails_once_unmapped(void)
{
    every_call_fails_once("host_numa");
}

Test(fail, every_driver_call_fails_once_and_nothing_is_lost_or_leaked, .timeout = 900)
{
    char *report = apart(every_call_fails_once_mapped);
    was_safe(report);
    free(report);
}

Test(fail, the_same_where_host_memory_cannot_be_mapped, .timeout = 900)
{
    char *report = apart(every_call_fails_once_unmapped);
    was_safe(report);
    free(report);
}

/* --- the same through simgpu ------------------------------------------------------------------------------------- */

static char fail_setting[64];
static void job_with_failures(void)
{
    setenv("SIMGPU_FAIL", fail_setting, 1);
    failure = CUDA_ERROR_OUT_OF_MEMORY;
    start("");
    begin();
    work();
    verify(fail_setting);
    end();
    CHECK(hr_tier_vram.in_use_chunks(0) == 0 && hr_tier_host.in_use_chunks(0) == 0, "%s: memory stays in use",
          fail_setting);
}

Test(fail, the_n_th_call_of_each_function_fails_in_simgpu, .timeout = 300)
{
    static const char *const functions[] = {"cuMemCreate",  "cuMemMap",      "cuMemUnmap",          "cuMemSetAccess",
                                            "cuMemRelease", "cuMemcpyAsync", "cuStreamSynchronize", "cuStreamQuery"};
    static const int numbers[] = {2, 5, 11};
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            snprintf(fail_setting, sizeof fail_setting, "%s:%d", functions[f], numbers[n]);
            char *report = apart(job_with_failures);
            was_safe(report);
            free(report);
        }
    }
}

/* --- what must not be mistaken ------------------------------------------------------------------------------------ */

static void query_fails_under_a_kernel(void)
{
    start("");
    CUstream s;
    CUdeviceptr p;
    kernel("slow_affine");
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&p, BYTES));
    OK(cuMemsetD32_v2(p, 1, BYTES / 4));
    OK(cuCtxSynchronize());
    hr_access_evict_range(hr_thread_self(), p, BYTES);
    hr_access_restore_range(hr_thread_self(), p, BYTES);
    memcpy(&real, &hr_drv, sizeof real);
    static const char *const doubtful[] = {"cuStreamQuery", "cuCtxPushCurrent_v2", "cuCtxGetCurrent"};
    keeps_failing = true;
    for (uint64_t n = 0; n < 12; n++) {
        size_t row = 0;
        while (strcmp(rows[row].name, doubtful[n % 3]) != 0)
            row++;
        failure = n % 2 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY;
        OK(slow_affine(p, 3, 1, 128, 4000, s));
        put_front(row, 1 + n / 3);
        hr_access_evict_range(hr_thread_self(), p, BYTES);
        take_front(row);
        OK(cuStreamSynchronize(s));
        hr_access_restore_range(hr_thread_self(), p, BYTES);
    }
}

/* Shown failing by taking any error for an answer: a kernel lost its memory. */
Test(fail, K39_a_question_that_fails_does_not_mean_that_the_device_is_at_rest, .timeout = 120)
{
    char *report = apart(query_fails_under_a_kernel);
    was_safe(report);
    free(report);
}

/* --- a restore that fails for good -------------------------------------------------------------------------------- */

static _Atomic(bool) refuse_maps;
static CUresult refusing_map(CUdeviceptr p, size_t n, size_t o, CUmemGenericAllocationHandle h, unsigned long long f)
{
    return atomic_load(&refuse_maps) ? CUDA_ERROR_UNKNOWN : real.cuMemMap(p, n, o, h, f);
}

/* While the driver refuses every map, a move cannot put the old mapping back either. */
static void restore_fails(void)
{
    start("");
    CUdeviceptr p;
    uint32_t seen = 0;
    OK(cuMemAlloc_v2(&p, BYTES));
    OK(cuMemsetD32_v2(p, 42, BYTES / 4));
    OK(cuCtxSynchronize());
    hr_access_evict_range(hr_thread_self(), p, BYTES);
    hr_access_restore_range(hr_thread_self(), p, BYTES);
    memcpy(&real, &hr_drv, sizeof real);
    hr_drv.cuMemMap = refusing_map;
    atomic_store(&refuse_maps, true);
    CHECK(hr_access_evict_range(hr_thread_self(), p, BYTES) == 0);
    GIVES(CUDA_ERROR_UNKNOWN,
          stride_add(p, 512, WORDS, 1, NULL)); /* the error comes from the call that needs the memory */
    GIVES(CUDA_ERROR_UNKNOWN, cuMemcpyDtoH_v2(&seen, p, 4));
    CHECK(seen == 0);
    atomic_store(&refuse_maps, false);
    OK(stride_add(p, 512, WORDS, 1, NULL)); /* nothing was lost */
    OK(cuMemcpyDtoH_v2(&seen, p + BYTES - 2048, 4));
    CHECK(seen == 43, "%u", seen);
    OK(cuMemFree_v2(p));
    OK(cuCtxSynchronize());
    CHECK(hr_tier_vram.in_use_chunks(0) == 0 && hr_tier_host.in_use_chunks(0) == 0);
}

/* Shown failing by ignoring what making the working set accessible returned. */
Test(fail, K30_a_restore_that_fails_is_an_error_at_the_call_and_the_process_lives, .timeout = 60)
{
    char *report = apart(restore_fails);
    was_safe(report);
    free(report);
}
