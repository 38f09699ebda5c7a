/*
 * The dynamic loader's real dlopen. This library exports a dlopen of its own, so its own code opens files through here.
 */
#ifndef HR_BASE_LOADER_H
#define HR_BASE_LOADER_H

/*
 * As dlsym of the C library, also where a tool has put another one in its place: what this library looks up is for itself, and a tool that
 * hands out functions of its own would be called by us, and we by it. Locks: the loader's.
 */
void *hr_loader_find(void *handle, const char *name);

/* As dlopen of the C library. Never led to this library. NULL with dlerror() set on failure. Locks: the loader's. */
void *hr_loader_open(const char *path, int mode);

/* Address of the C library's dlopen; never NULL in a process that can load this library. */
void *hr_loader_real_dlopen(void);

#endif
