/* Calls of every kind, variables with initial values, what the system provides to kernels, and what compilers add to texts. */
#include "ptx/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

TestSuite(system, .init = kernel_start, .fini = kernel_stop);

extern const unsigned char system_ptx[], system_debug_ptx[];
extern const unsigned long system_ptx_bytes, system_debug_ptx_bytes;

/* The same source, optimised, and unoptimised with debug information. */
static void load_source(unsigned debug)
{
    machine_load(&m, (const char *)(debug ? system_debug_ptx : system_ptx),
                 debug ? system_debug_ptx_bytes : system_ptx_bytes);
}

static struct outcome run(const char *name, uint32_t threads, const void *params, struct launch launch)
{
    launch.name = name;
    launch.block[0] = threads;
    launch.params = params;
    struct outcome outcome = machine_run(&m, &launch);
    return outcome;
}

/* ---- calls ---- */

static int fibonacci(int n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

Test(system, function_tables_and_recursion_from_the_compiler)
{
    for (unsigned debug = 0; debug < 2; debug++)
        for (int which = 0; which < 3; which++) {
            load_source(debug);
            struct {
                uint64_t out;
                int which;
            } params = {out, which};
            cr_assert_eq(run("call_through_tables", 64, &params, (struct launch){0}).fault.kind, PTX_FAULT_NONE);
            const int32_t *w = (const int32_t *)kernel_words();
            for (int t = 0; t < 64; t++) {
                int a = 10 + t, c = 30;
                if ((which + t) % 3 == 1)
                    c = t - 30, a = 10 + c;
                cr_assert_eq(w[4 * t], a);
                cr_assert_eq(w[4 * t + 1], 2 * a);
                cr_assert_eq(w[4 * t + 2], c);
                cr_assert_eq(w[4 * t + 3], fibonacci(t % 8));
            }
        }
}

#define FUNCTIONS                                                                                                      \
    ".func (.reg .u32 r) twice(.reg .u32 x) { add.u32 r, x, x; ret; }\n"                                               \
    ".func (.reg .u32 r) thrice(.reg .u32 x) { .reg .u32 t; add.u32 t, x, x; add.u32 r, t, x; ret; }\n"                \
    ".func (.reg .u64 r) wide(.reg .u64 x) { mov.u64 r, x; ret; }\n"                                                   \
    ".func nothing() { ret; }\n"

Test(system, calls_through_registers)
{
    /* Lanes call three functions at once; the third is an alias. */
    const uint32_t *r = kernel_run(
        FUNCTIONS ".func (.reg .u32 r) other(.reg .u32 x);\n.alias other, thrice;\n" HEAD
                  "P: .callprototype (.reg .u32 _) _ (.reg .u32 _);\nrem.u32 %r2, %r0, 3; mov.u64 %rd2, twice;"
                  "setp.eq.u32 %p1, %r2, 1; @%p1 mov.u64 %rd2, thrice; setp.eq.u32 %p1, %r2, 2;"
                  "@%p1 mov.u64 %rd2, other; call (%r1), %rd2, (%r0), P; call.uni (%r3), other, (%r1);"
                  "add.u32 %r1, %r1, %r3;" TAIL,
        64);
    for (uint32_t t = 0; t < 64; t++)
        cr_assert_eq(r[t], 4 * t * (t % 3 ? 3 : 2));
    r = kernel_run(FUNCTIONS
                   ".global .u64 table[2] = {twice, generic(thrice)};\n" HEAD
                   "and.b32 %r2, %r0, 1; mul.wide.u32 %rd2, %r2, 8; mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2;"
                   "ld.global.u64 %rd4, [%rd3];\nT: .calltargets twice, thrice;\ncall (%r1), %rd4, (%r0), T;"
                   "mov.u64 %rd5, nothing;\nN: .callprototype _ ();\ncall %rd5, (), N; call %rd5, N;" TAIL,
                   33);
    for (uint32_t t = 0; t < 33; t++)
        cr_assert_eq(r[t], t * (t & 1 ? 3 : 2));
}

Test(system, recursion_through_a_pointer_ends_at_the_stack)
{
    static const char text[] =
        ".func (.reg .u32 r) down(.reg .u32 n, .reg .u64 f)\n{\n.reg .pred p; .reg .u32 t;\n"
        "P: .callprototype (.reg .u32 _) _ (.reg .u32 _, .reg .u64 _);\nmov.u32 r, 0; setp.eq.u32 p, n, 0; @p ret;"
        "sub.u32 t, n, 1; call (t), f, (t, f), P; add.u32 r, t, n; ret;\n}\n" HEAD
        "ld.global.u32 %r2, [%rd0]; mov.u64 %rd2, down; call (%r1), down, (%r2, %rd2);" TAIL;
    kernel_load(text);
    kernel_words()[0] = 50;
    cr_assert_eq(kernel_launch((struct launch){.block = {1}}).fault.kind, PTX_FAULT_NONE);
    cr_assert_eq(kernel_words()[0], 50 * 51 / 2);
    kernel_words()[0] = 10000000;
    cr_assert_eq(kernel_launch((struct launch){.block = {1}}).fault.kind, PTX_FAULT_STACK);
}

Test(system, bad_pointers_are_not_called)
{
    static const char *const cases[] = {
        "mov.u64 %rd2, 0;",
        "mov.u64 %rd2, twice; add.u64 %rd2, %rd2, 8;",
        "mov.u64 %rd2, twice; add.u64 %rd2, %rd2, 4096;",
        "mov.u64 %rd2, %rd0;",
        "mov.u64 %rd2, wide;",
        "mov.u64 %rd2, nothing;",
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[2048];
        snprintf(text, sizeof(text),
                 "%s%s P: .callprototype (.reg .u32 _) _ (.reg .u32 _);\n%s setp.eq.u32 %%p1, %%r0, 7; @!%%p1 bra J;"
                 "call (%%r1), %%rd2, (%%r0), P;\nJ:%s",
                 FUNCTIONS, HEAD, cases[i], TAIL);
        struct outcome outcome = kernel_outcome(text, (struct launch){.block = {32}});
        cr_assert_eq(outcome.fault.kind, PTX_FAULT_ILLEGAL_INSTRUCTION, "%s", cases[i]);
        cr_assert_eq(outcome.fault.thread[0], 7);
    }
    cr_assert_eq(kernel_fault(FUNCTIONS HEAD
                              "T: .calltargets twice;\nmov.u64 %rd2, thrice; call (%r1), %rd2, (%r0), T;" TAIL,
                              1),
                 PTX_FAULT_ILLEGAL_INSTRUCTION);
}

Test(system, variadic_arguments_go_over_in_one_array)
{
    const uint32_t *r = kernel_run(
        ".func (.param .b32 r) sum(.param .b32 count, .param .align 8 .b8 rest[])\n{\n"
        ".reg .pred p; .reg .u32 n, i, s, v; .reg .u64 a;\nld.param.u32 n, [count]; mov.u64 a, rest; mov.u32 i, 0; "
        "mov.u32 s, 0;\n"
        "L: ld.param.u32 v, [a]; add.u32 s, s, v; add.u64 a, a, 4; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra L;"
        "st.param.b32 [r], s; ret;\n}\n" HEAD
        "{ .param .b32 q; .param .b32 n; .param .align 8 .b8 va[12]; st.param.b32 [n], 3; st.param.b32 [va], %r0;"
        "st.param.b32 [va+4], 100; st.param.b32 [va+8], %r0; call (q), sum, (n, va); ld.param.b32 %r1, [q]; }" TAIL,
        40);
    for (uint32_t t = 0; t < 40; t++)
        cr_assert_eq(r[t], 2 * t + 100);
}

Test(system, what_is_defined_nowhere_is_named)
{
    static const struct {
        const char *text, *name;
        unsigned line;
    } cases[] = {
        {".extern .func (.reg .f32 r) __nv_sinf(.reg .f32 x);\n" HEAD "call (%f1), __nv_sinf, (%f1);" TAIL,
         "'__nv_sinf'", 9},
        {".extern .func f();\n" HEAD "mov.u64 %rd2, f;" TAIL, "'f'", 0},
        {".extern .global .u32 x;\n", "'x'", 0},
        {".global .attribute(.managed) .u32 x;\n", ".attribute(.managed)", 4},
        {".global .samplerref t;\n", ".samplerref", 4},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[2048];
        struct ptx_module *module = NULL;
        struct ptx_error error;
        snprintf(text, sizeof(text), ".version 7.0\n.target sm_70\n.address_size 64\n%s", cases[i].text);
        cr_assert(ptx_module_parse(text, strlen(text), &module, &error));
        cr_assert(strstr(error.text, cases[i].name), "%s", error.text);
        cr_assert(error.unsupported);
        if (cases[i].line)
            cr_assert_eq(error.line, cases[i].line, "%s", error.text);
    }
}

/* ---- variables ---- */

Test(system, tables_from_the_compiler)
{
    for (unsigned debug = 0; debug < 2; debug++) {
        load_source(debug);
        cr_assert_eq(run("read_tables", 1, &out, (struct launch){0}).fault.kind, PTX_FAULT_NONE);
        static const uint32_t want[] = {765, 'w', 1, 2, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12};
        for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++)
            cr_assert_eq(kernel_words()[i], want[i], "word %u: %u", i, kernel_words()[i]);
    }
}

static const void *variable(const char *name)
{
    return machine_at(&m, machine_global(&m, name));
}

Test(system, initial_values_of_all_forms)
{
    kernel_load(
        ".extern .global .u32 later;\n.global .u64 to_later = later;\n.visible .global .u32 later = 5;\n"
        ".const[3] .align 8 .f64 d[2] = {0d3FF8000000000000, -2.5};\n"
        ".weak .global .f32 f[4] = {0f40490FDB, 1.5, -0f3F800000};\n"
        ".common .global .u16 zeros[3];\n.global .s8 text[8] = \"a\\n\\\\b\";\n.global .b8 open[] = \"xyz\";\n"
        ".global .s32 rows[][2] = {{-1}, {}, {3, -4}, {5}};\n.global .s32 cube[2][2][2] = {{{1}, {2, 3}}, {{}, {4}}};\n"
        ".global .v4 .u32 vec[2] = {{1, 2}, {3, 4, 5, 6}};\n.global .u64 self[2] = {generic(self)+8, self+4-4};\n"
        ".global .u8 bytes[8] = {0xFF(self), 0xFF00(generic(self)), 0xFF0000(self), 0xFF000000(self), 7};\n"
        ".global .u32 half = 0xFFFFFFFF(self+16);\n" HEAD "ld.const.f64 %fd1, [d+8]; cvt.rzi.s32.f64 %r1, %fd1;" TAIL);
    cr_assert_eq(kernel_launch((struct launch){.block = {1}}).fault.kind, PTX_FAULT_NONE);
    cr_assert_eq((int32_t)kernel_words()[0], -2);
    uint64_t later = machine_global(&m, "later"), self = machine_global(&m, "self");
    cr_assert_eq(*(const uint64_t *)variable("to_later"), later);
    cr_assert_eq(*(const uint32_t *)variable("later"), 5);
    cr_assert_eq(((const double *)variable("d"))[0], 1.5);
    static const uint32_t floats[4] = {0x40490fdb, 0x3fc00000, 0xbf800000, 0};
    cr_assert_eq(memcmp(variable("f"), floats, 16), 0);
    cr_assert_eq(memcmp(variable("zeros"), "\0\0\0\0\0\0", 6), 0);
    cr_assert_eq(memcmp(variable("text"), "a\n\\b\0\0\0", 8), 0);
    cr_assert_eq(memcmp(variable("open"), "xyz", 4), 0);
    static const int32_t rows[8] = {-1, 0, 0, 0, 3, -4, 5, 0}, cube[8] = {1, 0, 2, 3, 0, 0, 4, 0};
    static const uint32_t vec[8] = {1, 2, 0, 0, 3, 4, 5, 6};
    cr_assert_eq(memcmp(variable("rows"), rows, 32), 0);
    cr_assert_eq(memcmp(variable("cube"), cube, 32), 0);
    cr_assert_eq(memcmp(variable("vec"), vec, 32), 0);
    cr_assert_eq(((const uint64_t *)variable("self"))[0], self + 8);
    cr_assert_eq(((const uint64_t *)variable("self"))[1], self);
    cr_assert_eq(*(const uint64_t *)variable("bytes"), (self & 0xffffffff) | UINT64_C(7) << 32);
    cr_assert_eq(*(const uint32_t *)variable("half"), (uint32_t)(self + 16));
}

Test(system, wrong_initial_values_are_refused)
{
    static const char *const cases[] = {
        ".global .u32 x[2] = {1, 2, 3};",
        ".global .u32 x[2][2] = {{1, 2, 3}};",
        ".global .u8 x[2] = \"abc\";",
        ".global .u32 x = \"a\";",
        ".global .u32 x = {{1};",
        ".global .u64 x = y;",
        ".global .u32 y; .global .u32 x = y;",
        ".global .u64 y; .global .u8 x = 0xFF0F(y);",
        ".global .u64 y; .global .u8 x = 0xFFF(y);",
        ".global .u64 x = 0(x);",
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        struct ptx_module *module = NULL;
        struct ptx_error error;
        snprintf(text, sizeof(text), ".version 7.0\n.target sm_70\n.address_size 64\n%s\n", cases[i]);
        cr_assert(ptx_module_parse(text, strlen(text), &module, &error), "accepted: %s", cases[i]);
        cr_assert(strlen(error.text) > 8);
    }
}

Test(system, what_compilers_add_is_read_over)
{
    static const char text[] =
        "//\n// Generated by a compiler\n//\n\n.version 8.3\n.target sm_70, texmode_independent, debug\n.address_size "
        "64\n\n"
        "\t// .globl\tk\n.extern .shared .align 16 .b8 dyn[];\n.file\t1 \"/a/b.cu\", 1700000000, 123\n"
        "@@DWARF .section .debug_pubnames\n@@DWARF .byte 0x00, \"x\"\n"
        ".visible .entry k(\n\t.param .u64 .ptr .global .align 8 out\n)\n.maxntid 256, 1, 1\n.minnctapersm 2\n"
        ".pragma \"nounroll\";\n{\n\t.reg .b32 \t%r<4>;\n\t.reg .b64 \t%rd<3>;\n\t.loc\t1 2 3\n"
        "\t.loc 1 5 7, function_name $L__info_string0, inlined_at 1 3 4\n$L__func_begin0:\n"
        "\tld.param.u64 \t%rd1, [out];\n\tcvta.to.global.u64 \t%rd2, %rd1;\n\t.file 2 \"c.cu\"\n\tmov.u32 \t%r1, "
        "%tid.x;\n"
        "@@DWARF .byte 1\n$L__tmp0:\n\tst.global.u32 \t[%rd2], 42;\n\tret;\n$L__tmp1:\n$L__func_end0:\n}\n"
        ".section .debug_str\n{\n$L__info_string0:\n.b8 95,0\n.b32 .debug_abbrev\n}\n.section\t.debug_macinfo\t{\t}\n";
    machine_load(&m, text, sizeof(text) - 1);
    cr_assert_eq(kernel_launch((struct launch){.block = {1}}).fault.kind, PTX_FAULT_NONE);
    cr_assert_eq(kernel_words()[0], 42);
    const struct ptx_function_info *info = ptx_function_info(ptx_module_function(m.module, "k"));
    cr_assert_eq(info->max_threads, 256);
}

/* ---- malloc and free ---- */

Test(system, lists_from_malloc_live_from_kernel_to_kernel)
{
    struct ptx_heap *heap = ptx_heap_create(machine_alloc(&m, 1 << 20), 1 << 20);
    cr_assert(heap);
    for (unsigned debug = 0; debug < 2; debug++) {
        load_source(debug);
        cr_assert(ptx_module_uses_heap(m.module));
        memset(kernel_words(), 0, OUT_BYTES);
        struct {
            uint64_t lists;
            uint64_t rounds_or_sums;
        } params = {out, 10};
        struct launch launch = {.heap = heap, .workers = 2, .slice = 100};
        cr_assert_eq(run("list_push", 128, &params, launch).fault.kind, PTX_FAULT_NONE);
        cr_assert_geq(ptx_heap_used(heap), 128u * 10 * 16);
        cr_assert_eq(run("list_push", 128, &params, launch).fault.kind, PTX_FAULT_NONE);
        params.rounds_or_sums = out + 8192;
        cr_assert_eq(run("list_pop", 128, &params, launch).fault.kind, PTX_FAULT_NONE);
        for (uint32_t t = 0; t < 128; t++)
            cr_assert_eq(kernel_words()[2048 + t], 2 * (4500 + 10 * t));
        cr_assert_eq(ptx_heap_used(heap), 0);
    }
    ptx_heap_destroy(heap);
}

#define HEAP_HEAD ".extern .func (.param .b64 r) malloc(.param .b64 n);\n.extern .func free(.param .b64 a);\n" HEAD
#define MALLOC(to, bytes)                                                                                              \
    "{ .param .b64 n; .param .b64 r; st.param.b64 [n], " bytes "; call.uni (r), malloc, (n); ld.param.b64 " to         \
    ", [r]; }\n"
#define RELEASE(what) "{ .param .b64 a; st.param.b64 [a], " what "; call.uni free, (a); }\n"

Test(system, a_heap_ends_and_is_whole_again)
{
    /* Until there is no more: blocks must not overlap and must all lie in the heap. */
    uint64_t bytes = 100000, va = machine_alloc(&m, bytes);
    struct ptx_heap *heap = ptx_heap_create(va, bytes);
    kernel_load(
        HEAP_HEAD
        "mov.u32 %r1, 0; mul.wide.u32 %rd8, %r0, 512; add.u64 %rd8, %rd8, %rd0; add.u64 %rd8, %rd8, 4096;"
        "cvt.u64.u32 %rd9, %r0; add.u64 %rd9, %rd9, 3000;\n"
        "L: " MALLOC("%rd2", "%rd9") "setp.eq.u64 %p1, %rd2, 0; @%p1 bra E; st.global.u64 [%rd8], %rd2;"
                                     "st.u32 [%rd2], %r0; add.u64 %rd8, %rd8, 8; add.u32 %r1, %r1, 1; bra L;\nE:" TAIL);
    memset(kernel_words(), 0, OUT_BYTES);
    cr_assert_eq(kernel_launch((struct launch){.block = {32}, .heap = heap}).fault.kind, PTX_FAULT_NONE);
    uint64_t blocks[64];
    unsigned count = 0;
    for (unsigned t = 0; t < 32; t++)
        for (unsigned i = 0; i < kernel_words()[t]; i++, count++) {
            memcpy(&blocks[count], &kernel_words()[1024 + 128 * t + 2 * i], 8);
            cr_assert(blocks[count] >= va && blocks[count] + 3031 <= va + bytes && blocks[count] % 16 == 0);
            cr_assert_eq(*(const uint32_t *)machine_at(&m, blocks[count]), t);
            for (unsigned k = 0; k < count; k++)
                cr_assert(blocks[k] + 3031 <= blocks[count] || blocks[count] + 3031 <= blocks[k]);
        }
    cr_assert_eq(count, 24); /* of 4096 bytes each */
    kernel_load(HEAP_HEAD "L: ld.global.u64 %rd2, [%rd0]; setp.eq.u64 %p1, %rd2, 0; @%p1 bra E;" RELEASE(
        "%rd2") "add.u64 %rd0, %rd0, 8; bra L;\nE: mov.u64 %rd2, 65536;" MALLOC("%rd3",
                                                                                "%rd2") "setp.ne.u64 %p1, %rd3, 0; "
                                                                                        "selp.u32 %r1, 1, 0, "
                                                                                        "%p1;" RELEASE("%rd3")
                                                                                            RELEASE("0") MALLOC(
                                                                                                "%rd3",
                                                                                                "0") "setp.eq.u64 %p1, "
                                                                                                     "%rd3, 0; @%p1 "
                                                                                                     "add.u32 %r1, "
                                                                                                     "%r1, 1;" TAIL);
    memset(kernel_words(), 0, OUT_BYTES);
    memcpy(kernel_words(), blocks, (size_t)count * 8);
    cr_assert_eq(kernel_launch((struct launch){.block = {1}, .heap = heap}).fault.kind, PTX_FAULT_NONE);
    cr_assert_eq(kernel_words()[0], 2);
    cr_assert_eq(ptx_heap_used(heap), 0);
    ptx_heap_destroy(heap);
}

Test(system, wrong_frees_are_faults)
{
    struct ptx_heap *heap = ptx_heap_create(machine_alloc(&m, 65536), 65536);
    static const char *const cases[] = {
        MALLOC("%rd2", "64") RELEASE("%rd2") RELEASE("%rd2"),
        MALLOC("%rd2", "64") "add.u64 %rd2, %rd2, 16;" RELEASE("%rd2"),
        RELEASE("%rd0"),
        MALLOC("%rd2", "64") "add.u64 %rd2, %rd2, 1;" RELEASE("%rd2"),
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[2048];
        snprintf(text, sizeof(text), "%s%s%s", HEAP_HEAD, cases[i], TAIL);
        struct outcome outcome = kernel_outcome(text, (struct launch){.block = {1}, .heap = heap});
        cr_assert_eq(outcome.fault.kind, PTX_FAULT_ILLEGAL_ADDRESS, "case %u", i);
        cr_assert(strstr(outcome.fault.space, "heap"));
    }
    ptx_heap_destroy(heap);
    /* Without a heap malloc finds nothing. */
    cr_assert_eq(kernel_run(HEAP_HEAD MALLOC("%rd2", "64") "cvt.u32.u64 %r1, %rd2;" TAIL, 1)[0], 0);
}

/* ---- printf and assert ---- */

Test(system, printf_from_the_compiler)
{
    struct ptx_fifo *fifo = ptx_fifo_create(1 << 20);
    for (unsigned debug = 0; debug < 2; debug++) {
        load_source(debug);
        cr_assert(ptx_module_uses_printf(m.module));
        struct {
            uint64_t out;
            double x;
        } params = {out, 1.25};
        cr_assert_eq(run("say", 5, &params, (struct launch){.fifo = fifo}).fault.kind, PTX_FAULT_NONE);
        char want[1024] = "";
        static const char *const names[] = {"zero", "one", "two"};
        for (int t = 0; t < 5; t++) {
            sprintf(want + strlen(want), "%d: %s %5.2f|%-6ld|%c|%#x%%\n", t, names[t % 3], 1.25 * t, 123456789012L + t,
                    'a' + t, (unsigned)t);
            cr_assert_eq(kernel_words()[t], 6);
        }
        size_t bytes;
        char *text = ptx_fifo_take(fifo, &bytes);
        cr_assert(text && bytes == strlen(want) && !memcmp(text, want, bytes), "%.*s", (int)bytes, text);
        free(text);
        cr_assert_null(ptx_fifo_take(fifo, &bytes));
    }
    ptx_fifo_destroy(fifo);
}

/* Prints `format` with 48 bytes of arguments; what came out is in `printed`, what vprintf returned is the result. */
static char printed[8192];
static int print(const char *format, const void *arguments)
{
    struct ptx_fifo *fifo = ptx_fifo_create(1 << 16);
    kernel_load(
        ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n" HEAD
        "add.u64 %rd2, %rd0, 1024; add.u64 %rd3, %rd0, 512; ld.global.u64 %rd4, [%rd3]; setp.eq.u64 %p1, %rd4, -1;"
        "@%p1 mov.u64 %rd2, 0; { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd2;"
        "st.param.b64 [a], %rd3; call.uni (r), vprintf, (f, a); ld.param.b32 %r1, [r]; }" TAIL);
    memset(kernel_words(), 0, OUT_BYTES);
    memcpy(kernel_words() + 128, arguments, 48);
    strcpy((char *)(kernel_words() + 256), format);
    struct outcome outcome = kernel_launch((struct launch){.block = {1}, .fifo = fifo});
    size_t bytes = 0;
    char *text = ptx_fifo_take(fifo, &bytes);
    cr_assert_lt(bytes, sizeof(printed));
    if (text)
        memcpy(printed, text, bytes);
    printed[bytes] = '\0';
    free(text);
    ptx_fifo_destroy(fifo);
    return outcome.fault.kind == PTX_FAULT_NONE ? (int)kernel_words()[0] : -100;
}

Test(system, printf_knows_the_conversions_of_c)
{
    char want[1024];
    union {
        int32_t i[12];
        int64_t l[6];
        double d[6];
        uint64_t address[6];
    } a = {.i = {-5, 300, 70000, 0x41, 7, 12}};
#define EXPECT(count, format, ...)                                                                                     \
    do {                                                                                                               \
        snprintf(want, sizeof(want), format, ##__VA_ARGS__);                                                           \
        cr_assert_eq(print(format, &a), count, "%s", format);                                                          \
        cr_assert_str_eq(printed, want);                                                                               \
    } while (0)
    EXPECT(0, "plain %% text\n");
    EXPECT(6, "%d %i %x %c %o %X", -5, 300, 70000, 0x41, 7, 12);
    EXPECT(3, "%+08d|%-8i|%#10x", -5, 300, 70000);
    EXPECT(3, "%u %hhu %hd", -5u, (unsigned char)300, (short)70000);
    EXPECT(3, "%*d %d", -5, 300, 70000);
    a.l[0] = INT64_MIN;
    a.l[1] = 1;
    EXPECT(2, "%lld %llx", (long long)INT64_MIN, 1ull);
    EXPECT(2, "%ld|%20lu", (long)INT64_MIN, 1ul);
    a.d[0] = 1.0 / 3;
    a.d[1] = -1e300;
    a.d[2] = 0.0 / 0.0 > 0 ? 0 : 12345678.9;
    EXPECT(3, "%f %e %g", a.d[0], a.d[1], a.d[2]);
    EXPECT(3, "%10.3F|%-12.1E|%G", a.d[0], a.d[1], a.d[2]);
    EXPECT(2, "%a %A", a.d[0], a.d[1]);
    a.address[0] = out + 1024; /* the format itself */
    a.address[1] = 0x1234;
    cr_assert_eq(print("%.3s %p", &a), 2);
    cr_assert_str_eq(printed, "%.3 0x1234");
    a.i[0] = 1;
    a.d[1] = 2.5; /* behind four bytes of padding */
    EXPECT(2, "%d %.1f", 1, 2.5);
    cr_assert_eq(print("%d %y", &a), 1);
    cr_assert_str_eq(printed, "1 %y");
    a.l[0] = -1; /* asks for a null format */
    cr_assert_eq(print("x", &a), -1);
    a.address[0] = 8;
    cr_assert_eq(print("%s", &a), -100);
}

Test(system, the_oldest_output_is_lost_when_the_queue_is_full)
{
    struct ptx_fifo *fifo = ptx_fifo_create(10 * (16 + 8));
    kernel_load(
        ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
        ".global .align 1 .b8 format[5] = \"%d, \";\n" HEAD
        ".local .align 8 .b8 l[8]; mov.u64 %rd2, format; cvta.global.u64 %rd2, %rd2; st.local.u32 [l], %r0;"
        "mov.u64 %rd3, l; cvta.local.u64 %rd3, %rd3; { .param .b64 f; .param .b64 a; .param .b32 r;"
        "st.param.b64 [f], %rd2; st.param.b64 [a], %rd3; call.uni (r), vprintf, (f, a); ld.param.b32 %r1, [r]; }" TAIL);
    cr_assert_eq(kernel_launch((struct launch){.block = {64}, .fifo = fifo}).fault.kind, PTX_FAULT_NONE);
    size_t bytes;
    char *text = ptx_fifo_take(fifo, &bytes);
    cr_assert(text);
    cr_assert_eq(bytes, 40);
    cr_assert_eq(memcmp(text, "54, 55, 56, 57, 58, 59, 60, 61, 62, 63, ", 40), 0, "%.40s", text);
    free(text);
    ptx_fifo_destroy(fifo);
}

Test(system, failed_assertions_are_told_on_stderr)
{
    int keep = dup(STDERR_FILENO), limit = 30;
    FILE *file = tmpfile();
    cr_assert(file && keep >= 0);
    load_source(0);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    struct outcome outcome = run("check", 32, &limit, (struct launch){0});
    fflush(stderr);
    dup2(keep, STDERR_FILENO);
    close(keep);
    char text[1024];
    rewind(file);
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    text[bytes] = '\0';
    fclose(file);
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_ASSERT);
    cr_assert_eq(outcome.fault.thread[0], 30);
    cr_assert(
        strstr(text,
               "system.cu:104: void check(int): block: [0,0,0], thread: [30,0,0] Assertion `TX < limit` failed.\n"),
        "%s", text);
    cr_assert(strstr(text, "thread: [31,0,0]"));
}
