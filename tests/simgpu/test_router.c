/* Routers by themselves: every request is served at the right card over the path that the tables say, or refused; never lost. */
#include "simgpu/router.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES UINT64_C(4096) /* of a card's memory, where there is any */
#define MOST_CARDS 16

static uint8_t memory[MOST_CARDS][BYTES];
static char last_line[256];
static atomic_uint lines;

static int serve(void *context, uint32_t owner, uint64_t offset, uint64_t bytes, bool write, void *data)
{
    (void)context;
    if (owner >= MOST_CARDS || offset > BYTES || bytes > BYTES - offset)
        return -EFAULT;
    if (data && write)
        memcpy(&memory[owner][offset], data, bytes);
    else if (data)
        memcpy(data, &memory[owner][offset], bytes);
    return 0;
}

static void keep_line(const char *line)
{
    snprintf(last_line, sizeof last_line, "%s", line);
    atomic_fetch_add(&lines, 1);
}

static struct sg_router *net(uint32_t elements, uint32_t ports)
{
    uint32_t all[64];
    for (uint32_t i = 0; i < elements; i++)
        all[i] = ports;
    struct sg_router *r =
        sg_router_create(elements, all, &(struct sg_router_options){.serve = serve, .log = keep_line});
    cr_assert_not_null(r);
    return r;
}

static void ranges(struct sg_router *r, uint32_t elements, uint32_t cards)
{
    struct sg_node_range at[MOST_CARDS];
    for (uint32_t i = 0; i < cards; i++)
        at[i] = (struct sg_node_range){.base = i * BYTES, .bytes = BYTES, .owner = i};
    for (uint32_t e = 0; e < elements; e++)
        cr_assert_eq(sg_router_write_ranges(r, (int)e, at, cards), 0);
}

/* A line of cards: port 0 to the left, port 1 to the right. */
static struct sg_router *chain(uint32_t cards)
{
    struct sg_router *r = net(cards, 2);
    for (uint32_t i = 0; i + 1 < cards; i++)
        cr_assert_eq(sg_router_connect(r, (int)i, 1, (int)i + 1, 0, 25, 500), 0);
    ranges(r, cards, cards);
    for (uint32_t e = 0; e < cards; e++) {
        struct sg_node_route routes[MOST_CARDS];
        uint32_t n = 0;
        for (uint32_t o = 0; o < cards; o++)
            if (o != e)
                routes[n++] = (struct sg_node_route){.owner = o, .port_count = 1, .port = {o > e}};
        cr_assert_eq(sg_router_write_table(r, (int)e, routes, n), 0);
    }
    return r;
}

static int ask(struct sg_router *r, uint32_t card, uint64_t address, uint64_t bytes, bool write, void *data,
               struct sg_node_trace *trace)
{
    struct sg_router_request q = {.element = card, .address = address, .bytes = bytes, .write = write, .data = data};
    q.turn = SG_ROUTER_OWN_TURN;
    return sg_router_send(r, &q, trace);
}

static struct sg_node_counters counters(struct sg_router *r, int element, int port)
{
    struct sg_node_counters c;
    cr_assert_eq(sg_router_counters(r, element, port, &c), 0);
    return c;
}

Test(router, data_is_right_over_fifteen_hops)
{
    struct sg_router *r = chain(16);
    struct sg_node_trace t;
    uint8_t out[1000], in[1000];
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)(i * 7);
    cr_assert_eq(ask(r, 0, 15 * BYTES + 96, sizeof out, true, out, &t), 0);
    cr_assert_eq(t.hops, 15);
    cr_assert_eq(t.pieces, 1);
    cr_assert(t.first_owner == 15 && t.last_owner == 15 && t.refused_at == -1);
    cr_assert_eq(t.time_ns, 15 * 500 + 1000 / 25);
    cr_assert_eq(memcmp(&memory[15][96], out, sizeof out), 0);
    cr_assert_eq(ask(r, 3, 15 * BYTES + 96, sizeof in, false, in, &t), 0);
    cr_assert_eq(t.hops, 12);
    cr_assert_eq(memcmp(in, out, sizeof in), 0);
    cr_assert_eq(counters(r, 7, 1).forwarded_bytes, 2 * sizeof out);
    cr_assert_eq(counters(r, 7, 0).bytes, 0);
    cr_assert_eq(counters(r, 15, 0).served_bytes, 2 * sizeof out);
    cr_assert_eq(counters(r, 0, -1).requests, 1);
    cr_assert_eq(counters(r, 3, 1).forwarded_bytes, sizeof out);
    cr_assert_eq(counters(r, 3, -1).forwarded_bytes, sizeof out);
    sg_router_destroy(r);
}

Test(router, what_crosses_ranges_is_cut)
{
    struct sg_router *r = net(4, 2);
    struct sg_node_trace t;
    uint8_t out[2 * BYTES], in[2 * BYTES];
    /* Unequal sizes, with a gap; the routers of a star around card 0. */
    struct sg_node_range at[] = {{3000, 500, 3}, {1000, 100, 1}, {0, 1000, 0}, {1100, 1500, 2}};
    for (int e = 0; e < 4; e++)
        cr_assert_eq(sg_router_write_ranges(r, e, at, 4), 0);
    cr_assert_eq(sg_router_connect(r, 0, 0, 1, 0, 25, 500), 0);
    cr_assert_eq(sg_router_connect(r, 0, 1, 2, 0, 25, 500), 0);
    struct sg_node_route from_0[] = {{.owner = 1, .port_count = 1, .port = {0}},
                                     {.owner = 2, .port_count = 1, .port = {1}}};
    struct sg_node_route from_1[] = {{.owner = 0, .port_count = 1}, {.owner = 2, .port_count = 1}};
    cr_assert_eq(sg_router_write_table(r, 0, from_0, 2), 0);
    cr_assert_eq(sg_router_write_table(r, 1, from_1, 2), 0);
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)(i * 13 + 1);
    cr_assert_eq(ask(r, 1, 900, 1700, true, out, &t), 0);
    cr_assert_eq(t.pieces, 3);
    cr_assert_eq(t.hops, 2);
    cr_assert_eq(t.hop_total, 1 + 0 + 2);
    cr_assert(t.first_owner == 0 && t.last_owner == 2);
    cr_assert_eq(memcmp(&memory[0][900], out, 100), 0);
    cr_assert_eq(memcmp(&memory[1][0], out + 100, 100), 0);
    cr_assert_eq(memcmp(&memory[2][0], out + 200, 1500), 0);
    cr_assert_eq(ask(r, 0, 900, 1700, false, in, &t), 0);
    cr_assert_eq(memcmp(in, out, 1700), 0);
    /* Into the gap: what lies before it is served. */
    cr_assert_eq(ask(r, 0, 2500, 200, false, in, &t), -EFAULT);
    cr_assert(t.served_bytes == 100 && t.first_owner == 2 && t.last_owner == -1 && t.refused_at == 0);
    sg_router_destroy(r);
}

/* Two cards with four links. */
static struct sg_router *pair(const struct sg_node_route *route)
{
    struct sg_router *r = net(2, 4);
    for (int p = 0; p < 4; p++)
        cr_assert_eq(sg_router_connect(r, 0, p, 1, 3 - p, 25, 500), 0);
    ranges(r, 2, 2);
    cr_assert_eq(sg_router_write_table(r, 0, route, 1), 0);
    return r;
}

static void left_by(struct sg_router *r, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t expected[] = {a, b, c, d};
    for (int p = 0; p < 4; p++)
        cr_assert_eq(counters(r, 0, p).bytes, expected[p], "port %d: %llu bytes", p,
                     (unsigned long long)counters(r, 0, p).bytes);
}

Test(router, any_takes_one_port)
{
    struct sg_router *r =
        pair(&(struct sg_node_route){.owner = 1, .policy = SG_PORT_ANY, .port_count = 3, .port = {2, 1, 0}});
    for (int i = 0; i < 10; i++)
        cr_assert_eq(ask(r, 0, BYTES, 100, false, NULL, NULL), 0);
    left_by(r, 0, 0, 1000, 0);
    cr_assert_eq(sg_router_link_set(r, 1, 1, false), 0); /* the other end of port 2 */
    cr_assert_eq(ask(r, 0, BYTES, 100, false, NULL, NULL), 0);
    left_by(r, 0, 100, 1000, 0);
    sg_router_destroy(r);
}

Test(router, round_robin_takes_turns_by_weight)
{
    struct sg_router *r =
        pair(&(struct sg_node_route){.owner = 1, .policy = SG_PORT_ROUND_ROBIN, .port_count = 4, .port = {0, 1, 2, 3}});
    for (int i = 0; i < 40; i++)
        cr_assert_eq(ask(r, 0, BYTES, 100, false, NULL, NULL), 0);
    left_by(r, 1000, 1000, 1000, 1000);
    sg_router_destroy(r);
    r = pair(&(struct sg_node_route){
        .owner = 1, .policy = SG_PORT_ROUND_ROBIN, .port_count = 3, .port = {0, 1, 3}, .weight = {5, 3, 2}});
    for (int i = 0; i < 40; i++)
        cr_assert_eq(ask(r, 0, BYTES, 100, false, NULL, NULL), 0);
    left_by(r, 2000, 1200, 0, 800);
    sg_router_destroy(r);
}

Test(router, all_spreads_each_request_by_weight)
{
    struct sg_router *r =
        pair(&(struct sg_node_route){.owner = 1, .policy = SG_PORT_ALL, .port_count = 4, .port = {0, 1, 2, 3}});
    struct sg_node_trace t;
    uint8_t out[BYTES], in[BYTES];
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)(i * 11);
    cr_assert_eq(ask(r, 0, BYTES, BYTES, true, out, &t), 0);
    cr_assert_eq(t.pieces, 4);
    cr_assert(t.first_owner == 1 && t.last_owner == 1);
    cr_assert_eq(memcmp(memory[1], out, BYTES), 0);
    left_by(r, 1024, 1024, 1024, 1024);
    cr_assert_eq(sg_router_link_set(r, 0, 1, false), 0);
    cr_assert_eq(ask(r, 0, BYTES + 1, 192, false, in, &t), 0);
    cr_assert_eq(memcmp(in, out + 1, 192), 0);
    left_by(r, 1088, 1024, 1088, 1088);
    sg_router_destroy(r);
    r = pair(
        &(struct sg_node_route){.owner = 1, .policy = SG_PORT_ALL, .port_count = 2, .port = {0, 3}, .weight = {3, 1}});
    cr_assert_eq(ask(r, 0, BYTES, BYTES, true, out, NULL), 0);
    left_by(r, 3072, 0, 0, 1024);
    cr_assert_eq(ask(r, 0, BYTES, 8, true, out, NULL), 0); /* too small to be spread */
    left_by(r, 3072, 0, 0, 1032);
    sg_router_destroy(r);
}

Test(router, a_route_may_have_more_ports_than_a_struct)
{
    struct sg_router *r = net(2, 20);
    struct sg_node_route rows[2] = {{.owner = 1, .policy = SG_PORT_ALL, .port_count = 16},
                                    {.owner = 1, .policy = SG_PORT_ALL, .port_count = 2, .more = 1}};
    for (int p = 0; p < 18; p++) {
        cr_assert_eq(sg_router_connect(r, 0, p, 1, p, 25, 500), 0);
        rows[p / 16].port[p % 16] = (uint8_t)p;
    }
    ranges(r, 2, 2);
    cr_assert_eq(sg_router_write_table(r, 0, rows, 2), 0);
    cr_assert_eq(ask(r, 0, BYTES, 18 * 64, false, NULL, NULL), 0);
    for (int p = 0; p < 18; p++)
        cr_assert_eq(counters(r, 0, p).bytes, 64, "port %d", p);
    cr_assert_eq(sg_router_write_table(r, 0, rows + 1, 1), -EINVAL); /* of nothing before it */
    rows[1].policy = SG_PORT_ANY;
    cr_assert_eq(sg_router_write_table(r, 0, rows, 2), -EINVAL);
    sg_router_destroy(r);
}

Test(router, each_port_owns_its_part_of_the_addresses)
{
    struct sg_router *r = pair(&(struct sg_node_route){
        .owner = 1, .policy = SG_PORT_BY_ADDRESS, .port_count = 4, .port = {0, 1, 2, 3}, .address_shift = 8});
    struct sg_node_trace t;
    cr_assert_eq(ask(r, 0, BYTES, 256, false, NULL, &t), 0); /* 4096 >> 8 is a multiple of 4 */
    cr_assert_eq(t.pieces, 1);
    left_by(r, 256, 0, 0, 0);
    cr_assert_eq(ask(r, 0, BYTES + 200, 400, false, NULL, &t), 0);
    cr_assert_eq(t.pieces, 3);
    left_by(r, 256 + 56, 256, 88, 0);
    sg_router_destroy(r);
}

Test(router, what_cannot_go_on_is_refused_and_says_so)
{
    struct sg_router *r = chain(4);
    struct sg_node_trace t;
    struct sg_node_route back = {.owner = 3, .port_count = 1, .port = {0}};
    cr_assert_eq(ask(r, 0, 4 * BYTES, 1, false, NULL, &t), -EFAULT);
    cr_assert_not_null(strstr(last_line, "nobody's memory"), "%s", last_line);
    cr_assert_eq(sg_router_write_table(r, 2, &back, 1), 0); /* element 1 sends it right, 2 sends it left */
    cr_assert_eq(ask(r, 0, 3 * BYTES, 1, false, NULL, &t), -ELOOP);
    cr_assert_not_null(strstr(last_line, "circles"), "%s", last_line);
    cr_assert_eq(t.hops, 9);
    cr_assert_eq(sg_router_write_table(r, 2, NULL, 0), 0);
    cr_assert_eq(ask(r, 0, 3 * BYTES, 1, false, NULL, &t), -EHOSTUNREACH);
    cr_assert_eq(t.refused_at, 2);
    cr_assert_not_null(strstr(last_line, "element 2 refuses a read of 1 bytes"), "%s", last_line);
    cr_assert_not_null(strstr(last_line, "no route to owner 3"), "%s", last_line);
    cr_assert_eq(sg_router_link_set(r, 1, 1, false), 0);
    cr_assert_eq(ask(r, 0, 3 * BYTES, 1, false, NULL, &t), -ENETDOWN);
    cr_assert_not_null(strstr(last_line, "are down"), "%s", last_line);
    cr_assert_eq(t.refused_at, 1);
    cr_assert_eq(counters(r, 1, -1).refused, 2); /* the request in circles ended there, too */
    for (int i = 0; i < 100; i++)
        cr_assert_eq(ask(r, 0, 3 * BYTES, 1, false, NULL, &t), -ENETDOWN);
    cr_assert_lt(atomic_load(&lines), 30); /* not a line for each */
    sg_router_destroy(r);
}

Test(router, what_makes_no_sense_is_not_written)
{
    struct sg_router *r = chain(4);
    struct sg_node_range overlapping[] = {{0, 100, 0}, {99, 10, 1}}, empty = {0, 0, 0}, nobody = {0, 1, 4};
    struct sg_node_range beyond = {(UINT64_C(1) << 48) - 1, 2, 1};
    struct sg_node_route twice[] = {{.owner = 1, .port_count = 1}, {.owner = 1, .port_count = 1}};
    struct sg_node_route self = {.owner = 0, .port_count = 1}, no_port = {.owner = 1},
                         bad_port = {.owner = 1, .port_count = 1, .port = {2}};
    struct sg_node_port p;
    cr_assert_eq(sg_router_write_ranges(r, 0, overlapping, 2), -EINVAL);
    cr_assert_eq(sg_router_write_ranges(r, 0, &empty, 1), -EINVAL);
    cr_assert_eq(sg_router_write_ranges(r, 0, &nobody, 1), -EINVAL);
    cr_assert_eq(sg_router_write_ranges(r, 0, &beyond, 1), -EINVAL);
    cr_assert_eq(sg_router_write_ranges(r, 4, overlapping, 1), -EINVAL);
    cr_assert_eq(sg_router_write_table(r, 0, twice, 2), -EINVAL);
    cr_assert_eq(sg_router_write_table(r, 0, &self, 1), -EINVAL);
    cr_assert_eq(sg_router_write_table(r, 0, &no_port, 1), -EINVAL);
    cr_assert_eq(sg_router_write_table(r, 0, &bad_port, 1), -EINVAL);
    cr_assert_eq(sg_router_port(r, 0, 2, &p), -EINVAL);
    cr_assert_eq(sg_router_link_set(r, 0, 0, false), -EINVAL); /* the end of the chain */
    cr_assert_eq(sg_router_port(r, 0, 0, &p), 0);
    cr_assert(p.peer_element == -1 && !p.up);
    cr_assert_eq(sg_router_connect(r, 0, 1, 2, 0, 25, 500), -EINVAL); /* taken */
    cr_assert_eq(ask(r, 0, 3 * BYTES, 1, false, NULL, NULL), 0);      /* what was there still is */
    sg_router_destroy(r);
}

Test(router, a_link_fails_at_its_byte)
{
    struct sg_router *r =
        pair(&(struct sg_node_route){.owner = 1, .policy = SG_PORT_ANY, .port_count = 2, .port = {3, 0}});
    struct sg_node_trace t;
    uint8_t out[BYTES];
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)(i * 5 + 3);
    memset(memory[1], 0, BYTES);
    uint64_t epoch = sg_router_epoch(r);
    cr_assert_eq(sg_router_fail_after(r, 0, 3, 1500), 0);
    cr_assert_eq(ask(r, 0, BYTES, 1000, true, out, &t), 0);
    cr_assert_eq(sg_router_wait(r, epoch, 1), -ETIMEDOUT);
    cr_assert_eq(ask(r, 0, BYTES + 1000, 1000, true, out + 1000, &t), 0);
    cr_assert_eq(t.pieces, 2);
    left_by(r, 500, 0, 0, 1500);
    cr_assert_eq(memcmp(memory[1], out, 2000), 0);
    cr_assert_eq(sg_router_wait(r, epoch, UINT64_MAX), 0);
    cr_assert_eq(sg_router_epoch(r), epoch + 1);
    cr_assert_eq(sg_router_link_set(r, 0, 3, true), 0);
    cr_assert_eq(ask(r, 0, BYTES, BYTES, true, out, &t), 0); /* it does not fail again */
    left_by(r, 500, 0, 0, 1500 + BYTES);
    sg_router_destroy(r);
}

/* ---- while tables are swapped and links go ---- */

#define RING 6
static atomic_bool over;
static atomic_ullong served, retried;

/* A ring; port 0 to the left, 1 to the right. The route to each owner goes right, or left past the broken link. */
static void ring_tables(struct sg_router *r, uint32_t broken)
{
    for (uint32_t e = 0; e < RING; e++) {
        struct sg_node_route routes[RING];
        uint32_t n = 0;
        for (uint32_t right = 1; right < RING; right++) {
            bool blocked = broken < RING && (broken + RING - e) % RING < right; /* link i is right of i */
            routes[n++] = (struct sg_node_route){.owner = (e + right) % RING, .port_count = 1, .port = {!blocked}};
        }
        cr_assert_eq(sg_router_write_table(r, (int)e, routes, n), 0);
    }
}

static void *ring_traffic(void *arg)
{
    struct sg_router *r = arg;
    uint64_t random = (uint64_t)(uintptr_t)&random;
    while (!atomic_load(&over)) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint32_t card = (uint32_t)(random >> 33) % RING;
        uint64_t address = (random >> 13) % ((RING - 1) * BYTES), bytes = 1 + (random >> 40) % 5000;
        struct sg_node_trace t;
        int bad = ask(r, card, address, bytes < BYTES ? bytes : BYTES, false, NULL, &t);
        /* Told, or served to the last byte. */
        cr_assert(bad ? bad == -ENETDOWN || bad == -ELOOP : t.served_bytes == (bytes < BYTES ? bytes : BYTES));
        cr_assert(!bad || t.refused_at >= 0);
        atomic_fetch_add(bad ? &retried : &served, 1);
    }
    return NULL;
}

Test(router, nothing_is_lost_while_links_go_and_tables_are_swapped, .timeout = 60)
{
    struct sg_router *r = net(RING, 2);
    for (int i = 0; i < RING; i++)
        cr_assert_eq(sg_router_connect(r, i, 1, (i + 1) % RING, 0, 25, 500), 0);
    ranges(r, RING, RING);
    ring_tables(r, RING);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, ring_traffic, r), 0);
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t before = atomic_load(&served);
        uint32_t link = i % RING;
        cr_assert_eq(sg_router_link_set(r, (int)link, 1, false), 0);
        ring_tables(r, link);
        ranges(r, RING, RING);
        while (atomic_load(&served) < before + 5) /* with the new tables everything gets through */
            sched_yield();
        cr_assert_eq(sg_router_link_set(r, (int)link, 1, true), 0);
        if (i % 3 == 0)
            ring_tables(r, RING);
    }
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert_geq(atomic_load(&served), 1500);
    cr_assert_eq(sg_router_epoch(r), 600);
    sg_router_destroy(r);
}

/* ---- many cards ---- */

/* A torus of side^3 cards: ports 2d and 2d + 1 lead down and up in dimension d. */
static uint32_t neighbour(uint32_t side, uint32_t card, unsigned port)
{
    uint32_t unit = port / 2 == 0 ? 1 : port / 2 == 1 ? side : side * side, at = card / unit % side;
    return card + (port & 1 ? (at + 1) % side : (at + side - 1) % side) * unit - at * unit;
}

static uint32_t distance(uint32_t side, uint32_t a, uint32_t b, unsigned *port_out)
{
    uint32_t sum = 0, unit = side * side;
    for (int d = 2; d >= 0; d--, unit /= side) {
        uint32_t up = (b / unit % side + side - a / unit % side) % side, down = (side - up) % side;
        if (up)
            *port_out = (unsigned)(2 * d) + (up <= down);
        sum += up < down ? up : down;
    }
    return sum;
}

Test(router, thousands_of_cards_are_reached_by_the_shortest_path, .timeout = 60)
{
    uint32_t side = getenv("HEADROOM_TEST_LONG") ? 16 : 8, cards = side * side * side;
    uint64_t each = UINT64_C(1) << 36; /* 64 GiB */
    uint32_t *ports = malloc(cards * sizeof *ports);
    struct sg_node_range *at = calloc(cards, sizeof *at);
    struct sg_node_route *routes = calloc(cards, sizeof *routes);
    cr_assert(ports && at && routes);
    for (uint32_t i = 0; i < cards; i++) {
        ports[i] = 6;
        at[i] = (struct sg_node_range){i * each, each, i};
    }
    struct sg_router *r = sg_router_create(cards, ports, NULL);
    cr_assert_not_null(r);
    for (uint32_t i = 0; i < cards; i++) {
        for (unsigned p = 1; p < 6; p += 2)
            cr_assert_eq(sg_router_connect(r, (int)i, (int)p, (int)neighbour(side, i, p), (int)p - 1, 50, 500), 0);
        uint32_t n = 0;
        for (uint32_t o = 0; o < cards; o++) {
            unsigned port = 0;
            if (distance(side, i, o, &port))
                routes[n++] = (struct sg_node_route){.owner = o, .port_count = 1, .port = {(uint8_t)port}};
        }
        cr_assert_eq(sg_router_write_ranges(r, (int)i, at, cards), 0);
        cr_assert_eq(sg_router_write_table(r, (int)i, routes, n), 0);
    }
    cr_assert_leq(sg_router_memory(r), cards * (2 * (size_t)cards + 2048) + cards * sizeof *at + 4096);
    uint64_t random = 1, crossing = 0;
    for (int i = 0; i < 20000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint32_t from = (uint32_t)(random >> 33) % cards, to = (uint32_t)(random >> 21) % cards;
        bool cross = i % 10 == 0 && to + 1 < cards;
        unsigned port;
        struct sg_node_trace t;
        cr_assert_eq(ask(r, from, to * each + each - 64, cross ? 128 : 64, false, NULL, &t), 0);
        uint32_t one = distance(side, from, to, &port), two = cross ? distance(side, from, to + 1, &port) : 0;
        cr_assert(t.first_owner == (int32_t)to && t.last_owner == (int32_t)(to + cross));
        cr_assert_eq(t.hop_total, one + two);
        cr_assert_eq(t.hops, one > two ? one : two);
        crossing += cross;
    }
    cr_assert_gt(crossing, 1000);
    sg_router_destroy(r);
    free(routes);
    free(at);
    free(ports);
}
