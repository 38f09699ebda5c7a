#include "stats/json.h"

#include <stdio.h>
#include <string.h>

void hr_json_start(struct hr_json *j, char *buffer, size_t cap)
{
    *j = (struct hr_json){.text = buffer, .cap = cap};
}

static void put(struct hr_json *j, const char *s, size_t n)
{
    if (j->overflow || j->length + n + 1 > j->cap) {
        j->overflow = true;
        return;
    }
    memcpy(j->text + j->length, s, n);
    j->length += n;
}

static void put_string(struct hr_json *j, const char *s)
{
    put(j, "\"", 1);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        char escape[8];
        if (c == '"' || c == '\\') {
            escape[0] = '\\';
            escape[1] = (char)c;
            put(j, escape, 2);
        } else if (c < 0x20) {
            put(j, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
        } else if (c < 0x80) {
            put(j, s, 1);
        } else {
            /* A whole well-formed sequence passes; anything else becomes '?'. */
            size_t n = c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;
            bool ok = n > 0 && c < 0xf5;
            for (size_t i = 1; ok && i < n; i++)
                ok = ((unsigned char)s[i] & 0xc0) == 0x80;
            put(j, ok ? s : "?", ok ? n : 1);
            if (ok)
                s += n - 1;
        }
    }
    put(j, "\"", 1);
}

static void lead(struct hr_json *j, const char *key)
{
    if (j->comma)
        put(j, ",", 1);
    if (key) {
        put_string(j, key);
        put(j, ":", 1);
    }
    j->comma = true;
}

void hr_json_open(struct hr_json *j, const char *key, char bracket)
{
    lead(j, key);
    put(j, &bracket, 1);
    j->comma = false;
}

void hr_json_close(struct hr_json *j, char bracket)
{
    put(j, &bracket, 1);
    j->comma = true;
}

void hr_json_text(struct hr_json *j, const char *key, const char *value)
{
    lead(j, key);
    put_string(j, value);
}

void hr_json_number(struct hr_json *j, const char *key, uint64_t value)
{
    char digits[24];
    lead(j, key);
    put(j, digits, (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value));
}
