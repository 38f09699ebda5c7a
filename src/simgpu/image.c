#include "simgpu/image.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What cuLinkComplete hands out: this header, then for each text its sizes, its name and itself, both terminated. */
struct packed {
    char magic[8];
    uint64_t bytes; /* of all */
    uint32_t count, target;
};
struct packed_text {
    uint64_t name_bytes, text_bytes; /* with their ends */
};
static const char packed_magic[8] = "simgpu\1L";

static CUresult add(struct sg_image *image, const char *text, size_t bytes, const char *name)
{
    struct ptx_source *more = realloc(image->texts, (image->count + 1) * sizeof *more);
    if (!more)
        return CUDA_ERROR_OUT_OF_MEMORY;
    image->texts = more;
    char *copy = malloc(bytes + 1), *label = strdup(name ? name : "");
    if (!copy || !label) {
        free(copy);
        free(label);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    more[image->count++] = (struct ptx_source){copy, strlen(copy), label};
    return CUDA_SUCCESS;
}

CUresult sg_image_from_text(const char *text, size_t bytes, const char *name, struct sg_image **image_out)
{
    struct sg_image *image = calloc(1, sizeof *image);
    CUresult r = image ? add(image, text, bytes, name) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r)
        sg_image_destroy(image);
    else
        *image_out = image;
    return r;
}

CUresult sg_image_append(struct sg_image *to, const struct sg_image *from, const char *name)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < from->count && !r; i++)
        r = add(to, from->texts[i].text, from->texts[i].bytes, name ? name : from->texts[i].name);
    return r;
}

void sg_image_destroy(struct sg_image *image)
{
    if (!image)
        return;
    for (size_t i = 0; i < image->count; i++) {
        free((char *)(uintptr_t)image->texts[i].text);
        free((char *)(uintptr_t)image->texts[i].name);
    }
    free(image->texts);
    free(image);
}

void *sg_image_pack(const struct sg_image *image, size_t *bytes_out)
{
    uint64_t bytes = sizeof(struct packed);
    for (size_t i = 0; i < image->count; i++)
        bytes += sizeof(struct packed_text) + strlen(image->texts[i].name) + 1 + image->texts[i].bytes + 1;
    uint8_t *block = malloc(bytes), *at = block;
    if (!block)
        return NULL;
    struct packed head = {.bytes = bytes, .count = (uint32_t)image->count, .target = image->target};
    memcpy(head.magic, packed_magic, sizeof head.magic);
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    for (size_t i = 0; i < image->count; i++) {
        const struct ptx_source *s = &image->texts[i];
        struct packed_text sizes = {strlen(s->name) + 1, s->bytes + 1};
        memcpy(at, &sizes, sizeof sizes);
        memcpy(at + sizeof sizes, s->name, sizes.name_bytes);
        memcpy(at + sizeof sizes + sizes.name_bytes, s->text, sizes.text_bytes);
        at += sizeof sizes + sizes.name_bytes + sizes.text_bytes;
    }
    *bytes_out = bytes;
    return block;
}

static CUresult unpack(const uint8_t *data, size_t bytes, struct sg_image *image)
{
    struct packed head;
    if (bytes < sizeof head)
        return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&head, data, sizeof head);
    if (head.bytes < sizeof head || head.bytes > bytes)
        return CUDA_ERROR_INVALID_IMAGE;
    const uint8_t *at = data + sizeof head, *end = data + head.bytes;
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < head.count && !r; i++) {
        struct packed_text sizes;
        if ((size_t)(end - at) < sizeof sizes)
            return CUDA_ERROR_INVALID_IMAGE;
        memcpy(&sizes, at, sizeof sizes);
        at += sizeof sizes;
        uint64_t left = (uint64_t)(end - at);
        if (!sizes.name_bytes || !sizes.text_bytes || sizes.name_bytes > left ||
            sizes.text_bytes > left - sizes.name_bytes || at[sizes.name_bytes - 1] ||
            at[sizes.name_bytes + sizes.text_bytes - 1])
            return CUDA_ERROR_INVALID_IMAGE;
        r = add(image, (const char *)at + sizes.name_bytes, sizes.text_bytes - 1, (const char *)at);
        at += sizes.name_bytes + sizes.text_bytes;
    }
    image->target = head.target;
    return r || head.count ? r : CUDA_ERROR_INVALID_IMAGE;
}

static unsigned device_architecture(void)
{
    return (unsigned)(sg.config.model->major * 10 + sg.config.model->minor);
}

static CUresult read_into(const void *data, size_t bytes, struct sg_image *image, struct ptx_error *error)
{
    bool marked = strnlen(data, bytes < 4 ? bytes : 4) == 4; /* all magic numbers are free of zero bytes */
    if (marked && !memcmp(data,
                          "\x7f"
                          "ELF",
                          4)) {
        snprintf(error->text, sizeof error->text, "this is a compiled binary; only PTX text can be loaded here");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (marked && sg_fatbin_is(data)) {
        char *text;
        CUresult r = sg_fatbin_ptx(data, bytes, device_architecture(), &text, error);
        if (r)
            return r;
        r = add(image, text, strlen(text), NULL);
        free(text);
        return r;
    }
    if (bytes >= sizeof packed_magic && !strncmp(data, packed_magic, sizeof packed_magic)) {
        CUresult r = unpack(data, bytes, image);
        if (r == CUDA_ERROR_INVALID_IMAGE)
            snprintf(error->text, sizeof error->text, "a linked image that is damaged");
        return r;
    }
    CUresult r = add(image, data, bytes == SG_BYTES_UNKNOWN ? strlen(data) : strnlen(data, bytes), NULL);
    return r ? r : sg_image_check_version(image->texts[0].text, error);
}

CUresult sg_image_read(const void *data, size_t bytes, struct sg_image **image_out, struct ptx_error *error)
{
    struct sg_image *image = calloc(1, sizeof *image);
    CUresult r = image ? read_into(data, bytes, image, error) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r)
        sg_image_destroy(image);
    else
        *image_out = image;
    return r;
}

/* The version of PTX that the text asks for, times ten; 0 = it is not PTX. */
static unsigned ptx_version(const char *text)
{
    const char *at = strstr(text, ".version");
    if (!at)
        return 0;
    char *end, *minor;
    unsigned long major = strtoul(at + 8, &end, 10);
    if (*end != '.' || major > 99)
        return 0;
    unsigned long rest = strtoul(end + 1, &minor, 10);
    return minor == end + 1 || rest > 9 ? 0 : (unsigned)(major * 10 + rest);
}

CUresult sg_image_check_version(const char *text, struct ptx_error *error)
{
    unsigned version = ptx_version(text);
    if (!version) {
        snprintf(error->text, sizeof error->text, "not PTX: there is no .version directive");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (version > 90) {
        snprintf(error->text, sizeof error->text, "PTX version %u.%u is newer than 9.0", version / 10, version % 10);
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    return CUDA_SUCCESS;
}

CUresult sg_image_check_target(unsigned target, struct ptx_error *error)
{
    unsigned device = device_architecture();
    if (!target || (target / 10 == device / 10 && target <= device))
        return CUDA_SUCCESS;
    snprintf(error->text, sizeof error->text, "made for sm_%u, which this device's sm_%u does not run", target, device);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult sg_image_parse(const struct sg_image *image, struct ptx_module **module_out, struct ptx_error *error)
{
    unsigned device = device_architecture();
    for (size_t i = 0; i < image->count; i++) {
        CUresult bad = sg_image_check_version(image->texts[i].text, error);
        if (bad)
            return bad;
    }
    CUresult r = sg_image_check_target(image->target, error);
    if (r)
        return r;
    if (image->target ? ptx_module_parse_all(image->texts, image->count, false, module_out, error)
                      : ptx_module_parse(image->texts[0].text, image->texts[0].bytes, module_out, error))
        return CUDA_ERROR_INVALID_PTX;
    unsigned target = ptx_module_target(*module_out);
    if (target > device) {
        ptx_module_destroy(*module_out);
        snprintf(error->text, sizeof error->text, "target sm_%u is newer than this device's sm_%u", target, device);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return CUDA_SUCCESS;
}

char *sg_file_read(const char *path, size_t *bytes_out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return NULL;
    size_t room = 1 << 16, bytes = 0;
    char *text = malloc(room + 8);
    while (text) {
        bytes += fread(text + bytes, 1, room - bytes, f);
        if (bytes < room)
            break;
        char *more = realloc(text, room * 2 + 8);
        if (!more)
            free(text);
        text = more;
        room *= 2;
    }
    bool bad = ferror(f);
    fclose(f);
    if (bad) {
        free(text);
        errno = EIO;
        return NULL;
    }
    if (text)
        memset(text + bytes, 0, 8);
    *bytes_out = bytes;
    return text;
}
