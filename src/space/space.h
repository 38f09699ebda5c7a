/*
 * The address space that headroom hands out: one reservation with a window per GPU, a chunk array over it, and a record
 * (extent) behind every pointer.
 *
 * An extent is a run of whole chunks: one large allocation, or a slab of equal small slots (small allocations share
 * chunks). Addresses are taken from per-thread caches first, so that neither allocation nor free takes a shared lock in the
 * common case. The window's addresses are more than its capacity, so that fragmentation of addresses is never what an
 * allocation fails for; the commit ledger (ledger.h) bounds the bytes.
 *
 * Who writes what: `extent` of a chunk and everything about addresses: this room. `phys`, `state`, `mapped` and the
 * extent's two counters: src/residency, under the move lock; submissions read them without a lock.
 */
#ifndef HR_SPACE_SPACE_H
#define HR_SPACE_SPACE_H

#include "base/thread.h"
#include "driver/driver.h"

#define HR_MAX_GPUS 16
#define HR_SMALL_ALIGN 512 /* what cuMemAlloc's alignment is on real drivers at least (256), and ours */

/* PEER: in the VRAM of another GPU. MOVING_OUT: RESIDENT and about to leave; MOVING_IN: any other that is about to move. */
enum hr_chunk_state {
    HR_CHUNK_RESERVED,
    HR_CHUNK_RESIDENT,
    HR_CHUNK_PEER,
    HR_CHUNK_HOST,
    HR_CHUNK_MOVING_IN,
    HR_CHUNK_MOVING_OUT
};
const char *hr_chunk_state_name(enum hr_chunk_state state);

struct hr_phys; /* a physical chunk of some tier, see tier/tier.h */

struct hr_chunk {
    _Atomic(struct hr_extent *) extent; /* NULL = no allocation was ever placed here; check extent->live */
    struct hr_phys *phys;               /* what holds the bytes; NULL = RESERVED. Guarded by the move lock */
    _Atomic(uint64_t) last_use;         /* ticks of the last submission that named these bytes */
    _Atomic(uint8_t) state;             /* enum hr_chunk_state */
    _Atomic(uint8_t) mapped;            /* 1 = accessible by kernels at its address */
    _Atomic(uint16_t) pins;             /* working sets that are on their way to a launch; not a victim while > 0 */
    _Atomic(uint32_t) held; /* operands of graphs that lie here: it is not moved while > 0 (residency/hold.h) */
};

/*
 * VMM: addresses that the job reserved and maps memory into (residency/vmm.h). Such an extent reaches to the end of what was mapped;
 * of the chunks in between only those whose `extent` it is are its own, the others are holes.
 */
enum hr_extent_kind { HR_EXTENT_FREE, HR_EXTENT_LARGE, HR_EXTENT_SLAB, HR_EXTENT_VMM };

/* Other extents whose addresses were seen in this one's content (see residency/hidden.h). Immutable once published. */
struct hr_refs {
    uint32_t count;
    struct hr_extent *extent[];
};

/*
 * Extents are never given back to the system, and each begins a new life elsewhere after its free; whoever comes by an
 * address that somebody frees meanwhile still reads one. So: the owner (whoever allocated it, or took it out of circulation)
 * reads the fields directly; everybody else asks hr_space_view for a consistent set of them.
 */
struct hr_extent {
    _Atomic(uint32_t) version; /* odd while the fields up to `kind` change */
    _Atomic(uint32_t) first_chunk, chunk_count;
    _Atomic(CUdeviceptr) base;
    _Atomic(size_t) bytes; /* as asked (LARGE), the whole run (SLAB) */
    _Atomic(uint64_t) id;  /* changes at every allocation: CU_POINTER_ATTRIBUTE_BUFFER_ID */
    _Atomic(CUcontext) ctx;
    _Atomic(struct hr_slab *) slab;
    _Atomic(uint8_t) kind;    /* enum hr_extent_kind */
    uint8_t gpu;              /* the same in every life */
    _Atomic(uint8_t) live;    /* 1 from allocation to free (a slab: while it has slots) */
    _Atomic(uint8_t) touched; /* 1 once any chunk got backing; then freeing needs quarantine */
    _Atomic(uint8_t) sync_memops;
    _Atomic(uint8_t) stays;        /* residency: two GPUs use it, whose atomics meet only in VRAM (residency/peers.h) */
    _Atomic(uint16_t) sharers;     /* residency: GPUs that cannot reach this one, and use it in host memory (fixed.h) */
    _Atomic(uint16_t) shared_with; /* residency: of these, those for which everything is in place */
    _Atomic(uint32_t) not_resident;   /* chunks that are not RESIDENT: 0 = all in local VRAM */
    _Atomic(uint32_t) not_accessible; /* chunks that are not mapped: 0 = any kernel may run */
    _Atomic(uint64_t) last_use;
    _Atomic(struct hr_refs *) refs;
    _Atomic(uint8_t) has_starts;    /* addresses inside were seen as starts: see hr_space_learn_start */
    _Atomic(struct hr_site *) site; /* stats: where it was allocated; may be NULL */
    struct hr_extent *next_pending; /* residency: waits to be backed before the next launch */
    _Atomic(uint8_t) is_pending;
    struct hr_extent *next, *prev; /* free lists, partial-slab lists, shelves (residency/shelf.h) */
    uint64_t shelved_stamp;        /* residency: when it was freed, while it lies on a shelf */
};

struct hr_space {
    CUdeviceptr base;
    size_t bytes;
    unsigned chunk_shift;
    unsigned gpu_count;
    struct hr_chunk *chunks;
    _Atomic(uint64_t) *starts; /* one bit per HR_SMALL_ALIGN bytes of all windows */
    struct {
        uint32_t first_chunk, chunk_count;
        _Atomic(uint32_t) used_chunks; /* from the first on: none behind them ever had an extent */
    } window[HR_MAX_GPUS];
};
extern struct hr_space hr_space HR_HIDDEN;

/* How many chunks of a window have to be looked at, from its first on. No lock. */
static inline uint32_t hr_space_used_chunks(unsigned gpu)
{
    return atomic_load_explicit(&hr_space.window[gpu].used_chunks, memory_order_acquire);
}

static inline size_t hr_chunk_bytes(void)
{
    return (size_t)1 << hr_space.chunk_shift;
}
static inline CUdeviceptr hr_chunk_address(const struct hr_chunk *c)
{
    return hr_space.base + ((CUdeviceptr)(c - hr_space.chunks) << hr_space.chunk_shift);
}
/* The chunk that holds this address; NULL = outside every window. No lock, any thread. */
static inline struct hr_chunk *hr_space_chunk(CUdeviceptr address)
{
    CUdeviceptr offset = address - hr_space.base;
    return offset < hr_space.bytes ? &hr_space.chunks[offset >> hr_space.chunk_shift] : NULL;
}
static inline bool hr_space_owns(CUdeviceptr address)
{
    return address - hr_space.base < hr_space.bytes;
}
/* The live extent that holds this address, or NULL. */
static inline struct hr_extent *hr_space_extent(CUdeviceptr address)
{
    struct hr_chunk *c = hr_space_chunk(address);
    struct hr_extent *e = c ? atomic_load_explicit(&c->extent, memory_order_acquire) : NULL;
    return e && atomic_load_explicit(&e->live, memory_order_acquire) ? e : NULL;
}

/* Whether the chunk is e's own: no hole of it. */
static inline bool hr_space_is_of(const struct hr_chunk *c, const struct hr_extent *e)
{
    return atomic_load_explicit(&c->extent, memory_order_acquire) == e;
}
/* Whether it is e's own and has no backing; under the move lock. */
static inline bool hr_space_lacks_backing(const struct hr_chunk *c, const struct hr_extent *e)
{
    return !c->phys && hr_space_is_of(c, e);
}

/* One life of an extent, copied. */
struct hr_view {
    CUdeviceptr base;
    size_t bytes;
    uint64_t id;
    CUcontext ctx;
    struct hr_slab *slab;
    uint32_t first_chunk, chunk_count;
    uint8_t kind;
};
/* What e is now; false = it was freed (or changes hands at this moment). No lock, any thread. */
static inline bool hr_space_view(const struct hr_extent *e, struct hr_view *view_out)
{
    uint32_t version = atomic_load_explicit(&e->version, memory_order_acquire);
    if ((version & 1) || !atomic_load_explicit(&e->live, memory_order_acquire))
        return false;
    /* acquire each: the version is read again after them all */
    view_out->first_chunk = atomic_load_explicit(&e->first_chunk, memory_order_acquire);
    view_out->chunk_count = atomic_load_explicit(&e->chunk_count, memory_order_acquire);
    view_out->base = atomic_load_explicit(&e->base, memory_order_acquire);
    view_out->bytes = atomic_load_explicit(&e->bytes, memory_order_acquire);
    view_out->id = atomic_load_explicit(&e->id, memory_order_acquire);
    view_out->ctx = atomic_load_explicit(&e->ctx, memory_order_acquire);
    view_out->slab = atomic_load_explicit(&e->slab, memory_order_acquire);
    view_out->kind = atomic_load_explicit(&e->kind, memory_order_acquire);
    return atomic_load_explicit(&e->version, memory_order_relaxed) == version;
}

/* Cheap, monotonic enough to order uses: the CPU's time stamp counter. */
static inline uint64_t hr_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t v;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
    return v;
#else
#error "hr_ticks: add this architecture's counter"
#endif
}

/*
 * Reserves the windows: for GPU g HR_SPACE_SPARE times cap_bytes[g] of addresses, so that neither their fragmentation costs
 * capacity nor what a job reserves and never fills; half as much, down to once, where all are more than HR_SPACE_MOST (a
 * process has 2^47) or the driver has no such range (other reservations, sanitizers). Rounded up to chunks of
 * 1 << chunk_shift (the driver's granularity). Errors: what cuMemAddressReserve returns; OUT_OF_MEMORY where the kernel
 * refuses the tables. Once.
 */
#define HR_SPACE_SPARE 8
#define HR_SPACE_MOST ((size_t)1 << 45)
CUresult hr_space_init(unsigned gpu_count, const size_t *cap_bytes, unsigned chunk_shift);

/*
 * An allocation of `bytes` from the window of `gpu`, owned by `ctx`; no backing yet, no driver call. Takes the commit
 * charge. OUT_OF_MEMORY: the ledger has no room for it (the caller may release quarantine and try again). INVALID_VALUE:
 * bytes is 0. Locks: none when served from the thread's cache, else the window's (HR_RANK_TABLE) and the ledger's.
 */
CUresult hr_space_alloc(struct hr_thread *t, unsigned gpu, CUcontext ctx, size_t bytes, CUdeviceptr *address_out);

/*
 * A number that the caller keeps with a small allocation (one of an extent of kind SLAB), for its statistics; 0 = none, and
 * so after hr_space_alloc. forget returns what was there. each visits the numbers that are not 0, with the bytes of the
 * slot. No lock: whoever notes or forgets owns the allocation.
 */
void hr_space_note_site(struct hr_extent *e, CUdeviceptr address, uint16_t site);
uint16_t hr_space_forget_site(struct hr_extent *e, CUdeviceptr address);
void hr_space_each_site(struct hr_extent *e, void (*visit)(uint16_t site, size_t bytes));

enum hr_retire {
    HR_RETIRE_NOT_OURS,  /* outside the windows: the driver's business */
    HR_RETIRE_INVALID,   /* inside, but not the start of a live allocation */
    HR_RETIRE_UNTOUCHED, /* dead now, never backed: hr_space_release may follow at once */
    HR_RETIRE_TOUCHED,   /* dead now; hr_space_release only after all work submitted before is done */
};
/* First half of a free: the allocation stops being live. Exactly one of several racing callers gets a RETIRE_(UN)TOUCHED.
 * *bytes_out, *extent_out are set on these two. */
enum hr_retire hr_space_retire(CUdeviceptr address, size_t *bytes_out, struct hr_extent **extent_out);

/*
 * Second half: the address may be handed out again. For a large extent the caller has dropped the backing of its chunks.
 * Where the last slot of a slab came back, returns the slab's extent, already dead: the caller drops its backing and calls
 * hr_space_release_slab. Locks: as hr_space_alloc.
 */
struct hr_extent *hr_space_release(struct hr_thread *t, CUdeviceptr address);
void hr_space_release_slab(struct hr_thread *t, struct hr_extent *slab_extent);

/*
 * Between the two halves: the allocation lives again at its address, for the same owner and at its old backing, with another
 * size: at most what hr_space_block_bytes says. The caller is the one who retired it, and had hr_hidden_forget called.
 * No lock.
 */
void hr_space_revive(struct hr_thread *t, CUdeviceptr address, size_t bytes);
/* Small allocations come in classes, from 0 on, in slots of these sizes; HR_SMALL_CLASSES = one of whole chunks. */
#define HR_SMALL_CLASSES 72
unsigned hr_space_small_class(size_t bytes);
size_t hr_space_small_bytes(unsigned small_class);
/* The bytes that an allocation of this size takes up: its slot, or whole chunks. */
size_t hr_space_block_bytes(size_t bytes);

/*
 * Addresses for mappings of the job's own: an extent of kind VMM that has no chunks yet; NULL = there are not so many. extend makes it
 * reach over so many chunks from its start on, less or more than before; the caller sees to it that only one does so at a time.
 * unreserve gives the addresses back, of which at most top_chunks were in use at some time; none has an extent now. Locks: the
 * window's.
 */
struct hr_extent *hr_space_reserve(struct hr_thread *t, unsigned gpu, uint32_t chunk_count);
void hr_space_extend(struct hr_extent *e, uint32_t chunk_count);
void hr_space_unreserve(struct hr_extent *e, uint32_t reserved_chunks, uint32_t top_chunks);

struct hr_allocation {
    CUdeviceptr base;
    size_t bytes;
    uint64_t id;
    unsigned gpu;
    CUcontext ctx;
    struct hr_extent *extent;
};
/* The live allocation that holds `address` (interior pointers too); false = none. No lock. */
bool hr_space_find(CUdeviceptr address, struct hr_allocation *allocation_out);
/* Whether the range lies within one live allocation, or in memory that the job mapped itself, without holes. No lock. */
bool hr_space_holds(CUdeviceptr address, size_t bytes);

/* Gives the thread's cached addresses and commit credit back (before an out-of-memory is returned). Locks: hold none. */
void hr_space_flush_thread(struct hr_thread *t);
/* All allocations of the context were released: the same, and no slab of it is kept. Locks: hold none. */
void hr_space_context_gone(struct hr_thread *t, CUcontext ctx);
/* How the backing of a dead slab is taken away (residency's part); false = it keeps its backing. Once, at start. */
void hr_space_set_dropper(bool (*drop)(struct hr_extent *e));

/* Calls visit for the address of every live allocation of the context (NULL = every context), until it returns false.
 * visit may retire the address that it is given. Locks: none held while visit runs. */
void hr_space_each(CUcontext ctx, bool (*visit)(CUdeviceptr address, void *arg), void *arg);

/* --- learned extents ------------------------------------------------------------------------------------------------ */

/* Remembers that `address` begins something (a kernel argument, a copy). No-op for slabs and single chunks. */
void hr_space_learn_start(struct hr_extent *e, CUdeviceptr address);
/* End of the piece that starts at `address` in e, as viewed: the next remembered start, else the allocation's end. */
CUdeviceptr hr_space_piece_end(const struct hr_extent *e, const struct hr_view *view, CUdeviceptr address);

#endif
