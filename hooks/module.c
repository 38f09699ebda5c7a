#include "room.h"

#include "hr_hooks.h"
#include "residency/params.h"
#include "shim/shim.h"

/* Loading code takes VRAM behind the hooks. */
#define LOAD(real, ...) HR_WITH_ROOM(HR_ROOM_FOR_CODE, real, __VA_ARGS__)

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
    struct hr_room room = hr_room_begin();
    CUresult r = hr_drv.cuModuleUnload(hmod);
    hr_params_forget();
    return hr_room_end(&room, r);
}
HR_HOOK(cuLibraryUnload)(CUlibrary library)
{
    HR_PASS(cuLibraryUnload, library);
    HR_INSIDE();
    struct hr_room room = hr_room_begin();
    CUresult r = hr_drv.cuLibraryUnload(library);
    hr_params_forget();
    return hr_room_end(&room, r);
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
