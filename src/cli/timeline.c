#include "cli/timeline.h"

/* A timeline as SVG: a row for each engine and each stream of every GPU, time from left to right. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum {
    WIDTH = 1280,
    LEFT = 150,
    RIGHT = 20,
    TOP = 56,
    ROW = 22,
    BAR = 16,
    GAP = 10, /* above each GPU's rows */
    LEGEND_COLUMN = 280,
    LEGEND_KERNELS = 12,
    MOST_BYTES = 1 << 28 /* of a file */
};

static const char *const engines[] = {"sms", "h2d", "d2h", "d2d", "peer", "host"};
enum { ENGINES = sizeof engines / sizeof engines[0], SMS = 0 };
static const char *const engine_titles[] = {"SMs", "copy in", "copy out", "copy within", "to peers", "host functions"};
static const char *const engine_colours[] = {NULL, "#2b83ba", "#d7191c", "#7b7b7b", "#8e44ad", "#444444"};
/* Kernels by the time they take; the rest share the last one. */
static const char *const kernel_colours[LEGEND_KERNELS + 1] = {"#1a9641", "#fdae61", "#5e3c99", "#e66101", "#66c2a5",
                                                               "#e7298a", "#a6761d", "#80b1d3", "#b3de69", "#bc80bd",
                                                               "#ffed6f", "#8dd3c7", "#bdbdbd"};

struct operation {
    uint64_t start_ns, end_ns, bytes, stream;
    unsigned gpu, engine;
    const char *name; /* owned by the JSON */
    unsigned rank;    /* of a kernel's name */
};

struct row {
    unsigned gpu;
    bool is_stream;
    uint64_t which; /* engine or stream */
    int y;
    double drawn_to; /* pixels */
    unsigned drawn_colour;
};

struct kernel {
    const char *name;
    uint64_t ns, count;
};

struct timeline {
    cJSON *root;
    const char *model;
    unsigned gpus;
    uint64_t end_ns, dropped;
    struct operation *operations;
    size_t count;
    struct row *rows;
    size_t row_count;
    struct kernel *kernels; /* the longest first */
    size_t kernel_count;
    int bottom; /* of the rows */
};

/* ---- reading ---- */

static bool number(const cJSON *object, const char *name, uint64_t *out)
{
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(n) || !(n->valuedouble >= 0 && n->valuedouble < 9.2e18)) {
        return false;
    }
    *out = (uint64_t)n->valuedouble;
    return true;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t bytes = 0, room = 0;

    if (f == NULL) {
        hr_cli_fail(HR_CLI_FAILED, "%s: %s", path, strerror(errno));
        return NULL;
    }
    for (;;) {
        if (room - bytes < 2) {
            room = room != 0 ? room * 2 : 1 << 16;
            char *more = room > MOST_BYTES ? NULL : realloc(text, room);
            if (more == NULL) {
                hr_cli_fail(HR_CLI_FAILED, "%s: too large", path);
                break;
            }
            text = more;
        }
        size_t n = fread(text + bytes, 1, room - bytes - 1, f);
        bytes += n;
        text[bytes] = '\0';
        if (n == 0) {
            if (ferror(f)) {
                hr_cli_fail(HR_CLI_FAILED, "%s: %s", path, strerror(errno));
                break;
            }
            fclose(f);
            return text;
        }
    }
    fclose(f);
    free(text);
    return NULL;
}

static bool read_operation(const cJSON *item, unsigned gpus, struct operation *o)
{
    uint64_t gpu;
    const cJSON *engine = cJSON_GetObjectItemCaseSensitive(item, "engine");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
    if (!number(item, "gpu", &gpu) || gpu >= gpus || !number(item, "stream", &o->stream) ||
        !number(item, "start_ns", &o->start_ns) || !number(item, "end_ns", &o->end_ns) ||
        !number(item, "bytes", &o->bytes) || o->end_ns < o->start_ns || !cJSON_IsString(engine) ||
        !cJSON_IsString(name)) {
        return false;
    }
    o->gpu = (unsigned)gpu;
    o->name = name->valuestring;
    for (o->engine = 0; o->engine < ENGINES; o->engine++) {
        if (strcmp(engines[o->engine], engine->valuestring) == 0) {
            return true;
        }
    }
    return false;
}

static int read_timeline(const char *path, struct timeline *t)
{
    uint64_t schema, gpus;
    char *text = read_file(path);

    if (text == NULL) {
        return HR_CLI_FAILED;
    }
    t->root = cJSON_Parse(text);
    free(text);
    const cJSON *operations = cJSON_GetObjectItemCaseSensitive(t->root, "operations"), *item;
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(t->root, "model");
    if (!number(t->root, "timeline_schema", &schema) || !cJSON_IsArray(operations) || !cJSON_IsString(model) ||
        !number(t->root, "gpus", &gpus) || gpus > 64 || !number(t->root, "dropped", &t->dropped)) {
        return hr_cli_fail(HR_CLI_FAILED, "%s: not a timeline of simgpu (SIMGPU_TIMELINE)", path);
    }
    if (schema != 1) {
        return hr_cli_fail(HR_CLI_FAILED, "%s: a timeline of schema %" PRIu64 ", this is for 1", path, schema);
    }
    t->model = model->valuestring;
    t->gpus = (unsigned)gpus;
    t->operations = calloc((size_t)cJSON_GetArraySize(operations) + 1, sizeof *t->operations);
    if (t->operations == NULL) {
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    }
    cJSON_ArrayForEach(item, operations)
    {
        struct operation *o = &t->operations[t->count];
        if (!read_operation(item, t->gpus, o)) {
            return hr_cli_fail(HR_CLI_FAILED, "%s: operation %zu is not as simgpu writes it", path, t->count + 1);
        }
        t->end_ns = o->end_ns > t->end_ns ? o->end_ns : t->end_ns;
        t->count++;
    }
    return HR_CLI_OK;
}

/* ---- rows and kernels ---- */

static struct row *row_of(struct timeline *t, unsigned gpu, bool is_stream, uint64_t which)
{
    for (size_t i = 0; i < t->row_count; i++) {
        struct row *r = &t->rows[i];
        if (r->gpu == gpu && r->is_stream == is_stream && r->which == which) {
            return r;
        }
    }
    struct row *more = realloc(t->rows, (t->row_count + 1) * sizeof *more);
    if (more == NULL) {
        return NULL;
    }
    t->rows = more;
    t->rows[t->row_count] = (struct row){.gpu = gpu, .is_stream = is_stream, .which = which};
    return &t->rows[t->row_count++];
}

static int compare_rows(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->gpu != y->gpu) {
        return x->gpu < y->gpu ? -1 : 1;
    }
    if (x->is_stream != y->is_stream) {
        return x->is_stream ? 1 : -1;
    }
    return x->which < y->which ? -1 : x->which > y->which;
}

static int compare_kernels(const void *a, const void *b)
{
    const struct kernel *x = a, *y = b;
    return x->ns > y->ns ? -1 : x->ns < y->ns ? 1 : strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    const struct kernel *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static bool sum_kernels(struct timeline *t)
{
    size_t n = 0;
    t->kernels = calloc(t->count + 1, sizeof *t->kernels);
    if (t->kernels == NULL) {
        return false;
    }
    for (size_t i = 0; i < t->count; i++) {
        const struct operation *o = &t->operations[i];
        if (o->engine == SMS) {
            t->kernels[n++] = (struct kernel){.name = o->name, .ns = o->end_ns - o->start_ns, .count = 1};
        }
    }
    qsort(t->kernels, n, sizeof *t->kernels, compare_names);
    for (size_t i = 0; i < n; i++) {
        struct kernel *last = t->kernel_count != 0 ? &t->kernels[t->kernel_count - 1] : NULL;
        if (last != NULL && strcmp(last->name, t->kernels[i].name) == 0) {
            last->ns += t->kernels[i].ns;
            last->count++;
        } else {
            t->kernels[t->kernel_count++] = t->kernels[i];
        }
    }
    qsort(t->kernels, t->kernel_count, sizeof *t->kernels, compare_kernels);
    return true;
}

static unsigned rank_of(const struct timeline *t, const char *name)
{
    unsigned rank = 0;
    while (rank < LEGEND_KERNELS && rank < t->kernel_count && strcmp(t->kernels[rank].name, name) != 0) {
        rank++;
    }
    return rank < t->kernel_count ? rank : LEGEND_KERNELS;
}

static bool arrange(struct timeline *t)
{
    for (size_t i = 0; i < t->count; i++) {
        const struct operation *o = &t->operations[i];
        if (row_of(t, o->gpu, false, o->engine) == NULL || row_of(t, o->gpu, true, o->stream) == NULL) {
            return false;
        }
    }
    if (!sum_kernels(t)) {
        return false;
    }
    if (t->row_count != 0) {
        qsort(t->rows, t->row_count, sizeof *t->rows, compare_rows);
    }
    int y = TOP;
    for (size_t i = 0; i < t->row_count; i++) {
        y += i != 0 && t->rows[i].gpu != t->rows[i - 1].gpu ? GAP : 0;
        t->rows[i].y = y;
        t->rows[i].drawn_to = -1;
        y += ROW;
    }
    t->bottom = y;
    for (size_t i = 0; i < t->count; i++) {
        if (t->operations[i].engine == SMS) {
            t->operations[i].rank = rank_of(t, t->operations[i].name);
        }
    }
    return true;
}

/* ---- drawing ---- */

/* Bytes of the UTF-8 character at text; 0: it is none, or none that XML has. */
static size_t character_bytes(const char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    size_t bytes = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t code = bytes > 1 ? *at & (0xffu >> (bytes + 1)) : *at;
    for (size_t i = 1; i < bytes; i++) {
        if (at[i] >> 6 != 2) {
            return 0;
        }
        code = code << 6 | (at[i] & 63);
    }
    bool is_none = code < least[bytes] || (code >= 0xd800 && code < 0xe000) || (code & ~UINT32_C(1)) == 0xfffe;
    return is_none || code > 0x10ffff ? 0 : bytes;
}

static void put_text(FILE *f, const char *text)
{
    for (size_t bytes; *text != '\0'; text += bytes != 0 ? bytes : 1) {
        bytes = character_bytes(text);
        if (bytes != 1) {
            fwrite(bytes != 0 ? text : "?", 1, bytes != 0 ? bytes : 1, f);
            continue;
        }
        switch (*text) {
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '&': fputs("&amp;", f); break;
        case '"': fputs("&quot;", f); break;
        default:
            if ((unsigned char)*text >= ' ') {
                fputc(*text, f);
            }
        }
    }
}

static void put_duration(FILE *f, double ns)
{
    fprintf(f,
            ns < 1e3   ? "%.0f ns"
            : ns < 1e6 ? "%.3g us"
            : ns < 1e9 ? "%.4g ms"
                       : "%.4g s",
            ns < 1e3   ? ns
            : ns < 1e6 ? ns / 1e3
            : ns < 1e9 ? ns / 1e6
                       : ns / 1e9);
}

static double x_of(const struct timeline *t, uint64_t ns)
{
    return LEFT + (double)ns / (t->end_ns != 0 ? (double)t->end_ns : 1) * (WIDTH - LEFT - RIGHT);
}

static const char *colour_of(unsigned engine, unsigned rank)
{
    return engine == SMS ? kernel_colours[rank] : engine_colours[engine];
}

/* Pieces too narrow to see that follow one of their colour are left out: a long run has more of them than pixels. */
static void draw_bar(FILE *f, const struct timeline *t, struct row *r, const struct operation *o)
{
    unsigned colour = o->engine << 8 | o->rank;
    double x = x_of(t, o->start_ns), end = x_of(t, o->end_ns);
    if (end - r->drawn_to < 0.2 && colour == r->drawn_colour) {
        return;
    }
    double width = end - x < 0.4 ? 0.4 : end - x;
    fprintf(f, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>", x, r->y + (ROW - BAR) / 2,
            width, BAR, colour_of(o->engine, o->rank));
    put_text(f, o->name);
    fputs(": ", f);
    put_duration(f, (double)(o->end_ns - o->start_ns));
    fputs(" at ", f);
    put_duration(f, (double)o->start_ns);
    fprintf(f, ", %" PRIu64 " bytes, stream %" PRIu64 "</title></rect>\n", o->bytes, o->stream);
    r->drawn_to = end;
    r->drawn_colour = colour;
}

static void draw_rows(FILE *f, const struct timeline *t)
{
    for (size_t i = 0; i < t->row_count; i++) {
        const struct row *r = &t->rows[i];
        fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", LEFT, r->y,
                WIDTH - LEFT - RIGHT, ROW, i % 2 != 0 ? "#f4f4f4" : "#ebebeb");
        fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">GPU %u ", LEFT - 8, r->y + ROW / 2 + 4, r->gpu);
        if (r->is_stream) {
            fprintf(f, "stream %" PRIu64, r->which);
        } else {
            fputs(engine_titles[r->which], f);
        }
        fputs("</text>\n", f);
    }
}

/* Ticks at 1, 2 or 5 times a power of ten, about ten of them. */
static void draw_axis(FILE *f, const struct timeline *t)
{
    uint64_t step = 1;
    for (unsigned i = 0; t->end_ns / step > 10; i++) {
        step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    }
    for (uint64_t at = 0; at <= t->end_ns; at += step) {
        double x = x_of(t, at);
        fprintf(f, "<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\" stroke=\"#999999\" stroke-width=\"0.5\"/>\n", x,
                x, TOP, t->bottom + 5);
        fprintf(f, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">", x, t->bottom + 18);
        put_duration(f, (double)at);
        fputs("</text>\n", f);
    }
}

static int draw_legend(FILE *f, const struct timeline *t, bool measure)
{
    int x = LEFT, y = t->bottom + 40;
    size_t shown = t->kernel_count < LEGEND_KERNELS ? t->kernel_count : LEGEND_KERNELS;
    size_t entries = shown + (t->kernel_count > shown) + ENGINES - 1;
    for (size_t i = 0; i < entries; i++) {
        bool is_kernel = i < shown + (t->kernel_count > shown);
        size_t engine = is_kernel ? SMS : i - shown - (t->kernel_count > shown) + 1;
        if (!measure) {
            fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n<text x=\"%d\" y=\"%d\">", x,
                    y - 10, colour_of((unsigned)engine, is_kernel ? (unsigned)i : 0), x + 17, y);
            if (i < shown) {
                char name[29];
                snprintf(name, sizeof name, "%s", t->kernels[i].name);
                put_text(f, name);
                fprintf(f, ", %" PRIu64 " times, ", t->kernels[i].count);
                put_duration(f, (double)t->kernels[i].ns);
            } else {
                fputs(is_kernel ? "other kernels" : engine_titles[engine], f);
            }
            fputs("</text>\n", f);
        }
        x += LEGEND_COLUMN;
        if (x + LEGEND_COLUMN > WIDTH && i + 1 < entries) {
            x = LEFT;
            y += 18;
        }
    }
    return y + 16;
}

static void draw(FILE *f, struct timeline *t)
{
    int height = draw_legend(NULL, t, true);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
            WIDTH, height, WIDTH, height, WIDTH, height);
    fprintf(f, "<text x=\"%d\" y=\"22\" font-size=\"15\">simgpu, ", LEFT);
    put_text(f, t->model);
    fputs(": ", f);
    put_duration(f, (double)t->end_ns);
    fprintf(f, " of virtual time, %zu operations</text>\n", t->count);
    if (t->dropped != 0) {
        fprintf(f, "<text x=\"%d\" y=\"40\" fill=\"#b00000\">%" PRIu64 " later operations were not recorded</text>\n",
                LEFT, t->dropped);
    }
    draw_rows(f, t);
    draw_axis(f, t);
    for (size_t i = 0; i < t->count; i++) {
        const struct operation *o = &t->operations[i];
        draw_bar(f, t, row_of(t, o->gpu, false, o->engine), o);
        draw_bar(f, t, row_of(t, o->gpu, true, o->stream), o);
    }
    draw_legend(f, t, false);
    fputs("</svg>\n", f);
}

int hr_cli_timeline(const char *path, const char *svg_path)
{
    struct timeline t = {.model = ""};
    int status = read_timeline(path, &t);

    if (status == HR_CLI_OK && !arrange(&t)) {
        status = hr_cli_fail(HR_CLI_FAILED, "out of memory");
    }
    if (status == HR_CLI_OK) {
        FILE *f = svg_path != NULL ? fopen(svg_path, "we") : stdout;
        if (f != NULL) {
            draw(f, &t);
        }
        bool failed = f == NULL || ferror(f) != 0; /* of an earlier piece */
        if (f == NULL || (svg_path != NULL ? fclose(f) : fflush(f)) != 0 || failed) {
            status =
                hr_cli_fail(HR_CLI_FAILED, "%s: %s", svg_path != NULL ? svg_path : "standard output", strerror(errno));
        }
    }
    cJSON_Delete(t.root);
    free(t.operations);
    free(t.rows);
    free(t.kernels);
    return status;
}
