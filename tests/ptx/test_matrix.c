/* Matrix instructions: fragments where the ISA says they are, and products against plain loops. */
#include "ptx/fragments.h"
#include "ptx/kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(matrix, .init = kernel_start, .fini = kernel_stop);

enum element { F16, BF16, TF32, S8, U8, F64, F32, S32 };
static const struct {
    const char *name;
    unsigned bytes;
} elements[] = {{"f16", 2}, {"bf16", 2}, {"tf32", 4}, {"s8", 1}, {"u8", 1}, {"f64", 8}, {"f32", 4}, {"s32", 4}};

/* ---- numbers in memory ---- */

static double small(uint64_t *state, enum element e)
{
    int64_t n = (int64_t)(machine_random(state) % 17);
    if (e == S8)
        return (double)((int64_t)(machine_random(state) % 256) - 128);
    if (e == U8)
        return (double)(machine_random(state) % 256);
    if (e == S32)
        return (double)((int64_t)(machine_random(state) % 2000001) - 1000000);
    return (double)(n - 8) / 4; /* products and short sums of these are exact in every float type */
}

static void put(uint8_t *at, enum element e, double value)
{
    float single = (float)value;
    uint32_t bits;
    int32_t whole = (int32_t)value;
    switch (e) {
    case F64: memcpy(at, &value, 8); return;
    case F32:
    case TF32: memcpy(at, &single, 4); return;
    case BF16:
        memcpy(&bits, &single, 4);
        memcpy(at, (uint8_t *)&bits + 2, 2);
        return;
    case F16: {
        int exponent;
        double part = frexp(fabs(value), &exponent); /* in [0.5, 1): 2 part has the leading one */
        uint16_t half = (uint16_t)(value < 0) << 15;
        if (value != 0)
            half |= (uint16_t)((exponent + 14) << 10 | ((int)ldexp(part, 11) & 0x3ff));
        memcpy(at, &half, 2);
        return;
    }
    default: memcpy(at, &whole, elements[e].bytes); return;
    }
}

static double get(const uint8_t *at, enum element e)
{
    double value;
    float single;
    int32_t whole;
    uint32_t bits = 0;
    uint16_t half;
    switch (e) {
    case F64: memcpy(&value, at, 8); return value;
    case F32:
    case TF32: memcpy(&single, at, 4); return (double)single;
    case BF16:
        memcpy((uint8_t *)&bits + 2, at, 2);
        memcpy(&single, &bits, 4);
        return (double)single;
    case F16:
        memcpy(&half, at, 2);
        value = half & 0x7c00 ? ldexp((half & 0x3ff) | 0x400, (half >> 10 & 31) - 25) : ldexp(half & 0x3ff, -24);
        return half & 0x8000 ? -value : value;
    case S8: return (int8_t)*at;
    case U8: return *at;
    default: memcpy(&whole, at, 4); return whole;
    }
}

static double matrix[4][32][32]; /* a, b, c, and what d should be */

static void fill(const struct shape *s, const enum element e[4], uint64_t seed)
{
    uint64_t state = seed;
    memset(matrix, 0, sizeof(matrix));
    for (unsigned i = 0; i < 32; i++)
        for (unsigned j = 0; j < 32; j++)
            for (unsigned q = 0; q < 3; q++)
                matrix[q][i][j] = small(&state, e[q + 1]);
    for (unsigned i = 0; i < s->m; i++)
        for (unsigned j = 0; j < s->n; j++) {
            double sum = matrix[2][i][j];
            for (unsigned k = 0; k < s->k; k++)
                sum += matrix[0][i][k] * matrix[1][k][j];
            matrix[3][i][j] = sum;
        }
}

/* ---- mma: where the ISA says that elements are ---- */

static unsigned registers_of(const struct shape *s, enum role role, enum element e)
{
    unsigned count = role == A ? s->m * s->k : role == B ? s->k * s->n : s->m * s->n;
    return count * elements[e].bytes / 32 / (e == F64 ? 8 : 4);
}

/* Text that loads, or stores, registers of one letter; register r of lane l lies at word r * 32 + l of its operand. */
static char *add_registers(char *at, char letter, unsigned registers, enum element e, unsigned offset, bool store)
{
    for (unsigned r = 0; r < registers; r++) {
        unsigned bytes = e == F64 ? 8 : 4, where = offset + r * 32 * bytes;
        const char *type = e == F64 ? "f64" : e == F32 ? "f32" : "b32";
        if (store)
            at += sprintf(at, "st.global.%s [%%%s+%u], %%%c%u;\n", type, bytes == 8 ? "rd3" : "rd2", where, letter, r);
        else
            at += sprintf(at, "ld.global.%s %%%c%u, [%%%s+%u];\n", type, letter, r, bytes == 8 ? "rd3" : "rd2", where);
    }
    return at;
}

static char *add_list(char *at, char letter, unsigned registers)
{
    for (unsigned r = 0; r < registers; r++)
        at += sprintf(at, "%s%%%c%u", r ? ", " : "{", letter, r);
    return at + sprintf(at, "}");
}

static const char *register_class(enum element e)
{
    return e == F64 ? "f64" : e == F32 ? "f32" : "b32";
}

#define OFFSET(q) ((unsigned)(q)*4096)

static void run_mma(const char *instruction, const unsigned registers[4], const enum element e[4])
{
    static char text[16384];
    char *at = text;
    at += sprintf(at,
                  "%s mad.lo.u32 %%r2, %%r0, 4, 0; cvt.u64.u32 %%rd2, %%r2; add.u64 %%rd2, %%rd2, %%rd0;"
                  "mad.lo.u32 %%r2, %%r0, 8, 0; cvt.u64.u32 %%rd3, %%r2; add.u64 %%rd3, %%rd3, %%rd0;\n",
                  HEAD);
    static const char letters[] = "dabc";
    for (unsigned q = 0; q < 4; q++)
        at += sprintf(at, ".reg .%s %%%c<16>;\n", register_class(e[q]), letters[q]);
    for (unsigned q = 1; q < 4; q++)
        at = add_registers(at, letters[q], registers[q], e[q], OFFSET(q), false);
    at += sprintf(at, "%s ", instruction);
    for (unsigned q = 0; q < 4; q++) {
        at = add_list(at, letters[q], registers[q]);
        at += sprintf(at, q < 3 ? ", " : ";\n");
    }
    at = add_registers(at, 'd', registers[0], e[0], OFFSET(0), true);
    sprintf(at, "ret;\n}\n");
    kernel_load(text);
    struct outcome outcome = kernel_launch((struct launch){.block = {32}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE, "%s", instruction);
}

static uint8_t *slot(unsigned q, unsigned lane, unsigned i, enum element e)
{
    unsigned bytes = elements[e].bytes, word = bytes == 8 ? 8 : 4, per = word / bytes;
    return (uint8_t *)kernel_words() + OFFSET(q) + (i / per * 32 + lane) * word + i % per * bytes;
}

static void check_mma(const struct shape *s, const enum element e[4], const char *suffix)
{
    char instruction[128];
    static const enum role roles[4] = {C, A, B, C};
    unsigned registers[4];
    snprintf(instruction, sizeof(instruction), "mma.sync.aligned.%s.row.col%s.%s.%s.%s.%s", s->name, suffix,
             elements[e[0]].name, elements[e[1]].name, elements[e[2]].name, elements[e[3]].name);
    fill(s, e, 77);
    for (unsigned q = 0; q < 4; q++) {
        registers[q] = registers_of(s, roles[q], e[q]);
        unsigned per = e[q] == F64 ? 1 : 4 / elements[e[q]].bytes;
        for (unsigned lane = 0; q && lane < 32; lane++)
            for (unsigned i = 0; i < registers[q] * per; i++) {
                struct place p = place_of(s, roles[q], elements[e[q]].bytes, lane, i);
                put(slot(q, lane, i, e[q]), e[q], matrix[q - 1][p.row][p.col]);
            }
    }
    run_mma(instruction, registers, e);
    unsigned per = e[0] == F64 ? 1 : 4 / elements[e[0]].bytes;
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < registers[0] * per; i++) {
            struct place p = place_of(s, C, elements[e[0]].bytes, lane, i);
            double got = get(slot(0, lane, i, e[0]), e[0]);
            cr_assert_eq(got, matrix[3][p.row][p.col], "%s: lane %u element %u: %g, want %g", instruction, lane, i, got,
                         matrix[3][p.row][p.col]);
        }
}

Test(matrix, mma_of_every_shape_and_type)
{
    static const struct shape m16n8k16 = {"m16n8k16", 16, 8, 16}, m16n8k8 = {"m16n8k8", 16, 8, 8},
                              m16n8k4 = {"m16n8k4", 16, 8, 4}, m16n8k32 = {"m16n8k32", 16, 8, 32},
                              m8n8k16 = {"m8n8k16", 8, 8, 16}, m8n8k4 = {"m8n8k4", 8, 8, 4};
    static const struct {
        const struct shape *shape;
        enum element e[4];
    } cases[] = {
        {&m16n8k16, {F32, F16, F16, F32}},   {&m16n8k16, {F16, F16, F16, F16}},  {&m16n8k16, {F16, F16, F16, F32}},
        {&m16n8k16, {F32, F16, F16, F16}},   {&m16n8k8, {F32, F16, F16, F32}},   {&m16n8k8, {F16, F16, F16, F16}},
        {&m16n8k16, {F32, BF16, BF16, F32}}, {&m16n8k8, {F32, BF16, BF16, F32}}, {&m16n8k4, {F32, TF32, TF32, F32}},
        {&m16n8k8, {F32, TF32, TF32, F32}},  {&m8n8k16, {S32, S8, S8, S32}},     {&m8n8k16, {S32, U8, S8, S32}},
        {&m16n8k16, {S32, S8, U8, S32}},     {&m16n8k16, {S32, U8, U8, S32}},    {&m16n8k32, {S32, S8, S8, S32}},
        {&m16n8k32, {S32, U8, S8, S32}},     {&m8n8k4, {F64, F64, F64, F64}},    {&m16n8k4, {F64, F64, F64, F64}},
        {&m16n8k8, {F64, F64, F64, F64}},    {&m16n8k16, {F64, F64, F64, F64}},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_mma(cases[i].shape, cases[i].e, "");
        if (cases[i].e[0] == S32)
            check_mma(cases[i].shape, cases[i].e, ".satfinite");
    }
}

Test(matrix, integers_saturate_only_when_asked)
{
    static const enum element e[4] = {S32, S8, S8, S32};
    static const unsigned registers[4] = {2, 1, 1, 2};
    for (int sat = 0; sat < 2; sat++) {
        for (unsigned lane = 0; lane < 32; lane++)
            for (unsigned i = 0; i < 4; i++) {
                *slot(1, lane, i, S8) = 127;
                *slot(2, lane, i, S8) = 127;
                if (i < 2)
                    put(slot(3, lane, i, S32), S32, 2147483647.0 - lane);
            }
        run_mma(sat ? "mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.s8.s32"
                    : "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
                registers, e);
        for (unsigned lane = 0; lane < 32; lane++) {
            int32_t got, wrapped = (int32_t)(2147483647u - lane + 16 * 127 * 127);
            memcpy(&got, slot(0, lane, 0, S32), 4);
            cr_assert_eq(got, sat ? INT32_MAX : wrapped);
        }
    }
}

/* m8n8k4 of halves: four products, each of eight lanes; where elements are, as the ISA has it. */
static struct place quad_place(enum role role, bool col, bool wide, unsigned lane, unsigned i)
{
    unsigned low = lane % 4;
    bool high = lane >= 16;
    if (role == A)
        return col ? (struct place){high ? i % 4 + 4 : i % 4, low} : (struct place){high ? low + 4 : low, i};
    if (role == B)
        return col ? (struct place){i, high ? low + 4 : low} : (struct place){low, high ? i + 4 : i};
    if (!wide)
        return (struct place){high ? low + 4 : low, i};
    unsigned x = (lane & 1) + (i & 2);
    return (struct place){high ? x + 4 : x, (i & 4) + (lane & 2) + (i & 1)};
}

Test(matrix, mma_of_quad_pairs)
{
    static const struct shape s = {"m8n8k4", 8, 8, 4};
    static const enum element types[3][4] = {{F32, F16, F16, F32}, {F16, F16, F16, F16}, {F32, F16, F16, F16}};
    for (unsigned k = 0; k < 12; k++) {
        const enum element *e = types[k / 4];
        bool col[4] = {false, k & 1, k >> 1 & 1, false};
        unsigned registers[4] = {e[0] == F32 ? 8 : 4, 2, 2, e[3] == F32 ? 8 : 4};
        static const enum role roles[4] = {C, A, B, C};
        char instruction[128];
        double want[4][8][8];
        snprintf(instruction, sizeof(instruction), "mma.sync.aligned.m8n8k4.%s.%s.%s.f16.f16.%s",
                 col[1] ? "col" : "row", col[2] ? "col" : "row", elements[e[0]].name, elements[e[3]].name);
        for (unsigned pair = 0; pair < 4; pair++) {
            fill(&s, e, 5 + pair);
            for (unsigned i = 0; i < 64; i++)
                want[pair][i / 8][i % 8] = matrix[3][i / 8][i % 8];
            for (unsigned lane = 4 * pair; lane < 32; lane += lane % 4 == 3 ? 13 : 1)
                for (unsigned q = 1; q < 4; q++)
                    for (unsigned i = 0; i < (q == 3 ? 8u : 4u); i++) {
                        struct place p = quad_place(roles[q], col[q], e[q] == F32, lane, i);
                        put(slot(q, lane, i, e[q]), e[q], matrix[q - 1][p.row][p.col]);
                    }
        }
        run_mma(instruction, registers, e);
        for (unsigned lane = 0; lane < 32; lane++)
            for (unsigned i = 0; i < 8; i++) {
                struct place p = quad_place(C, false, e[0] == F32, lane, i);
                double got = get(slot(0, lane, i, e[0]), e[0]), wanted = want[lane / 4 % 4][p.row][p.col];
                cr_assert_eq(got, wanted, "%s: lane %u element %u: %g, want %g", instruction, lane, i, got, wanted);
            }
    }
}

Test(matrix, sums_are_rounded_step_by_step_in_the_order_of_k)
{
    static const enum element e[4] = {F32, F16, F16, F32};
    static const unsigned registers[4] = {4, 4, 2, 4};
    uint64_t state = 3;
    for (unsigned i = 0; i < 4096 * 4; i += 2) {
        uint16_t half = (uint16_t)machine_random(&state);
        half = (uint16_t)((half & 0x83ff) | (8 + half % 14) << 10);
        memcpy((uint8_t *)kernel_words() + i, &half, 2);
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++)
            put(slot(3, lane, i, F32), F32, (double)machine_random(&state) * 0x1p-64);
    static const struct shape s = {"m16n8k16", 16, 8, 16};
    float a[16][16], b[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        for (unsigned i = 0; i < 8; i++) {
            struct place p = place_of(&s, A, 2, lane, i);
            a[p.row][p.col] = (float)get(slot(1, lane, i, F16), F16);
        }
        for (unsigned i = 0; i < 4; i++) {
            struct place p = place_of(&s, B, 2, lane, i);
            b[p.row][p.col] = (float)get(slot(2, lane, i, F16), F16);
        }
    }
    run_mma("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", registers, e);
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) {
            struct place p = place_of(&s, C, 4, lane, i);
            volatile float sum = (float)get(slot(3, lane, i, F32), F32);
            for (unsigned k = 0; k < 16; k++)
                sum = sum + a[p.row][k] * b[k][p.col];
            cr_assert_eq(get(slot(0, lane, i, F32), F32), (double)sum);
        }
}

/* ---- wmma ---- */

static const char *const spaces[] = {".global", ".shared", ""};

static char *add_wmma_register_lists(char *at, const unsigned registers[4], const enum element e[4])
{
    static const char letters[] = "dabc";
    for (unsigned q = 0; q < 4; q++)
        at += sprintf(at, ".reg .%s %%%c<%u>;\n", register_class(e[q]), letters[q], registers[q]);
    return at;
}

static unsigned wmma_registers(const struct shape *s, enum role role, enum element e)
{
    return e == F16 && role != C ? 8 : registers_of(s, role, e);
}

/* Copies what the kernel was given into shared memory and, at the end, back. */
static char *add_copy(char *at, bool back)
{
    return at + sprintf(at,
                        "mov.u32 %%r3, %%r0;\n%s: shl.b32 %%r4, %%r3, 2; cvt.u64.u32 %%rd4, %%r4;"
                        "add.u64 %%rd5, %%rd0, %%rd4; mov.u64 %%rd6, s; add.u64 %%rd6, %%rd6, %%rd4;"
                        "ld.%s.u32 %%r5, [%%rd%u]; st.%s.u32 [%%rd%u], %%r5; add.u32 %%r3, %%r3, 32;"
                        "setp.lt.u32 %%p1, %%r3, 8192; @%%p1 bra %s; bar.sync 0;\n",
                        back ? "BACK" : "COPY", back ? "shared" : "global", back ? 6u : 5u, back ? "global" : "shared",
                        back ? 5u : 6u, back ? "BACK" : "COPY");
}

#define WMMA_AT(q) ((unsigned)(q)*8192)

static void check_wmma(const struct shape *s, const enum element e[4], unsigned variant)
{
    static char text[20000];
    char *at = text;
    bool col[4] = {variant >> 2 & 1, variant & 1, variant >> 1 & 1, variant >> 2 & 1};
    const char *space = spaces[variant % 3], *layout[4];
    unsigned registers[4] = {wmma_registers(s, C, e[0]), wmma_registers(s, A, e[1]), wmma_registers(s, B, e[2]),
                             wmma_registers(s, C, e[3])};
    unsigned rows[4] = {s->m, s->m, s->k, s->m}, columns[4] = {s->n, s->k, s->n, s->n}, stride[4];
    fill(s, e, 31 + variant);
    memset(kernel_words(), 0, OUT_BYTES);
    for (unsigned q = 0; q < 4; q++) {
        layout[q] = col[q] ? "col" : "row";
        stride[q] = (col[q] ? rows[q] : columns[q]) + (variant & 4 ? 0 : 8);
        for (unsigned i = 0; q && i < rows[q]; i++)
            for (unsigned j = 0; j < columns[q]; j++) {
                unsigned index = col[q] ? j * stride[q] + i : i * stride[q] + j;
                put((uint8_t *)kernel_words() + WMMA_AT(q) + (size_t)index * elements[e[q]].bytes, e[q],
                    matrix[q - 1][i][j]);
            }
    }
    bool shared = variant % 3 == 1;
    at += sprintf(at, "%s%s", shared ? ".shared .align 256 .b8 s[32768];\n" : "", HEAD);
    at = add_wmma_register_lists(at, registers, e);
    at = shared ? add_copy(at, false) : at;
    at += sprintf(at, "mov.u64 %%rd7, %s;\n", shared ? "s" : "%rd0");
    static const char letters[] = "dabc";
    for (unsigned q = 1; q < 4; q++) {
        at += sprintf(at, "wmma.load.%c.sync.aligned.%s.%s%s.%s ", letters[q], layout[q], s->name, space,
                      elements[e[q]].name);
        at = add_list(at, letters[q], registers[q]);
        at += sprintf(at, variant & 4 ? ", [%%rd7+%u];\n" : ", [%%rd7+%u], %u;\n", WMMA_AT(q), stride[q]);
    }
    at += sprintf(at, "wmma.mma.sync.aligned.%s.%s.%s.%s", layout[1], layout[2], s->name, elements[e[0]].name);
    if (e[1] != F16)
        at += sprintf(at, ".%s.%s", elements[e[1]].name, elements[e[2]].name);
    at += sprintf(at, ".%s ", elements[e[3]].name);
    for (unsigned q = 0; q < 4; q++) {
        at = add_list(at, letters[q], registers[q]);
        at += sprintf(at, q < 3 ? ", " : ";\n");
    }
    at += sprintf(at, "wmma.store.d.sync.aligned.%s.%s%s.%s [%%rd7], ", layout[0], s->name, space, elements[e[0]].name);
    at = add_list(at, 'd', registers[0]);
    at += sprintf(at, variant & 4 ? ";\n" : ", %u;\n", stride[0]);
    at = shared ? add_copy(at, true) : at;
    sprintf(at, "ret;\n}\n");
    kernel_load(text);
    struct outcome outcome = kernel_launch((struct launch){.block = {32}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE, "%s", text);
    for (unsigned i = 0; i < s->m; i++)
        for (unsigned j = 0; j < s->n; j++) {
            unsigned index = col[0] ? j * stride[0] + i : i * stride[0] + j;
            double got = get((uint8_t *)kernel_words() + (size_t)index * elements[e[0]].bytes, e[0]);
            cr_assert_eq(got, matrix[3][i][j], "%s %s variant %u: (%u, %u) is %g, want %g", s->name,
                         elements[e[1]].name, variant, i, j, got, matrix[3][i][j]);
        }
}

Test(matrix, wmma_of_every_shape_type_layout_and_space)
{
    static const struct shape large[3] = {{"m16n16k16", 16, 16, 16}, {"m32n8k16", 32, 8, 16}, {"m8n32k16", 8, 32, 16}};
    static const struct shape m16n16k8 = {"m16n16k8", 16, 16, 8}, m8n8k4 = {"m8n8k4", 8, 8, 4};
    static const enum element types[][4] = {{F32, F16, F16, F32},  {F16, F16, F16, F16}, {F16, F16, F16, F32},
                                            {F32, F16, F16, F16},  {S32, S8, S8, S32},   {S32, U8, U8, S32},
                                            {F32, BF16, BF16, F32}};
    static const enum element tf32[4] = {F32, TF32, TF32, F32}, f64[4] = {F64, F64, F64, F64};
    for (unsigned variant = 0; variant < 8; variant++) {
        for (unsigned k = 0; k < 3; k++)
            for (unsigned t = 0; t < sizeof(types) / sizeof(types[0]); t++)
                check_wmma(&large[k], types[t], variant);
        check_wmma(&m16n16k8, tf32, variant);
        check_wmma(&m8n8k4, f64, variant);
    }
}

Test(matrix, wmma_across_a_page_and_out_of_memory)
{
    static const char text[] =
        HEAD ".reg .b32 %a<8>; ld.global.u64 %rd2, [%rd0];"
             "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, [%rd2], 16;"
             "xor.b32 %r1, %a0, %a1; xor.b32 %r2, %a2, %a3; xor.b32 %r3, %a4, %a5; xor.b32 %r4, %a6, %a7;"
             "xor.b32 %r1, %r1, %r2; xor.b32 %r3, %r3, %r4; xor.b32 %r1, %r1, %r3;" TAIL;
    kernel_load(text);
    uint64_t edge = MACHINE_BASE + 3 * SG_PAGE_BYTES;
    uint16_t values[256];
    for (unsigned i = 0; i < 256; i++)
        values[i] = (uint16_t)(i * 641);
    for (unsigned part = 0; part < 2; part++) {
        uint64_t address = edge - (part ? 8 * 32 - 16 : 8 * 32); /* between two rows; within a row */
        memcpy(machine_at(&m, address), values, sizeof(values));
        memcpy(kernel_words(), &address, 8);
        cr_assert_eq(kernel_launch((struct launch){.block = {32}}).fault.kind, PTX_FAULT_NONE);
        uint32_t all = 0, want = 0;
        for (unsigned lane = 0; lane < 16; lane++)
            all ^= kernel_words()[lane];
        for (unsigned i = 0; i < 256; i++)
            want ^= (uint32_t)values[i] << 16 * (i & 1);
        cr_assert_eq(all, want);
    }
    machine_protect(&m, 3, 0);
    memcpy(kernel_words(), &(uint64_t){edge - 256}, 8);
    struct outcome outcome = kernel_launch((struct launch){.block = {32}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_ILLEGAL_ADDRESS);
    cr_assert_eq(outcome.fault.address, edge);
}

/* ---- ldmatrix, stmatrix, movmatrix ---- */

#define FILL_SHARED                                                                                                    \
    "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 16, %r2; mul.lo.u32 %r4, %r0, 0x80008; add.u32 %r4, %r4, 0x10000;"           \
    "add.u32 %r5, %r4, 0x20002; add.u32 %r6, %r4, 0x40004; add.u32 %r7, %r4, 0x60006;"                                 \
    "st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7}; bar.sync 0;\n"

/* Element (row, col) of matrix k in shared memory is 64 k + 8 row + col. */
Test(matrix, ldmatrix_hands_rows_or_columns_to_lanes)
{
    for (unsigned trans = 0; trans < 2; trans++)
        for (unsigned log2 = 0; log2 < 3; log2++)
            for (unsigned pick = 0; pick < 1u << log2; pick++) {
                static const char *const lists[3] = {"{%r10}", "{%r10, %r11}", "{%r10, %r11, %r12, %r13}"};
                char text[2048];
                snprintf(text, sizeof(text),
                         ".shared .align 16 .b8 s[512];\n%s%sldmatrix.sync.aligned.m8n8.x%u%s.shared.b16 %s, [%%r3];\n"
                         "mov.b32 %%r1, %%r%u;%s",
                         HEAD, FILL_SHARED, 1u << log2, trans ? ".trans" : "", lists[log2], 10 + pick, TAIL);
                const uint32_t *r = kernel_run(text, 32);
                for (unsigned lane = 0; lane < 32; lane++)
                    for (unsigned part = 0; part < 2; part++) {
                        unsigned row = lane / 4, col = 2 * (lane % 4) + part;
                        unsigned want = 64 * pick + (trans ? 8 * col + row : 8 * row + col);
                        cr_assert_eq(r[lane] >> 16 * part & 0xffff, want);
                    }
            }
}

Test(matrix, stmatrix_undoes_ldmatrix_and_movmatrix_transposes)
{
    for (unsigned trans = 0; trans < 2; trans++) {
        char text[2048];
        const char *t = trans ? ".trans" : "";
        snprintf(
            text, sizeof(text),
            ".shared .align 16 .b8 s[512];\n.shared .align 16 .b8 z[512];\n%s%s"
            "ldmatrix.sync.aligned.m8n8.x4%s.shared::cta.b16 {%%r10, %%r11, %%r12, %%r13}, [%%r3];\n"
            "mov.u64 %%rd2, z; cvta.shared.u64 %%rd2, %%rd2; mul.wide.u32 %%rd3, %%r0, 16;"
            "add.u64 %%rd2, %%rd2, %%rd3; stmatrix.sync.aligned.m8n8.x4%s.b16 [%%rd2], {%%r10, %%r11, %%r12, %%r13};"
            "bar.sync 0; mov.u32 %%r2, z; mad.lo.u32 %%r3, %%r0, 16, %%r2; ld.shared.v2.u32 {%%r1, %%r2}, [%%r3];"
            "xor.b32 %%r1, %%r1, %%r4; xor.b32 %%r2, %%r2, %%r5; or.b32 %%r1, %%r1, %%r2;%s",
            HEAD, FILL_SHARED, t, t, TAIL);
        const uint32_t *r = kernel_run(text, 32);
        for (unsigned lane = 0; lane < 32; lane++)
            cr_assert_eq(r[lane], 0);
    }
    const uint32_t *r = kernel_run(HEAD "mul.lo.u32 %r2, %r0, 0x20002; add.u32 %r2, %r2, 0x10000;"
                                        "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;" TAIL,
                                   32);
    for (unsigned lane = 0; lane < 32; lane++)
        cr_assert_eq(r[lane], (16 * (lane % 4) + lane / 4) | (16 * (lane % 4) + 8 + lane / 4) << 16);
}

Test(matrix, rows_must_be_aligned)
{
    cr_assert_eq(kernel_fault(".shared .align 16 .b8 s[1024];\n" HEAD "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 16, %r2;"
                              "add.u32 %r3, %r3, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r3];" TAIL,
                              32),
                 PTX_FAULT_MISALIGNED);
}
