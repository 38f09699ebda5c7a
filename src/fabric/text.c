#include "fabric/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hr_text_add(struct hr_text *text, const char *format, ...)
{
    va_list args;

    if (text->failed)
        return;
    va_start(args, format);
    int need = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (need < 0) {
        text->failed = true;
        return;
    }
    if (text->count + (size_t)need + 1 > text->room) {
        size_t room = (text->room + (size_t)need + 1) * 2;
        char *bytes = realloc(text->bytes, room);
        if (!bytes) {
            text->failed = true;
            return;
        }
        text->bytes = bytes;
        text->room = room;
    }
    va_start(args, format);
    vsnprintf(text->bytes + text->count, text->room - text->count, format, args);
    va_end(args);
    text->count += (size_t)need;
}

char *hr_text_take(struct hr_text *text)
{
    char *bytes = text->bytes;

    if (!text->failed && !bytes)
        bytes = calloc(1, 1);
    if (text->failed) {
        free(bytes);
        bytes = NULL;
    }
    *text = (struct hr_text){0};
    return bytes;
}

int hr_text_refuse(struct hr_text_error *error_out, uint32_t line, const char *format, ...)
{
    va_list args;

    if (!error_out)
        return -EINVAL;
    error_out->line = line;
    va_start(args, format);
    vsnprintf(error_out->text, sizeof error_out->text, format, args);
    va_end(args);
    for (char *c = error_out->text; *c; c++) {
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    return -EINVAL;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return 99;
}

bool hr_text_unsigned(const char *text, uint64_t low, uint64_t high, uint64_t *value_out)
{
    uint64_t value = 0;
    int base = 10;

    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        base = 16;
        text += 2;
    }
    if (!*text)
        return false;
    for (; *text; text++) {
        int digit = digit_of(*text);
        if (digit >= base || __builtin_mul_overflow(value, (uint64_t)base, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value))
            return false;
    }
    if (value < low || value > high)
        return false;
    *value_out = value;
    return true;
}

bool hr_text_real(const char *text, double low, double high, double *value_out)
{
    double value = 0, scale = 0;
    int digits = 0;

    for (; *text; text++) {
        if (*text == '.' && scale == 0) {
            scale = 1;
            continue;
        }
        if (*text < '0' || *text > '9' || ++digits > 18)
            return false;
        if (scale != 0) {
            scale *= 10;
            value += (*text - '0') / scale;
        } else {
            value = value * 10 + (*text - '0');
        }
    }
    if (digits == 0 || value < low || value > high)
        return false;
    *value_out = value;
    return true;
}
