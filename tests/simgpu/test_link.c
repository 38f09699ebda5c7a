/* The linker, and fat binaries. */
#include "kernels.h"
#include "sim_test.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"

/* Calls `twice` and reads `shared_table`, both of the other text; each has a static of the same name. */
static const char caller[] = HEAD ".extern .func (.param .b32 twice_r) twice(.param .b32 twice_x);\n"
                                  ".extern .global .align 4 .b8 shared_table[];\n"
                                  ".global .align 4 .u32 own = 1000;\n"
                                  ".visible .entry run(.param .u64 run_p)\n"
                                  "{\n"
                                  "    .reg .b32 %r<6>;\n"
                                  "    .reg .b64 %rd<2>;\n"
                                  "    ld.param.u64 %rd1, [run_p];\n"
                                  "    ld.global.u32 %r1, [shared_table+4];\n"
                                  "    {\n"
                                  "    .param .b32 x;\n"
                                  "    .param .b32 r;\n"
                                  "    st.param.b32 [x], %r1;\n"
                                  "    call.uni (r), twice, (x);\n"
                                  "    ld.param.b32 %r2, [r];\n"
                                  "    }\n"
                                  "    ld.global.u32 %r3, [own];\n"
                                  "    add.u32 %r4, %r2, %r3;\n"
                                  "    st.global.u32 [%rd1], %r4;\n"
                                  "    ret;\n"
                                  "}\n";

static const char callee[] = HEAD ".visible .global .align 4 .u32 shared_table[3] = {5, 21, 7};\n"
                                  ".global .align 4 .u32 own = 70000;\n"
                                  ".visible .func (.param .b32 twice_r) twice(.param .b32 twice_x)\n"
                                  "{\n"
                                  "    .reg .b32 %r<5>;\n"
                                  "    ld.param.b32 %r1, [twice_x];\n"
                                  "    add.u32 %r2, %r1, %r1;\n"
                                  "    ld.global.u32 %r3, [own];\n"
                                  "    add.u32 %r4, %r2, %r3;\n"
                                  "    st.param.b32 [twice_r], %r4;\n"
                                  "    ret;\n"
                                  "}\n";

static const char weak[] = HEAD ".weak .global .align 4 .u32 shared_table[3] = {1, 1, 1};\n"
                                ".weak .func (.param .b32 twice_r) twice(.param .b32 twice_x)\n"
                                "{\n"
                                "    .reg .b32 %r<2>;\n"
                                "    mov.u32 %r1, 4;\n"
                                "    st.param.b32 [twice_r], %r1;\n"
                                "    ret;\n"
                                "}\n";

static CUresult add(CUlinkState state, const char *text, const char *name)
{
    return cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text, strlen(text) + 1, name, 0, NULL, NULL);
}

static unsigned run(const void *image)
{
    CUmodule module;
    CUfunction f;
    CUdeviceptr p;
    unsigned got = 0;
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&f, module, "run"));
    OK(cuMemAlloc_v2(&p, 4));
    void *params[] = {&p};
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    OK(cuMemFree_v2(p));
    OK(cuModuleUnload(module));
    return got;
}

Test(link, texts_share_what_is_visible_and_keep_the_rest_apart)
{
    machine_with_context("h200,vram=64M");
    for (int order = 0; order < 2; order++) {
        CUlinkState state;
        void *image;
        size_t bytes;
        OK(cuLinkCreate_v2(0, NULL, NULL, &state));
        OK(add(state, order ? caller : callee, "first.ptx"));
        OK(add(state, order ? callee : caller, "second.ptx"));
        OK(cuLinkComplete(state, &image, &bytes));
        void *again;
        OK(cuLinkComplete(state, &again, NULL));
        cr_assert_eq(image, again);
        void *copy = malloc(bytes);
        memcpy(copy, image, bytes);
        OK(cuLinkDestroy(state));
        GIVES(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(state));
        cr_assert_eq(run(copy), 42 + 70000 + 1000);
        CUlinkState more; /* what was linked can be linked on */
        OK(cuLinkCreate_v2(0, NULL, NULL, &more));
        OK(cuLinkAddData_v2(more, CU_JIT_INPUT_CUBIN, copy, bytes, "linked", 0, NULL, NULL));
        OK(cuLinkComplete(more, &image, &bytes));
        cr_assert_eq(run(image), 42 + 70000 + 1000);
        OK(cuLinkDestroy(more));
        free(copy);
    }
}

Test(link, weak_definitions_yield)
{
    machine_with_context("h200,vram=64M");
    CUlinkState state;
    void *image;
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    OK(add(state, callee, "strong.ptx"));
    OK(add(state, weak, "weak.ptx"));
    OK(add(state, caller, "caller.ptx"));
    OK(cuLinkComplete(state, &image, NULL));
    cr_assert_eq(run(image), 42 + 70000 + 1000);
    OK(cuLinkDestroy(state));
    OK(cuLinkCreate_v2(0, NULL, NULL, &state)); /* and serve where there is no other */
    OK(add(state, weak, "weak.ptx"));
    OK(add(state, weak, "weak again.ptx"));
    OK(add(state, caller, "caller.ptx"));
    OK(cuLinkComplete(state, &image, NULL));
    cr_assert_eq(run(image), 4 + 1000);
    OK(cuLinkDestroy(state));
}

Test(link, what_is_missing_or_there_twice_is_told)
{
    machine_with_context("h200,vram=64M");
    static char log[1000];
    float ms;
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_WALL_TIME,
                              CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    char info[10] = "unset";
    void *values[] = {log, (void *)sizeof log, NULL, info, (void *)sizeof info};
    CUlinkState state;
    void *image;
    OK(cuLinkCreate_v2(5, options, values, &state));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuLinkComplete(state, &image, NULL)); /* nothing in it */
    GIVES(CUDA_ERROR_INVALID_PTX, add(state, HEAD ".visible .entry f()\n{\n frobnicate;\n ret;\n}\n", "broken.ptx"));
    cr_assert_not_null(strstr(log, "broken.ptx, line 6"), "%s", log);
    size_t before = strlen(log);
    cr_assert_eq((uintptr_t)values[1], before);
    OK(add(state, caller, "caller.ptx"));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuLinkComplete(state, &image, NULL));
    cr_assert_not_null(strstr(log + before, "'shared_table' is used, and not defined"), "%s", log);
    memcpy(&ms, &values[2], sizeof ms);
    cr_assert_gt(ms, 0.0f);
    cr_assert_eq(info[0], 0);
    OK(cuLinkDestroy(state));
    values[1] = (void *)sizeof log;
    values[4] = (void *)sizeof info;
    OK(cuLinkCreate_v2(5, options, values, &state));
    OK(add(state, HEAD ".extern .func nothing();\n.visible .entry f()\n{\n call.uni nothing;\n ret;\n}\n", "a.ptx"));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuLinkComplete(state, &image, NULL));
    cr_assert_not_null(strstr(log, "'f' calls 'nothing'"), "%s", log);
    OK(cuLinkDestroy(state));
    values[1] = (void *)sizeof log;
    values[4] = (void *)sizeof info;
    OK(cuLinkCreate_v2(5, options, values, &state));
    OK(add(state, callee, "a.ptx"));
    OK(add(state, callee, "b.ptx"));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuLinkComplete(state, &image, NULL));
    cr_assert_not_null(strstr(log, "b.ptx, line"), "%s", log);
    cr_assert_not_null(strstr(log, "'shared_table' is defined twice"), "%s", log);
    OK(cuLinkDestroy(state));
}

Test(link, an_undefined_name_that_nobody_uses_is_no_error)
{
    machine_with_context("h200,vram=64M");
    CUlinkState state;
    void *image;
    CUmodule m;
    CUdeviceptr p;
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    OK(add(state, HEAD ".extern .global .u32 nowhere;\n.visible .global .u32 here = 3;\n", NULL));
    OK(cuLinkComplete(state, &image, NULL));
    OK(cuModuleLoadData(&m, image));
    OK(cuModuleGetGlobal_v2(&p, NULL, m, "here"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&p, NULL, m, "nowhere"));
    OK(cuLinkDestroy(state));
}

Test(link, options_and_inputs_are_checked)
{
    machine_with_context("a100-pcie,vram=64M");
    CUlinkState state;
    CUmodule m;
    void *image;
    CUjit_option target = CU_JIT_TARGET, fallback = CU_JIT_FALLBACK_STRATEGY, unknown = (CUjit_option)99,
                 registers = CU_JIT_MAX_REGISTERS, both[2] = {CU_JIT_TARGET, CU_JIT_THREADS_PER_BLOCK};
    void *zero[2] = {0}, *sm70 = (void *)70, *sm75 = (void *)75, *sm90 = (void *)90, *strange = (void *)71;
    void *both_values[2] = {(void *)80, (void *)128};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkCreate_v2(0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkCreate_v2(1, &fallback, zero, &state));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkCreate_v2(1, &unknown, zero, &state));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkCreate_v2(2, both, both_values, &state));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkCreate_v2(1, &target, &strange, &state));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkCreate_v2(1, NULL, NULL, &state));
    OK(cuLinkCreate_v2(1, &target, &sm70, &state)); /* code of another generation than the device's */
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, add(state, ".version 7.0\n.target sm_75\n.address_size 64\n", NULL));
    OK(add(state, kernels_ptx, NULL));
    OK(cuLinkComplete(state, &image, NULL));
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, image));
    GIVES(CUDA_ERROR_INVALID_VALUE, add(state, kernels_ptx, NULL)); /* it is complete */
    OK(cuLinkDestroy(state));
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadDataEx(&m, kernels_ptx, 1, &target, &sm90));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuModuleLoadDataEx(&m, kernels_ptx, 1, &unknown, zero));
    OK(cuModuleLoadDataEx(&m, kernels_ptx, 1, &registers, &sm75));
    OK(cuLinkCreate_v2(1, &registers, &sm75, &state));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)kernels_ptx,
                                                     sizeof kernels_ptx, NULL, 1, &target, &sm90));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuLinkAddData_v2(state, (CUjitInputType)6, (void *)(uintptr_t)caller, 9, NULL, 0, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, NULL, 9, NULL, 0, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_IMAGE, add(state, "hello", NULL));
    GIVES(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, add(state, ".version 12.3\n.target sm_70\n.address_size 64\n", NULL));
    static char elf[64] = "\x7f"
                          "ELF";
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU,
          cuLinkAddData_v2(state, CU_JIT_INPUT_CUBIN, elf, sizeof elf, NULL, 0, NULL, NULL));
    GIVES(CUDA_ERROR_NOT_SUPPORTED,
          cuLinkAddData_v2(state, CU_JIT_INPUT_LIBRARY, elf, sizeof elf, NULL, 0, NULL, NULL));
    GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, "/nonexistent.ptx", 0, NULL, NULL));
    char path[64];
    snprintf(path, sizeof path, "/tmp/simgpu-link-%d.ptx", (int)getpid());
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(callee, f);
    fclose(f);
    OK(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
    unlink(path);
    OK(add(state, caller, NULL));
    OK(cuLinkComplete(state, &image, NULL));
    cr_assert_eq(run(image), 42 + 70000 + 1000);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuLinkComplete((CUlinkState)(uintptr_t)0x1230, &image, NULL));
}

/* ---- fat binaries ---- */

struct fat {
    struct {
        uint32_t magic, version;
        const void *data, *more;
    } wrapper;
    uint8_t bytes[64 << 10] __attribute__((aligned(8)));
    size_t used;
};

static void put(struct fat *f, const void *data, size_t bytes)
{
    memcpy(f->bytes + f->used, data, bytes);
    f->used += bytes;
    uint64_t total = f->used - 16;
    memcpy(f->bytes + 8, &total, 8);
}

static void begin(struct fat *f)
{
    static const uint32_t head[4] = {0xba55ed50, 0x00100001, 0, 0};
    memset(f, 0, sizeof *f);
    memcpy(f->bytes, head, 16);
    f->used = 16;
    f->wrapper.magic = 0x466243b1;
    f->wrapper.version = 1;
    f->wrapper.data = f->bytes;
}

static void entry(struct fat *f, unsigned kind, unsigned sm, const void *payload, size_t bytes, uint64_t flags,
                  uint64_t plain_bytes)
{
    struct {
        uint16_t kind, unknown;
        uint32_t header_bytes;
        uint64_t bytes;
        uint32_t compressed_bytes, options;
        uint16_t minor, major;
        uint32_t sm, name, name_bytes;
        uint64_t flags, zero, plain_bytes;
    } e = {.kind = (uint16_t)kind,
           .unknown = 0x101,
           .header_bytes = 64,
           .bytes = (bytes + 7) & ~(size_t)7,
           .compressed_bytes = flags ? (uint32_t)bytes : 0,
           .major = 7,
           .sm = sm,
           .flags = 0x11 | flags,
           .plain_bytes = plain_bytes};
    put(f, &e, sizeof e);
    put(f, payload, bytes);
    static const uint8_t zeros[8];
    put(f, zeros, e.bytes - bytes);
}

/* A text whose kernel `run` stores `value`, with a comment of 1000 equal letters after its first line. */
static size_t text_of(char *text, size_t bytes, unsigned sm, unsigned value)
{
    int n = snprintf(text, bytes, ".version 7.0\n//");
    memset(text + n, 'x', 1000);
    n += 1000;
    n += snprintf(text + n, bytes - (size_t)n,
                  "\n.target sm_%u\n.address_size 64\n.visible .entry run(.param .u64 p)\n{\n .reg .b32 %%r<2>;\n"
                  " .reg .b64 %%rd<2>;\n ld.param.u64 %%rd1, [p];\n mov.u32 %%r1, %u;\n st.global.u32 [%%rd1], %%r1;\n"
                  " ret;\n}\n",
                  sm, value);
    return (size_t)n + 1;
}

Test(link, a_fat_binary_gives_its_newest_ptx_that_the_device_takes)
{
    machine_with_context("a100-pcie,vram=64M");
    static struct fat f;
    char text[2000];
    begin(&f);
    entry(&f, 2, 80, "binary code", 12, 0, 0);
    entry(&f, 1, 70, text, text_of(text, sizeof text, 70, 70), 0, 0);
    entry(&f, 1, 80, text, text_of(text, sizeof text, 80, 80), 0, 0);
    entry(&f, 1, 90, text, text_of(text, sizeof text, 90, 90), 0, 0);
    cr_assert_eq(run(f.bytes), 80);
    cr_assert_eq(run(&f.wrapper), 80);
    CUmodule m;
    OK(cuModuleLoadFatBinary(&m, &f.wrapper));
    CUlibrary lib;
    OK(cuLibraryLoadData(&lib, f.bytes, NULL, NULL, 0, NULL, NULL, 0));
    CUlinkState state;
    void *image;
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    OK(cuLinkAddData_v2(state, CU_JIT_INPUT_FATBINARY, f.bytes, f.used, "fat", 0, NULL, NULL));
    OK(cuLinkComplete(state, &image, NULL));
    cr_assert_eq(run(image), 80);
}

/* The text as an LZ4 block: literals up to the first x, a match for the others, literals. */
static size_t packed(const char *text, size_t bytes, uint8_t *out)
{
    size_t first = (size_t)(strchr(text, 'x') - text) + 1, rest = bytes - first - 999, n = 0;
    out[n++] = 0xff;
    out[n++] = (uint8_t)(first - 15); /* less than 255 beyond the 15 */
    memcpy(out + n, text, first);
    n += first;
    out[n++] = 1; /* distance */
    out[n++] = 0;
    size_t more = 999 - 4 - 15;
    for (; more >= 255; more -= 255)
        out[n++] = 255;
    out[n++] = (uint8_t)more;
    out[n++] = 0xf0;
    for (more = rest - 15; more >= 255; more -= 255)
        out[n++] = 255;
    out[n++] = (uint8_t)more;
    memcpy(out + n, text + first + 999, rest);
    return n + rest;
}

Test(link, compressed_entries_are_unpacked)
{
    machine_with_context("h200,vram=64M");
    static struct fat f;
    char text[2000];
    uint8_t block[2000];
    size_t bytes = text_of(text, sizeof text, 70, 123), n = packed(text, bytes, block);
    cr_assert_lt(n, bytes);
    begin(&f);
    entry(&f, 1, 70, block, n, 0x2000, bytes);
    cr_assert_eq(run(f.bytes), 123);
    CUmodule m;
    for (size_t cut = 1; cut < n; cut += 37) { /* never beyond its ends */
        begin(&f);
        entry(&f, 1, 70, block, n - cut, 0x2000, bytes);
        GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, f.bytes));
    }
    begin(&f);
    entry(&f, 1, 70, block, n, 0x8000, bytes);
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, f.bytes)); /* zstd */
}

Test(link, a_fat_binary_without_ptx_says_what_it_holds)
{
    machine_with_context("h200,vram=64M");
    static struct fat f;
    char log[300] = "", text[2000];
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CUmodule m;
    begin(&f);
    entry(&f, 2, 90, "binary code", 12, 0, 0);
    entry(&f, 1, 100, text, text_of(text, sizeof text, 100, 1), 0, 0);
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadDataEx(&m, f.bytes, 2, options, values));
    cr_assert_not_null(strstr(log, "binary sm_90, PTX sm_100"), "%s", log);
    f.wrapper.data = NULL;
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, &f.wrapper));
    uint64_t too_long = f.used;
    memcpy(f.bytes + 8, &too_long, 8);
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, f.bytes)); /* the last entry runs past the end */
}

/* Bytes that end where memory ends. */
static const void *at_the_brink(const void *data, size_t bytes)
{
    size_t room = (bytes + 4095) & ~(size_t)4095;
    uint8_t *memory = mmap(NULL, room + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    cr_assert_eq(mprotect(memory + room, 4096, PROT_NONE), 0);
    memcpy(memory + room - bytes, data, bytes);
    return memory + room - bytes;
}

static void refuses_every_truncation(const void *data, size_t bytes)
{
    for (size_t n = 1; n < bytes; n += n < 200 ? 1 : 97) {
        CUlinkState state;
        OK(cuLinkCreate_v2(0, NULL, NULL, &state));
        cr_assert_neq(cuLinkAddData_v2(state, CU_JIT_INPUT_FATBINARY, (void *)(uintptr_t)at_the_brink(data, n), n,
                                       "cut", 0, NULL, NULL),
                      CUDA_SUCCESS, "%zu of %zu bytes", n, bytes);
        OK(cuLinkDestroy(state));
    }
}

Test(link, nothing_beyond_an_input_is_read)
{
    machine_with_context("h200,vram=64M");
    static struct fat f;
    static char text[2000], file[64];
    CUlinkState state;
    CUmodule m;
    void *image;
    size_t bytes = text_of(text, sizeof text, 70, 1);
    begin(&f);
    entry(&f, 1, 70, text, bytes, 0, 0);
    refuses_every_truncation(f.bytes, f.used);
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    OK(cuLinkAddData_v2(state, CU_JIT_INPUT_FATBINARY, (void *)(uintptr_t)at_the_brink(f.bytes, f.used), f.used, "fat",
                        0, NULL, NULL));
    OK(cuLinkComplete(state, &image, &bytes));
    refuses_every_truncation(image, bytes);
    OK(cuLinkDestroy(state));
    snprintf(file, sizeof file, "/tmp/simgpu-cut-%d", (int)getpid());
    FILE *out = fopen(file, "w");
    f.wrapper.data = (const void *)(uintptr_t)16; /* in a file an address means nothing */
    cr_assert_eq(fwrite(&f.wrapper, sizeof f.wrapper, 1, out), 1);
    fclose(out);
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoad(&m, file));
    unlink(file);
}
