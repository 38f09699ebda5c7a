/*
 * The language of the .calls files, and the driver's functions by name. One line is one call:
 *
 *   [!]cuMemcpyHtoD_v2{,_ptds} A+16 h #4096 [; AFTER...]
 *
 * The line is called as it stands and then, without `!`, once more for every other value that one of its arguments may have (alternatives
 * in arguments.c). AFTER is called after every call that succeeded. {a,b} repeats the line with each. Arguments:
 *
 *   12 3m 0x10 -1    a number                          #12          a number of bytes, elements or rows, which is varied
 *   name name+3      a variable's value                &name:K:N    where an output goes: K is dev, host, stream, ctx or nothing
 *   >N >id           room for an output of N bytes, for a number that tells allocations apart
 *   @name        a structure (struct NAME TYPE field=argument ...)
 *   ^name            a variable whose place is taken by nothing but memory that is there: the driver reads host memory without looking
 *   =name            a variable that is not varied
 *   [a,b] [4:a,b]    an array of 8- or 4-byte values   "text"       a string
 *   %1..25           each number of a range            loc:1:0      a CUmemLocation, by value
 */
#ifndef TESTS_DIFFERENTIAL_CALLS_H
#define TESTS_DIFFERENTIAL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kind { NUMBER, DEV, HOST, STREAM, CONTEXT, HANDLE };

struct variable {
    char name[24];
    enum kind kind;
    uint64_t value, bytes;
};

enum { ARGUMENTS = 16, FIELDS = 28, TEXT = 96 };

/* ---- variables.c ---- */

struct variable *variable(const char *name, size_t name_bytes); /* NULL: none */
void set_variable(const char *name, enum kind kind, uint64_t value, uint64_t bytes);
/* A number, an address or a handle as text that is the same in every run. */
const char *shown(uint64_t value);
uint64_t number(const char *text);

/* ---- structures.c ---- */

struct structure {
    char name[16];
    int type;
    int count;
    struct {
        size_t offset, bytes;
        char argument[TEXT];
    } field[FIELDS];
};
/* "NAME TYPE field=argument ..."; ends the program on what it does not know. */
void define_structure(char *line);
struct structure *structure(const char *name);
size_t structure_bytes(const struct structure *s);

/* ---- driver.c ---- */

void open_driver(void);
int driver_version(void);
/* NULL where a driver of this version has no such function. Ends the program if there is none in any version. */
void *driver_function(const char *name);
int call(const char *name, const uint64_t *arguments); /* one that is there */
/* A call of the program's own, which has to succeed. */
void must(const char *name, const uint64_t *arguments);
#define MUST(name, ...) must(name, (const uint64_t[ARGUMENTS]){__VA_ARGS__})

/* ---- arguments.c ---- */

/* Another value in an argument's place: `argument` points to its text; the value is made when it is used. */
struct replacement {
    const char *argument;
    int which;
    char label[24];
};
/* Whether the argument has an alternative of that number. */
bool alternative(const char *argument, int which, struct replacement *out);

/* A call with all its arguments evaluated. */
struct prepared {
    uint64_t value[ARGUMENTS];
    char text[1024];
    bool captures, uses_stream;
};
void prepare(struct prepared *p, char arguments[][TEXT], int count, const struct replacement *instead, int replacements,
             int iteration);
/* Prints what was written to the outputs; where `keep`, variables are set. */
void take_outputs(const struct prepared *p, bool keep);

#endif
