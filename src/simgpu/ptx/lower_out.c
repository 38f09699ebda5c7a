/* What the lowering of memory instructions and of rarer operations shares: spaces, orders, hints, addresses, operands. */
#include "simgpu/ptx/lower.h"

#include <string.h>

enum ptx_space ptx_take_space(struct ptx_parser *p, bool *is_const_out)
{
    bool is_const = ptx_take_mod(p, PTX_M_CONST);
    enum ptx_space space = is_const ? PTX_SPACE_GLOBAL : PTX_SPACE_GENERIC, param = PTX_SPACE_PARAM;
    if (p->function->info.is_entry == false)
        param = PTX_SPACE_FRAME;
    if (ptx_take_mod(p, PTX_M_GLOBAL))
        space = PTX_SPACE_GLOBAL;
    else if (ptx_take_mod(p, PTX_M_SHARED) || ptx_take_mod(p, PTX_M_SHARED_CTA) ||
             ptx_take_mod(p, PTX_M_SHARED_CLUSTER)) /* a cluster is one block here */
        space = PTX_SPACE_SHARED;
    else if (ptx_take_mod(p, PTX_M_LOCAL))
        space = PTX_SPACE_LOCAL;
    else if (ptx_take_mod(p, PTX_M_PARAM) || ptx_take_mod(p, PTX_M_PARAM_FUNC))
        space = param;
    else if (ptx_take_mod(p, PTX_M_PARAM_ENTRY))
        space = PTX_SPACE_PARAM;
    *is_const_out = is_const;
    return space;
}

unsigned ptx_take_scope(struct ptx_parser *p)
{
    unsigned scopes = ptx_take_mod(p, PTX_M_CLUSTER);
    for (int m = PTX_M_CTA; m <= PTX_M_SYS; m++)
        scopes += ptx_take_mod(p, (enum ptx_mod)m);
    return scopes;
}

enum ptx_order ptx_take_order(struct ptx_parser *p)
{
    static const struct {
        enum ptx_mod mod;
        enum ptx_order order;
    } orders[] = {{PTX_M_WEAK, PTX_ORDER_WEAK},       {PTX_M_VOLATILE, PTX_ORDER_RELAXED},
                  {PTX_M_RELAXED, PTX_ORDER_RELAXED}, {PTX_M_ACQUIRE, PTX_ORDER_ACQ_REL},
                  {PTX_M_RELEASE, PTX_ORDER_ACQ_REL}, {PTX_M_ACQ_REL, PTX_ORDER_ACQ_REL}};
    enum ptx_order order = PTX_ORDER_WEAK;
    unsigned given = 0;
    ptx_take_mod(p, PTX_M_MMIO); /* .mmio.relaxed.sys: accesses are never merged here anyway */
    for (unsigned i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        if (ptx_take_mod(p, orders[i].mod)) {
            order = orders[i].order;
            given++;
        }
    }
    if (ptx_take_scope(p) > 1 || given > 1)
        ptx_lower_unsupported(p, NULL);
    return order;
}

void ptx_take_cache_hints(struct ptx_parser *p)
{
    static const enum ptx_mod hints[] = {PTX_M_L1_EVICT_NORMAL, PTX_M_L1_EVICT_UNCHANGED,
                                         PTX_M_L1_EVICT_FIRST,  PTX_M_L1_EVICT_LAST,
                                         PTX_M_L1_NO_ALLOCATE,  PTX_M_L2_EVICT_NORMAL,
                                         PTX_M_L2_EVICT_FIRST,  PTX_M_L2_EVICT_LAST,
                                         PTX_M_L2_64B,          PTX_M_L2_128B,
                                         PTX_M_L2_256B};
    struct ptx_stmt *s = &p->stmt;
    for (unsigned i = 0; i < sizeof(hints) / sizeof(hints[0]); i++)
        ptx_take_mod(p, hints[i]);
    if (!ptx_take_mod(p, PTX_M_L2_CACHE_HINT))
        return;
    if (!s->operand_count)
        ptx_lower_fail(p, "no cache policy");
    ptx_source(p, &s->operands[s->operand_count - 1], 3, PTX_B64);
    s->operand_count--;
}

uint32_t ptx_lower_address(struct ptx_parser *p, const struct ptx_operand *o, enum ptx_space space, uint32_t bytes)
{
    struct ptx_insn form = {0}, *in;
    bool addr32;
    if (space == PTX_SPACE_PARAM || space == PTX_SPACE_FRAME)
        ptx_lower_unsupported(p, NULL);
    ptx_lower_mem_address(p, o, &space, false, bytes, &form, &addr32);
    uint32_t at = ptx_temp(p, 3);
    if (form.o[5]) {
        in = ptx_emit(p, PTX_OP_SHARED_ADDR);
        in->o[0] = at;
        in->o[1] = form.o[5] - 1;
        in->aux = 3;
        in->imm = form.imm;
        return at;
    }
    if (!form.o[4])
        return ptx_constant(p, 3, form.imm);
    if (!addr32 && !form.imm)
        return form.o[4];
    uint32_t base = form.o[4], offset = form.imm ? ptx_constant(p, addr32 ? 2 : 3, form.imm) : 0;
    if (addr32) { /* 32-bit addresses wrap at 32 bits */
        uint32_t narrow = ptx_temp(p, 2);
        in = ptx_emit(p, offset ? PTX_OP_ADD_32 : PTX_OP_MOV_32);
        in->o[0] = narrow;
        in->o[1] = base;
        in->o[2] = offset;
        in = ptx_emit(p, PTX_OP_CV_u32_u64_u32);
        in->o[0] = at;
        in->o[1] = narrow;
        return at;
    }
    in = ptx_emit(p, PTX_OP_ADD_64);
    in->o[0] = at;
    in->o[1] = base;
    in->o[2] = offset;
    return at;
}

struct ptx_insn *ptx_emit_out(struct ptx_parser *p, bool sync, unsigned function, uint32_t params,
                              const uint32_t *operands, unsigned result_count, unsigned count)
{
    struct ptx_module *m = p->module;
    if (ptx_grow((void **)&m->wides, m->wide_count, &m->wide_capacity, sizeof(*m->wides)))
        ptx_parse_out_of_memory(p);
    struct ptx_wide *wide = &m->wides[m->wide_count];
    *wide =
        (struct ptx_wide){ptx_parse_take(p, count * sizeof(*operands) + 1), (uint16_t)result_count, (uint16_t)count};
    if (count)
        memcpy(wide->operands, operands, count * sizeof(*operands));
    uint32_t members = sync ? ptx_constant(p, 2, UINT32_MAX) : 0;
    struct ptx_insn *in = ptx_emit(p, sync ? PTX_OP_OUT_SYNC : PTX_OP_OUT);
    in->o[4] = members;
    in->aux = function | params << 8;
    in->imm = m->wide_count++;
    return in;
}
