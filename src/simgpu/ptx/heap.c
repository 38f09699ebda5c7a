/*
 * Memory that kernels allocate: a buddy allocator over the heap's granules of 16 bytes. What is free and what is not is kept
 * on the host, out of the kernels' reach, so that a bad pointer is noticed and a stray store cannot break the allocator.
 * Blocks are powers of two; a heap of another size begins as several of them.
 */
#include "simgpu/ptx/out.h"

#include <pthread.h>
#include <stdlib.h>

#define GRANULE_SHIFT 4
#define ORDERS 44
#define NONE UINT32_MAX
#define FREE 0x40
#define USED 0x80

struct links {
    uint32_t next, previous;
};

struct ptx_heap {
    pthread_mutex_t lock; /* guards all below; a leaf */
    uint64_t va, used_bytes;
    uint32_t granules;
    uint32_t first[ORDERS]; /* free blocks of 2^order granules */
    uint8_t *state;         /* per granule: of the block that begins there, its order and FREE or USED; else 0 */
    struct links *links;    /* of free blocks */
};

static void put_free(struct ptx_heap *h, uint32_t block, unsigned order)
{
    h->state[block] = (uint8_t)(FREE | order);
    h->links[block] = (struct links){h->first[order], NONE};
    if (h->first[order] != NONE)
        h->links[h->first[order]].previous = block;
    h->first[order] = block;
}

static void take_free(struct ptx_heap *h, uint32_t block, unsigned order)
{
    struct links l = h->links[block];
    h->state[block] = 0;
    if (l.previous == NONE)
        h->first[order] = l.next;
    else
        h->links[l.previous].next = l.next;
    if (l.next != NONE)
        h->links[l.next].previous = l.previous;
}

struct ptx_heap *ptx_heap_create(uint64_t va, uint64_t bytes)
{
    struct ptx_heap *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    uint64_t granules = bytes >> GRANULE_SHIFT;
    h->va = va;
    h->granules = granules >= NONE ? NONE - 1 : (uint32_t)granules;
    h->state = calloc(h->granules + 1, sizeof(*h->state)); /* zeros: the system hands them out when they are touched */
    h->links = calloc(h->granules + 1, sizeof(*h->links));
    if (!h->state || !h->links) {
        ptx_heap_destroy(h);
        return NULL;
    }
    pthread_mutex_init(&h->lock, NULL);
    for (unsigned order = 0; order < ORDERS; order++)
        h->first[order] = NONE;
    for (uint32_t at = 0, left = h->granules; left;) { /* largest first: each is aligned to its own size */
        unsigned order = 31 - (unsigned)__builtin_clz(left);
        put_free(h, at, order);
        at += 1u << order;
        left -= 1u << order;
    }
    return h;
}

void ptx_heap_destroy(struct ptx_heap *h)
{
    if (!h)
        return;
    if (h->state && h->links)
        pthread_mutex_destroy(&h->lock);
    free(h->state);
    free(h->links);
    free(h);
}

uint64_t ptx_heap_used(struct ptx_heap *h)
{
    pthread_mutex_lock(&h->lock);
    uint64_t used = h->used_bytes;
    pthread_mutex_unlock(&h->lock);
    return used;
}

/* The address; 0 = no memory, or nothing asked for. */
static uint64_t allocate(struct ptx_heap *h, uint64_t bytes)
{
    uint64_t granules = (bytes >> GRANULE_SHIFT) + ((bytes & ((1u << GRANULE_SHIFT) - 1)) != 0);
    if (!granules || granules > h->granules)
        return 0;
    unsigned order = granules == 1 ? 0 : 64 - (unsigned)__builtin_clzll(granules - 1), have = order;
    while (have < ORDERS && h->first[have] == NONE)
        have++;
    if (have >= ORDERS)
        return 0;
    uint32_t block = h->first[have];
    take_free(h, block, have);
    while (have > order) {
        have--;
        put_free(h, block + (1u << have), have);
    }
    h->state[block] = (uint8_t)(USED | order);
    h->used_bytes += UINT64_C(1) << (order + GRANULE_SHIFT);
    return h->va + ((uint64_t)block << GRANULE_SHIFT);
}

static bool give_back(struct ptx_heap *h, uint64_t address)
{
    uint64_t offset = address - h->va;
    if (offset >> GRANULE_SHIFT >= h->granules || offset & ((1u << GRANULE_SHIFT) - 1))
        return false;
    uint32_t block = (uint32_t)(offset >> GRANULE_SHIFT);
    if (!(h->state[block] & USED))
        return false;
    unsigned order = h->state[block] & 63;
    h->state[block] = 0;
    h->used_bytes -= UINT64_C(1) << (order + GRANULE_SHIFT);
    for (; order < 31; order++) {
        uint32_t buddy = block ^ 1u << order;
        if (buddy >= h->granules || h->state[buddy] != (FREE | order))
            break;
        take_free(h, buddy, order);
        block &= ~(1u << order);
    }
    put_free(h, block, order);
    return true;
}

bool ptx_out_malloc(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                    uint32_t pc)
{
    (void)w, (void)pc;
    uint64_t *result = (uint64_t *)(void *)ptx_out_at(r, regs, in, 0);
    const uint64_t *bytes = (const uint64_t *)(void *)ptx_out_at(r, regs, in, 1);
    if (r->heap)
        pthread_mutex_lock(&r->heap->lock);
    PTX_FOR_LANES (lane, active)
        result[lane] = r->heap ? allocate(r->heap, bytes[lane]) : 0;
    if (r->heap)
        pthread_mutex_unlock(&r->heap->lock);
    return true;
}

/* What a conditional node of a graph looks at. */
bool ptx_out_set_condition(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                           uint32_t active, uint32_t pc)
{
    const uint64_t *handle = (const uint64_t *)(void *)ptx_out_at(r, regs, in, 0);
    const uint32_t *value = (const uint32_t *)(void *)ptx_out_at(r, regs, in, 1);
    PTX_FOR_LANES (lane, active) {
        if (r->set_condition && r->set_condition(r->context, handle[lane], value[lane]))
            continue;
        ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_ADDRESS, pc);
        r->fault.address = handle[lane];
        r->fault.write = true;
        r->fault.space = "conditional (a handle of no graph of this context)";
        return false;
    }
    return true;
}

bool ptx_out_free(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                  uint32_t pc)
{
    const uint64_t *address = (const uint64_t *)(void *)ptx_out_at(r, regs, in, 0);
    uint32_t bad = 0;
    if (r->heap)
        pthread_mutex_lock(&r->heap->lock);
    PTX_FOR_LANES (lane, active)
        if (address[lane] && !(r->heap && give_back(r->heap, address[lane])))
            bad |= 1u << lane;
    if (r->heap)
        pthread_mutex_unlock(&r->heap->lock);
    if (!bad)
        return true;
    unsigned first = (unsigned)__builtin_ctz(bad);
    ptx_run_fault(r, w, first, PTX_FAULT_ILLEGAL_ADDRESS, pc);
    r->fault.address = address[first];
    r->fault.write = true;
    r->fault.space = "heap (free of what is not allocated)";
    return false;
}
