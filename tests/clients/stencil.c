/* Cells that become the mean of their neighbours, in pitched memory that is filled and read by two-dimensional copies. */
#include "client.h"

enum { WIDTH = 1000, ROUNDS = 2 };

static void step_on_host(float *out, const float *in, uint32_t height)
{
    memcpy(out, in, (size_t)WIDTH * height * sizeof *out);
    for (uint32_t y = 1; y + 1 < height; y++) {
        for (uint32_t x = 1; x + 1 < WIDTH; x++) {
            const float *c = in + (size_t)y * WIDTH + x;
            out[(size_t)y * WIDTH + x] = 0.25f * ((c[-1] + c[1]) + (c[-WIDTH] + c[WIDTH]));
        }
    }
}

/* One sheet between the host's close rows and the device's pitched ones. */
static void copy_sheet(CUdeviceptr sheet, size_t pitch, float *host, uint32_t height, bool to_device)
{
    CUDA_MEMCPY2D copy = {.WidthInBytes = WIDTH * sizeof *host, .Height = height};
    copy.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcHost = copy.dstHost = host;
    copy.srcDevice = copy.dstDevice = sheet;
    copy.srcPitch = to_device ? WIDTH * sizeof *host : pitch;
    copy.dstPitch = to_device ? pitch : WIDTH * sizeof *host;
    OK(cuMemcpy2D_v2(&copy));
}

int main(int argc, char **argv)
{
    client_start("stencil", argc, argv, 1);
    uint32_t width = WIDTH, height = (uint32_t)(client_bytes() / 2 / 4096);
    size_t cells = (size_t)WIDTH * height, pitch, same_pitch;
    float *start = client_host(cells * sizeof *start), *found = client_host(cells * sizeof *found);
    CUdeviceptr in, out;
    OK(cuMemAllocPitch_v2(&in, &pitch, WIDTH * sizeof *start, height, 4));
    OK(cuMemAllocPitch_v2(&out, &same_pitch, WIDTH * sizeof *start, height, 4));
    if (pitch != same_pitch || pitch < WIDTH * sizeof *start || pitch % sizeof *start)
        WRONG("pitches %zu and %zu", pitch, same_pitch);
    uint32_t row_cells = (uint32_t)(pitch / sizeof *start);
    for (size_t i = 0; i < cells; i++)
        start[i] = (float)(client_hash((uint32_t)i) % 4096);
    copy_sheet(in, pitch, start, height, true);
    for (int round = 0; round < ROUNDS; round++) {
        LAUNCH(client_kernel(0, "mean_of_four"), 64, 128, NULL, &out, &in, &width, &height, &row_cells);
        CUdeviceptr swap = in;
        in = out;
        out = swap;
    }
    copy_sheet(in, pitch, found, height, false);
    client_sum(found, cells * sizeof *found);
    float *next = client_host(cells * sizeof *next);
    for (int round = 0; round < ROUNDS; round++) {
        step_on_host(next, start, height);
        float *swap = start;
        start = next;
        next = swap;
    }
    for (size_t i = 0; i < cells; i++)
        if (found[i] != start[i])
            WRONG("cell %zu is %g, not %g", i, (double)found[i], (double)start[i]);
    OK(cuMemFree_v2(in));
    OK(cuMemFree_v2(out));
    free(next);
    free(start);
    free(found);
    return client_end();
}
