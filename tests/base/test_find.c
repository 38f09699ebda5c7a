/* The loader's cache is a file that anything may have written: nothing outside of it may be read. */
#include "driver/find.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct seen {
    unsigned count;
    char path[3][64];
};

static bool note(const char *path, void *arg)
{
    struct seen *seen = arg;
    if (seen->count < 3)
        strncpy(seen->path[seen->count], path, sizeof seen->path[0] - 1);
    seen->count++;
    return false;
}

static void put_word(char *bytes, size_t offset, uint32_t word)
{
    for (size_t i = 0; i < sizeof word; i++)
        bytes[offset + i] = ((char *)&word)[i];
}

/* A new-format cache with a library before, and two of the driver. Returns its size. */
static size_t write_new(char *bytes)
{
    static const char *const keys[] = {"libc.so.6", "libcuda.so.1", "libcuda.so.1", "libcuda.so.11"};
    static const char *const paths[] = {"/lib/libc.so.6", "/a/libcuda.so.1", "/b/libcuda.so.1", "/c/libcuda.so.11"};
    size_t at = 48 + 4 * 24;
    memset(bytes, 0, 1024);
    strcpy(bytes, "glibc-ld.so.cache1.1");
    put_word(bytes, 20, 4);
    for (size_t i = 0; i < 4; i++) {
        put_word(bytes, 48 + i * 24 + 4, (uint32_t)at);
        at += strlen(strcpy(bytes + at, keys[i])) + 1;
        put_word(bytes, 48 + i * 24 + 8, (uint32_t)at);
        at += strlen(strcpy(bytes + at, paths[i])) + 1;
    }
    return at;
}

/* Searched in a block of exactly that size, so that a sanitizer sees every byte too far. */
static struct seen search(const char *bytes, size_t count)
{
    struct seen seen = {0, {""}};
    char *exact = malloc(count + 1);
    cr_assert_not_null(exact);
    memcpy(exact + 1, bytes, count);
    hr_find_in_cache(exact + 1, count, note, &seen);
    free(exact);
    return seen;
}

Test(find, the_cache_names_every_driver_in_order)
{
    char bytes[1024];
    struct seen seen = search(bytes, write_new(bytes));
    cr_assert_eq(seen.count, 2);
    cr_assert_str_eq(seen.path[0], "/a/libcuda.so.1");
    cr_assert_str_eq(seen.path[1], "/b/libcuda.so.1");
}

Test(find, an_old_cache_may_stand_in_front)
{
    char bytes[2048] = "ld.so-1.7.0";
    put_word(bytes, 12, 3);
    size_t skip = (16 + 3 * 12 + 7) & ~7u;
    size_t count = write_new(bytes + skip);
    cr_assert_eq(search(bytes, skip + count).count, 2);
}

Test(find, a_damaged_cache_finds_less_and_reads_nothing_outside)
{
    char bytes[1024];
    size_t count = write_new(bytes);
    for (size_t cut = 0; cut < count; cut++)
        cr_assert_leq(search(bytes, cut).count, 2);
    for (unsigned seed = 1; seed <= 20000; seed++) {
        char broken[1024];
        memcpy(broken, bytes, sizeof broken);
        uint32_t state = seed * 2654435761u;
        for (int i = 0; i < 3; i++) {
            state = state * 1664525u + 1013904223u;
            broken[20 + (state >> 8) % (count - 20)] = (char)(state >> 24);
        }
        cr_assert_leq(search(broken, count).count, 4);
    }
    put_word(bytes, 20, UINT32_MAX);
    cr_assert_eq(search(bytes, count).count, 0);
}
