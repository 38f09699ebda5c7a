#include "residency/relay.h"

#include "base/lock.h"
#include "residency/gpu.h"
#include "space/space.h"
#include "tier/tier.h"

#include <stdlib.h>

#define BUDGET_SHARE 8 /* relays have an eighth of a GPU's VRAM at most */

static struct hr_mutex relays_lock = HR_MUTEX_INIT(HR_RANK_MOVE + 2, "relays");
static struct hr_relay *relays;         /* guarded by relays_lock: those that nobody has */
static size_t relay_bytes[HR_MAX_GPUS]; /* guarded by relays_lock: of all that exist */

static CUresult grant(struct hr_relay *relay, uint64_t users)
{
    CUmemAccessDesc desc[HR_MAX_GPUS];
    size_t n = 0;
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        if (users >> g & 1)
            desc[n++] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hr_gpu_device(g)},
                                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult r = hr_drv.cuMemSetAccess(relay->address, relay->bytes, desc, n);
    if (r == CUDA_SUCCESS)
        relay->users = users;
    return r;
}

static CUresult map(struct hr_relay *relay, uint64_t users)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hr_gpu_device(relay->gpu)}};
    CUresult r = hr_drv.cuMemAddressReserve(&relay->address, relay->bytes, hr_chunk_bytes(), 0, 0);
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_drv.cuMemCreate(&relay->handle, relay->bytes, &prop, 0);
    if (r != CUDA_SUCCESS)
        goto no_handle;
    r = hr_drv.cuMemMap(relay->address, relay->bytes, 0, relay->handle, 0);
    if (r != CUDA_SUCCESS)
        goto no_map;
    r = grant(relay, users);
    if (r == CUDA_SUCCESS)
        return r;
    hr_drv.cuMemUnmap(relay->address, relay->bytes);
no_map:
    hr_drv.cuMemRelease(relay->handle);
no_handle:
    hr_drv.cuMemAddressFree(relay->address, relay->bytes);
    return r;
}

static void unmap(struct hr_relay *relay)
{
    hr_drv.cuMemUnmap(relay->address, relay->bytes);
    hr_drv.cuMemRelease(relay->handle);
    hr_drv.cuMemAddressFree(relay->address, relay->bytes);
}

static bool has_room_locked(unsigned gpu, size_t bytes) HR_REQUIRES(relays_lock)
{
    size_t limit = (hr_tier_vram_limit(gpu) << hr_space.chunk_shift) + relay_bytes[gpu];
    return relay_bytes[gpu] + bytes <= limit / BUDGET_SHARE &&
           hr_tier_vram.available_chunks(gpu) << hr_space.chunk_shift >= bytes;
}

static CUresult make_locked(unsigned gpu, size_t bytes, uint64_t users, struct hr_relay **relay_out)
    HR_REQUIRES(relays_lock)
{
    if (!has_room_locked(gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct hr_relay *relay = calloc(1, sizeof *relay);
    if (!relay)
        return CUDA_ERROR_OUT_OF_MEMORY;
    relay->gpu = gpu;
    relay->bytes = bytes;
    hr_gpu_hold(gpu, bytes, true); /* pooled chunks beyond go back to the driver: that is where the block's come from */
    CUresult r = map(relay, users);
    if (r != CUDA_SUCCESS) {
        hr_gpu_hold(gpu, bytes, false);
        free(relay);
        return r;
    }
    relay_bytes[gpu] += bytes;
    *relay_out = relay;
    return CUDA_SUCCESS;
}

/* The smallest that is large enough and not twice too large; one that the users have access to already goes first. */
static struct hr_relay **find_locked(unsigned gpu, size_t bytes, uint64_t users) HR_REQUIRES(relays_lock)
{
    struct hr_relay **best = NULL;
    bool best_fits = false;
    for (struct hr_relay **link = &relays; *link; link = &(*link)->next) {
        const struct hr_relay *r = *link;
        bool fits = (r->users & users) == users;
        if (r->gpu != gpu || r->bytes < bytes || r->bytes > 2 * bytes || (best && best_fits && !fits))
            continue;
        if (!best || (fits && !best_fits) || r->bytes < (*best)->bytes) {
            best = link;
            best_fits = fits;
        }
    }
    return best;
}

static size_t trim_locked(unsigned gpu) HR_REQUIRES(relays_lock)
{
    size_t freed = 0;
    for (struct hr_relay **link = &relays; *link;) {
        struct hr_relay *relay = *link;
        if (gpu != HR_MAX_GPUS && relay->gpu != gpu) {
            link = &relay->next;
            continue;
        }
        *link = relay->next;
        unmap(relay);
        relay_bytes[relay->gpu] -= relay->bytes;
        hr_gpu_hold(relay->gpu, relay->bytes, false);
        freed += relay->bytes;
        free(relay);
    }
    return freed;
}

CUresult hr_relay_take(unsigned gpu, size_t bytes, uint64_t users, struct hr_relay **relay_out)
{
    CUresult r = CUDA_SUCCESS;
    bytes = (bytes + hr_chunk_bytes() - 1) >> hr_space.chunk_shift << hr_space.chunk_shift;
    users |= UINT64_C(1) << gpu;
    hr_mutex_lock(&relays_lock);
    struct hr_relay **link = find_locked(gpu, bytes, users), *relay = NULL;
    if (link) {
        relay = *link;
        *link = relay->next;
        if ((relay->users & users) != users && (r = grant(relay, relay->users | users)) != CUDA_SUCCESS) {
            relay->next = relays;
            relays = relay;
        }
    } else {
        r = make_locked(gpu, bytes, users, &relay);
        if (r == CUDA_ERROR_OUT_OF_MEMORY && trim_locked(gpu) > 0) /* blocks of other sizes */
            r = make_locked(gpu, bytes, users, &relay);
    }
    hr_mutex_unlock(&relays_lock);
    if (r == CUDA_SUCCESS) {
        relay->next = NULL;
        *relay_out = relay;
    }
    return r;
}

void hr_relay_give(struct hr_relay *relay)
{
    hr_mutex_lock(&relays_lock);
    relay->next = relays;
    relays = relay;
    hr_mutex_unlock(&relays_lock);
}

size_t hr_relay_trim(unsigned gpu)
{
    hr_mutex_lock(&relays_lock);
    size_t freed = trim_locked(gpu);
    hr_mutex_unlock(&relays_lock);
    return freed;
}
