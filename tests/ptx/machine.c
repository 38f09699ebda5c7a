#include "ptx/machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern const unsigned char kernels_ptx[];
extern const unsigned long kernels_ptx_bytes;

static void need(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "test machine: %s\n", what);
    abort();
}

void machine_init(struct machine *m)
{
    memset(m, 0, sizeof(*m));
    size_t table_bytes = sizeof(uint64_t) << (SG_VA_BITS - SG_PAGE_SHIFT);
    m->table.pte = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(m->table.pte != MAP_FAILED, "no page table");
    m->host = mmap(NULL, MACHINE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(m->host != MAP_FAILED, "no memory");
    for (unsigned page = 0; page < MACHINE_PAGES; page++)
        machine_protect(m, page, SG_PTE_READ | SG_PTE_WRITE);
}

void machine_finish(struct machine *m)
{
    ptx_module_destroy(m->module);
    munmap(m->host, MACHINE_BYTES);
    munmap((void *)m->table.pte, sizeof(uint64_t) << (SG_VA_BITS - SG_PAGE_SHIFT));
}

void machine_protect(struct machine *m, unsigned page, uint64_t flags)
{
    uint64_t entry = flags ? (uint64_t)(uintptr_t)(m->host + page * SG_PAGE_BYTES) | flags : 0;
    atomic_store(&m->table.pte[(MACHINE_BASE >> SG_PAGE_SHIFT) + page], entry);
}

uint64_t machine_alloc(struct machine *m, size_t bytes)
{
    uint64_t at = (m->used + 255) & ~UINT64_C(255);
    need(at + bytes <= MACHINE_BYTES, "device memory is used up");
    m->used = at + bytes;
    memset(m->host + at, 0, bytes);
    return MACHINE_BASE + at;
}

void *machine_at(const struct machine *m, uint64_t address)
{
    return m->host + (address - MACHINE_BASE);
}

void machine_load(struct machine *m, const char *text, size_t bytes)
{
    struct ptx_error error;
    ptx_module_destroy(m->module);
    m->module = NULL;
    if (ptx_module_parse(text, bytes, &m->module, &error)) {
        fprintf(stderr, "%s\n", error.text);
        need(false, "the module does not parse");
    }
    for (size_t i = 0; i < ptx_module_global_count(m->module); i++) {
        struct ptx_global *g = ptx_module_global_at(m->module, i);
        g->address = machine_alloc(m, g->size_bytes);
    }
    need(!ptx_module_link(m->module, &error), error.text);
    for (size_t i = 0; i < ptx_module_global_count(m->module); i++) {
        struct ptx_global *g = ptx_module_global_at(m->module, i);
        if (g->init)
            memcpy(machine_at(m, g->address), g->init, g->size_bytes);
    }
}

void machine_load_body(struct machine *m, const char *body)
{
    static const char header[] = ".version 7.0\n.target sm_70\n.address_size 64\n";
    size_t bytes = sizeof(header) - 1 + strlen(body);
    char *text = malloc(bytes + 1);
    need(text, "no memory");
    snprintf(text, bytes + 1, "%s%s", header, body);
    machine_load(m, text, bytes);
    free(text);
}

void machine_load_kernels(struct machine *m)
{
    machine_load(m, (const char *)kernels_ptx, kernels_ptx_bytes);
}

uint64_t machine_global(const struct machine *m, const char *name)
{
    for (size_t i = 0; i < ptx_module_global_count(m->module); i++) {
        struct ptx_global *g = ptx_module_global_at(m->module, i);
        if (!strcmp(g->name, name))
            return g->address;
    }
    need(false, "no such variable");
    return 0;
}

struct worker {
    struct ptx_grid *grid;
    uint64_t slice;
};

static void *work(void *data)
{
    struct worker *w = data;
    enum ptx_progress progress;
    while ((progress = ptx_grid_run(w->grid, w->slice)) != PTX_DONE)
        if (progress == PTX_IDLE)
            sched_yield();
    return NULL;
}

struct outcome machine_run(struct machine *m, const struct launch *launch)
{
    struct ptx_grid_args args = {
        .function = ptx_module_function(m->module, launch->name),
        .dynamic_shared_bytes = launch->dynamic_shared_bytes,
        .params = launch->params,
        .pagetable = &m->table,
        .max_resident_blocks = launch->resident ? launch->resident : 64,
        .sm_count = 4,
        .seed = launch->seed,
        .heap = launch->heap,
        .fifo = launch->fifo,
    };
    need(args.function, "no such kernel");
    for (unsigned i = 0; i < 3; i++) {
        args.grid[i] = launch->grid[i] ? launch->grid[i] : 1;
        args.block[i] = launch->block[i] ? launch->block[i] : 1;
    }
    struct ptx_grid *grid = ptx_grid_create(&args);
    need(grid, "no grid");
    struct worker worker = {grid, launch->slice ? launch->slice : 100000};
    pthread_t threads[16];
    unsigned extra = launch->workers ? launch->workers - 1 : 0;
    for (unsigned i = 0; i < extra; i++)
        need(!pthread_create(&threads[i], NULL, work, &worker), "no thread");
    work(&worker);
    for (unsigned i = 0; i < extra; i++)
        pthread_join(threads[i], NULL);
    struct outcome outcome = {*ptx_grid_fault(grid), *ptx_grid_counters(grid)};
    ptx_grid_destroy(grid);
    return outcome;
}

uint64_t machine_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
