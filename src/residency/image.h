/*
 * The kernels in an image of device code, for drivers that do not tell the parameters of kernels (before 12.4). Read are PTX text, ELF files and the fat
 * binaries that hold these, plain or in LZ4 blocks.
 */
#ifndef HR_RESIDENCY_IMAGE_H
#define HR_RESIDENCY_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HR_IMAGE_PARAMS_MOST 1024

struct hr_image_kernel {
    const char *name;
    size_t name_bytes; /* without an end */
    uint32_t count;
    struct {
        uint32_t offset_bytes, size_bytes;
    } param[HR_IMAGE_PARAMS_MOST];
};
typedef void (*hr_image_visit)(const struct hr_image_kernel *kernel, void *arg);

/*
 * Visits each kernel of an image that a driver has accepted; a kernel may be visited again, as it is compiled for several architectures. false: the
 * image is of a kind that cannot be read, or memory is out; kernels may be missing then. Nothing beyond `bytes` is read (SIZE_MAX: as far as
 * the image itself says, in memory of the job's). No lock.
 */
bool hr_image_each(const void *image, size_t bytes, hr_image_visit visit, void *arg);
/* Its parts: a text of that length, and a file in memory. */
bool hr_image_ptx(const char *text, size_t bytes, hr_image_visit visit, void *arg);
bool hr_image_elf(const void *file, size_t bytes, hr_image_visit visit, void *arg);

#endif
