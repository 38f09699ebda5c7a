#ifndef HR_TESTS_LOAD_CLIENT_H
#define HR_TESTS_LOAD_CLIENT_H

#include <stdarg.h>
#include <stdbool.h>

#include "fake.h"

#define WINDOW_ADDRESS 0x600000123000ul /* inside the windows of core_bare.c */

extern const struct fake_stats *fake;

/* Ends the program with this line on stderr. */
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* dlsym from the handle that dlopen("libcuda.so.1") gave; fails where it is missing. */
void *find(const char *name);
/* Whether the address lies in headroom's library. */
bool is_ours(const void *address);

/* load_lookups.c */
void check_lookups(void);
void check_self(void);
void check_alike(void);
void check_later(void);

#endif
