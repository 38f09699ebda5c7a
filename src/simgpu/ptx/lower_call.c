/* Calls: of functions, through registers, and of the few functions that the system provides. */
#include "simgpu/ptx/lower.h"
#include "simgpu/ptx/out.h"

#include <string.h>

/* One value that goes over: where it is in the caller's frame. */
static void call_value(struct ptx_parser *p, const struct ptx_operand *o, uint32_t bytes, bool is_open, bool is_result,
                       struct ptx_arg *out)
{
    out->bytes = bytes;
    if (o->kind == PTX_OPERAND_SYMBOL && o->symbol && o->symbol->kind == PTX_SYM_PARAM && !o->symbol->is_formal &&
        !o->value) {
        if (is_open ? o->symbol->bytes > bytes : o->symbol->bytes != bytes)
            ptx_lower_fail(p, "an argument of another size");
        out->bytes = (uint32_t)o->symbol->bytes;
        out->caller_offset = o->symbol->offset;
        out->caller_stride = o->symbol->stride;
        return;
    }
    unsigned log2 = bytes == 8 ? 3 : bytes == 4 ? 2 : 1;
    if (is_open || bytes > 8 || (bytes & (bytes - 1)))
        ptx_lower_fail(p, "an argument of another size");
    out->caller_offset = is_result ? ptx_result(p, o, log2) : ptx_source(p, o, log2, PTX_NONE);
    out->caller_stride = 1u << log2;
}

static struct ptx_call *new_call(struct ptx_parser *p)
{
    const struct ptx_stmt *s = &p->stmt;
    struct ptx_call *call = ptx_parse_take(p, sizeof(*call));
    *call = (struct ptx_call){.caller = p->function,
                              .line = s->line,
                              .argument_count = s->call_argument_count,
                              .result_count = s->call_result_count};
    call->arguments = ptx_parse_take(p, (call->argument_count + call->result_count) * sizeof(struct ptx_arg) + 1);
    return call;
}

static void emit_call(struct ptx_parser *p, struct ptx_call *call, uint32_t pointer)
{
    struct ptx_module *m = p->module;
    call->next = p->function->calls;
    p->function->calls = call;
    if (ptx_grow((void **)&m->calls, m->call_count, &m->call_capacity, sizeof(*m->calls)))
        ptx_parse_out_of_memory(p);
    struct ptx_insn *in = ptx_emit(p, call->callee ? PTX_OP_CALL : PTX_OP_CALL_INDIRECT);
    in->o[1] = pointer;
    in->imm = m->call_count;
    m->calls[m->call_count++] = call;
}

static void indirect(struct ptx_parser *p)
{
    struct ptx_stmt *s = &p->stmt;
    const struct ptx_operand *o = ptx_operand_at(p, 1);
    if (s->operand_count != 2 || o->kind != PTX_OPERAND_SYMBOL || !o->symbol || o->symbol->kind != PTX_SYM_PROTOTYPE)
        ptx_lower_fail(p, "no prototype");
    const struct ptx_prototype *proto = o->symbol->prototype;
    if (s->call_argument_count != proto->argument_count || s->call_result_count != proto->result_count)
        ptx_lower_fail(p, "wrong number of arguments or results");
    uint32_t pointer = ptx_source(p, ptx_operand_at(p, 0), 3, PTX_B64);
    struct ptx_call *call = new_call(p);
    call->targets = proto->targets;
    call->target_count = proto->target_count;
    for (uint32_t i = 0; i < proto->argument_count; i++)
        call_value(p, &s->call_arguments[i], proto->bytes[i], false, false, &call->arguments[i]);
    for (uint32_t i = 0; i < proto->result_count; i++)
        call_value(p, &s->call_results[i], proto->bytes[proto->argument_count + i], false, true,
                   &call->arguments[proto->argument_count + i]);
    emit_call(p, call, pointer);
}

/* ---- functions that the system provides: called as functions, done by the engine ---- */

struct provided {
    const char *name;
    enum ptx_out function;
    uint8_t argument_count;
    uint8_t argument_log2[5];
    uint8_t result_log2; /* 0 = none */
};
static const struct provided provided[] = {
    {"malloc", PTX_OUT_malloc, 1, {3}, 3},
    {"free", PTX_OUT_free, 1, {3}, 0},
    {"vprintf", PTX_OUT_vprintf, 2, {3, 3}, 2},
    {"cudaGraphSetConditional", PTX_OUT_set_condition, 2, {3, 2}, 0},
    {"__assertfail", PTX_OUT_assertfail, 5, {3, 3, 2, 3, 3}, 0},
    {"__assertfail", PTX_OUT_assertfail, 5, {3, 3, 2, 3, 2}, 0}, /* its last parameter is a size: of a character */
};

static const struct provided *find_provided(const struct ptx_function *f)
{
    for (unsigned i = 0; i < sizeof(provided) / sizeof(provided[0]); i++) {
        const struct provided *v = &provided[i];
        bool same = !strcmp(f->info.name, v->name) && f->formal_count == v->argument_count &&
                    f->result_count == (v->result_log2 ? 1 : 0);
        for (uint32_t k = 0; same && k < f->formal_count; k++)
            same = f->formals[k].at.size_bytes == 1u << v->argument_log2[k];
        if (same && (!v->result_log2 || f->results[0].at.size_bytes == 1u << v->result_log2))
            return v;
    }
    return NULL;
}

/* Moves a call object's bytes between the frame and a register. */
static void move_object(struct ptx_parser *p, int op, const struct ptx_arg *arg, unsigned log2, uint32_t reg)
{
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = reg;
    in->o[5] = arg->caller_offset;
    in->imm = (uint64_t)arg->caller_stride << 32;
    in->aux = PTX_MEM_AUX(PTX_SPACE_FRAME, log2, 0, log2, 0, 0, PTX_ORDER_WEAK);
}

static bool is_object(const struct ptx_operand *o)
{
    return o->kind == PTX_OPERAND_SYMBOL && o->symbol && o->symbol->kind == PTX_SYM_PARAM;
}

static void call_provided(struct ptx_parser *p, const struct ptx_function *f, const struct provided *v)
{
    struct ptx_stmt *s = &p->stmt;
    uint32_t operands[6] = {0};
    unsigned results = v->result_log2 ? 1 : 0;
    struct ptx_arg arg, result = {0};
    for (unsigned k = 0; k < v->argument_count; k++) {
        call_value(p, &s->call_arguments[k], f->formals[k].at.size_bytes, false, false, &arg);
        operands[results + k] = arg.caller_offset;
        if (is_object(&s->call_arguments[k])) {
            operands[results + k] = ptx_temp(p, v->argument_log2[k]);
            move_object(p, PTX_OP_LD, &arg, v->argument_log2[k], operands[results + k]);
        }
    }
    if (results) {
        call_value(p, &s->call_results[0], f->results[0].at.size_bytes, false, true, &result);
        operands[0] = is_object(&s->call_results[0]) ? ptx_temp(p, v->result_log2) : result.caller_offset;
    }
    p->module->uses_heap |= v->function == PTX_OUT_malloc || v->function == PTX_OUT_free;
    p->module->uses_printf |= v->function == PTX_OUT_vprintf;
    ptx_emit_out(p, false, v->function, 0, operands, results, results + v->argument_count);
    if (results && is_object(&s->call_results[0]))
        move_object(p, PTX_OP_ST, &result, v->result_log2, operands[0]);
}

void ptx_lower_call(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_stmt *s = &p->stmt;
    const struct ptx_operand *o = ptx_operand_at(p, 0);
    if (s->type_count)
        ptx_lower_unsupported(p, NULL);
    ptx_take_mod(p, PTX_M_UNI);
    if (o->kind == PTX_OPERAND_REG) {
        indirect(p);
        return;
    }
    if (o->kind != PTX_OPERAND_SYMBOL || !o->symbol || o->symbol->kind != PTX_SYM_FUNCTION || s->operand_count != 1)
        ptx_lower_fail(p, "no function");
    struct ptx_function *callee = o->symbol->function;
    if (callee->info.is_entry)
        ptx_lower_unsupported(p, "call of an entry");
    if (s->call_argument_count != callee->formal_count || s->call_result_count != callee->result_count)
        ptx_lower_fail(p, "wrong number of arguments or results");
    const struct provided *known = callee->defined ? NULL : find_provided(callee);
    if (known) {
        call_provided(p, callee, known);
        return;
    }
    if (!callee->defined && !strcmp(callee->info.name, "__assertfail")) { /* without what it could print */
        ptx_emit(p, PTX_OP_ASSERT);
        return;
    }
    struct ptx_call *call = new_call(p);
    call->callee = callee;
    for (uint32_t i = 0; i < call->argument_count; i++)
        call_value(p, &s->call_arguments[i], callee->formals[i].at.size_bytes, callee->formals[i].is_open, false,
                   &call->arguments[i]);
    for (uint32_t i = 0; i < call->result_count; i++)
        call_value(p, &s->call_results[i], callee->results[i].at.size_bytes, false, true,
                   &call->arguments[call->argument_count + i]);
    emit_call(p, call, 0);
}
