/* Moves between GPUs beside what the job does: who is told of a link that failed, and contexts that go meanwhile. */
#include "lending.h"

#include <sched.h>

#include "residency/relay.h"
#include "residency/track.h"
#include "residency/transfer.h"
#include "support/sanitizer.h"

enum { FAR = 8 * MIB, NEAR = 768 * 1024 };

/* GPU 1 lends to GPU 0; GPUs 2 and 3, which need their memory themselves, pass on what goes there. */
static void lender_and_relays(void)
{
    machine_with("dgx1v,vram=128M,host=1G", "routers", 15 | 1 << 6);
    buffer_bytes = 16 * MIB;
    for (int g = 2; g < 4; g++)
        allocate_on(g, hr_tier_vram_limit((unsigned)g) * CHUNK - 2 * FAR);
    fill_gpu_0(1.6);
    use_all();
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(1) > 0 && hr_tier_peer.in_use_chunks(2) + hr_tier_peer.in_use_chunks(3) == 0);
}

static int device_here(void)
{
    CUdevice here = -1;
    return hr_drv.cuCtxGetDevice(&here) == CUDA_SUCCESS ? here : -1;
}

static __typeof__(hr_drv.cuMemcpyDtoDAsync_v2) real_copy;
static _Thread_local bool is_job; /* this thread does what the job does meanwhile */
static bool armed;                /* the next copy of a move by GPU 2 is the one */
static void *(*meanwhile)(void *);

static void run_meanwhile(void)
{
    pthread_t thread;
    armed = false;
    CHECK(pthread_create(&thread, NULL, meanwhile, NULL) == 0);
    pthread_join(thread, NULL);
}

static CUdeviceptr from_2, to_6;
static CUstream stream_2;
static void pair_2_6(size_t bytes)
{
    from_2 = allocate_on(2, bytes);
    to_6 = allocate_on(6, bytes);
    put(2, from_2, bytes, 71);
    put(6, to_6, bytes, 72);
    OK(cuCtxSetCurrent(context[2]));
    OK(cuStreamCreate(&stream_2, CU_STREAM_NON_BLOCKING));
}

/* --- an error that is not the move's ---------------------------------------------------------------------------------- */

static volatile uint32_t *word;
static CUdeviceptr one;

/* The driver's copy fails, and ends, and nobody asks. */
static void *copy_fails_unasked(void *arg)
{
    is_job = true;
    OK(cuCtxSetCurrent(context[2]));
    OK(cuMemcpyPeerAsync(to_6, context[6], from_2, context[2], NEAR, stream_2));
    OK(cuMemcpyDtoHAsync_v2((void *)word, one, 4, stream_2));
    while (*word == 0)
        sched_yield();
    return arg;
}

static CUresult CUDAAPI copy_and_meanwhile(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    if (armed && !is_job && device_here() == 2)
        run_meanwhile();
    return real_copy(to, from, bytes, s);
}

static void job_is_told(void)
{
    lender_and_relays();
    OK(cuCtxSetCurrent(context[2]));
    OK(cuCtxEnablePeerAccess(context[6], 0));
    pair_2_6(NEAR);
    one = allocate_on(2, 4);
    OK(cuMemsetD32_v2(one, 1, 1));
    OK(cuMemHostAlloc((void **)&word, 4, CU_MEMHOSTALLOC_PORTABLE));
    *word = 0;
    OK(cuCtxSynchronize());
    meanwhile = copy_fails_unasked;
    real_copy = hr_drv.cuMemcpyDtoDAsync_v2;
    hr_drv.cuMemcpyDtoDAsync_v2 = copy_and_meanwhile;
    armed = true;
    unsigned told = 0;
    for (unsigned i = 0; i < work.count; i++) { /* whichever waits first */
        add(0, work.at[i], BUFFER, 1, NULL);
        told += cuCtxSynchronize() == CUDA_ERROR_NVLINK_UNCORRECTABLE;
    }
    work.added++;
    CHECK(!armed, "no move went over GPU 2");
    OK(cuCtxSetCurrent(context[2]));
    told += cuStreamSynchronize(stream_2) == CUDA_ERROR_NVLINK_UNCORRECTABLE;
    CHECK(told == 1, "the job was told %u times", told);
    OK(cuStreamSynchronize(stream_2));
    use_all();
    all_hold();
    CHECK(hr_lock_violations() == 0);
}

Test(migrate, the_job_hears_of_a_link_that_failed_under_its_copy_though_a_move_asked_first, .timeout = 120)
{
    setenv("SIMGPU_LINK", "fail:2.5@100000", 1);
    free(apart(job_is_told));
}

/* --- the move's error, told to the job -------------------------------------------------------------------------------- */

/* Of what GPU 2 passes on for a move one copy is lost, and whoever asks first in that context is told. */
static __typeof__(hr_drv.cuStreamSynchronize) real_wait;
static __typeof__(hr_drv.cuStreamQuery) real_query;
static _Atomic(bool) untold;
static bool job_copies;

static void *asks(void *arg)
{
    is_job = true;
    OK(cuCtxSetCurrent(context[2]));
    if (job_copies) {
        OK(cuMemcpyPeerAsync(to_6, context[6], from_2, context[2], FAR, stream_2));
        CHECK(hr_transfer_any());
    }
    CUresult r = cuStreamSynchronize(stream_2);
    CHECK(r == CUDA_SUCCESS || !job_copies, "a copy that was made again, if it was lost, gave %d", (int)r);
    CHECK(!atomic_load(&untold));
    return arg;
}

static CUresult CUDAAPI lose_one(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    if (!armed || is_job || device_here() != 2)
        return real_copy(to, from, bytes, s);
    atomic_store(&untold, true);
    run_meanwhile();
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI wait_and_tell(CUstream s)
{
    CUresult r = real_wait(s);
    return r == CUDA_SUCCESS && device_here() == 2 && atomic_exchange(&untold, false) ? CUDA_ERROR_NVLINK_UNCORRECTABLE
                                                                                      : r;
}

static CUresult CUDAAPI query_and_tell(CUstream s)
{
    return device_here() == 2 && atomic_exchange(&untold, false) ? CUDA_ERROR_NVLINK_UNCORRECTABLE : real_query(s);
}

static void move_is_right(void)
{
    lender_and_relays();
    pair_2_6(FAR);
    meanwhile = asks;
    real_copy = hr_drv.cuMemcpyDtoDAsync_v2;
    real_wait = hr_drv.cuStreamSynchronize;
    real_query = hr_drv.cuStreamQuery;
    hr_drv.cuMemcpyDtoDAsync_v2 = lose_one;
    hr_drv.cuStreamSynchronize = wait_and_tell;
    hr_drv.cuStreamQuery = query_and_tell;
    for (int round = 0; round < 3; round++) {
        armed = true;
        use_all();
        CHECK(!armed, "no move went over GPU 2");
    }
    all_hold();
    if (job_copies)
        holds(6, to_6, FAR, 71, 0);
    CHECK(hr_lock_violations() == 0);
}

Test(migrate, what_a_move_lost_is_noticed_though_the_job_was_told_first, .timeout = 120)
{
    for (int i = 0; i < 2; i++) {
        job_copies = i == 0;
        free(apart(move_is_right));
    }
}

/* --- contexts that go ------------------------------------------------------------------------------------------------- */

static _Atomic(unsigned) named_dead, over_2;
static _Atomic(bool) moves_over;
static __typeof__(hr_drv.cuEventRecord) real_record;
static __typeof__(hr_drv.cuStreamWaitEvent) real_wait_event;
static __typeof__(hr_drv.cuCtxSetCurrent) real_set;

static CUresult note(CUresult r)
{
    if (r == CUDA_ERROR_INVALID_HANDLE || r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        atomic_fetch_add(&named_dead, 1);
    return r;
}

static CUresult CUDAAPI noted_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    if (!is_job && device_here() == 2)
        atomic_fetch_add(&over_2, 1);
    return note(real_copy(to, from, bytes, s));
}
static CUresult CUDAAPI noted_record(CUevent e, CUstream s)
{
    return note(real_record(e, s));
}
static CUresult CUDAAPI noted_wait_event(CUstream s, CUevent e, unsigned flags)
{
    return note(real_wait_event(s, e, flags));
}
static CUresult CUDAAPI noted_wait(CUstream s)
{
    return note(real_wait(s));
}
static CUresult CUDAAPI noted_set(CUcontext c)
{
    return note(real_set(c));
}

static void *comes_and_goes(void *arg)
{
    unsigned *rounds = arg;
    is_job = true;
    while (!atomic_load(&moves_over)) {
        unsigned before = atomic_load(&over_2);
        while (atomic_load(&over_2) == before && !atomic_load(&moves_over))
            sched_yield();
        OK(cuCtxDestroy_v2(context[2]));
        OK(cuCtxCreate_v2(&context[2], 0, 2));
        ++*rounds;
    }
    return NULL;
}

static void relays_end(void)
{
    unsigned rounds = 0;
    pthread_t thread;
    lender_and_relays();
    real_copy = hr_drv.cuMemcpyDtoDAsync_v2;
    real_record = hr_drv.cuEventRecord;
    real_wait_event = hr_drv.cuStreamWaitEvent;
    real_wait = hr_drv.cuStreamSynchronize;
    real_set = hr_drv.cuCtxSetCurrent;
    hr_drv.cuMemcpyDtoDAsync_v2 = noted_copy;
    hr_drv.cuEventRecord = noted_record;
    hr_drv.cuStreamWaitEvent = noted_wait_event;
    hr_drv.cuStreamSynchronize = noted_wait;
    hr_drv.cuCtxSetCurrent = noted_set;
    CHECK(pthread_create(&thread, NULL, comes_and_goes, &rounds) == 0);
    for (int i = 0; i < 8; i++)
        use_all();
    atomic_store(&moves_over, true);
    pthread_join(thread, NULL);
    printf("%u contexts ended, %u calls named what had\n", rounds, atomic_load(&named_dead));
    CHECK(rounds > 0 && atomic_load(&named_dead) == 0, "%u contexts ended, %u calls named what had", rounds,
          atomic_load(&named_dead));
    CHECK(hr_stat_sum(HR_STAT_moves_failed) == 0);
    all_hold();
    CHECK(hr_lock_violations() == 0);
}

Test(migrate, a_context_may_end_while_moves_go_over_its_gpu, .timeout = 240)
{
    free(apart(relays_end));
}

/* --- calls that fail -------------------------------------------------------------------------------------------------- */

static struct hr_driver real; /* the table before anything was put in front of it */
static _Atomic(uint64_t) calls, fail_at;
static CUresult failure;

static bool in_launch; /* of the job, which makes the moves */
static bool fails(void)
{
    return in_launch && atomic_fetch_add(&calls, 1) + 1 == atomic_load(&fail_at);
}

#define FRONT(name, parameters, arguments)                                                                             \
    static CUresult CUDAAPI front_##name parameters                                                                    \
    {                                                                                                                  \
        return fails() ? failure : real.name arguments;                                                                \
    }
FRONT(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))
FRONT(cuStreamWaitEvent, (CUstream s, CUevent e, unsigned f), (s, e, f))
FRONT(cuEventRecord, (CUevent e, CUstream s), (e, s))
FRONT(cuEventCreate, (CUevent * e, unsigned f), (e, f))
FRONT(cuStreamCreate, (CUstream * s, unsigned f), (s, f))
FRONT(cuStreamSynchronize, (CUstream s), (s))
FRONT(cuCtxSetCurrent, (CUcontext c), (c))
FRONT(cuCtxPushCurrent_v2, (CUcontext c), (c))
FRONT(cuMemAddressReserve, (CUdeviceptr * p, size_t n, size_t a, CUdeviceptr w, unsigned long long f), (p, n, a, w, f))
FRONT(cuMemCreate, (CUmemGenericAllocationHandle * h, size_t n, const CUmemAllocationProp *p, unsigned long long f),
      (h, n, p, f))
FRONT(cuMemMap, (CUdeviceptr p, size_t n, size_t o, CUmemGenericAllocationHandle h, unsigned long long f),
      (p, n, o, h, f))
FRONT(cuMemSetAccess, (CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t c), (p, n, d, c))
#define ROW(name)                                                                                                      \
    {                                                                                                                  \
#name, offsetof(struct hr_driver, name), (void *)front_##name                                                  \
    }
static const struct {
    const char *name;
    size_t offset;
    void *front;
} rows[] = {
    ROW(cuMemcpyDtoDAsync_v2), ROW(cuStreamWaitEvent),   ROW(cuEventRecord),       ROW(cuEventCreate),
    ROW(cuStreamCreate),       ROW(cuStreamSynchronize), ROW(cuCtxSetCurrent),     ROW(cuMemMap),
    ROW(cuMemSetAccess),       ROW(cuCtxPushCurrent_v2), ROW(cuMemAddressReserve), ROW(cuMemCreate),
};
#define ROWS (sizeof rows / sizeof *rows)

static CUresult add_to(unsigned i)
{
    uint64_t stride = CHUNK / 4;
    uint32_t n = (uint32_t)(BUFFER / CHUNK), by = 1;
    CUfunction f = function_on(0, "stride_add");
    void *params[] = {&work.at[i], &stride, &n, &by};
    in_launch = true;
    CUresult r = launch(f, 1, 32, NULL, params);
    if (r == failure && one_may_fail) {
        one_may_fail = false;
        r = launch(f, 1, 32, NULL, params);
    }
    in_launch = false;
    OK(r);
    return cuCtxSynchronize();
}

/* What moves use is made anew. */
static void from_scratch(void)
{
    hr_relay_trim(HR_MAX_GPUS);
    for (int g = 0; g < 4; g++) {
        OK(cuCtxSetCurrent(context[g]));
        hr_track_leave(context[g]);
    }
}

static size_t failing_row;

static void one_call_fails(void)
{
    lender_and_relays();
    real = hr_drv;
    atomic_store(&fail_at, 0);
    memcpy((char *)&hr_drv + rows[failing_row].offset, &rows[failing_row].front, sizeof(void *));
    from_scratch();
    atomic_store(&calls, 0);
    for (unsigned i = 0; i < work.count; i++)
        OK(add_to(i));
    work.added++;
    uint64_t most = atomic_load(&calls);
    unsigned hit = 0;
    for (uint64_t n = 1; n <= most; n += is_long() ? 1 + n / 2 : (SANITIZED_THREADS ? 63 : 7) * n + 1) {
        failure = n % 3 == 0   ? CUDA_ERROR_UNKNOWN
                  : n % 3 == 1 ? CUDA_ERROR_OUT_OF_MEMORY
                               : CUDA_ERROR_NVLINK_UNCORRECTABLE;
        from_scratch();
        one_may_fail = true;
        atomic_store(&calls, 0);
        atomic_store(&fail_at, n);
        for (unsigned i = 0; i < work.count; i++) {
            CUresult r = add_to(i);
            CHECK(r == CUDA_SUCCESS || (r == failure && one_may_fail), "%s %llu: %d", rows[failing_row].name,
                  (unsigned long long)n, (int)r);
            one_may_fail = one_may_fail && r == CUDA_SUCCESS;
        }
        work.added++;
        hit += atomic_load(&calls) >= n;
        atomic_store(&fail_at, 0);
        all_hold();
    }
    CHECK(hit > 0, "%s was called %llu times, and never failed", rows[failing_row].name, (unsigned long long)most);
    done();
}

Test(migrate, a_call_of_a_move_that_fails_loses_nothing, .timeout = 2400)
{
    for (failing_row = 0; failing_row < ROWS; failing_row += SANITIZED_THREADS && !is_long() ? 3 : 1)
        free(safely(one_call_fails));
}

/* Of the copies of moves nothing is under way any more once something else is begun after a failure. */
static CUstream used[64];
static unsigned used_count, too_early;
static bool has_failed, was_under_way; /* then */

static void note_begun(void)
{
    too_early += was_under_way;
}

static CUresult CUDAAPI followed_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    if (!in_launch)
        return real.cuMemcpyDtoDAsync_v2(to, from, bytes, s);
    note_begun();
    unsigned i = 0;
    while (i < used_count && used[i] != s)
        i++;
    CHECK(i < 64);
    used[i] = s;
    used_count += i == used_count;
    return real.cuMemcpyDtoDAsync_v2(to, from, bytes, s);
}

static CUresult CUDAAPI followed_host_copy(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    note_begun();
    return real.cuMemcpyDtoHAsync_v2(to, from, bytes, s);
}

static CUresult CUDAAPI followed_wait(CUstream s)
{
    for (unsigned i = 0; i < used_count; i++)
        if (used[i] == s)
            used[i] = used[--used_count];
    was_under_way = was_under_way && used_count > 0;
    return real.cuStreamSynchronize(s);
}

static CUresult CUDAAPI followed_push(CUcontext c)
{
    if (fails()) {
        has_failed = true;
        was_under_way = used_count > 0;
        return CUDA_ERROR_UNKNOWN;
    }
    return real.cuCtxPushCurrent_v2(c);
}

static void waits_whatever_fails(void)
{
    lender_and_relays();
    real = hr_drv;
    hr_drv.cuMemcpyDtoDAsync_v2 = followed_copy;
    hr_drv.cuMemcpyDtoHAsync_v2 = followed_host_copy;
    hr_drv.cuStreamSynchronize = followed_wait;
    hr_drv.cuCtxPushCurrent_v2 = followed_push;
    failure = CUDA_ERROR_UNKNOWN;
    for (unsigned n = 1; n <= 12; n++) {
        has_failed = false;
        one_may_fail = true;
        atomic_store(&calls, 0);
        atomic_store(&fail_at, n);
        for (unsigned i = 0; i < work.count; i++)
            add_to(i);
        work.added++;
        CHECK(has_failed && too_early == 0, "when call %u failed, %u copies were begun beside lost ones", n, too_early);
    }
    atomic_store(&fail_at, 0);
    hr_drv = real;
    done();
}

Test(migrate, what_is_under_way_is_waited_for_whatever_fails, .timeout = 120)
{
    free(safely(waits_whatever_fails));
}
