#include "simgpu/byteset.h"

#include "simgpu/pagetable.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_SHIFT 12
#define BLOCK_BYTES (1u << BLOCK_SHIFT)
#define BLOCKS (1u << (SG_PAGE_SHIFT - BLOCK_SHIFT))
#define WORDS (BLOCK_BYTES / 64)

typedef _Atomic(uint64_t) word; /* 64 bytes of the address space; a block is WORDS of them */

struct sg_leaf {
    _Atomic(word *) block[BLOCKS]; /* NULL = empty, `full` = all of it */
};

/* What the pointers of full blocks and full leaves point to: never written. */
static word full[WORDS];
static struct sg_leaf full_leaf;

/* ---- recording: a radix tree over page numbers ---- */

#define ROOT_BITS 9
#define MID_BITS 9
#define LOW_BITS (SG_VA_BITS - SG_PAGE_SHIFT - ROOT_BITS - MID_BITS)

struct page_sets {
    _Atomic(struct sg_leaf *) leaf[SG_ACCESS_KINDS];
};
struct low {
    _Atomic(struct page_sets *) at[1 << LOW_BITS];
};
struct mid {
    _Atomic(struct low *) at[1 << MID_BITS];
};
struct sg_recorder {
    _Atomic(struct mid *) at[1 << ROOT_BITS];
};

/* *slot, or a new zeroed object in it. Whoever comes second frees his own. */
#define GET_OR_MAKE(slot, type)                                                                                        \
    __extension__({                                                                                                    \
        type *there_ = atomic_load_explicit(slot, memory_order_acquire);                                               \
        if (!there_) {                                                                                                 \
            type *mine_ = calloc(1, sizeof *mine_);                                                                    \
            if (mine_ && atomic_compare_exchange_strong(slot, &there_, mine_))                                         \
                there_ = mine_;                                                                                        \
            else                                                                                                       \
                free(mine_);                                                                                           \
        }                                                                                                              \
        there_;                                                                                                        \
    })

struct sg_recorder *sg_recorder_create(void)
{
    return calloc(1, sizeof(struct sg_recorder));
}

static struct sg_leaf *leaf_make(struct sg_recorder *r, enum sg_access_kind kind, uint64_t page)
{
    struct mid *mid = GET_OR_MAKE(&r->at[page >> (MID_BITS + LOW_BITS)], struct mid);
    if (!mid)
        return NULL;
    struct low *low = GET_OR_MAKE(&mid->at[page >> LOW_BITS & ((1u << MID_BITS) - 1)], struct low);
    if (!low)
        return NULL;
    struct page_sets *sets = GET_OR_MAKE(&low->at[page & ((1u << LOW_BITS) - 1)], struct page_sets);
    return sets ? GET_OR_MAKE(&sets->leaf[kind], struct sg_leaf) : NULL;
}

static const struct sg_leaf *leaf_find(const struct sg_recorder *r, enum sg_access_kind kind, uint64_t page)
{
    const struct mid *mid = atomic_load_explicit(&r->at[page >> (MID_BITS + LOW_BITS)], memory_order_acquire);
    const struct low *low =
        mid ? atomic_load_explicit(&mid->at[page >> LOW_BITS & ((1u << MID_BITS) - 1)], memory_order_acquire) : NULL;
    const struct page_sets *sets =
        low ? atomic_load_explicit(&low->at[page & ((1u << LOW_BITS) - 1)], memory_order_acquire) : NULL;
    return sets ? atomic_load_explicit(&sets->leaf[kind], memory_order_acquire) : NULL;
}

static void block_free(word *block)
{
    if (block != full)
        free(block);
}

/* Bits [from, to) of a block of this leaf. */
static void block_add(struct sg_leaf *leaf, unsigned index, unsigned from, unsigned to)
{
    _Atomic(word *) *slot = &leaf->block[index];
    word *block = atomic_load_explicit(slot, memory_order_acquire);
    if (block == full)
        return;
    if (!block && !from && to == BLOCK_BYTES && atomic_compare_exchange_strong(slot, &block, full))
        return;
    if (!block) {
        word *mine = calloc(WORDS, sizeof *mine);
        if (mine && atomic_compare_exchange_strong(slot, &block, mine))
            block = mine;
        else
            free(mine);
    }
    if (!block || block == full)
        return;
    for (unsigned i = from / 64; i <= (to - 1) / 64; i++) {
        uint64_t mask = UINT64_MAX;
        if (i == from / 64)
            mask &= UINT64_MAX << from % 64;
        if (i == (to - 1) / 64)
            mask &= UINT64_MAX >> (63 - (to - 1) % 64);
        if ((atomic_load_explicit(&block[i], memory_order_relaxed) & mask) != mask)
            atomic_fetch_or_explicit(&block[i], mask, memory_order_relaxed);
    }
}

void sg_recorder_add(struct sg_recorder *r, enum sg_access_kind kind, uint64_t va, uint64_t bytes)
{
    struct sg_leaf *leaf = NULL;
    uint64_t page = UINT64_MAX;
    for (uint64_t end = va + bytes; va < end;) {
        if (va >> SG_PAGE_SHIFT != page) {
            page = va >> SG_PAGE_SHIFT;
            leaf = page >> (SG_VA_BITS - SG_PAGE_SHIFT) ? NULL : leaf_make(r, kind, page);
            if (!leaf)
                return;
        }
        uint64_t block_end = (va | (BLOCK_BYTES - 1)) + 1;
        unsigned from = (unsigned)(va & (BLOCK_BYTES - 1));
        unsigned to = block_end <= end ? BLOCK_BYTES : (unsigned)(from + (end - va));
        block_add(leaf, (unsigned)(va >> BLOCK_SHIFT) & (BLOCKS - 1), from, to);
        va = block_end;
    }
}

/* ---- leaves ---- */

static void leaf_free(struct sg_leaf *leaf)
{
    if (!leaf || leaf == &full_leaf)
        return;
    for (unsigned i = 0; i < BLOCKS; i++)
        block_free(atomic_load_explicit(&leaf->block[i], memory_order_relaxed));
    free(leaf);
}

static word *block_of(const struct sg_leaf *leaf, unsigned index)
{
    return leaf == &full_leaf ? full : atomic_load_explicit(&leaf->block[index], memory_order_acquire);
}

/* Full bitmaps become `full`, a full leaf the one full leaf. */
static struct sg_leaf *leaf_shrink(struct sg_leaf *leaf)
{
    unsigned full_blocks = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        word *block = atomic_load_explicit(&leaf->block[i], memory_order_relaxed);
        if (block && block != full) {
            uint64_t all = UINT64_MAX;
            for (unsigned k = 0; k < WORDS; k++)
                all &= atomic_load_explicit(&block[k], memory_order_relaxed);
            if (all == UINT64_MAX) {
                free(block);
                block = full;
                atomic_store_explicit(&leaf->block[i], full, memory_order_relaxed);
            }
        }
        full_blocks += block == full;
    }
    if (full_blocks < BLOCKS)
        return leaf;
    free(leaf);
    return &full_leaf;
}

/* First common byte, as an offset in the page; SG_PAGE_BYTES = none. */
static uint64_t leaf_meets(const struct sg_leaf *a, const struct sg_leaf *b)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        const word *x = block_of(a, i), *y = block_of(b, i);
        if (!x || !y)
            continue;
        uint64_t at = (uint64_t)i << BLOCK_SHIFT;
        if (x == full && y == full)
            return at;
        for (unsigned k = 0; k < WORDS; k++) {
            uint64_t common = (x == full ? UINT64_MAX : atomic_load_explicit(&x[k], memory_order_relaxed)) &
                              (y == full ? UINT64_MAX : atomic_load_explicit(&y[k], memory_order_relaxed));
            if (common)
                return at + k * 64 + (unsigned)__builtin_ctzll(common);
        }
    }
    return SG_PAGE_BYTES;
}

static word *block_subtract(word *a, const word *b)
{
    if (b == full) {
        block_free(a);
        return NULL;
    }
    if (a == full) {
        word *own = calloc(WORDS, sizeof *own);
        if (!own)
            return a; /* too much is remembered: an older operation is named, where a newer one could be */
        for (unsigned k = 0; k < WORDS; k++)
            atomic_store_explicit(&own[k], UINT64_MAX, memory_order_relaxed);
        a = own;
    }
    uint64_t left = 0;
    for (unsigned k = 0; k < WORDS; k++) {
        uint64_t rest =
            atomic_load_explicit(&a[k], memory_order_relaxed) & ~atomic_load_explicit(&b[k], memory_order_relaxed);
        atomic_store_explicit(&a[k], rest, memory_order_relaxed);
        left |= rest;
    }
    if (left)
        return a;
    free(a);
    return NULL;
}

/* a without b; NULL = nothing is left. */
static struct sg_leaf *leaf_subtract(struct sg_leaf *a, const struct sg_leaf *b)
{
    if (b == &full_leaf) {
        leaf_free(a);
        return NULL;
    }
    if (a == &full_leaf) {
        struct sg_leaf *own = calloc(1, sizeof *own);
        if (!own)
            return a;
        for (unsigned i = 0; i < BLOCKS; i++)
            atomic_store_explicit(&own->block[i], full, memory_order_relaxed);
        a = own;
    }
    bool left = false;
    for (unsigned i = 0; i < BLOCKS; i++) {
        word *x = block_of(a, i);
        const word *y = block_of(b, i);
        if (x && y) {
            x = block_subtract(x, y);
            atomic_store_explicit(&a->block[i], x, memory_order_relaxed);
        }
        left |= x != NULL;
    }
    if (left)
        return a;
    free(a);
    return NULL;
}

/* ---- from recorder to trace ---- */

static bool trace_push(struct sg_trace *t, size_t *room, uint64_t page, struct page_sets *sets)
{
    if (t->count == *room) {
        size_t more = *room ? *room * 2 : 8;
        struct sg_traced_page *bigger = realloc(t->at, more * sizeof *bigger);
        if (!bigger)
            return false;
        t->at = bigger;
        *room = more;
    }
    struct sg_traced_page *p = &t->at[t->count++];
    p->page = page;
    for (unsigned k = 0; k < SG_ACCESS_KINDS; k++) {
        struct sg_leaf *leaf = atomic_load_explicit(&sets->leaf[k], memory_order_relaxed);
        atomic_store_explicit(&sets->leaf[k], NULL, memory_order_relaxed);
        p->leaf[k] = leaf ? leaf_shrink(leaf) : NULL;
        t->has[k] |= leaf != NULL;
    }
    return true;
}

static void sets_free(struct page_sets *sets)
{
    for (unsigned k = 0; sets && k < SG_ACCESS_KINDS; k++)
        leaf_free(atomic_load_explicit(&sets->leaf[k], memory_order_relaxed));
    free(sets);
}

/* Empties the tree; into *t unless that is NULL. */
static bool drain(struct sg_recorder *r, struct sg_trace *t)
{
    bool ok = true;
    size_t room = 0;
    for (uint64_t i = 0; i < 1u << ROOT_BITS; i++) {
        struct mid *mid = atomic_load_explicit(&r->at[i], memory_order_acquire);
        for (uint64_t j = 0; mid && j < 1u << MID_BITS; j++) {
            struct low *low = atomic_load_explicit(&mid->at[j], memory_order_acquire);
            for (uint64_t k = 0; low && k < 1u << LOW_BITS; k++) {
                struct page_sets *sets = atomic_load_explicit(&low->at[k], memory_order_acquire);
                if (sets && t && ok)
                    ok = trace_push(t, &room, (i << MID_BITS | j) << LOW_BITS | k, sets);
                sets_free(sets);
            }
            free(low);
        }
        free(mid);
        atomic_store_explicit(&r->at[i], NULL, memory_order_relaxed);
    }
    return ok;
}

void sg_recorder_destroy(struct sg_recorder *r)
{
    if (r)
        drain(r, NULL);
    free(r);
}

bool sg_recorder_finish(struct sg_recorder *r, struct sg_trace *trace_out)
{
    memset(trace_out, 0, sizeof *trace_out);
    if (drain(r, trace_out))
        return true;
    sg_trace_finish(trace_out);
    return false;
}

uint64_t sg_recorder_meets(const struct sg_trace *t, enum sg_access_kind kind, const struct sg_recorder *r,
                           enum sg_access_kind other)
{
    for (size_t i = 0; t->has[kind] && i < t->count; i++) {
        const struct sg_leaf *theirs = t->at[i].leaf[kind] ? leaf_find(r, other, t->at[i].page) : NULL;
        uint64_t at = theirs ? leaf_meets(t->at[i].leaf[kind], theirs) : SG_PAGE_BYTES;
        if (at < SG_PAGE_BYTES)
            return (t->at[i].page << SG_PAGE_SHIFT) + at;
    }
    return 0;
}

/* ---- traces ---- */

void sg_trace_finish(struct sg_trace *t)
{
    for (size_t i = 0; i < t->count; i++)
        for (unsigned k = 0; k < SG_ACCESS_KINDS; k++)
            leaf_free(t->at[i].leaf[k]);
    free(t->at);
    memset(t, 0, sizeof *t);
}

uint64_t sg_trace_meets(const struct sg_trace *a, enum sg_access_kind kind, const struct sg_trace *b,
                        enum sg_access_kind other)
{
    if (!a->has[kind] || !b->has[other])
        return 0;
    for (size_t i = 0, k = 0; i < a->count && k < b->count;) {
        if (a->at[i].page != b->at[k].page) {
            if (a->at[i].page < b->at[k].page)
                i++;
            else
                k++;
            continue;
        }
        const struct sg_leaf *x = a->at[i].leaf[kind], *y = b->at[k].leaf[other];
        uint64_t at = x && y ? leaf_meets(x, y) : SG_PAGE_BYTES;
        if (at < SG_PAGE_BYTES)
            return (a->at[i].page << SG_PAGE_SHIFT) + at;
        i++, k++;
    }
    return 0;
}

void sg_trace_subtract(struct sg_trace *a, enum sg_access_kind kind, const struct sg_trace *b,
                       enum sg_access_kind other)
{
    if (!a->has[kind] || !b->has[other])
        return;
    for (size_t i = 0, k = 0; i < a->count && k < b->count;) {
        if (a->at[i].page != b->at[k].page) {
            if (a->at[i].page < b->at[k].page)
                i++;
            else
                k++;
            continue;
        }
        if (a->at[i].leaf[kind] && b->at[k].leaf[other])
            a->at[i].leaf[kind] = leaf_subtract(a->at[i].leaf[kind], b->at[k].leaf[other]);
        i++, k++;
    }
}

void sg_trace_forget(struct sg_trace *t, uint64_t va, uint64_t bytes)
{
    uint64_t end = va + bytes;
    for (size_t i = 0; i < t->count; i++) {
        uint64_t page = t->at[i].page << SG_PAGE_SHIFT;
        uint64_t from = va > page ? va : page, to = end < page + SG_PAGE_BYTES ? end : page + SG_PAGE_BYTES;
        if (from >= to)
            continue;
        struct sg_leaf *gone = to - from == SG_PAGE_BYTES ? &full_leaf : calloc(1, sizeof *gone);
        for (uint64_t at = from; gone && gone != &full_leaf && at < to; at = (at | (BLOCK_BYTES - 1)) + 1) {
            uint64_t stop = (at | (BLOCK_BYTES - 1)) + 1;
            block_add(gone, (unsigned)(at >> BLOCK_SHIFT) & (BLOCKS - 1), (unsigned)(at & (BLOCK_BYTES - 1)),
                      stop <= to ? BLOCK_BYTES : (unsigned)((at & (BLOCK_BYTES - 1)) + (to - at)));
        }
        for (unsigned k = 0; gone && k < SG_ACCESS_KINDS; k++)
            if (t->at[i].leaf[k])
                t->at[i].leaf[k] = leaf_subtract(t->at[i].leaf[k], gone);
        leaf_free(gone);
    }
}

bool sg_trace_compact(struct sg_trace *t)
{
    size_t kept = 0;
    memset(t->has, 0, sizeof t->has);
    for (size_t i = 0; i < t->count; i++) {
        bool any = false;
        for (unsigned k = 0; k < SG_ACCESS_KINDS; k++) {
            any |= t->at[i].leaf[k] != NULL;
            t->has[k] |= t->at[i].leaf[k] != NULL;
        }
        if (any)
            t->at[kept++] = t->at[i];
    }
    t->count = kept;
    return kept == 0;
}
