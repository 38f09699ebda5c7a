#include "room.h"

#include "hr_hooks.h"
#include "residency/layout.h"
#include "residency/params.h"
#include "shim/shim.h"

/* Loading code takes VRAM behind the hooks. `loaded` tells what was loaded, for drivers that do not tell the parameters of its kernels. */
#define LOAD(loaded, real, ...)                                                                                        \
    do {                                                                                                               \
        CUresult r_;                                                                                                   \
        HR_CALL_WITH_ROOM(r_, HR_ROOM_FOR_CODE, real, __VA_ARGS__);                                                    \
        if (r_ == CUDA_SUCCESS)                                                                                        \
            loaded;                                                                                                    \
        return r_;                                                                                                     \
    } while (0)

HR_HOOK(cuModuleLoad)(CUmodule *module, const char *fname)
{
    HR_PASS(cuModuleLoad, module, fname);
    LOAD(hr_layout_loaded_file(*module, fname), cuModuleLoad, module, fname);
}
HR_HOOK(cuModuleLoadData)(CUmodule *module, const void *image)
{
    HR_PASS(cuModuleLoadData, module, image);
    LOAD(hr_layout_loaded(*module, image), cuModuleLoadData, module, image);
}
HR_HOOK(cuModuleLoadDataEx)
(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    HR_PASS(cuModuleLoadDataEx, module, image, numOptions, options, optionValues);
    LOAD(hr_layout_loaded(*module, image), cuModuleLoadDataEx, module, image, numOptions, options, optionValues);
}
HR_HOOK(cuModuleLoadFatBinary)(CUmodule *module, const void *fatCubin)
{
    HR_PASS(cuModuleLoadFatBinary, module, fatCubin);
    LOAD(hr_layout_loaded(*module, fatCubin), cuModuleLoadFatBinary, module, fatCubin);
}
HR_HOOK(cuLibraryLoadData)
(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues, unsigned int numJitOptions,
 CUlibraryOption *libraryOptions, void **libraryOptionValues, unsigned int numLibraryOptions)
{
    HR_PASS(cuLibraryLoadData, library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
            libraryOptionValues, numLibraryOptions);
    LOAD(hr_layout_loaded(*library, code), cuLibraryLoadData, library, code, jitOptions, jitOptionsValues,
         numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions);
}
HR_HOOK(cuLibraryLoadFromFile)
(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
 unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
 unsigned int numLibraryOptions)
{
    HR_PASS(cuLibraryLoadFromFile, library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
            libraryOptionValues, numLibraryOptions);
    LOAD(hr_layout_loaded_file(*library, fileName), cuLibraryLoadFromFile, library, fileName, jitOptions,
         jitOptionsValues, numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions);
}

/* Functions of an unloaded module may get their handles used again: what is known of parameter layouts is forgotten. */
HR_HOOK(cuModuleUnload)(CUmodule hmod)
{
    HR_PASS(cuModuleUnload, hmod);
    HR_INSIDE();
    struct hr_room room = hr_room_begin();
    CUresult r = hr_drv.cuModuleUnload(hmod);
    if (r == CUDA_SUCCESS)
        hr_layout_unloaded(hmod);
    hr_params_forget();
    return hr_room_end(&room, r);
}
HR_HOOK(cuLibraryUnload)(CUlibrary library)
{
    HR_PASS(cuLibraryUnload, library);
    HR_INSIDE();
    struct hr_room room = hr_room_begin();
    CUresult r = hr_drv.cuLibraryUnload(library);
    if (r == CUDA_SUCCESS)
        hr_layout_unloaded(library);
    hr_params_forget();
    return hr_room_end(&room, r);
}

/* A CUkernel may be launched in place of a CUfunction; its parameters are asked for by another call. */
HR_HOOK(cuLibraryGetKernel)(CUkernel *pKernel, CUlibrary library, const char *name)
{
    HR_PASS(cuLibraryGetKernel, pKernel, library, name);
    HR_INSIDE();
    CUresult r = hr_drv.cuLibraryGetKernel(pKernel, library, name);
    if (r == CUDA_SUCCESS) {
        hr_params_note_kernel(*pKernel);
        hr_layout_named(library, name, (CUfunction)*pKernel);
    }
    return r;
}
HR_HOOK(cuKernelGetFunction)(CUfunction *pFunc, CUkernel kernel)
{
    HR_PASS(cuKernelGetFunction, pFunc, kernel);
    HR_INSIDE();
    CUresult r = hr_drv.cuKernelGetFunction(pFunc, kernel);
    if (r == CUDA_SUCCESS)
        hr_layout_same((CUfunction)kernel, *pFunc);
    return r;
}
HR_HOOK(cuLibraryGetModule)(CUmodule *pMod, CUlibrary library)
{
    HR_PASS(cuLibraryGetModule, pMod, library);
    HR_INSIDE();
    CUresult r = hr_drv.cuLibraryGetModule(pMod, library);
    if (r == CUDA_SUCCESS)
        hr_layout_same_code(library, *pMod);
    return r;
}
HR_HOOK(cuModuleGetFunction)(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    HR_PASS(cuModuleGetFunction, hfunc, hmod, name);
    HR_INSIDE();
    CUresult r = hr_drv.cuModuleGetFunction(hfunc, hmod, name);
    if (r == CUDA_SUCCESS)
        hr_layout_named(hmod, name, *hfunc);
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
