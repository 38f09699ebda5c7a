/*
 * The names of types, modifiers, special registers and instructions are the same for every module: they are put into maps
 * once per process and only read afterwards. They stay: a thread may still load modules while the process ends.
 */
#include "simgpu/ptx/lower.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ptx_parser *names; /* only its maps are in use */
static struct ptx_module keeper; /* its arena has them */

static bool fill_names(struct ptx_parser *q)
{
    if (setjmp(q->leave))
        return false;
    ptx_parse_init_names(q);
    ptx_lower_init_names(q);
    return true;
}

static struct ptx_parser *make_names(void)
{
    static struct ptx_error error;
    struct ptx_parser *q = calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    q->module = &keeper;
    q->error = &error;
    if (fill_names(q))
        return q;
    ptx_arena_finish(&keeper.arena);
    keeper = (struct ptx_module){0};
    free(q);
    return NULL;
}

void ptx_names_give(struct ptx_parser *p)
{
    pthread_mutex_lock(&names_lock);
    if (!names)
        names = make_names();
    const struct ptx_parser *made = names;
    pthread_mutex_unlock(&names_lock);
    if (!made)
        ptx_parse_out_of_memory(p);
    p->type_names = made->type_names;
    p->mod_names = made->mod_names;
    p->sreg_names = made->sreg_names;
    p->insn_names = made->insn_names;
}
