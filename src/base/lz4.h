/* LZ4 blocks, as compilers pack device code. */
#ifndef HR_BASE_LZ4_H
#define HR_BASE_LZ4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Unpacks a block of `bytes` into exactly out_bytes; false: it is broken, or gives another number. Reads and writes nothing beyond either. No lock. */
bool hr_lz4_unpack(const uint8_t *at, size_t bytes, uint8_t *out, size_t out_bytes)
    __attribute__((visibility("hidden")));

#endif
