/*
 * vprintf and __assertfail. A record is formatted by the thread that prints it, from the packed arguments that the compiler
 * has left in local memory, and waits in the queue until the host takes it.
 */
#include "simgpu/ptx/out.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TEXT 65536    /* of one record, and of one string */
#define RECORD_OVERHEAD 16 /* what a record takes of the queue besides its arguments */

/* ---- the queue ---- */

struct record {
    struct record *next;
    size_t cost, bytes;
    char text[];
};

struct ptx_fifo {
    pthread_mutex_t lock; /* guards all below; a leaf */
    size_t limit, cost;
    struct record *first, **last;
};

struct ptx_fifo *ptx_fifo_create(size_t bytes)
{
    struct ptx_fifo *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    pthread_mutex_init(&f->lock, NULL);
    f->limit = bytes;
    f->last = &f->first;
    return f;
}

static void drop_first(struct ptx_fifo *f)
{
    struct record *r = f->first;
    f->first = r->next;
    f->cost -= r->cost;
    if (!f->first)
        f->last = &f->first;
    free(r);
}

void ptx_fifo_destroy(struct ptx_fifo *f)
{
    if (!f)
        return;
    while (f->first)
        drop_first(f);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

char *ptx_fifo_take(struct ptx_fifo *f, size_t *bytes_out)
{
    size_t bytes = 0, at = 0;
    pthread_mutex_lock(&f->lock);
    for (const struct record *r = f->first; r; r = r->next)
        bytes += r->bytes;
    char *text = bytes ? malloc(bytes) : NULL;
    while (f->first && (text || !bytes)) {
        if (text) /* else no record has any bytes */
            memcpy(text + at, f->first->text, f->first->bytes);
        at += f->first->bytes;
        drop_first(f);
    }
    pthread_mutex_unlock(&f->lock);
    *bytes_out = at;
    return text;
}

static bool put(struct ptx_fifo *f, const char *text, size_t bytes, size_t cost)
{
    struct record *r = malloc(sizeof(*r) + bytes);
    if (!r)
        return false;
    *r = (struct record){.cost = cost, .bytes = bytes};
    memcpy(r->text, text, bytes);
    pthread_mutex_lock(&f->lock);
    while (f->first && f->cost + cost > f->limit)
        drop_first(f);
    *f->last = r;
    f->last = &r->next;
    f->cost += cost;
    pthread_mutex_unlock(&f->lock);
    return true;
}

/* ---- formatting ---- */

struct text {
    char *at;
    size_t bytes, capacity;
    bool failed;
};

static void add(struct text *t, const char *from, size_t bytes)
{
    if (t->bytes + bytes > MOST_TEXT)
        bytes = MOST_TEXT - t->bytes;
    while (t->bytes + bytes + 1 > t->capacity && !t->failed) {
        size_t more = t->capacity ? t->capacity * 2 : 256;
        char *bigger = realloc(t->at, more);
        if (bigger)
            t->at = bigger, t->capacity = more;
        else
            t->failed = true;
    }
    if (t->failed)
        return;
    if (bytes)
        memcpy(t->at + t->bytes, from, bytes);
    t->bytes += bytes;
    t->at[t->bytes] = '\0';
}

struct lane {
    struct ptx_run *r;
    const struct ptx_warp *w;
    unsigned lane;
    uint32_t pc;
    uint64_t arguments; /* generic address of the next one */
    unsigned count;     /* taken so far */
    bool faulted;
};

static bool read_device(struct lane *l, uint64_t address, void *to, uint32_t bytes)
{
    struct ptx_access access = {PTX_SPACE_GENERIC, bytes, bytes, false, l->pc, false};
    const uint8_t *at = ptx_run_at(l->r, l->w, &access, l->lane, address, NULL);
    if (at)
        memcpy(to, at, bytes);
    else
        l->faulted = true;
    return at;
}

/* A NUL-terminated string of the device's. */
static struct text read_string(struct lane *l, uint64_t address)
{
    struct text t = {0};
    add(&t, "", 0);
    for (char c; t.bytes < MOST_TEXT && read_device(l, address, &c, 1) && c; address++)
        add(&t, &c, 1);
    return t;
}

/* Arguments lie as members of a struct would. */
static uint64_t next_argument(struct lane *l, uint32_t bytes)
{
    uint64_t value = 0;
    l->arguments = (l->arguments + bytes - 1) & ~(uint64_t)(bytes - 1);
    if (!l->faulted)
        read_device(l, l->arguments, &value, bytes);
    l->arguments += bytes;
    l->count++;
    return value;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void __attribute__((format(printf, 2, 0))) format(struct text *t, const char *spec, ...)
{
    char small[512], *large = NULL;
    va_list args, again;
    va_start(args, spec);
    va_copy(again, args);
    int bytes = vsnprintf(small, sizeof(small), spec, args);
    va_end(args);
    if (bytes >= (int)sizeof(small) && (large = malloc((size_t)bytes + 1)))
        vsnprintf(large, (size_t)bytes + 1, spec, again);
    va_end(again);
    if (bytes >= (int)sizeof(small) && !large)
        t->failed = true;
    else if (bytes > 0)
        add(t, large ? large : small, (size_t)bytes);
    free(large);
}

struct conversion {
    char spec[48]; /* %, flags, width, precision; room for a length and the letter */
    size_t bytes;
    unsigned longs; /* 0, 1 = l, 2 = ll; 8-byte integers from 1 on */
    unsigned shorts;
    char letter;
};

/* Reads one conversion behind its %. Returns what follows it; NULL = it is none. */
static const char *read_conversion(struct lane *l, const char *at, struct conversion *c)
{
    *c = (struct conversion){.spec = "%", .bytes = 1};
    for (; *at && strchr("-+ #0123456789.*", *at); at++) {
        if (c->bytes > sizeof(c->spec) - 20)
            return NULL;
        if (*at == '*')
            c->bytes += (size_t)snprintf(c->spec + c->bytes, 14, "%d", (int)next_argument(l, 4));
        else
            c->spec[c->bytes++] = *at;
    }
    for (; *at && strchr("hlLqjzt", *at); at++) {
        c->shorts += *at == 'h';
        c->longs += *at != 'h';
    }
    c->letter = *at;
    return *at ? at + 1 : NULL;
}

static void add_integer(struct text *t, struct lane *l, struct conversion *c)
{
    uint64_t value = next_argument(l, c->longs ? 8 : 4);
    bool is_signed = c->letter == 'd' || c->letter == 'i';
    if (!c->longs && is_signed)
        value = (uint64_t)(c->shorts > 1 ? (int8_t)value : c->shorts ? (int16_t)value : (int32_t)value);
    else if (!c->longs)
        value = c->shorts > 1 ? (uint8_t)value : c->shorts ? (uint16_t)value : (uint32_t)value;
    snprintf(c->spec + c->bytes, 4, "ll%c", c->letter);
    format(t, c->spec, (unsigned long long)value);
}

static void add_conversion(struct text *t, struct lane *l, struct conversion *c)
{
    c->spec[c->bytes] = c->letter;
    c->spec[c->bytes + 1] = '\0';
    if (strchr("diuoxX", c->letter)) {
        add_integer(t, l, c);
    } else if (strchr("fFeEgGaA", c->letter)) {
        uint64_t bits = next_argument(l, 8);
        double value;
        memcpy(&value, &bits, 8);
        format(t, c->spec, value);
    } else if (c->letter == 'c') {
        format(t, c->spec, (int)next_argument(l, 4));
    } else if (c->letter == 'p') {
        format(t, c->spec, (void *)(uintptr_t)next_argument(l, 8));
    } else if (c->letter == 's') {
        uint64_t address = next_argument(l, 8);
        struct text string = {0};
        if (address && !l->faulted)
            string = read_string(l, address);
        format(t, c->spec, string.at ? string.at : "(null)");
        free(string.at);
    } else { /* none of C's that devices know: as it stands */
        add(t, c->spec, c->bytes + 1);
    }
}
#pragma GCC diagnostic pop

static struct text format_record(struct lane *l, const char *at)
{
    struct text t = {0};
    while (*at && !l->faulted && !t.failed) {
        size_t plain = strcspn(at, "%");
        add(&t, at, plain);
        at += plain;
        if (!*at)
            break;
        struct conversion c;
        const char *behind = at[1] == '%' ? NULL : read_conversion(l, at + 1, &c);
        if (behind)
            add_conversion(&t, l, &c);
        else
            add(&t, "%", 1);
        at = behind ? behind : at[1] == '%' ? at + 2 : at + 1;
    }
    return t;
}

bool ptx_out_vprintf(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                     uint32_t pc)
{
    int32_t *result = (int32_t *)(void *)ptx_out_at(r, regs, in, 0);
    const uint64_t *address = (const uint64_t *)(void *)ptx_out_at(r, regs, in, 1);
    const uint64_t *arguments = (const uint64_t *)(void *)ptx_out_at(r, regs, in, 2);
    PTX_FOR_LANES (lane, active) {
        struct lane l = {r, w, lane, pc, arguments[lane], 0, false};
        if (!address[lane]) {
            result[lane] = -1;
            continue;
        }
        struct text pattern = read_string(&l, address[lane]);
        struct text t = {0};
        if (!l.faulted && !pattern.failed)
            t = format_record(&l, pattern.at);
        bool good = !l.faulted && !pattern.failed && !t.failed;
        if (good && r->fifo)
            good = put(r->fifo, t.at ? t.at : "", t.bytes, RECORD_OVERHEAD + 8u * l.count);
        free(pattern.at);
        free(t.at);
        if (l.faulted)
            return false;
        result[lane] = good ? (int32_t)l.count : -2;
    }
    return true;
}

/* message, file, line, function, size of a character: told on stderr by each thread that fails, then the grid ends. */
bool ptx_out_assertfail(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                        uint32_t active, uint32_t pc)
{
    const uint64_t *pointer[4] = {NULL};
    for (unsigned k = 0; k < 4; k++)
        if (k != 2)
            pointer[k] = (const uint64_t *)(void *)ptx_out_at(r, regs, in, k);
    const uint32_t *line = (const uint32_t *)(void *)ptx_out_at(r, regs, in, 2);
    PTX_FOR_LANES (lane, active) {
        struct lane l = {r, w, lane, pc, 0, 0, false};
        struct text string[4] = {{0}};
        for (unsigned k = 0; k < 4 && !l.faulted; k++)
            if (k != 2 && pointer[k][lane])
                string[k] = read_string(&l, pointer[k][lane]);
        if (!l.faulted)
            fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
                    string[1].at ? string[1].at : "?", line[lane], string[3].at ? string[3].at : "?",
                    r->block->ctaid[0], r->block->ctaid[1], r->block->ctaid[2], w->tid[0][lane], w->tid[1][lane],
                    w->tid[2][lane], string[0].at ? string[0].at : "?");
        for (unsigned k = 0; k < 4; k++)
            free(string[k].at);
        if (l.faulted)
            return false;
    }
    return ptx_run_fault(r, w, (unsigned)__builtin_ctz(active), PTX_FAULT_ASSERT, pc);
}
