/* What the parser refuses and how it says so; that no text, however broken, does harm. */
#include "ptx/machine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char kernels_ptx[];
extern const unsigned long kernels_ptx_bytes;

#define HEADER ".version 7.0\n.target sm_70\n.address_size 64\n"
#define KERNEL                                                                                                         \
    HEADER ".visible .entry k(.param .u64 o)\n{\n.reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<4>; .reg .b64 "      \
           "%rd<4>; .reg .f32 %f<4>; .reg .f64 %fd<4>;\n"

static struct ptx_error error;

static bool parses(const char *text)
{
    struct ptx_module *module = NULL;
    int rc = ptx_module_parse(text, strlen(text), &module, &error);
    cr_expect_eq(rc == 0, module != NULL);
    ptx_module_destroy(module);
    return rc == 0;
}

static bool kernel_parses(const char *code)
{
    char text[4096];
    snprintf(text, sizeof(text), "%s%s\nret;\n}\n", KERNEL, code);
    return parses(text);
}

Test(parse, names_line_and_text_of_what_is_not_supported)
{
    static const char *const cases[] = {
        "foo.bar.b32 %r1, %r2;",
        "add.foo.s32 %r1, %r1, %r2;",
        "add.rn.s32 %r1, %r1, %r2;",
        "mad.rn.f16 %rs1, %rs1, %rs1, %rs2;",
        "wmma.load.a.sync.aligned.row.m8n8k128.b1 {%r1}, [%rd1], 128;",
        "tex.grad.2d.v4.f32.f32 {%f1,%f1,%f1,%f1}, [%rd1, {%f1,%f1}], {%f1,%f1}, {%f1,%f1};",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%rd2], 16;",
        "shl.s32 %r1, %r1, %r2;",
        "and.u32 %r1, %r1, %r2;",
        "cvt.f32.s32 %f1, %r1;",
        "cvt.s32.f32 %r1, %f1;",
        "atom.global.add.s64 %rd1, [%rd2], %rd3;",
        "atom.global.min.f32 %f1, [%rd2], %f1;",
        "activemask.b64 %rd1;",
        "sin.approx.f64 %fd1, %fd2;",
        "mul.s32 %r1, %r1, %r2;",
        "fma.f32 %f1, %f1, %f1, %f1;",
        "shfl.up.b32 %r1, %r1, 1, 0;",
        "ld.shared.v8.u32 {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1}, [%rd1];",
        "mov.u32 %r1, %envreg1;",
        "div.rn.approx.f32 %f1, %f1, %f1;",
        "bar.red.xor.pred %p1, 0, %p2;",
        "setp.ltu.s32 %p1, %r1, %r2;",
        "ld.global.acquire.relaxed.u32 %r1, [%rd1];",
        "neg.u32 %r1, %r2;",
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert_not(kernel_parses(cases[i]), "accepted: %s", cases[i]);
        if (!strstr(cases[i], "envreg"))
            cr_expect(error.unsupported, "%s: %s", cases[i], error.text);
        cr_expect_eq(error.line, 7, "%s: %s", cases[i], error.text);
        char name[16];
        sscanf(cases[i], "%15[a-z]", name);
        cr_expect(strstr(error.text, name) || strstr(error.text, "envreg"), "%s: %s", cases[i], error.text);
    }
}

Test(parse, refuses_what_is_wrong)
{
    static const char *const cases[] = {
        "add.s32 %r1, %r1;",
        "add.s32 %r1, %rd1, %r2;",
        "add.s32 %r9, %r1, %r2;",
        "mov.u32 %q, 1;",
        "bra NOWHERE;",
        "L: L: ret;",
        "add.s32 %r1, %r1, 99999999999999999999999;",
        "mov.f32 %f1, 0f12;",
        "mov.f32 %f1, 1;",
        "{",
        "}",
        "@%r1 ret;",
        "ld.global.u32 %r1, %rd1;",
        "ld.param.u64 %rd1, [o+8];",
        "ld.param.u64 %rd1, [o+4];",
        ".reg .b32 %r<4>;",
        ".reg .b32 %z<999999999>;",
        ".local .b8 big[99999999];",
        "mov.u64 %rd1, unknown;",
        "setp.lt.and.s32 %p1, %r1, %r2;",
        "st.global.u64 [%rd1], %r1;",
        "selp.b32 %r1, %r1, %r2, %r3;",
        "mov.b32 %r1, 'x';",
        "/* no end",
        "add.s32 %r1, %r1, %r2",
        "ret ret;",
        "call nobody, ();",
        "mov.u32 1, %r1;",
        "cvt.rn.rz.f32.s32 %f1, %r1;",
        "not.pred %p1, %r1;",
        ".shared .u32 few[4]; mov.u64 %rd1, few[5];",
        ".shared .u32 grid[4][4]; mov.u64 %rd1, grid[1];",
        ".shared .u32 one; mov.u64 %rd1, one[0];",
        "mov.u64 %rd1, o[0];",
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert_not(kernel_parses(cases[i]), "accepted: %s", cases[i]);
        cr_expect(strncmp(error.text, "line ", 5) == 0 && strlen(error.text) > 8, "%s: %s", cases[i], error.text);
    }
    static const char *const modules[] = {
        "",
        "garbage",
        ".version 7.0",
        ".version 7.0\n.entry k() { }",
        HEADER ".entry k()",
        HEADER ".entry k() { ret; } .entry k() { ret; }",
        ".version 7.0\n.target sm_70\n.address_size 32\n",
        HEADER ".global .u32 x = {1, 2};",
        HEADER ".global .u32 x[2] = {1, 2, 3};",
        HEADER ".global .u64 x = nothing;",
        HEADER ".global .align 3 .u32 x;",
        HEADER ".extern .global .u32 x;",
        HEADER ".global .u32 x[4294967295][4294967295];",
        HEADER ".func f(); .entry k() { call f, (); ret; }",
        HEADER ".global .samplerref t;",
        HEADER ".entry k(.param .u8 x[40000]) { ret; }",
        HEADER ".section .debug { {",
        HEADER ".shared .b8 x[9999999];",
        HEADER ".alias a, b;",
    };
    for (unsigned i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
        cr_expect(!parses(modules[i]) || !strcmp(modules[i], ".version 7.0"), "accepted: %s", modules[i]);
}

Test(parse, takes_what_compilers_write_around_code)
{
    cr_expect(
        parses("// comment\n.version 6.3\n.target sm_70, debug\n.address_size 64\n/* more\n */\n"
               ".file 1 \"a.cu\"\n.file 2 \"b.cu\", 123, 456\n.visible .func (.param .b32 r) f(.param .b32 a)\n{\n.reg "
               ".b32 %r<3>;\n"
               ".loc 1 2 3, function_name $L, inlined_at 1 2 3\nld.param.u32 %r1, [a];\nst.param.b32 [r+0], "
               "%r1;\nret;\n}\n"
               ".visible .entry k(.param .u64 .ptr .global .align 4 p, .param .align 8 .b8 s[24])\n.maxntid 256, 1, 1\n"
               ".minnctapersm 2\n.maxnreg 64\n.pragma \"nounroll\";\n{\n.pragma \"nounroll\";\nret;\n}\n"
               ".section .debug_str\n{\n.b8 1,2,3\n.b32 .debug_abbrev\ninfo: .b8 0\n}\n"
               ".weak .entry w()\n.reqntid 64\n{\nret;\n}\n"),
        "%s", error.text);
}

Test(parse, describes_functions)
{
    struct ptx_module *module;
    static const char text[] = HEADER ".shared .align 16 .b8 one[100];\n.shared .b8 two[50];\n.func f()\n{ .local "
                                      ".align 8 .b8 l[24]; .reg .u32 %r; mov.u32 %r, two; ret; }\n"
                                      ".entry second(.param .u8 a, .param .u64 b, .param .align 4 .b8 c[12]) .maxntid "
                                      "64, 2 { .reg .u32 %r; mov.u32 %r, one; call f; ret; }\n"
                                      ".entry third() .reqntid 32, 4, 2 { ret; }\n.global .f32 g[3] = {1.5, "
                                      "0f40000000, -2.5};\n.const .u64 p = generic(g)+4;\n";
    cr_assert_eq(ptx_module_parse(text, sizeof(text) - 1, &module, &error), 0, "%s", error.text);
    cr_expect_eq(ptx_module_target(module), 70);
    cr_expect_eq(ptx_module_function_count(module), 3);
    const struct ptx_function_info *info = ptx_function_info(ptx_module_function_at(module, 0));
    cr_assert_str_eq(info->name, "second");
    cr_expect_eq(info->param_count, 3);
    cr_expect_eq(info->params[1].offset_bytes, 8);
    cr_expect_eq(info->params[2].offset_bytes, 16);
    cr_expect_eq(info->params_bytes, 28);
    cr_expect_eq(info->static_shared_bytes, 150);
    cr_expect_geq(info->local_bytes, 24);
    cr_expect_eq(info->max_threads, 128);
    info = ptx_function_info(ptx_module_function(module, "third"));
    cr_expect_eq(info->static_shared_bytes, 0);
    cr_expect_eq(info->required_threads[1], 4);
    cr_expect_eq(info->max_threads, 256);
    cr_expect_null(ptx_module_function(module, "none"));
    cr_assert_eq(ptx_module_global_count(module), 2);
    cr_expect_neq(ptx_module_link(module, &error), 0, "globals have no address yet");
    ptx_module_global_at(module, 0)->address = 4096;
    ptx_module_global_at(module, 1)->address = 8192;
    cr_expect_eq(ptx_module_link(module, &error), 0);
    cr_expect_eq(((const float *)ptx_module_global_at(module, 0)->init)[2], -2.5f);
    cr_expect(ptx_module_global_at(module, 1)->is_const);
    cr_expect_eq(*(const uint64_t *)ptx_module_global_at(module, 1)->init, 4100);
    ptx_module_destroy(module);
}

Test(parse, every_truncation_is_an_error_or_a_module)
{
    for (size_t bytes = 0; bytes < kernels_ptx_bytes; bytes += bytes < 4000 ? 1 : 37) {
        char *text = malloc(bytes + 1); /* exact: reading beyond it shows under the address sanitizer */
        memcpy(text, kernels_ptx, bytes);
        struct ptx_module *module = NULL;
        if (!ptx_module_parse(text, bytes, &module, &error))
            ptx_module_destroy(module);
        free(text);
    }
}

static void mutate(char *text, size_t *bytes, size_t capacity, uint64_t *random)
{
    static const char *const pieces[] = {"{",
                                         "}",
                                         "(",
                                         ")",
                                         "[",
                                         "]",
                                         ";",
                                         "@",
                                         ".",
                                         "%r1",
                                         "-1",
                                         "0x7fffffffffffffff",
                                         "4294967296",
                                         ".v4",
                                         ".global",
                                         ".param",
                                         ".reg .b64 %rd<100000>;",
                                         "bra L;",
                                         "L:",
                                         "\"",
                                         "/*",
                                         "\0x",
                                         "!",
                                         "|",
                                         "{{{{{{{{",
                                         ".b8",
                                         ".align 0",
                                         "call",
                                         "ret;",
                                         "bar.sync",
                                         "99999999999999999999",
                                         "0d",
                                         "0f7f800000",
                                         "_",
                                         ".shared",
                                         "exit;",
                                         ".func",
                                         ".entry",
                                         "="};
    for (unsigned n = 1 + (unsigned)(machine_random(random) % 3); n; n--) {
        size_t at = machine_random(random) % *bytes, span = machine_random(random) % 24;
        span = span < *bytes - at ? span : *bytes - at;
        switch (machine_random(random) % 4) {
        case 0: /* another character */ text[at] = (char)machine_random(random); break;
        case 1: /* something cut out */
            memmove(text + at, text + at + span, *bytes - at - span);
            *bytes -= span;
            break;
        case 2: { /* a piece put in */
            const char *piece = pieces[machine_random(random) % (sizeof(pieces) / sizeof(pieces[0]))];
            size_t more = strlen(piece);
            if (*bytes + more > capacity)
                break;
            memmove(text + at + more, text + at, *bytes - at);
            memcpy(text + at, piece, more); /* NOLINT(bugprone-not-null-terminated-result): a middle piece */
            *bytes += more;
            break;
        }
        default: { /* a piece from elsewhere copied over */
            size_t from = *bytes > span ? machine_random(random) % (*bytes - span) : 0;
            memmove(text + at, text + from, span);
        }
        }
        if (!*bytes)
            *bytes = 1;
    }
}

/* Mutants that parse are run as well, within a budget: whatever they do must stay inside the machine. */
static void run_mutant(struct machine *m, struct ptx_module *module, uint64_t params)
{
    for (size_t i = 0; i < ptx_module_global_count(module); i++) {
        struct ptx_global *g = ptx_module_global_at(module, i);
        g->address = MACHINE_BASE + 0x10000 + i * 4096;
    }
    if (ptx_module_link(module, &error))
        return;
    uint64_t block[64];
    for (unsigned i = 0; i < 64; i++)
        block[i] = params + i * 64;
    for (size_t i = 0; i < ptx_module_function_count(module); i++) {
        struct ptx_function *f = ptx_module_function_at(module, i);
        const struct ptx_function_info *info = ptx_function_info(f);
        if (!info->is_entry || info->params_bytes > sizeof(block) || info->static_shared_bytes > 100000)
            continue;
        struct ptx_grid_args args = {.function = f,
                                     .grid = {2, 1, 1},
                                     .block = {40, 1, 1},
                                     .params = block,
                                     .pagetable = &m->table,
                                     .max_resident_blocks = 2,
                                     .sm_count = 1};
        struct ptx_grid *grid = ptx_grid_create(&args);
        for (int k = 0; k < 4 && ptx_grid_run(grid, 2000) != PTX_DONE; k++)
            ;
        ptx_grid_abort(grid);
        cr_assert_eq(ptx_grid_run(grid, 1), PTX_DONE);
        ptx_grid_destroy(grid);
    }
}

Test(parse, mutated_text_does_no_harm, .timeout = 240)
{
    struct machine m;
    machine_init(&m);
    uint64_t params = machine_alloc(&m, 65536), random = 20260101;
    size_t capacity = kernels_ptx_bytes + 4096;
    unsigned good = 0;
    for (unsigned round = 0; round < 3000; round++) {
        size_t bytes = kernels_ptx_bytes;
        char *text = malloc(capacity);
        memcpy(text, kernels_ptx, bytes);
        mutate(text, &bytes, capacity, &random);
        char *exact = malloc(bytes);
        memcpy(exact, text, bytes);
        struct ptx_module *module = NULL;
        if (!ptx_module_parse(exact, bytes, &module, &error)) {
            good++;
            run_mutant(&m, module, params);
            ptx_module_destroy(module);
        } else {
            cr_assert_neq(error.text[0], '\0');
        }
        free(exact);
        free(text);
    }
    cr_expect_gt(good, 20u, "some mutants still parse: %u", good);
    machine_finish(&m);
}
