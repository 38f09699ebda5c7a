/*
 * Texture fetches, one lane at a time, as the CUDA programming guide describes them. A linear filter weighs neighbours by the
 * fraction of the coordinate minus one half, kept in 1/256 (rounded to nearest); the weighted sum is exact but for the
 * rounding to float. NaN coordinates count as 0. Missing channels are 0, the fourth 1. A coordinate that is not
 * normalized cannot wrap or be mirrored: it is clamped.
 */
#include "simgpu/ptx/texture.h"

#include "simgpu/ptx/out.h"

#include <math.h>
#include <string.h>

#define FAR 1.0e9f /* coordinates beyond are as good as there */

struct fetch {
    struct ptx_run *r;
    const struct ptx_warp *w;
    const struct ptx_texture *t;
    const struct ptx_texture_level *level;
    unsigned lane;
    uint32_t pc;
    uint32_t layer;
};

struct value {
    double f[4];   /* of floats, and of integers as fractions */
    uint32_t i[4]; /* of integers as they are */
};

static unsigned dimensions_of(const struct ptx_texture *t)
{
    return t->dimensions < 3 ? t->dimensions : 3;
}

static unsigned texel_bytes(enum ptx_texel texel)
{
    static const uint8_t bytes[] = {1, 2, 4, 1, 2, 4, 2, 4};
    return bytes[texel];
}

static float half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float value = exponent == 31  ? (mantissa ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)mantissa, -24)
                                  : ldexpf((float)(mantissa + 1024), exponent - 25);
    return h >> 15 ? -value : value;
}

/* One channel's bits, widened. */
static void convert(enum ptx_texel texel, uint32_t bits, double *f, uint32_t *i)
{
    float value;
    int32_t s;
    *i = bits;
    switch (texel) {
    case PTX_TEXEL_U8: *f = bits / 255.0; break;
    case PTX_TEXEL_U16: *f = bits / 65535.0; break;
    case PTX_TEXEL_S8:
        s = (int32_t)(bits << 24) >> 24;
        *i = (uint32_t)s;
        *f = s < -127 ? -1.0 : s / 127.0;
        break;
    case PTX_TEXEL_S16:
        s = (int32_t)(bits << 16) >> 16;
        *i = (uint32_t)s;
        *f = s < -32767 ? -1.0 : s / 32767.0;
        break;
    case PTX_TEXEL_F16:
        value = half_value((uint16_t)bits);
        *f = (double)value;
        memcpy(i, &value, 4);
        break;
    case PTX_TEXEL_F32:
        memcpy(&value, &bits, 4);
        *f = (double)value;
        break;
    default: *f = bits; break; /* 32-bit integers have no fractions */
    }
    if (texel != PTX_TEXEL_F32 && texel != PTX_TEXEL_F16)
        *f = (double)(float)*f;
}

static void outside(const struct fetch *x, struct value *out)
{
    *out = (struct value){{0}, {0}};
    for (unsigned c = 0; c < 4 && !x->t->is_buffer; c++) {
        out->f[c] = (double)x->t->border[c];
        out->i[c] = (uint32_t)(int64_t)(x->t->border[c] < -FAR || !(x->t->border[c] < FAR) ? 0.0f : x->t->border[c]);
    }
}

/* Where an index falls; false: outside. */
static bool place(enum ptx_address_mode mode, int64_t i, uint32_t n, uint32_t *out)
{
    int64_t count = n, twice = 2 * count;
    switch (mode) {
    case PTX_ADDRESS_WRAP: i = (i % count + count) % count; break;
    case PTX_ADDRESS_MIRROR:
        i = (i % twice + twice) % twice;
        i = i < count ? i : twice - 1 - i;
        break;
    case PTX_ADDRESS_CLAMP: i = i < 0 ? 0 : i >= count ? count - 1 : i; break;
    default:
        if (i < 0 || i >= count)
            return false;
    }
    *out = (uint32_t)i;
    return true;
}

static enum ptx_address_mode mode_of(const struct ptx_texture *t, unsigned dimension)
{
    enum ptx_address_mode mode = t->address[dimension];
    bool folds = mode == PTX_ADDRESS_WRAP || mode == PTX_ADDRESS_MIRROR;
    return t->is_buffer ? PTX_ADDRESS_BORDER : folds && !t->normalized ? PTX_ADDRESS_CLAMP : mode;
}

static bool read_texel(const struct fetch *x, const int64_t at[3], struct value *out)
{
    const struct ptx_texture *t = x->t;
    const struct ptx_texture_level *l = x->level;
    uint32_t size[3] = {l->width, l->height, l->depth}, i[3] = {0, 0, x->layer};
    for (unsigned d = 0; d < dimensions_of(t); d++) {
        if (!place(mode_of(t, d), at[d], size[d], &i[d])) {
            outside(x, out);
            return true;
        }
    }
    unsigned bytes = texel_bytes(t->texel);
    struct ptx_access access = {PTX_SPACE_GLOBAL, bytes * t->channels, 1, false, x->pc};
    const uint8_t *from = ptx_run_at(x->r, x->w, &access, x->lane,
                                     l->va + i[2] * l->slice + i[1] * l->pitch + (uint64_t)i[0] * access.bytes, NULL);
    if (!from)
        return false;
    *out = (struct value){{0, 0, 0, 1}, {0, 0, 0, 1}};
    for (unsigned c = 0; c < t->channels; c++) {
        uint32_t bits = 0;
        memcpy(&bits, from + c * bytes, bytes);
        convert(t->texel, bits, &out->f[c], &out->i[c]);
    }
    return true;
}

static float sane(float coordinate)
{
    return coordinate != coordinate ? 0.0f : coordinate > FAR ? FAR : coordinate < -FAR ? -FAR : coordinate;
}

static bool nearest(const struct fetch *x, const float at[3], struct value *out)
{
    int64_t i[3];
    for (unsigned d = 0; d < 3; d++)
        i[d] = (int64_t)floorf(sane(at[d]));
    return read_texel(x, i, out);
}

/* The lower neighbour, and the weight of the upper one in 1/256. */
static void neighbours(float at, int64_t *lower, unsigned *weight)
{
    float shifted = sane(at) - 0.5f, whole = floorf(shifted);
    *lower = (int64_t)whole;
    *weight = (unsigned)rintf((shifted - whole) * 256.0f);
}

static bool interpolate(const struct fetch *x, const float at[3], struct value *out)
{
    int64_t lower[3] = {0}, i[3] = {0};
    unsigned weight[3] = {0}, corners = 1u << dimensions_of(x->t);
    double sum[4] = {0};
    for (unsigned d = 0; d < dimensions_of(x->t); d++)
        neighbours(at[d], &lower[d], &weight[d]);
    for (unsigned corner = 0; corner < corners; corner++) {
        double w = 1;
        struct value one;
        for (unsigned d = 0; d < dimensions_of(x->t); d++) {
            bool upper = corner >> d & 1;
            i[d] = lower[d] + upper;
            w *= (upper ? weight[d] : 256 - weight[d]) / 256.0;
        }
        if (w == 0)
            continue; /* and an infinity there does not matter */
        if (!read_texel(x, i, &one))
            return false;
        for (unsigned c = 0; c < 4; c++)
            sum[c] += w * one.f[c];
    }
    *out = (struct value){{0}, {0}};
    for (unsigned c = 0; c < 4; c++)
        out->f[c] = c < x->t->channels ? sum[c] : c == 3;
    return true;
}

static bool sample(struct fetch *x, unsigned level, const float at[3], struct value *out)
{
    float scaled[3];
    x->level = &x->t->level[level];
    const uint32_t size[3] = {x->level->width, x->level->height, x->level->depth};
    for (unsigned d = 0; d < 3; d++)
        scaled[d] = x->t->normalized ? at[d] * (float)size[d] : at[d];
    return x->t->linear ? interpolate(x, scaled, out) : nearest(x, scaled, out);
}

static bool sample_levels(struct fetch *x, float level, const float at[3], struct value *out)
{
    const struct ptx_texture *t = x->t;
    float last = (float)(t->levels - 1), lod = sane(level) + t->level_bias;
    lod = lod < t->level_min ? t->level_min : lod > t->level_max ? t->level_max : lod;
    lod = lod < 0 ? 0 : lod > last ? last : lod;
    if (!t->mip_linear)
        return sample(x, (unsigned)floorf(lod + 0.5f), at, out);
    unsigned lower = (unsigned)floorf(lod), weight = (unsigned)rintf((lod - floorf(lod)) * 256.0f);
    struct value upper;
    if (!sample(x, lower, at, out))
        return false;
    if (!weight)
        return true;
    if (!sample(x, lower + 1, at, &upper))
        return false;
    for (unsigned c = 0; c < 4; c++)
        out->f[c] = out->f[c] * (256 - weight) / 256.0 + upper.f[c] * weight / 256.0;
    return true;
}

/* tld4: one channel of the four neighbours, counterclockwise from the lower left. */
static bool gather(struct fetch *x, unsigned channel, const float at[3], struct value *out)
{
    static const uint8_t order[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
    int64_t lower[2], i[3] = {0};
    unsigned weight;
    x->level = &x->t->level[0];
    const uint32_t size[2] = {x->level->width, x->level->height};
    for (unsigned d = 0; d < 2; d++)
        neighbours(x->t->normalized ? at[d] * (float)size[d] : at[d], &lower[d], &weight);
    for (unsigned k = 0; k < 4; k++) {
        struct value one;
        i[0] = lower[0] + order[k][0];
        i[1] = lower[1] + order[k][1];
        if (!read_texel(x, i, &one))
            return false;
        out->f[k] = one.f[channel];
        out->i[k] = one.i[channel];
    }
    return true;
}

/* What an instruction says of a texture, against what it is. */
static bool fits(const struct ptx_texture *t, enum ptx_geometry geometry)
{
    static const uint8_t dimensions[] = {1, 2, 3, 1, 2};
    return t->dimensions == dimensions[geometry] && t->layered == (geometry >= PTX_GEOMETRY_A1D);
}

static const struct ptx_texture *find(struct ptx_run *r, const struct ptx_warp *w, unsigned lane, uint32_t pc,
                                      uint64_t handle, bool is_surface, const char *space)
{
    const struct ptx_texture *t = r->texture ? r->texture(handle) : NULL;
    if (t && t->is_surface == is_surface)
        return t;
    ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_ADDRESS, pc);
    r->fault.address = handle;
    r->fault.space = space;
    return NULL;
}

bool ptx_out_tex(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                 uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux), gathers = params >> PTX_TEX_GATHER_AT & 7;
    const uint64_t *handle = (const uint64_t *)ptx_out_at(r, regs, in, 4);
    PTX_FOR_LANES (lane, active) {
        struct fetch x = {.r = r, .w = w, .lane = lane, .pc = pc};
        uint32_t c[4] = {0};
        float at[3] = {0};
        struct value v;
        x.t = find(r, w, lane, pc, handle[lane], false, "texture");
        if (!x.t)
            return false;
        if (!fits(x.t, PTX_TEX_GEOMETRY(params)))
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        for (unsigned k = 0; k < 4; k++)
            if (ptx_out_has(r, in, 5 + k))
                c[k] = ((const uint32_t *)ptx_out_at(r, regs, in, 5 + k))[lane];
        const uint32_t *coordinate = c;
        if (x.t->layered) {
            x.layer = c[0] < x.t->level[0].depth ? c[0] : x.t->level[0].depth - 1;
            coordinate++;
        }
        memcpy(at, coordinate, x.t->dimensions * sizeof *at);
        float level = 0;
        if (params & PTX_TEX_LEVEL)
            memcpy(&level, &((const uint32_t *)ptx_out_at(r, regs, in, 9))[lane], 4);
        int64_t whole[3];
        for (unsigned d = 0; d < 3; d++)
            whole[d] = d < x.t->dimensions ? (int32_t)coordinate[d] : 0;
        x.level = &x.t->level[0];
        bool ok = params & PTX_TEX_INTEGER ? read_texel(&x, whole, &v)
                  : gathers                ? gather(&x, gathers - 1, at, &v)
                                           : sample_levels(&x, level, at, &v);
        if (!ok)
            return false;
        bool raw = x.t->as_integer && x.t->texel <= PTX_TEXEL_S32;
        for (unsigned k = 0; k < 4; k++) {
            float f = (float)v.f[k];
            if (ptx_out_has(r, in, k))
                memcpy(&((uint32_t *)ptx_out_at(r, regs, in, k))[lane], raw ? (void *)&v.i[k] : &f, 4);
        }
    }
    return true;
}

bool ptx_out_texture_query(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                           uint32_t active, uint32_t pc)
{
    static const uint16_t data_types[] = {0x10da, 0x10db, 0x10dc, 0x10d7, 0x10d8, 0x10d9, 0x10dd, 0x10de};
    static const uint16_t orders[] = {0, 0x10b0, 0x10b2, 0, 0x10b5};
    uint32_t params = PTX_OUT_PARAMS(in->aux), *result = (uint32_t *)ptx_out_at(r, regs, in, 0);
    const uint64_t *handle = (const uint64_t *)ptx_out_at(r, regs, in, 1);
    PTX_FOR_LANES (lane, active) {
        const struct ptx_texture *t =
            find(r, w, lane, pc, handle[lane], params & 1, params & 1 ? "surface" : "texture");
        if (!t)
            return false;
        uint32_t level = ptx_out_has(r, in, 2) ? ((const uint32_t *)ptx_out_at(r, regs, in, 2))[lane] : 0;
        const struct ptx_texture_level *l = &t->level[level < t->levels ? level : t->levels - 1];
        switch ((enum ptx_texture_query)(params >> 1)) {
        case PTX_QUERY_WIDTH: result[lane] = l->width; break;
        case PTX_QUERY_HEIGHT: result[lane] = t->dimensions > 1 ? l->height : 0; break;
        case PTX_QUERY_DEPTH: result[lane] = t->dimensions > 2 ? l->depth : 0; break;
        case PTX_QUERY_ARRAY_SIZE: result[lane] = t->layered ? l->depth : 0; break;
        case PTX_QUERY_LEVELS: result[lane] = t->levels; break;
        case PTX_QUERY_DATA_TYPE: result[lane] = data_types[t->texel]; break;
        case PTX_QUERY_ORDER: result[lane] = orders[t->channels]; break;
        case PTX_QUERY_NORMALIZED: result[lane] = t->normalized; break;
        default: result[lane] = 1; break;
        }
    }
    return true;
}

/* ---- surfaces ---- */

/* Where an access in bytes lies; false: outside, where it traps (fault set) or is left out. */
static bool surface_place(struct ptx_run *r, const struct ptx_warp *w, unsigned lane, uint32_t pc,
                          const struct ptx_texture *t, uint32_t params, const uint32_t c[4], uint64_t *va_out)
{
    const struct ptx_texture_level *l = &t->level[0];
    uint32_t bytes = 1u << (params >> PTX_SURFACE_LOG2_AT & 3) << (params >> PTX_SURFACE_COUNT_AT & 3);
    const uint32_t *coordinate = t->layered ? c + 1 : c;
    uint32_t limit[3] = {l->width * texel_bytes(t->texel) * t->channels - bytes, l->height - 1, l->depth - 1};
    int64_t i[3] = {0, 0, t->layered ? (int32_t)c[0] : 0};
    enum ptx_surface_clamp clamp = (enum ptx_surface_clamp)(params >> PTX_SURFACE_CLAMP_AT & 3);
    bool inside = !t->layered || (i[2] >= 0 && i[2] <= limit[2]);
    for (unsigned d = 0; d < dimensions_of(t); d++) {
        i[d] = (int32_t)coordinate[d];
        inside &= i[d] >= 0 && i[d] <= limit[d];
    }
    if (!inside && clamp == PTX_SURFACE_CLAMP)
        for (unsigned d = 0; d < 3; d++)
            i[d] = i[d] < 0 ? 0 : i[d] > limit[d] ? limit[d] : i[d];
    else if (!inside)
        return clamp == PTX_SURFACE_TRAP && ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_ADDRESS, pc);
    if (i[0] % bytes)
        return ptx_run_fault(r, w, lane, PTX_FAULT_MISALIGNED, pc);
    *va_out = l->va + (uint64_t)i[2] * l->slice + (uint64_t)i[1] * l->pitch + (uint64_t)i[0];
    return true;
}

static bool surface_lane(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                         const struct ptx_texture *t, unsigned lane, uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux), c[4] = {0};
    unsigned log2 = params >> PTX_SURFACE_LOG2_AT & 3, count = 1u << (params >> PTX_SURFACE_COUNT_AT & 3);
    bool store = params & PTX_SURFACE_STORE;
    struct ptx_access access = {PTX_SPACE_GLOBAL, count << log2, 1, store, pc};
    uint8_t data[16] = {0};
    uint64_t va = 0;
    /* A register of an 8-bit element has 16 bits. */
    unsigned reg_bytes = log2 ? 1u << log2 : 2;
    for (unsigned k = 0; k < 4; k++)
        if (ptx_out_has(r, in, 5 + k))
            c[k] = ((const uint32_t *)ptx_out_at(r, regs, in, 5 + k))[lane];
    for (unsigned k = 0; k < count && store; k++)
        memcpy(data + (k << log2), ptx_out_at(r, regs, in, k) + (size_t)lane * reg_bytes, 1u << log2);
    bool inside = surface_place(r, w, lane, pc, t, params, c, &va);
    if (!inside && r->fault.kind)
        return false;
    uint8_t *at = inside ? ptx_run_at(r, w, &access, lane, va, NULL) : NULL;
    if (inside && !at)
        return false;
    if (at)
        memcpy(store ? at : data, store ? data : at, access.bytes);
    for (unsigned k = 0; k < count && !store; k++) {
        uint64_t wide = 0;
        memcpy(&wide, data + (k << log2), 1u << log2);
        if (ptx_out_has(r, in, k))
            memcpy(ptx_out_at(r, regs, in, k) + (size_t)lane * reg_bytes, &wide, reg_bytes);
    }
    return true;
}

bool ptx_out_surface(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                     uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux);
    const uint64_t *handle = (const uint64_t *)ptx_out_at(r, regs, in, 4);
    PTX_FOR_LANES (lane, active) {
        const struct ptx_texture *t = find(r, w, lane, pc, handle[lane], true, "surface");
        if (!t)
            return false;
        if (!fits(t, PTX_TEX_GEOMETRY(params)))
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        if (!surface_lane(r, w, in, regs, t, lane, pc))
            return false;
    }
    return true;
}
