/*
 * Which words of a kernel's parameters are addresses of the windows: every 8-byte word of every parameter is looked at. Inline, for
 * launches do this each time.
 */
#ifndef HR_RESIDENCY_SCAN_H
#define HR_RESIDENCY_SCAN_H

#include <string.h>

#include "residency/params.h"
#include "residency/texture.h"
#include "space/space.h"
#include "tier/tier.h"

#define HR_SCAN_UNKNOWN_BYTES 4096 /* of parameters, of drivers that do not tell them (before 12.4) */

typedef void (*hr_scan_visit)(CUdeviceptr word, void *arg);

/*
 * Visits the words of a parameter that could be pointers: 8-byte aligned within the parameter buffer. A parameter whose place
 * or size is no multiple of 8 holds an address only where the job packed it, and there it may lie anywhere.
 */
static inline void hr_scan_param(const void *value, size_t offset, size_t size, hr_scan_visit visit, void *arg)
{
    size_t step = (offset | size) % 8 == 0 ? 8 : (offset | size) % 4 == 0 ? 4 : 1;
    for (size_t at = 0; at + 8 <= size; at += step) {
        CUdeviceptr word;
        memcpy(&word, (const char *)value + at, 8);
        CUdeviceptr named = hr_space_owns(word) ? word : hr_texture_address(word);
        if (named)
            visit(named, arg);
    }
}

/* The packed buffer of `extra`; false = none. */
static inline bool hr_scan_packed(void **extra, const void **buffer_out, size_t *bytes_out)
{
    *buffer_out = NULL;
    *bytes_out = 0;
    for (size_t i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END && i < 64; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer_out = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1])
            *bytes_out = *(const size_t *)extra[i + 1];
    }
    return *buffer_out != NULL;
}

struct hr_scan_visitor {
    hr_scan_visit visit;
    void *arg;
};
static inline bool hr_scan_allocation(CUdeviceptr address, void *arg)
{
    const struct hr_scan_visitor *visitor = arg;
    visitor->visit(address, visitor->arg);
    return true;
}
/* Visits everything, for a kernel that nothing is known of. */
static inline void hr_scan_everything(hr_scan_visit visit, void *arg)
{
    hr_space_each(NULL, hr_scan_allocation, &(struct hr_scan_visitor){visit, arg});
}

/* Nothing tells what the kernel names, and what is out is not there for it. */
static inline bool hr_scan_needs_everything(const struct hr_params *params)
{
    return __builtin_expect(!params->known, 0) && !hr_tier_host_mappable(0);
}

/* Of a launch with these parameters, given in either way. params NULL: nothing is known, and nothing visited. */
static inline void hr_scan_kernel(const struct hr_params *params, void **kernel_params, void **extra,
                                  hr_scan_visit visit, void *arg)
{
    const void *buffer;
    size_t bytes;
    if (!params)
        return;
    if (hr_scan_needs_everything(params)) {
        hr_scan_everything(visit, arg);
        return;
    }
    if (hr_scan_packed(extra, &buffer, &bytes)) {
        /* As far as the kernel has parameters: the job may call the buffer larger than it is. */
        if (!params->known)
            hr_scan_param(buffer, 0, bytes < HR_SCAN_UNKNOWN_BYTES ? bytes / 8 * 8 : HR_SCAN_UNKNOWN_BYTES, visit, arg);
        for (uint32_t i = 0; i < params->count; i++)
            if (bytes >= params->param[i].offset_bytes &&
                bytes - params->param[i].offset_bytes >= params->param[i].size_bytes)
                hr_scan_param((const char *)buffer + params->param[i].offset_bytes, params->param[i].offset_bytes,
                              params->param[i].size_bytes, visit, arg);
    }
    if (!kernel_params)
        return;
    for (uint32_t i = 0; i < params->count; i++)
        if (kernel_params[i] && params->param[i].size_bytes >= 8)
            hr_scan_param(kernel_params[i], params->param[i].offset_bytes, params->param[i].size_bytes, visit, arg);
}

#endif
