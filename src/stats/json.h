/* A line of JSON, built in a buffer of fixed size without allocation. A line that does not fit is marked, never cut midway. */
#ifndef HR_STATS_JSON_H
#define HR_STATS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hr_json {
    char *text;
    size_t cap, length;
    bool overflow;
    bool comma; /* the next value needs one before it */
};
void hr_json_start(struct hr_json *j, char *buffer, size_t cap);
void hr_json_open(struct hr_json *j, const char *key, char bracket); /* '{' or '['; key NULL in arrays and at the top */
void hr_json_close(struct hr_json *j, char bracket);
void hr_json_text(struct hr_json *j, const char *key, const char *value); /* escaped; invalid UTF-8 becomes '?' */
void hr_json_number(struct hr_json *j, const char *key, uint64_t value);

#endif
