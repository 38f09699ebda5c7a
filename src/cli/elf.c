#include "cli/doctor.h"

/* Reading ELF files: of which kind they are, and what they export. */
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

static bool is_ours(const Elf64_Ehdr *header)
{
    return header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB &&
           header->e_machine == EM_X86_64;
}

enum hr_elf_kind hr_elf_kind(const char *path)
{
    struct image image;
    enum hr_elf_kind kind = HR_ELF_NONE;
    Elf64_Ehdr header;
    Elf64_Phdr segment;

    if (!open_image(path, &image))
        return kind;
    const void *start = part(&image, 0, sizeof header);
    if (start && memcmp(start, ELFMAG, SELFMAG) == 0) {
        memcpy(&header, start, sizeof header);
        kind = is_ours(&header) ? HR_ELF_STATIC : HR_ELF_FOREIGN;
        for (unsigned i = 0; kind == HR_ELF_STATIC && i < header.e_phnum; i++) {
            const void *at = part(&image, header.e_phoff + (uint64_t)i * header.e_phentsize, sizeof segment);
            if (!at)
                break;
            memcpy(&segment, at, sizeof segment);
            if (segment.p_type == PT_INTERP)
                kind = HR_ELF_DYNAMIC;
        }
    }
    close_image(&image);
    return kind;
}

/* The section of dynamic symbols and the strings that it refers to. */
static bool find_symbols(const struct image *image, Elf64_Shdr *symbols_out, Elf64_Shdr *strings_out)
{
    Elf64_Ehdr header;
    const void *start = part(image, 0, sizeof header);

    if (!start || memcmp(start, ELFMAG, SELFMAG) != 0)
        return false;
    memcpy(&header, start, sizeof header);
    if (!is_ours(&header) || header.e_shentsize != sizeof *symbols_out)
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
        if (symbol.st_shndx == SHN_UNDEF || symbol.st_name >= strings.sh_size)
            continue;
        const char *name = text + symbol.st_name;
        if (memchr(name, '\0', strings.sh_size - symbol.st_name) && strncmp(name, prefix, length) == 0)
            each(name, arg);
    }
    close_image(&image);
    return table != NULL;
}
