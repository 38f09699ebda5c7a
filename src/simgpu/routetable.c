/*
 * Ranges and tables as snapshots: checked and packed once, when they are written, so that a look-up is a shift or a short
 * search and an index.
 */
#include "simgpu/routerin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WAY_BUCKETS 512

/* Of whole words: what is hashed here is made of them. */
static uint64_t hash_of(const void *data, size_t bytes)
{
    uint64_t h = bytes, word;
    for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, (const uint8_t *)data + i, sizeof word);
        h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

/* ---- ranges ---- */

static int by_base(const void *a, const void *b)
{
    const struct sg_node_range *x = a, *y = b;
    return (x->base > y->base) - (x->base < y->base);
}

/* Ranges of one size, a power of two, one behind the other. */
static unsigned shift_of(const struct sg_map *map)
{
    uint64_t bytes = map->at[0].bytes;
    if (!bytes || (bytes & (bytes - 1)))
        return 64;
    for (uint32_t i = 1; i < map->count; i++)
        if (map->at[i].bytes != bytes || map->at[i].base != map->at[0].base + i * bytes)
            return 64;
    return (unsigned)__builtin_ctzll(bytes);
}

static int ranges_check(const struct sg_router *r, const struct sg_map *map)
{
    for (uint32_t i = 0; i < map->count; i++) {
        const struct sg_node_range *at = &map->at[i];
        uint64_t most = UINT64_C(1) << SG_NODE_ADDRESS_BITS;
        if (!at->bytes || at->base > most || at->bytes > most - at->base || at->owner >= r->count)
            return -EINVAL;
        if (i && at[-1].base + at[-1].bytes > at->base)
            return -EINVAL;
    }
    return 0;
}

static struct sg_map *map_make(const struct sg_node_range *ranges, uint32_t count)
{
    struct sg_map *map = calloc(1, sizeof *map + count * sizeof map->at[0]);
    if (!map)
        return NULL;
    map->count = count;
    for (uint32_t i = 0; i < count; i++) { /* member by member: gaps in the caller's structs do not count */
        map->at[i].base = ranges[i].base;
        map->at[i].bytes = ranges[i].bytes;
        map->at[i].owner = ranges[i].owner;
    }
    qsort(map->at, count, sizeof map->at[0], by_base);
    map->shift = shift_of(map);
    map->hash = hash_of(map->at, count * sizeof map->at[0]);
    return map;
}

static size_t map_bytes(const struct sg_map *map)
{
    return sizeof *map + map->count * sizeof map->at[0];
}

/* The one that is in use already, if there is an equal one. */
static struct sg_map *map_share_locked(struct sg_router *r, struct sg_map *made)
{
    for (struct sg_map *m = r->maps; m; m = m->next) {
        if (m->hash == made->hash && m->count == made->count &&
            !memcmp(m->at, made->at, made->count * sizeof made->at[0])) {
            free(made);
            m->refs++;
            return m;
        }
    }
    made->refs = 1;
    made->next = r->maps;
    r->maps = made;
    r->snapshot_bytes += map_bytes(made);
    return made;
}

static void map_drop_locked(struct sg_router *r, struct sg_map *map)
{
    if (!map || --map->refs)
        return;
    struct sg_map **at = &r->maps;
    while (*at != map)
        at = &(*at)->next;
    *at = map->next;
    r->snapshot_bytes -= map_bytes(map);
    sg_router_retire_locked(r, &map->retired);
}

int sg_router_write_ranges(struct sg_router *r, int element, const struct sg_node_range *ranges, uint32_t count)
{
    if (element < 0 || (uint32_t)element >= r->count || (count && !ranges))
        return -EINVAL;
    struct sg_map *map = NULL;
    if (count) {
        map = map_make(ranges, count);
        if (!map)
            return -ENOMEM;
        int bad = ranges_check(r, map);
        if (bad) {
            free(map);
            return bad;
        }
    }
    pthread_mutex_lock(&r->lock);
    if (map)
        map = map_share_locked(r, map);
    struct sg_map *old = atomic_exchange(&r->hub[element].map, map);
    map_drop_locked(r, old);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

const struct sg_node_range *sg_map_find(const struct sg_map *map, uint64_t address)
{
    if (!map || address < map->at[0].base)
        return NULL;
    if (map->shift < 64) {
        uint64_t i = (address - map->at[0].base) >> map->shift;
        return i < map->count ? &map->at[i] : NULL;
    }
    uint32_t low = 0, high = map->count;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (map->at[mid].base <= address)
            low = mid;
        else
            high = mid;
    }
    return address - map->at[low].base < map->at[low].bytes ? &map->at[low] : NULL;
}

bool sg_router_base(struct sg_router *r, uint32_t element, uint32_t owner, uint64_t *base_out)
{
    bool found = false;
    if (element >= r->count)
        return false;
    unsigned phase = sg_router_enter(r);
    const struct sg_map *map = atomic_load_explicit(&r->hub[element].map, memory_order_acquire);
    for (uint32_t i = 0; map && i < map->count && !found; i++) {
        found = map->at[i].owner == owner;
        if (found)
            *base_out = map->at[i].base;
    }
    sg_router_leave(r, phase);
    return found;
}

/* ---- tables ---- */

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* About 0.618 of the sum and coprime to it: any few turns in a row come close to the weights, and a full round meets them. */
static uint32_t stride_of(uint32_t sum)
{
    uint32_t stride = (uint32_t)((double)sum * 0.6180339887);
    stride = stride ? stride : 1;
    while (common_divisor(stride, sum) != 1)
        stride++;
    return stride;
}

static bool route_check(const struct sg_router *r, uint32_t element, const struct sg_node_route *route)
{
    if (route->owner >= r->count || route->owner == element || route->policy > SG_PORT_BY_ADDRESS ||
        !route->port_count || route->port_count > SG_NODE_ROUTE_PORTS || route->address_shift >= SG_NODE_ADDRESS_BITS)
        return false;
    for (int i = 0; i < route->port_count; i++)
        if (route->port[i] >= r->hub[element].gates)
            return false;
    return true;
}

/* From a route and, if it has more, the one behind it. */
static void way_from(struct sg_way *way, const struct sg_node_route *route, uint32_t rows)
{
    uint32_t sum = 0, any = 0, n = 0;
    memset(way, 0, sizeof *way);
    way->policy = route->policy;
    way->address_shift = route->address_shift;
    for (uint32_t row = 0; row < rows; row++)
        for (int i = 0; i < route[row].port_count; i++)
            any |= route[row].weight[i];
    for (uint32_t row = 0; row < rows; row++) {
        for (int i = 0; i < route[row].port_count; i++, n++) {
            way->port[n] = route[row].port[i];
            way->weight_end[n] = sum += any ? route[row].weight[i] : 1;
        }
    }
    way->port_count = (uint8_t)n;
    way->stride = stride_of(sum);
}

struct way_index { /* while a table is made: equal ways are one */
    uint16_t first[WAY_BUCKETS];
    uint16_t *next; /* per way */
};

static uint16_t way_share(struct sg_table *t, struct way_index *index, const struct sg_way *way)
{
    size_t bytes = offsetof(struct sg_way, turn);
    _Static_assert(offsetof(struct sg_way, turn) % sizeof(uint64_t) == 0, "hashed as words");
    uint16_t *bucket = &index->first[hash_of(way, bytes) % WAY_BUCKETS];
    for (uint16_t i = *bucket; i != SG_NO_WAY; i = index->next[i])
        if (!memcmp(&t->way[i], way, bytes))
            return i;
    uint16_t made = (uint16_t)t->ways++;
    memcpy(&t->way[made], way, sizeof *way);
    index->next[made] = *bucket;
    *bucket = made;
    return made;
}

static size_t table_bytes(const struct sg_table *t)
{
    return sizeof *t + t->ways * sizeof t->way[0] + t->owners * sizeof t->way_of[0];
}

/* One block: the struct, its ways, the owners' indices. */
static struct sg_table *table_pack(const struct sg_table *made)
{
    size_t head = sizeof *made + made->ways * sizeof made->way[0];
    struct sg_table *t = malloc(table_bytes(made));
    if (!t)
        return NULL;
    memcpy(t, made, head);
    t->way_of = (uint16_t *)(void *)((uint8_t *)t + head);
    memcpy(t->way_of, made->way_of, made->owners * sizeof made->way_of[0]);
    return t;
}

static int table_fill(struct sg_router *r, uint32_t element, const struct sg_node_route *routes, uint32_t count,
                      struct sg_table *t, struct way_index *index)
{
    memset(index->first, 0xff, sizeof index->first);
    memset(t->way_of, 0xff, t->owners * sizeof t->way_of[0]);
    for (uint32_t i = 0, rows; i < count; i += rows) {
        const struct sg_node_route *first = &routes[i], *next = first + 1;
        struct sg_way way;
        rows = i + 1 < count && next->more ? 2 : 1;
        if (first->more || !route_check(r, element, first) || t->way_of[first->owner] != SG_NO_WAY)
            return -EINVAL;
        if (rows == 2 && (!route_check(r, element, next) || next->owner != first->owner || next->more != 1 ||
                          next->policy != first->policy || next->address_shift != first->address_shift))
            return -EINVAL;
        way_from(&way, first, rows);
        t->way_of[first->owner] = way_share(t, index, &way);
    }
    return 0;
}

static int table_make(struct sg_router *r, uint32_t element, const struct sg_node_route *routes, uint32_t count,
                      struct sg_table **table_out)
{
    uint32_t owners = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (routes[i].owner >= r->count)
            return -EINVAL;
        owners = routes[i].owner + 1 > owners ? routes[i].owner + 1 : owners;
    }
    if (count >= SG_NO_WAY)
        return -EINVAL;
    struct sg_table *t = calloc(1, sizeof *t + count * sizeof t->way[0]);
    uint16_t *way_of = malloc(owners * sizeof *way_of);
    struct way_index index = {.next = malloc(count * sizeof *index.next)};
    int bad = -ENOMEM;
    if (t && way_of && index.next) {
        t->owners = owners;
        t->way_of = way_of;
        bad = table_fill(r, element, routes, count, t, &index);
    }
    *table_out = bad ? NULL : table_pack(t);
    free(index.next);
    free(way_of);
    free(t);
    return bad ? bad : *table_out ? 0 : -ENOMEM;
}

int sg_router_write_table(struct sg_router *r, int element, const struct sg_node_route *routes, uint32_t count)
{
    if (element < 0 || (uint32_t)element >= r->count || (count && !routes))
        return -EINVAL;
    struct sg_table *table = NULL;
    int bad = count ? table_make(r, (uint32_t)element, routes, count, &table) : 0;
    if (bad)
        return bad;
    pthread_mutex_lock(&r->lock);
    struct sg_table *old = atomic_exchange(&r->hub[element].table, table);
    r->snapshot_bytes += table ? table_bytes(table) : 0;
    if (old) {
        r->snapshot_bytes -= table_bytes(old);
        sg_router_retire_locked(r, &old->retired);
    }
    pthread_mutex_unlock(&r->lock);
    return 0;
}

bool sg_router_knows(struct sg_router *r, uint32_t element, uint32_t owner)
{
    if (element >= r->count)
        return false;
    unsigned phase = sg_router_enter(r);
    const struct sg_table *t = atomic_load_explicit(&r->hub[element].table, memory_order_acquire);
    bool knows = t && owner < t->owners && t->way_of[owner] != SG_NO_WAY;
    sg_router_leave(r, phase);
    return knows;
}
