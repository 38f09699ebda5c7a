/* Modules, for the files that make or use them. All of this needs sg.lock. */
#ifndef SG_MODULE_H
#define SG_MODULE_H

#include "simgpu/image.h"

/* Makes a module of a context out of what was parsed, which it then owns, also on an error. Charges the context's device. */
CUresult sg_module_build(struct sg_context *context, struct ptx_module *ptx, struct sg_module **module_out,
                         struct ptx_error *error);
bool sg_module_is_busy(const struct sg_module *module); /* a kernel of it is queued or running */
/* The variable of that name; NOT_FOUND. Either output may be NULL. */
CUresult sg_module_global(const struct sg_module *module, const char *name, CUdeviceptr *dptr, size_t *bytes);

#endif
