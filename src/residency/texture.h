/*
 * Texture objects over window memory. A kernel gets one as a number, which names the memory as a pointer would.
 */
#ifndef HR_RESIDENCY_TEXTURE_H
#define HR_RESIDENCY_TEXTURE_H

#include "driver/driver.h"

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic(uint32_t) hr_texture_count HR_HIDDEN;

/* A texture object was made over memory at `address`, which lies in a window. OUT_OF_MEMORY: it cannot be remembered. Lock: HR_RANK_QUEUE + 1. */
CUresult hr_texture_made(CUtexObject texture, CUdeviceptr address);
/* It was destroyed; nothing where it was never told of. Lock as above. */
void hr_texture_gone(CUtexObject texture);

CUdeviceptr hr_texture_find(uint64_t word);
/* The memory of the texture object with this number; 0 = there is none. No lock. */
static inline CUdeviceptr hr_texture_address(uint64_t word)
{
    return __builtin_expect(atomic_load_explicit(&hr_texture_count, memory_order_acquire) != 0, 0)
               ? hr_texture_find(word)
               : 0;
}

#endif
