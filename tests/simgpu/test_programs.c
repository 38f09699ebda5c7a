/*
 * Whole jobs, not linked to a driver themselves, so that each can be given another one: the library's variants (old drivers, one
 * that calls itself, one with other pointers), and jobs under headroom with everything undefined looked for.
 */
#include "support/spawn.h"

#include <criterion/criterion.h>
#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Needs 16 MiB of its GPU and little time. */
#define JOB "--layers", "20", "--width", "64", "--heads", "4", "--context", "8", "--batch", "1", "--steps", "1"
#define SMALL "SIMGPU=h200,vram=12M,host=400M"
#define LARGE "SIMGPU=h200,vram=64M,host=400M"

static const struct variant {
    const char *name;
    int version;
} variants[] = {{"calls", 13000}, {"pointers", 13000}, {"114", 11040}, {"118", 11080},
                {"122", 12020},   {"124", 12040},      {"129", 12090}};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* argv[0] on this driver; with or without headroom. */
static struct hr_test_result run(const char *const *argv, const char *driver, bool headroom, const char *machine,
                                 const char *more1, const char *more2)
{
    static char preload[4200], path[4200];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", headroom ? getenv("TEST_LIBRARY") : "");
    snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", driver);
    const char *env[] = {machine,
                         preload,
                         path,
                         "HEADROOM_STATS=off",
                         "HEADROOM_HOST=200M",
                         "HEADROOM_LOG=warn",
                         "SIMGPU_LOG=warn",
                         more1 ? more1 : "SIMGPU_CHECK",
                         more2 ? more2 : "SIMGPU_REPORT",
                         "HEADROOM_DRIVER",
                         NULL};
    return hr_test_run(argv, env);
}

static const char *variant_path(const struct variant *v, const char *file)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s%s", getenv("TEST_VARIANTS"), v->name, file);
    return path;
}

static void *open_variant(const struct variant *v)
{
    void *library = dlopen(variant_path(v, "/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(library, "%s: %s", v->name, dlerror());
    return library;
}

Test(variants, old_drivers_lack_what_came_later)
{
    static const struct {
        const char *name;
        int since;
    } functions[] = {{"cuMemMap", 10020},           {"cuGetProcAddress", 11030}, {"cuGetProcAddress_v2", 12000},
                     {"cuLibraryLoadData", 12000},  {"cuCtxGetId", 12000},       {"cuMemAdvise_v2", 12020},
                     {"cuFuncGetParamInfo", 12040}, {"cuGreenCtxGetId", 12090},  {"cuCtxSynchronize_v2", 13000},
                     {"cuMemAlloc_v2", 3020}};
    for (size_t i = 0; i < VARIANTS; i++) {
        void *library = open_variant(&variants[i]);
        CUresult (*version)(int *) = (CUresult(*)(int *))dlsym(library, "cuDriverGetVersion");
        int told = 0;
        cr_assert(version && !version(&told) && told == variants[i].version, "%s: %d", variants[i].name, told);
        for (size_t k = 0; k < sizeof functions / sizeof functions[0]; k++)
            cr_assert_eq(dlsym(library, functions[k].name) != NULL, functions[k].since <= told, "%s in %s",
                         functions[k].name, variants[i].name);
        CUresult (*ask)(const char *, void **, int, cuuint64_t) =
            (CUresult(*)(const char *, void **, int, cuuint64_t))dlsym(library, "cuGetProcAddress");
        void *found = NULL;
        cr_assert_eq(ask("cuMemAlloc", &found, 13000, 0), CUDA_SUCCESS);
        cr_assert_eq(found == dlsym(library, "cuMemAlloc_v2"), strcmp(variants[i].name, "pointers") != 0);
        cr_assert_eq(ask("cuCtxGetId", &found, 13000, 0), told < 12000 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
        dlclose(library);
    }
}

/* What the README says of drivers: on each a job may need more memory than there is. */
Test(variants, headroom_keeps_its_word_on_each, .timeout = 120)
{
    const char *const job[] = {getenv("TRAIN_GPT"), JOB, NULL}, *const runtime[] = {getenv("TEST_JOB"), NULL};
    struct hr_test_result reference = run(job, getenv("TEST_SIMGPU"), false, LARGE, NULL, NULL);
    cr_assert(WIFEXITED(reference.status) && WEXITSTATUS(reference.status) == 0, "%s", reference.err);
    for (size_t i = 0; i < VARIANTS; i++) {
        const struct variant *v = &variants[i];
        char driver[4200];
        snprintf(driver, sizeof driver, "%s", variant_path(v, ""));
        struct hr_test_result r = run(job, driver, false, SMALL, NULL, NULL);
        cr_assert(strstr(r.err, "CUDA_ERROR_OUT_OF_MEMORY"), "%s: %s", v->name, r.err);
        hr_test_result_finish(&r);
        r = run(job, driver, true, SMALL, NULL, NULL);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s: 0x%x: %s", v->name, (unsigned)r.status,
                  r.err);
        cr_assert_str_eq(r.out, reference.out, "%s", v->name);
        hr_test_result_finish(&r);
        if (v->version != 12020 && v->version != 13000)
            continue; /* those between are looked up in the same ways */
        r = run(runtime, driver, true, "SIMGPU=h200,vram=64M,host=400M", NULL, NULL);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 7, "%s: %s", v->name, r.err);
        cr_assert_str_empty(r.err, "%s: %s", v->name, r.err);
        hr_test_result_finish(&r);
    }
    hr_test_result_finish(&reference);
}

/* The job under headroom keeps moving memory while it runs; nothing that it or headroom does is undefined. */
Test(strict_job, nothing_is_undefined_in_the_main_job_under_headroom, .timeout = 120)
{
    static const char *const streams[] = {"1", "4"};
    for (size_t i = 0; i < 2; i++) {
        const char *const job[] = {getenv("TRAIN_GPT"), JOB, "--streams", streams[i], NULL};
        char file[64], text[16384];
        snprintf(file, sizeof file, "SIMGPU_REPORT=/tmp/simgpu-programs-%d.json", (int)getpid());
        struct hr_test_result r =
            run(job, getenv("TEST_SIMGPU"), true, SMALL, "SIMGPU_CHECK=host,redzone,deadlock", file);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
        FILE *f = fopen(strchr(file, '/'), "r");
        cr_assert_not_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        unlink(strchr(file, '/'));
        cr_assert_not_null(
            strstr(text, "\"findings\": {\"race\": 0, \"host_race\": 0, \"host_access\": 0, \"use_after_free\": 0, "
                         "\"use_after_unmap\": 0, \"use_before_map\": 0, \"missing_grant\": 0, "
                         "\"no_memory\": 0, \"red_zone\": 0, \"leak\": 0, \"deadlock\": 0}"),
            "%s\n%s", text, r.err);
        cr_assert_null(strstr(r.err, "simgpu: "), "%s", r.err);
        hr_test_result_finish(&r);
    }
}
