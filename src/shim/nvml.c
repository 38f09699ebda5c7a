#include "shim/nvml.h"

#include <dlfcn.h>
#include <stddef.h>

#include "base/loader.h"
#include "driver/nvml.h"

#define LIBRARY_NOT_FOUND 12
#define FUNCTION_NOT_FOUND 13

void *_Atomic hr_nvml_real[HR_NVML_COUNT];

/* The names as one block, as in driver.c. */
struct names {
#define NVML(name) char name[sizeof #name];
#define NVML_HOOK(name) NVML(name)
#include "nvml.def"
#undef NVML
};
static const struct names names = {
#define NVML(name) #name,
#include "nvml.def"
#undef NVML
};
static const unsigned short name_offset[HR_NVML_COUNT] = {
#define NVML(name) offsetof(struct names, name),
#include "nvml.def"
#undef NVML
};

static int absent(void)
{
    return FUNCTION_NOT_FOUND;
}
static int no_library(void)
{
    return LIBRARY_NOT_FOUND;
}
static const char *no_library_string(void)
{
    return "NVML was not found";
}

void hr_nvml_load(void)
{
    void *library = hr_nvml_library();
    for (unsigned fn = 0; fn < HR_NVML_COUNT; fn++) { /* several threads store the same */
        void *address = library ? hr_loader_find(library, (const char *)&names + name_offset[fn]) : NULL;
        if (!address)
            address = library                         ? (void *)absent
                      : fn == HR_NVML_nvmlErrorString ? (void *)no_library_string
                                                      : (void *)no_library;
        atomic_store_explicit(&hr_nvml_real[fn], address, memory_order_relaxed);
    }
    dlerror(); /* what an old NVML lacks is nothing that the job's next dlerror should tell */
}

void *hr_nvml_address(enum hr_nvml_function fn)
{
    void *address = atomic_load_explicit(&hr_nvml_real[fn], memory_order_relaxed);
    if (!address) {
        hr_nvml_load();
        address = atomic_load_explicit(&hr_nvml_real[fn], memory_order_relaxed);
    }
    return address;
}
