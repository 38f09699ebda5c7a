/* Carrying out copies and fills: through the page tables, page by page, with no lock held. */
#include "simgpu/sim.h"

#include <string.h>

/* The host address of the operand's next bytes, and how many lie there together (at most *bytes_io). */
static uint8_t *resolve(int device, uint64_t va, int write, size_t *bytes_io, enum sg_tier *tier_out)
{
    if (device == SG_ON_HOST) {
        *tier_out = SG_TIER_HOST;
        return (uint8_t *)(uintptr_t)va;
    }
    size_t page_rest = (size_t)(SG_PAGE_BYTES - (va & (SG_PAGE_BYTES - 1)));
    if (*bytes_io > page_rest)
        *bytes_io = page_rest;
    return sg_translate(&sg.devices[device].pagetable, va, (unsigned)*bytes_io, write, tier_out);
}

static enum sg_direction direction(enum sg_tier src, int src_device, enum sg_tier dst, int dst_device)
{
    if (src == SG_TIER_HOST)
        return dst == SG_TIER_HOST ? SG_H2H : SG_H2D;
    if (dst == SG_TIER_HOST)
        return SG_D2H;
    return src == SG_TIER_PEER || dst == SG_TIER_PEER || src_device != dst_device ? SG_P2P : SG_D2D;
}

static bool copy_row(const struct sg_copy *c, uint64_t dst, uint64_t src, struct sg_moved *moved, uint64_t *bad_out)
{
    for (size_t left = c->width_bytes; left;) {
        size_t bytes = left;
        enum sg_tier from, to;
        uint8_t *s = resolve(c->src_device, src, 0, &bytes, &from);
        uint8_t *d = resolve(c->dst_device, dst, 1, &bytes, &to);
        if (!s || !d) {
            *bad_out = s ? dst : src;
            return false;
        }
        memmove(d, s, bytes);
        moved->bytes[direction(from, c->src_device, to, c->dst_device)] += bytes;
        src += bytes;
        dst += bytes;
        left -= bytes;
    }
    return true;
}

bool sg_copy_execute(const struct sg_copy *c, struct sg_moved *moved, uint64_t *bad_out)
{
    uint64_t src = c->staging ? (uint64_t)(uintptr_t)c->staging : c->src;
    size_t src_pitch = c->staging ? c->width_bytes : c->src_pitch;
    for (size_t row = 0; row < c->height; row++)
        if (!copy_row(c, c->dst + row * c->dst_pitch, src + row * src_pitch, moved, bad_out))
            return false;
    return true;
}

static void fill_bytes(uint8_t *at, size_t bytes, uint32_t value, unsigned element_bytes)
{
    if (element_bytes == 1) {
        memset(at, (int)(value & 0xff), bytes);
    } else if (element_bytes == 2) {
        uint16_t v = (uint16_t)value;
        for (size_t i = 0; i + 2 <= bytes; i += 2)
            memcpy(at + i, &v, 2);
    } else {
        for (size_t i = 0; i + 4 <= bytes; i += 4)
            memcpy(at + i, &value, 4);
    }
}

bool sg_fill_execute(const struct sg_fill *f, uint64_t *bad_out)
{
    for (size_t row = 0; row < f->height; row++) {
        uint64_t dst = f->dst + row * f->pitch;
        for (size_t left = f->width_bytes; left;) {
            size_t bytes = left;
            enum sg_tier tier;
            uint8_t *d = resolve(f->device, dst, 1, &bytes, &tier);
            if (!d) {
                *bad_out = dst;
                return false;
            }
            fill_bytes(d, bytes, f->value, f->element_bytes);
            dst += bytes;
            left -= bytes;
        }
    }
    return true;
}
