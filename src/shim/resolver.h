/* What cuGetProcAddress hands out. */
#ifndef HR_SHIM_RESOLVER_H
#define HR_SHIM_RESOLVER_H

#include "shim/shim.h"

/*
 * What to hand out for a look-up that the real driver answered with the address `real`: the body of the hook of that exact
 * function, or real itself for functions that need no hook. The function is the one whose slot holds the address; where the
 * driver's cuGetProcAddress returns other addresses than dlsym, or one for several functions, name, version and flags decide.
 */
void *hr_resolver_map(const char *name, int cuda_version, cuuint64_t flags, void *real) HR_HIDDEN;

/*
 * Whether the look-up, which the driver answered with `real`, means a function that is newer than our table and could name memory of a window
 * (hooks/later.def): it is answered as by a driver that lacks the function. Locks: none; asks the driver for such names.
 */
bool hr_resolver_withholds(const char *name, int cuda_version, cuuint64_t flags, const void *real) HR_HIDDEN;

/*
 * A look-up without the real driver's cuGetProcAddress (older than 11.3), by the table of versions: the newest form not newer than
 * cuda_version that this driver has. *address_out is NULL unless SUCCESS is returned.
 */
CUdriverProcAddressQueryResult hr_resolver_find(const char *name, int cuda_version, cuuint64_t flags,
                                                void **address_out) HR_HIDDEN;

/* Whether the driver knows any form of the name in any version: what tells 'not found' from 'version not sufficient'. */
bool hr_resolver_knows(const char *name) HR_HIDDEN;

#endif
