/* What can be read of the parameters of kernels in images, for drivers that do not tell them. */
#include "core_test.h"

#include <elf.h>

#include "base/lz4.h"
#include "residency/image.h"

struct expected {
    const char *name;
    unsigned count;
    uint32_t param[8][2]; /* offset, size */
};
struct seen {
    const struct expected *expected;
    unsigned count, found;
};

static void compare(const struct hr_image_kernel *kernel, void *arg)
{
    struct seen *seen = arg;
    for (unsigned i = 0; i < seen->count; i++) {
        const struct expected *e = &seen->expected[i];
        if (strlen(e->name) != kernel->name_bytes || memcmp(e->name, kernel->name, kernel->name_bytes) != 0)
            continue;
        seen->found++;
        CHECK(kernel->count == e->count, "%s has %u parameters", e->name, kernel->count);
        for (unsigned p = 0; p < e->count; p++)
            CHECK(kernel->param[p].offset_bytes == e->param[p][0] && kernel->param[p].size_bytes == e->param[p][1],
                  "%s, parameter %u: %u bytes at %u", e->name, p, kernel->param[p].size_bytes,
                  kernel->param[p].offset_bytes);
        return;
    }
    CHECK(false, "no such kernel: %.*s", (int)kernel->name_bytes, kernel->name);
}

static bool each(const void *image, const struct expected *expected, unsigned count)
{
    struct seen seen = {expected, count, 0};
    bool sound = hr_image_each(image, SIZE_MAX, compare, &seen);
    CHECK(!sound || seen.found == count, "%u kernels of %u", seen.found, count);
    return sound;
}
static void ignore(const struct hr_image_kernel *kernel, void *arg)
{
    (void)kernel, (void)arg;
}

static const char text[] =
    "//\n// .entry not_this ( .param .u64 x )\n.version 7.4\n.target sm_80\n.address_size 64\n"
    "/* .entry nor_this() */ .file 1 \"a \\\" .entry nor_this (\"\n"
    ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
    ".visible .entry plain(\n\t.param .u64 plain_param_0, // the first\n\t.param .u32 plain_param_1,\n"
    "\t.param .u64 plain_param_2\n)\n.maxntid 128, 1, 1\n{ ret; }\n"
    ".weak .entry _Z6structI5ArrayEvT_( .param .align 8 .b8 s[20], .param .u8 c, .param .align 16 .b8 t[32],\n"
    ".param .u64 .ptr .global .align 64 p ) { .param .b32 inner; ret; }\n"
    ".entry none() { ret; }\n.entry bare { ret; }\n"
    ".entry odd(.param .b16 a, .param .f16x2 b, .param .v4 .f32 c, .param .texref t, .param .f64 d[3]) { ret; }\n";
static const struct expected text_kernels[] = {
    {"plain", 3, {{0, 8}, {8, 4}, {16, 8}}},
    {"_Z6structI5ArrayEvT_", 4, {{0, 20}, {20, 1}, {32, 32}, {64, 8}}},
    {"none", 0, {{0}}},
    {"bare", 0, {{0}}},
    {"odd", 5, {{0, 2}, {4, 4}, {16, 16}, {32, 8}, {40, 24}}},
};

Test(image, heads_of_kernels_in_a_text)
{
    CHECK(each(text, text_kernels, 5));
    CHECK(!each("not a text", NULL, 0));
    CHECK(!each("", NULL, 0));
    CHECK(!hr_image_each(".version 7.0 .entry f(.param .what x) {}", SIZE_MAX, ignore, NULL));
    CHECK(!hr_image_each(".version 7.0 .entry f(.param .u64 x", SIZE_MAX, ignore, NULL));
    CHECK(!hr_image_each(".version 7.0 .entry f(.param .align 3 .b8 x[4]) {}", SIZE_MAX, ignore, NULL));
    CHECK(!hr_image_each(".version 7.0 .entry f(.param .b64 x[99999999999]) {}", SIZE_MAX, ignore, NULL));
}

/* The driver of today tells what it made of the same text. */
static void ask_driver(const struct hr_image_kernel *kernel, void *arg)
{
    char name[256];
    CUfunction f;
    size_t offset, size;
    snprintf(name, sizeof name, "%.*s", (int)kernel->name_bytes, kernel->name);
    OK(cuModuleGetFunction(&f, *(CUmodule *)arg, name));
    for (unsigned i = 0; i < kernel->count; i++) {
        OK(cuFuncGetParamInfo(f, i, &offset, &size));
        CHECK(offset == kernel->param[i].offset_bytes && size == kernel->param[i].size_bytes, "%s: %u", name, i);
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, kernel->count, &offset, &size));
}
Test(image, layouts_are_those_that_a_driver_tells)
{
    CUmodule m;
    machine("h200,vram=64M,host=64M", "");
    OK(cuModuleLoadData(&m, shim_ptx));
    CHECK(hr_image_each(shim_ptx, SIZE_MAX, ask_driver, &m));
}

/* --- files --- */

#define SECTIONS 3
struct file {
    Elf64_Ehdr head;
    Elf64_Shdr section[SECTIONS];
    char names[64];
    uint8_t info[64];
};

static struct file elf_with(const char *kernel, const uint32_t params[][2], unsigned count)
{
    struct file f = {.head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                              .e_machine = 190,
                              .e_shoff = offsetof(struct file, section),
                              .e_shentsize = sizeof(Elf64_Shdr),
                              .e_shnum = SECTIONS,
                              .e_shstrndx = 1}};
    snprintf(f.names + 1, sizeof f.names - 1, ".nv.info.%s", kernel);
    f.section[1] =
        (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = offsetof(struct file, names), .sh_size = sizeof f.names};
    uint8_t *at = f.info;
    *at++ = 3, *at++ = 0x1b, *at++ = 255, *at++ = 0; /* another attribute, without bytes of its own */
    for (unsigned i = count; i-- > 0;) {
        uint16_t ordinal = (uint16_t)i, offset = (uint16_t)params[i][0];
        uint32_t word = params[i][1] << 18 | 0x1f000, index = 0;
        *at++ = 4, *at++ = 0x17, *at++ = 12, *at++ = 0;
        memcpy(at, &index, 4), memcpy(at + 4, &ordinal, 2), memcpy(at + 6, &offset, 2), memcpy(at + 8, &word, 4);
        at += 12;
    }
    f.section[2] = (Elf64_Shdr){.sh_name = 1,
                                .sh_type = 0x70000000,
                                .sh_offset = offsetof(struct file, info),
                                .sh_size = (size_t)(at - f.info)};
    return f;
}
static const struct expected elf_kernel = {"k", 3, {{0, 8}, {8, 4}, {16, 24}}};
static const uint32_t elf_params[][2] = {{0, 8}, {8, 4}, {16, 24}};

Test(image, attributes_of_kernels_in_a_file)
{
    struct file f = elf_with("k", elf_params, 3);
    CHECK(each(&f, &elf_kernel, 1));
    f.head.e_machine = EM_X86_64;
    CHECK(!hr_image_each(&f, SIZE_MAX, ignore, NULL));
    f = elf_with("k", elf_params, 3);
    CHECK(!hr_image_elf(&f, sizeof f - sizeof f.info, ignore, NULL)); /* cut off */
}

/* --- fat binaries --- */

struct container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
    uint8_t entries[8192];
};

static void add_entry(struct container *c, uint16_t kind, const void *code, size_t bytes, uint64_t flags, size_t plain)
{
    uint8_t *at = c->entries + c->bytes;
    uint32_t header = 64, packed = (uint32_t)bytes;
    uint64_t code_bytes = bytes, plain_bytes = plain;
    memset(at, 0, header);
    memcpy(at, &kind, 2);
    memcpy(at + 4, &header, 4);
    memcpy(at + 8, &code_bytes, 8);
    memcpy(at + 16, &packed, 4);
    memcpy(at + 40, &flags, 8);
    memcpy(at + 56, &plain_bytes, 8);
    memcpy(at + header, code, bytes);
    c->bytes += header + bytes;
}

/* As LZ4 has it, all literals. */
static size_t pack(const char *plain, size_t bytes, uint8_t *out)
{
    size_t at = 0, rest = bytes - 15;
    out[at++] = 0xf0;
    for (; rest >= 255; rest -= 255)
        out[at++] = 255;
    out[at++] = (uint8_t)rest;
    memcpy(out + at, plain, bytes);
    return at + bytes;
}

Test(image, what_is_in_a_fat_binary)
{
    static const char no_file[] = "\x7f"
                                  "ELF by its first letters";
    static struct container c;
    static uint8_t packed[sizeof text + 64];
    struct {
        uint32_t magic, version;
        const void *data;
        void *more;
    } wrapper = {0x466243b1, 1, &c, NULL};
    c = (struct container){.magic = 0xba55ed50, .version = 1, .header_bytes = 16};
    add_entry(&c, 2, no_file, sizeof no_file, 0, 0);
    add_entry(&c, 1, text, sizeof text, 0x8000, 5000); /* in a way that cannot be read */
    add_entry(&c, 1, packed, pack(text, sizeof text, packed), 0x2000, sizeof text);
    CHECK(each(&c, text_kernels, 5));
    CHECK(each(&wrapper, text_kernels, 5));
    struct file f = elf_with("k", elf_params, 3);
    c.bytes = 0;
    add_entry(&c, 2, &f, sizeof f, 0, 0);
    CHECK(each(&c, &elf_kernel, 1));
    c.bytes = 0;
    add_entry(&c, 1, text, sizeof text, 0x8000, 5000);
    CHECK(!hr_image_each(&c, SIZE_MAX, ignore, NULL));
}

Test(image, blocks_that_copy_what_they_wrote)
{
    static const uint8_t block[] = {0x38, 'a', 'b', 'c', 3, 0, 0x20, 'x', 'y'};
    uint8_t out[17];
    CHECK(hr_lz4_unpack(block, sizeof block, out, 17));
    CHECK(memcmp(out, "abcabcabcabcabcxy", 17) == 0);
    CHECK(!hr_lz4_unpack(block, sizeof block, out, 16));
    CHECK(!hr_lz4_unpack(block, 4, out, 17));
    static const uint8_t before[] = {0x10, 'a', 2, 0, 0};
    CHECK(!hr_lz4_unpack(before, sizeof before, out, 17));
}

/* Broken images of each kind end in an answer, whatever it is; the sanitizers watch. */
Test(image, broken_ones_are_read_within_their_bounds)
{
    uint64_t state = 88172645463325252u;
    struct file whole = elf_with("k", elf_params, 3);
    for (int round = 0; round < 20000; round++) {
        struct file *f = malloc(sizeof *f);
        char *t = malloc(sizeof text);
        *f = whole;
        memcpy(t, text, sizeof text);
        for (int i = 0; i < 3; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            ((uint8_t *)f)[state % sizeof *f] = (uint8_t)(state >> 32);
            t[state % (sizeof text - 1)] = (char)(state >> 40);
        }
        hr_image_elf(f, sizeof *f, ignore, NULL);
        hr_image_ptx(t, sizeof text - 1 - state % 100, ignore, NULL);
        free(f);
        free(t);
    }
}

/* At the end of memory that can be read, as a file of that length is. */
static void read_at_the_end(const void *image, size_t bytes)
{
    size_t pages = (bytes + 4095) / 4096 * 4096 + 4096;
    uint8_t *p = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(p != MAP_FAILED && mprotect(p + pages - 4096, 4096, PROT_NONE) == 0);
    uint8_t *at = p + pages - 4096 - bytes;
    memcpy(at, image, bytes);
    hr_image_each(at, bytes, ignore, NULL);
    munmap(p, pages);
}

Test(image, files_that_are_cut_off_are_read_within_their_bounds)
{
    static struct container c;
    struct file f = elf_with("k", elf_params, 3);
    struct {
        uint32_t magic, version;
        const void *data, *more;
    } wrapper = {0x466243b1, 1, (const void *)(uintptr_t)0x1234, NULL}; /* addresses mean nothing in a file */
    c = (struct container){.magic = 0xba55ed50, .version = 1, .header_bytes = 16};
    add_entry(&c, 2, &f, sizeof f, 0, 0);
    add_entry(&c, 1, text, sizeof text, 0, 0);
    for (size_t bytes = 0; bytes <= sizeof f; bytes++)
        read_at_the_end(&f, bytes);
    for (size_t bytes = 0; bytes <= 16 + c.bytes; bytes++)
        read_at_the_end(&c, bytes);
    for (size_t bytes = 0; bytes <= sizeof wrapper; bytes++)
        read_at_the_end(&wrapper, bytes);
    for (size_t bytes = 0; bytes < sizeof text; bytes++)
        read_at_the_end(text, bytes);
    CHECK(hr_image_each(&c, 16 + c.bytes, ignore, NULL) && hr_image_each(&f, sizeof f, ignore, NULL));
    CHECK(!hr_image_each(&c, 16 + c.bytes - 1, ignore, NULL));
}
