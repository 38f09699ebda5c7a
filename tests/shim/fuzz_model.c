/*
 * The fuzzer's program: fuzz_model [seconds=60] [seed=1] [threads=3] [host=mapped|denied] [commit=auto|lazy|both] [vram=32M]
 * [machine=h200] [gpus=1] [operations=N] [most=BYTES]. With more GPUs than one they are all peers as far as the machine lets them; each worker has one
 * of them, or, where there are fewer workers, takes them in turn, and one worker moves memory itself between its operations. It ends
 * after N operations, if that comes first. HEADROOM_FUZZ_SECONDS in the environment overrides `seconds`; with HEADROOM_TEST_LONG, long=N overrides both. SIMGPU_CHECK
 * makes simgpu look for what is undefined: it must find nothing. With commit=both two processes follow each other, for half of the time each. Ends with status 0, or 1 and what was found.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "residency/access.h"
#include "stats/stats.h"

struct fuzz fuzz = {.seed = 1, .workers = 3, .gpus = 1, .sets = 1, .most_bytes = SIZE_MAX, .host_mapped = true};
extern const unsigned char shim_ptx[];

static double seconds = 60, long_seconds;
static const char *commit_mode = "auto", *vram = "32M", *model = "h200";
static uint64_t operations_most = UINT64_MAX;

/* --- history and failure ------------------------------------------------------------------------------------------ */

#define HISTORY 4096
#define TAIL 40
static struct note {
    const char *what;
    unsigned worker;
    int a, b;
    size_t offset, bytes;
    uint64_t detail, number;
} history[HISTORY];
static pthread_mutex_t history_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t noted;

void fuzz_note(unsigned worker, const char *what, int a, int b, size_t offset, size_t bytes, uint64_t detail)
{
    pthread_mutex_lock(&history_lock);
    history[noted % HISTORY] = (struct note){what, worker, a, b, offset, bytes, detail, noted};
    noted++;
    pthread_mutex_unlock(&history_lock);
}

static void print_tail(const struct fuzz_buffer *buffer)
{
    uint64_t oldest = noted > HISTORY ? noted - HISTORY : 0, shown = 0, from = noted;
    while (from > oldest && shown < TAIL) {
        const struct note *n = &history[--from % HISTORY];
        shown += !buffer || n->a == (int)buffer->index || n->b == (int)buffer->index;
    }
    for (; from < noted; from++) {
        const struct note *n = &history[from % HISTORY];
        if (!buffer || n->a == (int)buffer->index || n->b == (int)buffer->index)
            fprintf(stderr, "  %8llu thread %u: %-14s buffers %d %d offset %zu bytes %zu (0x%llx)\n",
                    (unsigned long long)n->number, n->worker, n->what, n->a, n->b, n->offset, n->bytes,
                    (unsigned long long)n->detail);
    }
}

static void print_counts(FILE *f)
{
    fprintf(
        f,
        "seed %llu: %llu operations, %llu evictions, %llu restores, %llu bytes compared, %llu refused allocations; "
        "moved out %llu bytes, in %llu bytes, moves given up %llu, copies repeated %llu; of that lent %llu bytes, and "
        "called in %llu bytes\n",
        (unsigned long long)fuzz.seed, (unsigned long long)fuzz.operations, (unsigned long long)fuzz.evictions,
        (unsigned long long)fuzz.restores, (unsigned long long)fuzz.verified_bytes, (unsigned long long)fuzz.ooms,
        (unsigned long long)hr_stat_sum(HR_STAT_moved_out_bytes),
        (unsigned long long)hr_stat_sum(HR_STAT_moved_in_bytes),
        (unsigned long long)hr_stat_sum(HR_STAT_moves_given_up),
        (unsigned long long)hr_stat_sum(HR_STAT_copies_repeated),
        (unsigned long long)hr_stat_sum(HR_STAT_lent_out_bytes),
        (unsigned long long)hr_stat_sum(HR_STAT_called_in_bytes));
}

void fuzz_fail(const struct fuzz_buffer *buffer, const char *format, ...)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    va_list args;
    pthread_mutex_lock(&once); /* the first one tells */
    fprintf(stderr, "found: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nlast operations%s:\n", buffer ? " on this buffer" : "");
    pthread_mutex_lock(&history_lock);
    print_tail(buffer);
    print_counts(stderr);
    fflush(NULL);
    _exit(1);
}

uint64_t fuzz_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * UINT64_C(0x2545f4914f6cdd1d) >> 11;
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

/* Workers do not run ahead of the mover: at least 10 evictions come with every 100 operations. */
static pthread_mutex_t pace_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pace_moved = PTHREAD_COND_INITIALIZER;
#define AHEAD 50

static void keep_pace(void)
{
    pthread_mutex_lock(&pace_lock);
    while (!atomic_load(&fuzz.stop) && atomic_load(&fuzz.operations) > 8 * atomic_load(&fuzz.evictions) + AHEAD)
        pthread_cond_wait(&pace_moved, &pace_lock);
    pthread_mutex_unlock(&pace_lock);
}

static void tell_pace(void)
{
    pthread_mutex_lock(&pace_lock);
    pthread_cond_broadcast(&pace_moved);
    pthread_mutex_unlock(&pace_lock);
}

static struct fuzz_worker workers[FUZZ_WORKERS_MOST];

/* One worker on several GPUs: nothing runs beside it, so that nothing that it does is undefined. */
static bool alone(void)
{
    return fuzz.workers == 1 && fuzz.gpus > 1;
}

static void move_one(struct hr_thread *t, uint64_t *state);

static size_t first_bytes(size_t bytes)
{
    return bytes < fuzz.most_bytes ? bytes : fuzz.most_bytes;
}

static void *work(void *arg)
{
    struct fuzz_worker *w = arg;
    uint64_t state = fuzz.seed * 77 + 5;
    fuzz_worker_start(w, (unsigned)(w - workers));
    for (unsigned set = w->index; set < fuzz.sets; set += fuzz.workers) {
        fuzz_go_to(w, set % fuzz.gpus);
        for (unsigned i = 0; i < FUZZ_OWN; i++)
            if (!fuzz_allocate(w, &fuzz.buffer[FUZZ_SHARED + set * FUZZ_OWN + i], first_bytes(4096 + i * 300000)))
                fuzz_fail(NULL, "the first allocations do not fit");
    }
    while (!atomic_load(&fuzz.stop)) {
        fuzz_operate(w);
        for (int tries = 0; alone() && tries < 8 && atomic_load(&fuzz.operations) > 8 * atomic_load(&fuzz.evictions);
             tries++)
            move_one(hr_thread_self(), &state);
        if (!alone())
            keep_pace();
        if (atomic_load(&fuzz.operations) >= operations_most)
            atomic_store(&fuzz.stop, true);
    }
    return NULL;
}

/* Takes the buffer that a worker pointed at, or any. */
static void move_one(struct hr_thread *t, uint64_t *state)
{
    unsigned wanted = atomic_exchange(&fuzz.provoked, 0);
    unsigned buffers = FUZZ_SHARED + FUZZ_OWN * fuzz.sets;
    struct fuzz_buffer *b = &fuzz.buffer[wanted ? wanted - 1 : fuzz_random(state) % buffers];
    /* Without its lock, which its worker may hold while it provokes: at worst the range is an old one. */
    CUdeviceptr address = atomic_load(&b->told_address);
    size_t bytes = atomic_load(&b->told_bytes);
    if (!address)
        return;
    if (wanted) {
        if (hr_access_evict_range(t, address, bytes) > 0)
            atomic_fetch_add(&fuzz.evictions, 1);
        return;
    }
    if (fuzz_random(state) % 3 == 0) {
        size_t offset = fuzz_random(state) % bytes;
        address += offset;
        bytes = 1 + fuzz_random(state) % (bytes - offset);
    }
    if (fuzz_random(state) % 5 < 3)
        atomic_fetch_add(&fuzz.evictions, hr_access_evict_range(t, address, bytes) > 0);
    else
        atomic_fetch_add(&fuzz.restores, hr_access_restore_range(t, address, bytes) > 0);
}

static void *move(void *arg)
{
    (void)arg;
    uint64_t state = fuzz.seed * 77 + 5;
    fuzz_go_to(NULL, 0);
    struct hr_thread *t = hr_thread_self();
    while (!atomic_load(&fuzz.stop)) {
        move_one(t, &state);
        tell_pace();
    }
    tell_pace();
    return NULL;
}

/* --- the run ------------------------------------------------------------------------------------------------------ */

static void start_gpu(unsigned gpu)
{
    CUmodule module;
    FUZZ_OK(cuCtxCreate_v2(&fuzz.context[gpu], 0, (CUdevice)gpu));
    FUZZ_OK(cuModuleLoadData(&module, shim_ptx));
    FUZZ_OK(cuModuleGetFunction(&fuzz.code[gpu].affine, module, "affine"));
    FUZZ_OK(cuModuleGetFunction(&fuzz.code[gpu].mix, module, "mix"));
    FUZZ_OK(cuModuleGetFunction(&fuzz.code[gpu].add_table, module, "add_table"));
    FUZZ_OK(cuModuleGetFunction(&fuzz.code[gpu].slow_affine, module, "slow_affine"));
    for (unsigned i = 0; i < FUZZ_BUFFERS; i++) {
        FUZZ_OK(cuEventCreate(&fuzz.buffer[i].last[gpu], CU_EVENT_DISABLE_TIMING));
        fuzz.buffer[i].last_gpu = -1;
    }
}

static void start(void)
{
    static struct fuzz_worker first;
    FUZZ_OK(cuInit(0));
    for (unsigned g = 0; g < fuzz.gpus; g++)
        start_gpu(g);
    for (unsigned g = 0; g < fuzz.gpus; g++) {
        fuzz_go_to(NULL, g);
        for (unsigned other = 0; other < fuzz.gpus; other++) {
            int can = 0;
            if (other != g)
                FUZZ_OK(cuDeviceCanAccessPeer(&can, (CUdevice)g, (CUdevice)other));
            if (can)
                FUZZ_OK(cuCtxEnablePeerAccess(fuzz.context[other], 0));
        }
    }
    for (unsigned i = 0; i < FUZZ_BUFFERS; i++) {
        pthread_mutex_init(&fuzz.buffer[i].lock, NULL);
        fuzz.buffer[i].index = i;
    }
    fuzz_worker_start(&first, FUZZ_WORKERS_MOST);
    for (unsigned i = 0; i < FUZZ_SHARED; i++) {
        fuzz_go_to(&first, i % fuzz.gpus);
        if (!fuzz_allocate(&first, &fuzz.buffer[i], first_bytes(3000 + i * 1000000)))
            fuzz_fail(NULL, "the first allocations do not fit");
    }
}

static void finish(void)
{
    static struct fuzz_worker last;
    fuzz_worker_start(&last, FUZZ_WORKERS_MOST);
    for (unsigned i = 0; i < FUZZ_SHARED + FUZZ_OWN * fuzz.sets; i++) {
        struct fuzz_buffer *b = &fuzz.buffer[i];
        if (b->address) {
            fuzz_verify(&last, b, 0, b->bytes);
            fuzz_memory_give(&last, b);
            free(b->model);
        }
    }
    for (unsigned g = 0; g < fuzz.gpus; g++) {
        fuzz_go_to(NULL, g);
        FUZZ_OK(cuCtxSynchronize());
    }
    /* What several GPUs use may have to stay where their atomics meet. */
    if (fuzz.evictions * (fuzz.gpus > 1 ? 50 : 10) + AHEAD < fuzz.operations)
        fuzz_fail(NULL, "only %llu evictions with %llu operations", (unsigned long long)fuzz.evictions,
                  (unsigned long long)fuzz.operations);
    if (hr_lock_violations() > 0)
        fuzz_fail(NULL, "%u locks were taken out of order", hr_lock_violations());
    if (hr_stat_sum(HR_STAT_moves_failed) > 0)
        fuzz_fail(NULL, "the driver refused a step of a move");
    print_counts(stdout);
}

static void run(void)
{
    pthread_t mover, thread[FUZZ_WORKERS_MOST];
    start();
    uint64_t end_ns = hr_clock_ns() + (uint64_t)(seconds * 1e9);
    if (!alone())
        pthread_create(&mover, NULL, move, NULL);
    for (unsigned i = 0; i < fuzz.workers; i++)
        pthread_create(&thread[i], NULL, work, &workers[i]);
    struct timespec tick = {0, 50000000};
    while (hr_clock_ns() < end_ns && !atomic_load(&fuzz.stop))
        nanosleep(&tick, NULL);
    atomic_store(&fuzz.stop, true);
    if (!alone())
        pthread_join(mover, NULL);
    for (unsigned i = 0; i < fuzz.workers; i++)
        pthread_join(thread[i], NULL);
    finish();
}

/* The sum of a figure over the GPUs in simgpu's report. */
static unsigned long long figure(const char *report, const char *name)
{
    unsigned long long sum = 0;
    for (const char *at = report; (at = strstr(at, name)); at++)
        sum += strtoull(at + strlen(name) + 3, NULL, 10);
    return sum;
}

/* The process that ran has ended with its report written: nothing may have been taken away under running work. */
static int judge(const char *path, int status)
{
    static char report[1 << 20]; /* of a large machine: each link has a line */
    static const char *const findings[] = {"\"race",           "\"host_race",      "\"host_access",
                                           "\"red_zone",       "\"use_after_free", "\"use_after_unmap",
                                           "\"use_before_map", "\"missing_grant"};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, report, sizeof report - 1) : -1;
    if (fd >= 0)
        close(fd);
    unlink(path);
    if (!WIFEXITED(status)) {
        fprintf(stderr, "seed %llu: killed by signal %d\n", (unsigned long long)fuzz.seed, WTERMSIG(status));
        return 3;
    }
    if (WEXITSTATUS(status) != 0)
        return WEXITSTATUS(status);
    if (n <= 0 || !strstr(report, "unmapped_in_flight") || !strstr(report, "freed_in_flight")) {
        fprintf(stderr, "simgpu left no report at %s\n", path);
        return 3;
    }
    unsigned long long undefined = 0;
    for (size_t i = 0; i < sizeof findings / sizeof findings[0]; i++)
        undefined += figure(report, findings[i]);
    unsigned long long unmapped = figure(report, "unmapped_in_flight"), freed = figure(report, "freed_in_flight");
    printf("unmapped in flight %llu, freed in flight %llu, kernels %llu, peak VRAM %llu of %llu\n", unmapped, freed,
           figure(report, "\"kernels"), figure(report, "peak_vram_bytes"), figure(report, "\"vram_bytes"));
    if (unmapped || freed)
        fprintf(stderr, "found: memory was taken away under running work (seed %llu)\n", (unsigned long long)fuzz.seed);
    if (undefined)
        fprintf(stderr, "found: what is undefined, %llu times (seed %llu); SIMGPU_LOG=warn says what\n", undefined,
                (unsigned long long)fuzz.seed);
    return unmapped || freed || undefined;
}

static int usage(const char *argument)
{
    fprintf(stderr,
            "fuzz_model: %s: expected seconds=N long=N seed=N threads=1..%d host=mapped|denied commit=auto|lazy|both "
            "vram=SIZE machine=NAME gpus=1..%d operations=N most=BYTES\n",
            argument, FUZZ_WORKERS_MOST, FUZZ_GPUS_MOST);
    return 2;
}

static int parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        size_t key = value ? (size_t)(value++ - argv[i]) : 0;
        if (key == 7 && !memcmp(argv[i], "seconds", key))
            seconds = strtod(value, NULL);
        else if (key == 4 && !memcmp(argv[i], "long", key))
            long_seconds = strtod(value, NULL);
        else if (key == 4 && !memcmp(argv[i], "seed", key))
            fuzz.seed = strtoull(value, NULL, 10);
        else if (key == 7 && !memcmp(argv[i], "threads", key) && strtoul(value, NULL, 10) >= 1 &&
                 strtoul(value, NULL, 10) <= FUZZ_WORKERS_MOST)
            fuzz.workers = (unsigned)strtoul(value, NULL, 10);
        else if (key == 4 && !memcmp(argv[i], "host", key) && (!strcmp(value, "mapped") || !strcmp(value, "denied")))
            fuzz.host_mapped = !strcmp(value, "mapped");
        else if (key == 6 && !memcmp(argv[i], "commit", key) &&
                 (!strcmp(value, "auto") || !strcmp(value, "lazy") || !strcmp(value, "both")))
            commit_mode = value;
        else if (key == 4 && !memcmp(argv[i], "vram", key))
            vram = value;
        else if (key == 7 && !memcmp(argv[i], "machine", key))
            model = value;
        else if (key == 4 && !memcmp(argv[i], "gpus", key) && strtoul(value, NULL, 10) >= 1 &&
                 strtoul(value, NULL, 10) <= FUZZ_GPUS_MOST)
            fuzz.gpus = (unsigned)strtoul(value, NULL, 10);
        else if (key == 4 && !memcmp(argv[i], "most", key) && strtoull(value, NULL, 10) >= 4096)
            fuzz.most_bytes = strtoull(value, NULL, 10);
        else if (key == 10 && !memcmp(argv[i], "operations", key) && strtoull(value, NULL, 10) > 0)
            operations_most = strtoull(value, NULL, 10);
        else
            return usage(argv[i]);
    }
    fuzz.sets = fuzz.workers > fuzz.gpus ? fuzz.workers : fuzz.gpus;
    const char *given = getenv("HEADROOM_FUZZ_SECONDS");
    if (given && *given)
        seconds = strtod(given, NULL);
    const char *is_long = getenv("HEADROOM_TEST_LONG");
    if (is_long && *is_long && strcmp(is_long, "0") != 0 && long_seconds > 0)
        seconds = long_seconds;
    return seconds > 0 ? 0 : usage("seconds");
}

/* In a process of its own, for as long as `seconds` says. */
static int run_with(const char *commit)
{
    char machine[128], report[] = "/tmp/fuzz-report-XXXXXX";
    int status, fd = mkstemp(report);
    if (fd < 0)
        return 3;
    close(fd);
    snprintf(machine, sizeof machine, "%s,gpus=%u,vram=%s,host=1G,seed=%llu", model, fuzz.gpus, vram,
             (unsigned long long)fuzz.seed);
    setenv("SIMGPU", machine, 1);
    setenv("SIMGPU_DENY", fuzz.host_mapped ? "" : "host_numa", 1);
    setenv("SIMGPU_REPORT", report, 1);
    setenv("HEADROOM_HOST", "256M", 1);
    setenv("HEADROOM_COMMIT", commit, 1);
    setenv("HEADROOM_STATS", "off", 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run();
        exit(0); /* simgpu writes its report now */
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 3;
    return judge(report, status);
}

int main(int argc, char **argv)
{
    int status = parse(argc, argv);
    if (status || strcmp(commit_mode, "both") != 0)
        return status ? status : run_with(commit_mode);
    seconds /= 2;
    status = run_with("lazy");
    return status ? status : run_with("auto");
}
