/* Asynchronous copies and mbarriers. */
#include "simgpu/ptx/lower.h"
#include "simgpu/ptx/out.h"

#include <string.h>

static bool peek(const struct ptx_parser *p, enum ptx_mod mod)
{
    return p->stmt.mods[mod / 64] >> (mod % 64) & 1;
}

/* A shared address of the one kind that these instructions take: 64 bits, in `space`. */
static enum ptx_space shared_space(struct ptx_parser *p)
{
    bool is_const;
    enum ptx_space space = ptx_take_space(p, &is_const);
    if (is_const || (space != PTX_SPACE_SHARED && space != PTX_SPACE_GENERIC))
        ptx_lower_unsupported(p, NULL);
    return space;
}

/* cp.async.{ca,cg}.shared.global [to], [from], 4 | 8 | 16 {, bytes | ignore} {, policy} */
static void copy(struct ptx_parser *p)
{
    struct ptx_stmt *s = &p->stmt;
    bool ca = ptx_take_mod(p, PTX_M_CA), cg = !ca && ptx_take_mod(p, PTX_M_CG);
    bool shared = ptx_take_mod(p, PTX_M_SHARED) || ptx_take_mod(p, PTX_M_SHARED_CTA);
    if ((!ca && !cg) || !shared || !ptx_take_mod(p, PTX_M_GLOBAL) || s->type_count)
        ptx_lower_unsupported(p, NULL);
    ptx_take_cache_hints(p);
    if (s->operand_count < 3 || s->operand_count > 4)
        ptx_lower_fail(p, "wrong number of operands");
    const struct ptx_operand *size = ptx_operand_at(p, 2);
    if (size->kind != PTX_OPERAND_INT || (size->value != 16 && (cg || (size->value != 4 && size->value != 8))))
        ptx_lower_fail(p, "a size that is not 4, 8 or 16");
    uint32_t bytes = (uint32_t)size->value, operands[4] = {0};
    operands[0] = ptx_lower_address(p, ptx_operand_at(p, 0), PTX_SPACE_SHARED, bytes);
    operands[1] = ptx_lower_address(p, ptx_operand_at(p, 1), PTX_SPACE_GLOBAL, bytes);
    if (s->operand_count == 4) {
        const struct ptx_operand *last = ptx_operand_at(p, 3);
        if (last->kind == PTX_OPERAND_REG && !last->log2)
            operands[3] = ptx_predicate(p, last);
        else
            operands[2] = ptx_source(p, last, 2, PTX_U32);
    }
    ptx_emit_out(p, false, PTX_OUT_cp_async, bytes, operands, 0, 4);
}

/* cp.async.bulk between global and shared memory. */
static void bulk(struct ptx_parser *p)
{
    struct ptx_stmt *s = &p->stmt;
    bool to_shared = ptx_take_mod(p, PTX_M_COMPLETE_TX_BYTES);
    bool cluster = ptx_take_mod(p, PTX_M_SHARED_CLUSTER), cta = ptx_take_mod(p, PTX_M_SHARED_CTA);
    bool global = ptx_take_mod(p, PTX_M_GLOBAL), group = ptx_take_mod(p, PTX_M_BULK_GROUP);
    if (!global || s->type_count || to_shared == group || cluster + cta != 1 || (group && !cta))
        ptx_lower_unsupported(p, NULL);
    ptx_take_cache_hints(p);
    if (s->operand_count != 3u + to_shared)
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t operands[4] = {0};
    operands[0] = ptx_lower_address(p, ptx_operand_at(p, 0), to_shared ? PTX_SPACE_SHARED : PTX_SPACE_GLOBAL, 16);
    operands[1] = ptx_lower_address(p, ptx_operand_at(p, 1), to_shared ? PTX_SPACE_GLOBAL : PTX_SPACE_SHARED, 16);
    operands[2] = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_U32);
    if (to_shared)
        operands[3] = ptx_lower_address(p, ptx_operand_at(p, 3), PTX_SPACE_SHARED, 8);
    ptx_emit_out(p, false, PTX_OUT_cp_bulk, to_shared, operands, 0, 4);
}

static void wait_group(struct ptx_parser *p, bool is_bulk)
{
    const struct ptx_operand *o = ptx_operand_at(p, 0);
    if (is_bulk)
        ptx_take_mod(p, PTX_M_READ);
    if (p->stmt.operand_count != 1 || o->kind != PTX_OPERAND_INT || o->value >= 1u << 24)
        ptx_lower_fail(p, "no number of groups");
    if (!is_bulk) /* bulk copies are done when they are issued */
        ptx_emit_out(p, false, PTX_OUT_cp_wait, (uint32_t)o->value, NULL, 0, 0);
}

void ptx_lower_cp(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_stmt *s = &p->stmt;
    if (!ptx_take_mod(p, PTX_M_ASYNC))
        ptx_lower_unsupported(p, NULL);
    bool is_bulk = ptx_take_mod(p, PTX_M_BULK), is_mbarrier = !is_bulk && ptx_take_mod(p, PTX_M_MBARRIER);
    bool is_commit = !is_mbarrier && ptx_take_mod(p, PTX_M_COMMIT_GROUP);
    bool is_all = !is_bulk && !is_mbarrier && ptx_take_mod(p, PTX_M_WAIT_ALL);
    if (is_commit || is_all) {
        if (s->operand_count || s->type_count)
            ptx_lower_fail(p, "wrong number of operands");
        if (is_all)
            ptx_emit_out(p, false, PTX_OUT_cp_commit, 0, NULL, 0, 0);
        if (!is_bulk)
            ptx_emit_out(p, false, is_all ? PTX_OUT_cp_wait : PTX_OUT_cp_commit, 0, NULL, 0, 0);
    } else if (!is_mbarrier && ptx_take_mod(p, PTX_M_WAIT_GROUP)) {
        wait_group(p, is_bulk);
    } else if (is_mbarrier) { /* cp.async.mbarrier.arrive{.noinc}.b64 [barrier] */
        bool noinc = ptx_take_mod(p, PTX_M_NOINC);
        if (!ptx_take_mod(p, PTX_M_ARRIVE) || ptx_one_type(p) != PTX_B64 || s->operand_count != 1)
            ptx_lower_unsupported(p, NULL);
        enum ptx_space space = shared_space(p);
        uint32_t address = ptx_lower_address(p, ptx_operand_at(p, 0), space, 8);
        ptx_emit_out(p, false, PTX_OUT_cp_arrive, (uint32_t)space | (uint32_t)noinc << 4, &address, 0, 1);
    } else if (s->operand_count < 3) {
        ptx_lower_unsupported(p, NULL);
    } else if (is_bulk) {
        bulk(p);
    } else {
        copy(p);
    }
}

static void take_semantics(struct ptx_parser *p, enum ptx_mod strong)
{
    if (!ptx_take_mod(p, strong))
        ptx_take_mod(p, PTX_M_RELAXED);
    if (!ptx_take_mod(p, PTX_M_CTA))
        ptx_take_mod(p, PTX_M_CLUSTER);
}

/* mbarrier.arrive{_drop}{.expect_tx}{.noComplete} state, [barrier] {, count or bytes} */
static void arrive(struct ptx_parser *p, bool drop)
{
    struct ptx_stmt *s = &p->stmt;
    bool no_complete = ptx_take_mod(p, PTX_M_NOCOMPLETE), expects = !no_complete && ptx_take_mod(p, PTX_M_EXPECT_TX);
    take_semantics(p, PTX_M_RELEASE);
    enum ptx_space space = shared_space(p);
    /* On a barrier of another block of the cluster there is no state; then the first operand is the address. */
    bool stateless = s->operands[0].kind == PTX_OPERAND_ADDRESS;
    unsigned first = stateless ? 0 : 1;
    if (s->operand_count < first + 1 + (no_complete || expects) || s->operand_count > first + 2)
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t operands[3];
    operands[1] = ptx_lower_address(p, ptx_operand_at(p, first), space, 8);
    operands[2] =
        s->operand_count == first + 2 ? ptx_source(p, ptx_operand_at(p, first + 1), 2, PTX_U32) : ptx_constant(p, 2, 1);
    operands[0] = stateless ? ptx_temp(p, 3) : ptx_result(p, ptx_operand_at(p, 0), 3);
    ptx_emit_out(p, false, PTX_OUT_mbarrier_arrive,
                 (uint32_t)space | (uint32_t)drop << 4 | (uint32_t)no_complete << 5 | (uint32_t)expects << 6, operands,
                 1, 3);
}

/* mbarrier.{test,try}_wait{.parity} done, [barrier], state or parity {, hint} */
static void wait(struct ptx_parser *p, bool tries)
{
    struct ptx_stmt *s = &p->stmt;
    bool parity = ptx_take_mod(p, PTX_M_PARITY);
    take_semantics(p, PTX_M_ACQUIRE);
    enum ptx_space space = shared_space(p);
    if (s->operand_count < 3 || s->operand_count > 3u + tries)
        ptx_lower_fail(p, "wrong number of operands");
    if (s->operand_count == 4)
        ptx_source(p, ptx_operand_at(p, 3), 2, PTX_U32);
    uint32_t operands[3];
    operands[1] = ptx_lower_address(p, ptx_operand_at(p, 1), space, 8);
    operands[2] = ptx_source(p, ptx_operand_at(p, 2), parity ? 2 : 3, PTX_NONE);
    operands[0] = ptx_result(p, ptx_operand_at(p, 0), 0);
    ptx_emit_out(p, false, PTX_OUT_mbarrier_test, (uint32_t)space | (uint32_t)parity << 4, operands, 1, 3);
    if (tries) { /* may wait: others get their turn first */
        struct ptx_insn *in = ptx_emit(p, PTX_OP_YIELD);
        in->guard = operands[0];
        in->guard_negated = true;
    }
}

static void transaction(struct ptx_parser *p, bool completes)
{
    if (!ptx_take_mod(p, PTX_M_RELAXED) && peek(p, PTX_M_RELEASE))
        ptx_lower_unsupported(p, NULL);
    if (!ptx_take_mod(p, PTX_M_CTA))
        ptx_take_mod(p, PTX_M_CLUSTER);
    enum ptx_space space = shared_space(p);
    if (p->stmt.operand_count != 2)
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t operands[2];
    operands[0] = ptx_lower_address(p, ptx_operand_at(p, 0), space, 8);
    operands[1] = ptx_source(p, ptx_operand_at(p, 1), 2, PTX_U32);
    ptx_emit_out(p, false, PTX_OUT_mbarrier_tx, (uint32_t)space | (uint32_t)completes << 4, operands, 0, 2);
}

static void init(struct ptx_parser *p, bool invalidates)
{
    enum ptx_space space = shared_space(p);
    if (p->stmt.operand_count != (invalidates ? 1 : 2))
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t operands[2] = {0};
    operands[0] = ptx_lower_address(p, ptx_operand_at(p, 0), space, 8);
    if (!invalidates)
        operands[1] = ptx_source(p, ptx_operand_at(p, 1), 2, PTX_U32);
    ptx_emit_out(p, false, invalidates ? PTX_OUT_mbarrier_inval : PTX_OUT_mbarrier_init, (uint32_t)space, operands, 0,
                 2);
}

void ptx_lower_mbarrier(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (ptx_one_type(p) != PTX_B64)
        ptx_lower_unsupported(p, NULL);
    if (ptx_take_mod(p, PTX_M_INIT)) {
        init(p, false);
    } else if (ptx_take_mod(p, PTX_M_INVAL)) {
        init(p, true);
    } else if (ptx_take_mod(p, PTX_M_ARRIVE)) {
        arrive(p, false);
    } else if (ptx_take_mod(p, PTX_M_ARRIVE_DROP)) {
        arrive(p, true);
    } else if (ptx_take_mod(p, PTX_M_TEST_WAIT)) {
        wait(p, false);
    } else if (ptx_take_mod(p, PTX_M_TRY_WAIT)) {
        wait(p, true);
    } else if (ptx_take_mod(p, PTX_M_EXPECT_TX)) {
        transaction(p, false);
    } else if (ptx_take_mod(p, PTX_M_COMPLETE_TX)) {
        transaction(p, true);
    } else if (ptx_take_mod(p, PTX_M_PENDING_COUNT) && p->stmt.operand_count == 2) {
        uint32_t operands[2];
        operands[1] = ptx_source(p, ptx_operand_at(p, 1), 3, PTX_B64);
        operands[0] = ptx_result(p, ptx_operand_at(p, 0), 2);
        ptx_emit_out(p, false, PTX_OUT_mbarrier_pending, 0, operands, 1, 2);
    } else {
        ptx_lower_unsupported(p, NULL);
    }
}
