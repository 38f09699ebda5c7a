/* Tests of whole programs: the test program starts itself anew with a scene's name in SIM_SCENE, and the scene's return value
 * becomes the exit status. */
#ifndef SIM_SCENE_H
#define SIM_SCENE_H

#include "sim_test.h"
#include "support/spawn.h"

#include <stdio.h>
#include <unistd.h>

/* Plays `setting` ("SIM_SCENE=name") with more environment. */
static inline struct hr_test_result play(const char *setting, const char *const *env)
{
    static char self[4096];
    const char *all[12] = {setting};
    int n = 1;
    while (env && *env && n < 11)
        all[n++] = *env++;
    cr_assert_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    const char *const argv[] = {self, NULL};
    return hr_test_run(argv, all);
}

static inline char *slurp(const char *path)
{
    static char text[16384];
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* The sum over all GPUs of a number in a report. */
static inline long long reported(const char *report, const char *name)
{
    char key[64];
    long long sum = 0;
    snprintf(key, sizeof key, "\"%s\":", name);
    cr_assert_not_null(strstr(report, key), "%s", name);
    for (const char *at = report; (at = strstr(at, key)); at += strlen(key))
        sum += strtoll(at + strlen(key), NULL, 10);
    return sum;
}

/* In a scene nothing of the framework is to be had. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        CUresult must_ = (call);                                                                                       \
        if (must_) {                                                                                                   \
            fprintf(stderr, "line %d: %s gave %d\n", __LINE__, #call, (int)must_);                                     \
            exit(90);                                                                                                  \
        }                                                                                                              \
    } while (0)

struct scene {
    const char *name;
    int (*play)(void);
};

#define SCENES(...)                                                                                                    \
    static const struct scene scenes[] = {__VA_ARGS__};                                                                \
    __attribute__((constructor)) static void maybe_play(void)                                                          \
    {                                                                                                                  \
        const char *name = getenv("SIM_SCENE");                                                                        \
        for (size_t i = 0; name && i < sizeof scenes / sizeof scenes[0]; i++)                                          \
            if (!strcmp(name, scenes[i].name))                                                                         \
                exit(scenes[i].play());                                                                                \
    }

#endif
