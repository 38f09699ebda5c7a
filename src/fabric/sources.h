/* What the files of discovery share. Errors are negative errno values; locks: none. */
#ifndef HR_FABRIC_SOURCES_H
#define HR_FABRIC_SOURCES_H

#include "fabric/discover.h"
#include "fabric/nvml.h"

/* A regular file whole, ended by 0, the caller's to free; NULL with errno, EINVAL if it is larger or no regular file. */
char *hr_source_read(const char *path, size_t most_bytes, size_t *bytes_out);

/* Applies the lines of PATH.extras that name elements of the topology. */
void hr_source_apply_extras(const char *path, struct hr_topology *topology);

/* What was asked before it is merged. */
struct hr_sources {
    struct hr_discovery *found; /* GPUs and pairs are filled in, the topology is what is to be made */
    struct hr_nvml_gpu *nvml;   /* by GPU; NULL = no NVML */
    uint8_t *meeting;           /* enum hr_meeting by [a * gpus + b] */
    struct hr_topology *file;   /* NULL = none */
    uint32_t *in_file;          /* GPU -> its element there */
    const char *file_path;
};

/* Makes found->topology. -ENOMEM or -E2BIG. */
int hr_sources_merge(struct hr_sources *sources);

#endif
