/* The settings: all of simgpu's environment variables are read here, once, by cuInit. */
#include "simgpu/check.h"
#include "simgpu/linkfault.h"
#include "simgpu/topology.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void sg_log(enum sg_log_level level, const char *format, ...)
{
    static const char *const names[] = {"", "error", "warning", "info"};
    int wanted = sg.init_tried ? sg.config.log_level : SG_LOG_WARN;
    if ((int)level > wanted)
        return;
    char line[2048];
    int head = snprintf(line, sizeof line, "simgpu: %s: ", names[level]);
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, args);
    va_end(args);
    if (body < 0)
        return;
    size_t bytes = (size_t)head + (size_t)body;
    if (bytes > sizeof line - 2)
        bytes = sizeof line - 2;
    line[bytes++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, bytes); /* one write: lines of several threads do not mix */
    (void)ignored;
}

static bool parse_number(const char *text, size_t bytes, uint64_t *value_out)
{
    char copy[32];
    if (bytes == 0 || bytes >= sizeof copy || text[0] < '0' || text[0] > '9')
        return false;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(copy, &end, 10);
    if (errno || *end)
        return false;
    *value_out = v;
    return true;
}

static bool parse_size(const char *text, size_t bytes, uint64_t *value_out)
{
    static const char suffixes[] = "KMGT";
    unsigned shift = 0;
    if (bytes && strchr(suffixes, text[bytes - 1])) {
        shift = 10 * (unsigned)(strchr(suffixes, text[bytes - 1]) - suffixes + 1);
        bytes--;
    }
    uint64_t v;
    if (!parse_number(text, bytes, &v) || v > (UINT64_C(1) << 46) >> shift)
        return false;
    *value_out = v << shift;
    return true;
}

static uint64_t mem_available_bytes(void)
{
    uint64_t kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "MemAvailable:", 13))
            kib = strtoull(line + 13, NULL, 10);
    if (f)
        fclose(f);
    return kib ? kib << 10 : UINT64_C(1) << 30;
}

static CUresult bad(const char *variable, const char *value, size_t bytes, const char *accepted)
{
    sg_log(SG_LOG_ERROR, "%s: bad value '%.*s': %s", variable, (int)bytes, value, accepted);
    return CUDA_ERROR_INVALID_VALUE;
}

#define FIELDS "expected vram=SIZE, gpus=1..8, host=SIZE, seed=N or replay=N"

/* What is looked at when all fields are known. */
struct machine_text {
    const char *topo, *model;
    size_t topo_bytes, model_bytes;
    uint64_t gpus;
};

static CUresult parse_number_field(struct sg_config *c, struct machine_text *t, const char *at, size_t key,
                                   const char *value, size_t bytes)
{
    uint64_t n;
    if (key == 6 && !memcmp(at, "replay", 6)) {
        if (!parse_number(value, bytes, &n))
            return bad("SIMGPU", at, key + 1 + bytes, "replay takes a number");
        c->seed = n;
        c->replay = true;
    } else if (key == 4 && !memcmp(at, "seed", 4)) {
        if (!parse_number(value, bytes, &n))
            return bad("SIMGPU", at, key + 1 + bytes, "seed takes a number");
        c->seed = n;
    } else if (key == 4 && !memcmp(at, "gpus", 4)) {
        if (!parse_number(value, bytes, &t->gpus) || t->gpus < 1 || t->gpus > SG_MAX_DEVICES)
            return bad("SIMGPU", at, key + 1 + bytes, "gpus takes a number from 1 to 8");
    } else {
        return bad("SIMGPU", at, key + 1 + bytes, FIELDS);
    }
    return CUDA_SUCCESS;
}

static CUresult parse_machine_field(struct sg_config *c, struct machine_text *t, const char *at, size_t bytes)
{
    const char *eq = memchr(at, '=', bytes);
    if (!eq)
        return bad("SIMGPU", at, bytes, FIELDS);
    size_t key = (size_t)(eq - at), value = bytes - key - 1;
    uint64_t n;
    if (key == 4 && !memcmp(at, "vram", 4)) {
        if (!parse_size(eq + 1, value, &n) || n < 4 * SG_PAGE_BYTES)
            return bad("SIMGPU", at, bytes, "vram takes a size of at least 8M, such as 64M or 2G");
        c->vram_bytes = n & ~(SG_PAGE_BYTES - 1);
    } else if (key == 4 && !memcmp(at, "host", 4)) {
        if (!parse_size(eq + 1, value, &n))
            return bad("SIMGPU", at, bytes, "host takes a size, such as 512M or 2G");
        c->host_bytes = n;
    } else if (key == 4 && !memcmp(at, "topo", 4)) {
        t->topo = eq + 1;
        t->topo_bytes = value;
    } else if (key == 5 && !memcmp(at, "model", 5)) {
        t->model = eq + 1;
        t->model_bytes = value;
    } else {
        return parse_number_field(c, t, at, key, eq + 1, value);
    }
    return CUDA_SUCCESS;
}

/* The first word: a card's model or a machine. */
static CUresult parse_machine_name(struct sg_config *c, const char *text, size_t bytes)
{
    const struct sg_model *model = sg_model_find(text, bytes);
    if (model) {
        c->model = model;
        return CUDA_SUCCESS;
    }
    c->topology = sg_topology_find(text, bytes);
    if (!c->topology) {
        char accepted[320];
        snprintf(accepted, sizeof accepted, "known models are %s; known machines are %s", sg_model_names(),
                 sg_topology_names());
        return bad("SIMGPU", text, bytes, accepted);
    }
    c->model = c->topology->model;
    return CUDA_SUCCESS;
}

static CUresult read_topology(struct sg_config *c, const struct machine_text *t)
{
    char path[4096], why[200];
    const struct sg_model *model = t->model ? sg_model_find(t->model, t->model_bytes) : NULL;
    if (t->model && !model) {
        snprintf(why, sizeof why, "known models are %s", sg_model_names());
        return bad("SIMGPU", t->model, t->model_bytes, why);
    }
    if (c->topology || t->topo_bytes >= sizeof path)
        return bad("SIMGPU", t->topo, t->topo_bytes, "topo takes a file of its own, in place of a machine's name");
    snprintf(path, sizeof path, "%.*s", (int)t->topo_bytes, t->topo);
    c->topology = sg_topology_read(path, model, why, sizeof why);
    if (!c->topology)
        return bad("SIMGPU", t->topo, t->topo_bytes, why);
    c->model = c->topology->model;
    return CUDA_SUCCESS;
}

static CUresult finish_machine(struct sg_config *c, const struct machine_text *t)
{
    if (t->model && !t->topo)
        return bad("SIMGPU", t->model, t->model_bytes, "model=NAME says what the cards of topo=FILE are");
    CUresult r = t->topo ? read_topology(c, t) : CUDA_SUCCESS;
    if (r)
        return r;
    uint64_t most = c->topology ? (uint64_t)c->topology->cards : 8;
    if (t->gpus > most) {
        char accepted[64], value[24];
        snprintf(accepted, sizeof accepted, "gpus takes a number from 1 to %d", (int)most);
        int bytes = snprintf(value, sizeof value, "gpus=%d", (int)t->gpus);
        return bad("SIMGPU", value, (size_t)bytes, accepted);
    }
    c->gpus = (int)(t->gpus ? t->gpus : c->topology ? most : 1);
    if (!c->vram_bytes)
        c->vram_bytes = c->model->vram_bytes;
    return CUDA_SUCCESS;
}

static CUresult parse_machine(struct sg_config *c, const char *text)
{
    struct machine_text t = {NULL, NULL, 0, 0, 0};
    c->model = sg_model_find("h200", 4);
    bool first = true;
    while (text && *text) {
        size_t bytes = strcspn(text, ",");
        CUresult r = first && !memchr(text, '=', bytes) ? parse_machine_name(c, text, bytes)
                                                        : parse_machine_field(c, &t, text, bytes);
        if (r)
            return r;
        first = false;
        text += bytes;
        if (*text == ',' && !*++text)
            return bad("SIMGPU", ",", 1, "nothing follows the last comma");
    }
    return finish_machine(c, &t);
}

/* "cuMemcpyHtoDAsync_v2_ptsz" -> "cuMemcpyHtoDAsync" */
static size_t base_name_bytes(const char *name, size_t bytes)
{
    if (bytes > 5 && (!memcmp(name + bytes - 5, "_ptsz", 5) || !memcmp(name + bytes - 5, "_ptds", 5)))
        bytes -= 5;
    if (bytes > 3 && name[bytes - 3] == '_' && name[bytes - 2] == 'v' && name[bytes - 1] >= '2' &&
        name[bytes - 1] <= '9')
        bytes -= 3;
    return bytes;
}

static bool is_function(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sg_symbol_count; i++)
        if (base_name_bytes(sg_symbols[i].name, strlen(sg_symbols[i].name)) == bytes &&
            !memcmp(sg_symbols[i].name, name, bytes))
            return true;
    return false;
}

static bool parse_error(const char *text, size_t bytes, CUresult *error_out)
{
    uint64_t n;
    if (parse_number(text, bytes, &n) && n > 0 && n <= CUDA_ERROR_UNKNOWN) {
        *error_out = (CUresult)n;
        return true;
    }
    for (size_t i = 0; i < sg_error_name_count; i++) {
        const char *name = sg_error_names[i].name;
        const char *tail = strncmp(name, "CUDA_ERROR_", 11) ? name : name + 11;
        if ((strlen(name) == bytes && !memcmp(name, text, bytes)) ||
            (strlen(tail) == bytes && !memcmp(tail, text, bytes))) {
            *error_out = sg_error_names[i].value;
            return sg_error_names[i].value != CUDA_SUCCESS;
        }
    }
    return false;
}

/* function:n[:error] or function:every:n[:error] */
static bool parse_fail(struct sg_fail *fail, const char *text, size_t bytes)
{
    const char *end = text + bytes, *part[5];
    size_t length[5], count = 0;
    for (const char *at = text; count < 5;) {
        const char *colon = memchr(at, ':', (size_t)(end - at));
        part[count] = at;
        length[count++] = (size_t)((colon ? colon : end) - at);
        if (!colon)
            break;
        at = colon + 1;
    }
    size_t next = 1;
    fail->mode = SG_FAIL_ONCE;
    fail->error = CUDA_ERROR_OUT_OF_MEMORY;
    if (count > 2 && length[1] == 5 && !memcmp(part[1], "every", 5)) {
        fail->mode = SG_FAIL_EVERY;
        next = 2;
    }
    size_t base = base_name_bytes(part[0], length[0]);
    if (count <= next || count > next + 2 || base >= sizeof fail->name || !is_function(part[0], base))
        return false;
    memcpy(fail->name, part[0], base);
    fail->name[base] = 0;
    if (!parse_number(part[next], length[next], &fail->n) || fail->n == 0)
        return false;
    return count == next + 1 || parse_error(part[next + 1], length[next + 1], &fail->error);
}

static CUresult parse_fails(struct sg_config *c, const char *text)
{
    while (text && *text) {
        size_t bytes = strcspn(text, ",");
        struct sg_fail *more = realloc(c->fails, (c->fail_count + 1) * sizeof *more);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        c->fails = more;
        memset(&more[c->fail_count], 0, sizeof *more);
        if (!parse_fail(&more[c->fail_count], text, bytes))
            return bad("SIMGPU_FAIL", text, bytes,
                       "expected FUNCTION:N[:ERROR] or FUNCTION:every:N[:ERROR]: a function of the driver, N from 1, "
                       "an error as name or number");
        c->fail_count++;
        text += bytes;
        text += *text == ',';
    }
    return CUDA_SUCCESS;
}

static CUresult parse_switches(struct sg_config *c)
{
    const char *sync = getenv("SIMGPU_SYNC");
    if (sync && *sync && strcmp(sync, "0") != 0 && strcmp(sync, "1") != 0)
        return bad("SIMGPU_SYNC", sync, strlen(sync), "expected 0 or 1");
    c->sync = sync && !strcmp(sync, "1");
    for (const char *deny = getenv("SIMGPU_DENY"); deny && *deny;) {
        size_t bytes = strcspn(deny, ",");
        if (bytes == strlen("host_numa") && !memcmp(deny, "host_numa", bytes))
            c->deny_host_numa = true;
        else if (bytes == strlen("routers") && !memcmp(deny, "routers", bytes))
            c->deny_routers = true;
        else
            return bad("SIMGPU_DENY", deny, bytes, "expected host_numa or routers");
        deny += bytes + (deny[bytes] == ',');
    }
    const char *loading = getenv("CUDA_MODULE_LOADING");
    c->eager = loading && !strcmp(loading, "EAGER");
    static const char *const levels[] = {"off", "error", "warn", "info"};
    const char *log = getenv("SIMGPU_LOG");
    if (log && *log) {
        c->log_level = -1;
        for (int i = 0; i < 4; i++)
            if (!strcmp(log, levels[i]))
                c->log_level = i;
        if (c->log_level < 0) {
            c->log_level = SG_LOG_WARN;
            return bad("SIMGPU_LOG", log, strlen(log), "expected off, error, warn or info");
        }
    }
    const char *report = getenv("SIMGPU_REPORT");
    if (report && strlen(report) >= sizeof c->report)
        return bad("SIMGPU_REPORT", report, 64, "the path is too long");
    if (report)
        strcpy(c->report, report);
    const char *timeline = getenv("SIMGPU_TIMELINE");
    if (timeline && strlen(timeline) >= sizeof c->timeline)
        return bad("SIMGPU_TIMELINE", timeline, 64, "the path is too long");
    if (timeline)
        strcpy(c->timeline, timeline);
    const char *cards = getenv("SIMGPU_CARDS");
    if (cards && strlen(cards) >= sizeof c->cards)
        return bad("SIMGPU_CARDS", cards, 64, "the path is too long");
    if (cards)
        strcpy(c->cards, cards);
    return CUDA_SUCCESS;
}

CUresult sg_config_read(struct sg_config *c)
{
    memset(c, 0, sizeof *c);
    c->seed = 1;
    c->log_level = SG_LOG_WARN;
    c->host_bytes = mem_available_bytes();
    CUresult r = parse_switches(c);
    if (!r)
        r = sg_check_read();
    if (!r)
        r = parse_machine(c, getenv("SIMGPU"));
    if (!r)
        r = parse_fails(c, getenv("SIMGPU_FAIL"));
    const char *at, *why;
    size_t bytes;
    if (!r && !sg_linkfault_read(c, &at, &bytes, &why))
        r = bad("SIMGPU_LINK", at, bytes, why);
    return r;
}

CUresult sg_fail_check(const char *function)
{
    size_t base = base_name_bytes(function, strlen(function));
    CUresult error = CUDA_SUCCESS;
    for (size_t i = 0; i < sg.config.fail_count; i++) { /* all of them count the call, also when one has decided */
        struct sg_fail *fail = &sg.config.fails[i];
        if (strlen(fail->name) != base || memcmp(fail->name, function, base) != 0)
            continue;
        uint64_t call = atomic_fetch_add(&fail->calls, 1) + 1;
        if (error || (fail->mode == SG_FAIL_ONCE ? call != fail->n : call % fail->n != 0))
            continue;
        sg_log(SG_LOG_INFO, "%s: call %" PRIu64 " fails on demand", function, call);
        error = fail->error;
    }
    return error;
}
