#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct variable variables[1024];
static unsigned set_at[1024], sets; /* which was set last: addresses are used again */
static int count;

struct variable *variable(const char *name, size_t name_bytes)
{
    for (int i = count - 1; i >= 0; i--) {
        if (strlen(variables[i].name) == name_bytes && memcmp(variables[i].name, name, name_bytes) == 0)
            return &variables[i];
    }
    return NULL;
}

void set_variable(const char *name, enum kind kind, uint64_t value, uint64_t bytes)
{
    struct variable *v = variable(name, strlen(name));
    if (v == NULL && count < (int)(sizeof variables / sizeof variables[0]))
        v = &variables[count++];
    if (v == NULL)
        exit(3);
    *v = (struct variable){.kind = kind, .value = value, .bytes = bytes};
    snprintf(v->name, sizeof v->name, "%s", name);
    set_at[v - variables] = ++sets;
}

/* Addresses and handles differ from run to run; everything else is below this. */
#define SMALL ((uint64_t)1 << 40)

const char *shown(uint64_t value)
{
    static char text[8][64];
    static int turn;
    char *out = text[turn++ % 8];
    if (value < 65536 || ~value < 65536) {
        snprintf(out, sizeof text[0], "%lld", (long long)value);
        return out;
    }
    const struct variable *best = NULL;
    for (int i = 0; i < count; i++) {
        const struct variable *v = &variables[i];
        if (v->value >= 65536 && value >= v->value && value - v->value <= v->bytes &&
            (best == NULL || set_at[i] > set_at[best - variables]))
            best = v;
    }
    if (best != NULL && value == best->value)
        snprintf(out, sizeof text[0], "%s", best->name);
    else if (best != NULL)
        snprintf(out, sizeof text[0], "%s+%llu", best->name, (unsigned long long)(value - best->value));
    else if (value < SMALL)
        snprintf(out, sizeof text[0], "%llu", (unsigned long long)value);
    else
        snprintf(out, sizeof text[0], "?");
    return out;
}

uint64_t number(const char *text)
{
    char *end;
    uint64_t n = (uint64_t)strtoll(text, &end, 0);
    return *end == 'k' ? n << 10 : *end == 'm' ? n << 20 : *end == 'g' ? n << 30 : n;
}
