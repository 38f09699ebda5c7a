/* The node: traffic between cards, also over written tables, and what goes wrong with it. */
#include "kernels.h"
#include "node_call.h"
#include "scene.h"

#include <errno.h>
#include <math.h>
#include <sys/wait.h>

/* ---- traffic ---- */

static CUcontext contexts[16];
static CUdeviceptr buffers[16];

static void strangers(const char *text, int cards, size_t bytes)
{
    machine(text);
    for (int i = 0; i < cards; i++) {
        OK(cuCtxCreate_v2(&contexts[i], 0, i));
        OK(cuMemAlloc_v2(&buffers[i], bytes));
    }
}

/* The same, each with access to all others that it can reach. */
static void all_cards(const char *text, int cards, size_t bytes)
{
    strangers(text, cards, bytes);
    for (int i = 0; i < cards; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        for (int k = 0; k < cards; k++) {
            int can;
            OK(cuDeviceCanAccessPeer(&can, i, k));
            if (can)
                OK(cuCtxEnablePeerAccess(contexts[k], 0));
        }
    }
}

/* GB/s of one copy between two events. */
static double copy_gbps(int from, int to, size_t bytes)
{
    CUstream s;
    CUevent a, b;
    float ms;
    OK(cuCtxSetCurrent(contexts[from]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventRecord(a, s));
    OK(cuMemcpyPeerAsync(buffers[to], contexts[to], buffers[from], contexts[from], bytes, s));
    OK(cuEventRecord(b, s));
    OK(cuStreamSynchronize(s));
    OK(cuEventElapsedTime_v2(&ms, a, b));
    return (double)bytes / ((double)ms * 1e6);
}

static void expect(const char *what, double gbps, double expected)
{
    cr_assert(fabs(gbps - expected) < 0.03 * expected, "%s: %.2f GB/s, expected %.2f", what, gbps, expected);
}

Test(node, copies_take_all_direct_links_or_pcie)
{
    all_cards("dgx1v,vram=64M", 8, 32 * MIB);
    expect("one link", copy_gbps(0, 1, 32 * MIB), 23);
    expect("two links", copy_gbps(0, 3, 32 * MIB), 46);
    expect("over both sockets", copy_gbps(0, 7, 16 * MIB), 6);
    struct sg_node_counters c;
    uint64_t sum = 0;
    for (int p = 0; p < 6; p++) {
        cr_assert_eq(NODE(sg_node_counters, 0, p, &c), 0);
        sum += c.bytes;
    }
    cr_assert_eq(sum, 2 * 32 * MIB);
}

Test(node, without_access_copies_go_through_the_host)
{
    strangers("dgx1v,vram=64M", 2, 32 * MIB);
    expect("by PCIe, although there is a link", copy_gbps(0, 1, 32 * MIB), 12.4);
    OK(cuCtxSetCurrent(contexts[1])); /* access in either direction will do */
    OK(cuCtxEnablePeerAccess(contexts[0], 0));
    expect("one link", copy_gbps(0, 1, 32 * MIB), 23);
}

Test(node, copies_take_all_links_to_the_switches)
{
    all_cards("hgx-h100,vram=256M,gpus=2", 2, 128 * MIB);
    expect("over switches", copy_gbps(0, 1, 128 * MIB), 18 * 21.1);
}

Test(node, trunks_between_switches_carry_copies)
{
    all_cards("dgx2,vram=160M", 16, 64 * MIB);
    expect("over two switches", copy_gbps(0, 15, 64 * MIB), 6 * 23);
}

/* Copies of several cards at once: how long until the last is over, in GB/s of all. */
static double together(const int (*pairs)[2], int count, size_t bytes)
{
    CUstream s[16];
    uint64_t (*now)(void) = (uint64_t(*)(void))node_call("sg_virtual_now_ns");
    for (int i = 0; i < count; i++) {
        OK(cuCtxSetCurrent(contexts[pairs[i][0]]));
        OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    }
    uint64_t begin = now();
    for (int i = 0; i < count; i++) {
        OK(cuCtxSetCurrent(contexts[pairs[i][0]]));
        OK(cuMemcpyPeerAsync(buffers[pairs[i][1]], contexts[pairs[i][1]], buffers[pairs[i][0]], contexts[pairs[i][0]],
                             bytes, s[i]));
    }
    for (int i = 0; i < count; i++)
        OK(cuStreamSynchronize(s[i]));
    return (double)bytes * count / (double)(now() - begin);
}

Test(node, both_directions_and_different_links_are_independent)
{
    all_cards("dgx1v,vram=64M", 8, 32 * MIB);
    const int ways[][2] = {{0, 1}, {1, 0}, {0, 2}, {0, 3}}; /* 23 + 23 + 23, and two links for as many bytes */
    expect("four copies", together(ways, 4, 32 * MIB), 4 * 23);
    const int same[][2] = {{0, 1}, {0, 1}};
    expect("two copies over one link", together(same, 2, 32 * MIB), 23);
}

Test(node, pcie_uplinks_are_shared)
{
    all_cards("pcie-box,vram=64M", 8, 32 * MIB);
    const int below[][2] = {{0, 1}, {2, 3}};          /* below one bridge: the uplink is not used */
    const int across[][2] = {{0, 4}, {1, 5}, {2, 6}}; /* over the uplinks and between the sockets */
    expect("below one bridge", together(below, 2, 32 * MIB), 2 * 26);
    expect("over the sockets", together(across, 3, 32 * MIB), 10);
    CUstream s[2];
    void *host[2];
    uint64_t (*now)(void) = (uint64_t(*)(void))node_call("sg_virtual_now_ns");
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
        OK(cuMemAllocHost_v2(&host[i], 32 * MIB));
    }
    uint64_t begin = now();
    for (int i = 0; i < 2; i++)
        OK(cuMemcpyHtoDAsync_v2(buffers[i], host[i], 32 * MIB, s[i]));
    for (int i = 0; i < 2; i++)
        OK(cuStreamSynchronize(s[i]));
    expect("two cards from the host", 2.0 * 32 * MIB / (double)(now() - begin), 26);
}

/* ---- tables ---- */

static void square_ranges(uint64_t each)
{
    struct sg_node_range at[4];
    int elements = NODE(sg_node_elements);
    for (uint32_t i = 0; i < 4; i++)
        at[i] = (struct sg_node_range){(i + 1) * (each << 4), each, i};
    for (int e = 0; e < elements; e++)
        cr_assert_eq(NODE(sg_node_write_ranges, e, at, 4), 0);
}

/* Ports of the square: card 0 has 0, 1 to card 1 and 2, 3 to card 2, and so on in the order of nodes.def. */
static void square_tables(uint8_t policy)
{
    /* 0 to 3: half over 1, half over 2. */
    struct sg_node_route at_0 = {.owner = 3, .policy = policy, .port_count = 4, .port = {0, 1, 2, 3}};
    struct sg_node_route at_1 = {.owner = 3, .policy = policy, .port_count = 2, .port = {2, 3}};
    struct sg_node_route at_2 = {.owner = 3, .policy = policy, .port_count = 2, .port = {2, 3}};
    at_0.address_shift = at_1.address_shift = at_2.address_shift = 12;
    cr_assert_eq(NODE(sg_node_write_table, 0, &at_0, 1), 0);
    cr_assert_eq(NODE(sg_node_write_table, 1, &at_1, 1), 0);
    cr_assert_eq(NODE(sg_node_write_table, 2, &at_2, 1), 0);
}

Test(node, with_tables_copies_go_along_them)
{
    all_cards("square4,vram=128M", 4, 64 * MIB);
    expect("by itself, over the sockets", copy_gbps(0, 3, 16 * MIB), 16);
    square_ranges(128 * MIB);
    square_tables(SG_PORT_ALL);
    expect("forwarded by two cards", copy_gbps(0, 3, 64 * MIB), 4 * 23);
    struct sg_node_counters c;
    for (int p = 0; p < 4; p++) {
        cr_assert_eq(NODE(sg_node_counters, 0, p, &c), 0);
        cr_assert_eq(c.bytes, 16 * MIB);
    }
    cr_assert_eq(NODE(sg_node_counters, 1, 2, &c), 0);
    cr_assert(c.bytes == 16 * MIB && c.forwarded_bytes == 16 * MIB);
    square_tables(SG_PORT_ANY);
    expect("any port", copy_gbps(0, 3, 64 * MIB), 23);
    square_tables(SG_PORT_ROUND_ROBIN);
    expect("ports in turn", copy_gbps(0, 3, 64 * MIB), 4 * 23);
}

Test(node, requests_reach_the_memory_of_any_card)
{
    all_cards("square4,vram=64M", 4, 4 * MIB);
    square_ranges(64 * MIB);
    square_tables(SG_PORT_ALL);
    int card;
    uint64_t offset;
    struct sg_node_trace t;
    unsigned char data[6000], back[6000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 3);
    cr_assert_eq(NODE(sg_node_locate, buffers[3] + 1000, &card, &offset), 0);
    cr_assert_eq(card, 3);
    cr_assert_eq(NODE(sg_node_request, 0, 4 * (64 * MIB << 4) + offset, sizeof data, true, data, &t), 0);
    cr_assert(t.hops == 2 && t.first_owner == 3 && t.served_bytes == sizeof data);
    OK(cuCtxSetCurrent(contexts[3]));
    OK(cuMemcpyDtoH_v2(back, buffers[3] + 1000, sizeof back));
    cr_assert_eq(memcmp(back, data, sizeof data), 0);
    data[0] ^= 0xff;
    OK(cuMemcpyHtoD_v2(buffers[3] + 1000, data, sizeof data));
    cr_assert_eq(NODE(sg_node_request, 0, 4 * (64 * MIB << 4) + offset, sizeof data, false, back, NULL), 0);
    cr_assert_eq(memcmp(back, data, sizeof data), 0);
    cr_assert_eq(NODE(sg_node_request, 0, 4 * (64 * MIB << 4) + 64 * MIB - 8, 16, false, back, NULL), -EFAULT);
    cr_assert_eq(NODE(sg_node_request, 4, 0, 16, false, back, NULL), -EINVAL);
    struct sg_node_range socket = {0, 4096, 4};
    cr_assert_eq(NODE(sg_node_write_ranges, 0, &socket, 1), -EINVAL); /* has no memory */
}

Test(node, kernels_are_as_fast_as_the_links_that_they_use)
{
    all_cards("dgx1v,vram=64M", 8, 32 * MIB);
    OK(cuCtxSetCurrent(contexts[0]));
    CUmodule module;
    CUfunction f;
    CUevent a, b;
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&f, module, "fill"));
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    double gbps[2];
    for (int i = 0; i < 2; i++) { /* card 1 by one link, card 3 by two */
        CUdeviceptr p = buffers[i ? 3 : 1];
        unsigned value = 3, n = 4 << 20;
        float ms;
        OK(cuEventRecord(a, NULL));
        OK(cuLaunchKernel(f, n / 128, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&p, &value, &n}, NULL));
        OK(cuEventRecord(b, NULL));
        OK(cuCtxSynchronize());
        OK(cuEventElapsedTime_v2(&ms, a, b));
        gbps[i] = 4.0 * n / ((double)ms * 1e6);
    }
    expect("one link", gbps[0], 23);
    expect("two links", gbps[1], 46);
}

/* ---- what goes wrong ---- */

static unsigned char pattern(size_t i)
{
    return (unsigned char)(i * 31 + (i >> 11));
}

static void prepare(int from, int to, size_t bytes)
{
    unsigned char *data = malloc(bytes);
    cr_assert_not_null(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(i);
    OK(cuCtxSetCurrent(contexts[to]));
    OK(cuMemsetD8_v2(buffers[to], 0xee, bytes));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(contexts[from]));
    OK(cuMemcpyHtoD_v2(buffers[from], data, bytes));
    OK(cuCtxSynchronize());
    free(data);
}

/* How many bytes from the beginning are right; the rest must be as before. */
static size_t arrived(int card, size_t bytes)
{
    unsigned char *data = malloc(bytes);
    size_t n = 0;
    cr_assert_not_null(data);
    OK(cuCtxSetCurrent(contexts[card]));
    OK(cuMemcpyDtoH_v2(data, buffers[card], bytes));
    while (n < bytes && data[n] == pattern(n))
        n++;
    for (size_t i = n; i < bytes; i++)
        cr_assert(data[i] == 0xee || data[i] == pattern(i), "byte %zu", i);
    free(data);
    return n;
}

static CUresult copy_over(int from, int to, size_t bytes, CUstream s)
{
    OK(cuCtxSetCurrent(contexts[from]));
    OK(cuMemcpyPeerAsync(buffers[to], contexts[to], buffers[from], contexts[from], bytes, s));
    return cuStreamSynchronize(s);
}

Test(node, a_link_fails_in_the_middle_of_a_copy)
{
    CUstream s;
    setenv("SIMGPU_LINK", "fail:0.0@3000000", 1);
    all_cards("dgx1v,vram=64M", 2, 8 * MIB);
    prepare(0, 1, 8 * MIB);
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    uint64_t epoch = NODE(sg_node_epoch);
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, copy_over(0, 1, 8 * MIB, s));
    OK(cuStreamSynchronize(s)); /* told once */
    cr_assert_eq(NODE(sg_node_wait, epoch, UINT64_MAX), 0);
    cr_assert_eq(arrived(1, 8 * MIB), 3000000);
    struct sg_node_port p;
    cr_assert_eq(NODE(sg_node_port, 1, 0, &p), 0);
    cr_assert_eq(p.up, 0);
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, copy_over(0, 1, 8 * MIB, s)); /* it is still down */
    cr_assert_eq(NODE(sg_node_link_set, 0, 0, true), 0);
    OK(copy_over(0, 1, 8 * MIB, s));
    cr_assert_eq(arrived(1, 8 * MIB), 8 * MIB);
}

Test(node, where_it_is_wanted_the_error_sticks)
{
    CUstream s;
    setenv("SIMGPU_LINK", "sticky,fail:0.0@100", 1);
    all_cards("dgx1v,vram=64M", 2, 1 * MIB);
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, copy_over(0, 1, 1 * MIB, s));
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, cuStreamSynchronize(s));
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, cuCtxSynchronize());
}

Test(node, with_other_ports_in_the_table_a_copy_survives_its_link)
{
    CUstream s;
    setenv("SIMGPU_LINK", "fail:0.1@1000000,fail:1.2@700001", 1);
    all_cards("square4,vram=64M", 4, 16 * MIB);
    square_ranges(64 * MIB);
    square_tables(SG_PORT_ALL);
    prepare(0, 3, 16 * MIB);
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(copy_over(0, 3, 16 * MIB, s));
    cr_assert_eq(arrived(3, 16 * MIB), 16 * MIB);
    cr_assert_eq(NODE(sg_node_epoch), 2);
    struct sg_node_counters c;
    cr_assert_eq(NODE(sg_node_counters, 0, 1, &c), 0);
    cr_assert_eq(c.bytes, 1000000);
    for (int p = 0; p < 4; p++) /* all ways out of card 0 */
        cr_assert_eq(NODE(sg_node_link_set, 0, p, false), 0);
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, copy_over(0, 3, 16 * MIB, s));
    OK(copy_over(1, 3, 1 * MIB, NULL)); /* the others go on: by themselves, over their own link that is left */
}

Test(node, a_path_may_corrupt_what_the_host_carries_right)
{
    setenv("SIMGPU_LINK", "corrupt:0-1", 1);
    strangers("h200,vram=64M,gpus=3", 3, 1 * MIB);
    prepare(0, 1, 1 * MIB);
    OK(copy_over(0, 1, 1 * MIB, NULL));
    cr_assert_eq(arrived(1, 1 * MIB), 1 * MIB);
    OK(cuCtxSetCurrent(contexts[0]));
    for (int i = 1; i < 3; i++)
        OK(cuCtxEnablePeerAccess(contexts[i], 0)); /* the driver says yes */
    OK(copy_over(0, 2, 1 * MIB, NULL));
    cr_assert_eq(arrived(2, 1 * MIB), 1 * MIB); /* another path */
    unsigned char data[1024];
    OK(copy_over(0, 1, sizeof data, NULL));
    OK(cuCtxSetCurrent(contexts[1]));
    OK(cuMemcpyDtoH_v2(data, buffers[1], sizeof data));
    for (size_t i = 0; i < sizeof data; i++)
        cr_assert((data[i] == pattern(i)) == (i % 512 != 0), "byte %zu", i);
}

/* A copy that never ends; others do, on other cards and in other engines, and so does the process. */
static int scene_hang(void)
{
    CUstream s;
    all_cards("dgx1v,vram=64M", 4, 1 * MIB);
    prepare(2, 3, 1 * MIB);
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyPeerAsync(buffers[1], contexts[1], buffers[0], contexts[0], MIB, s));
    for (int i = 0; i < 5; i++)
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    OK(copy_over(2, 3, 1 * MIB, NULL));
    cr_assert_eq(arrived(3, 1 * MIB), 1 * MIB);
    OK(cuCtxSetCurrent(contexts[0]));
    unsigned word = 1;
    OK(cuMemcpyHtoD_v2(buffers[0], &word, sizeof word));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    puts("alive");
    return 0;
}

Test(node, a_kernel_over_a_dead_link_is_told)
{
    all_cards("dgx1v,vram=64M", 2, 1 * MIB);
    OK(cuCtxSetCurrent(contexts[0]));
    CUmodule module;
    CUfunction f;
    unsigned value = 3, n = 1000;
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&f, module, "fill"));
    void *params[] = {&buffers[1], &value, &n};
    OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    OK(cuCtxSynchronize());
    cr_assert_eq(NODE(sg_node_link_set, 1, 0, false), 0);
    OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_NVLINK_UNCORRECTABLE, cuCtxSynchronize());
    OK(cuCtxSynchronize());
    params[0] = &buffers[0]; /* its own memory */
    OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    OK(cuCtxSynchronize());
}

static int scene_ring(void)
{
    all_cards("dgx1v,vram=64M", 8, 16 * MIB);
    const int ways[][2] = {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {0, 3}, {4, 0}, {0, 7}, {5, 1}};
    for (int i = 0; i < 3; i++)
        together(ways, 8, (size_t)(i + 1) * MIB);
    uint64_t (*now)(void) = (uint64_t(*)(void))node_call("sg_virtual_now_ns");
    printf("%llu\n", (unsigned long long)now());
    return 0;
}

SCENES({"ring", scene_ring}, {"hang", scene_hang})

Test(node, a_path_may_hang, .timeout = 60)
{
    const char *env[] = {"SIMGPU_LINK=hang:1-0", NULL};
    struct hr_test_result r = play("SIM_SCENE=hang", env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    cr_assert_str_eq(r.out, "alive\n");
    hr_test_result_finish(&r);
}

Test(node, the_same_nanoseconds_in_every_run, .timeout = 60)
{
    char first[64] = "";
    for (int i = 0; i < 5; i++) {
        struct hr_test_result r = play("SIM_SCENE=ring", NULL);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
        if (!i)
            snprintf(first, sizeof first, "%s", r.out);
        cr_assert_str_eq(r.out, first, "run %d", i);
        hr_test_result_finish(&r);
    }
}

Test(node, links_are_in_the_report_and_the_timeline, .timeout = 60)
{
    char report[96], timeline[96];
    snprintf(report, sizeof report, "SIMGPU_REPORT=/tmp/simgpu-node-%d.json", (int)getpid());
    snprintf(timeline, sizeof timeline, "SIMGPU_TIMELINE=/tmp/simgpu-node-%d.time", (int)getpid());
    const char *env[] = {report, timeline, NULL};
    struct hr_test_result r = play("SIM_SCENE=ring", env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    FILE *f = fopen(report + 14, "r");
    cr_assert_not_null(f);
    static char text[1 << 17];
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    /* 3 rounds of 1, 2 and 3 MiB from card 0 to card 1 over its first port, 23 bytes a nanosecond */
    cr_assert_not_null(strstr(text,
                              "{\"element\": 0, \"port\": 0, \"to\": 1, \"up\": true, \"gbps\": 23.000, \"copies\": 3, "
                              "\"copied_bytes\": 6291456, \"copy_ns\": 273542,"),
                       "%s", report + 14);
    f = fopen(timeline + 16, "r");
    cr_assert_not_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    cr_assert_not_null(strstr(text, "\"links\": [\n    {\"element\": 0, \"port\": 0, \"start_ns\": "));
    unlink(report + 14);
    unlink(timeline + 16);
    hr_test_result_finish(&r);
}
