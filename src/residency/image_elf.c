#include "residency/image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

/*
 * Every kernel has a section .nv.info.NAME of attributes. One of them stands for each parameter: its number, and where it lies and how large it is in the
 * buffer of parameters.
 */
#define MACHINE 190
#define INFO ".nv.info."
#define FORM_BYTES 4
#define ATTRIBUTE_PARAM 0x17

struct attribute {
    uint8_t form, id;
    uint16_t value; /* with FORM_BYTES: how many follow */
};
struct param {
    uint32_t index;
    uint16_t ordinal, offset;
    uint32_t word; /* the size in its upper bits */
};
#define SIZE_SHIFT 18

static bool is_within(uint64_t offset, uint64_t length, size_t bytes)
{
    return offset <= bytes && length <= bytes - offset;
}

static bool read_params(const uint8_t *at, uint64_t left, struct hr_image_kernel *kernel)
{
    kernel->count = 0;
    while (left >= sizeof(struct attribute)) {
        struct attribute a;
        memcpy(&a, at, sizeof a);
        at += sizeof a;
        left -= sizeof a;
        if (a.form != FORM_BYTES)
            continue;
        if (a.value > left)
            return false;
        if (a.id == ATTRIBUTE_PARAM && a.value >= sizeof(struct param)) {
            struct param p;
            memcpy(&p, at, sizeof p);
            if (p.ordinal >= HR_IMAGE_PARAMS_MOST)
                return false;
            for (; kernel->count <= p.ordinal; kernel->count++) /* they may come in any order */
                kernel->param[kernel->count].offset_bytes = kernel->param[kernel->count].size_bytes = 0;
            kernel->param[p.ordinal].offset_bytes = p.offset;
            kernel->param[p.ordinal].size_bytes = p.word >> SIZE_SHIFT;
        }
        at += a.value;
        left -= a.value;
    }
    return true;
}

bool hr_image_elf(const void *file, size_t bytes, hr_image_visit visit, void *arg)
{
    const uint8_t *base = file;
    Elf64_Ehdr h;
    if (bytes < sizeof h)
        return false;
    memcpy(&h, file, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != MACHINE ||
        h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shstrndx >= h.e_shnum ||
        !is_within(h.e_shoff, (uint64_t)h.e_shnum * sizeof(Elf64_Shdr), bytes))
        return false;
    Elf64_Shdr strings;
    memcpy(&strings, base + h.e_shoff + (uint64_t)h.e_shstrndx * sizeof strings, sizeof strings);
    struct hr_image_kernel *kernel = malloc(sizeof *kernel);
    bool sound = kernel && is_within(strings.sh_offset, strings.sh_size, bytes);
    for (unsigned i = 0; i < h.e_shnum && sound; i++) {
        Elf64_Shdr s;
        memcpy(&s, base + h.e_shoff + (uint64_t)i * sizeof s, sizeof s);
        if (s.sh_name >= strings.sh_size)
            continue;
        const char *name = (const char *)base + strings.sh_offset + s.sh_name;
        size_t length = strnlen(name, strings.sh_size - s.sh_name);
        if (length <= strlen(INFO) || memcmp(name, INFO, strlen(INFO)) != 0 || s.sh_type == SHT_NOBITS)
            continue;
        kernel->name = name + strlen(INFO);
        kernel->name_bytes = length - strlen(INFO);
        sound = is_within(s.sh_offset, s.sh_size, bytes) && read_params(base + s.sh_offset, s.sh_size, kernel);
        if (sound)
            visit(kernel, arg);
    }
    free(kernel);
    return sound;
}
