/* Sums of eight buffers of words, each by two kernels, and of all of them together. */
#include "client.h"

enum { BUFFERS = 8, BLOCKS = 64 };

int main(int argc, char **argv)
{
    client_start("reduction", argc, argv, 1);
    uint32_t n = (uint32_t)(client_bytes() / BUFFERS / 4);
    uint32_t *host = client_host(n * sizeof *host), blocks = BLOCKS, buffers = BUFFERS;
    CUfunction sum_words = client_kernel(0, "sum_words"), sum_partials = client_kernel(0, "sum_partials");
    CUdeviceptr buffer[BUFFERS], partial = client_alloc(BLOCKS * sizeof(uint64_t)), sums, all;
    uint64_t expected[BUFFERS] = {0}, found[BUFFERS + 1], total = 0;
    sums = client_alloc(sizeof found);
    all = sums + BUFFERS * sizeof(uint64_t);
    for (uint32_t b = 0; b < BUFFERS; b++) {
        buffer[b] = client_alloc(n * sizeof *host);
        for (uint32_t i = 0; i < n; i++) {
            host[i] = client_hash(i + b * n);
            expected[b] += host[i];
        }
        total += expected[b];
        OK(cuMemcpyHtoD_v2(buffer[b], host, n * sizeof *host));
    }
    for (int round = 0; round < 2; round++) {
        for (uint32_t b = 0; b < BUFFERS; b++) {
            CUdeviceptr sum = sums + b * sizeof(uint64_t);
            LAUNCH(sum_words, BLOCKS, 256, NULL, &partial, &buffer[b], &n);
            LAUNCH(sum_partials, 1, 256, NULL, &sum, &partial, &blocks);
        }
        LAUNCH(sum_partials, 1, 256, NULL, &all, &sums, &buffers);
        OK(cuMemcpyDtoH_v2(found, sums, sizeof found));
        for (int b = 0; b < BUFFERS; b++)
            if (found[b] != expected[b])
                WRONG("the sum of buffer %d is %llu", b, (unsigned long long)found[b]);
        if (found[BUFFERS] != total)
            WRONG("the sum of all is %llu", (unsigned long long)found[BUFFERS]);
        client_sum(found, sizeof found);
    }
    free(host);
    return client_end();
}
