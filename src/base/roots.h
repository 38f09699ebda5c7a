/* Memory straight from the kernel that holds the only pointers to allocated objects: the leak checker has to look there, too. */
#ifndef HR_BASE_ROOTS_H
#define HR_BASE_ROOTS_H

#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HR_ROOTS_CHECKED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HR_ROOTS_CHECKED 1
#endif

#ifdef HR_ROOTS_CHECKED
void __lsan_register_root_region(const void *p, size_t bytes);
#endif

static inline void hr_roots_add(const void *p, size_t bytes)
{
#ifdef HR_ROOTS_CHECKED
    __lsan_register_root_region(p, bytes);
#else
    (void)p;
    (void)bytes;
#endif
}

#endif
