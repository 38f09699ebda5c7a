/* From rows to forms: alternatives, modifiers, types; how the documents show a row. */
#include "ptx/conformance/conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const modifier_names[] = {
#define X(name) #name,
    FORM_MODIFIERS(X)
#undef X
};
static const char *const type_names[T_COUNT] = {
    [T_NONE] = "",     [T_PRED] = "pred",     [T_B8] = "b8",         [T_B16] = "b16",     [T_B32] = "b32",
    [T_B64] = "b64",   [T_U8] = "u8",         [T_U16] = "u16",       [T_U32] = "u32",     [T_U64] = "u64",
    [T_S8] = "s8",     [T_S16] = "s16",       [T_S32] = "s32",       [T_S64] = "s64",     [T_F16] = "f16",
    [T_F32] = "f32",   [T_F64] = "f64",       [T_BF16] = "bf16",     [T_F16X2] = "f16x2", [T_BF16X2] = "bf16x2",
    [T_TF32] = "tf32", [T_E4M3X2] = "e4m3x2", [T_E5M2X2] = "e5m2x2", [T_U16X2] = "u16x2", [T_S16X2] = "s16x2",
    [T_U4] = "u4",     [T_S4] = "s4",         [T_U2] = "u2",         [T_S2] = "s2",
};

static void add_word(struct form *f, const char *word)
{
    for (unsigned i = 1; i < T_COUNT; i++) {
        if (!strcmp(type_names[i], word)) {
            if (f->type_count < 4)
                f->types[f->type_count++] = (enum form_type)i;
            return;
        }
    }
    for (unsigned i = 0; i < sizeof(modifier_names) / sizeof(modifier_names[0]); i++)
        if (!strcmp(modifier_names[i], word))
            f->modifiers[i / 64] |= UINT64_C(1) << (i % 64);
}

static void describe(struct form *f, const struct conform_row *row)
{
    f->row = row;
    const char *set_up = strchr(f->text, '#'), *own = set_up ? set_up + 2 : f->text;
    snprintf(f->shown, sizeof(f->shown), "%.*s", (int)strcspn(own, " ;"), own);
    snprintf(f->name, sizeof(f->name), "%.*s", (int)strcspn(f->shown, "."), f->shown);
    char copy[sizeof(f->shown)], *rest = copy;
    memcpy(copy, f->shown, sizeof(copy));
    strsep(&rest, ".");
    while (rest)
        add_word(f, strsep(&rest, "."));
}

struct expansion {
    const struct conform_row *row;
    struct form *forms;
    size_t count, capacity;
};

/* prefix is settled; rest may hold alternatives. */
static void expand(struct expansion *e, const char *prefix, const char *rest)
{
    const char *open = strchr(rest, '<');
    char text[CONFORM_TEXT];
    if (!open) {
        if (e->count == e->capacity) {
            e->capacity = e->capacity ? e->capacity * 2 : 16;
            e->forms = realloc(e->forms, e->capacity * sizeof(*e->forms));
            if (!e->forms)
                abort();
        }
        struct form *f = &e->forms[e->count++];
        memset(f, 0, sizeof(*f));
        snprintf(f->text, sizeof(f->text), "%s%s", prefix, rest);
        describe(f, e->row);
        return;
    }
    const char *close = strchr(open, '>');
    for (const char *at = open + 1; at <= close; at += strcspn(at, "|>") + 1) {
        if (!e->row->kinds && at > open + 1) /* only listed: one stands for all */
            break;
        snprintf(text, sizeof(text), "%s%.*s%.*s", prefix, (int)(open - rest), rest, (int)strcspn(at, "|>"), at);
        expand(e, text, close + 1);
    }
}

struct form *conform_expand(const struct conform_row *row, size_t *count_out)
{
    struct expansion e = {.row = row};
    expand(&e, "", row->text);
    *count_out = e.count;
    return e.forms;
}

void conform_pattern(const struct conform_row *row, char *out, size_t bytes)
{
    size_t at = 0;
    bool inside = false, optional = false;
    const char *set_up = strchr(row->text, '#');
    for (const char *c = set_up ? set_up + 2 : row->text; *c && at + 3 < bytes; c++) {
        if (*c == '<') {
            const char *close = strchr(c, '>');
            optional = c[1] == '|' || close[-1] == '|';
            inside = true;
            out[at++] = optional ? '{' : '(';
            c += c[1] == '|';
        } else if (*c == '>') {
            inside = false;
            out[at++] = optional ? '}' : ')';
        } else if (inside && *c == '|') {
            out[at++] = ' ';
        } else if (!inside && (*c == ' ' || *c == ';')) {
            break;
        } else {
            out[at++] = *c;
        }
    }
    out[at] = '\0';
}

/* Registers: by class and position, 0 .. 7 for results, 8 .. for inputs. */
static const char *class_of(char kind)
{
    switch (kind) {
    case 'p': return "%p";
    case 'w':
    case 'h':
    case 'b':
    case 't': return "%rs";
    case 'l':
    case 'd':
    case 'm': return "%rd";
    default: return "%r";
    }
}

struct layout {
    const char *results, *inputs;
    unsigned result_count, input_count;
    unsigned result_register[CONFORM_RESULTS];
};

static struct layout layout_of(const struct form *f, unsigned number, bool aliased)
{
    const char *colon = strchr(f->row->kinds, ':');
    struct layout l = {.results = f->row->kinds,
                       .inputs = colon + 1,
                       .result_count = (unsigned)(colon - f->row->kinds),
                       .input_count = (unsigned)strlen(colon + 1)};
    for (unsigned i = 0; i < l.result_count; i++)
        l.result_register[i] = i;
    for (unsigned i = 0; aliased && l.result_count == 1 && l.results[0] != 'm' && i < l.input_count; i++) {
        unsigned k = (number + i) % l.input_count;
        if (class_of(l.inputs[k]) == class_of(l.results[0]) && l.inputs[k] != 'm' && l.inputs[k] != 'p') {
            l.result_register[0] = CONFORM_RESULTS + k;
            break;
        }
    }
    return l;
}

static char *load_inputs(char *at, const struct layout *l)
{
    for (unsigned k = 0; k < l->input_count; k++) {
        const char *class = class_of(l->inputs[k]);
        unsigned reg = CONFORM_RESULTS + k;
        if (l->inputs[k] == 'm')
            at += sprintf(at, "add.u64 %%rd%u, %%u1, %u;\n", reg, k * CONFORM_STRIDE);
        else if (l->inputs[k] == 'p')
            at += sprintf(at, "ld.global.u32 %%t0, [%%u1+%u]; and.b32 %%t0, %%t0, 1; setp.ne.u32 %%p%u, %%t0, 0;\n",
                          k * CONFORM_STRIDE, reg);
        else
            at += sprintf(at, "ld.global.u%s %s%u, [%%u1+%u];\n",
                          class[2] == 's'   ? "16"
                          : class[2] == 'd' ? "64"
                                            : "32",
                          class, reg, k * CONFORM_STRIDE);
    }
    return at;
}

static char *store_results(char *at, const struct layout *l)
{
    for (unsigned k = 0; k < l->result_count; k++) {
        const char *class = class_of(l->results[k]);
        unsigned place = (CONFORM_INPUTS + k) * CONFORM_STRIDE, reg = l->result_register[k];
        if (l->results[k] == 'm')
            continue;
        if (l->results[k] == 'p')
            at += sprintf(at, "selp.u32 %%t0, 1, 0, %%p%u; st.global.u32 [%%u1+%u], %%t0;\n", reg, place);
        else
            at += sprintf(at, "st.global.u%s [%%u1+%u], %s%u;\n",
                          class[2] == 's'   ? "16"
                          : class[2] == 'd' ? "64"
                                            : "32",
                          place, class, reg);
    }
    return at;
}

static char *put_instruction(char *at, const struct form *f, const struct layout *l)
{
    for (const char *c = f->text; *c; c++) {
        if (*c != '$') {
            *at++ = *c == '#' ? ' ' : *c;
            continue;
        }
        c++;
        if (*c >= 'D' && *c < 'D' + CONFORM_RESULTS)
            at += sprintf(at, "%s%u", class_of(l->results[*c - 'D']), l->result_register[*c - 'D']);
        else
            at += sprintf(at, "%s%u", class_of(l->inputs[*c - 'a']), (unsigned)(*c - 'a') + CONFORM_RESULTS);
    }
    return at + sprintf(at, ";\n");
}

char *conform_module(const struct form *forms, size_t count, bool aliased)
{
    char *text = malloc(count * 6144 + 128), *at = text;
    if (!text)
        abort();
    at +=
        sprintf(at, ".version 7.8\n.target %s\n.address_size 64\n", forms->row->target ? forms->row->target : "sm_90");
    for (size_t i = 0; i < count; i++) {
        struct layout l = layout_of(&forms[i], (unsigned)i, aliased);
        at += sprintf(at,
                      ".visible .entry k%zu(.param .u64 base)\n{\n.reg .pred %%p<40>; .reg .b16 %%rs<40>; .reg .b32 "
                      "%%r<40>, %%t<4>; .reg .b64 %%rd<40>, %%u<4>;\nmov.u32 %%t0, %%tid.x; mov.u32 %%t1, %%ctaid.x; "
                      "mov.u32 %%t2, %%ntid.x;\nmad.lo.u32 %%t0, %%t1, %%t2, %%t0; mul.wide.u32 %%u0, %%t0, 8; "
                      "ld.param.u64 %%u1, [base]; add.u64 %%u1, %%u1, %%u0;\n",
                      i);
        at = load_inputs(at, &l);
        at = put_instruction(at, &forms[i], &l);
        at = store_results(at, &l);
        at += sprintf(at, "ret;\n}\n");
    }
    *at = '\0';
    return text;
}
