/* Calls of what simgpu exports about the node, for its tests. */
#ifndef SIM_NODE_CALL_H
#define SIM_NODE_CALL_H

#include "sim_test.h"
#include "simgpu/node.h"

#include <dlfcn.h>

#define NODE(name, ...) ((__typeof__(&name))node_call(#name))(__VA_ARGS__)

static inline void *node_call(const char *name)
{
    void *f = dlsym(RTLD_DEFAULT, name);
    cr_assert_not_null(f, "%s", name);
    return f;
}

#endif
