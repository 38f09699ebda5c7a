/*
 * simgpu's driver, seen from the inside: the objects behind CUDA's handles and what the rooms offer each other.
 *
 * Handles are never pointers and never reused, so that a stale or invented handle is always noticed.
 *
 * Lock catalogue, in the order in which they may be taken:
 *   1. sg.lock          every object, queue, registry, counter of this file unless it says otherwise. Every entry point takes
 *                       it once. Not held while a kernel slice, a copy, a fill or a job's host function runs.
 *   2. sg.host_lock     read-write: the table of pinned host ranges (written under both locks, read under either one), since
 *                       kernels and copies read it with no other lock held.
 *   3. sg_pool.fill_lock  filling a fresh frame with the poison pattern.
 * Page-table entries are atomics of their own (see pagetable.h).
 */
#ifndef SG_SIM_H
#define SG_SIM_H

#pragma GCC visibility push(default)
#include <cuda.h>
CUresult cuProfilerInitialize(const char *config_file, const char *output_file, int output_mode);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

#include "simgpu/pagetable.h"
#include "simgpu/ptx/ptx.h"
#include "simgpu/vtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <uthash.h>
#include <utlist.h>
#pragma GCC diagnostic pop

#define SG_MAX_DEVICES 16 /* of machines with a topology; 8 of one model alone */
#define SG_SMALL_SLOT_BYTES UINT64_C(512)
#define SG_BLOCK_SLOTS (SG_PAGE_BYTES / SG_SMALL_SLOT_BYTES)
#define SG_POISON UINT64_C(0xfff7deadfff7dead) /* a NaN as f32 and f64, an absurd integer, no address */
#define SG_ON_HOST (-1)                        /* in place of a device's index */
/* Limits of textures and surfaces, in texels. */
#define SG_TEXTURE_MOST 131072
#define SG_TEXTURE_2D_MOST 131072
#define SG_TEXTURE_3D_MOST 16384
#define SG_TEXTURE_LAYERS_MOST 2048
#define SG_TEXTURE_LINEAR_MOST (1 << 28)
#define SG_MIB (UINT64_C(1) << 20)

/* ---- models and settings ---- */

extern const int sg_driver_version; /* as cuDriverGetVersion tells it; a constant of the library, see version.c */

struct sg_model {
    const char *key;  /* as in SIMGPU= */
    const char *name; /* as cuDeviceGetName tells it */
    int major, minor;
    uint64_t vram_bytes;
    uint64_t context_bytes; /* what a context takes on the real card */
    int sm_count, blocks_per_sm, threads_per_sm;
    int shared_per_sm_bytes, shared_optin_bytes;
    int l2_bytes, clock_khz, memory_clock_khz, bus_bits;
    int pci_device_id;
    int copy_engines;
    int fp64_ratio; /* f32 rate over f64 rate */
    bool peer, peer_atomics, ecc, rdma;
    /* what virtual time rests on; GB are 10^9 bytes */
    double fp32_tflops, fp64_tflops, tensor_tflops; /* tensor: dense, fp16 */
    double vram_gbps;
    double h2d_gbps, d2h_gbps, both_ways_gbps; /* copies; each way when both are busy */
    double host_read_gbps, host_write_gbps;    /* kernels on host memory */
    double peer_gbps;
    double memory_latency_cycles, host_latency_ns;
    int schedulers_per_sm;
};

const struct sg_model *sg_model_find(const char *key, size_t key_bytes); /* NULL: no such model */
const char *sg_model_names(void);                                        /* "h200, h100, ..." */

enum sg_fail_mode { SG_FAIL_ONCE, SG_FAIL_EVERY };
struct sg_fail {
    char name[64];
    enum sg_fail_mode mode;
    uint64_t n;
    _Atomic(uint64_t) calls;
    CUresult error;
};

struct sg_topology;
struct sg_config {
    const struct sg_model *model;
    struct sg_topology *topology; /* NULL: cards of one model and nothing known of what lies between */
    uint64_t vram_bytes, host_bytes;
    int gpus;
    uint64_t seed;
    bool replay;         /* the seed and the job's calls decide everything, see replay.c */
    bool sync;           /* SIMGPU_SYNC: every submission waits for its end */
    bool deny_host_numa; /* SIMGPU_DENY */
    bool deny_routers;   /* the same: the node's calls tell of no elements */
    bool eager;          /* CUDA_MODULE_LOADING=EAGER: libraries are loaded into all contexts at once */
    int log_level;       /* SIMGPU_LOG: 0 off, 1 error, 2 warn (default), 3 info */
    char report[4096];   /* SIMGPU_REPORT, %p expanded when written; "" = none */
    char timeline[4096]; /* SIMGPU_TIMELINE, likewise */
    char cards[4096];    /* SIMGPU_CARDS: see cards.h; "" = none */
    struct sg_fail *fails;
    size_t fail_count;
};

/* Reads the environment. On a bad value says so in one line on stderr and returns CUDA_ERROR_INVALID_VALUE. */
CUresult sg_config_read(struct sg_config *config_out);
/* The same into sg.config, by whichever of CUDA and NVML is first; with sg.lock held. */
CUresult sg_config_once(void);
void sg_device_uuid(int card, uint8_t *bytes); /* 16 of them */
/*
 * The cards of a machine of so many that a list as in CUDA_VISIBLE_DEVICES names, in its order (NULL: all); how many. Devices are
 * what a process sees, and everything here counts by them; cards are the machine's, and what the node, NVML and other processes count
 * by: sg.card[] leads from one to the other, sg_device_of back (-1: not visible here).
 */
int sg_visible_read(const char *list, int cards, int card_out[]);
int sg_device_of(int card);
/* The injected error that this call of `function` is to return, or CUDA_SUCCESS. Thread-safe. */
CUresult sg_fail_check(const char *function);

enum sg_log_level { SG_LOG_ERROR = 1, SG_LOG_WARN, SG_LOG_INFO };
void sg_log(enum sg_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- objects ---- */

enum sg_kind {
    SG_CONTEXT = 1,
    SG_STREAM,
    SG_EVENT,
    SG_MODULE,
    SG_FUNCTION,
    SG_CHUNK,
    SG_LIBRARY,
    SG_ENTRY,
    SG_LINK,
    SG_MEMPOOL,
    SG_EXTERNAL,
    SG_ARRAY,
    SG_MIPMAP,
    SG_GREEN,
    SG_DESCRIPTION,
    SG_TEXREF,
    SG_GRAPH,
    SG_NODE,
    SG_EXEC,
    SG_USER_OBJECT
};

struct sg_object {
    uint64_t id; /* the handle's value */
    enum sg_kind kind;
    UT_hash_handle hh;
};

void sg_object_add(struct sg_object *object, enum sg_kind kind);
void sg_object_remove(struct sg_object *object);
/* NULL: no live object of that kind. A green context is found as its primary context, too. */
void *sg_object_find(uint64_t id, enum sg_kind kind);
#define SG_FIND(handle, kind) sg_object_find((uint64_t)(uintptr_t)(handle), kind)
#define SG_HANDLE(type, thing) ((type)(uintptr_t)(thing)->object.id)

/* ---- ranges of addresses ---- */

struct sg_range {
    uint64_t va, bytes;
    void *owner;
};
struct sg_ranges { /* sorted, disjoint */
    struct sg_range *at;
    size_t count, room;
};
bool sg_ranges_add(struct sg_ranges *ranges, uint64_t va, uint64_t bytes, void *owner); /* false: out of host memory */
void sg_ranges_remove(struct sg_ranges *ranges, uint64_t va);
void *sg_ranges_find(const struct sg_ranges *ranges, uint64_t va); /* the owner of the one around va */
bool sg_ranges_overlap(const struct sg_ranges *ranges, uint64_t va, uint64_t bytes);

/* ---- physical memory ---- */

/* All 2 MiB frames of one GPU's VRAM, or of host memory: one sparse memfd, mapped once (the alias). */
struct sg_pool {
    int device; /* or SG_ON_HOST */
    int fd;
    uint8_t *alias;
    size_t frames;      /* capacity */
    size_t fresh;       /* frames from here on were never used */
    uint32_t *recycled; /* a stack */
    size_t recycled_count;
    _Atomic(uint8_t) *filled; /* per frame: poisoned (or written) since it was last handed out */
    pthread_mutex_t fill_lock;
};

/* A physical allocation: behind a CUmemGenericAllocationHandle, or behind cuMemAlloc. */
struct sg_chunk {
    struct sg_object object; /* id 0: not a handle of the job's */
    CUmemAllocationProp prop;
    int device; /* or SG_ON_HOST */
    size_t pages;
    struct sg_pool *pool;
    uint32_t *frame; /* of the pool; NULL for shareable chunks */
    uint8_t *own;    /* shareable: own mapping of fd */
    int fd;
    uint64_t inode;       /* shareable: identity of the fd */
    unsigned handle_refs; /* create, retain, import; minus release */
    unsigned mapping_refs;
    bool is_view;                 /* `own` shows memory that is somebody else's, who is charged for it */
    struct sg_runs *runs;         /* frame[] is a run of its frames, which go back there */
    struct sg_chunk *prev, *next; /* shareable ones */
};

/* Frames that come and go in runs, of a memfd that other processes may map as well. Unlike a device's they are filled with
 * poison when they are handed out. */
struct sg_runs {
    struct sg_pool pool;
    uint8_t *taken; /* per frame */
};
CUresult sg_runs_init(struct sg_runs *runs, int device, size_t frames, const char *name);
void sg_runs_finish(struct sg_runs *runs);
/* As sg_chunk_create, with adjacent frames. */
CUresult sg_chunk_create_run(struct sg_runs *runs, size_t pages, struct sg_chunk **chunk_out);

CUresult sg_pool_init(struct sg_pool *pool, int device, uint64_t bytes);
/* Poisons the frame behind a host address inside a pool if that has not happened since it was handed out. Thread-safe. */
void sg_pool_fill(uint64_t host_address);
/* Takes pages of `device`'s memory, charged; OUT_OF_MEMORY beyond the limit. `shareable` ones have a memfd of their own. */
CUresult sg_chunk_create(int device, size_t pages, bool shareable, struct sg_chunk **chunk_out);
void sg_chunk_destroy(struct sg_chunk *chunk);
/* Checks what a chunk is to be: the device, or SG_ON_HOST. INVALID_VALUE, INVALID_DEVICE, NOT_SUPPORTED, NOT_PERMITTED. */
CUresult sg_chunk_check(const CUmemAllocationProp *prop, int *device_out);
/* Pages of somebody else's memfd, from the given page of it on each (NULL: from `first` on). */
CUresult sg_chunk_create_view(int device, int fd, const uint32_t *page, uint64_t first, size_t pages,
                              struct sg_chunk **chunk_out);
/* The chunk's page as a page-table entry without rights and tier: host address, and SG_PTE_SLOW if it needs poison yet. */
uint64_t sg_chunk_entry(const struct sg_chunk *chunk, size_t page);
/* These pages of a chunk that is not shareable hold nothing any more: they are filled with poison before the next use. */
void sg_chunk_forget(struct sg_chunk *chunk, size_t page, size_t pages);
/* Lets the CPU see pages of the chunk at `va` (rights as for mmap), or no longer (PROT_NONE). False: it cannot be. */
bool sg_chunk_show_host(struct sg_chunk *chunk, uint64_t va, size_t pages, int protection);

/* ---- virtual memory ---- */

enum sg_region_kind { SG_REGION_ALLOC, SG_REGION_BLOCK, SG_REGION_MAPPING, SG_REGION_SEGMENT };
struct sg_region { /* what sg.regions holds for each of its 2 MiB pages */
    enum sg_region_kind kind;
    uint64_t va, bytes;
};

struct sg_alloc {               /* cuMemAlloc memory, or a module's variables */
    struct sg_region region;    /* bytes as asked for */
    struct sg_context *context; /* NULL: of a memory pool */
    int device;                 /* whose memory it is, or SG_ON_HOST */
    struct sg_chunk *chunk;     /* NULL: a part of a block or of a pool's segment */
    struct sg_block *block;
    struct sg_piece *piece;     /* of a memory pool: see mempool.h */
    struct sg_foreign *foreign; /* memory of another process, or external: see share.h */
    struct sg_managed *managed; /* see managed.c */
    struct sg_ipc *ipc;         /* other processes may open it: see ipc.c */
    uint64_t reserved_bytes;    /* of addresses, large ones */
    uint64_t buffer_id;
    bool is_module, sync_memops;
    bool was_backed;               /* of those: at some time */
    struct sg_graph_memory *graph; /* of a graph's allocation node: there only while that has run */
    struct sg_alloc *prev, *next;  /* of the context */
};

struct sg_block { /* 2 MiB shared by small allocations of one context */
    struct sg_region region;
    struct sg_context *context;
    struct sg_chunk *chunk;
    struct sg_alloc *slot[SG_BLOCK_SLOTS];
    unsigned free_slots;
    unsigned hint;
    struct sg_block *prev, *next;
};

struct sg_reservation {
    uint64_t va, bytes;
    struct sg_mapping *mappings;
};

struct sg_mapping { /* one cuMemMap */
    struct sg_region region;
    struct sg_reservation *reservation;
    struct sg_chunk *chunk;
    uint8_t access[SG_MAX_DEVICES]; /* CUmemAccess_flags */
    uint8_t host_access;
    uint64_t buffer_id;
    struct sg_mapping *prev, *next; /* of the reservation */
};

struct sg_host { /* pinned host memory */
    uint64_t va, bytes;
    uint64_t map_bytes; /* allocated: what to unmap; 0 = registered */
    uint64_t alias;     /* the same memory for copies and kernels, while the job's address may be protected; 0 = none */
    unsigned flags;
    struct sg_context *context;
    uint64_t buffer_id;
};

CUresult sg_address_init(void);
uint64_t sg_va_reserve(uint64_t bytes, uint64_t align, uint64_t wanted); /* PROT_NONE, below 2^47; 0 = none */
void sg_va_release(uint64_t va, uint64_t bytes);
struct sg_region *sg_region_at(uint64_t va);
bool sg_regions_set(struct sg_region *region, uint64_t va, uint64_t bytes); /* region NULL clears */
struct sg_alloc *sg_alloc_at(uint64_t va);
struct sg_mapping *sg_mapping_at(uint64_t va);
struct sg_reservation *sg_reservation_at(uint64_t va);
struct sg_host *sg_host_at(uint64_t va);
static inline uint64_t sg_host_place(const struct sg_host *h, uint64_t va)
{
    return h->alias ? h->alias + (va - h->va) : va;
}

/* Writes the entries of pages [va, va + chunk) of one device. rights 0 clears them. */
void sg_pagetable_set(int device, uint64_t va, const struct sg_chunk *chunk, size_t pages, uint64_t rights);
/* The same for a part of a chunk, from its page `first` on. */
void sg_pagetable_set_part(int device, uint64_t va, const struct sg_chunk *chunk, size_t first, size_t pages,
                           uint64_t rights);
/* Allocates device memory of a context as cuMemAlloc does. */
CUresult sg_alloc_create(struct sg_context *context, uint64_t bytes, bool is_module, struct sg_alloc **alloc_out);
/* Addresses of their own for an allocation, with nothing behind them. */
CUresult sg_alloc_reserve(struct sg_context *context, uint64_t bytes, struct sg_alloc **alloc_out);
/* Puts a chunk behind them, which stays the caller's; NULL takes it away again, and what it held is no more. */
void sg_alloc_back(struct sg_alloc *alloc, struct sg_chunk *chunk);
void sg_alloc_destroy(struct sg_alloc *alloc);
/* The device whose page table a call of a context on `device` reaches it by; false: it must not, for lack of access. */
bool sg_alloc_view(const struct sg_alloc *alloc, int device, bool write, int *device_out);
/* Makes all cuMemAlloc memory of `owner` visible to device `viewer`, or hides it. */
void sg_alloc_expose(struct sg_context *owner, int viewer, bool visible);
/* A grid or copy names [va, va+bytes): is all of it memory, as far as a call can tell (rights are checked at execution)? */
bool sg_range_is_memory(uint64_t va, uint64_t bytes);
/* Writes into `text` what lies at or near a bad address: one clause. */
void sg_describe_address(uint64_t va, char *text, size_t text_bytes);
void sg_host_destroy(struct sg_host *host);
void sg_note_freed(uint64_t va, uint64_t bytes);
/* The same for what work in flight may still use: races on it are looked for on. */
void sg_note_freed_later(uint64_t va, uint64_t bytes);
void sg_note_unmapped(uint64_t va, uint64_t bytes);

/* ---- devices ---- */

enum sg_direction { SG_H2D, SG_D2H, SG_D2D, SG_P2P, SG_H2H, SG_DIRECTION_COUNT };
enum sg_engine { SG_ENGINE_H2D, SG_ENGINE_D2H, SG_ENGINE_D2D, SG_ENGINE_COUNT };

struct sg_device {
    int index;
    struct sg_pagetable pagetable;
    _Atomic(uint32_t) *touched; /* see pagetable.h; relaxed, and compared with sg_kernel.view.touch_id under sg.lock */
    struct sg_pool pool;
    uint64_t used_bytes, peak_bytes; /* of VRAM */
    struct sg_context *primary;
    /* running */
    struct sg_op *grids;                   /* started kernels */
    double share;                          /* of the SMs that they hold */
    struct sg_op *engine[SG_ENGINE_COUNT]; /* started copies, in order; the first is on the engine */
    bool engine_busy[SG_ENGINE_COUNT];
    struct sg_op *host_ops; /* started host functions */
    unsigned host_turns;    /* functions that the host thread may carry out, in a replay */
    bool host_busy;
    _Atomic(bool) host_back; /* the function has returned */
    bool host_thread;
    clockid_t host_cpu_clock;
    pid_t host_tid;
    pthread_cond_t host_cv;
    /* counters for the report */
    uint64_t kernels, copied[SG_DIRECTION_COUNT];
    uint64_t read[SG_TIER_COUNT], written[SG_TIER_COUNT];
    uint64_t unmapped_in_flight, freed_in_flight;
    uint64_t maps, unmaps, set_accesses;
    uint64_t warp_instructions, flops, double_flops, tensor_flops;
};

/* Charges VRAM; CUDA_ERROR_OUT_OF_MEMORY when it does not fit. */
CUresult sg_vram_take(int device, uint64_t bytes);
void sg_vram_give(int device, uint64_t bytes);

/* ---- contexts, streams, events ---- */

struct sg_context {
    struct sg_object object;
    int device;
    bool primary, active, finalizing;
    unsigned primary_refs;
    unsigned flags, primary_flags;
    unsigned api_version;
    uint64_t number;
    uint64_t charge_bytes;
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache_config;
    CUresult sticky;
    CUresult passing;          /* an error that is told once, see linkfault.c */
    struct sg_context **peers; /* contexts whose memory this one enabled, in no order */
    unsigned peer_count;
    unsigned viewers[SG_MAX_DEVICES]; /* contexts of each device that enabled this one's memory */
    struct sg_stream *legacy;
    struct sg_stream *streams;
    struct sg_alloc *allocs;
    struct sg_block *blocks;
    struct sg_array *arrays; /* see array.h */
    struct sg_mipmap *mipmaps;
    struct sg_module *modules;
    struct sg_event *events;
    struct ptx_heap *heap; /* of the kernels' malloc; its memory is one of allocs */
    uint64_t heap_va, heap_bytes;
    struct ptx_fifo *fifo; /* of their printf */
    struct sg_vcontext *vtime;
    struct sg_clock *gone[2]; /* race.c: the work of streams that are gone; 1 = of blocking ones */
    struct sg_context *prev, *next;
};

enum sg_stream_type { SG_STREAM_LEGACY, SG_STREAM_THREAD, SG_STREAM_CREATED, SG_STREAM_GRAPH };
struct sg_stream {
    struct sg_object object;
    struct sg_context *context;
    enum sg_stream_type type;
    unsigned flags;
    int priority;
    uint64_t number;
    uint64_t thread; /* of SG_STREAM_THREAD */
    uint64_t green;  /* the green context that it belongs to, see green.h; 0 = none */
    struct sg_op *head, *tail;
    bool queued;                  /* in sg.busy_streams */
    uint64_t submitted, last_seq; /* of the last submission */
    _Atomic(uint64_t) completed;  /* written under sg.lock, polled without */
    struct sg_known *known;       /* see order.c */
    unsigned waiters;
    bool dead;
    struct sg_race_line *race; /* see check.h */
    struct {
        CUaccessPolicyWindow window;
        CUsynchronizationPolicy sync_policy; /* 0: never set */
        CUlaunchMemSyncDomainMap domain_map;
        CUlaunchMemSyncDomain domain;
        bool has_map;
    } hints;                                 /* see streamattr.c */
    struct sg_vstream *vtime;                /* NULL: out of host memory */
    struct sg_captured *captured;            /* NULL: it is not in a capture, see capture.h */
    struct sg_stream *capture_next;          /* of the capture */
    struct sg_stream *prev, *next;           /* of the context */
    struct sg_stream *busy_prev, *busy_next; /* of sg.busy_streams */
};

struct sg_clock;
struct sg_mark { /* one recording of an event */
    unsigned refs;
    bool done;
    struct sg_clock *clock;                /* what is over when it is done; owned, see race.c */
    struct sg_known *known;                /* likewise, owned, see order.c */
    bool placed, given_up;                 /* see vwait.c */
    uint64_t submit_ns, time_ns, lower_ns; /* virtual; until it is placed, it is not before lower_ns */
    struct sg_context *context;            /* compared only */
    struct sg_shared_event *shared;        /* of an event of several processes, see ipcevent.c; owned */
    uint64_t shared_number;                /* which of its recordings this is */
    bool remote;                           /* another process made it */
};

struct sg_event {
    struct sg_object object;
    struct sg_context *context;
    unsigned flags;
    struct sg_mark *mark;               /* the latest recording */
    struct sg_shared_event *shared;     /* see ipcevent.c; owned */
    struct sg_captured_event *captured; /* that was in a capture; NULL: it was not, see capture.c */
    struct sg_event *prev, *next;
};

/* Queues a recording, with sg.lock held (and released for a while with SIMGPU_SYNC). */
CUresult sg_event_record(struct sg_event *event, struct sg_stream *stream);
void sg_event_free(struct sg_event *event); /* off its context's list already */
/* The mark is its latest recording from now on; the event takes a reference of its own. */
void sg_event_recorded(struct sg_event *event, struct sg_mark *mark);
struct sg_mark *sg_mark_new(struct sg_context *context); /* one reference; NULL: out of host memory */
struct sg_mark *sg_mark_ref(struct sg_mark *mark);
void sg_mark_done(struct sg_mark *mark); /* its recording has run */

/* ---- events of several processes ---- */
CUresult sg_shared_event_create(struct sg_shared_event **shared_out);
void sg_shared_event_unref(struct sg_shared_event *shared); /* NULL is fine */
/* The mark is the latest recording from now on. */
void sg_shared_event_recorded(struct sg_shared_event *shared, struct sg_mark *mark);
void sg_shared_event_done(const struct sg_mark *mark);
bool sg_shared_event_is_done(const struct sg_mark *mark);
/* Waits until another process's recording has run; sg.lock is released meanwhile. */
void sg_shared_event_wait(const struct sg_mark *mark);
/* A reference to the latest recording, whichever process made it; NULL: none yet, or (*result_out) out of host memory. */
struct sg_mark *sg_event_latest(struct sg_event *event, CUresult *result_out);
bool sg_event_is_recorded(const struct sg_event *event); /* by whichever process */
void sg_mark_unref(struct sg_mark *mark);

enum sg_op_kind {
    SG_OP_KERNEL,
    SG_OP_COPY,
    SG_OP_FILL,
    SG_OP_RECORD,
    SG_OP_WAIT,
    SG_OP_HOST,
    SG_OP_VALUE_WAIT,
    SG_OP_VALUE_WRITE,
    SG_OP_ALLOC,
    SG_OP_FREE,
    SG_OP_GRAPH
};
enum sg_op_state { SG_OP_QUEUED, SG_OP_READY, SG_OP_RUNNING };

struct sg_copy { /* also 2D and 3D; an operand is a plain host pointer or an address in a device's page table */
    uint64_t dst, src;
    size_t dst_pitch, src_pitch, width_bytes, height;
    int dst_device, src_device; /* or SG_ON_HOST */
    void *staging;              /* owned: the source's rows without gaps */
    size_t depth, dst_slice, src_slice;
    bool pageable;               /* the host's side is, and is not staged */
    struct sg_managed *prefetch; /* it moves managed memory, see managed.c */
    uint64_t prefetch_base;      /* the allocation's address */
    int prefetch_to;             /* a device, or SG_ON_HOST */
};
static inline uint64_t sg_copy_bytes(const struct sg_copy *copy)
{
    return (uint64_t)copy->width_bytes * copy->height * copy->depth;
}
struct sg_fill {
    uint64_t dst;
    size_t pitch, width_bytes, height;
    uint32_t value;
    unsigned element_bytes;
    int device; /* whose page table */
};
struct sg_kernel {
    struct sg_function *function;
    unsigned grid[3], block[3], shared_bytes;
    void *params;
    uint64_t *words; /* those words of params that named memory when it was launched */
    size_t word_count;
    struct sg_pagetable view; /* the device's page table, with this grid's touch_id */
    int device;               /* whose; set where the view sees accesses, as is this: */
    uint64_t heap_va, heap_bytes;
    struct ptx_grid *run;
    double share;
    unsigned resident_blocks;
    unsigned users; /* threads inside ptx_grid_run or creating `run` */
    bool creating, finished, skip, out_of_memory;
    bool cooperative; /* all its blocks must be resident at once */
};
struct sg_value { /* a stream memory operation */
    uint64_t va, value;
    unsigned bytes, flags; /* 4 or 8; of a wait: which comparison */
    int device;            /* whose page table */
};
struct sg_host_call {
    CUhostFn fn;
    CUstreamCallback callback;
    void *data;
    CUstream handle; /* as given, for the callback */
    CUresult status;
};

enum sg_graph_action { SG_GRAPH_BEGIN, SG_GRAPH_END, SG_GRAPH_ALLOC, SG_GRAPH_FREE, SG_GRAPH_CONDITION };
struct sg_graph_op { /* what a launch of a graph does beside its nodes' operations, see graphrun.c */
    enum sg_graph_action action;
    struct sg_run *run;               /* counted; NULL: a memory operation */
    struct sg_graph_memory *memory;   /* counted */
    const struct sg_graph_step *step; /* a condition: the run's executable graph has it */
    struct sg_mark *mark;             /* the end of the body that runs; NULL: none has run yet */
    unsigned rounds;
};

struct sg_op {
    enum sg_op_kind kind;
    enum sg_op_state state;
    bool inline_run; /* the submitting thread carries it out itself */
    bool cancelled;
    bool in_graph; /* of a launch of a graph */
    bool hung;     /* a copy over a path that hangs: it never ends */
    struct sg_stream *stream;
    uint64_t seq, ticket;
    enum sg_engine engine;
    struct sg_race_op *race; /* see check.h */
    union {
        struct sg_copy copy;
        struct sg_fill fill;
        struct sg_kernel kernel;
        struct sg_mark *mark;
        struct sg_host_call host;
        struct sg_value value;
        struct sg_span *span; /* of SG_OP_ALLOC and SG_OP_FREE: see mempool.h */
        struct sg_graph_op graph;
    };
    struct sg_vop *vop;                /* its side in virtual time */
    struct sg_op *next;                /* of the stream */
    struct sg_op *run_prev, *run_next; /* of the device's lists */
};

struct sg_module {
    struct sg_object object;
    struct sg_context *context;
    struct ptx_module *ptx;
    uint64_t charge_bytes;
    struct sg_alloc **globals; /* one per ptx global */
    struct sg_texref *texrefs; /* that were asked for, see texref.c */
    struct sg_function *functions;
    struct sg_library *library; /* that it was loaded for; NULL: the job's own */
    struct sg_module *prev, *next;
};

struct sg_function {
    struct sg_object object;
    struct sg_module *module;
    const struct ptx_function *ptx;
    const struct ptx_function_info *info;
    int dynamic_shared_max;
    int carveout;
    bool dynamic_set, carveout_set; /* by cuFuncSetAttribute, which overrides what is set on the kernel */
    struct sg_entry *entry;         /* of a library's module: its kernel */
    struct sg_legacy *legacy;       /* see legacy.c */
    unsigned in_flight;
    struct sg_kernel_total *time_total; /* NULL until its first launch */
    struct sg_function *next;
};

/* ---- everything ---- */

struct sg {
    pthread_mutex_t lock;
    pthread_rwlock_t host_lock;
    pthread_cond_t work_cv, copy_cv, done_cv, print_cv;
    bool printing;  /* a thread writes kernels' output, without the lock */
    unsigned fifos; /* contexts that have one */
    struct sg_config config;
    _Atomic(bool) ready;  /* cuInit succeeded */
    _Atomic(bool) forked; /* a child of the process that did it */
    CUresult init_result;
    _Atomic(bool) init_tried; /* config is filled in; written under sg.lock */
    uint64_t pid;
    struct sg_device devices[SG_MAX_DEVICES];
    int device_count;
    int card[SG_MAX_DEVICES]; /* of each device: where it is in the machine, and what other processes call it */
    struct sg_pool host_pool;
    uint64_t host_used_bytes, host_peak_bytes;
    int numa_nodes;
    struct sg_object *objects;
    uint64_t next_id, next_number, next_buffer_id;
    uint64_t next_seq; /* orders all operations, for the legacy streams' rules and for waits */
    struct sg_context *contexts;
    struct sg_chunk *shareable;
    struct sg_mempool *mempools;
    struct sg_known *host_known; /* see order.c */
    bool orders;                 /* memory was freed in stream order: who comes after that is kept */
    struct sg_region **regions;  /* a flat sparse table, one per 2 MiB page */
    struct sg_ranges reservations, hosts;
    struct sg_stream *busy_streams;
    uint64_t random, call_random;
    unsigned workers, idle_workers, copy_threads, idle_copy_threads, waiting;
    unsigned value_threads;                   /* one, once a stream has waited for a value */
    unsigned object_threads;                  /* one, once a user object's destructor is to run */
    unsigned captures;                        /* open ones */
    unsigned blocked_threads;                 /* of the job's: in a wait of the engine */
    _Atomic(unsigned) api_threads;            /* of the job's: that ever called, and live */
    unsigned next_device;                     /* round robin of the workers */
    _Atomic(uint64_t) done_count, work_count; /* bumped on every completion, on every start of a kernel */
};
extern struct sg sg;

struct sg_thread {
    uint64_t number;
    uint64_t stack[64]; /* context ids */
    unsigned depth;
    bool in_host_call;
    CUstreamCaptureMode capture_mode;
    uint64_t clock_ns; /* virtual; 0 = not begun */
    unsigned polls;    /* questions in a row that were answered "not ready" */
};
struct sg_thread *sg_thread(void);

static inline void sg_relax(void)
{ /* one turn of a busy wait */
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

uint64_t sg_now_ns(void);
uint64_t sg_random(void);
/* The same for what a call decides in the calling thread: one thread's calls see the same sequence in every run. */
uint64_t sg_call_random(void);

/* ---- entry and exit of the API's functions ---- */

/* Checks that hold for every function, without taking the lock: initialised, not forked, not in a host function, no injected
 * failure. */
CUresult sg_enter_unlocked(const char *function);
/* The same, then takes sg.lock. On failure the lock is not held. */
CUresult sg_enter(const char *function);
/* The same, and the calling thread's current context must live and be free of errors. */
CUresult sg_enter_context(const char *function, struct sg_context **context_out);
static inline CUresult sg_leave(CUresult result) /* releases sg.lock, returns result */
{
    pthread_mutex_unlock(&sg.lock);
    return result;
}

/* The calling thread's current context: NULL = none; *dead_out: one is set but was destroyed. */
struct sg_context *sg_current(bool *dead_out);
CUresult sg_context_create(int device, unsigned flags, bool primary, struct sg_context **context_out);
/* What a call that has waited, or asked, says about errors: the sticky one, or once one that passes. DESTROYED: it is gone. */
CUresult sg_context_tell(uint64_t id);
/* Waits for its work, then frees all it owns. */
void sg_context_finish(struct sg_context *context);
/* Has `viewer` enabled access to the memory of `owner`? */
bool sg_peer_enabled(const struct sg_context *viewer, const struct sg_context *owner);
/* Can the one device have access to memory of the other? */
bool sg_can_reach(int from, int to);
/* Ends all peer access that the context has and gives. */
void sg_peers_drop(struct sg_context *context);

/* The stream behind a handle as seen by this thread; per_thread: NULL means the thread's default stream. */
CUresult sg_stream_resolve(CUstream handle, bool per_thread, struct sg_context *current, struct sg_stream **stream_out);
/* sg_enter_context and sg_stream_resolve in one; also fails when the stream's own context has an error. */
CUresult sg_enter_stream(const char *function, CUstream handle, bool per_thread, struct sg_stream **stream_out);
struct sg_stream *sg_stream_create(struct sg_context *context, enum sg_stream_type type, unsigned flags, int priority);
void sg_stream_retire(struct sg_stream *stream); /* no more submissions; freed once drained */
/* Keeps the object while sg.lock is released. Letting go: false if the stream was destroyed meanwhile, and may be freed. */
void sg_stream_hold(struct sg_stream *stream);
bool sg_stream_let_go(struct sg_stream *stream);
void sg_threads_default_streams_retire(uint64_t thread);

/* ---- engine ---- */

struct sg_op *sg_op_new(enum sg_op_kind kind);
void sg_op_free(struct sg_op *op); /* one that was not submitted, or has ended */
/* Queues the operation, which the engine then owns. The ticket is complete once stream->completed >= it. */
uint64_t sg_submit(struct sg_stream *stream, struct sg_op *op);
/* Only queues it, on behalf of an operation that runs: it belongs to what that one's submitter had asked for, comes before it in
 * the order of submissions, and knows no more. The caller pumps. */
void sg_submit_inside(struct sg_stream *stream, struct sg_op *op, const struct sg_op *parent);
/* These wait with sg.lock held on entry and exit, released meanwhile; the caller lends a hand with kernels. */
void sg_wait_ticket(struct sg_stream *stream, uint64_t ticket);
void sg_wait_context(struct sg_context *context);
void sg_wait_device(int device);
void sg_wait_mark(struct sg_mark *mark);
/* For synchronous calls: submits, waits, and reports the context's error if one came up. */
CUresult sg_submit_and_wait(struct sg_stream *stream, struct sg_op *op);
/* Asynchronous calls: submits; waits when SIMGPU_SYNC is set. */
CUresult sg_submit_async(struct sg_stream *stream, struct sg_op *op);
void sg_pump(void);                 /* starts whatever may start */
void sg_complete(struct sg_op *op); /* the head of its stream is done: takes it off and frees it; pump afterwards */
bool sg_work_once(void);      /* runs one kernel slice or small copy if there is any; releases sg.lock meanwhile */
void sg_workers_notify(void); /* there are new kernels */
void sg_copiers_notify(void);
bool sg_slice_run(struct sg_op *op, uint64_t instructions);          /* a started kernel; releases sg.lock meanwhile */
void sg_engine_run(struct sg_device *device, enum sg_engine engine); /* its first copy; releases sg.lock meanwhile */
/* Detached; all signals are blocked but those that it causes itself. */
bool sg_thread_start(void *(*body)(void *), void *arg, const char *name);
void sg_host_notify(struct sg_device *device);
/* Of the host function that runs: what processor time its thread has had, and whether it sleeps. False: none runs, or it has
 * returned. */
bool sg_host_look(const struct sg_device *d, uint64_t *cpu_ns_out, bool *sleeps_out);
void sg_copy_op_run(struct sg_op *op); /* carries it out and completes it; releases sg.lock meanwhile */
/* Kills a context: reports, makes the error sticky, drops its queued work. */
void sg_context_fail(struct sg_context *context, CUresult error, const char *line);
/* Carries out a copy or fill, with no lock held. False: an operand is not accessible, and *bad_out is its address. */
struct sg_moved {
    uint64_t bytes[SG_DIRECTION_COUNT];
    struct sg_usage usage; /* of links; sg_time_moved takes it over */
    uint64_t turn;         /* of ports that take turns: so that it does not depend on what else runs */
    int link_error;        /* a negative errno: it ended where a link failed */
};
/* What is a device's (or pinned) memory is hidden from ThreadSanitizer, see copyexec.c. */
void sg_move_bytes(uint8_t *to, bool to_device, uint8_t *from, bool from_device, size_t bytes);
bool sg_copy_execute(const struct sg_copy *copy, struct sg_moved *moved, uint64_t *bad_out);
/* VRAM counts as D2D, the host's memory as D2H. */
bool sg_fill_execute(const struct sg_fill *fill, struct sg_moved *moved, uint64_t *bad_out);
/* Is memory in [va, va+bytes) named by unfinished work (of any device in device_mask)? describes the first such */
bool sg_in_flight(uint64_t va, uint64_t bytes, unsigned device_mask, char *text, size_t text_bytes);
/* Stream memory operations, with sg.lock held: whether a wait's condition holds (or its memory is gone); carrying out a head
 * that is ready, and completing it; asking that the queues be looked at again soon, since a head waits for memory. */
bool sg_value_ready(const struct sg_op *op);
void sg_value_run(struct sg_op *op);
void sg_value_poll(void);
/* Has a kernel that is still running touched one of these pages? For memory that owns its pages. */
bool sg_touched_in_flight(uint64_t va, uint64_t bytes, unsigned device_mask, char *text, size_t text_bytes);
CUresult sg_fault_to_error(enum ptx_fault_kind kind);

/* ---- modules and launches ---- */
/* Makes the context's heap and printf queue if the module is the first to need them. */
CUresult sg_runtime_prepare(struct sg_context *context, const struct ptx_module *ptx);
void sg_runtime_finish(struct sg_context *context); /* no kernel of it may run */
/* Writes to stdout what kernels have printed: for synchronisation points. Releases sg.lock while it writes. */
void sg_print_flush(void);
/* Texture references: what is bound to a module's is written before a kernel that is launched now; and their end. */
CUresult sg_texrefs_prepare(struct sg_module *module, struct sg_stream *stream);
void sg_texrefs_finish(struct sg_module *module);
ptx_texture_fn sg_texture_of; /* what a kernel's handle means */
void sg_module_destroy(struct sg_module *module);
/* Blocks of the function that one SM holds at once; 0 = it can never run. */
int sg_occupancy(const struct sg_function *function, unsigned block_threads, uint64_t dynamic_shared_bytes);
int sg_static_shared_max(void);
/* With CUDA_MODULE_LOADING=EAGER loads all libraries into a new context. May release sg.lock. */
CUresult sg_libraries_load(struct sg_context *context);
uint64_t sg_policy_window_max_bytes(void); /* of an access policy window */
unsigned sg_sync_domain_count(void);
CUresult sg_policy_window_check(const CUaccessPolicyWindow *window); /* INVALID_VALUE beyond what the device has */

void sg_report_write(void); /* SIMGPU_REPORT; needs sg.lock */
/* Opens the file that a setting names, with %p expanded. What is, or will be, a plain file is written beside it and renamed when
 * complete: readers never see half a report. Anything else (a terminal, a pipe, a link) is written to and never replaced. */
struct sg_report_file {
    char path[4200], part[4224];
};
FILE *sg_report_open(const char *variable, const char *pattern, struct sg_report_file *file); /* NULL: none, or told */
void sg_report_close(const char *variable, FILE *f, const struct sg_report_file *file);

/* ---- generated ---- */
struct sg_symbol {
    const char *name;
    void *asked; /* its address as cuGetProcAddress tells it */
    bool implemented;
};
extern const struct sg_symbol sg_symbols[];
extern const size_t sg_symbol_count;
CUresult sg_unsupported(const char *function);
CUresult sg_unsupported_inside(const char *what); /* of a function that is: one line; NOT_SUPPORTED */
struct sg_error_name {
    CUresult value;
    const char *name, *text;
};
extern const struct sg_error_name sg_error_names[];
extern const size_t sg_error_name_count;

#endif
