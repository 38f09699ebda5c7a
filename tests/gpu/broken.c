/* Items that end in every way, for test_items.py: what one does must not matter to the next. */
#include "gpu.h"

#include <signal.h>
#include <unistd.h>

static void good(void)
{
    GPU_OK("\"quoted\" \\ and done");
    gpu_number("number", 1.5, "us");
}

static void dies(void)
{
    raise(SIGKILL);
}

static void leaves(void)
{
    _exit(5);
}

static void hangs(void)
{
    for (;;)
        pause();
}

static void differs(void)
{
    CUstream stream; /* left behind in a capture */
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(stream == NULL, "a capture is open");
}

static void fails(void)
{
    CUdeviceptr p;
    MUST(drv.cuMemAlloc_v2(&p, 0));
}

static void lacks(void)
{
    gpu_row(GPU_LACKS_, NULL, "it is not there");
}

/* A kernel that touches what is not mapped: the context is lost. */
static void faults(void)
{
    struct vm vm;
    MUST(vm_reserve(&vm, 1));
    uint32_t first = 0, n = 4;
    void *params[] = {&vm.base, &first, &n};
    MUST(drv.cuLaunchKernel(gpu_kernel("fill"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    GPU_OK("launched");
}

static void needs_a_fresh_one(void)
{
    CUdeviceptr p;
    MUST(drv.cuMemAlloc_v2(&p, 4096));
    MUST(drv.cuMemFree_v2(p));
    GPU_OK("allocated");
}

static const struct gpu_item items[] = {
    {"good-1", "it works", good, true},
    {"dies", "it ends", dies, true},
    {"good-2", "it works", needs_a_fresh_one, 1},
    {"leaves", "it ends", leaves, true},
    {"hangs", "it ends", hangs, true},
    {"good-3", "it works", needs_a_fresh_one, 1},
    {"differs", "nothing is open", differs, 0},
    {"good-4", "it works", needs_a_fresh_one, 1},
    {"fails", "it works", fails, true},
    {"lacks", "it is there", lacks, true},
    {"faults", "it works", faults, true},
    {"good-5", "it works", needs_a_fresh_one, 1},
};

int main(int argc, char **argv)
{
    return gpu_main(argc, argv, "broken", items, sizeof items / sizeof items[0]);
}
