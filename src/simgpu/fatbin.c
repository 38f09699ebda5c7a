/*
 * Fat binaries: a container of entries, each device code of one kind for one architecture, plain or compressed. Compilers put
 * a small wrapper around it, which points to the container. Here only PTX is of use: the newest that the device can take.
 */
#include "simgpu/image.h"

#include "base/fatbin.h"
#include "base/lz4.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sg_fatbin_is(const void *data)
{
    return hr_fatbin_magic(data) == HR_FATBIN_WRAPPER || hr_fatbin_magic(data) == HR_FATBIN_CONTAINER;
}

static CUresult bad(struct ptx_error *error, CUresult r, const char *what)
{
    snprintf(error->text, sizeof error->text, "fat binary: %s", what);
    return r;
}

/* The entry's text, terminated, to be freed. */
static CUresult extract(const struct hr_fatbin_entry *e, const uint8_t *payload, char **text_out,
                        struct ptx_error *error)
{
    bool lz4 = (e->flags & HR_FATBIN_LZ4) != 0;
    uint64_t bytes = lz4 ? e->plain_bytes : e->bytes;
    if (e->flags & HR_FATBIN_ZSTD)
        return bad(error, CUDA_ERROR_NO_BINARY_FOR_GPU, "its PTX is compressed with zstd, which cannot be read here");
    if (!bytes || bytes > HR_FATBIN_MOST_BYTES || (lz4 && e->packed_bytes > e->bytes))
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "an entry's sizes do not fit");
    char *text = malloc(bytes + 1);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    text[bytes] = 0;
    if (!lz4) {
        memcpy(text, payload, bytes);
    } else if (!hr_lz4_unpack(payload, e->packed_bytes, (uint8_t *)text, bytes)) {
        free(text);
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "an entry cannot be unpacked");
    }
    *text_out = text;
    return CUDA_SUCCESS;
}

CUresult sg_fatbin_ptx(const void *data, size_t bytes, unsigned architecture, char **text_out, struct ptx_error *error)
{
    if (hr_fatbin_magic(data) == HR_FATBIN_WRAPPER) {
        struct hr_fatbin_wrapper w;
        if (bytes != SG_BYTES_UNKNOWN)
            return bad(error, CUDA_ERROR_INVALID_IMAGE, "a wrapper only points to the container, which is wanted here");
        memcpy(&w, data, sizeof w);
        if (!w.data || hr_fatbin_magic(w.data) != HR_FATBIN_CONTAINER)
            return bad(error, CUDA_ERROR_INVALID_IMAGE, "the wrapper points to no container");
        data = w.data;
    }
    struct hr_fatbin_container c;
    if (bytes < sizeof c)
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "it ends in its header");
    memcpy(&c, data, sizeof c);
    if (c.version != 1 || c.header_bytes < sizeof c)
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "an unknown version");
    if (bytes != SG_BYTES_UNKNOWN && (c.header_bytes > bytes || c.bytes > bytes - c.header_bytes))
        return bad(error, CUDA_ERROR_INVALID_IMAGE, "it is shorter than its header says");
    const uint8_t *at = (const uint8_t *)data + c.header_bytes, *best_payload = NULL;
    struct hr_fatbin_entry best = {0}, e;
    char held[200] = ""; /* what there is, for the message */
    for (uint64_t left = c.bytes; left;) {
        if (!hr_fatbin_entry(at, left, &e))
            return bad(error, CUDA_ERROR_INVALID_IMAGE, "an entry runs past the end");
        size_t used = strlen(held);
        snprintf(held + used, sizeof held - used, "%s%s sm_%u", used ? ", " : "",
                 e.kind == HR_FATBIN_PTX   ? "PTX"
                 : e.kind == HR_FATBIN_ELF ? "binary"
                                           : "other",
                 e.architecture);
        if (e.kind == HR_FATBIN_PTX && e.architecture <= architecture &&
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
