/*
 * Look-ups through cuGetProcAddress as CUDA's runtime makes them: every name, at every version at which something changes, with
 * every flag, compared with what the driver itself says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load_client.h"

enum kind { HOOK, REFUSE, EXEMPT };
static const struct {
    const char *name;
    enum kind kind;
} routes[] = {
#define HR_ROUTE(name, kind) {#name, kind},
#include "hr_hooks.h"
#undef HR_ROUTE
};

static const struct {
    const char *base;
    int since, per_thread;
    const char *function;
} forms[] = {
#define VERSION(base, version, per_thread, function) {#base, version, per_thread, #function},
#include "hooks/versions.def"
#undef VERSION
};

typedef int (*look_up_function)(const char *, void **, int, unsigned long long, int *);

static enum kind kind_of(const char *function)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(routes[i].name, function) == 0)
            return routes[i].kind;
    }
    fail("%s has no row", function);
}

/* Call it with nothing and see which function of the driver is reached. */
static const char *reached_by(void *address)
{
    int (*function)(long, long, long, long, long, long, long, long, long, long, long, long) =
        (int (*)(long, long, long, long, long, long, long, long, long, long, long, long))address;
    function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return fake->last();
}

/* Functions that do something else when called with nothing. */
static bool may_call(const char *function)
{
    static const char *const not [] = {"cuInit", "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetExportTable",
                                       "cuDriverGetVersion"};
    for (size_t i = 0; i < sizeof not / sizeof not [0]; i++) {
        if (strcmp(not [i], function) == 0)
            return false;
    }
    return true;
}

static void compare(look_up_function look_up, const char *name, int version, unsigned long long flags, bool tell_apart)
{
    void *mine = (void *)-1, *real = NULL;
    int status = -1, real_status = -1;
    int r = look_up(name, &mine, version, flags, &status);
    int real_r = fake->look_up(name, &real, version, flags, &real_status);
    if (r != real_r || (r == 0 && status != real_status))
        fail("%s %d %llu: %d status %d, the driver says %d status %d", name, version, flags, r, status, real_r,
             real_status);
    if (real_r != 0)
        return;
    if ((mine == NULL) != (real == NULL))
        fail("%s %d %llu: %s", name, version, flags, mine == NULL ? "lost" : "offered though the driver lacks it");
    if (real == NULL || strcmp(name, "cuGetProcAddress") == 0)
        return;
    const char *function = fake->found();
    enum kind kind = kind_of(function);
    if (kind == EXEMPT ? mine != real : !is_ours(mine))
        fail("%s %d %llu: %s is %s", name, version, flags, function, kind == EXEMPT ? "captured" : "not ours");
    if (tell_apart && may_call(function) && strcmp(reached_by(mine), function) != 0)
        fail("%s %d %llu: leads to %s, not %s", name, version, flags, fake->last(), function);
}

void check_lookups(void)
{
    look_up_function look_up = (look_up_function)find("cuGetProcAddress_v2");
    bool tell_apart = getenv("TEST_ONE_ADDRESS") == NULL;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const int at[] = {forms[i].since, forms[i].since - 10, 11040, 12000, 13000};
        for (size_t v = 0; v < sizeof at / sizeof at[0]; v++) {
            for (unsigned long long flags = 0; flags <= 2; flags++)
                compare(look_up, forms[i].base, at[v], flags, tell_apart);
        }
    }
    compare(look_up, "cuNoSuchFunction", 12000, 0, false);
}

/* The runtime asks for cuGetProcAddress by name and uses the answer from then on: five arguments since 12000, four before. */
void check_self(void)
{
    const long untouched = 0x5a5a5a5a;
    look_up_function look_up = (look_up_function)find("cuGetProcAddress_v2");
    void *self = NULL;
    struct {
        int status;
        int behind;
    } place = {-1, (int)untouched};
    if (look_up("cuGetProcAddress", &self, 12000, 0, &place.status) != 0 || place.status != 0 || !is_ours(self))
        fail("cuGetProcAddress at 12000 is not ours");
    void *function = NULL;
    place.status = -1;
    if (((look_up_function)self)("cuMemAlloc", &function, 12000, 0, &place.status) != 0 || place.status != 0 ||
        !is_ours(function))
        fail("the answer for 12000 does not take five arguments");
    place.status = -1;
    if (((look_up_function)self)("cuNoSuchFunction", &function, 12000, 0, &place.status) != 0 || place.status != 1 ||
        function != NULL)
        fail("the answer for 12000 does not say that a name is unknown");
    if (look_up("cuGetProcAddress", &self, 11030, 0, &place.status) != 0 || !is_ours(self))
        fail("cuGetProcAddress at 11030 is not ours");
    int (*four)(const char *, void **, int, unsigned long long, void *) =
        (int (*)(const char *, void **, int, unsigned long long, void *))self;
    /* A four-argument callee must not look at what happens to be in the fifth place. */
    if (four("cuMemAlloc", &function, 11040, 0, (void *)untouched) != 0 || !is_ours(function))
        fail("the answer for 11030 does not take four arguments");
    if (four("cuNoSuchFunction", &function, 11040, 0, (void *)untouched) != 500)
        fail("the answer for 11030 does not say that a name is unknown");
    int (*old)(const char *, void **, int, unsigned long long) =
        (int (*)(const char *, void **, int, unsigned long long))find("cuGetProcAddress");
    if (old("cuMemAlloc", &function, 11040, 0) != 0 || !is_ours(function))
        fail("the exported cuGetProcAddress does not answer");
}

void check_alike(void)
{
    look_up_function look_up = (look_up_function)find("cuGetProcAddress_v2");
    static const char *const alike[] = {"cuMemAllocX", "cuMemAllo", "cuMemFreeHos", "cuMemcpyHtoDAsyncs", "cu", ""};
    void *function = NULL;
    int status;
    if (look_up("cuMemAllocExtra", &function, 11040, 0, &status) != 0 || function != fake->private_function)
        fail("cuMemAllocExtra, a function of the driver's own, is captured");
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        if (look_up(alike[i], &function, 11040, 0, &status) != 0 || function != NULL || status != 1)
            fail("%s is captured", alike[i]);
    }
}

/* Functions that are newer than the hook table: handed out as they are, or not at all. */
void check_later(void)
{
    enum later { PASS, WITHHOLD };
    static const struct {
        const char *function, *base;
        int since;
        enum later kind;
    } later[] = {
#define LATER(function, base, since, what, reason) {#function, #base, since, what},
#include "hooks/later.def"
#undef LATER
    };
    look_up_function look_up = (look_up_function)find("cuGetProcAddress_v2");
    int offered = 0, version = 0;
    ((int (*)(int *))find("cuDriverGetVersion"))(&version);
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        unsigned long long flags = strstr(later[i].function, "_ptsz") != NULL ? 2 : 0;
        void *mine = (void *)-1, *real = NULL;
        int status = -1, real_status = -1;
        int r = look_up(later[i].base, &mine, version, flags, &status);
        if (fake->look_up(later[i].base, &real, version, flags, &real_status) != 0 || r != 0)
            fail("%s: %d", later[i].base, r);
        bool has = real != NULL && strcmp(fake->found(), later[i].function) == 0;
        offered += has;
        if (has && later[i].kind == WITHHOLD ? mine != NULL || (status != 1 && status != 2)
            : has                            ? mine != real || status != 0
                                             : status != real_status || (mine == NULL) != (real == NULL))
            fail("%s of %d: %p status %d, the driver says %p status %d", later[i].base, version, mine, status, real,
                 real_status);
        if (look_up(later[i].base, &mine, 13000, flags, &status) != 0 ||
            fake->look_up(later[i].base, &real, 13000, flags, &real_status) != 0 || status != real_status)
            fail("%s of 13000: status %d, the driver says %d", later[i].base, status, real_status);
    }
    if (offered < (version >= 13050 ? 51 : 1))
        fail("the driver has only %d of the later functions", offered);
}
