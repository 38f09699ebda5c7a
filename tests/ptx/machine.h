/*
 * A little machine to run kernels on: device memory of a few MiB behind a page table, modules, launches.
 * A failure of the machine itself ends the program: tests assert on what kernels do.
 */
#ifndef TEST_PTX_MACHINE_H
#define TEST_PTX_MACHINE_H

#include "simgpu/ptx/ptx.h"

#define MACHINE_BASE UINT64_C(0x100000000)
#define MACHINE_PAGES 16
#define MACHINE_BYTES (MACHINE_PAGES * SG_PAGE_BYTES)

struct machine {
    struct sg_pagetable table;
    uint8_t *host; /* of device address MACHINE_BASE */
    uint64_t used; /* bump allocation */
    struct ptx_module *module;
};

void machine_init(struct machine *m);
void machine_finish(struct machine *m);
uint64_t machine_alloc(struct machine *m, size_t bytes); /* zeroed, 256-byte aligned */
void *machine_at(const struct machine *m, uint64_t address);
/* Unmaps a page, or limits it (SG_PTE_READ / SG_PTE_WRITE flags). */
void machine_protect(struct machine *m, unsigned page, uint64_t flags);

/* Parses, gives every global an address, links, copies the initial images. Replaces the module loaded before. */
void machine_load(struct machine *m, const char *text, size_t bytes);
/* Header (.version, .target, .address_size) is put in front of `body`. */
void machine_load_body(struct machine *m, const char *body);
/* The kernels that were compiled from kernels.cu. */
void machine_load_kernels(struct machine *m);
uint64_t machine_global(const struct machine *m, const char *name);

struct launch {
    const char *name;
    uint32_t grid[3], block[3]; /* zeros mean 1 */
    uint32_t dynamic_shared_bytes;
    const void *params;
    unsigned workers;  /* host threads; 0 = 1, the caller */
    uint32_t resident; /* 0 = 64 */
    uint64_t seed;
    struct ptx_heap *heap;
    struct ptx_fifo *fifo;
    uint64_t slice; /* warp instructions per ptx_grid_run; 0 = 100000 */
};
struct outcome {
    struct ptx_fault fault;
    struct ptx_counters counters;
};
struct outcome machine_run(struct machine *m, const struct launch *launch);

/* Deterministic numbers. */
uint64_t machine_random(uint64_t *state);

#endif
