/* A launch as the launch functions tell it, and which function a handle means. */
#ifndef SG_LAUNCH_H
#define SG_LAUNCH_H

#include "simgpu/sim.h"

struct sg_launch {
    CUfunction function; /* or a CUkernel */
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void **params, **extra;
    bool cooperative;
    CUevent after[2];        /* recorded behind the kernel; NULL = none */
    bool keeps_legacy_state; /* see legacy.c */
    bool programmatic;       /* it need not wait for the end of the kernel before it */
    const CUlaunchAttribute *attributes;
    unsigned attribute_count;
};

/* Checks and submits. `api` is the name that SIMGPU_FAIL knows. */
CUresult sg_launch(const char *api, const struct sg_launch *launch, bool per_thread);
/* The two halves of it, for graphs; both need sg.lock. The first checks all limits and packs the parameters, which the caller
 * frees; the second makes the operation, with a copy of them. */
CUresult sg_launch_pack(const struct sg_launch *launch, const struct sg_function *function, uint8_t **packed_out);
CUresult sg_launch_op(const struct sg_launch *launch, struct sg_function *function, const uint8_t *packed,
                      struct sg_op **op_out);
/* Checks an attribute and enters it into the launch. INVALID_VALUE; NOT_SUPPORTED. */
CUresult sg_launch_attribute(const CUlaunchAttribute *attribute, struct sg_launch *launch);

/*
 * The function that a handle means in a context: itself, or for a CUkernel that context's copy, which is loaded now if it was
 * not. INVALID_HANDLE; what loading gives. Needs sg.lock and may release it: on success the context still lives, all else
 * that the caller had found must be found anew.
 */
CUresult sg_function_in(CUfunction handle, struct sg_context *context, struct sg_function **function_out);
/* sg_enter_context, then that. */
CUresult sg_enter_function(const char *api, CUfunction handle, struct sg_function **function_out);

/* What the function may have as dynamic shared memory: set on it, else on its kernel, else what every function has. */
int sg_function_dynamic_max(const struct sg_function *function);
int sg_function_carveout(const struct sg_function *function);

/* Attributes that functions and kernels share. INVALID_VALUE for unknown ones. */
struct sg_attributes {
    const struct ptx_function_info *info;
    unsigned target;
    int dynamic_shared_max, carveout;
};
CUresult sg_attribute_get(const struct sg_attributes *from, CUfunction_attribute attribute, int *value_out);
/* Stores into the one that the attribute names. */
CUresult sg_attribute_set(const struct ptx_function_info *info, CUfunction_attribute attribute, int value,
                          int *dynamic_shared_max, int *carveout);

/* What is set on a kernel for a device. */
int sg_entry_dynamic_max(const struct sg_entry *entry, int device);
int sg_entry_carveout(const struct sg_entry *entry, int device);

void sg_legacy_free(struct sg_function *function);

#endif
