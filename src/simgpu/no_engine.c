/* Stands in for the PTX engine in a build that has none: no module can be loaded, so nothing else is ever called. */
#include "simgpu/ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>

int ptx_module_parse(const char *text, size_t text_bytes, struct ptx_module **module_out, struct ptx_error *error)
{
    (void)text, (void)text_bytes, (void)module_out;
    snprintf(error->text, sizeof error->text, "this build has no PTX engine");
    return -1;
}
void ptx_module_destroy(struct ptx_module *module)
{
    if (module)
        abort();
}
unsigned ptx_module_target(const struct ptx_module *module)
{
    (void)module;
    abort();
}
size_t ptx_module_code_bytes(const struct ptx_module *module)
{
    (void)module;
    abort();
}
size_t ptx_module_function_count(const struct ptx_module *module)
{
    (void)module;
    abort();
}
struct ptx_function *ptx_module_function_at(struct ptx_module *module, size_t index)
{
    (void)module, (void)index;
    abort();
}
const struct ptx_function_info *ptx_function_info(const struct ptx_function *function)
{
    (void)function;
    abort();
}
size_t ptx_module_global_count(const struct ptx_module *module)
{
    (void)module;
    abort();
}
struct ptx_global *ptx_module_global_at(struct ptx_module *module, size_t index)
{
    (void)module, (void)index;
    abort();
}
int ptx_module_link(struct ptx_module *module, struct ptx_error *error)
{
    (void)module, (void)error;
    abort();
}
struct ptx_grid *ptx_grid_create(const struct ptx_grid_args *args)
{
    (void)args;
    abort();
}
void ptx_grid_destroy(struct ptx_grid *grid)
{
    (void)grid;
    abort();
}
enum ptx_progress ptx_grid_run(struct ptx_grid *grid, uint64_t warp_instructions)
{
    (void)grid, (void)warp_instructions;
    abort();
}
void ptx_grid_abort(struct ptx_grid *grid)
{
    (void)grid;
    abort();
}
const struct ptx_fault *ptx_grid_fault(const struct ptx_grid *grid)
{
    (void)grid;
    abort();
}
const struct ptx_counters *ptx_grid_counters(const struct ptx_grid *grid)
{
    (void)grid;
    abort();
}
