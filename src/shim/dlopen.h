#ifndef HR_SHIM_DLOPEN_H
#define HR_SHIM_DLOPEN_H

/*
 * The name that a dlopen(file, mode) whose caller returns to `caller` has to open instead of file: file itself, or text that stays
 * valid. May load the real driver. Locks: none.
 */
const char *hr_dlopen_lead(const char *file, int mode, const void *caller);

#endif
