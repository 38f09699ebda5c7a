#include "fabric/pathcache.h"

#include "base/config.h"
#include "base/loader.h"
#include "driver/driver.h"
#include "fabric/sources.h"
#include "fabric/text.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HEAD "headroom paths 2\n"
#define MAX_BYTES (4u << 20)
#define MAX_KEPT (1u << 20) /* of other machines' lines */
#define MAX_LINE 256
#define WORDS 8

/* Good, corrupts, ...: as in enum hr_pair_state. "host" lines are about one GPU. */
static const char *const states[] = {"unproven", "good", "corrupts", "hangs", "fails"};

static bool is_simulated(void)
{
    void *driver = hr_loader_open(hr_driver_path(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    bool simulated = driver && hr_loader_find(driver, "sg_node_version");

    if (driver)
        dlclose(driver);
    dlerror();
    return simulated;
}

bool hr_pathcache_place(char *path_out, size_t bytes)
{
    const char *named = hr_config()->topo_cache, *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;

    if (strcmp(named, "off") == 0)
        return false;
    if (named[0])
        n = snprintf(path_out, bytes, "%s", named);
    else if (is_simulated())
        return false;
    else if (base && base[0] == '/')
        n = snprintf(path_out, bytes, "%s/headroom/paths", base);
    else if (home && home[0] == '/')
        n = snprintf(path_out, bytes, "%s/.cache/headroom/paths", home);
    return n > 0 && (size_t)n < bytes;
}

static uint64_t sum_of(const char *text, size_t bytes)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return sum;
}

/* The words of a line that ends with its own sum; false if they are not what was written. */
static bool split(const char *line, size_t length, char *copy, char *word[WORDS])
{
    char want[24], *rest;
    int count = 0;

    if (length >= MAX_LINE || length < 18 || line[length - 17] != ' ')
        return false;
    snprintf(want, sizeof want, "%016llx", (unsigned long long)sum_of(line, length - 17));
    if (memcmp(line + length - 16, want, 16) != 0)
        return false;
    memcpy(copy, line, length - 17);
    copy[length - 17] = 0;
    for (char *at = strtok_r(copy, " ", &rest); at && count < WORDS; at = strtok_r(NULL, " ", &rest))
        word[count++] = at;
    return count == WORDS;
}

static int gpu_of(const struct hr_discovery *discovery, const char *id)
{
    for (uint32_t i = 0; i < discovery->gpus; i++) {
        if (strcmp(discovery->gpu[i].id, id) == 0)
            return (int)i;
    }
    return -1;
}

/* path DRIVER FROM TO STATE MBPS START_NS SECONDS, or host DRIVER GPU - - TO_HOST_MBPS FROM_HOST_MBPS - */
static void take_line(struct hr_discovery *discovery, char *word[WORDS])
{
    uint64_t first, second, found_s;
    int from = gpu_of(discovery, word[2]);

    if (strcmp(word[1], discovery->driver) != 0 || from < 0 || !hr_text_unsigned(word[5], 0, 1000000000, &first) ||
        !hr_text_unsigned(word[6], 0, 1000000000, &second))
        return;
    if (strcmp(word[0], "host") == 0) {
        discovery->gpu[from].to_host_gbps = (double)first / 1000;
        discovery->gpu[from].from_host_gbps = (double)second / 1000;
        return;
    }
    int to = gpu_of(discovery, word[3]);
    for (uint8_t state = HR_PAIR_GOOD; to >= 0 && state < sizeof states / sizeof *states; state++) {
        if (strcmp(word[0], "path") != 0 || strcmp(word[4], states[state]) != 0 ||
            !hr_text_unsigned(word[7], 0, UINT64_MAX, &found_s))
            continue;
        struct hr_pair *pair = &discovery->pair[(uint32_t)from * discovery->gpus + (uint32_t)to];
        pair->state = state;
        pair->gbps = (double)first / 1000;
        pair->start_ns = (uint32_t)second;
        pair->found_s = found_s;
        pair->kept = true;
    }
}

/* The lines behind a head that is this version's; NULL otherwise. Frees with *text_out. */
static const char *lines_of(const char *path, char **text_out, const char **end_out)
{
    size_t bytes;

    *text_out = hr_source_read(path, MAX_BYTES, &bytes);
    if (!*text_out || strncmp(*text_out, HEAD, sizeof HEAD - 1) != 0)
        return NULL;
    *end_out = *text_out + bytes;
    return *text_out + sizeof HEAD - 1;
}

void hr_pathcache_read(const char *path, struct hr_discovery *discovery)
{
    char *text, copy[MAX_LINE], *word[WORDS];
    const char *end = NULL;

    for (const char *at = lines_of(path, &text, &end); at && at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            break; /* the last line broke off */
        if (split(at, (size_t)(stop - at), copy, word))
            take_line(discovery, word);
        at = stop + 1;
    }
    free(text);
}

static void add_line(struct hr_text *out, const char *line)
{
    hr_text_add(out, "%s %016llx\n", line, (unsigned long long)sum_of(line, strlen(line)));
}

static unsigned long long mbps(double gbps)
{
    return (unsigned long long)(gbps * 1000 + 0.5);
}

static void add_machine(struct hr_text *out, const struct hr_discovery *discovery)
{
    char line[MAX_LINE];

    for (uint32_t i = 0; i < discovery->gpus; i++) {
        const struct hr_discovered_gpu *gpu = &discovery->gpu[i];
        snprintf(line, sizeof line, "host %s %s - - %llu %llu -", discovery->driver, gpu->id, mbps(gpu->to_host_gbps),
                 mbps(gpu->from_host_gbps));
        if (gpu->to_host_gbps > 0)
            add_line(out, line);
        for (uint32_t j = 0; j < discovery->gpus; j++) {
            const struct hr_pair *pair = &discovery->pair[i * discovery->gpus + j];
            snprintf(line, sizeof line, "path %s %s %s %s %llu %u %llu", discovery->driver, gpu->id,
                     discovery->gpu[j].id, states[pair->state], mbps(pair->gbps), pair->start_ns,
                     (unsigned long long)pair->found_s);
            if (pair->state != HR_PAIR_UNPROVEN)
                add_line(out, line);
        }
    }
}

/* Whether a line is about GPUs that are here: it is written anew, or no longer true. */
static bool is_replaced(const struct hr_discovery *discovery, char *word[WORDS])
{
    return gpu_of(discovery, word[2]) >= 0 && (word[3][0] == '-' || gpu_of(discovery, word[3]) >= 0);
}

static void add_others(struct hr_text *out, const char *path, const struct hr_discovery *discovery)
{
    char *text, copy[MAX_LINE], *word[WORDS];
    const char *end = NULL;

    for (const char *at = lines_of(path, &text, &end); at && at < end && out->count < MAX_KEPT;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            break;
        if (split(at, (size_t)(stop - at), copy, word) && !is_replaced(discovery, word))
            hr_text_add(out, "%.*s\n", (int)(stop - at), at);
        at = stop + 1;
    }
    free(text);
}

static void make_folders(const char *path)
{
    char folder[PATH_MAX];

    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        mkdir(folder, 0700); /* where it fails opening the file will tell */
    }
}

static int write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno != EINTR)
            return -errno;
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Something else may be named on purpose (/dev/null), and must not be replaced. */
static bool is_no_file(const char *path)
{
    struct stat about;

    /* By number: the wrapper is of glibc 2.33. */
    return syscall(SYS_newfstatat, AT_FDCWD, path, &about, 0) == 0 && !S_ISREG(about.st_mode);
}

int hr_pathcache_write(const char *path, const struct hr_discovery *discovery)
{
    struct hr_text out = {0};
    char part[PATH_MAX];
    struct timespec now;

    if (is_no_file(path))
        return -EINVAL;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int n = snprintf(part, sizeof part, "%s.%ld.%ld", path, (long)getpid(), now.tv_nsec);
    if (n < 0 || (size_t)n >= sizeof part)
        return -ENAMETOOLONG;
    hr_text_add(&out, HEAD);
    add_others(&out, path, discovery);
    add_machine(&out, discovery);
    size_t bytes = out.count;
    char *text = hr_text_take(&out);
    if (!text)
        return -ENOMEM;
    make_folders(path);
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc = fd < 0 ? -errno : write_all(fd, text, bytes);
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(part, path) != 0)
        rc = -errno;
    if (rc != 0 && fd >= 0)
        unlink(part);
    free(text);
    return rc;
}
