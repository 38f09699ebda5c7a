/*
 * The conformance suite's frame: a row names a family of instructions, how its operands look and an independent
 * reference; every member of the family runs over special values in combination and over random ones, on the baseline
 * and on the best interpreter. The list of supported instructions in docs/ptx.md is made from the same rows.
 *
 * Text of a row: an instruction where <a|b> stands for each of the alternatives (empty ones too), $D $E ... $K for
 * results and $a $b ... $x for inputs. What stands before "# " only prepares (a carry flag, say).
 * Kinds: a letter for each result, ':', a letter for each input.
 */
#ifndef TEST_PTX_CONFORM_H
#define TEST_PTX_CONFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFORM_RESULTS 8
#define CONFORM_INPUTS 24
#define CONFORM_LANES 32
#define CONFORM_TEXT 320
#define CONFORM_CASES 4096u                 /* at most, of a form */
#define CONFORM_STRIDE (CONFORM_CASES * 8u) /* from one input to the next in device memory; results follow the inputs */

/* How much sanitizers have to look at: races are not this suite's subject, so that one form of many is enough for them. */
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define CONFORM_EVERY 16u
#define CONFORM_BASES 1u
#elif __has_feature(address_sanitizer)
#define CONFORM_EVERY 1u
#define CONFORM_BASES 2u
#endif
#endif
#ifndef CONFORM_EVERY
#define CONFORM_EVERY 1u /* forms of a row: every so many-th runs */
#define CONFORM_BASES 5u /* forms of an instruction that are changed, to see what else is accepted */
#endif

/*
 * Kinds of values: what register holds them and what values are tried.
 *   p predicate (0 or 1)     w i l 16, 32, 64 bits of integer     s shift amounts and positions, 32 bits
 *   h f16   x f16x2   b bf16   y bf16x2   f f32   d f64           q 32 bits of small packed integers
 *   t two 8-bit floats, 16 bits                                   m address of 8 bytes of the thread's own
 * A result of kind m is what those 8 bytes hold at the end.
 */

enum form_type {
    T_NONE,
    T_PRED,
    T_B8,
    T_B16,
    T_B32,
    T_B64,
    T_U8,
    T_U16,
    T_U32,
    T_U64,
    T_S8,
    T_S16,
    T_S32,
    T_S64,
    T_F16,
    T_F32,
    T_F64,
    T_BF16,
    T_F16X2,
    T_BF16X2,
    T_TF32,
    T_E4M3X2,
    T_E5M2X2,
    T_U16X2,
    T_S16X2,
    T_U4,
    T_S4,
    T_U2,
    T_S2,
    T_COUNT
};

/* Modifiers that references ask for. Others are just text. clang-format does not come to rest here. */
/* clang-format off */
#define FORM_MODIFIERS(X) \
    X(rn) X(rz) X(rm) X(rp) X(rna) X(rni) X(rzi) X(rmi) X(rpi) X(ftz) X(sat) X(satfinite) X(relu) X(NaN) X(xorsign) \
    X(abs) X(approx) X(full) X(hi) X(lo) X(wide) X(cc) X(eq) X(ne) X(lt) X(le) X(gt) X(ge) X(ls) X(hs) X(equ) X(neu) \
    X(ltu) X(leu) X(gtu) X(geu) X(num) X(nan) X(and) X(or) X(xor) X(shiftamt) X(clamp) X(wrap) X(l) X(r) X(add) \
    X(min) X(max) X(po) X(shr7) X(shr15) X(f4e) X(b4e) X(rc8) X(ecl) X(ecr) X(rc16) X(finite) X(infinite) X(number) \
    X(notanumber) X(normal) X(subnormal) X(pack) X(inc) X(dec) X(exch) X(cas) X(popc)
/* clang-format on */
enum form_modifier {
#define X(name) M_##name,
    FORM_MODIFIERS(X)
#undef X
};

struct conform_row;

/* One member of a family. */
struct form {
    const struct conform_row *row;
    char text[CONFORM_TEXT]; /* with the alternatives chosen */
    char name[24];           /* the instruction's: up to the first dot */
    char shown[96];          /* up to the operands: add.rn.f32 */
    uint64_t modifiers[2];
    enum form_type types[4];
    unsigned type_count;
};

static inline bool form_has(const struct form *f, enum form_modifier m)
{
    return f->modifiers[m / 64] >> (m % 64) & 1;
}

/* Fills in what the results must be, from inputs that hold in the low bits, zero above. */
typedef void conform_reference(const struct form *f, const uint64_t *in, uint64_t *out);
/* The same for instructions that 32 lanes carry out together. */
typedef void conform_warp_reference(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                                    uint64_t out[CONFORM_RESULTS][CONFORM_LANES]);

/* Approximations: the reference gives the bits of the exact value as a double, in out[0] (of the low half, and in out[1]
 * of the high half, for x and y), and the result may be off by so much: in units of the last place of the result's type,
 * as a part of the value, or in all; more than one nonzero: any of them suffices. */
struct conform_bound {
    double ulps, relative, absolute;
};

struct conform_row {
    const char *text;
    const char *kinds; /* NULL: only listed */
    conform_reference *reference;
    conform_warp_reference *warp_reference;
    struct conform_bound bound; /* all zero: every bit counts */
    bool any_nan;               /* which NaN it is does not matter */
    unsigned cases;             /* 0 = what the number of inputs suggests */
    bool open;                  /* more modifiers than the row's change nothing that it sees (scopes, hints) */
    const char *target;         /* NULL: sm_90 */
    const char *tested_in; /* no reference here: the test file that shows what it does. Still parsed, still listed. */
};

struct conform_table {
    const char *title;
    const struct conform_row *rows;
    const size_t *count;
};
/* Every table of rows, for the list in the documents too; ends with a NULL title. */
extern const struct conform_table conform_tables[];

/* The members of a row's family, in order; the caller frees the array. */
struct form *conform_expand(const struct conform_row *row, size_t *count_out);
/* A row's text as the documents show it: alternatives in the ISA's notation, no operands. */
void conform_pattern(const struct conform_row *row, char *out, size_t bytes);
/* A module for forms of one row: one kernel per form around the instruction, with operands put in. `aliased`: results
 * share registers with inputs. The caller frees it. */
char *conform_module(const struct form *forms, size_t count, bool aliased);

/* The engine's parser takes the form; else why not. */
bool conform_accepts(const struct form *f, char *error_out, size_t error_bytes);

struct conform_figures {
    size_t forms, cases, failures;
    double worst_ulps;
};
/* Runs all of a table's forms, or only those of instruction `only`; prints failures (a few of each) and a table of
 * figures by instruction. */
struct conform_figures conform_run(const struct conform_table *table, const char *only);

#endif
