/* Variables of .global and .const memory, and their initial values. */
#include "simgpu/ptx/lower.h"

#include <stdlib.h>
#include <string.h>

#define MAX_VARIABLE_BYTES (UINT64_C(1) << 32)
#define MAX_INIT_BYTES (UINT64_C(1) << 28)

struct init {
    const struct ptx_declarator *declarator;
    uint32_t index;
    unsigned log2;
    uint8_t *image;
    uint64_t at, capacity; /* bytes; an open array's image grows */
};

/* The image reaches to `end` at least. */
static void make_room(struct ptx_parser *p, struct init *init, uint64_t end)
{
    if (end <= init->capacity)
        return;
    if (!init->declarator->is_open)
        ptx_parse_fail(p, p->token.line, "more initial values than elements");
    uint64_t more = init->capacity ? init->capacity : 64;
    while (more < end)
        more *= 2;
    if (more > MAX_INIT_BYTES)
        ptx_parse_fail(p, p->token.line, "too many initial values");
    uint8_t *bigger = ptx_parse_take(p, more);
    if (init->capacity)
        memcpy(bigger, init->image, init->capacity);
    init->image = bigger;
    init->capacity = more;
}

static void put(struct init *init, uint64_t bits)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): there is room before a value is read */
    memcpy(init->image + init->at, &bits, (size_t)1 << init->log2);
}

static uint64_t read_addend(struct ptx_parser *p)
{
    uint64_t addend = 0;
    while (ptx_parse_is_punct(p, '+') || ptx_parse_is_punct(p, '-')) {
        ptx_parse_accept(p, '+');
        addend += ptx_parse_integer(p);
    }
    return addend;
}

/* name, generic(name), each with + offset behind it. mask: the bits that are wanted. */
static void init_address(struct ptx_parser *p, struct init *init, uint64_t mask)
{
    struct ptx_module *m = p->module;
    bool generic = p->token.bytes == 7 && !memcmp(p->token.text, "generic", 7);
    if (generic) {
        ptx_parse_next(p);
        ptx_parse_expect(p, '(');
    }
    struct ptx_symbol *symbol =
        p->token.kind == PTX_TOKEN_IDENT ? ptx_parse_find(p, p->token.text, p->token.bytes) : NULL;
    bool is_function = symbol && symbol->kind == PTX_SYM_FUNCTION && !symbol->function->info.is_entry;
    if (!symbol || (symbol->kind != PTX_SYM_GLOBAL && !is_function))
        ptx_parse_unsupported(p, p->token.line, "unsupported initial value '%.*s'",
                              (int)(p->token.bytes < 200 ? p->token.bytes : 200), p->token.text);
    ptx_parse_next(p);
    uint64_t addend = read_addend(p);
    if (generic)
        ptx_parse_expect(p, ')');
    addend += read_addend(p);
    if (mask == UINT64_MAX && init->log2 != 3)
        ptx_parse_unsupported(p, p->token.line, "unsupported: an address in an element that is not 64 bits wide");
    if (is_function) {
        symbol->function->address_taken = true;
        put(init, ((ptx_function_address(symbol->function) + addend) & mask) >> __builtin_ctzll(mask));
        return;
    }
    if (ptx_grow((void **)&m->relocs, m->reloc_count, &m->reloc_capacity, sizeof(*m->relocs)))
        ptx_parse_out_of_memory(p);
    m->relocs[m->reloc_count++] =
        (struct ptx_reloc){init->index, symbol->index, init->at, addend, mask, 1u << init->log2};
}

/* 0xff00(name): some bits of an address, moved down. */
static void init_masked(struct ptx_parser *p, struct init *init, uint64_t mask)
{
    uint64_t low = mask ? mask >> __builtin_ctzll(mask) : 0;
    ptx_parse_expect(p, '(');
    if (!mask || (low & (low + 1)) || (init->log2 < 3 && low >> (8u << init->log2)))
        ptx_parse_fail(p, p->token.line, "a mask that is not one run of bits of an element's size");
    if (mask == UINT64_MAX && init->log2 != 3)
        ptx_parse_fail(p, p->token.line, "a mask that is wider than an element");
    init_address(p, init, mask);
    ptx_parse_expect(p, ')');
}

static void init_float(struct ptx_parser *p, struct init *init, bool negative)
{
    enum ptx_type type = init->declarator->type;
    double number = p->token.number;
    float single = (float)number;
    uint64_t bits = p->token.integer;
    if (p->token.bits_bytes && p->token.bits_bytes != 1u << init->log2)
        ptx_parse_fail(p, p->token.line, "initial value of another size");
    if (!p->token.bits_bytes && type == PTX_F64)
        memcpy(&bits, &number, 8);
    else if (!p->token.bits_bytes && type == PTX_F32)
        bits = 0, memcpy(&bits, &single, 4);
    else if (!p->token.bits_bytes)
        ptx_parse_fail(p, p->token.line, "initial value of another type");
    if (negative)
        bits ^= UINT64_C(1) << ((8u << init->log2) - 1);
    ptx_parse_next(p);
    put(init, bits);
}

static void init_value(struct ptx_parser *p, struct init *init)
{
    make_room(p, init, init->at + (UINT64_C(1) << init->log2));
    bool negative = ptx_parse_accept(p, '-');
    if (p->token.kind == PTX_TOKEN_IDENT && !negative) {
        init_address(p, init, UINT64_MAX);
    } else if (p->token.kind == PTX_TOKEN_FLOAT) {
        init_float(p, init, negative);
    } else {
        uint64_t bits = ptx_parse_unsigned(p, UINT64_MAX, "initial value");
        if (ptx_parse_is_punct(p, '(') && !negative) {
            init_masked(p, init, bits);
        } else {
            if (ptx_type_float(init->declarator->type) && !ptx_type_half(init->declarator->type))
                ptx_parse_fail(p, p->token.line, "initial value of another type");
            put(init, negative ? 0 - bits : bits);
        }
    }
    init->at += UINT64_C(1) << init->log2;
}

static char unescaped(const char **at, const char *end)
{
    static const char letters[] = "ntr0abfv", values[] = "\n\t\r\0\a\b\f\v";
    char c = *(*at)++;
    if (c != '\\' || *at >= end)
        return c;
    c = *(*at)++;
    const char *found = strchr(letters, c);
    return found && c ? values[found - letters] : c;
}

/* "text" of an array of bytes, with a NUL where there is room for it. */
static void init_string(struct ptx_parser *p, struct init *init)
{
    const char *at = p->token.text, *end = at + p->token.bytes;
    if (init->log2 || init->declarator->vector > 1)
        ptx_parse_fail(p, p->token.line, "initial value of another type");
    while (at < end) {
        make_room(p, init, init->at + 1);
        init->image[init->at++] = (uint8_t)unescaped(&at, end);
    }
    if (init->declarator->is_open)
        make_room(p, init, init->at + 1);
    if (init->at < init->capacity)
        init->image[init->at++] = 0;
    ptx_parse_next(p);
}

/* Bytes that a brace `depth` levels down stands for; 0 = more braces than dimensions: they only group. */
static uint64_t span_bytes(const struct init *init, unsigned depth)
{
    const struct ptx_declarator *d = init->declarator;
    if (depth > d->dimensions)
        return 0;
    uint64_t elements = d->vector;
    for (unsigned k = depth; k < d->dimensions; k++)
        elements *= d->dims[k];
    return elements << init->log2;
}

static void init_list(struct ptx_parser *p, struct init *init, unsigned depth)
{
    if (p->token.kind == PTX_TOKEN_STRING) {
        init_string(p, init);
        return;
    }
    if (!ptx_parse_accept(p, '{')) {
        init_value(p, init);
        return;
    }
    if (depth > PTX_MAX_DIMENSIONS)
        ptx_parse_fail(p, p->token.line, "initial values are nested too deeply");
    uint64_t begin = init->at, span = depth ? span_bytes(init, depth) : 0;
    while (!ptx_parse_is_punct(p, '}')) {
        init_list(p, init, depth + 1);
        if (!ptx_parse_accept(p, ','))
            break;
    }
    ptx_parse_expect(p, '}');
    if (!span)
        return;
    if (init->at - begin > span)
        ptx_parse_fail(p, p->token.line, "more initial values than elements");
    init->at = begin + span; /* what a row leaves out is zero */
    make_room(p, init, init->at);
}

/* A new variable, or the one that .extern, or another text, announced. */
static struct ptx_symbol *declare(struct ptx_parser *p, const struct ptx_declarator *d, bool is_const, bool is_extern)
{
    struct ptx_module *m = p->module;
    struct ptx_symbol *seen = ptx_link_global(p, d->name, d->name_bytes);
    if (seen)
        return seen;
    seen = p->depth || p->linking ? NULL : ptx_map_find(&p->symbols, d->name, d->name_bytes);
    if (seen && seen->kind == PTX_SYM_GLOBAL && !seen->defined)
        return seen;
    struct ptx_symbol *symbol = ptx_parse_declare(p, d->name, d->name_bytes, PTX_SYM_GLOBAL);
    if (ptx_grow((void **)&m->globals, m->global_count, &m->global_capacity, sizeof(*m->globals)))
        ptx_parse_out_of_memory(p);
    symbol->index = (uint32_t)m->global_count;
    struct ptx_global *global = &m->globals[m->global_count++];
    /* Without an alignment it has been announced only. */
    *global = (struct ptx_global){.align_bytes = is_extern && !p->linking ? 0 : d->align, .is_const = is_const};
    global->name = ptx_arena_text(&m->arena, d->name, d->name_bytes);
    if (!global->name)
        ptx_parse_out_of_memory(p);
    ptx_link_publish(p, d->name, d->name_bytes, symbol);
    return symbol;
}

/* Reads what stands behind =; the size becomes known if it was open. */
static void initialise(struct ptx_parser *p, struct init *init, uint64_t *bytes)
{
    if (*bytes > MAX_INIT_BYTES || init->log2 > 3)
        ptx_parse_fail(p, init->declarator->line, "too large for initial values");
    if (!init->declarator->is_open) {
        init->image = ptx_parse_take(p, *bytes ? *bytes : 1);
        init->capacity = *bytes;
    }
    init_list(p, init, 0);
    if (init->declarator->is_open)
        *bytes = init->at;
}

void ptx_parse_global(struct ptx_parser *p, bool is_const, bool is_extern)
{
    struct ptx_module *m = p->module;
    struct ptx_declarator d;
    ptx_parse_declarator(p, &d);
    struct ptx_symbol *symbol = declare(p, &d, is_const, is_extern);
    uint64_t bytes = ptx_declarator_bytes(p, &d, MAX_VARIABLE_BYTES);
    struct init init = {.declarator = &d, .index = symbol->index, .log2 = ptx_type_log2(d.type)};
    size_t relocs = m->reloc_count;
    if (d.reference && (is_const || is_extern || ptx_parse_is_punct(p, '=')))
        ptx_parse_unsupported(p, d.line,
                              "unsupported: a texture or surface reference with initial values or elsewhere");
    if (!is_extern && ptx_parse_accept(p, '='))
        initialise(p, &init, &bytes);
    else if (d.is_open && !is_extern)
        ptx_parse_fail(p, d.line, "an open array needs initial values");
    else if (d.is_open)
        bytes = 0; /* whoever defines it tells */
    if (!p->linking)
        symbol->defined = !is_extern;
    symbol->element_bytes = d.element_bytes;
    symbol->is_reference = d.reference != PTX_REFERENCE_NONE;
    if (ptx_link_defines(p, d.name, d.name_bytes, symbol, bytes)) {
        struct ptx_global *global = &m->globals[symbol->index];
        global->init = init.image;
        global->size_bytes = symbol->bytes = bytes;
        global->is_const = is_const;
        global->reference = d.reference;
        if (!is_extern || p->linking)
            global->align_bytes = d.align;
    } else {
        m->reloc_count = relocs; /* another definition counts */
    }
    ptx_parse_expect(p, ';');
}
