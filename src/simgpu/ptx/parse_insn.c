/* Reads one instruction: guard, name, modifiers, types, operands. What they mean is lowering's business. */
#include "simgpu/ptx/lower.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN(bytes) ((int)((bytes) < 200 ? (bytes) : 200))

static void parse_operand(struct ptx_parser *p, struct ptx_operand *out, unsigned depth);

static void bind_name(struct ptx_parser *p, struct ptx_operand *out)
{
    struct ptx_symbol *symbol = ptx_parse_find(p, out->name, out->name_bytes);
    if (symbol && symbol->kind == PTX_SYM_REGISTER) {
        out->kind = PTX_OPERAND_REG;
        out->reg = symbol->offset;
        out->log2 = symbol->log2;
        return;
    }
    out->kind = PTX_OPERAND_SYMBOL;
    out->symbol = symbol; /* NULL: a label that may come later, or an unknown name: lowering decides */
    if (!symbol && out->name[0] == '%')
        ptx_parse_fail(p, p->token.line, "unknown register '%.*s'", SHOWN(out->name_bytes), out->name);
}

/* A special register's name: %tid.x is two tokens. */
static bool parse_sreg(struct ptx_parser *p, struct ptx_operand *out)
{
    char name[64];
    size_t bytes = out->name_bytes;
    if (out->name[0] != '%' || bytes > 40)
        return false;
    memcpy(name, out->name, bytes);
    if (p->token.kind == PTX_TOKEN_DOTTED && p->token.bytes == 1) {
        name[bytes++] = '.';
        name[bytes++] = p->token.text[0];
    }
    int sreg = ptx_parse_name(&p->sreg_names, name, bytes);
    if (sreg < 0)
        return false;
    if (bytes != out->name_bytes)
        ptx_parse_next(p);
    out->kind = PTX_OPERAND_SREG;
    out->sreg = (enum ptx_sreg)sreg;
    return true;
}

static void parse_named(struct ptx_parser *p, struct ptx_operand *out)
{
    out->name = p->token.text;
    out->name_bytes = p->token.bytes;
    ptx_parse_next(p);
    if (out->name_bytes == 1 && out->name[0] == '_') {
        out->kind = PTX_OPERAND_SINK;
        return;
    }
    if (out->name_bytes == 7 && !memcmp(out->name, "WARP_SZ", 7)) {
        out->kind = PTX_OPERAND_INT;
        out->value = PTX_LANES;
        return;
    }
    if (parse_sreg(p, out))
        return;
    bind_name(p, out);
    if (p->token.kind == PTX_TOKEN_DOTTED) {
        if (out->kind != PTX_OPERAND_REG || out->log2 != 2)
            ptx_parse_unsupported(p, p->token.line, "unsupported operand '%.*s.%.*s'", SHOWN(out->name_bytes),
                                  out->name, SHOWN(p->token.bytes), p->token.text);
        out->part = p->token.text;
        out->part_bytes = p->token.bytes;
        ptx_parse_next(p);
    }
}

static void parse_pair(struct ptx_parser *p, struct ptx_operand *out)
{
    struct ptx_operand second = {0};
    if (p->token.kind != PTX_TOKEN_IDENT)
        ptx_parse_fail(p, p->token.line, "expected a predicate");
    parse_named(p, &second);
    if (second.kind != PTX_OPERAND_SINK && (second.kind != PTX_OPERAND_REG || second.log2))
        ptx_parse_fail(p, p->token.line, "expected a predicate");
    out->second = second.kind == PTX_OPERAND_SINK ? 0 : second.reg;
}

static void parse_number(struct ptx_parser *p, struct ptx_operand *out)
{
    bool negative = ptx_parse_accept(p, '-');
    if (negative && p->token.kind == PTX_TOKEN_IDENT) {
        parse_named(p, out);
        if (out->kind != PTX_OPERAND_REG || !out->log2)
            ptx_parse_fail(p, p->token.line, "cannot negate '%.*s'", SHOWN(out->name_bytes), out->name);
        out->negated = true;
        return;
    }
    if (p->token.kind == PTX_TOKEN_FLOAT) {
        out->kind = PTX_OPERAND_FLOAT;
        out->bits_bytes = p->token.bits_bytes;
        out->value = p->token.integer;
        out->number = negative ? -p->token.number : p->token.number;
        if (negative && out->bits_bytes)
            out->value ^= UINT64_C(1) << (out->bits_bytes * 8 - 1);
        ptx_parse_next(p);
        return;
    }
    out->kind = PTX_OPERAND_INT;
    out->value = ptx_parse_unsigned(p, UINT64_MAX, "constant");
    if (negative)
        out->value = 0 - out->value;
}

static void parse_address(struct ptx_parser *p, struct ptx_operand *out)
{
    if (p->token.kind == PTX_TOKEN_IDENT) {
        out->name = p->token.text;
        out->name_bytes = p->token.bytes;
        ptx_parse_next(p);
        bind_name(p, out);
        if (out->kind == PTX_OPERAND_SYMBOL && !out->symbol)
            ptx_parse_fail(p, p->token.line, "unknown name '%.*s'", SHOWN(out->name_bytes), out->name);
        out->has_base = out->kind == PTX_OPERAND_REG;
    }
    out->kind = PTX_OPERAND_ADDRESS;
    if (!out->name)
        out->value = ptx_parse_integer(p);
    else if (ptx_parse_accept(p, '+'))
        out->value = ptx_parse_integer(p);
    else if (ptx_parse_is_punct(p, '-'))
        out->value = ptx_parse_integer(p);
    if (ptx_parse_accept(p, ',')) {
        out->coordinates = ptx_parse_take(p, sizeof(*out->coordinates));
        parse_operand(p, out->coordinates, 0);
    }
    ptx_parse_expect(p, ']');
    if (ptx_parse_is_dotted(p, "unified")) /* of memory that several address spaces share: all do here */
        ptx_parse_next(p);
}

static void parse_vector(struct ptx_parser *p, struct ptx_operand *out, unsigned depth)
{
    out->kind = PTX_OPERAND_VECTOR;
    out->elements = ptx_parse_take(p, PTX_MAX_ELEMENTS * sizeof(*out->elements));
    do {
        if (out->count == PTX_MAX_ELEMENTS || depth)
            ptx_parse_unsupported(p, p->token.line, "unsupported vector operand");
        struct ptx_operand *element = &out->elements[out->count++];
        parse_operand(p, element, depth + 1);
        if (element->part || element->second)
            ptx_parse_unsupported(p, p->token.line, "unsupported vector operand");
    } while (ptx_parse_accept(p, ','));
    ptx_parse_expect(p, '}');
}

/* What may follow a variable's name: [index] or + bytes. */
static void parse_displacement(struct ptx_parser *p, struct ptx_operand *out)
{
    unsigned line = p->token.line;
    if (ptx_parse_accept(p, '[')) {
        if (!out->symbol || !out->symbol->element_bytes)
            ptx_parse_fail(p, line, "'%.*s' is not an array of one dimension", SHOWN(out->name_bytes), out->name);
        uint64_t index = ptx_parse_unsigned(p, UINT32_MAX, "index");
        if (index > out->symbol->bytes / out->symbol->element_bytes)
            ptx_parse_fail(p, line, "'%.*s' has no such element", SHOWN(out->name_bytes), out->name);
        out->value = index * out->symbol->element_bytes;
        ptx_parse_expect(p, ']');
    } else if (ptx_parse_is_punct(p, '+') || ptx_parse_is_punct(p, '-')) {
        ptx_parse_accept(p, '+');
        out->value = ptx_parse_integer(p);
    }
}

static void parse_operand(struct ptx_parser *p, struct ptx_operand *out, unsigned depth)
{
    *out = (struct ptx_operand){0};
    if (ptx_parse_accept(p, '!')) {
        if (p->token.kind != PTX_TOKEN_IDENT)
            ptx_parse_fail(p, p->token.line, "expected a predicate");
        parse_named(p, out);
        if (out->kind != PTX_OPERAND_REG || out->log2)
            ptx_parse_fail(p, p->token.line, "expected a predicate");
        out->negated = true;
    } else if (p->token.kind == PTX_TOKEN_IDENT) {
        parse_named(p, out);
        if (ptx_parse_accept(p, '|')) {
            parse_pair(p, out);
        } else if (out->kind == PTX_OPERAND_SYMBOL) {
            parse_displacement(p, out);
        }
    } else if (ptx_parse_accept(p, '[')) {
        parse_address(p, out);
    } else if (ptx_parse_accept(p, '{')) {
        parse_vector(p, out, depth);
    } else {
        parse_number(p, out);
    }
}

static void parse_guard(struct ptx_parser *p, struct ptx_stmt *s)
{
    ptx_parse_next(p);
    s->guard_negated = ptx_parse_accept(p, '!');
    struct ptx_operand guard = {0};
    if (p->token.kind != PTX_TOKEN_IDENT)
        ptx_parse_fail(p, p->token.line, "expected a predicate");
    parse_named(p, &guard);
    if (guard.kind != PTX_OPERAND_REG || guard.log2)
        ptx_parse_fail(p, p->token.line, "the guard is not a predicate");
    s->guard = guard.reg;
}

static bool has_mod(const struct ptx_stmt *s, enum ptx_mod mod)
{
    return s->mods[mod / 64] >> (mod % 64) & 1;
}

static void parse_modifiers(struct ptx_parser *p, struct ptx_stmt *s)
{
    for (; p->token.kind == PTX_TOKEN_DOTTED; ptx_parse_next(p)) {
        int type = ptx_parse_name(&p->type_names, p->token.text, p->token.bytes);
        int mod = ptx_parse_name(&p->mod_names, p->token.text, p->token.bytes);
        if ((mod == PTX_M_ROW || mod == PTX_M_COL) && (has_mod(s, PTX_M_ROW) || has_mod(s, PTX_M_COL)))
            mod += PTX_M_ROW2 - PTX_M_ROW;
        if (type >= 0 && s->type_count < PTX_MAX_TYPES) {
            s->types[s->type_count++] = (enum ptx_type)type;
        } else if (mod >= 0 && !has_mod(s, (enum ptx_mod)mod)) {
            s->mods[mod / 64] |= UINT64_C(1) << (mod % 64);
        } else {
            ptx_parse_unsupported(p, s->line, "unsupported modifier '.%.*s' of '%.*s'", SHOWN(p->token.bytes),
                                  p->token.text, SHOWN(s->name_bytes), s->name);
        }
    }
}

/* ( operand, ... ) of a call. */
static struct ptx_operand *parse_call_list(struct ptx_parser *p, unsigned *count_out)
{
    struct ptx_operand *list = NULL;
    unsigned count = 0, capacity = 0;
    ptx_parse_expect(p, '(');
    if (!ptx_parse_is_punct(p, ')')) {
        do {
            if (count == 1024)
                ptx_parse_unsupported(p, p->token.line, "unsupported: more than 1024 arguments");
            if (count == capacity) {
                capacity = capacity ? capacity * 2 : 8;
                struct ptx_operand *bigger = ptx_parse_take(p, capacity * sizeof(*bigger));
                if (count)
                    memcpy(bigger, list, count * sizeof(*bigger));
                list = bigger;
            }
            parse_operand(p, &list[count++], 0);
        } while (ptx_parse_accept(p, ','));
    }
    ptx_parse_expect(p, ')');
    *count_out = count;
    return list;
}

/* call (results), name, (arguments); */
static void parse_call(struct ptx_parser *p, struct ptx_stmt *s)
{
    if (ptx_parse_is_punct(p, '(')) {
        s->call_results = parse_call_list(p, &s->call_result_count);
        ptx_parse_expect(p, ',');
    }
    parse_operand(p, &s->operands[s->operand_count++], 0);
    if (!ptx_parse_accept(p, ','))
        return;
    if (ptx_parse_is_punct(p, '(')) {
        s->call_arguments = parse_call_list(p, &s->call_argument_count);
        if (!ptx_parse_accept(p, ','))
            return;
    }
    parse_operand(p, &s->operands[s->operand_count++], 0); /* the prototype of an indirect call */
}

void ptx_parse_instruction(struct ptx_parser *p, const struct ptx_token *name)
{
    struct ptx_stmt *s = &p->stmt;
    *s = (struct ptx_stmt){.line = p->token.line};
    s->text = name ? name->text : p->token.text;
    if (!name)
        parse_guard(p, s);
    struct ptx_token own = name ? *name : p->token;
    if (own.kind != PTX_TOKEN_IDENT || own.text[0] == '%')
        ptx_parse_fail(p, own.line, "expected an instruction, found '%.*s'", SHOWN(own.bytes), own.text);
    s->line = own.line;
    s->name = own.text;
    s->name_bytes = own.bytes;
    if (!name)
        ptx_parse_next(p);
    parse_modifiers(p, s);
    s->text_bytes = (size_t)(p->token.text - s->text);
    s->insn = ptx_parse_name(&p->insn_names, s->name, s->name_bytes);
    if (s->insn < 0)
        ptx_lower_unsupported(p, NULL);
    if (own.bytes == 4 && !memcmp(own.text, "call", 4)) {
        parse_call(p, s);
    } else if (!ptx_parse_is_punct(p, ';')) {
        do {
            if (s->operand_count == PTX_MAX_OPERANDS)
                ptx_parse_fail(p, s->line, "too many operands of '%.*s'", SHOWN(own.bytes), own.text);
            parse_operand(p, &s->operands[s->operand_count++], 0);
        } while (ptx_parse_accept(p, ','));
    }
    if (p->token.kind != PTX_TOKEN_PUNCT || p->token.punct != ';')
        ptx_parse_expect(p, ';');
    s->text_bytes = (size_t)(p->token.text - s->text);
    ptx_lower(p);
    ptx_parse_next(p);
}
