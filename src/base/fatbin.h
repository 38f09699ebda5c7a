/* How fat binaries are laid out: a container of entries, each code of one kind for one architecture. Compilers put a wrapper around it, which points to it. */
#ifndef HR_BASE_FATBIN_H
#define HR_BASE_FATBIN_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define HR_FATBIN_WRAPPER 0x466243b1u
#define HR_FATBIN_CONTAINER 0xba55ed50u
#define HR_FATBIN_PTX 1
#define HR_FATBIN_ELF 2
#define HR_FATBIN_LZ4 UINT64_C(0x3000) /* two bits that name the same block format */
#define HR_FATBIN_ZSTD UINT64_C(0x8000)
#define HR_FATBIN_MOST_BYTES (UINT64_C(1) << 30) /* that an entry may unpack to here */

struct hr_fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
    const void *more;
};
struct hr_fatbin_container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of all entries */
};
struct hr_fatbin_entry {
    uint16_t kind, unknown;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t packed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture;
    uint32_t name_offset, name_bytes;
    uint64_t flags, zero, plain_bytes;
};
#define HR_FATBIN_SHORT_ENTRY 56 /* an entry's header may end before plain_bytes */

static inline uint32_t hr_fatbin_magic(const void *data)
{
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    return magic;
}

/* Reads the entry at `at`, of which `left` bytes remain; false: it runs past them. plain_bytes is 0 where its header has none. No lock. */
static inline bool hr_fatbin_entry(const uint8_t *at, uint64_t left, struct hr_fatbin_entry *e_out)
{
    *e_out = (struct hr_fatbin_entry){0};
    if (left < HR_FATBIN_SHORT_ENTRY)
        return false;
    memcpy(e_out, at, left < sizeof *e_out ? (size_t)left : sizeof *e_out);
    if (e_out->header_bytes < HR_FATBIN_SHORT_ENTRY || e_out->header_bytes > left ||
        e_out->bytes > left - e_out->header_bytes)
        return false;
    if (e_out->header_bytes < sizeof *e_out)
        e_out->plain_bytes = 0;
    return true;
}

#endif
