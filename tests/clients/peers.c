/*
 * Two GPUs exchange buffers, round by round. With peer=1 (the default where the GPUs are peers) a kernel reads the other's
 * buffer where it is; else it is copied over first, by a peer copy or a plain one in turn.
 */
#include "client.h"

enum { BUFFERS = 4 };

static uint32_t n, rounds;
static CUdeviceptr buffer[2][BUFFERS], inbox[2];
static CUstream stream[2];
static CUevent done[2];

static bool peers_wanted(void)
{
    int can[2];
    OK(cuDeviceCanAccessPeer(&can[0], 0, 1));
    OK(cuDeviceCanAccessPeer(&can[1], 1, 0));
    return client_option("peer", can[0] && can[1]);
}

static void set_up(bool peer)
{
    for (int g = 0; g < 2; g++) {
        OK(cuCtxSetCurrent(client_context(g)));
        if (peer)
            OK(cuCtxEnablePeerAccess(client_context(1 - g), 0));
        OK(cuStreamCreate(&stream[g], CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&done[g], CU_EVENT_DISABLE_TIMING));
        inbox[g] = client_alloc(n * sizeof(uint32_t));
        for (int b = 0; b < BUFFERS; b++) {
            uint32_t seed = (uint32_t)(g * BUFFERS + b) * n;
            buffer[g][b] = client_alloc(n * sizeof(uint32_t));
            LAUNCH(client_kernel(g, "fill_hash"), 32, 128, stream[g], &buffer[g][b], &n, &seed);
        }
        OK(cuStreamSynchronize(stream[g]));
    }
}

/* Buffer b of GPU g takes in buffer `from` of the other GPU. */
static void mix(int g, int b, int from, bool peer, uint32_t round)
{
    CUdeviceptr source = buffer[1 - g][from];
    OK(cuCtxSetCurrent(client_context(g)));
    OK(cuStreamWaitEvent(stream[g], done[1 - g], 0)); /* what the other GPU made of it */
    if (!peer) {
        if (b % 2)
            OK(cuMemcpyPeerAsync(inbox[g], client_context(g), source, client_context(1 - g), n * sizeof(uint32_t),
                                 stream[g]));
        else
            OK(cuMemcpyDtoDAsync_v2(inbox[g], source, n * sizeof(uint32_t), stream[g]));
        source = inbox[g];
    }
    LAUNCH(client_kernel(g, "mix_in"), 32, 128, stream[g], &buffer[g][b], &source, &n, &round);
    OK(cuEventRecord(done[g], stream[g]));
}

static void check(void)
{
    uint32_t *host[2][BUFFERS], *found = client_host(n * sizeof *found);
    for (uint32_t k = 0; k < 2 * BUFFERS; k++) {
        uint32_t *words = host[k / BUFFERS][k % BUFFERS] = client_host(n * sizeof *words);
        for (uint32_t i = 0; i < n; i++)
            words[i] = client_hash(i + k * n);
    }
    for (uint32_t round = 0; round < rounds; round++)
        for (int b = 0; b < BUFFERS; b++)
            for (int g = 0; g < 2; g++) {
                uint32_t *y = host[g][b];
                const uint32_t *x = host[1 - g][(b + 1) % BUFFERS];
                for (uint32_t i = 0; i < n; i++)
                    y[i] = client_hash(y[i] + round) ^ x[n - 1 - i];
            }
    for (int g = 0; g < 2; g++) {
        OK(cuCtxSetCurrent(client_context(g)));
        for (int b = 0; b < BUFFERS; b++) {
            OK(cuMemcpyDtoH_v2(found, buffer[g][b], n * sizeof *found));
            for (uint32_t i = 0; i < n; i++)
                if (found[i] != host[g][b][i])
                    WRONG("word %u of buffer %d of GPU %d is %u, not %u", i, b, g, found[i], host[g][b][i]);
            client_sum(found, n * sizeof *found);
            free(host[g][b]);
        }
    }
    free(found);
}

int main(int argc, char **argv)
{
    client_start("peers", argc, argv, 2);
    n = (uint32_t)(client_bytes() / (BUFFERS + 1) / 4); /* the footprint of each GPU */
    rounds = (uint32_t)client_option("rounds", 2);
    bool peer = peers_wanted();
    set_up(peer);
    for (uint32_t round = 0; round < rounds; round++)
        for (int b = 0; b < BUFFERS; b++)
            for (int g = 0; g < 2; g++)
                mix(g, b, (b + 1) % BUFFERS, peer, round);
    for (int g = 0; g < 2; g++) {
        OK(cuCtxSetCurrent(client_context(g)));
        OK(cuStreamSynchronize(stream[g]));
    }
    check();
    for (int g = 0; g < 2; g++) {
        OK(cuCtxSetCurrent(client_context(g)));
        OK(cuEventDestroy_v2(done[g]));
        OK(cuStreamDestroy_v2(stream[g]));
        if (peer)
            OK(cuCtxDisablePeerAccess(client_context(1 - g)));
    }
    return client_end();
}
