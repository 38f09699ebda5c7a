/* A producer and a consumer on two streams, with a ring of buffers between them and events for full and empty. */
#include "client.h"

enum { RING = 8 };

int main(int argc, char **argv)
{
    client_start("pipeline", argc, argv, 1);
    uint32_t n = (uint32_t)(client_bytes() / RING / 4), items = (uint32_t)client_option("items", 20);
    CUdeviceptr ring[RING], total = client_alloc(8);
    CUevent full[RING], empty[RING];
    CUstream producer, consumer;
    CUfunction produce = client_kernel(0, "produce"), consume = client_kernel(0, "consume");
    OK(cuStreamCreate(&producer, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&consumer, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8Async(total, 0, 8, consumer));
    for (int i = 0; i < RING; i++) {
        ring[i] = client_alloc(n * sizeof(uint32_t));
        OK(cuEventCreate(&full[i], CU_EVENT_DISABLE_TIMING));
        OK(cuEventCreate(&empty[i], CU_EVENT_DISABLE_TIMING));
    }
    for (uint32_t item = 0; item < items; item++) {
        uint32_t slot = item % RING, weight = item + 1;
        if (item >= RING)
            OK(cuStreamWaitEvent(producer, empty[slot], 0));
        LAUNCH(produce, 32, 128, producer, &ring[slot], &n, &item);
        OK(cuEventRecord(full[slot], producer));
        OK(cuStreamWaitEvent(consumer, full[slot], 0));
        LAUNCH(consume, 32, 128, consumer, &total, &ring[slot], &n, &weight);
        OK(cuEventRecord(empty[slot], consumer));
    }
    uint64_t found, expected = 0;
    OK(cuMemcpyDtoHAsync_v2(&found, total, sizeof found, consumer));
    OK(cuStreamSynchronize(consumer));
    for (uint32_t item = 0; item < items; item++)
        for (uint32_t i = 0; i < n; i++)
            expected += (uint64_t)(item + 1) * client_hash(i ^ item * 0x9e3779b9u);
    if (found != expected)
        WRONG("the total is %llu, not %llu", (unsigned long long)found, (unsigned long long)expected);
    client_sum(&found, sizeof found);
    for (int i = 0; i < RING; i++) {
        OK(cuEventDestroy_v2(full[i]));
        OK(cuEventDestroy_v2(empty[i]));
    }
    OK(cuStreamDestroy_v2(producer));
    OK(cuStreamDestroy_v2(consumer));
    return client_end();
}
