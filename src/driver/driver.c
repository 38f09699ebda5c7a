/*
 * Loading needs no lock: every thread that finds the table unbound does the same work (the loader gives all of them the same
 * handle) and stores the same addresses. A lock held across dlopen could deadlock with the loader's own, which a job may hold when
 * it calls us from a constructor; and a driver whose constructor calls a driver function gets here again on the same thread.
 */
#include "driver/driver.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/loader.h"
#include "base/log.h"
#include "driver/find.h"

extern const char __ehdr_start[] HR_HIDDEN;
extern const char _end[] HR_HIDDEN;

/* Where every slot points at first: made by hooks/generate.py, in entries.S. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define HR_FUNCTION(name) extern __typeof__(name) hr_lazy_##name HR_HIDDEN;
#include "hr_functions.def"
#undef HR_FUNCTION
#pragma GCC diagnostic pop

struct hr_driver hr_drv = {
#define HR_FUNCTION(name) .name = hr_lazy_##name,
#include "hr_functions.def"
#undef HR_FUNCTION
};

/* The names as one block, so that no table of pointers has to be relocated in every process. */
struct names {
#define HR_FUNCTION(name) char name[sizeof #name];
#include "hr_functions.def"
#undef HR_FUNCTION
};
static const struct names names = {
#define HR_FUNCTION(name) #name,
#include "hr_functions.def"
#undef HR_FUNCTION
};
static const unsigned short name_offset[HR_FN_COUNT] = {
#define HR_FUNCTION(name) offsetof(struct names, name),
#include "hr_functions.def"
#undef HR_FUNCTION
};

enum { UNKNOWN, LOADED, NONE };
static _Atomic int state;
static _Atomic int version;
static char path_text[4096];
static _Atomic(const char *) path_of_driver;
_Atomic uintptr_t hr_driver_low, hr_driver_high;

typedef void *_Atomic slot __attribute__((may_alias));
_Static_assert(sizeof(struct hr_driver) == HR_FN_COUNT * sizeof(slot), "one slot a function");

static slot *slot_of(enum hr_function fn)
{
    return (slot *)&hr_drv + fn;
}

CUresult hr_driver_absent(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_driver(void)
{
    return CUDA_ERROR_NO_DEVICE;
}

/* Programs print these without looking at the result. */
static CUresult no_driver_string(CUresult error, const char **text_out)
{
    if (text_out != NULL)
        *text_out = error == CUDA_SUCCESS ? "no error" : "no CUDA driver was found";
    return CUDA_SUCCESS;
}

static CUresult no_driver_name(CUresult error, const char **text_out)
{
    if (text_out != NULL)
        *text_out = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_NO_DEVICE";
    return CUDA_SUCCESS;
}

const char *hr_driver_name(enum hr_function fn)
{
    return (const char *)&names + name_offset[fn];
}

enum hr_function hr_driver_find(const char *name)
{
    for (int fn = 0; fn < HR_FN_COUNT; fn++) {
        if (strcmp(hr_driver_name(fn), name) == 0)
            return fn;
    }
    return HR_FN_COUNT;
}

void *hr_driver_address(enum hr_function fn)
{
    if (atomic_load_explicit(&state, memory_order_acquire) != LOADED)
        return NULL;
    void *address = atomic_load_explicit(slot_of(fn), memory_order_relaxed);
    return address == (void *)hr_driver_absent ? NULL : address;
}

static bool is_ours(const void *address)
{
    return (const char *)address >= __ehdr_start && (const char *)address < _end;
}

struct extent {
    uintptr_t inside, low, high;
};

static int look_for_extent(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct extent *extent = arg, found = {extent->inside, UINTPTR_MAX, 0};
    bool holds = false;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD)
            continue;
        uintptr_t low = info->dlpi_addr + segment->p_vaddr, high = low + segment->p_memsz;
        holds |= extent->inside >= low && extent->inside < high;
        found.low = low < found.low ? low : found.low;
        found.high = high > found.high ? high : found.high;
    }
    if (holds)
        *extent = found;
    return holds;
}

/* Remember where the driver's file lies. Both ends are stored before the state says that there is a driver. */
static void note_extent(const void *inside)
{
    struct extent extent = {(uintptr_t)inside, 0, 0};
    if (dl_iterate_phdr(look_for_extent, &extent) == 0)
        return;
    atomic_store_explicit(&hr_driver_low, extent.low, memory_order_relaxed);
    atomic_store_explicit(&hr_driver_high, extent.high, memory_order_relaxed);
}

struct opened {
    void *handle;
    char path[sizeof path_text];
};

/* Open one candidate. Copies of this library are told by what they export: an inode says nothing about a copy. */
static bool try_candidate(const char *path, void *arg)
{
    struct opened *opened = arg;
    void *handle = hr_loader_open(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        hr_log(HR_LOG_DEBUG, "not the driver: %s", dlerror());
        return false;
    }
    void *init = hr_loader_find(handle, "cuInit");
    if (init == NULL || is_ours(init) || hr_loader_find(handle, "headroom_version") != NULL) {
        hr_log(HR_LOG_DEBUG, "not the driver: %s is %s", path, init == NULL ? "no libcuda" : "headroom");
        dlclose(handle);
        return false;
    }
    opened->handle = handle;
    snprintf(opened->path, sizeof opened->path, "%s", path);
    return true;
}

static void bind_all(void *handle)
{
    for (int fn = 0; fn < HR_FN_COUNT; fn++) {
        void *address = hr_loader_find(handle, hr_driver_name(fn));
        if (address == NULL || is_ours(address))
            address = (void *)hr_driver_absent;
        atomic_store_explicit(slot_of(fn), address, memory_order_relaxed);
    }
}

static void bind_none(void)
{
    for (int fn = 0; fn < HR_FN_COUNT; fn++)
        atomic_store_explicit(slot_of(fn), (void *)no_driver, memory_order_relaxed);
    atomic_store_explicit(slot_of(HR_FN_cuGetErrorString), (void *)no_driver_string, memory_order_relaxed);
    atomic_store_explicit(slot_of(HR_FN_cuGetErrorName), (void *)no_driver_name, memory_order_relaxed);
}

static bool load(void)
{
    struct opened opened = {NULL, ""};
    int unknown = UNKNOWN;
    if (!hr_find_driver(try_candidate, &opened)) {
        bind_none();
        if (atomic_compare_exchange_strong(&state, &unknown, NONE))
            hr_log(HR_LOG_INFO, "no CUDA driver on this machine");
        return false;
    }
    note_extent(hr_loader_find(opened.handle, "cuInit"));
    bind_all(opened.handle);
    int driver_version = 0;
    if (hr_drv.cuDriverGetVersion(&driver_version) == CUDA_SUCCESS)
        atomic_store_explicit(&version, driver_version, memory_order_relaxed);
    static atomic_flag path_taken = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&path_taken)) {
        memcpy(path_text, opened.path, sizeof path_text);
        atomic_store_explicit(&path_of_driver, path_text, memory_order_release);
        hr_log(HR_LOG_INFO, "CUDA driver %s, version %d", path_text, driver_version);
    }
    atomic_store_explicit(&state, LOADED, memory_order_release);
    dlerror(); /* functions that this driver lacks are nothing that the job's next dlerror should tell */
    return true;
}

bool hr_driver_load(void)
{
    int seen = atomic_load_explicit(&state, memory_order_acquire);
    if (__builtin_expect(seen == LOADED, 1))
        return true;
    return seen == UNKNOWN && load();
}

int hr_driver_version(void)
{
    return hr_driver_load() ? atomic_load_explicit(&version, memory_order_relaxed) : 0;
}

const char *hr_driver_path(void)
{
    const char *path = atomic_load_explicit(&path_of_driver, memory_order_acquire);
    return path != NULL ? path : "";
}
