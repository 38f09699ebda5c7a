/* Addresses of single lanes, for operations outside the interpreter's core. */
#include "simgpu/ptx/out.h"

#include <string.h>

static uint8_t *refuse(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                       uint64_t address, bool misaligned, const char *space)
{
    ptx_run_fault(r, w, lane, misaligned ? PTX_FAULT_MISALIGNED : PTX_FAULT_ILLEGAL_ADDRESS, a->pc);
    r->fault.address = address;
    r->fault.bytes = a->bytes;
    r->fault.write = a->write;
    r->fault.space = a->space == PTX_SPACE_GENERIC ? "generic" : space;
    return NULL;
}

static uint8_t *in_window(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                          uint64_t address, uint64_t at, uint8_t *base, uint32_t limit, const char *space)
{
    if (at > limit || limit - at < a->bytes)
        return refuse(r, w, a, lane, address, false, space);
    if (at & (a->align - 1))
        return refuse(r, w, a, lane, address, true, space);
    return base + at;
}

static uint8_t *in_global(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                          uint64_t address, bool *crosses_out)
{
    enum sg_tier tier;
    int how = (a->write ? SG_HOW_WRITE : 0) | (a->strong ? SG_HOW_STRONG : 0);
    if (address & (a->align - 1))
        return refuse(r, w, a, lane, address, true, "global");
    if ((address ^ (address + a->bytes - 1)) >> SG_PAGE_SHIFT && crosses_out) {
        *crosses_out = true;
        return NULL;
    }
    uint8_t *host = sg_translate(r->pagetable, address, a->bytes, how, &tier);
    if (!host)
        return refuse(r, w, a, lane, address, false, "global");
    (a->write ? r->counters.write_bytes : r->counters.read_bytes)[tier] += a->bytes;
    return host;
}

uint8_t *ptx_run_at(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                    uint64_t address, bool *crosses_out)
{
    uint64_t window = a->space == PTX_SPACE_SHARED  ? PTX_SHARED_WINDOW
                      : a->space == PTX_SPACE_LOCAL ? PTX_LOCAL_WINDOW
                                                    : address & PTX_WINDOW_MASK;
    uint64_t at = a->space == PTX_SPACE_GENERIC ? address - window : address;
    if (a->space == PTX_SPACE_GLOBAL)
        return in_global(r, w, a, lane, address, crosses_out);
    switch (window) {
    case PTX_SHARED_WINDOW: return in_window(r, w, a, lane, address, at, r->block->shared, r->shared_bytes, "shared");
    case PTX_LOCAL_WINDOW:
        return in_window(r, w, a, lane, address, at, w->local + (size_t)lane * r->local_bytes, r->local_bytes, "local");
    case PTX_PARAM_WINDOW:
        if (a->write)
            return refuse(r, w, a, lane, address, false, "param");
        return in_window(r, w, a, lane, address, at, (uint8_t *)(uintptr_t)r->params, r->function->formal_bytes,
                         "param");
    default: return in_global(r, w, a, lane, address, crosses_out);
    }
}

/* Piece by piece over pages. */
static bool copy(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                 uint64_t address, uint8_t *to, const uint8_t *from)
{
    bool crosses = false;
    uint8_t *at = ptx_run_at(r, w, a, lane, address, &crosses);
    if (at) {
        memcpy(to ? to : at, to ? at : from, a->bytes);
        return true;
    }
    if (!crosses)
        return false;
    struct ptx_access piece = *a;
    for (uint32_t done = 0; done < a->bytes; done += piece.bytes) {
        uint64_t left = SG_PAGE_BYTES - ((address + done) & (SG_PAGE_BYTES - 1));
        piece.bytes = a->bytes - done < left ? a->bytes - done : (uint32_t)left;
        piece.align = 1;
        at = ptx_run_at(r, w, &piece, lane, address + done, NULL);
        if (!at)
            return false;
        memcpy(to ? to + done : at, to ? at : from + done, piece.bytes);
    }
    return true;
}

bool ptx_run_read(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                  uint64_t address, void *to)
{
    return copy(r, w, a, lane, address, to, NULL);
}

bool ptx_run_write(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                   uint64_t address, const void *from)
{
    return copy(r, w, a, lane, address, NULL, from);
}

ptx_out_fn *const ptx_out_functions[PTX_OUT_COUNT] = {
#define X(name) [PTX_OUT_##name] = ptx_out_##name,
    PTX_OUT_FUNCTIONS(X)
#undef X
};
