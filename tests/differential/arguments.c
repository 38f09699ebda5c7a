#include "calls.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Evaluation of arguments. What a call may write to lies in one array that is full of a pattern before the call, so that outputs that it left
 * alone are seen as such.
 */
#define PATTERN UINT64_C(0xa5a5a5a5a5a5a5a5)

static uint64_t room[4096];
static int room_words;

static struct {
    char argument[TEXT];
    uint64_t *at;
    size_t bytes;
} outputs[32];
static int output_count;

static uint64_t *take_room(size_t bytes)
{
    uint64_t *at = &room[room_words];
    room_words += (int)((bytes + 7) / 8);
    if (room_words > (int)(sizeof room / sizeof room[0]))
        exit(3);
    for (uint64_t *word = at; word < &room[room_words]; word++)
        *word = PATTERN;
    return at;
}

static uint64_t output(const char *argument, size_t bytes)
{
    if (output_count == (int)(sizeof outputs / sizeof outputs[0]))
        exit(3);
    snprintf(outputs[output_count].argument, TEXT, "%s", argument);
    outputs[output_count].at = take_room(bytes);
    outputs[output_count].bytes = bytes;
    return (uint64_t)(uintptr_t)outputs[output_count++].at;
}

/* ---- alternatives ---- */

static struct variable *plain_variable(const char *argument)
{
    argument += *argument == '^' || *argument == '=';
    size_t bytes = strcspn(argument, "+");
    return isalpha((unsigned char)*argument) ? variable(argument, bytes) : NULL;
}

bool alternative(const char *argument, int which, struct replacement *out)
{
    static const char *const of_dev[] = {"0", "+1", "end", "managed", "pinned", "peer", "heap", "freed", "nowhere"};
    static const char *const of_number[] = {"0", "less", "more", "3m+1", "vast"};
    static const char *const of_stream[] = {"0", "1", "2", "other", "peers", "ended", "capturing"};
    static const char *const of_context[] = {"0", "other", "peers"};
    static const char *const of_output[] = {"0"};
    const char *const *labels = of_output;
    size_t count = 0;
    const struct variable *v = plain_variable(argument);
    enum kind kind = *argument == '#' ? NUMBER : v != NULL ? v->kind : HANDLE;
    if (*argument == '&' || *argument == '>')
        count = 1;
    else if (*argument == '=')
        count = 0;
    else if (kind == DEV)
        labels = of_dev, count = sizeof of_dev / sizeof *of_dev - (*argument == '^' ? 2 : 0);
    else if (*argument == '#')
        labels = of_number, count = sizeof of_number / sizeof *of_number;
    else if (kind == STREAM)
        labels = of_stream, count = sizeof of_stream / sizeof *of_stream;
    else if (kind == CONTEXT)
        labels = of_context, count = sizeof of_context / sizeof *of_context;
    if (which >= (int)count)
        return false;
    *out = (struct replacement){.argument = argument, .which = which};
    snprintf(out->label, sizeof out->label, "%s", labels[which]);
    return true;
}

static uint64_t value_of(const char *name)
{
    const struct variable *v = variable(name, strlen(name));
    return v != NULL ? v->value : 0;
}

static uint64_t freed_memory(void)
{
    uint64_t address = 0;
    MUST("cuMemAlloc_v2", (uint64_t)(uintptr_t)&address, 3 << 20);
    MUST("cuMemFree_v2", address);
    return address;
}

static uint64_t ended_stream(void)
{
    uint64_t stream = 0;
    MUST("cuStreamCreate", (uint64_t)(uintptr_t)&stream, 1);
    MUST("cuStreamDestroy_v2", stream);
    return stream;
}

static uint64_t replaced(struct prepared *p, const struct replacement *instead)
{
    const char *label = instead->label;
    const struct variable *v = plain_variable(instead->argument);
    uint64_t given = *instead->argument == '#' ? number(instead->argument + 1) : 0;
    if (strcmp(label, "+1") == 0)
        return v->value + 1;
    if (strcmp(label, "end") == 0)
        return v->value + v->bytes;
    if (strcmp(label, "freed") == 0)
        return freed_memory();
    if (strcmp(label, "managed") == 0)
        return value_of("M");
    if (strcmp(label, "pinned") == 0)
        return value_of("h");
    if (strcmp(label, "peer") == 0)
        return value_of("D");
    if (strcmp(label, "heap") == 0)
        return value_of("q");
    if (strcmp(label, "nowhere") == 0)
        return 0x1234000;
    if (strcmp(label, "less") == 0)
        return given - 1;
    if (strcmp(label, "more") == 0)
        return given + 1;
    if (strcmp(label, "3m+1") == 0)
        return (3 << 20) + 1;
    if (strcmp(label, "vast") == 0)
        return (uint64_t)1 << 62;
    if (strcmp(label, "other") == 0)
        return v->kind == STREAM ? value_of("t") : value_of("C2");
    if (strcmp(label, "peers") == 0)
        return v->kind == STREAM ? value_of("p") : value_of("P");
    if (strcmp(label, "ended") == 0)
        return ended_stream();
    if (strcmp(label, "capturing") == 0) {
        MUST("cuStreamBeginCapture_v2", value_of("k"), 2);
        p->captures = true;
        return value_of("k");
    }
    return number(label);
}

/* ---- evaluation ---- */

struct evaluation {
    struct prepared *p;
    const struct replacement *instead;
    int replacements, iteration;
};

static uint64_t evaluate(const struct evaluation *e, const char *argument, const char *place);

/* Up to the comma or bracket that ends it. */
static size_t element_bytes(const char *at)
{
    size_t bytes = 0;
    for (int depth = 0; at[bytes] != 0 && (depth > 0 || (at[bytes] != ',' && at[bytes] != ']')); bytes++)
        depth += (at[bytes] == '[') - (at[bytes] == ']');
    return bytes;
}

static uint64_t evaluate_array(const struct evaluation *e, const char *argument)
{
    bool narrow = strncmp(argument, "[4:", 3) == 0;
    char element[TEXT];
    uint64_t values[64], count = 0;
    for (const char *at = argument + (narrow ? 3 : 1); *at != 0 && *at != ']';) {
        size_t bytes = element_bytes(at);
        snprintf(element, sizeof element, "%.*s", (int)bytes, at);
        values[count++] = evaluate(e, element, argument);
        at += bytes + (at[bytes] == ',');
    }
    uint64_t *words = take_room(count * 8);
    for (uint64_t i = 0; i < count; i++) {
        if (narrow)
            ((uint32_t *)words)[i] = (uint32_t)values[i];
        else
            words[i] = values[i];
    }
    return (uint64_t)(uintptr_t)words;
}

static uint64_t evaluate_structure(const struct evaluation *e, const char *name)
{
    const struct structure *s = structure(name);
    if (s == NULL) {
        fprintf(stderr, "no structure %s\n", name);
        exit(3);
    }
    char *bytes = (char *)take_room(structure_bytes(s));
    memset(bytes, 0, structure_bytes(s));
    for (int i = 0; i < s->count; i++) {
        uint64_t value = evaluate(e, s->field[i].argument, s->field[i].argument);
        if (strchr("{", *s->field[i].argument) == NULL)
            memcpy(bytes + s->field[i].offset, &value, s->field[i].bytes < 8 ? s->field[i].bytes : 8);
    }
    return (uint64_t)(uintptr_t)bytes;
}

static uint64_t evaluate_name(const char *argument)
{
    size_t bytes = strcspn(argument, "+");
    const struct variable *v = variable(argument, bytes);
    if (v == NULL)
        return 0; /* what should have been made was not: the same in both runs, or seen there */
    return v->value + (argument[bytes] == '+' ? number(argument + bytes + 1) : 0);
}

static uint64_t evaluate(const struct evaluation *e, const char *argument, const char *place)
{
    const struct variable *v = plain_variable(argument);
    if (v != NULL && v->kind == STREAM)
        e->p->uses_stream = true;
    for (int i = 0; i < e->replacements; i++) {
        if (e->instead[i].argument == place && argument == place)
            return replaced(e->p, &e->instead[i]);
    }
    switch (*argument) {
    case '&': return output(argument, 8);
    case '>': return output(argument, strcmp(argument, ">id") == 0 ? 8 : number(argument + 1));
    case '@': return evaluate_structure(e, argument + 1);
    case '[': return evaluate_array(e, argument);
    case '#': return number(argument + 1);
    case '%': return number(argument + 1) + (uint64_t)e->iteration;
    case '"': {
        char *text = (char *)take_room(strlen(argument));
        snprintf(text, strlen(argument) - 1, "%s", argument + 1);
        return (uint64_t)(uintptr_t)text;
    }
    default: break;
    }
    if (strncmp(argument, "loc:", 4) == 0)
        return number(argument + 4) == 0 && argument[4] != '0'
                   ? (uint64_t)strtoul(argument + 4, NULL, 10)
                   : (uint64_t)strtoul(argument + 4, NULL, 10) |
                         (uint64_t)(int)strtol(strrchr(argument, ':') + 1, NULL, 10) << 32;
    if (*argument == '^' || *argument == '=')
        argument++;
    if (isalpha((unsigned char)*argument))
        return evaluate_name(argument);
    return number(argument);
}

static const char *label_of(const char *argument, const struct replacement *instead, int replacements, int iteration)
{
    static char text[TEXT + 32];
    for (int i = 0; i < replacements; i++) {
        if (instead[i].argument == argument) {
            snprintf(text, sizeof text, "%s<%s>", argument, instead[i].label);
            return text;
        }
    }
    if (*argument == '%')
        snprintf(text, sizeof text, "%llu", (unsigned long long)number(argument + 1) + (unsigned)iteration);
    else
        snprintf(text, sizeof text, "%s", argument);
    return text;
}

void prepare(struct prepared *p, char arguments[][TEXT], int count, const struct replacement *instead, int replacements,
             int iteration)
{
    struct evaluation e = {p, instead, replacements, iteration};
    memset(p, 0, sizeof *p);
    room_words = output_count = 0;
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        p->value[i] = evaluate(&e, arguments[i], arguments[i]);
        used += (size_t)snprintf(p->text + used, sizeof p->text - used, "%s%s", i > 0 ? ", " : "",
                                 label_of(arguments[i], instead, replacements, iteration));
        const struct structure *s = arguments[i][0] == '@' ? structure(arguments[i] + 1) : NULL;
        for (int k = 0; s != NULL && k < s->count; k++) {
            for (int r = 0; r < replacements; r++) {
                if (instead[r].argument == s->field[k].argument)
                    used += (size_t)snprintf(p->text + used, sizeof p->text - used, ".%s",
                                             label_of(s->field[k].argument, instead, replacements, iteration));
            }
        }
    }
}

/* ---- outputs ---- */

/* "&name:K:N" */
static void keep_output(const char *argument, uint64_t value)
{
    char text[TEXT], *part = text;
    snprintf(text, sizeof text, "%s", argument + 1);
    const char *name = strsep(&part, ":"), *kind = strsep(&part, ":"), *bytes = part;
    enum kind k = kind == NULL                  ? HANDLE
                  : strcmp(kind, "dev") == 0    ? DEV
                  : strcmp(kind, "host") == 0   ? HOST
                  : strcmp(kind, "stream") == 0 ? STREAM
                  : strcmp(kind, "ctx") == 0    ? CONTEXT
                                                : HANDLE;
    set_variable(name, k, value, bytes != NULL ? number(bytes) : 0);
}

static void print_output(const uint64_t *at, size_t bytes)
{
    bool any = false;
    printf(" {");
    for (size_t i = 0; i < (bytes + 7) / 8; i++) {
        uint64_t value = at[i];
        if (value == PATTERN)
            continue;
        if (value >> 32 == PATTERN >> 32)
            printf("%s%zu:%d", any ? " " : "", i, (int)(uint32_t)value);
        else
            printf("%s%zu:%s", any ? " " : "", i, shown(value));
        any = true;
    }
    printf("%s}", any ? "" : "untouched");
}

/* Numbers of allocations: which are the same. */
static void print_id(uint64_t id)
{
    static uint64_t ids[256];
    static int count;
    int i = 0;
    while (i < count && ids[i] != id)
        i++;
    if (i == count && count < (int)(sizeof ids / sizeof ids[0]))
        ids[count++] = id;
    printf(" {id %d}", i);
}

void take_outputs(const struct prepared *p, bool keep)
{
    (void)p;
    for (int i = 0; i < output_count; i++) {
        if (*outputs[i].argument == '&' && keep && *outputs[i].at != PATTERN) {
            keep_output(outputs[i].argument, *outputs[i].at);
            printf(" {set}");
        } else if (*outputs[i].argument == '&' && *outputs[i].at != PATTERN && *outputs[i].at > 65535) {
            printf(" {some}");
        } else if (strcmp(outputs[i].argument, ">id") == 0 && *outputs[i].at != PATTERN && *outputs[i].at != 0) {
            print_id(*outputs[i].at);
        } else {
            print_output(outputs[i].at, outputs[i].bytes);
        }
    }
}
