#include "shim/resolver.h"

#include <string.h>

#include "base/log.h"
#include "hr_hooks.h"

/* The CUDA version of hooks.def and exempt.def, whatever cuda.h this is built with. What came later stands in later.def. */
#define KNOWN_VERSION 13000

#define SELF_WITH_STATUS_SINCE 12000 /* cuGetProcAddress takes a fifth argument since then */

/* What each function is handed out as; NULL: the driver's own address. */
typedef void (*any_function)(void);
#define HR_TARGET_HOOK(name) (any_function) hk_##name
#define HR_TARGET_REFUSE(name) (any_function) rf_##name
#define HR_TARGET_EXEMPT(name) NULL

/* Cases, not a table: a table of addresses would have to be relocated in every process that loads us. */
static any_function target_of(int fn)
{
    switch (fn) {
#define HR_ROUTE(name, kind)                                                                                           \
    case HR_FN_##name:                                                                                                 \
        return HR_TARGET_##kind(name);
#include "hr_hooks.h"
#undef HR_ROUTE
    default: return NULL;
    }
}

struct form {
    unsigned short fn;
    unsigned short since; /* CUDA version */
    unsigned char base_bytes;
    unsigned char per_thread;
};

static const struct form forms[] = {
#define VERSION(base, version, per_thread, function) {HR_FN_##function, version, sizeof #base - 1, per_thread},
#include "hooks/versions.def"
#undef VERSION
};
enum { FORM_COUNT = sizeof forms / sizeof forms[0] };

/* The base name is the beginning of the function's own name. Whole names only: one that merely starts alike is another. */
static bool is_form_of(const struct form *form, const char *name, size_t name_bytes)
{
    return form->base_bytes == name_bytes && memcmp(hr_driver_name(form->fn), name, form->base_bytes) == 0;
}

bool hr_resolver_knows(const char *name)
{
    size_t name_bytes = strlen(name);
    for (const struct form *f = forms; f < forms + FORM_COUNT; f++) {
        if (is_form_of(f, name, name_bytes) && hr_driver_address(f->fn) != NULL)
            return true;
    }
    return false;
}

/*
 * The function that (name, version, flags) means, among those the driver has and, where `at` is not NULL, has at that address; -1 =
 * none. A per-thread form goes before the plain one where it is asked for.
 */
static int find_form(const char *name, int cuda_version, cuuint64_t flags, const void *at)
{
    const struct form *best = NULL;
    size_t name_bytes = strlen(name);
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    for (const struct form *f = forms; f < forms + FORM_COUNT; f++) {
        if (f->since > cuda_version || (f->per_thread && !per_thread) || !is_form_of(f, name, name_bytes))
            continue;
        const void *address = hr_driver_address(f->fn);
        if (address == NULL || (at != NULL && address != at))
            continue;
        if (best == NULL || f->per_thread > best->per_thread ||
            (f->per_thread == best->per_thread && f->since > best->since))
            best = f;
    }
    return best != NULL ? best->fn : -1;
}

CUdriverProcAddressQueryResult hr_resolver_find(const char *name, int cuda_version, cuuint64_t flags,
                                                void **address_out)
{
    int fn = find_form(name, cuda_version, flags, NULL);
    *address_out = fn >= 0 ? hr_driver_address(fn) : NULL;
    if (fn >= 0)
        return CU_GET_PROC_ADDRESS_SUCCESS;
    return hr_resolver_knows(name) ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

/* The one function of the table at that address: -1 = none, -2 = several. */
static int only_function_at(const void *address)
{
    int found = -1;
    for (int fn = 0; fn < HR_FN_COUNT; fn++) {
        if (hr_driver_address(fn) != address)
            continue;
        if (found != -1)
            return -2;
        found = fn;
    }
    return found;
}

/*
 * Whether a driver newer than our cuda.h means the same function as at the version of our table. If not, a newer form exists that no row knows,
 * with arguments that we cannot know either.
 */
static bool same_at_our_version(const char *name, cuuint64_t flags, const void *real)
{
    void *ours = NULL;
    CUdriverProcAddressQueryResult status;
    CUresult r = hr_drv.cuGetProcAddress_v2(name, &ours, KNOWN_VERSION, flags, &status);
    return r == CUDA_SUCCESS && ours == real;
}

/* The function that the look-up means, or -1: none that we know. */
static int function_meant(const char *name, int cuda_version, cuuint64_t flags, const void *real)
{
    int fn = find_form(name, cuda_version, flags, real);
    if (fn >= 0)
        return fn;
    fn = only_function_at(real); /* a form that the version does not suggest, or a name of the driver's own for it */
    if (fn >= 0)
        return fn;
    if (fn == -1) { /* the driver's addresses are not those of dlsym */
        fn = find_form(name, cuda_version, flags, NULL);
        if (fn >= 0 && cuda_version > KNOWN_VERSION && !same_at_our_version(name, flags, real)) {
            if (target_of(fn) != NULL)
                hr_log(HR_LOG_WARN, "%s of CUDA %d is newer than this version of headroom: not hooked", name,
                       cuda_version);
            return -1;
        }
    }
    if (fn < 0) /* asked for by its full name */
        fn = hr_driver_find(name);
    return fn < HR_FN_COUNT ? fn : -1;
}

static const struct {
    char function[40], base[40]; /* no pointers, which would have to be relocated in every process that loads us */
    int since;
} withheld[] = {
#define HR_LATER_PASS(function, base, since)
#define HR_LATER_WITHHOLD(function, base, since) {#function, #base, since},
#define LATER(function, base, since, what, reason) HR_LATER_##what(function, base, since)
#include "hooks/later.def"
#undef LATER
};

bool hr_resolver_withholds(const char *name, int cuda_version, cuuint64_t flags, const void *real)
{
    if (cuda_version <= KNOWN_VERSION)
        return false;
    for (size_t i = 0; i < sizeof withheld / sizeof withheld[0]; i++) {
        if (strcmp(withheld[i].function, name) == 0)
            return true;
        if (strcmp(withheld[i].base, name) == 0 && withheld[i].since <= cuda_version)
            /* where the driver is older than that form, the name still means one that we know */
            return !hr_resolver_knows(name) || !same_at_our_version(name, flags, real);
    }
    return false;
}

void *hr_resolver_map(const char *name, int cuda_version, cuuint64_t flags, void *real)
{
    if (strcmp(name, "cuGetProcAddress") == 0)
        return cuda_version >= SELF_WITH_STATUS_SINCE ? (void *)hk_cuGetProcAddress_v2 : (void *)hk_cuGetProcAddress;
    int fn = function_meant(name, cuda_version, flags, real);
    any_function target = target_of(fn);
    return target != NULL ? (void *)target : real;
}
