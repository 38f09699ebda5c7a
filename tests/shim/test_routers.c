/*
 * Tables that headroom wrote into a machine's routers: requests take shortest paths, none gets lost while links go and come back, and each
 * policy uses the ports that it names.
 */
#include "gpus.h"

#include <dlfcn.h>
#include <errno.h>

#include "fabric/machine.h"
#include "fabric/routers.h"
#include "simgpu/node.h"
#include "support/sanitizer.h"

static int (*request)(int, uint64_t, uint64_t, bool, void *, struct sg_node_trace *);
static int (*counters)(int, int, struct sg_node_counters *);
static int (*set_link)(int, int, bool);
static struct hr_fabric *fabric;

static void start(const char *description)
{
    machine(description, "");
    *(void **)&request = driver_symbol("sg_node_request");
    *(void **)&counters = driver_symbol("sg_node_counters");
    *(void **)&set_link = driver_symbol("sg_node_link_set");
    CHECK(hr_fabric_get(&fabric) == 0);
}

/* --- shortest paths --------------------------------------------------------------------------------------------------- */

#define MOST 16
#define VRAM (UINT64_C(256) << 20) /* equal sizes that are powers of two lie one behind another */
static uint32_t cards;
static int distance[MOST][MOST]; /* in links, by the links that are up; counted here, not by the code under test */

static void count_links(void)
{
    int (*port)(int, int, struct sg_node_port *) =
        (int (*)(int, int, struct sg_node_port *))driver_symbol("sg_node_port");
    int (*element)(int, struct sg_node_element *) =
        (int (*)(int, struct sg_node_element *))driver_symbol("sg_node_element");
    int n = ((int (*)(void))driver_symbol("sg_node_elements"))(), d[64][64] = {{0}};
    CHECK(n <= 64);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++)
            d[a][b] = a == b ? 0 : 1000;
    for (int a = 0; a < n; a++) {
        struct sg_node_element e, far;
        struct sg_node_port p;
        CHECK(element(a, &e) == 0);
        for (int i = 0; i < (int)e.ports; i++) {
            if (port(a, i, &p) != 0 || p.peer_element < 0 || !p.up || e.kind >= SG_ELEMENT_BRIDGE ||
                element(p.peer_element, &far) != 0 || far.kind >= SG_ELEMENT_BRIDGE)
                continue;
            d[a][p.peer_element] = 1;
        }
    }
    for (int k = 0; k < n; k++)
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                d[a][b] = d[a][k] + d[k][b] < d[a][b] ? d[a][k] + d[k][b] : d[a][b];
    for (uint32_t a = 0; a < cards; a++)
        for (uint32_t b = 0; b < cards; b++)
            distance[a][b] = d[a][b];
}

/* One random request: its card, address and size. One in eight crosses from one card's range into the next. */
struct asked {
    uint32_t card, first, last;
    uint64_t address, bytes;
};
static struct asked random_request(uint64_t seed, uint64_t i)
{
    uint64_t x = pattern(seed, i), y = pattern(seed + 1, i);
    struct asked q = {.card = (uint32_t)(x % cards), .first = (uint32_t)(x >> 8 & 0xffff) % cards};
    q.bytes = 1 + (x >> 24) % 8192;
    q.address = q.first * VRAM + (y >> 8) % (VRAM - 8192);
    q.last = q.first;
    if (y % 8 == 0 && q.first + 1 < cards && q.bytes > 1) {
        q.last = q.first + 1;
        q.address = q.last * VRAM - q.bytes / 2;
    }
    return q;
}

static uint64_t how_many(void)
{
    return is_long() ? 1000000 : SANITIZED ? 30000 : 300000; /* of which all bodies make a few times as many */
}

static void check_stable(uint64_t seed, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        struct asked q = random_request(seed, i);
        struct sg_node_trace trace;
        int rc = request((int)q.card, q.address, q.bytes, i % 2, NULL, &trace);
        int first = distance[q.card][q.first], last = distance[q.card][q.last];
        CHECK(rc == 0 && trace.served_bytes == q.bytes, "request %llu: %d", (unsigned long long)i, rc);
        CHECK(trace.first_owner == (int)q.first && trace.last_owner == (int)q.last);
        CHECK((int)trace.hops == (first > last ? first : last), "from %u to %u and %u: %u hops", q.card, q.first,
              q.last, trace.hops);
    }
}

struct asker {
    uint64_t seed, count, refused;
    _Atomic(bool) *stop;
};
/* A link that has gone before the tables say so refuses a request, and whoever made it makes it again. Nothing else may happen. */
static void *ask(void *arg)
{
    struct asker *asker = arg;
    for (uint64_t i = 0; i < asker->count || !*asker->stop; i++) {
        struct asked q = random_request(asker->seed, i);
        struct sg_node_trace trace;
        int rc;
        while ((rc = request((int)q.card, q.address, q.bytes, i % 2, NULL, &trace)) == -ENETDOWN)
            asker->refused++;
        CHECK(rc == 0 && trace.served_bytes == q.bytes, "from %u to %u: %d after %u hops", q.card, q.first, rc,
              trace.hops);
        CHECK(trace.first_owner == (int)q.first && trace.last_owner == (int)q.last);
    }
    return NULL;
}

/* Links of single cards that leave the machine in one piece, whichever of them is down. */
static void shaken(const int (*links)[2], unsigned link_count, unsigned rounds)
{
    _Atomic(bool) stop = false;
    struct asker asker[2];
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        asker[i] = (struct asker){.seed = 50 + 10 * (uint64_t)i, .count = how_many() / 4, .stop = &stop};
        CHECK(pthread_create(&thread[i], NULL, ask, &asker[i]) == 0);
    }
    for (unsigned i = 0; i < (SANITIZED && !is_long() ? rounds / 5 : rounds); i++) {
        const int *a = links[pattern(3, i) % link_count];
        CHECK(set_link(a[0], a[1], false) == 0);
        hr_fabric_refresh(fabric);
        CHECK(set_link(a[0], a[1], true) == 0);
        hr_fabric_refresh(fabric);
    }
    stop = true;
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

static void cubes(void)
{
    static const int links[][2] = {{0, 0}, {0, 1}, {1, 3}, {2, 3}, {4, 2}, {5, 3}, {3, 4}, {7, 0}};
    start("dgx1v,vram=256M,host=1G");
    cards = 8;
    count_links();
    check_stable(1, how_many());
    shaken(links, 8, is_long() ? 2000 : 200);
    count_links();
    check_stable(2, how_many() / 10);
    /* With a link gone for good paths are longer, and shortest again. */
    CHECK(set_link(0, 0, false) == 0 && set_link(0, 1, false) == 0 && hr_fabric_refresh(fabric));
    count_links();
    CHECK(distance[0][1] == 2 && distance[0][2] == 2);
    check_stable(3, how_many() / 10);
}
static void a_chain(void)
{
    static const int links[][2] = {{0, 0}, {3, 2}, {7, 1}, {12, 3}}; /* one of two each */
    start("chain16,vram=256M,host=1G");
    cards = 16;
    count_links();
    CHECK(distance[0][15] == 15);
    check_stable(4, how_many() / 4);
    shaken(links, 4, is_long() ? 500 : 50);
}
static void switches(void)
{
    static const int links[][2] = {{0, 0}, {1, 5}, {2, 17}, {3, 9}};
    start("hgx-h100,vram=256M,host=1G");
    cards = 8;
    count_links();
    check_stable(5, how_many() / 4);
    shaken(links, 4, is_long() ? 500 : 50);
}
static void a_square(void)
{
    static const int links[][2] = {{0, 0}, {0, 1}, {1, 2}, {3, 0}};
    start("square4,vram=256M,host=1G");
    cards = 4;
    count_links();
    check_stable(6, how_many() / 4);
    shaken(links, 4, is_long() ? 1000 : 100);
}

Test(routers, requests_take_shortest_paths_and_none_is_lost_while_links_go_and_come_back, .timeout = 300)
{
    void (*const bodies[])(void) = {cubes, a_chain, switches, a_square};
    for (int i = 0; i < 4; i++)
        free(apart(bodies[i]));
}

/* --- swapping one router after the other -------------------------------------------------------------------------------- */

static int (*write_table)(int, const void *, uint32_t);
static unsigned writes;
static bool looks;      /* the routers have what they were given, and nothing older */
static bool links_gone; /* what is written now answers links that have gone */

/* After each single router's new table requests from everywhere to everywhere arrive. */
static int write_and_look(int element, const void *routes, uint32_t count)
{
    int rc = write_table(element, routes, count);
    struct sg_node_trace trace;
    writes++;
    for (uint32_t a = 0; looks && a < cards; a++) {
        for (uint32_t b = 0; b < cards; b++) {
            int sent = request((int)a, b * VRAM, 4096, true, NULL, &trace);
            CHECK(sent == 0 || (links_gone && sent == -ENETDOWN), "from %u to %u after write %u: %d", a, b, writes,
                  sent);
        }
    }
    return rc;
}

static void *with_a_look(const char *name, void *arg)
{
    void *symbol = dlsym(arg, name);
    if (strcmp(name, "sg_node_write_table") != 0)
        return symbol;
    *(void **)&write_table = symbol;
    int (*mine)(int, const void *, uint32_t) = write_and_look;
    return *(void **)&mine;
}

static int publish(struct hr_routers *routers)
{
    struct hr_tables_options options = {.policy = HR_PORTS_ALL};
    struct hr_topology *topology = NULL;
    int rc = hr_routers_read(routers, &topology);
    if (rc == 0)
        rc = hr_routers_publish(routers, topology, &options);
    hr_topology_destroy(topology);
    return rc;
}

static void swapped(const char *description, uint32_t count, const int (*links)[2], unsigned link_count)
{
    struct hr_routers *routers;
    start(description);
    cards = count;
    CHECK(hr_routers_open(with_a_look, dlopen(hr_driver_path(), RTLD_LAZY | RTLD_NOLOAD), &routers) == 0);
    CHECK(publish(routers) == 0);
    unsigned first = writes;
    looks = true;
    unsigned rounds = is_long() ? 400 : SANITIZED ? 8 : 40;
    for (unsigned i = 0; i < rounds; i++) {
        unsigned down = (unsigned)(pattern(9, i) % link_count);
        links_gone = true;
        for (int p = 0; p < 2; p++)
            CHECK(set_link(links[down][0], links[down][1] + p, false) == 0);
        CHECK(publish(routers) == 0);
        links_gone = false;
        for (int p = 0; p < 2; p++)
            CHECK(set_link(links[down][0], links[down][1] + p, true) == 0);
        CHECK(publish(routers) == 0);
    }
    CHECK(writes > first + 2 * rounds, "%u writes", writes);
    hr_routers_close(routers);
}

/* Without both its links between two neighbours a ring is a chain: half of the ways turn round. */
static void a_ring(void)
{
    static const int links[][2] = {{0, 0}, {1, 2}, {2, 2}};
    swapped("ring4,vram=256M,host=1G", 4, links, 3);
}
static void bonds(void)
{
    static const int links[][2] = {{0, 2}, {0, 4}, {1, 1}, {5, 3}};
    swapped("dgx1v,vram=256M,host=1G", 8, links, 4);
}

Test(routers, at_no_moment_of_a_swap_do_requests_go_in_circles, .timeout = 120)
{
    free(apart(a_ring));
    free(apart(bonds));
}

/* --- ports ------------------------------------------------------------------------------------------------------------ */

enum { REQUESTS = 64, BYTES = 4096 };
static struct sg_node_counters port_of(int port)
{
    struct sg_node_counters c;
    CHECK(counters(0, port, &c) == 0);
    return c;
}

/* What left GPU 0 by each of its four ports, for requests to GPU 3 at each of `REQUESTS` parts of 2 MiB, or at every fourth. */
static void send(unsigned step, uint64_t bytes_out[4], uint64_t requests_out[4])
{
    struct sg_node_counters before[4];
    struct sg_node_trace trace;
    for (int p = 0; p < 4; p++)
        before[p] = port_of(p);
    for (unsigned i = 0; i < REQUESTS; i += step)
        CHECK(request(0, 3 * VRAM + (uint64_t)i * 2 * MIB, BYTES, true, NULL, &trace) == 0 && trace.hops == 2 &&
              trace.first_owner == 3);
    for (int p = 0; p < 4; p++) {
        bytes_out[p] = port_of(p).bytes - before[p].bytes;
        requests_out[p] = port_of(p).requests - before[p].requests;
    }
}

static void ports_are_chosen(void)
{
    const char *given = getenv("HEADROOM_PORTS"), *ports = given ? given : "";
    uint64_t bytes[4], requests[4];
    unsigned used = 0;
    start("square4,vram=256M,host=1G");
    send(1, bytes, requests);
    for (int p = 0; p < 4; p++) {
        used += bytes[p] > 0;
        if (strcmp(ports, "any") == 0)
            CHECK(bytes[p] == 0 || bytes[p] == REQUESTS * BYTES);
        else
            CHECK(bytes[p] == REQUESTS * BYTES / 4, "%s: port %d had %llu bytes", ports, p,
                  (unsigned long long)bytes[p]);
        if (strcmp(ports, "all") == 0) /* a part of each request */
            CHECK(requests[p] == REQUESTS);
        else if (strcmp(ports, "any") != 0) /* whole requests */
            CHECK(requests[p] == REQUESTS / 4);
    }
    CHECK(used == (strcmp(ports, "any") == 0 ? 1 : 4));
    /* Addresses of one part in four: where the address decides they have a port of their own. */
    send(4, bytes, requests);
    used = 0;
    for (int p = 0; p < 4; p++)
        used += bytes[p] > 0;
    CHECK(used == (strcmp(ports, "any") == 0 || strcmp(ports, "address") == 0 ? 1 : 4), "%s: %u ports", ports, used);
    /* The way over GPU 1 goes; what is written anew knows it. */
    CHECK(set_link(1, 2, false) == 0 && set_link(1, 3, false) == 0);
    CHECK(hr_fabric_refresh(fabric) && !hr_fabric_refresh(fabric));
    send(1, bytes, requests);
    CHECK(bytes[0] + bytes[1] == 0 && bytes[2] + bytes[3] == REQUESTS * BYTES);
    struct sg_node_trace trace;
    CHECK(request(0, VRAM, BYTES, false, NULL, &trace) == 0 && trace.first_owner == 1 && trace.hops == 1);
}

Test(routers, each_policy_uses_the_ports_that_it_names, .timeout = 60)
{
    static const char *const choices[] = {"any", "roundrobin", "all", "address"};
    for (int i = 0; i < 4; i++) {
        setenv("HEADROOM_PORTS", choices[i], 1);
        free(apart(ports_are_chosen));
    }
}
