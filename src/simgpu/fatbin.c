/*
 * Fat binaries: a container of entries, each device code of one kind for one architecture, plain or compressed. Compilers put
 * a small wrapper around it, which points to the container. Here only PTX is of use: the newest that the device can take.
 */
#include "simgpu/image.h"

#include "base/lz4.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define KIND_PTX 1
#define KIND_ELF 2
#define FLAG_LZ4 UINT64_C(0x3000) /* two bits that name the same block format */
#define FLAG_ZSTD UINT64_C(0x8000)
#define MAX_TEXT_BYTES (UINT64_C(1) << 30)

struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *more;
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
    uint32_t compressed_bytes, options;
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

bool sg_fatbin_is(const void *data)
{
    return magic_of(data) == WRAPPER_MAGIC || magic_of(data) == CONTAINER_MAGIC;
}

static CUresult bad(struct ptx_error *error, CUresult r, const char *what)
{
    snprintf(error->text, sizeof error->text, "fat binary: %s", what);
    return r;
}

/* The entry's text, terminated, to be freed. */
static CUresult extract(const struct entry *e, const uint8_t *payload, char **text_out, struct ptx_error *error)
{
    bool lz4 = (e->flags & FLAG_LZ4) != 0;
    uint64_t bytes = lz4 ? e->plain_bytes : e->bytes;
    if (e->flags & FLAG_ZSTD)
        return bad(error, CUDA_ERROR_NO_BINARY_FOR_GPU, "its PTX is compressed with zstd, which cannot be read here");
    if (!bytes || bytes > MAX_TEXT_BYTES || (lz4 && e->compressed_bytes > e->bytes))
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "an entry's sizes do not fit");
    char *text = malloc(bytes + 1);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    text[bytes] = 0;
    if (!lz4) {
        memcpy(text, payload, bytes);
    } else if (!hr_lz4_unpack(payload, e->compressed_bytes, (uint8_t *)text, bytes)) {
        free(text);
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "an entry cannot be unpacked");
    }
    *text_out = text;
    return CUDA_SUCCESS;
}

/* Reads the entry at `at`, of which `left` bytes remain. */
static bool read_entry(const uint8_t *at, uint64_t left, struct entry *e)
{
    *e = (struct entry){0};
    if (left < SHORT_ENTRY_BYTES)
        return false;
    memcpy(e, at, left < sizeof *e ? (size_t)left : sizeof *e);
    if (e->header_bytes < SHORT_ENTRY_BYTES || e->header_bytes > left || e->bytes > left - e->header_bytes)
        return false;
    if (e->header_bytes < sizeof *e)
        e->plain_bytes = 0;
    return true;
}

CUresult sg_fatbin_ptx(const void *data, size_t bytes, unsigned architecture, char **text_out, struct ptx_error *error)
{
    if (magic_of(data) == WRAPPER_MAGIC) {
        struct wrapper w;
        if (bytes != SG_BYTES_UNKNOWN)
            return bad(error, CUDA_ERROR_INVALID_IMAGE, "a wrapper only points to the container, which is wanted here");
        memcpy(&w, data, sizeof w);
        if (!w.data || magic_of(w.data) != CONTAINER_MAGIC)
            return bad(error, CUDA_ERROR_INVALID_IMAGE, "the wrapper points to no container");
        data = w.data;
    }
    struct container c;
    if (bytes < sizeof c)
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "it ends in its header");
    memcpy(&c, data, sizeof c);
    if (c.version != 1 || c.header_bytes < sizeof c)
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "an unknown version");
    if (bytes != SG_BYTES_UNKNOWN && (c.header_bytes > bytes || c.bytes > bytes - c.header_bytes))
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "it is shorter than its header says");
    const uint8_t *at = (const uint8_t *)data + c.header_bytes, *best_payload = NULL;
    struct entry best = {0}, e;
    char held[200] = ""; /* what there is, for the message */
    for (uint64_t left = c.bytes; left;) {
        if (!read_entry(at, left, &e))
            return bad(error, CUDA_ERROR_INVALID_IMAGE, "an entry runs past the end");
        size_t used = strlen(held);
        snprintf(held + used, sizeof held - used, "%s%s sm_%u", used ? ", " : "",
                 e.kind == KIND_PTX   ? "PTX"
                 : e.kind == KIND_ELF ? "binary"
                                      : "other",
                 e.architecture);
        if (e.kind == KIND_PTX && e.architecture <= architecture &&
            (!best_payload || e.architecture > best.architecture)) {
            best = e;
            best_payload = at + e.header_bytes;
        }
        at += e.header_bytes + e.bytes;
        left -= e.header_bytes + e.bytes;
    }
    if (best_payload)
        return extract(&best, best_payload, text_out, error);
    snprintf(error->text, sizeof error->text, "fat binary: no PTX that sm_%u can take; it holds %s", architecture,
             *held ? held : "nothing");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
