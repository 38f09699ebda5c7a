/*
 * All shortest ways at once. A breadth-first search runs backwards from 64 owners together, one bit of a word for each: a level is a
 * few word operations per edge, so all pairs of 4096 cards take some ten million steps instead of a hundred million times more.
 * An edge u->v lies on a shortest way to owner d exactly if d's bit reaches u from v in the level in which it first reaches u.
 *
 * Width: the widths of edges fall into classes. Beside "reached" each node keeps, for every class but the lowest, a word that says
 * for which owners some shortest way is at least that wide all along; it spreads with the same steps.
 *
 * What a router does for an owner follows from the bits of its edges. These bits, turned into a key per owner, are looked up
 * among the router's answers: mostly a table of 256 bytes, since most routers have at most 8 neighbours of one width.
 */
#include "fabric/tables.h"

#include "base/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 64
#define MAX_CLASSES 16
#define EXACT_NODES 256 /* above, widths that differ by less than an eighth count as equal: no measurement is better */

/* A router's answers while the search runs: keys in order of appearance, found through a hash table or directly. */
struct answers {
    uint32_t key_bytes;
    uint32_t count; /* numbers 1 .. count */
    uint32_t room;
    uint8_t *keys;
    uint32_t slots;
    uint16_t *slot; /* number, 0 = free; with one-byte keys indexed by the key itself */
};

struct search {
    const struct hr_graph *graph;
    struct hr_tables *tables;
    uint32_t classes;
    int64_t class_mbps[MAX_CLASSES + 1];
    uint8_t *edge_class;
    uint32_t *first_in; /* edges by where they lead */
    uint32_t *in_edge;
    uint64_t *seen, *front, *next; /* by node */
    uint64_t *wide;                /* [class - 1][node] */
    uint64_t *used;                /* [class][edge]; class 0: the edge lies on a shortest way */
    uint32_t *list, *next_list;
    struct answers *answers; /* by node */
};

static bool routes(const struct search *search, const uint32_t node)
{
    return search->tables->router[node].narrow || search->tables->router[node].wide;
}

/* ---- classes of width ---- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static bool make_classes(struct search *search)
{
    const struct hr_graph *graph = search->graph;
    int64_t *value = calloc(graph->edges + 1, sizeof *value);
    uint32_t distinct = 0;

    if (!value)
        return false;
    for (uint32_t e = 0; e < graph->edges; e++)
        value[e] = graph->edge[e].mbps;
    qsort(value, graph->edges, sizeof *value, by_value);
    for (uint32_t e = 0; e < graph->edges; e++) {
        if (distinct == 0 || value[e] != value[distinct - 1])
            value[distinct++] = value[e];
    }
    double ratio = graph->nodes > EXACT_NODES ? 1.125 : 1, low = 0;
    double step = (double)value[distinct ? distinct - 1 : 0] / (double)(value[0] ? value[0] : 1);
    for (uint32_t classes = 1; classes < MAX_CLASSES; classes *= 2)
        step = sqrt(
            step); /* the root of the whole ratio that gives MAX_CLASSES steps; no pow, whose symbol is a new one */
    if (distinct > MAX_CLASSES)
        ratio = hr_number_max(ratio, step);
    for (uint32_t i = 0; i < distinct; i++) {
        if (search->classes == 0 || ((double)value[i] >= low * ratio && search->classes < MAX_CLASSES)) {
            search->class_mbps[search->classes++] = value[i];
            low = (double)value[i];
        }
    }
    free(value);
    search->classes = search->classes ? search->classes : 1;
    for (uint32_t e = 0; e < graph->edges; e++) {
        while (search->edge_class[e] + 1u < search->classes &&
               search->class_mbps[search->edge_class[e] + 1] <= graph->edge[e].mbps)
            search->edge_class[e]++;
    }
    return true;
}

/* ---- answers ---- */

static uint32_t key_slot(const struct answers *answers, const uint8_t *key)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (uint32_t i = 0; i < answers->key_bytes; i++)
        hash = (hash ^ key[i]) * 0x100000001b3u;
    return (uint32_t)(hash ^ hash >> 29) & (answers->slots - 1);
}

static bool grow_answers(struct answers *answers)
{
    uint32_t slots = answers->slots ? answers->slots * 2 : 64;
    uint16_t *slot = calloc(slots, sizeof *slot);

    if (!slot)
        return false;
    free(answers->slot);
    answers->slot = slot;
    answers->slots = slots;
    for (uint32_t i = 0; i < answers->count; i++) {
        uint32_t at = key_slot(answers, answers->keys + (size_t)i * answers->key_bytes);
        while (slot[at])
            at = (at + 1) & (slots - 1);
        slot[at] = (uint16_t)(i + 1);
    }
    return true;
}

static uint32_t add_key(struct answers *answers, const uint8_t *key)
{
    if (answers->count == answers->room) {
        uint32_t room = answers->room ? answers->room * 2 : 16;
        uint8_t *keys = realloc(answers->keys, (size_t)room * answers->key_bytes);
        if (!keys)
            return 0;
        answers->keys = keys;
        answers->room = room;
    }
    memcpy(answers->keys + (size_t)answers->count * answers->key_bytes, key, answers->key_bytes);
    return ++answers->count;
}

/* The number of a key, new or known; 0 without memory. There are at most as many keys as owners. */
static uint32_t key_number(struct answers *answers, const uint8_t *key)
{
    if (answers->key_bytes == 1) {
        if (!answers->slot && !(answers->slot = calloc(256, sizeof *answers->slot)))
            return 0;
        if (!answers->slot[*key])
            answers->slot[*key] = (uint16_t)add_key(answers, key);
        return answers->slot[*key];
    }
    if (answers->count * 2 >= answers->slots && !grow_answers(answers))
        return 0;
    uint32_t at = key_slot(answers, key);
    while (answers->slot[at]) {
        const uint8_t *known = answers->keys + (size_t)(answers->slot[at] - 1) * answers->key_bytes;
        if (memcmp(known, key, answers->key_bytes) == 0)
            return answers->slot[at];
        at = (at + 1) & (answers->slots - 1);
    }
    return answers->slot[at] = (uint16_t)add_key(answers, key);
}

static bool widen(struct hr_router_table *table, uint32_t owners)
{
    table->wide = calloc(owners, sizeof *table->wide);
    if (!table->wide)
        return false;
    for (uint32_t i = 0; i < owners; i++)
        table->wide[i] = table->narrow[i];
    free(table->narrow);
    table->narrow = NULL;
    return true;
}

static bool set_answer(struct search *search, uint32_t node, uint32_t owner, uint32_t number)
{
    struct hr_router_table *table = &search->tables->router[node];

    if (number > UINT8_MAX && table->narrow && !widen(table, search->tables->owners))
        return false;
    if (table->narrow)
        table->narrow[owner] = (uint8_t)number;
    else
        table->wide[owner] = (uint16_t)number;
    return true;
}

/* ---- the search ---- */

/* Bit i of word j becomes bit j of byte i: eight edges' words into a byte for each of 64 owners. */
static void transpose(const uint64_t words[8], uint8_t *out, uint32_t stride)
{
    for (uint32_t group = 0; group < 8; group++) {
        uint64_t x = 0;
        for (uint32_t j = 0; j < 8; j++)
            x |= (words[j] >> (group * 8) & 0xff) << (j * 8);
        /* An 8x8 bit matrix is turned over by swapping ever larger blocks (Hacker's Delight, 7-3). */
        uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aau;
        x ^= t ^ t << 7;
        t = (x ^ x >> 14) & 0x0000cccc0000ccccu;
        x ^= t ^ t << 14;
        t = (x ^ x >> 28) & 0x00000000f0f0f0f0u;
        x ^= t ^ t << 28;
        for (uint32_t i = 0; i < 8; i++)
            out[(group * 8 + i) * stride] = (uint8_t)(x >> (i * 8));
    }
}

static void start_batch(struct search *search, uint32_t first_owner, uint32_t owners, uint32_t *front_count)
{
    const struct hr_graph *graph = search->graph;

    memset(search->seen, 0, graph->nodes * sizeof *search->seen);
    memset(search->front, 0, graph->nodes * sizeof *search->front);
    memset(search->next, 0, graph->nodes * sizeof *search->next);
    memset(search->wide, 0, (size_t)search->classes * graph->nodes * sizeof *search->wide);
    memset(search->used, 0, (size_t)search->classes * graph->edges * sizeof *search->used);
    *front_count = 0;
    for (uint32_t i = 0; i < owners; i++) {
        uint32_t node = graph->gpu_node[first_owner + i];
        search->seen[node] = search->front[node] = UINT64_C(1) << i;
        for (uint32_t k = 1; k < search->classes; k++)
            search->wide[(size_t)(k - 1) * graph->nodes + node] = UINT64_C(1) << i;
        search->list[(*front_count)++] = node;
    }
}

/* From every node of the front back over the edges that lead to it. */
static uint32_t step(struct search *search, uint32_t front_count)
{
    const struct hr_graph *graph = search->graph;
    uint32_t next_count = 0;

    for (uint32_t i = 0; i < front_count; i++) {
        uint32_t v = search->list[i];
        for (uint32_t in = search->first_in[v]; in < search->first_in[v + 1]; in++) {
            uint32_t e = search->in_edge[in], u = graph->edge[e].from;
            uint64_t bits = search->front[v] & ~search->seen[u];
            if (!bits)
                continue;
            search->used[e] |= bits;
            if (!search->next[u])
                search->next_list[next_count++] = u;
            search->next[u] |= bits;
            for (uint32_t k = 1; k <= search->edge_class[e]; k++) {
                uint64_t as_wide = bits & search->wide[(size_t)(k - 1) * graph->nodes + v];
                search->used[(size_t)k * graph->edges + e] |= as_wide;
                search->wide[(size_t)(k - 1) * graph->nodes + u] |= as_wide;
            }
        }
    }
    for (uint32_t i = 0; i < front_count; i++)
        search->front[search->list[i]] = 0;
    for (uint32_t i = 0; i < next_count; i++) {
        uint32_t u = search->next_list[i];
        search->front[u] = search->next[u];
        search->seen[u] |= search->next[u];
        search->next[u] = 0;
    }
    uint32_t *swap = search->list;
    search->list = search->next_list;
    search->next_list = swap;
    return next_count;
}

/* The keys of one router for the batch's owners, and what they are in its table. */
static bool note_answers(struct search *search, uint32_t node, uint32_t first_owner, uint32_t owners, uint8_t *keys)
{
    const struct hr_graph *graph = search->graph;
    struct answers *answers = &search->answers[node];
    uint32_t begin = graph->first_edge[node], edges = graph->first_edge[node + 1] - begin;
    uint32_t groups = (edges + 7) / 8;

    for (uint32_t k = 0; k < search->classes; k++) {
        for (uint32_t g = 0; g < groups; g++) {
            uint64_t words[8] = {0};
            for (uint32_t j = 0; j < 8 && g * 8 + j < edges; j++)
                words[j] = search->used[(size_t)k * graph->edges + begin + g * 8 + j];
            transpose(words, keys + k * groups + g, answers->key_bytes);
        }
    }
    uint8_t *narrow = search->tables->router[node].narrow;
    if (answers->key_bytes == 1 && narrow && answers->slot && owners == BATCH) { /* mostly nothing is new */
        uint32_t known = 0;
        while (known < owners &&
               (keys[known] == 0 || (answers->slot[keys[known]] && answers->slot[keys[known]] < 256))) {
            narrow[first_owner + known] = (uint8_t)answers->slot[keys[known]];
            known++;
        }
        if (known == owners)
            return true;
    }
    for (uint32_t i = 0; i < owners; i++) {
        uint32_t number = 0;
        if ((search->seen[node] >> i & 1) && (int32_t)(first_owner + i) != graph->node_gpu[node]) {
            number = key_number(answers, keys + (size_t)i * answers->key_bytes);
            if (!number)
                return false;
        }
        if (!set_answer(search, node, first_owner + i, number))
            return false;
    }
    return true;
}

static bool run(struct search *search)
{
    const struct hr_graph *graph = search->graph;
    uint32_t most_key = 1;

    for (uint32_t node = 0; node < graph->nodes; node++) {
        uint32_t edges = graph->first_edge[node + 1] - graph->first_edge[node];
        search->answers[node].key_bytes = edges ? (edges + 7) / 8 * search->classes : 1;
        if (search->answers[node].key_bytes > most_key)
            most_key = search->answers[node].key_bytes;
    }
    uint8_t *keys = calloc(BATCH, most_key);
    bool done = keys != NULL;
    for (uint32_t first = 0; done && first < graph->gpus; first += BATCH) {
        uint32_t owners = graph->gpus - first < BATCH ? graph->gpus - first : BATCH, front;
        start_batch(search, first, owners, &front);
        while (front > 0)
            front = step(search, front);
        for (uint32_t node = 0; done && node < graph->nodes; node++)
            done = !routes(search, node) || note_answers(search, node, first, owners, keys);
    }
    free(keys);
    return done;
}

/* ---- from keys to shared entries ---- */

struct pool {
    uint32_t *slot; /* index + 1 */
    uint32_t slots;
    uint32_t room;
};

static uint64_t entry_hash(const struct hr_entry *entry)
{
    uint32_t words[sizeof *entry / 4];
    uint64_t hash = 0;

    memcpy(words, entry, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static bool grow_pool(struct pool *pool, struct hr_tables *tables)
{
    uint32_t room = pool->room ? pool->room * 2 : 64;
    uint32_t *slot = calloc((size_t)room * 2, sizeof *slot);
    struct hr_entry *entry = realloc(tables->entry, room * sizeof *entry);

    if (entry)
        tables->entry = entry;
    if (!slot || !entry) {
        free(slot);
        return false;
    }
    free(pool->slot);
    pool->slot = slot;
    pool->slots = room * 2;
    pool->room = room;
    for (uint32_t i = 0; i < tables->entry_count; i++) {
        uint32_t at = (uint32_t)entry_hash(&entry[i]) & (pool->slots - 1);
        while (slot[at])
            at = (at + 1) & (pool->slots - 1);
        slot[at] = i + 1;
    }
    return true;
}

/* Index of an entry among the shared ones; UINT32_MAX without memory. */
static uint32_t share(struct pool *pool, struct hr_tables *tables, const struct hr_entry *entry)
{
    if ((!pool->slot || tables->entry_count == pool->room) && !grow_pool(pool, tables))
        return UINT32_MAX;
    uint32_t at = (uint32_t)entry_hash(entry) & (pool->slots - 1);
    while (pool->slot[at]) {
        if (memcmp(&tables->entry[pool->slot[at] - 1], entry, sizeof *entry) == 0)
            return pool->slot[at] - 1;
        at = (at + 1) & (pool->slots - 1);
    }
    tables->entry[tables->entry_count] = *entry;
    pool->slot[at] = ++tables->entry_count;
    return tables->entry_count - 1;
}

static void entry_of_key(const struct search *search, uint32_t node, const uint8_t *key,
                         const struct hr_tables_options *options, struct hr_entry *entry_out)
{
    const struct hr_graph *graph = search->graph;
    uint32_t begin = graph->first_edge[node], edges = graph->first_edge[node + 1] - begin, count = 0;
    uint32_t groups = (edges + 7) / 8;
    struct hr_port_rate rates[HR_TOPOLOGY_MAX_PORTS];

    for (uint32_t i = 0; i < edges; i++) {
        const struct hr_edge *edge = &graph->edge[begin + i];
        if (!(key[i / 8] >> (i % 8) & 1))
            continue;
        uint32_t class = 0;
        while (class + 1 < search->classes && (key[(class + 1) * groups + i / 8] >> (i % 8) & 1))
            class ++;
        /* The way behind is at least its class wide; an edge of a class of one value is no wider than that either. */
        double part = (double)search->class_mbps[class] / (double)edge->mbps;
        for (uint32_t link = edge->first_link; link < edge->first_link + edge->links; link++)
            rates[count++] = (struct hr_port_rate){graph->link_port[link],
                                                   (int64_t)((part < 1 ? part : 1) * graph->link_mbps[link] + 0.5)};
    }
    hr_entry_make(options, rates, count, entry_out);
}

static bool finish_router(struct search *search, uint32_t node, const struct hr_tables_options *options,
                          struct pool *pool)
{
    struct hr_router_table *table = &search->tables->router[node];
    const struct answers *answers = &search->answers[node];
    struct hr_entry entry;

    table->local = search->graph->node_gpu[node];
    table->entry_count = answers->count + 1;
    table->entry = calloc(table->entry_count, sizeof *table->entry);
    if (!table->entry)
        return false;
    for (uint32_t i = 0; i < answers->count; i++) {
        entry_of_key(search, node, answers->keys + (size_t)i * answers->key_bytes, options, &entry);
        table->entry[i + 1] = share(pool, search->tables, &entry);
        if (table->entry[i + 1] == UINT32_MAX)
            return false;
    }
    search->tables->memory_bytes += table->entry_count * sizeof *table->entry + sizeof *table +
                                    search->tables->owners * (table->narrow ? sizeof(uint8_t) : sizeof(uint16_t));
    return true;
}

/* ---- begin and end ---- */

void hr_tables_destroy(struct hr_tables *tables)
{
    if (!tables)
        return;
    for (uint32_t i = 0; tables->router && i < tables->routers; i++) {
        free(tables->router[i].narrow);
        free(tables->router[i].wide);
        free(tables->router[i].entry);
    }
    free(tables->router);
    free(tables->entry);
    free(tables);
}

static struct hr_tables *allocate(const struct hr_graph *graph)
{
    struct hr_tables *tables = calloc(1, sizeof *tables);

    if (!tables)
        return NULL;
    tables->version = graph->version;
    tables->routers = graph->nodes;
    tables->owners = graph->gpus;
    tables->router = calloc(graph->nodes + 1, sizeof *tables->router);
    bool done = tables->router != NULL;
    for (uint32_t node = 0; done && node < graph->nodes; node++) {
        if (graph->node_gpu[node] < 0 && graph->first_edge[node] == graph->first_edge[node + 1])
            continue; /* a bridge or socket without links of these kinds */
        tables->router[node].narrow = calloc(graph->gpus + 1, 1);
        done = tables->router[node].narrow != NULL;
    }
    if (!done) {
        hr_tables_destroy(tables);
        return NULL;
    }
    return tables;
}

static void search_finish(struct search *search)
{
    for (uint32_t i = 0; search->answers && i < search->graph->nodes; i++) {
        free(search->answers[i].keys);
        free(search->answers[i].slot);
    }
    free(search->answers);
    free(search->edge_class);
    free(search->first_in);
    free(search->in_edge);
    free(search->seen);
    free(search->front);
    free(search->next);
    free(search->wide);
    free(search->used);
    free(search->list);
    free(search->next_list);
}

static bool search_init(struct search *search)
{
    const struct hr_graph *graph = search->graph;
    size_t nodes = graph->nodes + 1, edges = graph->edges + 1;

    search->edge_class = calloc(edges, 1);
    search->first_in = calloc(nodes + 1, sizeof *search->first_in);
    search->in_edge = calloc(edges, sizeof *search->in_edge);
    search->seen = calloc(nodes, sizeof *search->seen);
    search->front = calloc(nodes, sizeof *search->front);
    search->next = calloc(nodes, sizeof *search->next);
    search->list = calloc(nodes, sizeof *search->list);
    search->next_list = calloc(nodes, sizeof *search->next_list);
    search->answers = calloc(nodes, sizeof *search->answers);
    if (!search->edge_class || !search->first_in || !search->in_edge || !search->seen || !search->front ||
        !search->next || !search->list || !search->next_list || !search->answers || !make_classes(search))
        return false;
    search->wide = calloc(search->classes * nodes, sizeof *search->wide);
    search->used = calloc(search->classes * edges, sizeof *search->used);
    for (uint32_t e = 0; e < graph->edges; e++)
        search->first_in[graph->edge[e].to + 1]++;
    for (uint32_t n = 0; n < graph->nodes; n++)
        search->first_in[n + 1] += search->first_in[n];
    for (uint32_t e = 0; e < graph->edges; e++) { /* `list` counts what each node has got */
        uint32_t to = graph->edge[e].to;
        search->in_edge[search->first_in[to] + search->list[to]++] = e;
    }
    return search->wide && search->used;
}

int hr_tables_compute(const struct hr_graph *graph, const struct hr_tables_options *options,
                      struct hr_tables **tables_out)
{
    struct search search = {.graph = graph, .tables = allocate(graph)};
    struct pool pool = {0};
    bool done = search.tables && search_init(&search) && run(&search);

    for (uint32_t node = 0; done && node < graph->nodes; node++)
        done = !routes(&search, node) || finish_router(&search, node, options, &pool);
    search_finish(&search);
    free(pool.slot);
    if (!done) {
        hr_tables_destroy(search.tables);
        return -ENOMEM;
    }
    struct hr_entry *entry = realloc(search.tables->entry, search.tables->entry_count * sizeof *entry + 1);
    search.tables->entry = entry ? entry : search.tables->entry;
    search.tables->memory_bytes += sizeof *search.tables + search.tables->entry_count * sizeof *entry;
    hr_entry_make(options, NULL, 0, &search.tables->here);
    *tables_out = search.tables;
    return 0;
}
