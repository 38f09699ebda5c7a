/*
 * Places registers: PTX names as many as it likes, and a frame that held each of them would not fit the cache. Registers
 * whose lifetimes do not overlap share a place.
 *
 * A lifetime is a stretch of the text, from the first to the last instruction that names the register. Text order is
 * execution order except for backward branches: a register that lives within one basic block is not concerned by them, and
 * for any other the lifetime is extended over every backward branch's span that it touches. Lanes that diverge are no
 * problem: each has a column of its own, and follows the order of the text on its own.
 */
#include "simgpu/ptx/lower.h"

#include <stdlib.h>
#include <string.h>

#define NO_PLACE UINT32_MAX
#define MOST_WORK                                                                                                      \
    4000000u /* spans times registers; beyond, lifetimes of all but block-local registers are the function */

struct lifetime {
    uint32_t first, last; /* instructions, from the function's first */
    uint32_t next;        /* in the list of those that begin, or end, at one instruction */
    uint32_t block;       /* basic block of all mentions */
    bool used, is_local;  /* local: one block, and written there before it is read */
    uint8_t log2;
    uint32_t place;
    uint32_t mentions;
};

struct span {
    uint32_t from, to;
};

struct compact {
    struct ptx_insn *code;
    uint32_t count, registers;
    struct lifetime *lives;
    uint32_t *begins, *ends; /* per instruction: first of a list of registers, or NO_PLACE */
    uint8_t *leads;          /* a basic block begins here */
    struct span *spans;
    uint32_t span_count;
};

static bool is_register(uint32_t o)
{
    return (o & (PTX_CONST | PTX_VIRTUAL)) == PTX_VIRTUAL;
}

static uint32_t index_of(uint32_t o)
{
    return o & PTX_VIRTUAL_INDEX;
}

static bool is_store(const struct ptx_insn *in)
{
    return in->op >= PTX_OP_ST && in->op <= PTX_OP_ST_SHARED_V4;
}

static bool is_load(const struct ptx_insn *in)
{
    return in->op >= PTX_OP_LD && in->op <= PTX_OP_LD_SHARED_V4;
}

/* Operand k is (only) written. */
static bool is_result(const struct ptx_insn *in, unsigned k)
{
    if (is_store(in))
        return false;
    return k == 0 || (is_load(in) && k < 4);
}

static void mention(struct compact *c, uint32_t o, uint32_t pc, uint32_t block, bool defines)
{
    struct lifetime *life = &c->lives[index_of(o)];
    if (!life->used) {
        *life = (struct lifetime){pc,       pc, NO_PLACE, block, true, defines, (uint8_t)(o >> PTX_VIRTUAL_LOG2 & 3),
                                  NO_PLACE, 1};
        return;
    }
    life->mentions++;
    life->last = pc > life->last ? pc : life->last;
    if (life->block != block)
        life->is_local = false;
}

static void mention_call(struct compact *c, const struct ptx_call *call, uint32_t pc, uint32_t block)
{
    for (uint32_t k = 0; k < call->argument_count + call->result_count; k++)
        if (is_register(call->arguments[k].caller_offset))
            mention(c, call->arguments[k].caller_offset, pc, block, false);
}

static bool is_call(const struct ptx_insn *in)
{
    return in->op == PTX_OP_CALL || in->op == PTX_OP_CALL_INDIRECT;
}

static void mention_wide(struct compact *c, const struct ptx_wide *wide, uint32_t pc, uint32_t block, bool defines)
{
    for (unsigned k = wide->result_count; k < wide->count; k++)
        if (is_register(wide->operands[k]))
            mention(c, wide->operands[k], pc, block, false);
    for (unsigned k = 0; k < wide->result_count; k++)
        if (is_register(wide->operands[k]))
            mention(c, wide->operands[k], pc, block, defines);
}

static bool is_wide(const struct ptx_insn *in)
{
    return in->op == PTX_OP_OUT || in->op == PTX_OP_OUT_SYNC;
}

static void find_lifetimes(struct compact *c, const struct ptx_module *m)
{
    uint32_t block = 0;
    for (uint32_t pc = 0; pc < c->count; pc++) {
        const struct ptx_insn *in = &c->code[pc];
        block += c->leads[pc];
        for (unsigned k = 6; k-- > 0;) /* what is read before what is written */
            if (is_register(in->o[k]) && !is_result(in, k))
                mention(c, in->o[k], pc, block, false);
        for (unsigned k = 0; k < 4; k++)
            if (is_register(in->o[k]) && is_result(in, k))
                mention(c, in->o[k], pc, block, !in->guard);
        if (is_call(in))
            mention_call(c, m->calls[in->imm], pc, block);
        else if (is_wide(in))
            mention_wide(c, &m->wides[in->imm], pc, block, !in->guard);
    }
}

/* Basic blocks and the spans of backward branches. */
static void find_flow(struct compact *c, const struct ptx_parser *p, uint32_t begin)
{
    for (uint32_t pc = 0; pc < c->count; pc++) {
        const struct ptx_insn *in = &c->code[pc];
        if (in->op == PTX_OP_BRA) {
            uint32_t target = (uint32_t)in->imm - begin;
            c->leads[target] = 1;
            if (target <= pc)
                c->spans[c->span_count++] = (struct span){target, pc};
        } else if (in->op == PTX_OP_BRX) {
            uint32_t lowest = pc;
            for (uint32_t i = 0; i < in->aux; i++) {
                uint32_t target = p->module->targets[in->imm + i] - begin;
                c->leads[target] = 1;
                lowest = target < lowest ? target : lowest;
            }
            c->spans[c->span_count++] = (struct span){lowest, pc};
        }
        if (in->op == PTX_OP_BRA || in->op == PTX_OP_BRX || is_call(in))
            c->leads[pc + 1] = 1;
    }
}

static void extend(struct compact *c, struct lifetime *life)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < c->span_count; i++) {
            const struct span *s = &c->spans[i];
            if (life->first > s->to || life->last < s->from || (life->first <= s->from && life->last >= s->to))
                continue;
            life->first = s->from < life->first ? s->from : life->first;
            life->last = s->to > life->last ? s->to : life->last;
            changed = true;
        }
    }
}

static void extend_all(struct compact *c)
{
    uint32_t wide = 0;
    for (uint32_t i = 0; i < c->registers; i++)
        wide += c->lives[i].used && !c->lives[i].is_local;
    bool too_much = (uint64_t)wide * c->span_count > MOST_WORK;
    for (uint32_t i = 0; i < c->registers; i++) {
        struct lifetime *life = &c->lives[i];
        if (!life->used || life->is_local)
            continue;
        if (too_much)
            life->first = 0, life->last = c->count - 1;
        else
            extend(c, life);
    }
}

static void link_list(struct compact *c, uint32_t *heads, bool by_end)
{
    for (uint32_t pc = 0; pc <= c->count; pc++)
        heads[pc] = NO_PLACE;
    for (uint32_t i = c->registers; i-- > 0;) {
        struct lifetime *life = &c->lives[i];
        if (!life->used)
            continue;
        uint32_t *head = &heads[by_end ? life->last + 1 : life->first];
        life->next = *head;
        *head = i;
    }
}

/* A place per register; returns the bytes of frame they need. Places are given back the instruction after the last use,
 * so that no instruction's result lies on its operands, unless it is the same register. */
static uint64_t place_all(struct compact *c, uint32_t *peak_out)
{
    uint64_t bytes = 0, live = 0, peak = 0;
    uint32_t free_place[4] = {NO_PLACE, NO_PLACE, NO_PLACE,
                              NO_PLACE}; /* per size: registers whose place is free, linked */
    link_list(c, c->begins, false);
    /* The lists by beginning are walked once; those by end are built as places are given. */
    for (uint32_t pc = 0; pc <= c->count; pc++)
        c->ends[pc] = NO_PLACE;
    for (uint32_t pc = 0; pc < c->count; pc++) {
        for (uint32_t i = c->ends[pc], next; i != NO_PLACE; i = next) {
            next = c->lives[i].next;
            c->lives[i].next = free_place[c->lives[i].log2];
            free_place[c->lives[i].log2] = i;
            live -= UINT64_C(32) << c->lives[i].log2;
        }
        for (uint32_t i = c->begins[pc], next; i != NO_PLACE; i = next) {
            struct lifetime *life = &c->lives[i];
            next = life->next;
            uint32_t spare = free_place[life->log2];
            if (spare != NO_PLACE) {
                free_place[life->log2] = c->lives[spare].next;
                life->place = c->lives[spare].place;
            } else {
                life->place = (uint32_t)bytes;
                bytes += UINT64_C(32) << life->log2;
            }
            live += UINT64_C(32) << life->log2;
            life->next = c->ends[life->last + 1];
            c->ends[life->last + 1] = i;
        }
        peak = live > peak ? live : peak;
    }
    *peak_out = (uint32_t)(peak / 128);
    return bytes;
}

/* The instruction's result is read by one other, in its own basic block, and never again. */
static bool is_read_once(const struct compact *c, const struct ptx_insn *in)
{
    if (!is_register(in->o[0]) || !is_result(in, 0))
        return false;
    const struct lifetime *life = &c->lives[index_of(in->o[0])];
    return life->is_local && life->mentions == 2 && life->last > life->first;
}

static uint32_t placed(const struct compact *c, uint32_t o, uint32_t base)
{
    return is_register(o) ? base + c->lives[index_of(o)].place : o;
}

static void rewrite(struct compact *c, struct ptx_function *f, const struct ptx_module *m, uint32_t base)
{
    for (uint32_t pc = 0; pc < c->count; pc++) {
        struct ptx_insn *in = &c->code[pc];
        in->once = is_read_once(c, in);
        for (unsigned k = 0; k < 6; k++)
            in->o[k] = placed(c, in->o[k], base);
        for (unsigned k = 0; is_wide(in) && k < m->wides[in->imm].count; k++)
            m->wides[in->imm].operands[k] = placed(c, m->wides[in->imm].operands[k], base);
        if (!is_call(in))
            continue;
        struct ptx_call *call = m->calls[in->imm];
        for (uint32_t k = 0; k < call->argument_count + call->result_count; k++)
            call->arguments[k].caller_offset = placed(c, call->arguments[k].caller_offset, base);
    }
    for (uint32_t i = 0; i < f->formal_count; i++)
        f->formals[i].frame_offset = placed(c, f->formals[i].frame_offset, base);
    for (uint32_t i = 0; i < f->result_count; i++)
        f->results[i].frame_offset = placed(c, f->results[i].frame_offset, base);
}

static void pin(struct compact *c, const struct ptx_formal *formals, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!is_register(formals[i].frame_offset))
            continue;
        mention(c, formals[i].frame_offset, 0, 0, false);
        struct lifetime *life = &c->lives[index_of(formals[i].frame_offset)];
        life->is_local = false;
        life->first = 0;
        life->last = c->count - 1;
    }
}

/* Scratch memory comes in one piece that the parser keeps from function to function. */
static void *scratch(struct ptx_parser *p, size_t bytes)
{
    if (bytes > p->scratch_bytes) {
        free(p->scratch);
        p->scratch = malloc(bytes);
        p->scratch_bytes = p->scratch ? bytes : 0;
        if (!p->scratch)
            ptx_parse_out_of_memory(p);
    }
    memset(p->scratch, 0, bytes);
    return p->scratch;
}

void ptx_lower_compact(struct ptx_parser *p, uint32_t begin, uint32_t end)
{
    struct ptx_function *f = p->function;
    struct compact c = {.code = p->module->code + begin, .count = end - begin, .registers = f->virtual_count};
    size_t lists = (c.count + 1) * sizeof(uint32_t);
    size_t lives = c.registers * sizeof(struct lifetime), spans = c.count * sizeof(struct span);
    uint8_t *memory = scratch(p, lives + spans + 2 * lists + c.count + 1);
    c.lives = (struct lifetime *)memory;
    c.spans = (struct span *)(memory + lives);
    c.begins = (uint32_t *)(memory + lives + spans);
    c.ends = (uint32_t *)(memory + lives + spans + lists);
    c.leads = memory + lives + spans + 2 * lists;
    uint32_t peak, base = f->frame_bytes;
    find_flow(&c, p, begin);
    find_lifetimes(&c, p->module);
    pin(&c, f->formals, f->formal_count);
    pin(&c, f->results, f->result_count);
    extend_all(&c);
    ptx_frame_take(p, place_all(&c, &peak));
    rewrite(&c, f, p->module, base);
    /* Hardware also needs some for addresses and alignment. */
    uint32_t registers = (16 + peak + 7) & ~7u;
    f->info.register_count = registers > 255 ? 255 : registers;
}
