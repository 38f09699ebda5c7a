#include "cli/symbols.h"

/* Symbolising. A recorded offset is a return address: it points behind the call, so every look-up uses offset - 1,
 * which lies inside the calling instruction and names the right line and function even when the call comes last. */
#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 128 }; /* addresses given to one addr2line */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

struct image {
    const unsigned char *bytes;
    size_t size;
};

static bool open_image(const char *path, struct image *image_out)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return false;
    }
    void *bytes = MAP_FAILED;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof(Elf64_Ehdr)) {
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    close(fd);
    if (bytes == MAP_FAILED) {
        return false;
    }
    *image_out = (struct image){bytes, (size_t)st.st_size};
    if (memcmp(bytes, ELFMAG, SELFMAG) == 0 && image_out->bytes[EI_CLASS] == ELFCLASS64) {
        return true;
    }
    munmap(bytes, (size_t)st.st_size);
    return false;
}

/* The part of the file, or NULL where it does not lie within it. */
static const void *part(const struct image *image, uint64_t offset, uint64_t bytes)
{
    return offset <= image->size && bytes <= image->size - offset ? image->bytes + offset : NULL;
}

static const char *symbol_in(const struct image *image, const Elf64_Shdr *table, const Elf64_Shdr *names,
                             uint64_t address)
{
    const char *symbols = part(image, table->sh_offset, table->sh_size);
    const char *text = part(image, names->sh_offset, names->sh_size);

    if (symbols == NULL || text == NULL || names->sh_size == 0 || text[names->sh_size - 1] != '\0') {
        return NULL;
    }
    for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym symbol; /* copied: the table may lie unaligned in the file */
        memcpy(&symbol, symbols + i * sizeof symbol, sizeof symbol);
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_name < names->sh_size &&
            address - symbol.st_value < symbol.st_size) {
            return text + symbol.st_name;
        }
    }
    return NULL;
}

static const char *symbol_at(const struct image *image, uint64_t address)
{
    Elf64_Ehdr header;
    Elf64_Shdr table, names;

    memcpy(&header, image->bytes, sizeof header);
    const char *sections = part(image, header.e_shoff, (uint64_t)header.e_shnum * sizeof table);
    if (sections == NULL || header.e_shentsize != sizeof table) {
        return NULL;
    }
    for (unsigned i = 0; i < header.e_shnum; i++) {
        memcpy(&table, sections + i * sizeof table, sizeof table);
        if ((table.sh_type != SHT_SYMTAB && table.sh_type != SHT_DYNSYM) || table.sh_link >= header.e_shnum) {
            continue;
        }
        memcpy(&names, sections + table.sh_link * sizeof names, sizeof names);
        const char *name = symbol_in(image, &table, &names, address);
        if (name != NULL) {
            return name;
        }
    }
    return NULL;
}

/* For the frames of `object` that have no text yet. */
static void name_from_symbol_table(struct hr_cli_frame *frames, size_t count, const char *object)
{
    struct image image = {NULL, 0};
    bool readable = open_image(object, &image);

    for (size_t i = 0; i < count; i++) {
        struct hr_cli_frame *f = &frames[i];
        if (f->text != NULL || strcmp(f->object, object) != 0) {
            continue;
        }
        const char *name = readable ? symbol_at(&image, f->offset - 1) : NULL;
        int n = name != NULL ? asprintf(&f->text, "%s (%s)", name, base_name(object))
                             : asprintf(&f->text, "%s+0x%" PRIx64, base_name(object), f->offset);
        if (n < 0) {
            f->text = NULL;
        }
    }
    if (readable) {
        munmap((void *)image.bytes, image.size);
    }
}

/* Starts addr2line with its stdout on a pipe; NULL where it cannot be had. */
static FILE *start_addr2line(char **argv, pid_t *pid_out)
{
    posix_spawn_file_actions_t actions;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return NULL;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(pid_out, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    FILE *out = rc == 0 ? fdopen(ends[0], "r") : NULL;
    if (out == NULL) {
        close(ends[0]);
        if (rc == 0) {
            waitpid(*pid_out, NULL, 0);
        }
    }
    return out;
}

static bool read_text(FILE *in, char **line, size_t *line_bytes)
{
    ssize_t n = getline(line, line_bytes, in);
    if (n <= 0) {
        return false;
    }
    (*line)[strcspn(*line, "\n")] = '\0';
    return true;
}

/* addr2line answers two lines an address: the function, then file:line, with ?? where it does not know. */
static void take_answers(FILE *in, struct hr_cli_frame **batch, size_t count)
{
    char *function = NULL, *place = NULL;
    size_t function_bytes = 0, place_bytes = 0;

    for (size_t i = 0; i < count; i++) {
        if (!read_text(in, &function, &function_bytes) || !read_text(in, &place, &place_bytes)) {
            break;
        }
        place[strcspn(place, " ")] = '\0'; /* " (discriminator 2)" */
        if (strcmp(function, "??") == 0 || strncmp(place, "??", 2) == 0) {
            continue;
        }
        if (asprintf(&batch[i]->text, "%s at %s", function, base_name(place)) < 0) {
            batch[i]->text = NULL;
        }
    }
    free(function);
    free(place);
}

static void ask_addr2line(struct hr_cli_frame **batch, size_t count, const char *object)
{
    char addresses[BATCH][24];
    char *argv[BATCH + 6] = {"addr2line", "-f", "-C", "-e", (char *)object};
    pid_t pid;

    for (size_t i = 0; i < count; i++) {
        snprintf(addresses[i], sizeof addresses[i], "0x%" PRIx64, batch[i]->offset - 1);
        argv[5 + i] = addresses[i];
    }
    FILE *out = start_addr2line(argv, &pid);
    if (out == NULL) {
        return;
    }
    take_answers(out, batch, count);
    fclose(out);
    waitpid(pid, NULL, 0);
}

static void name_from_addr2line(struct hr_cli_frame *frames, size_t count, const char *object)
{
    struct hr_cli_frame *batch[BATCH];
    size_t filled = 0;

    if (access(object, R_OK) != 0) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (frames[i].text == NULL && strcmp(frames[i].object, object) == 0) {
            batch[filled++] = &frames[i];
        }
        if (filled == BATCH || (i + 1 == count && filled > 0)) {
            ask_addr2line(batch, filled, object);
            filled = 0;
        }
    }
}

void hr_cli_symbolize(struct hr_cli_frame *frames, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++) {
            seen = strcmp(frames[j].object, frames[i].object) == 0;
        }
        if (!seen) {
            name_from_addr2line(frames, count, frames[i].object);
            name_from_symbol_table(frames, count, frames[i].object);
        }
    }
}
