/* cuGetProcAddress: names, versions and stream rules, from versions.def. Works before cuInit. */
#include "simgpu/sim.h"

#include <stdlib.h>
#include <string.h>

enum rule { NONE, PTSZ };

static const struct version {
    const char *name;
    int since;
    enum rule rule;
    const char *symbol;
} versions[] = {
#define SG_VERSION(name, since, rule, symbol) {#name, since, rule, #symbol},
#include "simgpu/versions.def"
#undef SG_VERSION
};

static int compare(const void *key, const void *symbol)
{
    return strcmp(key, ((const struct sg_symbol *)symbol)->name);
}

static void *address_of(const char *symbol)
{
    const struct sg_symbol *s = bsearch(symbol, sg_symbols, sg_symbol_count, sizeof sg_symbols[0], compare);
    return s ? s->asked : NULL;
}

/* The newest row of the name that `version` admits. */
static const struct version *find(const char *name, int version, enum rule rule, bool *known_out)
{
    const struct version *best = NULL;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const struct version *v = &versions[i];
        if (strcmp(v->name, name) != 0)
            continue;
        if (v->since > sg_driver_version)
            continue; /* a driver of that age does not know it */
        *known_out = true;
        if (v->rule == rule && v->since <= version && (!best || v->since >= best->since))
            best = v;
    }
    return best;
}

static CUresult look_up(const char *name, void **address, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    cuuint64_t both = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !address || (flags & ~both) || (flags & both) == both)
        return CUDA_ERROR_INVALID_VALUE;
    bool known = false;
    const struct version *found = NULL;
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        found = find(name, version, PTSZ, &known);
    if (!found)
        found = find(name, version, NONE, &known);
    *address = found ? address_of(found->symbol) : NULL;
    if (status)
        *status = *address ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                           : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    return look_up(symbol, pfn, version, flags, NULL);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUresult r = look_up(symbol, pfn, version, flags, status);
    /* With a status to tell the reason, not finding a name is no error. */
    return r == CUDA_ERROR_NOT_FOUND && status ? CUDA_SUCCESS : r;
}
