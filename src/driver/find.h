/* Where the real libcuda.so.1 may lie. */
#ifndef HR_DRIVER_FIND_H
#define HR_DRIVER_FIND_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Calls attempt(path, arg) for every candidate until it returns true; false when none did. Order: HEADROOM_DRIVER (a file, or a
 * folder), the folders of LD_LIBRARY_PATH, the loader's cache, the usual folders. Paths need not exist. Locks: none.
 */
bool hr_find_driver(bool (*attempt)(const char *path, void *arg), void *arg);

/*
 * As the third step alone, for a cache file's bytes as ldconfig writes them (both formats): every path of libcuda.so.1 in it.
 * Whatever the bytes are, nothing outside them is read.
 */
bool hr_find_in_cache(const char *bytes, size_t count, bool (*attempt)(const char *path, void *arg), void *arg);

#endif
