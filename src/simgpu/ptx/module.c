/* The engine's interface to modules: parse, link, look up. Also what is known only after the whole text: call graph. */
#include "simgpu/ptx/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECURSION_STACK_BYTES (1u << 20)  /* of frames, per warp, beyond the longest path without recursion */
#define RECURSION_LOCAL_BYTES (16u << 10) /* of .local variables, per thread */

/* What a function needs at most, itself and what it calls. Calls back into functions in work are left out: recursion gets
 * a fixed allowance on top, checked when it runs. */
struct need {
    uint64_t stack_bytes, local_bytes;
    bool recursive;
};

enum { VISIT_NONE, VISIT_OPEN, VISIT_DONE };

static uint32_t round_up(uint32_t value, uint32_t align)
{
    return (value + align - 1) & ~(align - 1);
}

/* Depth is bounded by the number of functions; a chain of calls deeper than this is refused. */
#define MAX_CALL_DEPTH 512

/* The next function from *k on that a call may enter; NULL = no more. */
static struct ptx_function *possible_callee(const struct ptx_module *m, const struct ptx_call *call, size_t *k)
{
    if (call->callee)
        return (*k)++ ? NULL : call->callee;
    if (call->targets)
        return *k < call->target_count ? call->targets[(*k)++] : NULL;
    while (*k < m->function_count) {
        struct ptx_function *f = m->functions[(*k)++];
        if (f->address_taken && f->defined)
            return f;
    }
    return NULL;
}

static void walk(struct ptx_parser *p, struct ptx_function *f, struct need *need_out, unsigned depth);

static void walk_callee(struct ptx_parser *p, struct ptx_function *f, const struct ptx_call *call,
                        struct ptx_function *callee, struct need *most, unsigned depth)
{
    struct need need;
    if (!callee->defined && p->open)
        return;
    if (!callee->defined && p->linking)
        ptx_parse_fail(p, 0, "'%s' calls '%s', which is not defined in any input", f->info.name, callee->info.name);
    if (!callee->defined)
        ptx_parse_unsupported(p, call->line, "unsupported: '%s' calls '%s', which is not defined in this text",
                              f->info.name, callee->info.name);
    walk(p, callee, &need, depth + 1);
    most->stack_bytes = need.stack_bytes > most->stack_bytes ? need.stack_bytes : most->stack_bytes;
    most->local_bytes = need.local_bytes > most->local_bytes ? need.local_bytes : most->local_bytes;
    most->recursive |= need.recursive;
    if (callee->local_align > f->local_align)
        f->local_align = callee->local_align;
}

static void walk(struct ptx_parser *p, struct ptx_function *f, struct need *need_out, unsigned depth)
{
    *need_out = (struct need){0};
    if (depth > MAX_CALL_DEPTH)
        ptx_parse_unsupported(p, 0, "unsupported: calls nest deeper than %u in '%s'", MAX_CALL_DEPTH, f->info.name);
    if (f->visit == VISIT_OPEN) {
        need_out->recursive = true;
        return;
    }
    if (f->visit == VISIT_DONE) {
        *need_out = (struct need){f->stack_bytes, f->info.local_bytes, f->recursive};
        return;
    }
    f->visit = VISIT_OPEN;
    struct need most = {0};
    for (struct ptx_call *call = f->calls; call; call = call->next) {
        struct ptx_function *callee;
        for (size_t k = 0; (callee = possible_callee(p->module, call, &k));)
            walk_callee(p, f, call, callee, &most, depth);
    }
    f->own_local_bytes = round_up(f->own_local_bytes, 16);
    need_out->stack_bytes = most.stack_bytes + f->frame_bytes;
    need_out->local_bytes = most.local_bytes + f->own_local_bytes;
    need_out->recursive = most.recursive;
    if (need_out->stack_bytes > (1u << 28) || need_out->local_bytes > (1u << 20))
        ptx_parse_fail(p, 0, "'%s' needs too much stack", f->info.name);
    f->stack_bytes = (uint32_t)need_out->stack_bytes;
    f->info.local_bytes = (uint32_t)need_out->local_bytes;
    f->recursive = need_out->recursive;
    f->visit = VISIT_DONE;
}

static void mark_shared(const struct ptx_module *m, struct ptx_function *f, uint32_t *used)
{
    if (f->visit == VISIT_OPEN)
        return;
    f->visit = VISIT_OPEN;
    for (struct ptx_shared_use *use = f->shared_uses; use; use = use->next)
        used[use->variable] = 1;
    for (struct ptx_call *call = f->calls; call; call = call->next) {
        struct ptx_function *callee;
        for (size_t k = 0; (callee = possible_callee(m, call, &k));)
            mark_shared(m, callee, used);
    }
}

/* An entry's shared memory: the variables that it can reach, in the text's order, then the dynamic part. */
static void lay_out_shared(struct ptx_parser *p, struct ptx_function *entry)
{
    struct ptx_module *m = p->module;
    for (size_t i = 0; i < m->function_count; i++)
        m->functions[i]->visit = VISIT_NONE;
    uint32_t *offset = ptx_parse_take(p, m->shared_count * sizeof(*offset) + 1);
    mark_shared(m, entry, offset);
    uint64_t at = 0;
    uint32_t dynamic_align = 16;
    for (size_t i = 0; i < m->shared_count; i++) {
        const struct ptx_shared_variable *v = &m->shared[i];
        if (!offset[i])
            continue;
        if (v->dynamic) {
            dynamic_align = v->align > dynamic_align ? v->align : dynamic_align;
            continue;
        }
        at = (at + v->align - 1) & ~(uint64_t)(v->align - 1);
        offset[i] = (uint32_t)at;
        at += v->bytes;
        if (at > (1u << 20))
            ptx_parse_fail(p, 0, "'%s' needs too much shared memory", entry->info.name);
    }
    entry->info.static_shared_bytes = (uint32_t)at;
    entry->dynamic_shared_offset = round_up((uint32_t)at, dynamic_align);
    for (size_t i = 0; i < m->shared_count; i++)
        if (m->shared[i].dynamic)
            offset[i] = entry->dynamic_shared_offset;
    entry->shared_offset = offset;
}

/* Calls and addresses of an alias mean what it stands for. */
static void resolve_aliases(struct ptx_parser *p)
{
    struct ptx_module *m = p->module;
    for (size_t i = 0; i < m->function_count; i++) {
        struct ptx_function *f = m->functions[i];
        if (!f->alias_of)
            continue;
        if ((!f->alias_of->defined && !p->open) || f->defined)
            ptx_parse_fail(p, 0, "alias '%s' does not stand for a defined function", f->info.name);
        f->alias_of->address_taken |= f->address_taken;
    }
    for (size_t i = 0; i < m->call_count; i++) {
        struct ptx_call *call = m->calls[i];
        if (call->callee && call->callee->alias_of)
            call->callee = call->callee->alias_of;
        for (uint32_t k = 0; k < call->target_count; k++)
            if (call->targets[k]->alias_of)
                call->targets[k] = call->targets[k]->alias_of;
    }
    for (size_t i = 0; i < m->function_count; i++) {
        const struct ptx_function *f = m->functions[i];
        if (f->address_taken && !f->defined && !f->alias_of && !p->open)
            ptx_parse_unsupported(p, 0, "unsupported: the address of '%s', which is not defined in this text",
                                  f->info.name);
    }
}

static void finish(struct ptx_parser *p)
{
    struct ptx_module *m = p->module;
    resolve_aliases(p);
    for (size_t i = 0; i < m->function_count; i++) {
        struct ptx_function *f = m->functions[i];
        struct need need;
        if (!f->defined && f->info.is_entry)
            ptx_parse_unsupported(p, 0, "unsupported: entry '%s' is declared but not defined", f->info.name);
        if (f->defined)
            walk(p, f, &need, 0);
    }
    for (size_t i = 0; i < m->function_count; i++) {
        struct ptx_function *f = m->functions[i];
        if (f->recursive) {
            f->stack_bytes += RECURSION_STACK_BYTES;
            f->info.local_bytes += RECURSION_LOCAL_BYTES;
        }
        f->info.local_bytes =
            f->info.local_bytes ? round_up(f->info.local_bytes, f->local_align > 16 ? f->local_align : 16) : 0;
    }
    for (size_t i = 0; i < m->function_count; i++)
        if (m->functions[i]->info.is_entry)
            lay_out_shared(p, m->functions[i]);
}

static int by_kind_then_order(const void *a, const void *b)
{
    const struct ptx_function *left = *(struct ptx_function *const *)a, *right = *(struct ptx_function *const *)b;
    if (left->info.is_entry != right->info.is_entry)
        return left->info.is_entry ? -1 : 1;
    return left->number < right->number ? -1 : 1;
}

/* Reads one text after another; the module's version and target become the newest of them. */
static void read_sources(struct ptx_parser *p, const struct ptx_source *sources, size_t count)
{
    struct ptx_module *m = p->module;
    unsigned version = 0, target = 0;
    for (size_t i = 0; i < count; i++) {
        p->lexer = (struct ptx_lexer){sources[i].text, sources[i].text + sources[i].bytes, 1};
        p->source_name = sources[i].name;
        p->symbols = (struct ptx_map){0};
        m->version = m->target = 0;
        ptx_parse_text(p);
        version = m->version > version ? m->version : version;
        target = m->target > target ? m->target : target;
    }
    m->version = version;
    m->target = target;
    p->source_name = NULL;
    if (p->linking)
        ptx_link_finish(p);
}

static int parse(const struct ptx_source *sources, size_t count, bool linking, bool open,
                 struct ptx_module **module_out, struct ptx_error *error)
{
    memset(error, 0, sizeof(*error));
    struct ptx_module *m = calloc(1, sizeof(*m));
    struct ptx_parser *p = calloc(1, sizeof(*p));
    if (!m || !p) {
        snprintf(error->text, sizeof(error->text), "line 0: out of host memory");
        free(m);
        free(p);
        return -1;
    }
    static _Atomic(uint64_t) serial;
    m->code_base = PTX_CODE_WINDOW + (atomic_fetch_add(&serial, 1) + 1) % (1u << 24) * (UINT64_C(1) << 32);
    p->module = m;
    p->error = error;
    p->linking = linking;
    p->open = open;
    if (setjmp(p->leave)) {
        free(p->scratch);
        free(p);
        ptx_module_destroy(m);
        return -1;
    }
    ptx_names_give(p);
    read_sources(p, sources, count);
    finish(p);
    m->number_count = m->function_count;
    m->by_number = ptx_parse_take(p, m->function_count * sizeof(struct ptx_function *) + 1);
    for (size_t i = 0; i < m->function_count; i++)
        m->by_number[i] = m->functions[i];
    size_t defined = 0; /* what is only declared stays reachable from calls, but is nothing to launch or list */
    for (size_t i = 0; i < m->function_count; i++)
        if (m->functions[i]->defined)
            m->functions[defined++] = m->functions[i];
    m->function_count = defined;
    if (defined)
        qsort(m->functions, defined, sizeof(*m->functions), by_kind_then_order);
    free(p->scratch);
    free(p);
    *module_out = m;
    return 0;
}

int ptx_module_parse(const char *text, size_t text_bytes, struct ptx_module **module_out, struct ptx_error *error)
{
    return parse(&(struct ptx_source){text, text_bytes, NULL}, 1, false, false, module_out, error);
}

int ptx_module_parse_all(const struct ptx_source *sources, size_t count, bool open, struct ptx_module **module_out,
                         struct ptx_error *error)
{
    return parse(sources, count, true, open, module_out, error);
}

void ptx_module_destroy(struct ptx_module *m)
{
    if (!m)
        return;
    free(m->code);
    free(m->consts);
    free(m->functions);
    free(m->globals);
    free(m->shared);
    free(m->relocs);
    free(m->const_relocs);
    free(m->calls);
    free(m->targets);
    free(m->wides);
    ptx_arena_finish(&m->arena);
    free(m);
}

int ptx_module_link(struct ptx_module *m, struct ptx_error *error)
{
    memset(error, 0, sizeof(*error));
    for (size_t i = 0; i < m->global_count; i++) {
        if (!m->globals[i].address && m->globals[i].size_bytes) {
            snprintf(error->text, sizeof(error->text), "line 0: variable '%.200s' has no address", m->globals[i].name);
            return -1;
        }
    }
    for (size_t i = 0; i < m->const_reloc_count; i++) {
        const struct ptx_const_reloc *r = &m->const_relocs[i];
        uint64_t value = m->globals[r->global].address + r->addend;
        for (unsigned lane = 0; lane < PTX_LANES; lane++)
            memcpy(m->consts + r->constant + 8 * lane, &value, 8);
    }
    for (size_t i = 0; i < m->reloc_count; i++) {
        const struct ptx_reloc *r = &m->relocs[i];
        uint64_t value = m->globals[r->target].address + r->addend;
        value = (value & r->mask) >> __builtin_ctzll(r->mask);
        memcpy((uint8_t *)(uintptr_t)m->globals[r->global].init + r->offset, &value, r->bytes);
    }
    m->linked = true;
    return 0;
}

struct ptx_function *ptx_module_callee(const struct ptx_module *m, uint64_t address)
{
    uint64_t offset = address - m->code_base;
    if (!offset || offset % 16 || offset / 16 > m->number_count)
        return NULL;
    struct ptx_function *f = m->by_number[offset / 16 - 1];
    f = f->alias_of ? f->alias_of : f;
    return f->defined && !f->info.is_entry ? f : NULL;
}

bool ptx_module_uses_heap(const struct ptx_module *m)
{
    return m->uses_heap;
}

bool ptx_module_uses_printf(const struct ptx_module *m)
{
    return m->uses_printf;
}

bool ptx_module_is_const(const struct ptx_module *m, uint64_t address)
{
    for (size_t i = 0; i < m->global_count; i++)
        if (m->globals[i].is_const && address - m->globals[i].address < m->globals[i].size_bytes)
            return true;
    return false;
}

unsigned ptx_module_target(const struct ptx_module *m)
{
    return m->target;
}

size_t ptx_module_code_bytes(const struct ptx_module *m)
{
    return m->code_count * 16 + 4096; /* sm_70 and later: 16 bytes an instruction */
}

size_t ptx_module_function_count(const struct ptx_module *m)
{
    return m->function_count;
}

struct ptx_function *ptx_module_function_at(struct ptx_module *m, size_t index)
{
    return index < m->function_count ? m->functions[index] : NULL;
}

struct ptx_function *ptx_module_function(struct ptx_module *m, const char *name)
{
    for (size_t i = 0; i < m->function_count; i++)
        if (!strcmp(m->functions[i]->info.name, name))
            return m->functions[i];
    return NULL;
}

const struct ptx_function_info *ptx_function_info(const struct ptx_function *f)
{
    return &f->info;
}

size_t ptx_module_global_count(const struct ptx_module *m)
{
    return m->global_count;
}

struct ptx_global *ptx_module_global_at(struct ptx_module *m, size_t index)
{
    return index < m->global_count ? &m->globals[index] : NULL;
}
