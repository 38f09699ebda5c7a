/*
 * What `headroom doctor` is made of: findings, and those who make them. All of it runs in one thread of the command's own process, but for
 * the driver's part, which has a process of its own.
 */
#ifndef HR_CLI_DOCTOR_H
#define HR_CLI_DOCTOR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "cli/cli.h"

enum hr_doctor_level {
    HR_DOCTOR_OK,
    HR_DOCTOR_NOTE, /* good to know: headroom works, perhaps with less */
    HR_DOCTOR_WARN, /* it costs much, or breaks some jobs */
    HR_DOCTOR_BAD,  /* headroom does not work that way */
    HR_DOCTOR_LEVELS
};
extern const char *const hr_doctor_level_names[HR_DOCTOR_LEVELS];

struct hr_doctor; /* opaque: where findings go */

/* One finding: what is so, and what to do about it (NULL: nothing). `topic` is a word. */
void hr_doctor_say(struct hr_doctor *doctor, enum hr_doctor_level level, const char *topic, const char *advice,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Settings in the environment, limits of the process, what the kernel offers, host memory, pages. */
void hr_doctor_host(struct hr_doctor *doctor);
/*
 * The driver that a job would get: version, what it can do, what it exports that the library at `shim` ("" = none) does not. It may hang,
 * so it is asked by a process that is killed after deadline_s seconds.
 */
void hr_doctor_driver(struct hr_doctor *doctor, const char *shim, unsigned deadline_s);
/* Whether a program, found as execvp finds it, takes preloaded libraries. */
void hr_doctor_program(struct hr_doctor *doctor, const char *name);

/* ---- ELF files ---- */

enum hr_elf_kind {
    HR_ELF_NONE,    /* not there, not readable, no ELF program */
    HR_ELF_FOREIGN, /* of another machine or word size */
    HR_ELF_STATIC,  /* no loader takes part */
    HR_ELF_DYNAMIC
};
struct hr_elf_program {
    enum hr_elf_kind kind;
    char loader[PATH_MAX]; /* that it asks for, where it is dynamic */
    bool needs_asan;       /* it links AddressSanitizer's runtime as a shared library */
};
void hr_elf_program(const char *path, struct hr_elf_program *program_out);
/*
 * Calls each(name, arg) for every function that a 64-bit shared library of this machine exports and whose name begins with `prefix`. False:
 * cannot be read.
 */
bool hr_elf_symbols(const char *path, const char *prefix, void (*each)(const char *name, void *arg), void *arg);

#endif
