#include "residency/image.h"

#include "base/fatbin.h"
#include "base/lz4.h"

#include <stdlib.h>
#include <string.h>

#define ELF_MAGIC 0x464c457fu

static bool each_of(unsigned kind, const void *code, size_t bytes, hr_image_visit visit, void *arg)
{
    return kind == HR_FATBIN_PTX ? hr_image_ptx(code, strnlen(code, bytes), visit, arg)
                                 : hr_image_elf(code, bytes, visit, arg);
}

static bool each_of_entry(const struct hr_fatbin_entry *e, const uint8_t *code, hr_image_visit visit, void *arg)
{
    if ((e->kind != HR_FATBIN_PTX && e->kind != HR_FATBIN_ELF) || (e->flags & HR_FATBIN_ZSTD))
        return false;
    if (!(e->flags & HR_FATBIN_LZ4))
        return each_of(e->kind, code, e->bytes, visit, arg);
    if (e->plain_bytes == 0 || e->plain_bytes > HR_FATBIN_MOST_BYTES || e->packed_bytes > e->bytes)
        return false;
    uint8_t *plain = malloc(e->plain_bytes);
    bool done = plain && hr_lz4_unpack(code, e->packed_bytes, plain, e->plain_bytes) &&
                each_of(e->kind, plain, e->plain_bytes, visit, arg);
    free(plain);
    return done;
}

/* One entry that can be read will do: the others are the same kernels for other architectures. */
static bool each_of_container(const void *data, size_t bytes, hr_image_visit visit, void *arg)
{
    struct hr_fatbin_container c;
    if (bytes < sizeof c)
        return false;
    memcpy(&c, data, sizeof c);
    if (c.magic != HR_FATBIN_CONTAINER || c.header_bytes < sizeof c || c.header_bytes > bytes ||
        c.bytes > bytes - c.header_bytes)
        return false;
    const uint8_t *at = (const uint8_t *)data + c.header_bytes;
    for (uint64_t left = c.bytes; left >= HR_FATBIN_SHORT_ENTRY;) {
        struct hr_fatbin_entry e;
        if (!hr_fatbin_entry(at, left, &e))
            return false;
        if (each_of_entry(&e, at + e.header_bytes, visit, arg))
            return true;
        at += e.header_bytes + e.bytes;
        left -= e.header_bytes + e.bytes;
    }
    return false;
}

bool hr_image_each(const void *image, size_t bytes, hr_image_visit visit, void *arg)
{
    const unsigned char *first = image;
    struct hr_fatbin_wrapper w;
    if (!image || bytes == 0)
        return false;
    bool is_text = first[0] != 0xb1 && first[0] != 0x50 && first[0] != 0x7f; /* which may be shorter than a number */
    switch (is_text || bytes < sizeof(uint32_t) ? 0 : hr_fatbin_magic(image)) {
    case HR_FATBIN_WRAPPER:
        if (bytes != SIZE_MAX) /* of a file: what it points to is not there */
            return false;
        memcpy(&w, image, sizeof w);
        return w.data && each_of_container(w.data, SIZE_MAX, visit, arg);
    case HR_FATBIN_CONTAINER: return each_of_container(image, bytes, visit, arg);
    case ELF_MAGIC: return hr_image_elf(image, bytes, visit, arg);
    default: return hr_image_ptx(image, bytes == SIZE_MAX ? strlen(image) : strnlen(image, bytes), visit, arg);
    }
}
