#include "residency/image.h"

#include <stdlib.h>
#include <string.h>

/*
 * Of PTX only the heads of kernels matter: `.entry NAME ( .param [.align N] TYPE [.ptr ...] NAME [[N]], ... )`. Parameters lie in the order in which they
 * stand, each aligned as it says, or as its type is.
 */
struct reader {
    const char *at, *end;
};

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '%' || c == '.';
}

static bool starts(const struct reader *r, const char *text)
{
    return (size_t)(r->end - r->at) >= strlen(text) && memcmp(r->at, text, strlen(text)) == 0;
}

static void skip_past(struct reader *r, const char *text)
{
    while (r->at < r->end && !starts(r, text))
        r->at++;
    if (r->at < r->end)
        r->at += strlen(text);
}

/* A word or a single character; strings and comments are passed over. false: the text ends. */
static bool next(struct reader *r, const char **token_out, size_t *bytes_out)
{
    for (;;) {
        while (r->at < r->end && (unsigned char)*r->at <= ' ')
            r->at++;
        if (starts(r, "//")) {
            skip_past(r, "\n");
        } else if (starts(r, "/*")) {
            skip_past(r, "*/");
        } else if (r->at < r->end && *r->at == '"') {
            for (r->at++; r->at < r->end && *r->at != '"'; r->at++)
                r->at += *r->at == '\\' && r->at + 1 < r->end;
            r->at += r->at < r->end;
        } else {
            break;
        }
    }
    *token_out = r->at;
    while (r->at < r->end && is_word(*r->at))
        r->at++;
    if (r->at == *token_out && r->at < r->end)
        r->at++;
    *bytes_out = (size_t)(r->at - *token_out);
    return *bytes_out > 0;
}

static bool is(const char *token, size_t bytes, const char *text)
{
    return bytes == strlen(text) && memcmp(token, text, bytes) == 0;
}

static uint64_t number(const char *token, size_t bytes)
{
    char digits[24] = "";
    memcpy(digits, token, bytes < sizeof digits - 1 ? bytes : sizeof digits - 1);
    return strtoull(digits, NULL, 0);
}

/* Bytes of a type; 0: the word is none. Textures and the like are handles. */
static uint32_t type_bytes(const char *token, size_t bytes)
{
    static const char *const handles[] = {".texref", ".samplerref", ".surfref"};
    for (size_t i = 0; i < sizeof handles / sizeof *handles; i++)
        if (is(token, bytes, handles[i]))
            return 8;
    size_t at = 1;
    while (at < bytes && token[at] >= 'a' && token[at] <= 'z')
        at++;
    if (at == 1 || at == bytes || !strchr("usbf", token[1]))
        return 0;
    uint64_t bits = number(token + at, bytes - at);
    bool twice = bytes > 2 && memcmp(token + bytes - 2, "x2", 2) == 0;
    return bits >= 8 && bits <= 128 && bits % 8 == 0 ? (uint32_t)(bits / 8 * (twice ? 2 : 1)) : 0;
}

struct param {
    uint64_t type, count, align, vector;
    bool behind_ptr; /* an alignment is that of what the parameter points to */
};

static bool add(struct hr_image_kernel *kernel, const struct param *p, uint64_t *end_io)
{
    if (p->type == 0)
        return false;
    uint64_t size = p->type * p->vector * p->count, align = p->align ? p->align : p->type * p->vector;
    if (kernel->count == HR_IMAGE_PARAMS_MOST || size > UINT32_MAX || align == 0 || (align & (align - 1)) != 0 ||
        *end_io > UINT32_MAX - size - align)
        return false;
    uint64_t offset = (*end_io + align - 1) & ~(align - 1);
    kernel->param[kernel->count].offset_bytes = (uint32_t)offset;
    kernel->param[kernel->count].size_bytes = (uint32_t)size;
    kernel->count++;
    *end_io = offset + size;
    return true;
}

/* Behind the opening parenthesis, up to the closing one. */
static bool read_params(struct reader *r, struct hr_image_kernel *kernel)
{
    const char *token;
    size_t bytes;
    uint64_t end = 0;
    bool any = false;
    struct param p = {.count = 1, .vector = 1};
    while (next(r, &token, &bytes)) {
        bool last = is(token, bytes, ")");
        if (last || is(token, bytes, ",")) {
            if ((any || !last) && !add(kernel, &p, &end))
                return false;
            if (last)
                return true;
            p = (struct param){.count = 1, .vector = 1};
            any = false;
            continue;
        }
        any = true;
        uint32_t type = token[0] == '.' ? type_bytes(token, bytes) : 0;
        if (type) {
            p.type = type;
        } else if (is(token, bytes, ".v2") || is(token, bytes, ".v4")) {
            p.vector = (uint64_t)(token[2] - '0');
        } else if (is(token, bytes, ".ptr")) {
            p.behind_ptr = true;
        } else if (is(token, bytes, ".align") || is(token, bytes, "[")) {
            bool align = token[0] == '.';
            if (!next(r, &token, &bytes))
                return false;
            if (align && !p.behind_ptr)
                p.align = number(token, bytes);
            else if (!align && __builtin_mul_overflow(p.count, number(token, bytes), &p.count))
                return false;
        }
    }
    return false;
}

bool hr_image_ptx(const char *text, size_t bytes, hr_image_visit visit, void *arg)
{
    struct reader r = {text, text + bytes};
    const char *token;
    size_t length;
    bool sound = false;
    struct hr_image_kernel *kernel = malloc(sizeof *kernel);
    while (kernel && next(&r, &token, &length)) {
        sound = sound || is(token, length, ".version"); /* every text begins with it */
        if (!is(token, length, ".entry"))
            continue;
        if (!next(&r, &kernel->name, &kernel->name_bytes))
            break;
        kernel->count = 0;
        struct reader after = r;
        if (next(&after, &token, &length) && is(token, length, "(")) {
            r = after;
            if (!read_params(&r, kernel)) {
                sound = false;
                break;
            }
        }
        visit(kernel, arg);
    }
    free(kernel);
    return sound;
}
