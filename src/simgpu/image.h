/*
 * Images: what the loading functions are given. PTX text, a fat binary (or the wrapper that compilers put around one) that
 * holds PTX, or what cuLinkComplete made. All of it ends as one or more PTX texts that make one module.
 *
 * Locks: none is needed for anything here.
 */
#ifndef SG_IMAGE_H
#define SG_IMAGE_H

#include "simgpu/sim.h"

struct sg_image {
    struct ptx_source *texts; /* owned, as are their strings */
    size_t count;
    unsigned target; /* of a linked image: the architecture it was linked for; 0 = plain text */
};

#define SG_BYTES_UNKNOWN SIZE_MAX

/*
 * Reads an image of unknown kind; copies all that is needed. Its size is unknown where cuModuleLoadData gets it; else nothing
 * beyond it is read, and no pointer in it followed. On an error the reason is in
 * *error. NO_BINARY_FOR_GPU: nothing in it is PTX that this device can take; INVALID_IMAGE; OUT_OF_MEMORY.
 */
CUresult sg_image_read(const void *data, size_t bytes, struct sg_image **image_out, struct ptx_error *error);
/* One PTX text of `bytes`, which need not be terminated. */
CUresult sg_image_from_text(const char *text, size_t bytes, const char *name, struct sg_image **image_out);
/* Adds copies of the texts of `from`; `name` replaces theirs unless it is NULL. */
CUresult sg_image_append(struct sg_image *to, const struct sg_image *from, const char *name);
void sg_image_destroy(struct sg_image *image); /* NULL is fine */
/* Parses all texts into one module for this machine: INVALID_PTX, UNSUPPORTED_PTX_VERSION, NO_BINARY_FOR_GPU, INVALID_IMAGE. */
CUresult sg_image_parse(const struct sg_image *image, struct ptx_module **module_out, struct ptx_error *error);
/* Is this text PTX of a version that can be read here? As far as its first directive tells. */
CUresult sg_image_check_version(const char *text, struct ptx_error *error);

/* Compiled code runs on its own generation, from its own revision on: NO_BINARY_FOR_GPU for others. 0 = not compiled. */
CUresult sg_image_check_target(unsigned target, struct ptx_error *error);

/* The PTX of a fat binary that suits an architecture best, unpacked and terminated, to be freed. NO_BINARY_FOR_GPU,
 * INVALID_IMAGE, OUT_OF_MEMORY. `data` is the container or its wrapper. */
bool sg_fatbin_is(const void *data);
CUresult sg_fatbin_ptx(const void *data, size_t bytes, unsigned architecture, char **text_out, struct ptx_error *error);

/* A file with 8 zero bytes behind its end, to be freed; NULL and errno. */
char *sg_file_read(const char *path, size_t *bytes_out);

/* The linked image as bytes: one block with a header, which sg_image_read knows again. To be freed; NULL: no memory. */
void *sg_image_pack(const struct sg_image *image, size_t *bytes_out);

/* ---- options of the loading and linking functions ---- */

struct sg_jit {
    void **values;
    char *error, *info;
    size_t error_bytes, info_bytes;
    size_t error_index, info_index, time_index; /* of the option whose value is written; SIZE_MAX = none */
    size_t error_used, info_used;
    float wall_ms;
    unsigned target;  /* CU_JIT_TARGET; 0 = the context's */
    unsigned seen[2]; /* bit per option */
};
/* INVALID_VALUE for unknown options and for values and combinations that the options exclude; NOT_SUPPORTED for options
 * that would change what the code does and cannot be honoured. */
CUresult sg_jit_read(struct sg_jit *jit, unsigned count, const CUjit_option *options, void **values);
bool sg_jit_has(const struct sg_jit *jit, CUjit_option option);
/* Adds a line to the error log, and writes out sizes and time as far as they were asked for. */
void sg_jit_log(struct sg_jit *jit, const char *text);
void sg_jit_time(struct sg_jit *jit, uint64_t start_ns);

#endif
