/*
 * Several texts, one module: which names they share.
 *
 * Each text has a map of names of its own, as if it were alone. What has outside linkage also stands in a second map that all
 * texts share, under one symbol, so that whoever comes first makes the variable or function, and the others find it.
 */
#include "simgpu/ptx/parse.h"

static int shown(size_t bytes)
{
    return (int)(bytes < 200 ? bytes : 200);
}

/* Whether the name in work is the other texts' too. Entries always are: that is how they are launched. */
static bool is_outside(const struct ptx_parser *p, bool is_entry)
{
    return p->linking && !p->depth && (is_entry || p->linkage != PTX_LINK_LOCAL);
}

static _Noreturn void twice(struct ptx_parser *p, const char *name, size_t bytes, const char *what)
{
    ptx_parse_fail(p, p->token.line, "'%.*s' is %s", shown(bytes), name, what);
}

/* The shared symbol of that name becomes this text's as well. NULL: there is none. */
static struct ptx_symbol *adopt(struct ptx_parser *p, const char *name, size_t bytes, enum ptx_symbol_kind kind)
{
    struct ptx_symbol *shared = ptx_map_find(&p->externals, name, bytes), *own = ptx_map_find(&p->symbols, name, bytes);
    if (!shared)
        return NULL;
    if (shared->kind != kind || (own && own != shared))
        twice(p, name, bytes, "declared twice");
    if (!own && ptx_map_add(&p->symbols, &p->module->arena, name, bytes, shared) < 0)
        ptx_parse_out_of_memory(p);
    return shared;
}

void ptx_link_publish(struct ptx_parser *p, const char *name, size_t bytes, struct ptx_symbol *symbol)
{
    bool is_entry = symbol->kind == PTX_SYM_FUNCTION && symbol->function->info.is_entry;
    if (is_outside(p, is_entry) && !ptx_map_find(&p->externals, name, bytes) &&
        ptx_map_add(&p->externals, &p->module->arena, name, bytes, symbol) < 0)
        ptx_parse_out_of_memory(p);
}

struct ptx_symbol *ptx_link_global(struct ptx_parser *p, const char *name, size_t bytes)
{
    return is_outside(p, false) ? adopt(p, name, bytes, PTX_SYM_GLOBAL) : NULL;
}

bool ptx_link_defines(struct ptx_parser *p, const char *name, size_t bytes, struct ptx_symbol *symbol, uint64_t size)
{
    if (!is_outside(p, false))
        return true;
    bool may_differ = symbol->linkage == PTX_LINK_COMMON || p->linkage == PTX_LINK_COMMON;
    if (symbol->bytes && size && symbol->bytes != size && !may_differ) /* an open array's declaration tells no size */
        twice(p, name, bytes, "declared with different sizes");
    if (p->linkage == PTX_LINK_EXTERN) {
        symbol->bytes = symbol->bytes ? symbol->bytes : size;
        return false;
    }
    bool yields = p->linkage == PTX_LINK_WEAK || p->linkage == PTX_LINK_COMMON;
    bool yielded = symbol->linkage == PTX_LINK_WEAK || symbol->linkage == PTX_LINK_COMMON;
    if (symbol->defined && yields && !(symbol->linkage == PTX_LINK_COMMON && size > symbol->bytes))
        return false; /* the first of the weak ones counts, the largest of the common ones */
    if (symbol->defined && !yields && !yielded)
        twice(p, name, bytes, "defined twice");
    symbol->defined = true;
    symbol->linkage = p->linkage;
    return true;
}

/* A function whose body is read and then never used: another one of its name counts. */
static struct ptx_function *spare_function(struct ptx_parser *p, const char *name, size_t bytes)
{
    struct ptx_module *m = p->module;
    struct ptx_function *f = ptx_parse_take(p, sizeof(*f));
    if (ptx_grow((void **)&m->functions, m->function_count, &m->function_capacity, sizeof(*m->functions)))
        ptx_parse_out_of_memory(p);
    f->number = (uint32_t)m->function_count;
    m->functions[m->function_count++] = f;
    f->module = m;
    f->info.max_threads = PTX_MAX_THREADS;
    f->info.name = ptx_arena_text(&m->arena, name, bytes);
    if (!f->info.name)
        ptx_parse_out_of_memory(p);
    return f;
}

struct ptx_function *ptx_link_function(struct ptx_parser *p, const char *name, size_t bytes, bool is_entry)
{
    struct ptx_symbol *shared = is_outside(p, is_entry) ? adopt(p, name, bytes, PTX_SYM_FUNCTION) : NULL;
    if (!shared)
        return NULL;
    if (shared->function->info.is_entry != is_entry)
        twice(p, name, bytes, "declared twice");
    if (shared->function->defined && p->linkage == PTX_LINK_WEAK)
        return spare_function(p, name, bytes);
    return shared->function;
}

static bool is_used(const struct ptx_module *m, uint32_t global)
{
    for (size_t i = 0; i < m->const_reloc_count; i++)
        if (m->const_relocs[i].global == global)
            return true;
    for (size_t i = 0; i < m->reloc_count; i++)
        if (m->relocs[i].target == global)
            return true;
    return false;
}

void ptx_link_finish(struct ptx_parser *p)
{
    for (uint32_t i = 0; i < p->externals.capacity && !p->open; i++) {
        const struct ptx_map_entry *entry = &p->externals.entries[i];
        const struct ptx_symbol *symbol = entry->value;
        if (!entry->name || symbol->kind != PTX_SYM_GLOBAL || symbol->defined)
            continue;
        if (is_used(p->module, symbol->index))
            ptx_parse_fail(p, 0, "'%.*s' is used, and not defined in any input", shown(entry->name_bytes), entry->name);
        p->module->globals[symbol->index].name = ""; /* only declared: nothing to be found */
    }
}
