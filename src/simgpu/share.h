/*
 * Memory between processes: handles of the legacy kind, pools and their pointers, external memory.
 *
 * All of it rests on memory files. Where a file descriptor is handed over (pools, external memory), that is all. A legacy handle
 * is only bytes: it holds the owner's process id and descriptor of a small file that tells where the memory lies; the importer
 * opens that, and the device's memory file, through /proc/PID/fd. A file's inode tells whether it is still the same one.
 *
 * All of this needs sg.lock.
 */
#ifndef SG_SHARE_H
#define SG_SHARE_H

#include "simgpu/sim.h"

enum sg_foreign_kind { SG_FOREIGN_POOL, SG_FOREIGN_IPC, SG_FOREIGN_EXTERNAL };

struct sg_foreign {
    enum sg_foreign_kind kind;
    struct sg_chunk *chunk;       /* a view */
    uint64_t page;                /* the address at which it is mapped */
    unsigned opens;               /* of a legacy handle */
    struct sg_ipc_record *record; /* likewise, mapped */
    uint64_t inode;
};

struct sg_foreign_place { /* where the bytes are */
    enum sg_foreign_kind kind;
    int device, fd;
    const uint32_t *page; /* of the file, each; NULL: from `first` on */
    uint64_t first;
    uint64_t offset, bytes; /* from the first page's beginning */
};
/* Maps it at new addresses. With a context the allocation is that context's; without one it is a pool's. MAP_FAILED,
 * OUT_OF_MEMORY. */
CUresult sg_foreign_create(const struct sg_foreign_place *place, struct sg_context *context,
                           struct sg_alloc **alloc_out);
void sg_foreign_destroy(struct sg_alloc *alloc);
bool sg_foreign_lives(const struct sg_foreign *foreign); /* as far as its owner goes */
bool sg_may_free(const struct sg_alloc *alloc);          /* by cuMemFree */
bool sg_is_pool_import(const struct sg_alloc *alloc);
/* For a free in stream order: what the free takes over (NULL: out of host memory), and forgetting the allocation. */
struct sg_span *sg_foreign_span(struct sg_alloc *alloc);
void sg_foreign_forget(struct sg_alloc *alloc);

struct sg_mempool;
CUresult sg_mempool_make_shareable(struct sg_mempool *pool);

void sg_ipc_end(struct sg_alloc *alloc);       /* memory that others may have opened goes */
void sg_ipc_close(struct sg_foreign *foreign); /* the importer's side */
/* Opens what a process has as that descriptor, if it is still that file; -1: it is gone. */
int sg_file_of_process(int pid, int fd, uint64_t inode);
/* The device in the name of one of our memory files; false: it is no such file. */
bool sg_file_is_ours(int fd, const char *prefix, int *device_out);

#endif
