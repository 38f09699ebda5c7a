/* HEADROOM_ROUTES=probe: the route that is fast takes over, whatever the links claim, and only then. */
#include "gpus.h"

#include "fabric/discover.h"
#include "fabric/machine.h"
#include "fabric/probed.h"
#include "residency/transfer.h"
#include "simgpu/node.h"

static void start(const char *description, const char *deny, const char *routes, int count)
{
    setenv("HEADROOM_ROUTES", routes, 1);
    setenv("HEADROOM_VERIFY", "off", 1); /* what links claim is believed */
    machine_with(description, deny, (1u << count) - 1);
    enable_all_peers(count);
}

/* Two buffers on two GPUs, and a stream of the first one. */
struct pair {
    int from_gpu, to_gpu;
    CUdeviceptr from, to;
    size_t bytes;
    CUstream stream;
};
static void put(const struct pair *p, uint64_t seed)
{
    uint64_t *host = malloc(p->bytes);
    fill(host, p->bytes, seed, 0);
    OK(cuCtxSetCurrent(context[p->from_gpu]));
    OK(cuMemcpyHtoD_v2(p->from, host, p->bytes));
    free(host);
}
static struct pair pair_of(int from_gpu, int to_gpu, size_t bytes, uint64_t seed)
{
    struct pair p = {.from_gpu = from_gpu, .to_gpu = to_gpu, .bytes = bytes};
    OK(cuCtxSetCurrent(context[to_gpu]));
    OK(cuMemAlloc_v2(&p.to, bytes));
    OK(cuMemsetD8_v2(p.to, 0, bytes));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[from_gpu]));
    OK(cuMemAlloc_v2(&p.from, bytes));
    OK(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
    put(&p, seed);
    return p;
}

/* One transfer of part of it, waited for. How long it took, in virtual time. */
static uint64_t transfer(const struct pair *p, size_t bytes)
{
    OK(cuCtxSetCurrent(context[p->from_gpu]));
    uint64_t start_ns = virtual_ns();
    OK(cuMemcpyPeerAsync(p->to, context[p->to_gpu], p->from, context[p->from_gpu], bytes, p->stream));
    OK(cuStreamSynchronize(p->stream));
    return virtual_ns() - start_ns;
}

static void arrived(const struct pair *p, uint64_t seed)
{
    uint64_t *host = malloc(p->bytes);
    OK(cuCtxSetCurrent(context[p->to_gpu]));
    OK(cuMemcpyDtoH_v2(host, p->to, p->bytes));
    check(host, p->bytes, seed, 0);
    free(host);
}

/* What left a card straight for another one so far. */
static uint64_t left_for(int card, int other)
{
    int (*counters)(int, int, struct sg_node_counters *) =
        (int (*)(int, int, struct sg_node_counters *))driver_symbol("sg_node_counters");
    int (*port)(int, int, struct sg_node_port *) =
        (int (*)(int, int, struct sg_node_port *))driver_symbol("sg_node_port");
    uint64_t bytes = 0;
    struct sg_node_port there;
    struct sg_node_counters c;
    for (int i = 0; port(card, i, &there) == 0; i++)
        if (there.peer_element == other && counters(card, i, &c) == 0)
            bytes += c.bytes;
    return bytes;
}

/* --- links that are not what they claim ------------------------------------------------------------------------------- */

enum { BYTES = 16 * MIB, FIRST = 20, THEN = 100 };

static char topology_path[] = "/tmp/probing-XXXXXX";

/* A topology file, and beside it that the links between GPUs 0 and 3 were worth nearly nothing. */
static void write_files(void)
{
    struct hr_topology *topology;
    char path[64];
    start("dgx1v,vram=128M,host=1G", "routers", "flow", 4);
    CHECK(hr_discover(&topology, NULL) == 0);
    char *text = hr_topology_write_xml(topology);
    FILE *f = fopen(topology_path, "we");
    CHECK(text && f && fputs(text, f) >= 0 && fclose(f) == 0);
    free(text);
    snprintf(path, sizeof path, "%s.extras", topology_path);
    f = fopen(path, "we");
    const char *a = topology->elements[topology->gpus[0]].name, *b = topology->elements[topology->gpus[3]].name;
    CHECK(f && fprintf(f, "link %s %s gbps=2\nlink %s %s gbps=2\n", a, b, b, a) > 0 && fclose(f) == 0);
    hr_topology_destroy(topology);
}

static uint64_t direct_bytes(void)
{
    return hr_stat_sum(HR_STAT_transfer_direct_bytes);
}

static void by_what_is_claimed(void)
{
    setenv("HEADROOM_TOPO", topology_path, 1);
    start("dgx1v,vram=128M,host=1G", "routers", "flow", 4);
    struct pair p = pair_of(0, 3, BYTES, 1);
    for (int i = 0; i < 3; i++)
        transfer(&p, BYTES);
    CHECK(hr_stat_sum(HR_STAT_transfers) == 3 && direct_bytes() == 0, "the file was not believed");
    arrived(&p, 1);
}

static void by_what_is_seen(void)
{
    setenv("HEADROOM_TOPO", topology_path, 1);
    start("dgx1v,vram=128M,host=1G", "routers", "probe", 4);
    struct pair p = pair_of(0, 3, BYTES, 1);
    for (int i = 0; i < FIRST; i++)
        transfer(&p, BYTES);
    uint64_t before = direct_bytes(), relayed = hr_stat_sum(HR_STAT_transfer_relayed_bytes);
    CHECK(before > 0 && relayed > 0, "not all ways were tried");
    for (int i = 0; i < THEN; i++)
        transfer(&p, BYTES);
    uint64_t direct = direct_bytes() - before;
    CHECK(direct * 10 >= (uint64_t)BYTES * THEN * 8, "%llu of %llu bytes went the fast way", (unsigned long long)direct,
          (unsigned long long)BYTES * THEN);
    CHECK(direct < (uint64_t)BYTES * THEN, "the others are never looked at again");
    CHECK(direct + hr_stat_sum(HR_STAT_transfer_relayed_bytes) - relayed == (uint64_t)BYTES * THEN);
    CHECK(hr_stat_sum(HR_STAT_route_switches) <= 2);
    arrived(&p, 1);
    CHECK(hr_lock_violations() == 0);
}

Test(probing, finds_the_fast_route_within_20_transfers_though_its_links_claim_to_be_slow, .timeout = 120)
{
    char path[64];
    int fd = mkstemp(topology_path);
    cr_assert(fd >= 0);
    close(fd);
    free(apart(write_files));
    free(apart(by_what_is_claimed));
    char *report = apart(by_what_is_seen);
    was_safe(report);
    free(report);
    snprintf(path, sizeof path, "%s.extras", topology_path);
    unlink(path);
    unlink(topology_path);
}

/* From GPU 0 to GPU 2 there is one link, and two by two over GPU 3; who measured says otherwise. */
static void over_another(void)
{
    struct hr_fabric *fabric;
    start("dgx1v,vram=128M,host=1G", "", "probe", 4);
    CHECK(hr_fabric_get(&fabric) == 0 && hr_fabric_link_measured(fabric, 0, 2, 300, 0) == 0 &&
          hr_fabric_link_measured(fabric, 0, 3, 9, 0) == 0);
    struct pair p = pair_of(0, 2, BYTES, 2);
    for (int i = 0; i < FIRST; i++)
        transfer(&p, BYTES);
    uint64_t before = left_for(3, 2);
    for (int i = 0; i < THEN; i++)
        transfer(&p, BYTES);
    uint64_t over = left_for(3, 2) - before;
    CHECK(over * 10 >= (uint64_t)BYTES * THEN * 8, "%llu of %llu bytes went the fast way", (unsigned long long)over,
          (unsigned long long)BYTES * THEN);
    arrived(&p, 2);
    CHECK(hr_lock_violations() == 0);
}
Test(probing, finds_within_20_transfers_a_relay_that_is_faster_than_the_direct_link, .timeout = 120)
{
    char *report = apart(over_another);
    was_safe(report);
    free(report);
}

/* --- routes that are as good ------------------------------------------------------------------------------------------ */

/*
 * Transfers of other sizes each time, each behind up to a twentieth of its bytes that something else sends over one of the four links that it may
 * take. Copies of at most 1 MiB are not transfers.
 */
static void as_good(void)
{
    static const int leg[4][2] = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
    struct pair noise[4];
    double least = 1e9, most = 0;
    int rounds = is_long() ? 3000 : 300;
    start("square4,vram=128M,host=1G", "", "probe", 4);
    struct pair p = pair_of(0, 3, 20 * MIB, 3);
    for (int i = 0; i < 4; i++)
        noise[i] = pair_of(leg[i][0], leg[i][1], MIB, 4);
    uint64_t before[2] = {left_for(1, 3), left_for(2, 3)}, disturbed[2] = {0, 0};
    for (int i = 0; i < rounds; i++) {
        size_t bytes = 12 * MIB + (pattern(5, (uint64_t)i) >> 20) % (8 * MIB) / 512 * 512;
        size_t other = (pattern(6, (uint64_t)i) >> 20) % (bytes / 20) / 512 * 512;
        const struct pair *n = &noise[pattern(7, (uint64_t)i) % 4];
        OK(cuCtxSetCurrent(context[n->from_gpu]));
        if (other > 0)
            OK(cuMemcpyPeerAsync(n->to, context[n->to_gpu], n->from, context[n->from_gpu], other, n->stream));
        if (n->to_gpu == 3)
            disturbed[n->from_gpu - 1] += other;
        double ns = (double)transfer(&p, bytes) / (double)bytes;
        OK(cuStreamSynchronize(n->stream));
        least = ns < least ? ns : least;
        most = ns > most ? ns : most;
    }
    CHECK(most > least * 1.04, "nothing was disturbed: %.4f to %.4f ns a byte", least, most);
    uint64_t by[2] = {left_for(1, 3) - before[0] - disturbed[0], left_for(2, 3) - before[1] - disturbed[1]};
    CHECK(by[0] > 0 && by[1] > 0, "one way was never tried");
    CHECK(hr_stat_sum(HR_STAT_route_switches) == 0, "%llu switches in %d transfers",
          (unsigned long long)hr_stat_sum(HR_STAT_route_switches), rounds);
    transfer(&p, p.bytes);
    arrived(&p, 3);
}
Test(probing, stays_with_a_route_while_others_are_as_good_up_to_noise, .timeout = 300)
{
    free(apart(as_good));
}

/* --- links that go and come back -------------------------------------------------------------------------------------- */

static void goes_and_comes_back(void)
{
    start("square4,vram=128M,host=1G", "", "probe", 4);
    int (*set_link)(int, int, bool) = (int (*)(int, int, bool))driver_symbol("sg_node_link_set");
    struct pair p = pair_of(0, 3, 8 * MIB, 8);
    for (int i = 0; i < 10; i++)
        transfer(&p, p.bytes);
    CHECK(left_for(1, 3) > 0 && left_for(2, 3) > 0);
    for (int round = 0; round < 3; round++) {
        /* Ports 0 and 1 lead to GPU 1, 2 and 3 to GPU 2. */
        int dead = round % 2 ? 2 : 1, port = dead == 1 ? 0 : 2;
        CHECK(set_link(0, port, false) == 0 && set_link(0, port + 1, false) == 0);
        uint64_t by_dead = left_for(dead, 3), by_other = left_for(3 - dead, 3);
        for (int i = 0; i < 10; i++)
            transfer(&p, p.bytes);
        CHECK(left_for(dead, 3) == by_dead && left_for(3 - dead, 3) == by_other + 10 * p.bytes);
        CHECK(set_link(0, port, true) == 0 && set_link(0, port + 1, true) == 0);
        transfer(&p, p.bytes);
        CHECK(left_for(dead, 3) == by_dead + p.bytes, "what came back is not measured first");
    }
    arrived(&p, 8);
    CHECK(hr_stat_sum(HR_STAT_route_switches) <= 3, "%llu switches",
          (unsigned long long)hr_stat_sum(HR_STAT_route_switches));
    CHECK(hr_lock_violations() == 0);
}
Test(probing, routes_whose_links_are_down_are_left_and_measured_anew, .timeout = 120)
{
    char *report = apart(goes_and_comes_back);
    was_safe(report);
    free(report);
}

/* Both links from GPU 0 to GPU 1 go under a transfer: it is made good, and later ones take the way over GPU 2. */
static void dies_under_it(void)
{
    uint64_t by_two = 0;
    setenv("SIMGPU_LINK", "fail:0.0@15000000,fail:0.1@15000000", 1);
    start("square4,vram=128M,host=1G", "", "probe", 4);
    struct pair p = pair_of(0, 3, 8 * MIB, 30);
    for (uint64_t i = 0; i < 40; i++) {
        if (i == 20) {
            CHECK(hr_stat_sum(HR_STAT_transfer_again_bytes) > 0, "no link has failed under a transfer");
            by_two = left_for(2, 3);
        }
        put(&p, 30 + i);
        transfer(&p, p.bytes);
        arrived(&p, 30 + i);
    }
    CHECK(left_for(2, 3) - by_two == 20 * 8 * MIB, "%llu bytes went the other way",
          (unsigned long long)(left_for(2, 3) - by_two));
    CHECK(hr_lock_violations() == 0);
}
Test(probing, a_link_that_dies_under_a_transfer_costs_the_job_nothing_but_time, .timeout = 120)
{
    char *report = apart(dies_under_it);
    was_safe(report);
    free(report);
}

/* --- many at once ----------------------------------------------------------------------------------------------------- */

static void *send_some(void *arg)
{
    struct pair *p = arg;
    for (int i = 0; i < 30; i++) {
        OK(cuCtxSetCurrent(context[p->from_gpu]));
        OK(cuMemcpyPeerAsync(p->to, context[p->to_gpu], p->from, context[p->from_gpu], p->bytes, p->stream));
        if (i % 5 == 4) /* so that up to five are under way */
            OK(cuStreamSynchronize(p->stream));
    }
    return NULL;
}

static void several_threads(void)
{
    static const int ends[4][2] = {{0, 3}, {3, 0}, {1, 2}, {0, 3}};
    struct pair p[4];
    pthread_t thread[4];
    start("square4,vram=128M,host=1G", "", "probe", 4);
    for (int i = 0; i < 4; i++)
        p[i] = pair_of(ends[i][0], ends[i][1], 4 * MIB, 10 + (uint64_t)i);
    uint64_t before = hr_stat_sum(HR_STAT_transfers);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, send_some, &p[i]) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++)
        arrived(&p[i], 10 + (uint64_t)i);
    CHECK(hr_stat_sum(HR_STAT_transfers) > before);
    CHECK(hr_lock_violations() == 0);
}
Test(probing, serves_several_threads_and_transfers_under_way, .timeout = 120)
{
    char *report = apart(several_threads);
    was_safe(report);
    free(report);
}

/* A machine on which nothing is to be chosen is as without the setting. */
static void one_way(void)
{
    start("h200,gpus=2,vram=128M,host=1G", "", "probe", 2);
    struct pair p = pair_of(0, 1, 8 * MIB, 20);
    transfer(&p, p.bytes);
    CHECK(hr_stat_sum(HR_STAT_transfers) == 0, "a direct copy is the driver's where there is nothing else");
    arrived(&p, 20);
}
Test(probing, leaves_the_only_way_to_the_driver, .timeout = 60)
{
    free(apart(one_way));
}
