/* The address space: ranges, slabs, look-ups, the commit ledger, learned starts. */
#include "core_test.h"

#include "space/internal.h"
#include "space/ledger.h"

static CUcontext context;
static struct hr_thread *self;

static void start(void)
{
    context = machine("h200,vram=64M", "");
    self = hr_thread_self();
}

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr p = 0;
    OK(hr_space_alloc(self, 0, context, bytes, &p));
    return p;
}

/* Frees what was never backed. */
static bool give_as(struct hr_thread *t, CUdeviceptr p)
{
    size_t bytes;
    struct hr_extent *e, *slab;
    bool given = hr_space_retire(p, &bytes, &e) == HR_RETIRE_UNTOUCHED;
    if (given && (slab = hr_space_release(t, p)))
        hr_space_release_slab(t, slab);
    return given;
}

static void give(CUdeviceptr p)
{
    cr_assert(give_as(self, p));
}

TestSuite(space, .init = start, .timeout = 120);

Test(space, size_classes_hold_what_they_are_for_and_waste_little)
{
    for (size_t bytes = 1; bytes <= CHUNK / 2; bytes += bytes < 70000 ? 1 : 509) {
        unsigned c = hr_slab_class(bytes);
        cr_assert(c < HR_CLASS_COUNT && hr_slab_class_bytes(c) >= bytes, "%zu bytes in class %u", bytes, c);
        cr_assert(c == 0 || hr_slab_class_bytes(c - 1) < bytes, "%zu bytes fit into a smaller class than %u", bytes, c);
        cr_assert(hr_slab_class_bytes(c) - bytes < 512 + bytes / 8, "%zu bytes take %zu", bytes,
                  hr_slab_class_bytes(c));
        cr_assert_eq(hr_slab_class_bytes(c) % HR_SMALL_ALIGN, 0);
    }
    cr_assert_eq(hr_slab_class(CHUNK / 2 + 1), HR_CLASS_COUNT);
}

Test(space, finds_interior_pointers_and_nothing_else)
{
    const size_t sizes[] = {1, 700, 5000, 600000, CHUNK / 2 + 1, CHUNK, 3 * CHUNK + 5};
    struct hr_allocation a;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr p = take(sizes[i]);
        cr_assert_eq(p % HR_SMALL_ALIGN, 0);
        const size_t inside[] = {0, sizes[i] / 2, sizes[i] - 1};
        for (size_t k = 0; k < 3; k++) {
            cr_assert(hr_space_find(p + inside[k], &a), "byte %zu of %zu", inside[k], sizes[i]);
            cr_assert(a.base == p && a.bytes == sizes[i] && a.gpu == 0 && a.ctx == context);
        }
        cr_assert_not(hr_space_find(p + sizes[i], &a) && a.base == p, "the byte behind %zu", sizes[i]);
        give(p);
        cr_assert_not(hr_space_find(p, &a), "%zu bytes, freed", sizes[i]);
    }
    cr_assert_not(hr_space_find(hr_space.base - 1, &a));
    cr_assert_not(hr_space_find(hr_space.base + hr_space.bytes, &a));
    cr_assert_not(hr_space_find(0, &a));
}

Test(space, an_allocation_at_the_same_address_has_another_id)
{
    const size_t sizes[] = {512, 3 * CHUNK};
    for (int i = 0; i < 2; i++) {
        struct hr_allocation first, second;
        cr_assert(hr_space_find(take(sizes[i]), &first));
        give(first.base);
        cr_assert(hr_space_find(take(sizes[i]), &second));
        cr_assert_eq(first.base, second.base, "the thread's cache serves the same range again");
        cr_assert_neq(first.id, second.id);
    }
}

/* What of the window is free in one piece: its addresses are twice its capacity. */
static void whole_window_can_be_taken(void)
{
    hr_space_flush_thread(self);
    uint32_t all = hr_space.window[0].chunk_count;
    hr_mutex_lock(&hr_window_lock[0]);
    struct hr_extent *e = hr_ranges_take_locked(0, all);
    if (e)
        hr_ranges_give_locked(e);
    hr_mutex_unlock(&hr_window_lock[0]);
    cr_assert_not_null(e, "the free ranges did not grow together again");
}

Test(space, neighbours_that_were_freed_grow_together)
{
    CUdeviceptr p[5];
    for (int i = 0; i < 5; i++)
        p[i] = take(12 * CHUNK); /* larger than what threads keep */
    const int order[] = {1, 3, 2, 0, 4};
    for (int i = 0; i < 5; i++)
        give(p[order[i]]);
    whole_window_can_be_taken();
    cr_assert_eq(hr_ledger_charged(0), 0);
}

/* 20,000 random steps against a list; nothing overlaps, and everything comes back. */
Test(space, random_allocations_never_overlap_and_all_come_back)
{
    enum { MOST = 200 };
    struct {
        CUdeviceptr p;
        size_t bytes;
    } live[MOST];
    size_t count = 0, refused = 0;
    uint64_t x = 7;
    for (int step = 0; step < 20000; step++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t r = x >> 33;
        if (count == MOST || (count > 0 && r % 2)) {
            size_t i = (r >> 1) % count;
            give(live[i].p);
            live[i] = live[--count];
            continue;
        }
        size_t bytes = 1 + (r >> 1) % (r % 3 ? 50000 : 12 * CHUNK);
        CUdeviceptr p;
        CUresult got = hr_space_alloc(self, 0, context, bytes, &p);
        if (got == CUDA_ERROR_OUT_OF_MEMORY) {
            refused++;
            continue;
        }
        cr_assert_eq(got, CUDA_SUCCESS);
        for (size_t i = 0; i < count; i++)
            cr_assert(p + bytes <= live[i].p || live[i].p + live[i].bytes <= p, "0x%llx+%zu lies in 0x%llx+%zu",
                      (unsigned long long)p, bytes, (unsigned long long)live[i].p, live[i].bytes);
        live[count].p = p;
        live[count++].bytes = bytes;
    }
    cr_assert_lt(refused, 5000);
    while (count > 0)
        give(live[--count].p);
    whole_window_can_be_taken();
    cr_assert_eq(hr_ledger_charged(0), 0);
}

static bool count_visit(CUdeviceptr address, void *arg)
{
    uint64_t *sum = arg;
    sum[0]++;
    sum[1] += address;
    return true;
}

Test(space, visits_every_live_allocation_of_a_context_once)
{
    uint64_t expected[2] = {0, 0}, seen[2] = {0, 0}, others[2] = {0, 0};
    CUdeviceptr p[60];
    for (int i = 0; i < 60; i++)
        p[i] = take(i % 3 ? 600 : CHUNK + 1);
    for (int i = 0; i < 60; i++) {
        if (i % 4 == 0)
            give(p[i]);
        else
            count_visit(p[i], expected);
    }
    hr_space_each(context, count_visit, seen);
    cr_assert_eq(seen[0], expected[0]);
    cr_assert_eq(seen[1], expected[1]);
    hr_space_each((CUcontext)16, count_visit, others);
    cr_assert_eq(others[0], 0);
}

/* --- the ledger --------------------------------------------------------------------------------------------------- */

static pthread_barrier_t both;
static void *charge_and_wait(void *arg)
{
    (void)arg;
    struct hr_thread *t = hr_thread_self();
    cr_assert(hr_ledger_charge(t, 0, 4096));
    hr_ledger_uncharge(t, 0, 4096); /* keeps the rest of its batch as credit */
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    hr_space_flush_thread(t);
    return NULL;
}

Test(space, credits_of_other_threads_are_called_back_before_memory_is_out)
{
    pthread_t other;
    size_t all = hr_ledger_free(0);
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&other, NULL, charge_and_wait, NULL);
    pthread_barrier_wait(&both);
    cr_assert_eq(hr_ledger_free(0), all, "credits are free memory");
    cr_assert(hr_ledger_charge(self, 0, all), "the other thread holds a batch that it does not use");
    cr_assert_not(hr_ledger_charge(self, 0, 1));
    cr_assert_eq(hr_ledger_free(0), 0);
    hr_ledger_uncharge(self, 0, all);
    cr_assert_eq(hr_ledger_free(0), all);
    pthread_barrier_wait(&both);
    pthread_join(other, NULL);
    cr_assert_eq(hr_ledger_charged(0), 0);
}

Test(space, charges_come_in_batches_and_are_counted_exactly)
{
    size_t all = hr_ledger_free(0);
    for (size_t i = 1; i <= 1000; i++) {
        cr_assert(hr_ledger_charge(self, 0, 512));
        cr_assert_eq(hr_ledger_charged(0), i * 512);
        cr_assert_eq(hr_ledger_free(0), all - i * 512);
    }
    for (size_t i = 0; i < 1000; i++)
        hr_ledger_uncharge(self, 0, 512);
    cr_assert_eq(hr_ledger_charged(0), 0);
}

/* --- learned starts ----------------------------------------------------------------------------------------------- */

static CUdeviceptr piece_end_at(CUdeviceptr address)
{
    struct hr_view view;
    struct hr_extent *e = hr_space_extent(address);
    cr_assert(hr_space_view(e, &view));
    return hr_space_piece_end(e, &view, address);
}

Test(space, a_piece_ends_where_the_next_known_start_is)
{
    CUdeviceptr p = take(10 * CHUNK);
    struct hr_extent *e = hr_space_extent(p);
    cr_assert_eq(piece_end_at(p), p + 10 * CHUNK);
    hr_space_learn_start(e, p + 3 * CHUNK + 512);
    hr_space_learn_start(e, p + 7 * CHUNK);
    cr_assert_eq(piece_end_at(p), p + 3 * CHUNK + 512);
    cr_assert_eq(piece_end_at(p + 3 * CHUNK + 512), p + 7 * CHUNK);
    cr_assert_eq(piece_end_at(p + 5 * CHUNK), p + 7 * CHUNK);
    cr_assert_eq(piece_end_at(p + 7 * CHUNK), p + 10 * CHUNK);
    give(p);
    CUdeviceptr again = take(10 * CHUNK);
    for (CUdeviceptr at = again; at < again + 10 * CHUNK; at += CHUNK)
        cr_assert_eq(piece_end_at(at), again + 10 * CHUNK, "learned by another allocation");
}

/* --- look-ups beside frees ---------------------------------------------------------------------------------------- */

/* Sizes are a function of the number of the allocation within its thread, so that a look-up can tell a mix of two lives. */
#define CHURN_LIVE 4
#define LOOK_UPS 300000
static _Atomic(CUdeviceptr) seen[2 * CHURN_LIVE];
static _Atomic(int) stop_churning;

static void *churn(void *arg)
{
    unsigned which = *(unsigned *)arg, random = which + 1;
    struct hr_thread *t = hr_thread_self();
    _Atomic(CUdeviceptr) *mine = &seen[which * CHURN_LIVE];
    while (!stop_churning) {
        random = random * 1103515245 + 12345;
        unsigned at = random >> 16 & (CHURN_LIVE - 1), chunks = 1 + (random >> 24) % 24;
        CUdeviceptr address = mine[at];
        if (address)
            CHECK(give_as(t, address));
        /* a whole number of chunks less its own number of bytes, or a small one */
        size_t bytes = random & 0x100000 ? chunks * CHUNK - chunks : (size_t)512 * chunks;
        mine[at] = hr_space_alloc(t, 0, context, bytes, &address) == CUDA_SUCCESS ? address : 0;
    }
    for (unsigned at = 0; at < CHURN_LIVE; at++)
        CHECK(!mine[at] || give_as(t, mine[at]));
    hr_space_flush_thread(t);
    return NULL;
}

static bool is_within_an_allocation(CUdeviceptr address, void *arg)
{
    (void)arg;
    return hr_space_owns(address);
}

Test(space, look_ups_beside_frees_never_mix_two_lives)
{
    unsigned which[2] = {0, 1}, views = 0;
    pthread_t threads[2];
    stop_churning = 0;
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, churn, &which[i]);
    struct hr_extent *stale[2 * CHURN_LIVE] = {0};
    for (unsigned pass = 0; pass < LOOK_UPS; pass++) {
        for (unsigned i = 0; i < 2 * CHURN_LIVE; i++) {
            CUdeviceptr address = seen[i];
            struct hr_extent *e = hr_space_extent(address), *old = stale[i];
            struct hr_view view;
            struct hr_allocation a;
            if (e) {
                hr_space_learn_start(e, address);
                stale[i] = e;
            }
            if (old && hr_space_view(old, &view)) {
                views++;
                cr_assert_eq(view.base, hr_space.base + ((CUdeviceptr)view.first_chunk << hr_space.chunk_shift));
                cr_assert_eq((view.bytes + CHUNK - 1) / CHUNK, view.chunk_count);
                if (view.kind == HR_EXTENT_LARGE)
                    cr_assert_eq(view.chunk_count * CHUNK - view.bytes, view.chunk_count, "bytes of another life");
                CUdeviceptr end = hr_space_piece_end(old, &view, view.base);
                cr_assert(end > view.base && end <= view.base + view.bytes);
            }
            if (hr_space_find(address, &a))
                cr_assert(address >= a.base && address < a.base + a.bytes);
        }
        if (pass % 256 == 0)
            hr_space_each(NULL, is_within_an_allocation, NULL);
    }
    stop_churning = 1;
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert_gt(views, 0);
    cr_assert_eq(hr_ledger_charged(0), 0);
}
