/*
 * Which file a dlopen of the job leads to. `libcuda.so`, `libcuda.so.1`, NVML's names and any existing path of such a file lead to this library,
 * by its SONAME, provided that there is a real driver (and NVML); everything else is left alone. A machine without a driver looks as without
 * us: the plain name would be found by SONAME, so a name is used that the loader cannot find.
 */
#include "shim/dlopen.h"

#include <string.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/nvml.h"

#define SONAME "libcuda.so.1"

/* STEM, STEM.1, STEM.535.54.03; nothing that merely starts alike. */
static bool names(const char *base, const char *stem)
{
    if (strncmp(base, stem, strlen(stem)) != 0)
        return false;
    base += strlen(stem);
    return *base == '\0' || (*base == '.' && base[1] != '\0' && strspn(base, ".0123456789") == strlen(base));
}

const char *hr_dlopen_lead(const char *file, int mode, const void *caller)
{
    (void)mode;
    if (file == NULL)
        return file;
    const char *slash = strrchr(file, '/'), *base = slash != NULL ? slash + 1 : file;
    bool nvml = names(base, "libnvidia-ml.so");
    if (!nvml && !names(base, "libcuda.so"))
        return file;
    if (slash != NULL && access(file, F_OK) != 0)
        return file;
    if (nvml) /* where there is a driver: without one there is nothing that NVML would have to agree with */
        return hr_driver_load() && !hr_driver_holds(caller) && hr_nvml_library() != NULL ? SONAME : file;
    if (!hr_driver_load())
        return slash == NULL && strcmp(file, SONAME) == 0 ? SONAME " (no CUDA driver on this machine)" : file;
    return hr_driver_holds(caller) ? hr_driver_path() : SONAME;
}
