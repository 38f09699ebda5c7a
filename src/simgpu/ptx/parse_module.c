/* Directives: the module's header, variables with initialisers, functions and what is declared inside them. */
#include "simgpu/ptx/parse.h"

#include <stdlib.h>
#include <string.h>

#define MAX_VARIABLE_BYTES (UINT64_C(1) << 32)
#define MAX_SHARED_BYTES (UINT64_C(1) << 20)
#define MAX_LOCAL_BYTES (UINT64_C(1) << 19)
#define MAX_PARAM_BYTES UINT64_C(32764)

void ptx_parse_skip_line(struct ptx_parser *p)
{
    unsigned line = p->token.line;
    while (p->token.kind != PTX_TOKEN_END && p->token.line == line)
        ptx_parse_next(p);
}

bool ptx_parse_skip_dwarf(struct ptx_parser *p)
{
    if (!ptx_parse_is_punct(p, '@') || p->lexer.at >= p->lexer.end || *p->lexer.at != '@')
        return false;
    ptx_parse_skip_line(p);
    return true;
}

static uint32_t parse_align(struct ptx_parser *p)
{
    ptx_parse_next(p);
    uint64_t align = ptx_parse_unsigned(p, 1 << 16, "alignment");
    if (!align || (align & (align - 1)))
        ptx_parse_fail(p, p->token.line, "alignment must be a power of two");
    return (uint32_t)align;
}

/* .param .u64 .ptr .global .align 4: attributes of a pointer parameter, without effect here. */
static void parse_pointer_attributes(struct ptx_parser *p)
{
    if (!ptx_parse_is_dotted(p, "ptr"))
        return;
    ptx_parse_next(p);
    for (;;) {
        if (ptx_parse_is_dotted(p, "align"))
            parse_align(p);
        else if (ptx_parse_is_dotted(p, "global") || ptx_parse_is_dotted(p, "shared") ||
                 ptx_parse_is_dotted(p, "const") || ptx_parse_is_dotted(p, "local"))
            ptx_parse_next(p);
        else
            return;
    }
}

/* .attribute(.managed), .attribute(.unified(...)) */
static void refuse_attribute(struct ptx_parser *p)
{
    unsigned line = p->token.line;
    ptx_parse_next(p);
    ptx_parse_expect(p, '(');
    ptx_parse_unsupported(p, line, "unsupported directive '.attribute(.%.*s)'",
                          (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
}

void ptx_parse_declarator(struct ptx_parser *p, struct ptx_declarator *out)
{
    *out = (struct ptx_declarator){.count = 1, .line = p->token.line};
    unsigned vector = 1;
    for (;;) {
        if (ptx_parse_is_dotted(p, "align")) {
            out->align = parse_align(p);
        } else if (ptx_parse_is_dotted(p, "v2") || ptx_parse_is_dotted(p, "v4")) {
            vector = p->token.text[1] == '2' ? 2 : 4;
            ptx_parse_next(p);
        } else if (ptx_parse_is_dotted(p, "attribute")) {
            refuse_attribute(p);
        } else {
            break;
        }
    }
    out->reference = ptx_parse_is_dotted(p, "texref")    ? PTX_REFERENCE_TEXTURE
                     : ptx_parse_is_dotted(p, "surfref") ? PTX_REFERENCE_SURFACE
                                                         : PTX_REFERENCE_NONE;
    if (out->reference) {
        out->type = PTX_U64; /* it holds a handle */
        ptx_parse_next(p);
    } else {
        out->type = ptx_parse_type(p);
    }
    if (out->type == PTX_PRED)
        ptx_parse_fail(p, p->token.line, "a predicate cannot be a variable");
    parse_pointer_attributes(p);
    if (p->token.kind != PTX_TOKEN_IDENT)
        ptx_parse_fail(p, p->token.line, "expected a name");
    out->name = p->token.text;
    out->name_bytes = p->token.bytes;
    ptx_parse_next(p);
    if (ptx_parse_is_punct(p, '<'))
        ptx_parse_unsupported(p, p->token.line, "unsupported: several variables in one name");
    for (out->count = vector; ptx_parse_accept(p, '['); ptx_parse_expect(p, ']'), out->dimensions++) {
        out->is_array = true;
        if (ptx_parse_is_punct(p, ']')) {
            if (out->dimensions)
                ptx_parse_fail(p, p->token.line, "only the first dimension may be open");
            out->is_open = true;
            out->dims[0] = 0;
        } else {
            uint64_t n = ptx_parse_unsigned(p, UINT32_MAX, "array size");
            if (__builtin_mul_overflow(out->count, n, &out->count) || out->count > MAX_VARIABLE_BYTES)
                ptx_parse_fail(p, p->token.line, "array is too large");
            if (out->dimensions < PTX_MAX_DIMENSIONS)
                out->dims[out->dimensions] = n;
        }
        if (out->dimensions >= PTX_MAX_DIMENSIONS)
            ptx_parse_fail(p, p->token.line, "too many dimensions");
    }
    out->vector = vector;
    uint32_t natural = vector << ptx_type_log2(out->type);
    out->element_bytes = out->dimensions == 1 ? natural : 0;
    if (out->align < natural && !out->align)
        out->align = natural;
}

uint64_t ptx_declarator_bytes(struct ptx_parser *p, const struct ptx_declarator *d, uint64_t limit)
{
    uint64_t bytes = d->count << ptx_type_log2(d->type);
    if (bytes > limit)
        ptx_parse_fail(p, d->line, "'%.*s' is too large", (int)(d->name_bytes < 200 ? d->name_bytes : 200), d->name);
    return bytes;
}

void ptx_parse_shared(struct ptx_parser *p, bool is_extern)
{
    struct ptx_module *m = p->module;
    struct ptx_declarator d;
    ptx_parse_declarator(p, &d);
    if (ptx_parse_is_punct(p, '='))
        ptx_parse_unsupported(p, d.line, "unsupported: initial value of a shared variable");
    if (is_extern != (d.is_open || (is_extern && d.count == 0)))
        ptx_parse_unsupported(p, d.line, "unsupported: shared variable must be sized, or extern and open");
    struct ptx_symbol *symbol = ptx_parse_declare(p, d.name, d.name_bytes, PTX_SYM_SHARED);
    if (ptx_grow((void **)&m->shared, m->shared_count, &m->shared_capacity, sizeof(*m->shared)))
        ptx_parse_out_of_memory(p);
    symbol->index = (uint32_t)m->shared_count;
    uint64_t bytes = is_extern ? 0 : ptx_declarator_bytes(p, &d, MAX_SHARED_BYTES);
    m->shared[m->shared_count++] = (struct ptx_shared_variable){(uint32_t)bytes, d.align, is_extern};
    symbol->bytes = bytes;
    symbol->element_bytes = d.element_bytes;
    ptx_parse_expect(p, ';');
}

/* .reg .type name, name<count>, ...; */
static void parse_reg(struct ptx_parser *p)
{
    ptx_parse_next(p);
    if (ptx_parse_is_dotted(p, "v2") || ptx_parse_is_dotted(p, "v4"))
        ptx_parse_unsupported(p, p->token.line, "unsupported: vector registers");
    enum ptx_type type = ptx_parse_type(p);
    /* Bytes live in 16-bit registers: only loads, stores and conversions may name them, and those look at the type. */
    unsigned log2 = type == PTX_PRED ? 0 : ptx_type_log2(type) ? ptx_type_log2(type) : 1;
    do {
        if (p->token.kind != PTX_TOKEN_IDENT)
            ptx_parse_fail(p, p->token.line, "expected a register name");
        const char *name = p->token.text;
        size_t bytes = p->token.bytes;
        ptx_parse_next(p);
        struct ptx_symbol *symbol;
        if (ptx_parse_accept(p, '<')) {
            symbol = ptx_parse_declare(p, name, bytes, PTX_SYM_REGISTERS);
            symbol->count = (uint32_t)ptx_parse_unsigned(p, 1 << 20, "number of registers");
            symbol->offset = ptx_frame_registers(p, log2 == 4 ? 3 : log2, (uint64_t)symbol->count << (log2 == 4));
            ptx_parse_expect(p, '>');
        } else {
            symbol = ptx_parse_declare(p, name, bytes, PTX_SYM_REGISTER);
            symbol->offset = log2 == 4 ? ptx_frame_registers(p, 3, 2) : ptx_frame_register(p, log2);
        }
        symbol->log2 = (uint8_t)log2;
    } while (ptx_parse_accept(p, ','));
    ptx_parse_expect(p, ';');
}

static void parse_local(struct ptx_parser *p)
{
    struct ptx_function *f = p->function;
    struct ptx_declarator d;
    ptx_parse_next(p);
    ptx_parse_declarator(p, &d);
    if (d.is_open || ptx_parse_is_punct(p, '='))
        ptx_parse_unsupported(p, d.line, "unsupported: local variable without size, or with initial value");
    struct ptx_symbol *symbol = ptx_parse_declare(p, d.name, d.name_bytes, PTX_SYM_LOCAL);
    symbol->bytes = ptx_declarator_bytes(p, &d, MAX_LOCAL_BYTES);
    symbol->element_bytes = d.element_bytes;
    if (f->own_local_bytes + symbol->bytes + d.align > MAX_LOCAL_BYTES)
        ptx_parse_fail(p, d.line, "too much local memory");
    symbol->offset = (f->own_local_bytes + d.align - 1) & ~(d.align - 1);
    f->own_local_bytes = symbol->offset + (uint32_t)symbol->bytes;
    if (d.align > f->local_align)
        f->local_align = d.align;
    ptx_parse_expect(p, ';');
}

/* A call's argument or result: bytes of a lane together, in the caller's frame. */
static void parse_call_object(struct ptx_parser *p)
{
    struct ptx_declarator d;
    ptx_parse_next(p);
    ptx_parse_declarator(p, &d);
    if (d.is_open)
        ptx_parse_fail(p, d.line, "a parameter needs a size");
    struct ptx_symbol *symbol = ptx_parse_declare(p, d.name, d.name_bytes, PTX_SYM_PARAM);
    symbol->bytes = ptx_declarator_bytes(p, &d, MAX_PARAM_BYTES);
    symbol->stride = ((uint32_t)symbol->bytes + 15) & ~15u;
    symbol->offset = ptx_frame_take(p, (uint64_t)symbol->stride * PTX_LANES);
    ptx_parse_expect(p, ';');
}

static void parse_branch_targets(struct ptx_parser *p, const char *name, size_t bytes)
{
    struct ptx_module *m = p->module;
    ptx_parse_next(p);
    struct ptx_symbol *symbol = ptx_parse_declare(p, name, bytes, PTX_SYM_TARGETS);
    struct ptx_symbol *list[1024];
    do {
        if (p->token.kind != PTX_TOKEN_IDENT)
            ptx_parse_fail(p, p->token.line, "expected a label");
        if (symbol->count == sizeof(list) / sizeof(list[0]))
            ptx_parse_unsupported(p, p->token.line, "unsupported: more than 1024 branch targets");
        list[symbol->count++] = ptx_parse_label(p, p->token.text, p->token.bytes);
        ptx_parse_next(p);
    } while (ptx_parse_accept(p, ','));
    ptx_parse_expect(p, ';');
    symbol->index = (uint32_t)m->target_count;
    for (uint32_t i = 0; i < symbol->count; i++) {
        if (ptx_grow((void **)&m->targets, m->target_count, &m->target_capacity, sizeof(*m->targets)))
            ptx_parse_out_of_memory(p);
        struct ptx_target_fixup *fixup = ptx_parse_take(p, sizeof(*fixup));
        *fixup = (struct ptx_target_fixup){list[i], (uint32_t)m->target_count, p->target_fixups};
        p->target_fixups = fixup;
        m->targets[m->target_count++] = PTX_NO_PC;
    }
}

static void parse_label(struct ptx_parser *p, const char *name, size_t bytes)
{
    if (ptx_parse_is_dotted(p, "branchtargets")) {
        parse_branch_targets(p, name, bytes);
        return;
    }
    if (ptx_parse_is_dotted(p, "callprototype")) {
        ptx_parse_prototype(p, name, bytes);
        return;
    }
    if (ptx_parse_is_dotted(p, "calltargets")) {
        ptx_parse_call_targets(p, name, bytes);
        return;
    }
    struct ptx_symbol *label = ptx_parse_label(p, name, bytes);
    if (label->defined)
        ptx_parse_fail(p, p->token.line, "label '%.*s' is defined twice", (int)(bytes < 200 ? bytes : 200), name);
    label->defined = true;
    label->index = (uint32_t)p->module->code_count;
}

static void open_scope(struct ptx_parser *p)
{
    if (p->depth == PTX_MAX_SCOPES)
        ptx_parse_fail(p, p->token.line, "blocks are nested too deeply");
    p->scopes[p->depth++] = (struct ptx_map){0};
}

void ptx_parse_pragma(struct ptx_parser *p)
{
    ptx_parse_next(p);
    if (p->token.kind != PTX_TOKEN_STRING)
        ptx_parse_fail(p, p->token.line, "expected a string");
    do {
        ptx_parse_next(p);
    } while (ptx_parse_accept(p, ',') && p->token.kind == PTX_TOKEN_STRING);
    ptx_parse_expect(p, ';');
}

static void parse_directive(struct ptx_parser *p)
{
    if (ptx_parse_is_dotted(p, "reg"))
        parse_reg(p);
    else if (ptx_parse_is_dotted(p, "local"))
        parse_local(p);
    else if (ptx_parse_is_dotted(p, "param"))
        parse_call_object(p);
    else if (ptx_parse_is_dotted(p, "shared"))
        ptx_parse_next(p), ptx_parse_shared(p, false);
    else if (ptx_parse_is_dotted(p, "global"))
        ptx_parse_next(p), ptx_parse_global(p, false, false);
    else if (ptx_parse_is_dotted(p, "const"))
        ptx_parse_next(p), ptx_parse_global(p, true, false);
    else if (ptx_parse_is_dotted(p, "loc") || ptx_parse_is_dotted(p, "file"))
        ptx_parse_skip_line(p);
    else if (ptx_parse_is_dotted(p, "pragma"))
        ptx_parse_pragma(p);
    else
        ptx_parse_unsupported(p, p->token.line, "unsupported directive '.%.*s'",
                              (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
}

void ptx_parse_body(struct ptx_parser *p)
{
    unsigned outer = p->depth;
    ptx_parse_expect(p, '{');
    open_scope(p);
    while (p->depth > outer) {
        if (ptx_parse_accept(p, '{')) {
            open_scope(p);
        } else if (ptx_parse_is_punct(p, '}')) {
            p->depth--;
            ptx_parse_next(p);
        } else if (p->token.kind == PTX_TOKEN_DOTTED) {
            parse_directive(p);
        } else if (p->token.kind == PTX_TOKEN_IDENT) {
            struct ptx_token name = p->token;
            ptx_parse_next(p);
            if (ptx_parse_accept(p, ':'))
                parse_label(p, name.text, name.bytes);
            else
                ptx_parse_instruction(p, &name);
        } else if (ptx_parse_skip_dwarf(p)) {
            continue;
        } else if (ptx_parse_is_punct(p, '@')) {
            ptx_parse_instruction(p, NULL);
        } else if (!ptx_parse_accept(p, ';')) {
            ptx_parse_fail(p, p->token.line, "expected an instruction, found '%.*s'",
                           (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
        }
    }
}
