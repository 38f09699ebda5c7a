/* What indirect calls need: prototypes and lists of targets; and aliases of functions. */
#include "simgpu/ptx/parse.h"

#include <string.h>

#define MOST_VALUES 1024

/* ( .param .b32 _, ... ): sizes are added to `bytes`. */
static uint32_t parse_values(struct ptx_parser *p, uint32_t *bytes, uint32_t count)
{
    uint32_t first = count;
    ptx_parse_expect(p, '(');
    while (!ptx_parse_is_punct(p, ')')) {
        struct ptx_declarator d;
        bool is_reg = ptx_parse_is_dotted(p, "reg");
        if (!is_reg && !ptx_parse_is_dotted(p, "param"))
            ptx_parse_fail(p, p->token.line, "expected a parameter");
        ptx_parse_next(p);
        ptx_parse_declarator(p, &d);
        if (d.is_open || count == MOST_VALUES)
            ptx_parse_unsupported(p, d.line, "unsupported: a prototype with an open array, or with so many values");
        bytes[count++] = (uint32_t)ptx_declarator_bytes(p, &d, 32764);
        if (!ptx_parse_accept(p, ','))
            break;
    }
    ptx_parse_expect(p, ')');
    return count - first;
}

void ptx_parse_prototype(struct ptx_parser *p, const char *name, size_t bytes)
{
    uint32_t results[MOST_VALUES], all[2 * MOST_VALUES];
    struct ptx_symbol *symbol = ptx_parse_declare(p, name, bytes, PTX_SYM_PROTOTYPE);
    struct ptx_prototype *proto = symbol->prototype = ptx_parse_take(p, sizeof(*proto));
    ptx_parse_next(p);
    if (ptx_parse_is_punct(p, '('))
        proto->result_count = parse_values(p, results, 0);
    if (p->token.kind != PTX_TOKEN_IDENT)
        ptx_parse_fail(p, p->token.line, "expected _");
    ptx_parse_next(p);
    if (ptx_parse_is_punct(p, '('))
        proto->argument_count = parse_values(p, all, 0);
    if (ptx_parse_is_dotted(p, "noreturn"))
        ptx_parse_next(p);
    ptx_parse_expect(p, ';');
    uint32_t count = proto->argument_count + proto->result_count;
    memcpy(all + proto->argument_count, results, proto->result_count * sizeof(*results));
    uint32_t *copy = ptx_parse_take(p, count * sizeof(*copy) + 1);
    memcpy(copy, all, count * sizeof(*copy));
    proto->bytes = copy;
}

static struct ptx_function *parse_function_name(struct ptx_parser *p)
{
    struct ptx_symbol *symbol = NULL;
    if (p->token.kind == PTX_TOKEN_IDENT)
        symbol = ptx_parse_find(p, p->token.text, p->token.bytes);
    if (!symbol || symbol->kind != PTX_SYM_FUNCTION || symbol->function->info.is_entry)
        ptx_parse_fail(p, p->token.line, "expected the name of a function, found '%.*s'",
                       (int)(p->token.bytes < 200 ? p->token.bytes : 200), p->token.text);
    ptx_parse_next(p);
    return symbol->function;
}

void ptx_parse_call_targets(struct ptx_parser *p, const char *name, size_t bytes)
{
    struct ptx_function *list[MOST_VALUES];
    struct ptx_symbol *symbol = ptx_parse_declare(p, name, bytes, PTX_SYM_PROTOTYPE);
    struct ptx_prototype *proto = symbol->prototype = ptx_parse_take(p, sizeof(*proto));
    ptx_parse_next(p);
    do {
        if (proto->target_count == MOST_VALUES)
            ptx_parse_unsupported(p, p->token.line, "unsupported: more than %d call targets", MOST_VALUES);
        list[proto->target_count++] = parse_function_name(p);
    } while (ptx_parse_accept(p, ','));
    ptx_parse_expect(p, ';');
    proto->targets = ptx_parse_take(p, proto->target_count * sizeof(struct ptx_function *));
    for (uint32_t i = 0; i < proto->target_count; i++) {
        proto->targets[i] = list[i];
        list[i]->address_taken = true;
    }
    const struct ptx_function *first = list[0]; /* all have one prototype */
    proto->argument_count = first->formal_count;
    proto->result_count = first->result_count;
    uint32_t *sizes = ptx_parse_take(p, (first->formal_count + first->result_count) * sizeof(*sizes) + 1);
    for (uint32_t i = 0; i < first->formal_count; i++)
        sizes[i] = first->formals[i].at.size_bytes;
    for (uint32_t i = 0; i < first->result_count; i++)
        sizes[first->formal_count + i] = first->results[i].at.size_bytes;
    proto->bytes = sizes;
}

void ptx_parse_alias(struct ptx_parser *p)
{
    ptx_parse_next(p);
    struct ptx_function *alias = parse_function_name(p);
    ptx_parse_expect(p, ',');
    struct ptx_function *target = parse_function_name(p);
    ptx_parse_expect(p, ';');
    if (alias == target || target->alias_of || alias->formal_count != target->formal_count ||
        alias->result_count != target->result_count)
        ptx_parse_fail(p, p->token.line, "'%s' cannot be an alias of '%s'", alias->info.name, target->info.name);
    alias->alias_of = target;
}
