/* What is looked for, how often it was found, and the words for it. */
#include "simgpu/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LINES_PER_KIND 20

struct sg_check sg_check;

static const struct {
    const char *key, *name; /* in the report, in lines */
} kinds[SG_FINDING_COUNT] = {
    [SG_FINDING_RACE] = {"race", "race"},
    [SG_FINDING_HOST_RACE] = {"host_race", "race on host memory"},
    [SG_FINDING_HOST_ACCESS] = {"host_access", "host access to pending memory"},
    [SG_FINDING_AFTER_FREE] = {"use_after_free", "use after free"},
    [SG_FINDING_AFTER_UNMAP] = {"use_after_unmap", "use after unmap"},
    [SG_FINDING_BEFORE_MAP] = {"use_before_map", "use before map"},
    [SG_FINDING_NO_GRANT] = {"missing_grant", "missing grant"},
    [SG_FINDING_NO_MEMORY] = {"no_memory", "no memory there"},
    [SG_FINDING_RED_ZONE] = {"red_zone", "out of bounds"},
    [SG_FINDING_LEAK] = {"leak", "leak"},
    [SG_FINDING_DEADLOCK] = {"deadlock", "deadlock"},
};

const char *sg_finding_name(enum sg_finding_kind kind)
{
    return kinds[kind].name;
}

static bool is_word(const char *text, size_t bytes, const char *word)
{
    return strlen(word) == bytes && !memcmp(text, word, bytes);
}

static bool parse_word(const char *text, size_t bytes)
{
    bool all = is_word(text, bytes, "all");
    if (is_word(text, bytes, "off")) {
        sg_check.race = sg_check.redzone = sg_check.leak = sg_check.deadlock = sg_check.deadlock_fail = false;
        sg_check.host = false;
        return true;
    }
    if (is_word(text, bytes, "fatal")) {
        sg_check.fatal = true;
        return true;
    }
    if (is_word(text, bytes, "deadlock=fail")) {
        sg_check.deadlock = sg_check.deadlock_fail = true;
        return true;
    }
    sg_check.host |= all || is_word(text, bytes, "host");
    sg_check.race |= sg_check.host || is_word(text, bytes, "race");
    sg_check.redzone |= all || is_word(text, bytes, "redzone");
    sg_check.leak |= all || is_word(text, bytes, "leak");
    sg_check.deadlock |= all || is_word(text, bytes, "deadlock");
    return all || is_word(text, bytes, "host") || is_word(text, bytes, "race") || is_word(text, bytes, "redzone") ||
           is_word(text, bytes, "leak") || is_word(text, bytes, "deadlock");
}

CUresult sg_check_read(void)
{
    const char *fatal = getenv("SIMGPU_CHECK_FATAL");
    if (fatal && *fatal && strcmp(fatal, "0") != 0 && strcmp(fatal, "1") != 0) {
        sg_log(SG_LOG_ERROR, "SIMGPU_CHECK_FATAL: bad value '%s': expected 0 or 1", fatal);
        return CUDA_ERROR_INVALID_VALUE;
    }
    const char *text = getenv("SIMGPU_CHECK");
    while (text && *text) {
        size_t bytes = strcspn(text, ",");
        if (!parse_word(text, bytes)) {
            sg_log(SG_LOG_ERROR,
                   "SIMGPU_CHECK: bad value '%.*s': expected race, host, redzone, leak, deadlock, deadlock=fail, all, "
                   "fatal "
                   "or off, separated by commas",
                   (int)bytes, text);
            return CUDA_ERROR_INVALID_VALUE;
        }
        text += bytes;
        text += *text == ',';
    }
    sg_check.fatal |= fatal && !strcmp(fatal, "1");
    sg_check.accesses = sg_check.race || sg_check.redzone || sg_check.deadlock;
    return CUDA_SUCCESS;
}

void sg_finding_count(enum sg_finding_kind kind)
{
    sg_check.found[kind]++;
}

void sg_finding(enum sg_finding_kind kind, struct sg_context *context, const char *format, ...)
{
    char line[1200];
    va_list args;
    uint64_t n = ++sg_check.found[kind];
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n <= LINES_PER_KIND)
        sg_log(SG_LOG_WARN, "%s: %s", kinds[kind].name, line);
    if (n == LINES_PER_KIND)
        sg_log(SG_LOG_WARN, "%s: more of these are only counted", kinds[kind].name);
    if (context)
        sg_finding_fatal(kind, context);
}

void sg_finding_fatal(enum sg_finding_kind kind, struct sg_context *context)
{
    if (sg_check.fatal && !context->sticky) {
        char why[160];
        snprintf(why, sizeof why, "SIMGPU_CHECK_FATAL: the context fails because of this: %s", kinds[kind].name);
        sg_context_fail(context, CUDA_ERROR_LAUNCH_FAILED, why);
    }
}

CUresult sg_refused(CUresult error, int device, uint64_t va)
{
    enum sg_finding_kind kind = error ? sg_finding_at(device, va) : SG_FINDING_NO_MEMORY;
    char where[220];
    if (kind == SG_FINDING_NO_MEMORY || kind == SG_FINDING_RED_ZONE)
        return error;
    sg_describe_address(va, where, sizeof where);
    sg_finding(kind, NULL, "a copy or memset at 0x%" PRIx64 " is refused: %s", va, where);
    return error;
}

void sg_check_report(FILE *f)
{
    fprintf(f, "  \"findings\": {");
    for (int i = 0; i < SG_FINDING_COUNT; i++)
        fprintf(f, "%s\"%s\": %" PRIu64, i ? ", " : "", kinds[i].key, sg_check.found[i]);
    fprintf(f, "},\n");
}

void sg_describe_memory(uint64_t va, char *text, size_t text_bytes)
{
    struct sg_alloc *a = sg_alloc_at(va);
    struct sg_mapping *m = sg_mapping_at(va);
    struct sg_host *h = sg_host_at(va);
    if (a)
        snprintf(text, text_bytes, "%" PRIu64 " bytes into the %s 0x%" PRIx64 " of %" PRIu64 " bytes on device %d",
                 va - a->region.va, a->is_module ? "module variable" : "allocation", a->region.va, a->region.bytes,
                 a->device);
    else if (m)
        snprintf(text, text_bytes, "%" PRIu64 " bytes into the mapping 0x%" PRIx64 " of %" PRIu64 " bytes",
                 va - m->region.va, m->region.va, m->region.bytes);
    else if (h)
        snprintf(text, text_bytes, "%" PRIu64 " bytes into the pinned host range 0x%" PRIx64 " of %" PRIu64 " bytes",
                 va - h->va, h->va, h->bytes);
    else if (sg_region_at(va))
        sg_describe_address(va, text, text_bytes);
    else
        snprintf(text, text_bytes, "pageable host memory");
}
