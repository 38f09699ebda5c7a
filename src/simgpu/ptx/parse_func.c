/* Functions and the module's top level. */
#include "simgpu/ptx/lower.h"

#include <string.h>

#define VARIADIC_BYTES 1024 /* of arguments that a variadic function can be called with */

static void parse_formal(struct ptx_parser *p, struct ptx_formal *formal, bool is_result)
{
    bool is_reg = ptx_parse_is_dotted(p, "reg");
    if (!is_reg && !ptx_parse_is_dotted(p, "param"))
        ptx_parse_fail(p, p->token.line, "expected a parameter");
    ptx_parse_next(p);
    struct ptx_declarator d;
    ptx_parse_declarator(p, &d);
    if (d.is_open && (is_reg || is_result || p->function->info.is_entry))
        ptx_parse_fail(p, d.line, "a parameter needs a size");
    formal->is_open = d.is_open;
    formal->at.size_bytes = d.is_open ? VARIADIC_BYTES : (uint32_t)ptx_declarator_bytes(p, &d, 32764);
    formal->at.align_bytes = d.align;
    if (is_reg && (d.is_array || p->function->info.is_entry))
        ptx_parse_fail(p, d.line, "a register parameter must be a scalar of a function");
    struct ptx_symbol *symbol;
    if (is_reg) {
        unsigned log2 = ptx_type_log2(d.type) ? ptx_type_log2(d.type) : 1;
        formal->reg_log2 = (uint8_t)log2;
        formal->frame_offset = ptx_frame_register(p, log2);
        formal->stride = 1u << log2;
        symbol = ptx_parse_declare(p, d.name, d.name_bytes, PTX_SYM_REGISTER);
        symbol->log2 = (uint8_t)log2;
        symbol->offset = formal->frame_offset;
        return;
    }
    symbol = ptx_parse_declare(p, d.name, d.name_bytes, PTX_SYM_PARAM);
    symbol->bytes = formal->at.size_bytes;
    symbol->is_result = is_result;
    symbol->is_formal = !is_result;
    if (is_result) {
        symbol->stride = formal->stride = (formal->at.size_bytes + 15) & ~15u;
        symbol->offset = formal->frame_offset = ptx_frame_take(p, (uint64_t)symbol->stride * PTX_LANES);
        return;
    }
    uint32_t *total = &p->function->formal_bytes;
    *total = (*total + d.align - 1) & ~(d.align - 1);
    symbol->offset = formal->at.offset_bytes = *total;
    *total += formal->at.size_bytes;
    if (*total > 32764)
        ptx_parse_fail(p, d.line, "too many parameter bytes");
}

/* ( formal, ... ). The array is the arena's. */
static struct ptx_formal *parse_formals(struct ptx_parser *p, bool is_result, uint32_t *count_out)
{
    struct ptx_formal list[1024];
    uint32_t count = 0;
    ptx_parse_expect(p, '(');
    if (!ptx_parse_is_punct(p, ')')) {
        do {
            if (count == sizeof(list) / sizeof(list[0]))
                ptx_parse_unsupported(p, p->token.line, "unsupported: more than 1024 parameters");
            list[count] = (struct ptx_formal){0};
            parse_formal(p, &list[count++], is_result);
        } while (ptx_parse_accept(p, ','));
    }
    ptx_parse_expect(p, ')');
    struct ptx_formal *copy = ptx_parse_take(p, count * sizeof(*copy) + 1);
    memcpy(copy, list, count * sizeof(*copy));
    *count_out = count;
    return copy;
}

static uint32_t parse_dims(struct ptx_parser *p, uint32_t dims[3])
{
    ptx_parse_next(p);
    uint64_t product = 1;
    dims[0] = dims[1] = dims[2] = 1;
    for (unsigned i = 0; i < 3; i++) {
        dims[i] = (uint32_t)ptx_parse_unsigned(p, 1 << 20, "number of threads");
        product *= dims[i];
        if (!ptx_parse_accept(p, ','))
            break;
    }
    return product > PTX_MAX_THREADS ? PTX_MAX_THREADS : (uint32_t)product;
}

static void parse_performance(struct ptx_parser *p)
{
    struct ptx_function_info *info = &p->function->info;
    uint32_t dims[3];
    while (p->token.kind == PTX_TOKEN_DOTTED) {
        if (ptx_parse_is_dotted(p, "maxntid")) {
            info->max_threads = parse_dims(p, dims);
        } else if (ptx_parse_is_dotted(p, "reqntid")) {
            info->max_threads = parse_dims(p, info->required_threads);
        } else if (ptx_parse_is_dotted(p, "minnctapersm") || ptx_parse_is_dotted(p, "maxnctapersm") ||
                   ptx_parse_is_dotted(p, "maxnreg") || ptx_parse_is_dotted(p, "maxclusterrank")) {
            ptx_parse_next(p);
            ptx_parse_unsigned(p, 1 << 20, "performance directive");
        } else if (ptx_parse_is_dotted(p, "reqnctapercluster")) {
            unsigned line = p->token.line;
            if (parse_dims(p, dims) != 1)
                ptx_parse_unsupported(p, line, "unsupported: clusters of more than one block");
        } else if (ptx_parse_is_dotted(p, "explicitcluster") || ptx_parse_is_dotted(p, "noreturn")) {
            ptx_parse_next(p);
        } else if (ptx_parse_is_dotted(p, "pragma")) {
            ptx_parse_pragma(p);
        } else {
            ptx_parse_unsupported(p, p->token.line, "unsupported directive '.%.*s'",
                                  (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
        }
    }
}

static void resolve_labels(struct ptx_parser *p)
{
    for (uint32_t i = 0; i < p->labels.capacity; i++) {
        struct ptx_map_entry *entry = &p->labels.entries[i];
        struct ptx_symbol *label = entry->value;
        if (entry->name && !label->defined)
            ptx_parse_fail(p, p->token.line, "label or name '%.*s' is not defined",
                           (int)(entry->name_bytes < 200 ? entry->name_bytes : 200), entry->name);
    }
    for (size_t pc = p->function->entry_pc; pc < p->module->code_count; pc++) {
        struct ptx_insn *in = &p->module->code[pc];
        if (in->op == PTX_OP_BRA)
            in->imm = ((struct ptx_symbol *)(uintptr_t)in->imm)->index;
    }
    for (struct ptx_target_fixup *fixup = p->target_fixups; fixup; fixup = fixup->next)
        p->module->targets[fixup->target] = fixup->label->index;
}

static void parse_definition(struct ptx_parser *p)
{
    struct ptx_function *f = p->function;
    if (f->defined)
        ptx_parse_fail(p, p->token.line, "function '%s' is defined twice", f->info.name);
    f->defined = true;
    f->entry_pc = (uint32_t)p->module->code_count;
    f->local_align = 1;
    p->labels = (struct ptx_map){0};
    p->target_fixups = NULL;
    p->predicates_left = 0;
    p->carry = 0;
    ptx_parse_body(p);
    /* The end of the text of a function returns. */
    if (ptx_grow((void **)&p->module->code, p->module->code_count, &p->module->code_capacity, sizeof(struct ptx_insn)))
        ptx_parse_out_of_memory(p);
    p->module->code[p->module->code_count++] =
        (struct ptx_insn){.op = f->info.is_entry ? PTX_OP_EXIT : PTX_OP_RET, .imm = f->number, .line = p->token.line};
    resolve_labels(p);
    ptx_lower_compact(p, f->entry_pc, (uint32_t)p->module->code_count);
    ptx_lower_reuse(p, f->entry_pc, (uint32_t)p->module->code_count);
}

static bool same_formals(const struct ptx_formal *a, const struct ptx_formal *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (a[i].at.size_bytes != b[i].at.size_bytes || a[i].reg_log2 != b[i].reg_log2)
            return false;
    return true;
}

static struct ptx_function *new_function(struct ptx_parser *p, const char *name, size_t bytes, bool is_entry)
{
    struct ptx_module *m = p->module;
    struct ptx_symbol *symbol = ptx_map_find(&p->symbols, name, bytes);
    if (symbol) {
        if (symbol->kind != PTX_SYM_FUNCTION || symbol->function->info.is_entry != is_entry)
            ptx_parse_fail(p, p->token.line, "'%.*s' is declared twice", (int)(bytes < 200 ? bytes : 200), name);
        ptx_link_publish(p, name, bytes, symbol);
    }
    struct ptx_function *shared = ptx_link_function(p, name, bytes, is_entry);
    if (shared || symbol)
        return shared ? shared : symbol->function;
    symbol = ptx_parse_declare(p, name, bytes, PTX_SYM_FUNCTION);
    struct ptx_function *f = symbol->function = ptx_parse_take(p, sizeof(*f));
    if (ptx_grow((void **)&m->functions, m->function_count, &m->function_capacity, sizeof(*m->functions)))
        ptx_parse_out_of_memory(p);
    f->number = (uint32_t)m->function_count;
    m->functions[m->function_count++] = f;
    f->module = m;
    f->info.is_entry = is_entry;
    f->info.name = ptx_arena_text(&m->arena, name, bytes);
    if (!f->info.name)
        ptx_parse_out_of_memory(p);
    f->info.max_threads = PTX_MAX_THREADS;
    ptx_link_publish(p, name, bytes, symbol);
    return f;
}

static void set_formals(struct ptx_parser *p, struct ptx_function *f, const struct ptx_function *seen)
{
    if (seen->info.name && (seen->formal_count != f->formal_count || seen->result_count != f->result_count ||
                            !same_formals(seen->formals, f->formals, f->formal_count) ||
                            !same_formals(seen->results, f->results, f->result_count)))
        ptx_parse_fail(p, p->token.line, "'%s' is declared with other parameters", f->info.name);
    struct ptx_param *params = ptx_parse_take(p, f->formal_count * sizeof(*params) + 1);
    for (uint32_t i = 0; i < f->formal_count; i++)
        params[i] = f->formals[i].at;
    f->info.params = params;
    f->info.param_count = f->formal_count;
    f->info.params_bytes = f->formal_bytes;
    if (f->info.is_entry)
        return;
    uint32_t stride = (f->formal_bytes + 15) & ~15u;
    f->formal_offset = ptx_frame_take(p, (uint64_t)stride * PTX_LANES);
    for (uint32_t i = 0; i < f->formal_count; i++) {
        if (f->formals[i].reg_log2)
            continue;
        f->formals[i].frame_offset = f->formal_offset + f->formals[i].at.offset_bytes;
        f->formals[i].stride = stride;
    }
}

/* After .entry or .func. */
static void parse_function(struct ptx_parser *p, bool is_entry, bool is_extern)
{
    struct ptx_function results = {0};
    struct ptx_map scope = {0};
    p->function = &results; /* results come before the name: their frame space moves over below */
    results.frame_bytes = sizeof(struct ptx_frame);
    p->depth = 1;
    p->scopes[0] = scope;
    if (ptx_parse_is_punct(p, '(')) {
        if (is_entry)
            ptx_parse_fail(p, p->token.line, "an entry returns nothing");
        results.results = parse_formals(p, true, &results.result_count);
    }
    if (p->token.kind != PTX_TOKEN_IDENT)
        ptx_parse_fail(p, p->token.line, "expected a function name");
    p->depth = 0;
    struct ptx_function *f = new_function(p, p->token.text, p->token.bytes, is_entry);
    ptx_parse_next(p);
    p->depth = 1;
    struct ptx_function seen = *f;
    if (!f->info.params)
        seen.info.name = NULL;
    p->function = f;
    f->frame_bytes = results.frame_bytes;
    f->virtual_count = results.virtual_count;
    f->results = results.results;
    f->result_count = results.result_count;
    f->formal_bytes = 0;
    f->formal_count = 0;
    if (ptx_parse_is_punct(p, '('))
        f->formals = parse_formals(p, false, &f->formal_count);
    if (f->defined && seen.info.name) {
        /* A declaration after the definition must not disturb its frame. */
        if (!ptx_parse_is_punct(p, ';'))
            ptx_parse_fail(p, p->token.line, "function '%s' is defined twice", f->info.name);
        *f = seen;
    } else {
        set_formals(p, f, &seen);
    }
    parse_performance(p);
    if (!ptx_parse_accept(p, ';')) {
        if (is_extern)
            ptx_parse_fail(p, p->token.line, "an extern function has no body");
        parse_definition(p);
    }
    p->depth = 0;
    p->function = NULL;
}

static void skip_section(struct ptx_parser *p)
{
    ptx_parse_next(p); /* .section */
    while (p->token.kind == PTX_TOKEN_DOTTED || p->token.kind == PTX_TOKEN_IDENT)
        ptx_parse_next(p);
    ptx_parse_expect(p, '{');
    for (unsigned depth = 1; depth; ptx_parse_next(p)) {
        if (p->token.kind == PTX_TOKEN_END)
            ptx_parse_fail(p, p->token.line, "a section is not closed");
        depth += ptx_parse_is_punct(p, '{');
        depth -= ptx_parse_is_punct(p, '}');
    }
}

static void parse_version(struct ptx_parser *p)
{
    ptx_parse_next(p);
    if (p->token.kind != PTX_TOKEN_FLOAT || p->token.bits_bytes || !(p->token.number >= 1.0 && p->token.number < 100.0))
        ptx_parse_fail(p, p->token.line, "expected a version such as 7.0");
    p->module->version = (unsigned)(p->token.number * 10 + 0.5);
    ptx_parse_next(p);
}

/* Options of .target without effect on what is supported. */
static bool is_harmless_target(const char *name, size_t bytes)
{
    static const char *const names[] = {"debug", "texmode_unified", "texmode_independent"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (bytes == strlen(names[i]) && !memcmp(name, names[i], bytes))
            return true;
    return false;
}

static void parse_target(struct ptx_parser *p)
{
    do {
        ptx_parse_next(p);
        if (p->token.kind != PTX_TOKEN_IDENT)
            ptx_parse_fail(p, p->token.line, "expected a target such as sm_70");
        const char *name = p->token.text;
        if (p->token.bytes > 4 && p->token.bytes < 9 && memcmp(name, "sm_", 3) == 0) {
            p->module->target = 0;
            for (size_t i = 3; i < p->token.bytes && name[i] >= '0' && name[i] <= '9'; i++)
                p->module->target = p->module->target * 10 + (unsigned)(name[i] - '0');
        } else if (!is_harmless_target(name, p->token.bytes)) {
            ptx_parse_unsupported(p, p->token.line, "unsupported target '%.*s'",
                                  (int)(p->token.bytes < 60 ? p->token.bytes : 60), name);
        }
        ptx_parse_next(p);
    } while (ptx_parse_is_punct(p, ','));
    if (!p->module->target)
        ptx_parse_fail(p, p->token.line, "expected a target such as sm_70");
}

/* .visible .extern .weak .common in front of a variable or function. */
static bool parse_linkage(struct ptx_parser *p)
{
    static const char *const names[] = {"", "extern", "visible", "weak", "common"}; /* as enum ptx_linkage */
    p->linkage = PTX_LINK_LOCAL;
    for (;; ptx_parse_next(p)) {
        unsigned i = PTX_LINK_COMMON;
        while (i && !ptx_parse_is_dotted(p, names[i]))
            i--;
        if (!i)
            return p->linkage == PTX_LINK_EXTERN;
        if (p->linkage != PTX_LINK_EXTERN)
            p->linkage = (enum ptx_linkage)i;
    }
}

static void parse_top_level(struct ptx_parser *p)
{
    if (ptx_parse_skip_dwarf(p))
        return;
    bool is_extern = parse_linkage(p);
    if (p->module->version == 0)
        ptx_parse_fail(p, p->token.line, "the text does not begin with .version");
    bool needs_target = !p->module->target;
    if (ptx_parse_is_dotted(p, "target")) {
        parse_target(p);
    } else if (ptx_parse_is_dotted(p, "address_size")) {
        ptx_parse_next(p);
        if (ptx_parse_unsigned(p, 128, "address size") != 64)
            ptx_parse_unsupported(p, p->token.line, "unsupported address size");
    } else if (ptx_parse_is_dotted(p, "file")) {
        ptx_parse_skip_line(p);
    } else if (ptx_parse_is_dotted(p, "section")) {
        skip_section(p);
    } else if (ptx_parse_is_dotted(p, "pragma")) {
        ptx_parse_pragma(p);
    } else if (needs_target) {
        ptx_parse_fail(p, p->token.line, "expected .target");
    } else if (ptx_parse_is_dotted(p, "entry")) {
        ptx_parse_next(p);
        parse_function(p, true, is_extern);
    } else if (ptx_parse_is_dotted(p, "func")) {
        ptx_parse_next(p);
        parse_function(p, false, is_extern);
    } else if (ptx_parse_is_dotted(p, "global")) {
        ptx_parse_next(p);
        ptx_parse_global(p, false, is_extern);
    } else if (ptx_parse_is_dotted(p, "const")) {
        ptx_parse_next(p);
        if (ptx_parse_accept(p, '[')) { /* the banks of old: all are one here */
            ptx_parse_unsigned(p, 10, "constant bank");
            ptx_parse_expect(p, ']');
        }
        ptx_parse_global(p, true, is_extern);
    } else if (ptx_parse_is_dotted(p, "alias")) {
        ptx_parse_alias(p);
    } else if (ptx_parse_is_dotted(p, "shared")) {
        ptx_parse_next(p);
        ptx_parse_shared(p, is_extern);
    } else if (p->token.kind == PTX_TOKEN_DOTTED) {
        ptx_parse_unsupported(p, p->token.line, "unsupported directive '.%.*s'",
                              (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
    } else {
        ptx_parse_fail(p, p->token.line, "expected a directive, found '%.*s'",
                       (int)(p->token.bytes < 60 ? p->token.bytes : 60), p->token.text);
    }
}

void ptx_parse_text(struct ptx_parser *p)
{
    ptx_parse_next(p);
    if (ptx_parse_is_dotted(p, "version"))
        parse_version(p);
    else
        ptx_parse_fail(p, p->token.line, "the text does not begin with .version");
    while (p->token.kind != PTX_TOKEN_END)
        parse_top_level(p);
    for (size_t i = 0; i < p->module->global_count && !p->linking; i++)
        if (p->module->globals[i].align_bytes == 0)
            ptx_parse_unsupported(p, p->token.line, "unsupported: '%s' is defined in another module",
                                  p->module->globals[i].name);
}
