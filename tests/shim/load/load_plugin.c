/* A library linked to the driver, with a RUNPATH to a folder where another library lies. */
#include <dlfcn.h>
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);

void *plugin_driver_function(void)
{
    return (void *)cuMemAlloc_v2;
}

int plugin_opens_private(void)
{
    return dlopen("libload_private.so", RTLD_NOW) != NULL;
}
