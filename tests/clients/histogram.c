/* How often each value occurs: in 256 bins by atomics in shared memory, and in many bins by atomics in global memory. */
#include "client.h"

enum { BUFFERS = 6, BINS = 256 };

int main(int argc, char **argv)
{
    client_start("histogram", argc, argv, 1);
    uint32_t n = (uint32_t)(client_bytes() / 8 / 4),
             wide = n; /* six buffers of data, one of bins: 7/8 of the footprint */
    CUdeviceptr data[BUFFERS], bins = client_alloc(BINS * 4), wide_bins = client_alloc(wide * sizeof(uint32_t));
    uint32_t *expected = client_host(wide * sizeof *expected), *found = client_host(wide * sizeof *found);
    uint32_t narrow[BINS] = {0}, found_narrow[BINS];
    memset(expected, 0, wide * sizeof *expected);
    OK(cuMemsetD32_v2(bins, 0, BINS));
    OK(cuMemsetD32_v2(wide_bins, 0, wide));
    for (uint32_t b = 0; b < BUFFERS; b++) {
        uint32_t seed = b * n;
        data[b] = client_alloc(n * sizeof(uint32_t));
        LAUNCH(client_kernel(0, "fill_hash"), 64, 128, NULL, &data[b], &n, &seed);
    }
    for (uint32_t b = 0; b < BUFFERS; b++) {
        LAUNCH(client_kernel(0, "histogram_256"), 32, 256, NULL, &bins, &data[b], &n);
        LAUNCH(client_kernel(0, "histogram_wide"), 32, 256, NULL, &wide_bins, &data[b], &n, &wide);
    }
    OK(cuMemcpyDtoH_v2(found_narrow, bins, sizeof found_narrow));
    OK(cuMemcpyDtoH_v2(found, wide_bins, wide * sizeof *found));
    for (uint32_t i = 0; i < BUFFERS * n; i++) {
        uint32_t value = client_hash(i);
        narrow[value >> 24]++;
        expected[value % wide]++;
    }
    if (memcmp(narrow, found_narrow, sizeof narrow) != 0)
        WRONG("the 256 bins differ");
    for (uint32_t i = 0; i < wide; i++)
        if (found[i] != expected[i])
            WRONG("bin %u has %u, not %u", i, found[i], expected[i]);
    client_sum(found_narrow, sizeof found_narrow);
    client_sum(found, wide * sizeof *found);
    free(expected);
    free(found);
    return client_end();
}
