#include "driver/find.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"

#define NAME "libcuda.so.1"
#define PATH_ROOM 4096

typedef bool (*attempt_function)(const char *path, void *arg);

static const char *const usual_folders[] = {
#if defined(__x86_64__)
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
#elif defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/aarch64-linux-gnu/nvidia",
#endif
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
    "/usr/local/cuda/compat",
};

static bool in_folder(const char *folder, size_t bytes, attempt_function attempt, void *arg)
{
    char path[PATH_ROOM];
    if (bytes == 0) { /* an empty entry of a search path is the working folder */
        folder = ".";
        bytes = 1;
    }
    if (bytes + sizeof "/" NAME > sizeof path || memchr(folder, '$', bytes) != NULL)
        return false;
    memcpy(path, folder, bytes);
    strcpy(path + bytes, "/" NAME);
    return access(path, F_OK) == 0 && attempt(path, arg);
}

static bool named_by_the_user(attempt_function attempt, void *arg)
{
    const char *named = hr_config()->driver;
    if (named[0] == '\0')
        return false;
    if (in_folder(named, strlen(named), attempt, arg) || (access(named, F_OK) == 0 && attempt(named, arg)))
        return true;
    hr_log_stderr("HEADROOM_DRIVER=%s is not a CUDA driver (the file or folder of a libcuda.so.1); searching", named);
    return false;
}

static bool in_search_path(attempt_function attempt, void *arg)
{
    const char *entry = getenv("LD_LIBRARY_PATH");
    if (entry == NULL || *entry == '\0')
        return false;
    for (;; entry++) {
        size_t bytes = strcspn(entry, ":;");
        if (in_folder(entry, bytes, attempt, arg))
            return true;
        entry += bytes;
        if (*entry == '\0')
            return false;
    }
}

/*
 * The layout of /etc/ld.so.cache as glibc's ldconfig writes it. Old: magic, count, entries of three words, strings. New: magic with
 * version, counts, padding, entries of 24 bytes, strings; string offsets count from the new header. The new one may follow the old.
 */
#define OLD_MAGIC "ld.so-1.7.0"
#define OLD_HEADER 16u
#define OLD_ENTRY 12u
#define NEW_MAGIC "glibc-ld.so.cache1.1"
#define NEW_HEADER 48u
#define NEW_ENTRY 24u

static uint32_t word_at(const char *bytes, size_t offset)
{
    uint32_t word;
    memcpy(&word, bytes + offset, sizeof word);
    return word;
}

/* A terminated string at offset, or NULL. */
static const char *string_at(const char *bytes, size_t count, size_t offset)
{
    return offset < count && memchr(bytes + offset, '\0', count - offset) != NULL ? bytes + offset : NULL;
}

bool hr_find_in_cache(const char *bytes, size_t count, attempt_function attempt, void *arg)
{
    if (count >= OLD_HEADER && memcmp(bytes, OLD_MAGIC, sizeof OLD_MAGIC - 1) == 0) {
        uint64_t skip = OLD_HEADER + (uint64_t)word_at(bytes, 12) * OLD_ENTRY;
        skip = (skip + 7) & ~UINT64_C(7);
        if (skip >= count)
            return false;
        bytes += skip;
        count -= (size_t)skip;
    }
    if (count < NEW_HEADER || memcmp(bytes, NEW_MAGIC, sizeof NEW_MAGIC - 1) != 0)
        return false;
    uint64_t entries = word_at(bytes, 20);
    if (entries > (count - NEW_HEADER) / NEW_ENTRY)
        return false;
    for (uint64_t i = 0; i < entries; i++) {
        size_t entry = NEW_HEADER + (size_t)i * NEW_ENTRY;
        const char *key = string_at(bytes, count, word_at(bytes, entry + 4));
        const char *path = string_at(bytes, count, word_at(bytes, entry + 8));
        if (key != NULL && path != NULL && strcmp(key, NAME) == 0 && attempt(path, arg))
            return true;
    }
    return false;
}

static bool in_loader_cache(attempt_function attempt, void *arg)
{
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    off_t count = lseek(fd, 0, SEEK_END);
    void *bytes = count > 0 ? mmap(NULL, (size_t)count, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (bytes == MAP_FAILED)
        return false;
    bool found = hr_find_in_cache(bytes, (size_t)count, attempt, arg);
    munmap(bytes, (size_t)count);
    return found;
}

static bool in_usual_folders(attempt_function attempt, void *arg)
{
    for (size_t i = 0; i < sizeof usual_folders / sizeof usual_folders[0]; i++) {
        if (in_folder(usual_folders[i], strlen(usual_folders[i]), attempt, arg))
            return true;
    }
    return false;
}

bool hr_find_driver(attempt_function attempt, void *arg)
{
    return named_by_the_user(attempt, arg) || in_search_path(attempt, arg) || in_loader_cache(attempt, arg) ||
           in_usual_folders(attempt, arg);
}
