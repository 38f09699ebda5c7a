/* SIMGPU_REPORT: what the machine did, as JSON. Written at exit, and when a context fails (exit rewrites it). */
#include "simgpu/check.h"
#include "simgpu/fabric.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SCHEMA_VERSION 2

static bool expand(const char *pattern, char *path, size_t bytes)
{
    size_t n = 0;
    for (const char *p = pattern; *p; p++) {
        int used = p[0] == '%' && p[1] == 'p' ? snprintf(path + n, bytes - n, "%" PRIu64, sg.pid)
                                              : snprintf(path + n, bytes - n, "%c", *p);
        if (used < 0 || n + (size_t)used >= bytes)
            return false;
        n += (size_t)used;
        p += p[0] == '%' && p[1] == 'p';
    }
    return n > 0;
}

FILE *sg_report_open(const char *variable, const char *pattern, struct sg_report_file *file)
{
    struct stat at;
    if (!pattern[0])
        return NULL;
    if (!expand(pattern, file->path, sizeof file->path)) {
        sg_log(SG_LOG_ERROR, "%s: cannot write: the path is too long", variable);
        return NULL;
    }
    bool direct = !lstat(file->path, &at) && !S_ISREG(at.st_mode);
    snprintf(file->part, sizeof file->part, "%s%s", file->path, direct ? "" : ".part");
    FILE *f = fopen(file->part, "we");
    if (!f)
        sg_log(SG_LOG_ERROR, "%s: cannot write %s: %s", variable, file->part, strerror(errno));
    return f;
}

void sg_report_close(const char *variable, FILE *f, const struct sg_report_file *file)
{
    bool ok = !ferror(f);
    if (fclose(f) || !ok || (strcmp(file->part, file->path) != 0 && rename(file->part, file->path)))
        sg_log(SG_LOG_ERROR, "%s: cannot write %s: %s", variable, file->path, strerror(errno));
}

static void put_tiers(FILE *f, const char *name, const uint64_t *bytes)
{
    fprintf(f, "      \"%s\": {\"vram\": %" PRIu64 ", \"peer\": %" PRIu64 ", \"host\": %" PRIu64 "},\n", name,
            bytes[SG_TIER_VRAM], bytes[SG_TIER_PEER], bytes[SG_TIER_HOST]);
}

static void put_device(FILE *f, const struct sg_device *d, bool last)
{
    fprintf(f, "    {\n      \"index\": %d,\n      \"name\": \"%s\",\n", d->index, sg.config.model->name);
    fprintf(f, "      \"vram_bytes\": %" PRIu64 ",\n      \"peak_vram_bytes\": %" PRIu64 ",\n", sg.config.vram_bytes,
            d->peak_bytes);
    fprintf(f, "      \"vram_in_use_bytes\": %" PRIu64 ",\n      \"kernels\": %" PRIu64 ",\n", d->used_bytes,
            d->kernels);
    put_tiers(f, "kernel_read_bytes", d->read);
    put_tiers(f, "kernel_write_bytes", d->written);
    sg_time_report_gpu(f, d->index);
    fprintf(f, "      \"warp_instructions\": %" PRIu64 ",\n      \"flops\": %" PRIu64 ",\n", d->warp_instructions,
            d->flops);
    fprintf(f, "      \"double_flops\": %" PRIu64 ",\n      \"tensor_flops\": %" PRIu64 ",\n", d->double_flops,
            d->tensor_flops);
    fprintf(f,
            "      \"copied_bytes\": {\"h2d\": %" PRIu64 ", \"d2h\": %" PRIu64 ", \"d2d\": %" PRIu64
            ", \"p2p\": %" PRIu64 ", \"h2h\": %" PRIu64 "},\n",
            d->copied[SG_H2D], d->copied[SG_D2H], d->copied[SG_D2D], d->copied[SG_P2P], d->copied[SG_H2H]);
    fprintf(f, "      \"unmapped_in_flight\": %" PRIu64 ",\n      \"freed_in_flight\": %" PRIu64 ",\n",
            d->unmapped_in_flight, d->freed_in_flight);
    fprintf(f, "      \"maps\": %" PRIu64 ",\n      \"unmaps\": %" PRIu64 ",\n      \"set_accesses\": %" PRIu64 "\n",
            d->maps, d->unmaps, d->set_accesses);
    fprintf(f, "    }%s\n", last ? "" : ",");
}

void sg_report_write(void)
{
    struct sg_report_file file;
    FILE *f = sg_report_open("SIMGPU_REPORT", sg.config.report, &file);
    if (!f)
        return;
    fprintf(f, "{\n  \"schema\": %d,\n  \"pid\": %" PRIu64 ",\n  \"model\": \"%s\",\n  \"seed\": %" PRIu64 ",\n",
            SCHEMA_VERSION, sg.pid, sg.config.model->key, sg.config.seed);
    sg_time_report(f);
    fprintf(f,
            "  \"host_limit_bytes\": %" PRIu64 ",\n  \"peak_host_bytes\": %" PRIu64
            ",\n  \"host_in_use_bytes\": %" PRIu64 ",\n",
            sg.config.host_bytes, sg.host_peak_bytes, sg.host_used_bytes);
    sg_check_report(f);
    if (sg.config.replay)
        sg_replay_report(f);
    if (sg.config.topology) {
        fprintf(f, "  \"machine\": \"%s\",\n", sg.config.topology->key);
        sg_links_report(f);
    }
    fprintf(f, "  \"gpus\": [\n");
    for (int i = 0; i < sg.device_count; i++)
        put_device(f, &sg.devices[i], i == sg.device_count - 1);
    fprintf(f, "  ]\n}\n");
    sg_report_close("SIMGPU_REPORT", f, &file);
}

/* Other threads may still run kernels; nothing is torn down. The deadline is for a process that ends in the middle of a call. */
__attribute__((destructor)) static void at_exit(void)
{
    if (!atomic_load(&sg.ready) || atomic_load(&sg.forked))
        return;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 1;
    if (pthread_mutex_timedlock(&sg.lock, &deadline))
        return;
    if (sg_check.leak)
        sg_leak_report();
    sg_report_write();
    sg_timeline_write();
    pthread_mutex_unlock(&sg.lock);
}
