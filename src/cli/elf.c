#include "cli/doctor.h"

/* Reading ELF files: their kind, what they ask for, what they export. Files may hold anything: every read is checked. */
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#endif

struct image {
    const unsigned char *bytes;
    size_t count;
};

static bool open_image(const char *path, struct image *image_out)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return false;
    void *bytes = MAP_FAILED;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return false;
    *image_out = (struct image){bytes, (size_t)st.st_size};
    return true;
}

static void close_image(const struct image *image)
{
    munmap((void *)image->bytes, image->count);
}

/* Bytes [offset, offset + bytes) of the file, or NULL. */
static const void *part(const struct image *image, uint64_t offset, uint64_t bytes)
{
    return offset <= image->count && bytes <= image->count - offset ? image->bytes + offset : NULL;
}

/* The string at offset, if it ends within the file; else NULL. */
static const char *text_at(const struct image *image, uint64_t offset)
{
    const char *text = part(image, offset, 1);

    return text && memchr(text, '\0', image->count - offset) ? text : NULL;
}

/* The header of an ELF file of this kind of machine. */
static bool read_header(const struct image *image, Elf64_Ehdr *header_out, bool *is_elf_out)
{
    const unsigned char *start = part(image, 0, EI_NIDENT);

    *is_elf_out = start && memcmp(start, ELFMAG, SELFMAG) == 0;
    if (!*is_elf_out || start[EI_CLASS] != ELFCLASS64 || start[EI_DATA] != ELFDATA2LSB ||
        !part(image, 0, sizeof *header_out))
        return false;
    memcpy(header_out, start, sizeof *header_out);
    return header_out->e_machine == OWN_MACHINE;
}

/* The first program header from *at on of that type; *at moves behind it. */
static bool find_segment(const struct image *image, const Elf64_Ehdr *header, uint32_t type, unsigned *at,
                         Elf64_Phdr *segment_out)
{
    while (*at < header->e_phnum) {
        uint64_t offset = header->e_phoff + (uint64_t)(*at)++ * header->e_phentsize;
        const void *bytes = header->e_phoff <= image->count ? part(image, offset, sizeof *segment_out) : NULL;
        if (!bytes)
            return false;
        memcpy(segment_out, bytes, sizeof *segment_out);
        if (segment_out->p_type == type)
            return true;
    }
    return false;
}

/* Where in the file an address of its image lies; UINT64_MAX: in none of its segments. */
static uint64_t offset_of(const struct image *image, const Elf64_Ehdr *header, uint64_t address)
{
    Elf64_Phdr segment;
    unsigned at = 0;

    while (find_segment(image, header, PT_LOAD, &at, &segment))
        if (address - segment.p_vaddr < segment.p_filesz)
            return segment.p_offset + (address - segment.p_vaddr);
    return UINT64_MAX;
}

/* Whether the file asks for a library whose name begins so. */
static bool needs(const struct image *image, const Elf64_Ehdr *header, const char *library)
{
    Elf64_Phdr dynamic;
    Elf64_Dyn entry;
    unsigned at = 0;
    uint64_t strings = UINT64_MAX;

    if (!find_segment(image, header, PT_DYNAMIC, &at, &dynamic) || !part(image, dynamic.p_offset, dynamic.p_filesz))
        return false;
    const unsigned char *table = image->bytes + dynamic.p_offset;
    size_t count = dynamic.p_filesz / sizeof entry;
    for (size_t i = 0; i < count; i++) {
        memcpy(&entry, table + i * sizeof entry, sizeof entry);
        if (entry.d_tag == DT_STRTAB)
            strings = offset_of(image, header, entry.d_un.d_ptr);
    }
    for (size_t i = 0; i < count && strings <= image->count; i++) {
        memcpy(&entry, table + i * sizeof entry, sizeof entry);
        const char *name = entry.d_tag == DT_NEEDED && entry.d_un.d_val <= image->count
                               ? text_at(image, strings + entry.d_un.d_val)
                               : NULL;
        if (name && strncmp(name, library, strlen(library)) == 0)
            return true;
    }
    return false;
}

void hr_elf_program(const char *path, struct hr_elf_program *program_out)
{
    struct image image;
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    unsigned at = 0;
    bool is_elf;

    memset(program_out, 0, sizeof *program_out);
    if (!open_image(path, &image))
        return;
    bool ours = read_header(&image, &header, &is_elf);
    program_out->kind = ours ? HR_ELF_STATIC : is_elf ? HR_ELF_FOREIGN : HR_ELF_NONE;
    if (ours && header.e_type != ET_EXEC && header.e_type != ET_DYN) {
        program_out->kind = HR_ELF_NONE;
    } else if (ours && find_segment(&image, &header, PT_INTERP, &at, &segment)) {
        const char *loader = text_at(&image, segment.p_offset);
        program_out->kind = HR_ELF_DYNAMIC;
        snprintf(program_out->loader, sizeof program_out->loader, "%s", loader ? loader : "");
        program_out->needs_asan = needs(&image, &header, "libasan.so");
    }
    close_image(&image);
}

/* The section of dynamic symbols and the strings that it refers to. */
static bool find_symbols(const struct image *image, Elf64_Shdr *symbols_out, Elf64_Shdr *strings_out)
{
    Elf64_Ehdr header;
    bool is_elf;

    if (!read_header(image, &header, &is_elf) || header.e_shentsize != sizeof *symbols_out ||
        header.e_shoff > image->count)
        return false;
    for (unsigned i = 0; i < header.e_shnum; i++) {
        const void *at = part(image, header.e_shoff + (uint64_t)i * header.e_shentsize, sizeof *symbols_out);
        if (!at)
            return false;
        memcpy(symbols_out, at, sizeof *symbols_out);
        if (symbols_out->sh_type != SHT_DYNSYM || symbols_out->sh_entsize != sizeof(Elf64_Sym))
            continue;
        at = part(image, header.e_shoff + (uint64_t)symbols_out->sh_link * header.e_shentsize, sizeof *strings_out);
        if (!at || symbols_out->sh_link >= header.e_shnum)
            return false;
        memcpy(strings_out, at, sizeof *strings_out);
        return true;
    }
    return false;
}

bool hr_elf_symbols(const char *path, const char *prefix, void (*each)(const char *name, void *arg), void *arg)
{
    struct image image;
    Elf64_Shdr symbols, strings;
    size_t length = strlen(prefix);

    if (!open_image(path, &image))
        return false;
    bool found = find_symbols(&image, &symbols, &strings);
    const char *text = found ? part(&image, strings.sh_offset, strings.sh_size) : NULL;
    const unsigned char *table = text ? part(&image, symbols.sh_offset, symbols.sh_size) : NULL;
    for (uint64_t i = 0; table && i < symbols.sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym symbol;
        memcpy(&symbol, table + i * sizeof symbol, sizeof symbol);
        if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC ||
            symbol.st_name >= strings.sh_size)
            continue;
        const char *name = text + symbol.st_name;
        if (memchr(name, '\0', strings.sh_size - symbol.st_name) && strncmp(name, prefix, length) == 0)
            each(name, arg);
    }
    close_image(&image);
    return table != NULL;
}
