/*
 * The parser's foundations: errors, tokens, names, the frame of the function in work. Directives are in parse_module.c,
 * instructions in parse_insn.c.
 */
#include "simgpu/ptx/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_FRAME_BYTES (UINT64_C(64) << 20)
#define MAX_REGISTERS (1u << 18)

static const struct {
    const char *name;
    uint8_t log2;
} types[PTX_TYPE_COUNT] = {
    [PTX_NONE] = {"", 0},         [PTX_PRED] = {"pred", 0},     [PTX_B8] = {"b8", 0},       [PTX_B16] = {"b16", 1},
    [PTX_B32] = {"b32", 2},       [PTX_B64] = {"b64", 3},       [PTX_U8] = {"u8", 0},       [PTX_U16] = {"u16", 1},
    [PTX_U32] = {"u32", 2},       [PTX_U64] = {"u64", 3},       [PTX_S8] = {"s8", 0},       [PTX_S16] = {"s16", 1},
    [PTX_S32] = {"s32", 2},       [PTX_S64] = {"s64", 3},       [PTX_F16] = {"f16", 1},     [PTX_F32] = {"f32", 2},
    [PTX_F64] = {"f64", 3},       [PTX_B128] = {"b128", 4},     [PTX_F16X2] = {"f16x2", 2}, [PTX_BF16] = {"bf16", 1},
    [PTX_BF16X2] = {"bf16x2", 2}, [PTX_TF32] = {"tf32", 2},     [PTX_U16X2] = {"u16x2", 2}, [PTX_S16X2] = {"s16x2", 2},
    [PTX_E4M3X2] = {"e4m3x2", 1}, [PTX_E5M2X2] = {"e5m2x2", 1}, [PTX_U4] = {"u4", 0},       [PTX_S4] = {"s4", 0},
    [PTX_U2] = {"u2", 0},         [PTX_S2] = {"s2", 0},
};

unsigned ptx_type_log2(enum ptx_type type)
{
    return types[type].log2;
}

static void report(struct ptx_parser *p, unsigned line, bool unsupported, const char *format, va_list args)
{
    struct ptx_error *error = p->error;
    bool named = p->source_name && *p->source_name;
    int used = snprintf(error->text, sizeof(error->text), "%.200s%sline %u: ", named ? p->source_name : "",
                        named ? ", " : "", line);
    vsnprintf(error->text + used, sizeof(error->text) - (size_t)used, format, args);
    for (char *c = error->text; *c; c++)
        if (*c == '\n' || *c == '\t' || *c == '\r')
            *c = ' ';
    error->line = line;
    error->unsupported = unsupported;
}

void ptx_parse_fail(struct ptx_parser *p, unsigned line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report(p, line, false, format, args);
    va_end(args);
    longjmp(p->leave, 1);
}

void ptx_parse_unsupported(struct ptx_parser *p, unsigned line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report(p, line, true, format, args);
    va_end(args);
    longjmp(p->leave, 1);
}

void ptx_parse_out_of_memory(struct ptx_parser *p)
{
    ptx_parse_fail(p, p->token.line, "out of host memory");
}

void *ptx_parse_take(struct ptx_parser *p, size_t bytes)
{
    void *memory = ptx_arena_take(&p->module->arena, bytes);
    if (!memory)
        ptx_parse_out_of_memory(p);
    return memory;
}

void ptx_parse_next(struct ptx_parser *p)
{
    ptx_lex_next(&p->lexer, &p->token);
    if (p->token.kind == PTX_TOKEN_BAD)
        ptx_parse_fail(p, p->token.line, "cannot read '%.*s'", (int)(p->token.bytes < 40 ? p->token.bytes : 40),
                       p->token.text);
}

bool ptx_parse_is_punct(const struct ptx_parser *p, char punct)
{
    return p->token.kind == PTX_TOKEN_PUNCT && p->token.punct == punct;
}

bool ptx_parse_accept(struct ptx_parser *p, char punct)
{
    if (!ptx_parse_is_punct(p, punct))
        return false;
    ptx_parse_next(p);
    return true;
}

void ptx_parse_expect(struct ptx_parser *p, char punct)
{
    if (!ptx_parse_accept(p, punct)) {
        if (p->token.kind == PTX_TOKEN_END)
            ptx_parse_fail(p, p->token.line, "expected '%c', found the end of the text", punct);
        ptx_parse_fail(p, p->token.line, "expected '%c', found '%.*s'", punct,
                       (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
    }
}

bool ptx_parse_is_dotted(const struct ptx_parser *p, const char *text)
{
    return p->token.kind == PTX_TOKEN_DOTTED && p->token.bytes == strlen(text) &&
           !memcmp(p->token.text, text, p->token.bytes);
}

uint64_t ptx_parse_unsigned(struct ptx_parser *p, uint64_t max, const char *what)
{
    if (p->token.kind != PTX_TOKEN_INTEGER)
        ptx_parse_fail(p, p->token.line, "expected a number (%s)", what);
    uint64_t value = p->token.integer;
    if (value > max)
        ptx_parse_fail(p, p->token.line, "%s %llu is too large", what, (unsigned long long)value);
    ptx_parse_next(p);
    return value;
}

uint64_t ptx_parse_integer(struct ptx_parser *p)
{
    bool negative = ptx_parse_accept(p, '-');
    uint64_t value = ptx_parse_unsigned(p, UINT64_MAX, "constant");
    return negative ? 0 - value : value;
}

void ptx_parse_add_name(struct ptx_parser *p, struct ptx_map *names, const char *text, unsigned index)
{
    if (ptx_map_add(names, &p->module->arena, text, strlen(text), (void *)(uintptr_t)(index + 1)) < 0)
        ptx_parse_out_of_memory(p);
}

int ptx_parse_name(const struct ptx_map *names, const char *text, size_t bytes)
{
    return (int)(uintptr_t)ptx_map_find(names, text, bytes) - 1;
}

void ptx_parse_init_names(struct ptx_parser *p)
{
    static const char *const mods[] = {
#define MOD(name, text) text,
#include "simgpu/ptx/mods.def"
#undef MOD
    };
    for (unsigned i = 1; i < PTX_TYPE_COUNT; i++)
        ptx_parse_add_name(p, &p->type_names, types[i].name, i);
    for (unsigned i = 0; i < PTX_MOD_COUNT; i++)
        ptx_parse_add_name(p, &p->mod_names, mods[i], i);
}

enum ptx_type ptx_parse_type(struct ptx_parser *p)
{
    if (p->token.kind != PTX_TOKEN_DOTTED)
        ptx_parse_fail(p, p->token.line, "expected a type");
    int type = ptx_parse_name(&p->type_names, p->token.text, p->token.bytes);
    if (type < 0)
        ptx_parse_unsupported(p, p->token.line, "unsupported type '.%.*s'",
                              (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
    ptx_parse_next(p);
    return (enum ptx_type)type;
}

/* %r17 of .reg %r<100>: a symbol for the one register, made on first use so that later look-ups are one probe. */
static struct ptx_symbol *find_numbered(struct ptx_parser *p, struct ptx_map *scope, const char *name, size_t bytes)
{
    size_t digits = 0;
    while (digits < bytes && digits < 9 && name[bytes - 1 - digits] >= '0' && name[bytes - 1 - digits] <= '9')
        digits++;
    /* The digits may begin inside the prefix's name (%r1<20>): try every split. */
    uint32_t number = 0, scale = 1;
    for (size_t used = 1; used <= digits && used < bytes; used++, scale *= 10) {
        number += (uint32_t)(name[bytes - used] - '0') * scale;
        if (used > 1 && name[bytes - used] == '0')
            continue; /* no leading zeros */
        struct ptx_symbol *family = ptx_map_find(scope, name, bytes - used);
        if (!family || family->kind != PTX_SYM_REGISTERS || number >= family->count)
            continue;
        struct ptx_symbol *symbol = ptx_parse_take(p, sizeof(*symbol));
        symbol->kind = PTX_SYM_REGISTER;
        symbol->log2 = family->log2;
        symbol->offset = family->offset + number * (family->log2 == 4 ? 2 : family->log2 ? 1 : 4);
        if (ptx_map_add(scope, &p->module->arena, name, bytes, symbol) < 0)
            ptx_parse_out_of_memory(p);
        return symbol;
    }
    return NULL;
}

struct ptx_symbol *ptx_parse_find(struct ptx_parser *p, const char *name, size_t bytes)
{
    for (unsigned i = p->depth; i-- > 0;) {
        struct ptx_symbol *symbol = ptx_map_find(&p->scopes[i], name, bytes);
        if (!symbol)
            symbol = find_numbered(p, &p->scopes[i], name, bytes);
        if (symbol)
            return symbol;
    }
    return ptx_map_find(&p->symbols, name, bytes);
}

struct ptx_symbol *ptx_parse_declare(struct ptx_parser *p, const char *name, size_t bytes, enum ptx_symbol_kind kind)
{
    struct ptx_map *map = p->depth ? &p->scopes[p->depth - 1] : &p->symbols;
    struct ptx_symbol *symbol = ptx_parse_take(p, sizeof(*symbol));
    symbol->kind = kind;
    int rc = ptx_map_add(map, &p->module->arena, name, bytes, symbol);
    if (rc < 0)
        ptx_parse_out_of_memory(p);
    if (rc)
        ptx_parse_fail(p, p->token.line, "'%.*s' is declared twice", (int)(bytes < 200 ? bytes : 200), name);
    return symbol;
}

struct ptx_symbol *ptx_parse_label(struct ptx_parser *p, const char *name, size_t bytes)
{
    struct ptx_symbol *label = ptx_map_find(&p->labels, name, bytes);
    if (label)
        return label;
    label = ptx_parse_take(p, sizeof(*label));
    label->kind = PTX_SYM_LABEL;
    if (ptx_map_add(&p->labels, &p->module->arena, name, bytes, label) < 0)
        ptx_parse_out_of_memory(p);
    return label;
}

uint32_t ptx_frame_take(struct ptx_parser *p, uint64_t bytes)
{
    uint64_t at = p->function->frame_bytes;
    if (bytes > MAX_FRAME_BYTES || at + bytes > MAX_FRAME_BYTES)
        ptx_parse_fail(p, p->token.line, "too many registers");
    p->function->frame_bytes = (uint32_t)((at + bytes + 63) & ~UINT64_C(63));
    return (uint32_t)at;
}

uint32_t ptx_frame_registers(struct ptx_parser *p, unsigned log2, uint64_t count)
{
    if (!log2)
        return ptx_frame_take(p, count * 4);
    uint32_t first = p->function->virtual_count;
    if (count > MAX_REGISTERS - first)
        ptx_parse_fail(p, p->token.line, "too many registers");
    p->function->virtual_count += (uint32_t)count;
    return PTX_VIRTUAL | (uint32_t)log2 << PTX_VIRTUAL_LOG2 | first;
}

uint32_t ptx_frame_predicate(struct ptx_parser *p)
{
    if (!p->predicates_left) {
        p->predicate_offset = ptx_frame_take(p, 64);
        p->predicates_left = 16;
    }
    p->predicates_left--;
    return p->predicate_offset + 4 * p->predicates_left;
}

uint32_t ptx_frame_register(struct ptx_parser *p, unsigned log2)
{
    return log2 ? ptx_frame_registers(p, log2, 1) : ptx_frame_predicate(p);
}
