/* Buffers of a pool on two streams: what each step needs besides comes from the pool and goes back in stream order. */
#include "client.h"

enum { BUFFERS = 12, STEPS = 4 };

int main(int argc, char **argv)
{
    client_start("pooled", argc, argv, 1);
    uint32_t n = (uint32_t)(client_bytes() / BUFFERS / 4);
    size_t bytes = n * sizeof(uint32_t);
    uint32_t *expected[BUFFERS], *other = client_host(bytes), *found = client_host(bytes);
    CUfunction fill = client_kernel(0, "fill_hash"), mix = client_kernel(0, "mix_in");
    CUdeviceptr buffer[BUFFERS];
    CUstream stream[2];
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemPoolCreate(&pool, &props));
    for (int s = 0; s < 2; s++)
        OK(cuStreamCreate(&stream[s], CU_STREAM_NON_BLOCKING));
    for (uint32_t b = 0; b < BUFFERS; b++) {
        expected[b] = client_host(bytes);
        for (uint32_t i = 0; i < n; i++)
            expected[b][i] = client_hash(i + b);
        client_got(cuMemAllocFromPoolAsync(&buffer[b], bytes, pool, stream[b % 2]), bytes);
        LAUNCH(fill, 64, 256, stream[b % 2], &buffer[b], &n, &b);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t b = 0; b < BUFFERS; b++) {
            CUdeviceptr scratch;
            uint32_t seed = 1000 * step + b;
            client_got(cuMemAllocAsync(&scratch, bytes, stream[b % 2]), bytes);
            LAUNCH(fill, 64, 256, stream[b % 2], &scratch, &n, &seed);
            LAUNCH(mix, 64, 256, stream[b % 2], &buffer[b], &scratch, &n, &step);
            OK(cuMemFreeAsync(scratch, stream[b % 2]));
            for (uint32_t i = 0; i < n; i++)
                other[i] = client_hash(i + seed);
            client_mix_in(expected[b], other, n, step);
        }
    }
    for (uint32_t b = 0; b < BUFFERS; b++) {
        OK(cuMemcpyDtoHAsync_v2(found, buffer[b], bytes, stream[b % 2]));
        OK(cuMemFreeAsync(buffer[b], stream[b % 2]));
        OK(cuStreamSynchronize(stream[b % 2]));
        if (memcmp(found, expected[b], bytes) != 0)
            WRONG("buffer %u is wrong", b);
        client_sum(found, bytes);
        free(expected[b]);
    }
    for (int s = 0; s < 2; s++)
        OK(cuStreamDestroy_v2(stream[s]));
    OK(cuMemPoolDestroy(pool));
    free(other);
    free(found);
    return client_end();
}
