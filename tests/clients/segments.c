/* An allocator with one reserved range that grows by segments which it maps itself, shrinks and grows again; buffers lie across segments. */
#include "client.h"

enum { SEGMENTS = 8, ROUNDS = 3 };

static CUdeviceptr range;
static size_t segment_bytes;
static CUmemGenericAllocationHandle handle[SEGMENTS];
static int segments;

static void grow(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc desc = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = range + segment_bytes * (size_t)segments;
    client_got(cuMemCreate(&handle[segments], segment_bytes, &prop, 0), segment_bytes);
    OK(cuMemMap(at, segment_bytes, 0, handle[segments], 0));
    OK(cuMemSetAccess(at, segment_bytes, &desc, 1));
    segments++;
}

static void shrink(void)
{
    segments--;
    OK(cuMemUnmap(range + segment_bytes * (size_t)segments, segment_bytes));
    OK(cuMemRelease(handle[segments]));
}

int main(int argc, char **argv)
{
    client_start("segments", argc, argv, 1);
    segment_bytes = client_bytes() / SEGMENTS;
    uint32_t buffers = 5, n = (uint32_t)(client_bytes() / buffers / 4); /* none of them ends where a segment does */
    size_t bytes = n * sizeof(uint32_t);
    uint32_t *expected[5], *found = client_host(bytes);
    CUfunction fill = client_kernel(0, "fill_hash"), mix = client_kernel(0, "mix_in");
    OK(cuMemAddressReserve(&range, 4 * client_bytes(), 0, 0, 0));
    for (uint32_t b = 0; b < buffers; b++)
        expected[b] = client_host(bytes);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        while (segments < SEGMENTS)
            grow();
        for (uint32_t b = 0; b < buffers; b++) {
            CUdeviceptr at = range + b * bytes;
            LAUNCH(fill, 64, 256, NULL, &at, &n, &b);
            for (uint32_t i = 0; i < n; i++)
                expected[b][i] = client_hash(i + b);
        }
        for (uint32_t b = 0; b < buffers; b++) {
            CUdeviceptr y = range + b * bytes, x = range + (b + 1) % buffers * bytes;
            LAUNCH(mix, 64, 256, NULL, &y, &x, &n, &round);
            client_mix_in(expected[b], expected[(b + 1) % buffers], n, round);
        }
        for (uint32_t b = 0; b < buffers; b++) {
            OK(cuMemcpyDtoH_v2(found, range + b * bytes, bytes));
            if (memcmp(found, expected[b], bytes) != 0)
                WRONG("buffer %u is wrong in round %u", b, round);
            client_sum(found, bytes);
        }
        while (segments > (round + 1 < ROUNDS ? SEGMENTS / 2 : 0))
            shrink();
    }
    OK(cuMemAddressFree(range, 4 * client_bytes()));
    for (uint32_t b = 0; b < buffers; b++)
        free(expected[b]);
    free(found);
    return client_end();
}
