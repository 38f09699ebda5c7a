/*
 * Parsing of the settings. Numbers are read by hand: current compilers bind strtoull and friends to symbol versions of the newest
 * C library, and those accept signs and spaces and depend on the locale.
 */
#include "base/config.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct hr_setting table[] = {
#define SETTING(field, env, flag, type, choices, fallback, accepted, effect, help)                                     \
    {"HEADROOM_" #env,                                                                                                 \
     flag,                                                                                                             \
     HR_TYPE_##type,                                                                                                   \
     choices,                                                                                                          \
     fallback,                                                                                                         \
     accepted,                                                                                                         \
     help,                                                                                                             \
     HR_EFFECT_##effect,                                                                                               \
     offsetof(struct hr_config, field)},
#include "base/config.def"
#undef SETTING
};
enum { SETTING_COUNT = sizeof table / sizeof table[0] };

/* Digits with an optional fraction at *text, which moves past them. False where there is no digit or the value is absurd. */
static bool read_number(const char **text, double *value_out)
{
    const char *p = *text;
    double value = 0, scale = 1;
    unsigned digits = 0;
    for (; *p >= '0' && *p <= '9'; p++, digits++)
        value = value * 10 + (*p - '0');
    if (*p == '.') {
        for (p++; *p >= '0' && *p <= '9'; p++, digits++)
            value += (*p - '0') * (scale /= 10);
    }
    if (digits == 0 || digits > 20)
        return false;
    *text = p;
    *value_out = value;
    return true;
}

static bool parse_ratio(const char *text, double *out)
{
    if (strcmp(text, "auto") == 0) {
        *out = 0;
        return true;
    }
    double value;
    if (!read_number(&text, &value) || *text != '\0' || value < 1 || value > 1000)
        return false;
    *out = value;
    return true;
}

static bool parse_size(const char *text, struct hr_size *out)
{
    double value;
    if (!read_number(&text, &value))
        return false;
    if (*text == '%') {
        if (text[1] != '\0' || value < 1 || value > 100 || value != (double)(unsigned)value)
            return false;
        *out = (struct hr_size){HR_SIZE_PERCENT, (uint64_t)value};
        return true;
    }
    const char *units = "KMGT", *unit = *text != '\0' ? strchr(units, *text & ~0x20) : NULL;
    if (unit != NULL) {
        for (const char *u = units; u <= unit; u++)
            value *= 1024;
        text++;
    }
    if (*text != '\0' || value < 1 || value >= 9e18)
        return false;
    *out = (struct hr_size){HR_SIZE_BYTES, (uint64_t)value};
    return true;
}

static bool copy_text(const char *text, size_t bytes, char *out)
{
    if (bytes >= HR_CONFIG_TEXT_BYTES)
        return false;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return true;
}

/* "off" and "auto" are the empty text: each such setting knows one of them. */
static bool parse_text(const char *text, const char *none, char *out)
{
    if (*text == '\0')
        return false;
    return copy_text(text, strcmp(text, none) == 0 ? 0 : strlen(text), out);
}

static bool parse_nvm(const char *text, struct hr_nvm_place *out)
{
    memset(out, 0, sizeof *out);
    if (strcmp(text, "off") == 0)
        return true;
    const char *colon = strrchr(text, ':');
    size_t dir_bytes = strlen(text);
    if (colon != NULL && parse_size(colon + 1, &out->size))
        dir_bytes = (size_t)(colon - text);
    return dir_bytes > 0 && text[0] == '/' && copy_text(text, dir_bytes, out->dir);
}

/* Index of the word text[0..bytes) in a list "a|b|c". */
static bool parse_choice(const char *text, size_t bytes, const char *choices, int *out)
{
    for (int index = 0;; index++) {
        size_t length = strcspn(choices, "|");
        if (length == bytes && memcmp(choices, text, bytes) == 0) {
            *out = index;
            return true;
        }
        if (choices[length] == '\0')
            return false;
        choices += length + 1;
    }
}

/* `word` is the one that may stand in a time's place, if the setting has one: a default that is a time is none. */
static bool parse_span(const char *text, const char *word, uint64_t *out_ns)
{
    *out_ns = 0;
    if ((strcmp(word, "auto") == 0 || strcmp(word, "off") == 0) && strcmp(text, word) == 0)
        return true;
    double value, unit_ns;
    if (!read_number(&text, &value))
        return false;
    if (strcmp(text, "us") == 0)
        unit_ns = 1e3;
    else if (strcmp(text, "ms") == 0)
        unit_ns = 1e6;
    else if (strcmp(text, "s") == 0)
        unit_ns = 1e9;
    else
        return false;
    if (value <= 0 || value * unit_ns > 1e18)
        return false;
    *out_ns = (uint64_t)(value * unit_ns);
    return true;
}

static bool parse_log(const char *text, struct hr_log_choice *out)
{
    size_t word = strcspn(text, ":");
    int level;
    if (!parse_choice(text, word, "off|error|warn|info|debug", &level))
        return false;
    out->level = (enum hr_log_level)level;
    out->path[0] = '\0';
    return text[word] == '\0' || parse_text(text + word + 1, "", out->path);
}

static bool parse_setting(const struct hr_setting *setting, const char *text, struct hr_config *config)
{
    void *field = (char *)config + setting->offset;
    int choice;
    switch (setting->type) {
    case HR_TYPE_RATIO: return parse_ratio(text, field);
    case HR_TYPE_SIZE: return parse_size(text, field);
    case HR_TYPE_NVM: return parse_nvm(text, field);
    case HR_TYPE_SPAN: return parse_span(text, setting->default_text, field);
    case HR_TYPE_LOG: return parse_log(text, field);
    case HR_TYPE_TEXT: return parse_text(text, strcmp(setting->default_text, "auto") == 0 ? "auto" : "off", field);
    case HR_TYPE_CHOICE:
        if (!parse_choice(text, strlen(text), setting->choices, &choice))
            return false;
        memcpy(field, &choice, sizeof choice); /* every enum of struct hr_config has the size of int */
        return true;
    case HR_TYPE_BOOL:
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
            return false;
        *(bool *)field = text[0] == '1';
        return true;
    }
    return false;
}

_Static_assert(sizeof(enum hr_policy_choice) == sizeof(int) && sizeof(enum hr_commit) == sizeof(int),
               "choices are stored as int");

void hr_config_parse(const char *(*lookup)(const char *env, void *arg), void (*complain)(const char *line, void *arg),
                     void *arg, struct hr_config *config_out)
{
    char line[HR_LOG_LINE_BYTES - 16];
    memset(config_out, 0, sizeof *config_out);
    for (const struct hr_setting *s = table; s < table + SETTING_COUNT; s++) {
        const char *text = lookup(s->env, arg);
        if (text != NULL && *text == '\0')
            text = NULL; /* VAR= is how a shell says 'not set' */
        if (text != NULL && !parse_setting(s, text, config_out)) {
            snprintf(line, sizeof line, "%s=%.200s is not understood (%s); using %s", s->env, text, s->accepted,
                     s->default_text);
            complain(line, arg);
            text = NULL;
        } else if (text != NULL && s->effect == HR_EFFECT_LATER && strcmp(text, s->default_text) != 0) {
            snprintf(line, sizeof line, "%s=%.200s has no effect in this version", s->env, text);
            complain(line, arg);
        }
        if (text == NULL)
            parse_setting(s, s->default_text, config_out);
    }
}

static const char *from_environment(const char *env, void *arg)
{
    (void)arg;
    return getenv(env);
}

static void to_stderr(const char *line, void *arg)
{
    (void)arg;
    hr_log_stderr("%s", line);
}

const struct hr_config *hr_config(void)
{
    enum { UNREAD, READING, READ };
    static struct hr_config config;
    static _Atomic int state;
    int seen = atomic_load_explicit(&state, memory_order_acquire);
    if (__builtin_expect(seen == READ, 1))
        return &config;
    seen = UNREAD;
    if (atomic_compare_exchange_strong(&state, &seen, READING)) {
        int kept_errno = errno;
        hr_config_parse(from_environment, to_stderr, NULL, &config);
        atomic_store_explicit(&state, READ, memory_order_release);
        errno = kept_errno;
    } else {
        while (atomic_load_explicit(&state, memory_order_acquire) != READ) /* microseconds, once in a process's life */
            sched_yield();
    }
    return &config;
}

const struct hr_setting *hr_config_settings(size_t *count_out)
{
    *count_out = SETTING_COUNT;
    return table;
}

const struct hr_setting *hr_config_find(const char *name)
{
    for (const struct hr_setting *s = table; s < table + SETTING_COUNT; s++) {
        if (strcmp(name, s->env) == 0 || strcmp(name, s->flag) == 0)
            return s;
    }
    return NULL;
}

bool hr_config_accepts(const struct hr_setting *setting, const char *text)
{
    struct hr_config scratch;
    return parse_setting(setting, text, &scratch);
}

uint64_t hr_config_size(const struct hr_size *size, uint64_t whole_bytes, uint64_t unset_bytes)
{
    switch (size->kind) {
    case HR_SIZE_BYTES: return size->value;
    case HR_SIZE_PERCENT: return whole_bytes / 100 * size->value + whole_bytes % 100 * size->value / 100;
    case HR_SIZE_UNSET: break;
    }
    return unset_bytes;
}

bool hr_config_path(const char *pattern, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (const char *p = pattern; *p != '\0'; p++) {
        char piece[256] = {*p, '\0'};
        if (*p == '%' && p[1] == 'p')
            snprintf(piece, sizeof piece, "%ld", (long)getpid());
        else if (*p == '%' && p[1] == 'h' && gethostname(piece, sizeof piece - 1) != 0)
            snprintf(piece, sizeof piece, "localhost");
        if (*p == '%' && (p[1] == 'p' || p[1] == 'h' || p[1] == '%'))
            p++;
        size_t bytes = strnlen(piece, sizeof piece);
        if (used + bytes >= out_bytes) {
            out[0] = '\0';
            return false;
        }
        memcpy(out + used, piece, bytes);
        used += bytes;
    }
    out[used] = '\0';
    return true;
}
