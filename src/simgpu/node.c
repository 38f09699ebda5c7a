/* The node: its routers, made from the topology, and the exported calls that read and write them. */
#include "simgpu/fabric.h"

#include "simgpu/linkfault.h"
#include "simgpu/mempool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static _Atomic(struct sg_router *) router;
static uint32_t first_way[SG_MOST_ELEMENTS]; /* of each element */
static enum sg_nearness between[SG_MOST_CARDS][SG_MOST_CARDS];

struct sg_router *sg_node_router(void)
{
    return atomic_load_explicit(&router, memory_order_acquire);
}

/* Memory at a card's own address: the frames of its VRAM, whoever has them. */
static int serve(void *context, uint32_t owner, uint64_t offset, uint64_t bytes, bool write, void *data)
{
    (void)context;
    int device = sg_device_of((int)owner);
    if (device < 0)
        return -EFAULT;
    const struct sg_pool *pool = &sg.devices[device].pool;
    uint64_t most = (uint64_t)pool->frames << SG_PAGE_SHIFT;
    if (offset > most || bytes > most - offset)
        return -EFAULT;
    for (uint64_t done = 0, n; data && done < bytes; done += n) {
        uint8_t *at = pool->alias + offset + done, *mine = (uint8_t *)data + done;
        n = SG_PAGE_BYTES - ((offset + done) & (SG_PAGE_BYTES - 1));
        n = n < bytes - done ? n : bytes - done;
        sg_pool_fill((uint64_t)(uintptr_t)at);
        sg_move_bytes(write ? at : mine, write, write ? mine : at, !write, n);
    }
    return 0;
}

static void tell(const char *line)
{
    sg_log(SG_LOG_WARN, "%s", line);
}

int sg_node_start(void)
{
    const struct sg_topology *t = sg.config.topology;
    uint32_t ports[SG_MOST_ELEMENTS];
    if (!t)
        return 0;
    for (uint32_t i = 0, way = 0; i < t->count; i++) {
        ports[i] = t->element[i].ports;
        first_way[i] = way;
        way += ports[i];
    }
    struct sg_router *r = sg_router_create(t->count, ports, &(struct sg_router_options){.serve = serve, .log = tell});
    if (!r)
        return -ENOMEM;
    for (size_t i = 0; i < t->links; i++) {
        const struct sg_topo_link *l = &t->link[i];
        sg_router_connect(r, l->a, l->a_port, l->b, l->b_port, l->gbps, l->latency_ns);
    }
    for (int a = 0; a < t->cards; a++)
        for (int b = 0; b < t->cards; b++)
            between[a][b] = a == b ? SG_NEAR_NVLINK : sg_topology_between(t, a, b);
    atomic_store_explicit(&router, r, memory_order_release);
    sg_linkfault_arm();
    return sg_links_start() ? 0 : -ENOMEM;
}

uint32_t sg_node_way(uint32_t element, uint32_t port)
{
    return first_way[element] + port;
}

enum sg_nearness sg_node_between(int a, int b)
{
    return between[a][b];
}

/* PCIe requests between cards do not cross sockets. */
bool sg_node_can_reach(int from, int to)
{
    return sg.config.model->peer && between[from][to] < SG_NEAR_SOCKETS;
}

struct sg_pci sg_node_pci(int card)
{
    struct sg_pci at = {0, 0x17 + 0x10 * (unsigned)card, 0, 0};
    const struct sg_topology *t = sg.config.topology;
    if (t) {
        const char *text = t->element[card].bus_id;
        char *next;
        at.domain = (unsigned)strtoul(text, &next, 16);
        at.bus = (unsigned)strtoul(next + 1, &next, 16);
        at.slot = (unsigned)strtoul(next + 1, &next, 16);
        at.function = (unsigned)strtoul(next + 1, &next, 16);
    }
    return at;
}

/* ---- exported ---- */

EXPORT uint32_t sg_node_version(void)
{
    return SG_NODE_VERSION;
}

EXPORT int sg_node_elements(void)
{
    if (!atomic_load_explicit(&sg.ready, memory_order_acquire))
        return -ENODEV;
    return sg_node_router() && !sg.config.deny_routers ? (int)sg.config.topology->count : 0;
}

EXPORT int sg_node_element(int element, struct sg_node_element *out)
{
    if (sg_node_elements() <= 0)
        return -ENODEV;
    const struct sg_topology *t = sg.config.topology;
    if (element < 0 || (uint32_t)element >= t->count || !out)
        return -EINVAL;
    const struct sg_topo_element *e = &t->element[element];
    bool is_card = e->kind == SG_ELEMENT_CARD;
    *out = (struct sg_node_element){.kind = e->kind,
                                    .device = is_card ? sg_device_of(element) : -1,
                                    .ports = e->ports,
                                    .memory_bytes = is_card ? sg.config.vram_bytes : 0};
    memcpy(out->bus_id, e->bus_id, sizeof out->bus_id);
    return 0;
}

EXPORT int sg_node_port(int element, int port, struct sg_node_port *out)
{
    struct sg_router *r = sg_node_router();
    return r ? sg_router_port(r, element, port, out) : -ENODEV;
}

EXPORT int sg_node_write_ranges(int element, const struct sg_node_range *ranges, uint32_t count)
{
    struct sg_router *r = sg_node_router();
    for (uint32_t i = 0; r && ranges && i < count; i++)
        if (ranges[i].owner >= (uint32_t)sg.config.topology->cards)
            return -EINVAL;
    return r ? sg_router_write_ranges(r, element, ranges, count) : -ENODEV;
}

EXPORT int sg_node_write_table(int element, const struct sg_node_route *routes, uint32_t count)
{
    struct sg_router *r = sg_node_router();
    return r ? sg_router_write_table(r, element, routes, count) : -ENODEV;
}

EXPORT int sg_node_counters(int element, int port, struct sg_node_counters *out)
{
    struct sg_router *r = sg_node_router();
    return r ? sg_router_counters(r, element, port, out) : -ENODEV;
}

EXPORT uint64_t sg_node_epoch(void)
{
    struct sg_router *r = sg_node_router();
    return r ? sg_router_epoch(r) : 0;
}

EXPORT int sg_node_wait(uint64_t epoch, uint64_t timeout_ns)
{
    struct sg_router *r = sg_node_router();
    return r ? sg_router_wait(r, epoch, timeout_ns) : -ENODEV;
}

EXPORT int sg_node_link_set(int element, int port, bool up)
{
    struct sg_router *r = sg_node_router();
    return r ? sg_router_link_set(r, element, port, up) : -ENODEV;
}

EXPORT int sg_node_request(int card, uint64_t global, uint64_t bytes, bool write, void *data,
                           struct sg_node_trace *trace_out)
{
    struct sg_router *r = sg_node_router();
    if (!r)
        return -ENODEV;
    if (card < 0 || card >= sg.config.topology->cards)
        return -EINVAL;
    return sg_router_send(r,
                          &(struct sg_router_request){.element = (uint32_t)card,
                                                      .address = global,
                                                      .bytes = bytes,
                                                      .write = write,
                                                      .data = data,
                                                      .turn = SG_ROUTER_OWN_TURN},
                          trace_out);
}

EXPORT int sg_node_locate(uint64_t va, int *card_out, uint64_t *offset_out)
{
    if (!sg_node_router())
        return -ENODEV;
    if (!card_out || !offset_out)
        return -EINVAL;
    pthread_mutex_lock(&sg.lock);
    const struct sg_alloc *a = sg_alloc_at(va);
    const struct sg_mapping *m = sg_mapping_at(va);
    const struct sg_segment *segment = a && a->piece ? a->piece->segment : NULL;
    const struct sg_chunk *chunk = segment         ? segment->chunk
                                   : a && a->chunk ? a->chunk
                                   : a             ? a->block->chunk
                                   : m             ? m->chunk
                                                   : NULL;
    uint64_t base = segment         ? segment->region.va
                    : a && a->chunk ? a->region.va
                    : a             ? a->block->region.va
                    : m             ? m->region.va
                                    : 0;
    if (chunk && chunk->runs)
        chunk = NULL; /* of a memfd of its own, which is no place on the card */
    int found = chunk && chunk->device != SG_ON_HOST && chunk->frame ? 0 : -EFAULT;
    if (!found) {
        *card_out = sg.card[chunk->device];
        *offset_out = ((uint64_t)chunk->frame[(va - base) >> SG_PAGE_SHIFT] << SG_PAGE_SHIFT) +
                      ((va - base) & (SG_PAGE_BYTES - 1));
    }
    pthread_mutex_unlock(&sg.lock);
    return found;
}
