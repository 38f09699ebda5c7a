#include "residency/image.h"

#include "base/lz4.h"

#include <stdlib.h>
#include <string.h>

/* A fat binary: a container of entries, each code of one kind for one architecture. Compilers put a wrapper around it, which points to it. */
#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define ELF_MAGIC 0x464c457fu
#define KIND_PTX 1
#define KIND_ELF 2
#define FLAG_LZ4 UINT64_C(0x3000)
#define FLAG_ZSTD UINT64_C(0x8000)
#define MOST_BYTES (UINT64_C(1) << 30)

struct wrapper {
    uint32_t magic, version;
    const void *data;
};
struct container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of all entries */
};
struct entry {
    uint16_t kind, unknown;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t packed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture;
    uint32_t name_offset, name_bytes;
    uint64_t flags, zero, plain_bytes;
};
#define SHORT_ENTRY_BYTES 56 /* an entry's header may end before plain_bytes */

static uint32_t magic_of(const void *data)
{
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    return magic;
}

static bool each_of(unsigned kind, const void *code, size_t bytes, hr_image_visit visit, void *arg)
{
    return kind == KIND_PTX ? hr_image_ptx(code, strnlen(code, bytes), visit, arg)
                            : hr_image_elf(code, bytes, visit, arg);
}

static bool each_of_entry(const struct entry *e, const uint8_t *code, hr_image_visit visit, void *arg)
{
    if ((e->kind != KIND_PTX && e->kind != KIND_ELF) || (e->flags & FLAG_ZSTD))
        return false;
    if (!(e->flags & FLAG_LZ4))
        return each_of(e->kind, code, e->bytes, visit, arg);
    if (e->plain_bytes == 0 || e->plain_bytes > MOST_BYTES || e->packed_bytes > e->bytes)
        return false;
    uint8_t *plain = malloc(e->plain_bytes);
    bool done = plain && hr_lz4_unpack(code, e->packed_bytes, plain, e->plain_bytes) &&
                each_of(e->kind, plain, e->plain_bytes, visit, arg);
    free(plain);
    return done;
}

/* One entry that can be read will do: the others are the same kernels for other architectures. */
static bool each_of_container(const void *data, hr_image_visit visit, void *arg)
{
    struct container c;
    memcpy(&c, data, sizeof c);
    if (c.magic != CONTAINER_MAGIC || c.header_bytes < sizeof c)
        return false;
    const uint8_t *at = (const uint8_t *)data + c.header_bytes;
    for (uint64_t left = c.bytes; left >= SHORT_ENTRY_BYTES;) {
        struct entry e = {0};
        memcpy(&e, at, left < sizeof e ? (size_t)left : sizeof e);
        if (e.header_bytes < SHORT_ENTRY_BYTES || e.header_bytes > left || e.bytes > left - e.header_bytes)
            return false;
        if (e.header_bytes < sizeof e)
            e.plain_bytes = 0;
        if (each_of_entry(&e, at + e.header_bytes, visit, arg))
            return true;
        at += e.header_bytes + e.bytes;
        left -= e.header_bytes + e.bytes;
    }
    return false;
}

bool hr_image_each(const void *image, hr_image_visit visit, void *arg)
{
    if (!image)
        return false;
    const unsigned char *bytes = image;
    if (bytes[0] != 0xb1 && bytes[0] != 0x50 && bytes[0] != 0x7f) /* a text may be shorter than a number */
        return hr_image_ptx(image, strlen(image), visit, arg);
    struct wrapper w;
    switch (magic_of(image)) {
    case WRAPPER_MAGIC: memcpy(&w, image, sizeof w); return w.data && each_of_container(w.data, visit, arg);
    case CONTAINER_MAGIC: return each_of_container(image, visit, arg);
    case ELF_MAGIC: return hr_image_elf(image, SIZE_MAX, visit, arg);
    default: return hr_image_ptx(image, strlen(image), visit, arg);
    }
}
