/*
 * Tiers: where the bytes of a chunk can be. One operations struct each, and a pool of ready physical chunks behind it, so
 * that a move rarely pays for creating one. Local VRAM and the peer tier share each GPU's pool: a chunk of it is VRAM to its own
 * GPU's window, and peer memory to a window of another GPU, to which it is lent.
 *
 * Every physical chunk is mapped once, when it is made, at a private alias address; moves copy through that. The host tier
 * has two kinds, chosen once by trying: chunks of the driver (HOST_NUMA or HOST), which kernels can use at the job's
 * address, and, where those cannot be had, pinned host memory, which they cannot (hr_tier_host_mappable).
 */
#ifndef HR_TIER_TIER_H
#define HR_TIER_TIER_H

#include "driver/driver.h"
#include "space/space.h"

enum hr_tier_id { HR_TIER_VRAM, HR_TIER_PEER, HR_TIER_HOST, HR_TIER_COUNT };

struct hr_phys {
    CUmemGenericAllocationHandle handle; /* 0 = pinned host memory: cannot be mapped at the job's address */
    CUdeviceptr alias;                   /* device address for copies (pinned memory: its own address) */
    uint8_t tier;                        /* enum hr_tier_id: while it is taken, the tier that it was taken from */
    uint8_t gpu;                         /* whose pool it is of; in the peer tier the GPU that lends it */
    bool shareable;                      /* of VRAM: it can be exported; see hr_tier_take_shareable */
    uint64_t reached_by;                 /* GPUs (a bit each) whose copies may use the alias; the taker's to change */
    struct hr_phys *next, *prev;         /* in a pool (next); among the chunks that a GPU lends, the taker's to use */
    struct hr_chunk *holds;              /* there: what is in it */
    CUcontext pinned_by; /* pinned host memory: the context that it is registered in, NULL = none; its pool's lock */
    struct hr_phys *pinned_next; /* all of that kind of one pool; its lock */
};

struct hr_tier {
    const char *name;
    /*
     * A physical chunk for the window of `gpu`; in the peer tier one of `gpu`'s own VRAM, for another window. OUT_OF_MEMORY: at its limit, or the driver has none: pressure, try another
     * tier. Other errors verbatim. Needs a current context. Locks: HR_RANK_TIER; driver calls are made under it.
     */
    CUresult (*take)(unsigned gpu, struct hr_phys **phys_out);
    void (*give)(struct hr_phys *phys);          /* back into the pool */
    size_t (*available_chunks)(unsigned gpu);    /* what take could still serve, as far as is known */
    size_t (*in_use_chunks)(unsigned gpu);       /* taken and not given back */
    size_t (*trim)(unsigned gpu, size_t chunks); /* releases up to so many pooled chunks to the driver; how many */
};
extern const struct hr_tier hr_tier_vram HR_HIDDEN, hr_tier_peer HR_HIDDEN, hr_tier_host HR_HIDDEN;

static inline const struct hr_tier *hr_tier_of(const struct hr_phys *phys)
{
    return phys->tier == HR_TIER_VRAM ? &hr_tier_vram : phys->tier == HR_TIER_PEER ? &hr_tier_peer : &hr_tier_host;
}
/*
 * As hr_tier_vram.take, a chunk that can be exported to other processes as a file descriptor. It is never kept in the pool: once it is given
 * back it goes to the driver, which keeps the memory for whoever has imported it. `rdma`: network cards may be let at it. OUT_OF_MEMORY
 * at the limit, too. Where the device has no such handles, the driver's error.
 */
CUresult hr_tier_take_shareable(unsigned gpu, bool rdma, struct hr_phys **phys_out);
/* Lets copies of another GPU use the alias of a taken chunk, from now on and also after it was given back. Errors: the driver's
 * (the GPU cannot reach it, or has no connection left). The taker's lock. */
CUresult hr_tier_reach(struct hr_phys *phys, unsigned gpu, CUdevice device);

/* Prepares the tiers of a GPU: limits in chunks; vram_alias_chunks = the highest limit that may be set later. Once per GPU,
 * before the first take. */
void hr_tier_init(unsigned gpu, CUdevice device, size_t vram_limit_chunks, size_t vram_alias_chunks,
                  size_t host_limit_chunks);
/* How many chunks of VRAM may exist, pooled ones included; may be lowered below what exists. */
void hr_tier_vram_set_limit(unsigned gpu, size_t chunks);
size_t hr_tier_vram_limit(unsigned gpu); /* no lock */
/* Bytes of the GPU whose context is current that are free or in chunks of ours, at one moment; 0 = the driver cannot tell. */
size_t hr_tier_vram_free_and_ours(unsigned gpu);
/* Whether host chunks can be mapped at the job's addresses. Tries it at the first call, with the current context. */
bool hr_tier_host_mappable(unsigned gpu);
/*
 * A context has gone, and with it the pinning of host memory that was pinned in it; the bytes remain. pin_again: what is pinned in none is pinned in
 * the current context, as far as the driver does so. Locks: HR_RANK_TIER; pin_again takes none where nothing is to be done.
 */
void hr_tier_host_context_gone(CUcontext context);
void hr_tier_host_pin_again(void);

#endif
