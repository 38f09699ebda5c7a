/* Building and reading text for the fabric's file formats. */
#ifndef HR_FABRIC_TEXT_H
#define HR_FABRIC_TEXT_H

#include "fabric/topology.h"

/* A growing string. `failed` is sticky: without memory everything later is dropped. */
struct hr_text {
    char *bytes;
    size_t count;
    size_t room;
    bool failed;
};

void hr_text_add(struct hr_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The string, the caller's to free, or NULL if memory ran out. `text` is empty afterwards. */
char *hr_text_take(struct hr_text *text);

/* Fills error_out (NULL allowed) and returns -EINVAL. Bytes that do not print become '?'. */
int hr_text_refuse(struct hr_text_error *error_out, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whole-string numbers; false unless all of `text` is one number in [low, high]. Base 10, or 16 after "0x". */
bool hr_text_unsigned(const char *text, uint64_t low, uint64_t high, uint64_t *value_out);
/* A plain decimal fraction (digits with at most one point), whatever the locale. */
bool hr_text_real(const char *text, double low, double high, double *value_out);

#endif
