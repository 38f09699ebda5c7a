/*
 * What the fabric's arithmetic costs and is worth, as tables: routing tables and look-ups for thousands of cards (real time of this
 * machine), and transfers played in virtual time over the machines of tests/fabric. Run as: bench_fabric FOLDER_OF_MACHINES
 */
#include "base/clock.h"
#include "fabric/model.h"
#include "fabric/ranges.h"
#include "fabric/tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define LOOKUPS 20000000

static uint64_t random_state = 88172645463325252u;

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static double seconds_since(uint64_t begin_ns)
{
    return (double)(hr_clock_ns() - begin_ns) * 1e-9;
}

static void need(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "bench_fabric: %s failed\n", what);
        exit(1);
    }
}

/* ---- scale ---- */

static void bench_tables(const char *name, struct hr_topology *topology)
{
    static const struct hr_tables_options options = {HR_PORTS_ROUND_ROBIN, 0};
    struct hr_tables *tables = NULL;

    need(topology != NULL, name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    need(graph != NULL, name);
    uint64_t begin = hr_clock_ns();
    need(hr_tables_compute(graph, &options, &tables) == 0, name);
    printf("%-28s %6u %8u %10.3f s %8.1f MiB %9u\n", name, graph->gpus, graph->edges, seconds_since(begin),
           (double)tables->memory_bytes / (double)MIB, tables->entry_count);
    hr_tables_destroy(tables);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

static void bench_scale(void)
{
    static const uint32_t small[] = {4, 4, 4}, middle[] = {8, 8, 8}, large[] = {8, 8, 8, 8}, flat[] = {64, 64};

    printf("\nRouting tables of all routers for all owners\n%-28s %6s %8s %12s %12s %9s\n", "machine", "cards", "edges",
           "time", "memory", "answers");
    bench_tables("torus 4x4x4", hr_topology_torus(small, 3, 1, 25));
    bench_tables("torus 8x8x8", hr_topology_torus(middle, 3, 1, 25));
    bench_tables("torus 8x8x8x8, degree 8", hr_topology_torus(large, 4, 1, 25));
    bench_tables("torus 64x64, two links each", hr_topology_torus(flat, 2, 2, 25));
    bench_tables("chain of 4096", hr_topology_chain(4096, 1, 25));
}

static double owner_ns(const struct hr_ranges *ranges)
{
    uint64_t sum = 0, begin = hr_clock_ns();

    for (uint32_t i = 0; i < LOOKUPS; i++)
        sum += (uint64_t)hr_ranges_owner(ranges, random_next() % ranges->end);
    double ns = seconds_since(begin) * 1e9 / LOOKUPS;
    need(sum != 1, "look-up");
    return ns;
}

static void bench_lookups(void)
{
    static const uint32_t large[] = {8, 8, 8, 8};
    static const struct hr_tables_options options = {HR_PORTS_ROUND_ROBIN, 0};
    static uint64_t sizes[4096];
    struct hr_ranges *equal, *unequal;
    struct hr_tables *tables;
    struct hr_topology *topology = hr_topology_torus(large, 4, 1, 25);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);

    for (uint32_t i = 0; i < 4096; i++)
        sizes[i] = UINT64_C(64) << 30;
    need(hr_ranges_layout(sizes, 4096, 2 * MIB, &equal) == 0, "ranges");
    for (uint32_t i = 0; i < 4096; i++)
        sizes[i] = (1 + random_next() % 60) << 30;
    need(hr_ranges_layout(sizes, 4096, 2 * MIB, &unequal) == 0, "ranges");
    need(hr_tables_compute(graph, &options, &tables) == 0, "tables");
    printf("\nOne look-up, 4096 cards, random addresses (drawing one included)\n");
    uint64_t sum = 0, begin = hr_clock_ns();
    for (uint32_t i = 0; i < LOOKUPS; i++)
        sum += random_next() % equal->end;
    printf("%-44s %6.1f ns\n", "drawing an address alone", seconds_since(begin) * 1e9 / LOOKUPS);
    printf("%-44s %6.1f ns\n", "owner, equal sizes", owner_ns(equal));
    printf("%-44s %6.1f ns\n", "owner, unequal sizes", owner_ns(unequal));
    for (int one = 1; one >= 0; one--) {
        begin = hr_clock_ns();
        for (uint32_t i = 0; i < LOOKUPS; i++) {
            uint64_t address = random_next() % equal->end;
            const struct hr_entry *entry = hr_tables_find(tables, one ? 1234 : (uint32_t)(random_state >> 20) % 4096,
                                                          (uint32_t)hr_ranges_owner(equal, address));
            sum += entry->port_count ? hr_entry_pick(entry, address, i) : 0;
        }
        printf("%-44s %6.1f ns\n",
               one ? "owner, entry and port, one router" : "owner, entry and port, a random router each time",
               seconds_since(begin) * 1e9 / LOOKUPS);
    }
    need(sum != 1, "look-up");
    hr_tables_destroy(tables);
    hr_ranges_destroy(equal);
    hr_ranges_destroy(unequal);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

/* ---- transfers ---- */

static struct hr_topology *read_machine(const char *folder, const char *name)
{
    static char text[1 << 16];
    char path[1024];
    struct hr_topology *topology = NULL;
    struct hr_text_error error;

    snprintf(path, sizeof path, "%s/%s.xml", folder, name);
    FILE *file = fopen(path, "re");
    need(file != NULL, path);
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    need(hr_topology_read_xml(text, bytes, &topology, &error) == 0, path);
    return topology;
}

/* Achieved over the maximum flow. */
static double part_of_bound(const struct hr_graph *graph, const struct hr_routes *routes, uint64_t bytes)
{
    struct hr_part whole = {0, bytes};
    struct hr_model *model = hr_model_create(graph, NULL);
    struct hr_plan plan;

    need(model && hr_pipeline_plan(routes, &whole, 1, NULL, &plan) == 0, "plan");
    need(hr_model_begin(model, &plan, routes) == 0 && hr_model_run(model, INFINITY) == 0, "model");
    double ns = hr_model_end_ns(model, 0);
    int64_t bound = hr_route_bound_mbps(graph, routes->source, routes->destination);
    hr_model_destroy(model);
    hr_plan_finish(&plan);
    return (double)bytes / ns / ((double)bound / 1000);
}

static void bench_transfers(const char *folder, const char *name, uint64_t bytes)
{
    struct hr_topology *topology = read_machine(folder, name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    double least = INFINITY, sum = 0, single_least = INFINITY, single_sum = 0;
    uint32_t pairs = 0, paths = 0;

    for (uint32_t a = 0; a < graph->gpus; a++) {
        for (uint32_t b = 0; b < graph->gpus; b++) {
            struct hr_routes routes = {0}, single = {0};
            if (a == b)
                continue;
            need(hr_route_for(graph, NULL, a, b, bytes, &routes) == 0, "route");
            need(hr_route_small(graph, NULL, a, b, &single) == 0, "route");
            double part = part_of_bound(graph, &routes, bytes), alone = part_of_bound(graph, &single, bytes);
            least = fmin(least, part);
            single_least = fmin(single_least, alone);
            sum += part;
            single_sum += alone;
            pairs++;
            paths = routes.path_count > paths ? routes.path_count : paths;
            hr_routes_finish(&routes);
            hr_routes_finish(&single);
        }
    }
    printf("%-10s %6llu MiB %8.3f %8.3f %10.3f %8.3f %7u\n", name, (unsigned long long)(bytes / MIB), least,
           sum / pairs, single_least, single_sum / pairs, paths);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

static void bench_all_to_all(const char *folder, const char *name)
{
    struct hr_topology *topology = read_machine(folder, name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_all_to_all all;
    uint64_t begin = hr_clock_ns();

    need(hr_route_all_to_all(graph, 0.03, &all) == 0, "all to all");
    printf("%-10s %10.2f %10.2f %8.3f %8.3f s\n", name, all.pair_mbps / 1000, all.bound_mbps / 1000,
           all.pair_mbps / all.bound_mbps, seconds_since(begin));
    hr_all_to_all_finish(&all);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

int main(int argc, char **argv)
{
    static const char *const machines[] = {"dgx1v", "mi250x", "a100x4", "mi300x", "square4", "hgx-h100"};
    static const uint64_t sizes[] = {1 * MIB, 16 * MIB, 256 * MIB, 1024 * MIB};

    if (argc != 2) {
        fprintf(stderr, "usage: bench_fabric FOLDER_OF_MACHINES (tests/fabric/machines)\n");
        return 2;
    }
    bench_scale();
    bench_lookups();
    printf("\nTransfers in virtual time: part of the maximum flow, over all pairs\n%-10s %10s %8s %8s %10s %8s %7s\n",
           "machine", "size", "least", "mean", "one path:", "mean", "paths");
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            bench_transfers(argv[1], machines[i], sizes[s]);
    }
    printf("\nAll to all: what every pair gets at once, GB/s\n%-10s %10s %10s %8s %10s\n", "machine", "reached",
           "bound", "part", "computed");
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        bench_all_to_all(argv[1], machines[i]);
    return 0;
}
