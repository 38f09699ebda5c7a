#include "base/lz4.h"

#include <string.h>

/* A length in LZ4's way: 15 in the nibble means that bytes follow, each of which adds to it, up to one below 255. */
static bool lz4_length(const uint8_t **at, const uint8_t *end, unsigned nibble, size_t *length_out)
{
    size_t length = nibble;
    for (uint8_t more = 255; nibble == 15 && more == 255; length += more) {
        if (*at == end || length > SIZE_MAX / 2)
            return false;
        more = *(*at)++;
    }
    *length_out = length;
    return true;
}

/* An LZ4 block: runs of literal bytes, each followed by a copy of what was written before; the last has no copy. */
bool hr_lz4_unpack(const uint8_t *at, size_t bytes, uint8_t *out, size_t out_bytes)
{
    const uint8_t *end = at + bytes;
    size_t used = 0;
    while (at < end) {
        unsigned token = *at++;
        size_t literals, copied;
        if (!lz4_length(&at, end, token >> 4, &literals) || literals > (size_t)(end - at) ||
            literals > out_bytes - used)
            return false;
        memcpy(out + used, at, literals);
        at += literals;
        used += literals;
        if (at == end)
            break;
        if (end - at < 2)
            return false;
        size_t distance = at[0] | (size_t)at[1] << 8;
        at += 2;
        if (!lz4_length(&at, end, token & 15, &copied))
            return false;
        copied += 4;
        if (!distance || distance > used || copied > out_bytes - used)
            return false;
        for (; copied; copied--, used++) /* may overlap what it writes */
            out[used] = out[used - distance];
    }
    return used == out_bytes;
}
