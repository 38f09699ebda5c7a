#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/params.h"
#include "shim/shim.h"

/*
 * Loading code takes VRAM behind the hooks: what it took is measured and lowers what the window may use. Where there is not
 * enough, some of ours is moved out and the load is tried once more.
 */

#define ROOM_FOR_CODE ((size_t)16 << 20)

struct load {
    struct hr_context *context;
    size_t free_before;
    size_t held_bytes;
};

static struct load begin(void)
{
    struct load load = {hr_context_current(), 0, 0};
    if (load.context)
        load.free_before = hr_gpu_free_beside_ours(load.context->gpu);
    return load;
}

/* Whether the load should be tried again: there is more room now, which nobody else takes until end(). */
static bool make_room(struct load *load, CUresult r)
{
    if (r != CUDA_ERROR_OUT_OF_MEMORY || !load->context)
        return false;
    load->held_bytes = ROOM_FOR_CODE;
    hr_gpu_hold(load->context->gpu, load->held_bytes, true);
    hr_access_release_vram(hr_thread_self(), load->context->gpu, ROOM_FOR_CODE);
    return true;
}

static CUresult end(const struct load *load, CUresult r)
{
    if (load->held_bytes > 0)
        hr_gpu_hold(load->context->gpu, load->held_bytes, false);
    if (r == CUDA_SUCCESS && load->context)
        hr_gpu_charge_overhead(load->context->gpu, load->free_before, hr_gpu_free_beside_ours(load->context->gpu));
    return r;
}

/* real(...) once, and again where room could be made; then accounts. */
#define LOAD(real, ...)                                                                                                \
    do {                                                                                                               \
        HR_INSIDE();                                                                                                   \
        struct load load = begin();                                                                                    \
        CUresult r = hr_drv.real(__VA_ARGS__);                                                                         \
        if (make_room(&load, r)) {                                                                                     \
            load.free_before = hr_gpu_free_beside_ours(load.context->gpu);                                             \
            r = hr_drv.real(__VA_ARGS__);                                                                              \
        }                                                                                                              \
        return end(&load, r);                                                                                          \
    } while (0)

HR_HOOK(cuModuleLoad)(CUmodule *module, const char *fname)
{
    HR_PASS(cuModuleLoad, module, fname);
    LOAD(cuModuleLoad, module, fname);
}
HR_HOOK(cuModuleLoadData)(CUmodule *module, const void *image)
{
    HR_PASS(cuModuleLoadData, module, image);
    LOAD(cuModuleLoadData, module, image);
}
HR_HOOK(cuModuleLoadDataEx)
(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    HR_PASS(cuModuleLoadDataEx, module, image, numOptions, options, optionValues);
    LOAD(cuModuleLoadDataEx, module, image, numOptions, options, optionValues);
}
HR_HOOK(cuModuleLoadFatBinary)(CUmodule *module, const void *fatCubin)
{
    HR_PASS(cuModuleLoadFatBinary, module, fatCubin);
    LOAD(cuModuleLoadFatBinary, module, fatCubin);
}
HR_HOOK(cuLibraryLoadData)
(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues, unsigned int numJitOptions,
 CUlibraryOption *libraryOptions, void **libraryOptionValues, unsigned int numLibraryOptions)
{
    HR_PASS(cuLibraryLoadData, library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
            libraryOptionValues, numLibraryOptions);
    LOAD(cuLibraryLoadData, library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
         libraryOptionValues, numLibraryOptions);
}
HR_HOOK(cuLibraryLoadFromFile)
(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
 unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
 unsigned int numLibraryOptions)
{
    HR_PASS(cuLibraryLoadFromFile, library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
            libraryOptionValues, numLibraryOptions);
    LOAD(cuLibraryLoadFromFile, library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
         libraryOptionValues, numLibraryOptions);
}

/* Functions of an unloaded module may get their handles used again: what is known of parameter layouts is forgotten. */
HR_HOOK(cuModuleUnload)(CUmodule hmod)
{
    HR_PASS(cuModuleUnload, hmod);
    HR_INSIDE();
    struct load load = begin();
    CUresult r = hr_drv.cuModuleUnload(hmod);
    hr_params_forget();
    return end(&load, r);
}
HR_HOOK(cuLibraryUnload)(CUlibrary library)
{
    HR_PASS(cuLibraryUnload, library);
    HR_INSIDE();
    struct load load = begin();
    CUresult r = hr_drv.cuLibraryUnload(library);
    hr_params_forget();
    return end(&load, r);
}

/* A CUkernel may be launched in place of a CUfunction; its parameters are asked for by another call. */
HR_HOOK(cuLibraryGetKernel)(CUkernel *pKernel, CUlibrary library, const char *name)
{
    HR_PASS(cuLibraryGetKernel, pKernel, library, name);
    HR_INSIDE();
    CUresult r = hr_drv.cuLibraryGetKernel(pKernel, library, name);
    if (r == CUDA_SUCCESS)
        hr_params_note_kernel(*pKernel);
    return r;
}
HR_HOOK(cuLibraryEnumerateKernels)(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    HR_PASS(cuLibraryEnumerateKernels, kernels, numKernels, lib);
    HR_INSIDE();
    CUresult r = hr_drv.cuLibraryEnumerateKernels(kernels, numKernels, lib);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < numKernels; i++)
        if (kernels[i])
            hr_params_note_kernel(kernels[i]);
    return r;
}
