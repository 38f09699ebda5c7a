/* A stable radix sort of words by their low 8 bits, four bits a pass, from one buffer into another and back. */
#include "client.h"

enum { BLOCKS = 32, THREADS = BLOCKS * 128, DIGITS = 16, PASSES = 2, KEYS = 1 << 8 };

/* The same by counting. */
static void sort_on_host(uint32_t *out, const uint32_t *keys, uint32_t n)
{
    uint32_t *place = client_host(KEYS * sizeof *place), total = 0;
    memset(place, 0, KEYS * sizeof *place);
    for (uint32_t i = 0; i < n; i++)
        place[keys[i] % KEYS]++;
    for (uint32_t k = 0; k < KEYS; k++) {
        uint32_t count = place[k];
        place[k] = total;
        total += count;
    }
    for (uint32_t i = 0; i < n; i++)
        out[place[keys[i] % KEYS]++] = keys[i];
    free(place);
}

int main(int argc, char **argv)
{
    client_start("sort", argc, argv, 1);
    uint32_t n = (uint32_t)(client_bytes() / 2 / 4) / THREADS * THREADS, seed = 1, count = DIGITS * THREADS;
    size_t bytes = n * sizeof(uint32_t);
    uint32_t *keys = client_host(bytes), *expected = client_host(bytes), *found = client_host(bytes);
    CUdeviceptr a = client_alloc(bytes), b = client_alloc(bytes), counts = client_alloc(count * sizeof(uint32_t));
    CUfunction digit_count = client_kernel(0, "digit_count"), digit_scatter = client_kernel(0, "digit_scatter");
    LAUNCH(client_kernel(0, "fill_hash"), BLOCKS, 128, NULL, &a, &n, &seed);
    OK(cuMemcpyDtoH_v2(keys, a, bytes));
    for (uint32_t pass = 0, shift = 0; pass < PASSES; pass++, shift += 4) {
        LAUNCH(digit_count, BLOCKS, 128, NULL, &counts, &a, &n, &shift);
        LAUNCH(client_kernel(0, "scan_counts"), 1, 256, NULL, &counts, &count);
        LAUNCH(digit_scatter, BLOCKS, 128, NULL, &b, &counts, &a, &n, &shift);
        CUdeviceptr swap = a;
        a = b;
        b = swap;
    }
    OK(cuMemcpyDtoH_v2(found, a, bytes));
    for (uint32_t i = 0; i < n; i++)
        if (keys[i] != client_hash(i + seed))
            WRONG("key %u was %u", i, keys[i]);
    sort_on_host(expected, keys, n);
    for (uint32_t i = 0; i < n; i++)
        if (found[i] != expected[i])
            WRONG("place %u has %u, not %u", i, found[i], expected[i]);
    client_sum(found, bytes);
    free(keys);
    free(expected);
    free(found);
    return client_end();
}
