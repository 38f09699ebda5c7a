/*
 * Which kernel of which image a function is, for drivers that do not tell the parameters of kernels (before 12.4). Nothing is kept with others.
 */
#ifndef HR_RESIDENCY_LAYOUT_H
#define HR_RESIDENCY_LAYOUT_H

#include "residency/params.h"

/* Whether this driver needs it. */
bool hr_layout_matters(void);

/* A module or library (`code`) was made of the image; what cannot be read is not known. Locks, here and below: HR_RANK_REGISTRY. */
void hr_layout_loaded(void *code, const void *image);
/* The same of a file. */
void hr_layout_loaded_file(void *code, const char *path);
/* `module` is the library's code by another handle. */
void hr_layout_same_code(void *library, void *module);
/* A function (or CUkernel) is the code's kernel of that name. */
void hr_layout_named(void *code, const char *name, CUfunction function);
/* `function` is the kernel by another handle. */
void hr_layout_same(CUfunction kernel, CUfunction function);
/* The code is gone, with its functions. */
void hr_layout_unloaded(void *code);

/* A new copy of the function's layout, which the caller owns; NULL: not known, or no memory. */
struct hr_params *hr_layout_copy(CUfunction function);

#endif
