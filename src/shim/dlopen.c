/*
 * Which file a dlopen of the job leads to. `libcuda.so`, `libcuda.so.1` and any existing path of such a file lead to this library,
 * by its SONAME, provided that there is a real driver; everything else is left alone. A machine without a driver looks as without
 * us: the plain name would be found by SONAME, so a name is used that the loader cannot find.
 */
#include "shim/dlopen.h"

#include <string.h>
#include <unistd.h>

#include "driver/driver.h"

#define SONAME "libcuda.so.1"

/* libcuda.so, libcuda.so.1, libcuda.so.535.54.03; nothing that merely starts alike. */
static bool names_driver(const char *base)
{
    const char stem[] = "libcuda.so";
    if (strncmp(base, stem, sizeof stem - 1) != 0)
        return false;
    base += sizeof stem - 1;
    return *base == '\0' || (*base == '.' && base[1] != '\0' && strspn(base, ".0123456789") == strlen(base));
}

const char *hr_dlopen_lead(const char *file, int mode, const void *caller)
{
    (void)mode;
    if (file == NULL)
        return file;
    const char *slash = strrchr(file, '/');
    if (!names_driver(slash != NULL ? slash + 1 : file))
        return file;
    if (slash != NULL && access(file, F_OK) != 0)
        return file;
    if (!hr_driver_load())
        return slash == NULL && strcmp(file, SONAME) == 0 ? SONAME " (no CUDA driver on this machine)" : file;
    return hr_driver_holds(caller) ? hr_driver_path() : SONAME;
}
