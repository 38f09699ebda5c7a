/*
 * cp.async: copies are noted when they are issued and carried out when they are waited for, so that a kernel which forgets to
 * wait sees what was there before. What a copy names is checked at once. A warp's notes are in issue order; a group is known
 * by how many groups the lane had committed before it. Copies that nobody waits for are never seen by anybody: they are
 * dropped with the block. Bulk copies are carried out when they are issued.
 */
#include "simgpu/ptx/mbarrier.h"
#include "simgpu/ptx/out.h"

#include <stdlib.h>
#include <string.h>

struct note {
    uint32_t lanes; /* whose copy is still to do */
    uint32_t pc;
    uint32_t bytes;
    uint32_t to[PTX_LANES];
    uint64_t from[PTX_LANES];
    uint32_t group[PTX_LANES];
    uint8_t read_bytes[PTX_LANES]; /* the rest becomes zeros */
};

struct ptx_async {
    uint32_t committed[PTX_LANES];
    size_t count, capacity;
    struct note *notes;
};

void ptx_async_reset(struct ptx_warp *w)
{
    if (!w->async)
        return;
    memset(w->async->committed, 0, sizeof(w->async->committed));
    w->async->count = 0;
}

void ptx_async_destroy(struct ptx_warp *w)
{
    if (!w->async)
        return;
    free(w->async->notes);
    free(w->async);
    w->async = NULL;
}

static bool carry_out(struct ptx_run *r, const struct ptx_warp *w, const struct note *note, unsigned lane,
                      bool check_only)
{
    struct ptx_access from = {PTX_SPACE_GLOBAL, note->read_bytes[lane], 1, false, note->pc};
    struct ptx_access to = {PTX_SPACE_SHARED, note->bytes, note->bytes, true, note->pc};
    uint8_t *source = NULL, *target = ptx_run_at(r, w, &to, lane, note->to[lane], NULL);
    if (!target)
        return false;
    if (note->from[lane] & (note->bytes - 1))
        from.align = note->bytes; /* to be refused */
    if (from.bytes) {
        source = ptx_run_at(r, w, &from, lane, note->from[lane], NULL);
        if (!source)
            return false;
    }
    if (check_only)
        return true;
    if (source)
        memcpy(target, source, from.bytes);
    memset(target + from.bytes, 0, note->bytes - from.bytes);
    return true;
}

/* Room for one more note; NULL when out of memory. */
static struct note *new_note(struct ptx_warp *w)
{
    if (!w->async)
        w->async = calloc(1, sizeof(*w->async));
    struct ptx_async *a = w->async;
    if (!a || ptx_grow((void **)&a->notes, a->count, &a->capacity, sizeof(*a->notes)))
        return NULL;
    return &a->notes[a->count++];
}

bool ptx_out_cp_async(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                      uint32_t pc)
{
    struct note spare, *note = new_note(w);
    bool at_once = !note; /* a copy may be done at any time from its issue on */
    if (at_once)
        note = &spare;
    const uint64_t *to = (const uint64_t *)ptx_out_at(r, regs, in, 0),
                   *from = (const uint64_t *)ptx_out_at(r, regs, in, 1);
    const uint32_t *size = ptx_out_has(r, in, 2) ? (const uint32_t *)ptx_out_at(r, regs, in, 2) : NULL;
    uint32_t ignored = ptx_out_has(r, in, 3) ? *(const uint32_t *)ptx_out_at(r, regs, in, 3) : 0;
    note->lanes = active;
    note->pc = pc;
    note->bytes = PTX_OUT_PARAMS(in->aux);
    PTX_FOR_LANES (lane, active) {
        uint32_t read_bytes = ignored >> lane & 1 ? 0 : size ? size[lane] : note->bytes;
        if (read_bytes > note->bytes)
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        note->read_bytes[lane] = (uint8_t)read_bytes;
        note->to[lane] = (uint32_t)to[lane];
        note->from[lane] = from[lane];
        note->group[lane] = at_once ? 0 : w->async->committed[lane];
        if (to[lane] >> 32) /* far out of shared memory, and out of the note */
            note->to[lane] = UINT32_MAX & ~15u;
        struct ptx_counters before = r->counters;
        if (!carry_out(r, w, note, lane, !at_once))
            return false;
        if (!at_once)
            r->counters = before; /* counted when it is done */
    }
    return true;
}

/* Of these lanes, all copies of groups that have fewer than `from` committed groups in front of them. */
static bool finish(struct ptx_run *r, struct ptx_warp *w, uint32_t active, const uint32_t from[PTX_LANES])
{
    struct ptx_async *a = w->async;
    size_t kept = 0;
    for (size_t k = 0; a && k < a->count; k++) {
        struct note *note = &a->notes[k];
        PTX_FOR_LANES (lane, note->lanes & active) {
            if (note->group[lane] >= from[lane])
                continue;
            if (!carry_out(r, w, note, lane, false))
                return false;
            note->lanes &= ~(1u << lane);
        }
        if (note->lanes && kept++ != k)
            a->notes[kept - 1] = *note;
    }
    if (a)
        a->count = kept;
    return true;
}

bool ptx_out_cp_commit(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                       uint32_t pc)
{
    (void)r, (void)in, (void)regs, (void)pc;
    if (w->async)
        PTX_FOR_LANES (lane, active)
            w->async->committed[lane]++;
    return true;
}

bool ptx_out_cp_wait(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                     uint32_t pc)
{
    (void)regs, (void)pc;
    uint32_t pending = PTX_OUT_PARAMS(in->aux), from[PTX_LANES] = {0};
    if (!w->async)
        return true;
    for (unsigned lane = 0; lane < PTX_LANES; lane++)
        from[lane] = w->async->committed[lane] > pending ? w->async->committed[lane] - pending : 0;
    return finish(r, w, active, from);
}

bool ptx_out_cp_arrive(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                       uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux), all[PTX_LANES];
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, 0);
    memset(all, 0xff, sizeof(all));
    if (!finish(r, w, active, all))
        return false;
    /* Without .noinc the arrival is one more than was expected: the two cancel out. */
    return ptx_mbarrier_arrive_all(r, w, (enum ptx_space)(params & 15), address, active, params >> 4, pc);
}

bool ptx_out_cp_bulk(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                     uint32_t pc)
{
    bool to_shared = PTX_OUT_PARAMS(in->aux);
    const uint64_t *to = (const uint64_t *)ptx_out_at(r, regs, in, 0),
                   *from = (const uint64_t *)ptx_out_at(r, regs, in, 1);
    const uint32_t *size = (const uint32_t *)ptx_out_at(r, regs, in, 2);
    PTX_FOR_LANES (lane, active) {
        const uint64_t *shared = to_shared ? to : from, *global = to_shared ? from : to;
        if (size[lane] & 15)
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        struct ptx_access near = {PTX_SPACE_SHARED, size[lane], 16, to_shared, pc};
        struct ptx_access far = {PTX_SPACE_GLOBAL, size[lane], 16, !to_shared, pc};
        uint8_t *at = ptx_run_at(r, w, &near, lane, shared[lane], NULL);
        if (!at)
            return false;
        if (size[lane] && !(to_shared ? ptx_run_read(r, w, &far, lane, global[lane], at)
                                      : ptx_run_write(r, w, &far, lane, global[lane], at)))
            return false;
        if (to_shared &&
            !ptx_mbarrier_complete(r, w, lane, ((const uint64_t *)ptx_out_at(r, regs, in, 3))[lane], size[lane], pc))
            return false;
    }
    return true;
}
