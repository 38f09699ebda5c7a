/*
 * Memory straight from the kernel that holds the only pointers to allocated objects: the leak checker has to look there, too. It may be
 * the job's own (a program that is built with AddressSanitizer), so whether there is one is known when the library is loaded.
 */
#ifndef HR_BASE_ROOTS_H
#define HR_BASE_ROOTS_H

#include <stddef.h>

__attribute__((weak)) void __lsan_register_root_region(const void *p, size_t bytes);

static inline void hr_roots_add(const void *p, size_t bytes)
{
    if (__lsan_register_root_region != NULL)
        __lsan_register_root_region(p, bytes);
}

#endif
