/* First half of a fake driver: included by what fake_driver.py writes, before its table. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

struct form {
    const char *base;
    int since, per_thread, index;
    void *address;
};

static int count[2048];
static int late_calls, main_is_over;
/* Of the calling thread. */
static _Thread_local int last_index = -1;
static _Thread_local long arguments[8];
static _Thread_local float float_argument;

static int note(int index, const long *args)
{
    __atomic_fetch_add(&count[index], 1, __ATOMIC_RELAXED);
    last_index = index;
    if (args != NULL)
        memcpy(arguments, args, sizeof arguments);
    if (main_is_over)
        late_calls++;
    return 0;
}

#define FAKE_FUNCTION(name)                                                                                            \
    int name(long a, long b, long c, long d, long e, long f, long g, long h)                                           \
    {                                                                                                                  \
        return note(I_##name, (long[]){a, b, c, d, e, f, g, h});                                                       \
    }

#if defined(__x86_64__)
#define FAKE_JUMP(name) "jmp " #name "@PLT"
#else
#define FAKE_JUMP(name) "b " #name
#endif

/* Hidden code with another address that does what the exported function does. */
#define FAKE_TRAMPOLINE(name)                                                                                          \
    int other_##name(void);                                                                                            \
    __asm__(".text\n.local other_" #name "\n other_" #name ": " FAKE_JUMP(name) "\n");

int fake_shared(void)
{
    return 0;
}

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuGetProcAddress(const char *name, void **address, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags, int *status);
int cuGetExportTable(const void **table, const void *id);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuDeviceGetCount(int *count);
int cuParamSetf(void *function, int offset, float value);
