/*
 * Two processes: one lets the other have some of its buffers, into which both mix what they have themselves, in turn. The other is this program again,
 * with to=FD and from=FD: pipes.
 */
#include "client.h"

#include <sys/wait.h>
#include <unistd.h>

enum { SHARED = 2, OWN = 14, TURNS = 3 };

static uint32_t n;
static size_t bytes;

static void tell(int fd)
{
    if (write(fd, "", 1) != 1)
        WRONG("the other process has ended");
}
static void wait_for(int fd)
{
    char byte;
    if (read(fd, &byte, 1) != 1)
        WRONG("the other process has ended");
}

/* Own buffers, which are larger together than the card when there is little. */
static void fill_own(CUdeviceptr *own, uint32_t seed)
{
    CUfunction fill = client_kernel(0, "fill_hash");
    for (uint32_t i = 0; i < OWN; i++) {
        uint32_t start = seed + i;
        own[i] = client_alloc(bytes);
        LAUNCH(fill, 64, 256, NULL, &own[i], &n, &start);
    }
}

static void mix_all(const CUdeviceptr *shared, const CUdeviceptr *own, uint32_t round)
{
    CUfunction mix = client_kernel(0, "mix_in");
    for (uint32_t i = 0; i < OWN; i++) {
        CUdeviceptr y = shared[i % SHARED], x = own[i];
        LAUNCH(mix, 64, 256, NULL, &y, &x, &n, &round);
    }
    OK(cuCtxSynchronize());
}

static int other(int to, int from)
{
    CUipcMemHandle handle[SHARED];
    CUdeviceptr shared[SHARED], own[OWN];
    fill_own(own, 5000);
    if (read(from, handle, sizeof handle) != sizeof handle)
        WRONG("no handles came");
    for (int i = 0; i < SHARED; i++)
        OK(cuIpcOpenMemHandle_v2(&shared[i], handle[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        wait_for(from);
        mix_all(shared, own, 100 + turn);
        tell(to);
    }
    for (int i = 0; i < SHARED; i++)
        OK(cuIpcCloseMemHandle(shared[i]));
    tell(to);
    return 0; /* the line is the first one's */
}

static pid_t start_other(char **argv, int *to_out, int *from_out)
{
    int there[2], back[2];
    char to[32], from[32], size[32];
    if (pipe(there) != 0 || pipe(back) != 0)
        WRONG("no pipes");
    snprintf(to, sizeof to, "to=%d", back[1]);
    snprintf(from, sizeof from, "from=%d", there[0]);
    snprintf(size, sizeof size, "MiB=%zu", client_bytes() >> 20);
    pid_t pid = fork();
    if (pid == 0) {
        close(there[1]);
        close(back[0]);
        execv("/proc/self/exe", (char *[]){argv[0], size, to, from, NULL});
        _exit(9);
    }
    close(there[0]);
    close(back[1]);
    *to_out = there[1];
    *from_out = back[0];
    return pid;
}

static void expect(uint32_t **expected)
{
    uint32_t *x = client_host(bytes);
    for (uint32_t i = 0; i < SHARED; i++)
        for (uint32_t k = 0; k < n; k++)
            expected[i][k] = client_hash(k + 9000 + i);
    for (uint32_t turn = 0; turn < TURNS; turn++)
        for (uint32_t who = 0; who < 2; who++)
            for (uint32_t i = 0; i < OWN; i++) {
                for (uint32_t k = 0; k < n; k++)
                    x[k] = client_hash(k + (who ? 5000 : 1000) + i);
                client_mix_in(expected[i % SHARED], x, n, who ? 100 + turn : turn);
            }
    free(x);
}

int main(int argc, char **argv)
{
    client_start("shared", argc, argv, 1);
    n = (uint32_t)(client_bytes() / (SHARED + OWN) / 4);
    bytes = n * sizeof(uint32_t);
    int to = (int)client_option("to", -1), from = (int)client_option("from", -1), status;
    if (to >= 0)
        return other(to, from);
    CUdeviceptr shared[SHARED], own[OWN];
    CUipcMemHandle handle[SHARED];
    uint32_t *expected[SHARED], *found = client_host(bytes);
    CUfunction fill = client_kernel(0, "fill_hash");
    for (uint32_t i = 0; i < SHARED; i++) {
        uint32_t start = 9000 + i;
        shared[i] = client_alloc(bytes);
        expected[i] = client_host(bytes);
        LAUNCH(fill, 64, 256, NULL, &shared[i], &n, &start);
    }
    fill_own(own, 1000);
    OK(cuCtxSynchronize());
    for (int i = 0; i < SHARED; i++)
        OK(cuIpcGetMemHandle(&handle[i], shared[i]));
    pid_t pid = start_other(argv, &to, &from);
    if (write(to, handle, sizeof handle) != sizeof handle)
        WRONG("the handles did not get there");
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        mix_all(shared, own, turn);
        tell(to);
        wait_for(from);
    }
    wait_for(from);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        WRONG("the other process ended with 0x%x", (unsigned)status);
    expect(expected);
    for (int i = 0; i < SHARED; i++) {
        OK(cuMemcpyDtoH_v2(found, shared[i], bytes));
        if (memcmp(found, expected[i], bytes) != 0)
            WRONG("shared buffer %d is wrong", i);
        client_sum(found, bytes);
        free(expected[i]);
    }
    free(found);
    return client_end();
}
