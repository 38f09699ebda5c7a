/*
 * The same scene natively and under headroom, each in a process of its own: what the scene notes (answers of calls, values) has to be
 * the same. For tests that include it once.
 */
#ifndef TESTS_SHIM_NATIVE_H
#define TESTS_SHIM_NATIVE_H

#include "core_test.h"

#define NOTES_MOST 20000

static struct notes {
    size_t count;
    bool native; /* the scene runs without headroom */
    struct {
        uint64_t value;
        int line;
        const char *what;
    } note[NOTES_MOST];
} * notes; /* shared by the processes */

static inline void note_at(int line, const char *what, uint64_t value)
{
    CHECK(notes->count < NOTES_MOST);
    notes->note[notes->count].line = line;
    notes->note[notes->count].what = what;
    notes->note[notes->count++].value = value;
}
/* Notes a value, or what a call returns. */
#define NOTE(value) note_at(__LINE__, #value, (uint64_t)(value))

static inline void begin_native(bool native)
{
    memset(notes, 0, sizeof *notes);
    notes->native = native;
    if (native)
        setenv("HEADROOM_DISABLE", "1", 1);
    else
        unsetenv("HEADROOM_DISABLE");
}

/* Runs both, and returns simgpu's report of the run under headroom (the caller frees it). */
static inline char *same_natively(void (*scene)(void))
{
    static struct notes natively;
    notes = mmap(NULL, sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(notes != MAP_FAILED);
    begin_native(true);
    free(apart(scene));
    natively = *notes;
    begin_native(false);
    char *report = apart(scene);
    for (size_t i = 0; i < natively.count && i < notes->count; i++)
        cr_assert(notes->note[i].line == natively.note[i].line && notes->note[i].value == natively.note[i].value,
                  "line %d: %s is %lld natively; line %d: %s is %lld under headroom", natively.note[i].line,
                  natively.note[i].what, (long long)natively.note[i].value, notes->note[i].line, notes->note[i].what,
                  (long long)notes->note[i].value);
    cr_assert_eq(natively.count, notes->count);
    cr_assert_gt(natively.count, 0);
    return report;
}

#endif
