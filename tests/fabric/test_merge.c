/* What several sources say, made one machine; and what copies have shown, put into it. No driver: the sources' words are made here. */
#include "machine.h"

#include "fabric/sources.h"

#include <string.h>

enum { MOST = 16 };

struct said {
    struct hr_sources sources;
    struct hr_discovery found;
    struct hr_discovered_gpu gpu[MOST];
    struct hr_pair pair[MOST * MOST];
    struct hr_nvml_gpu nvml[MOST];
    uint8_t meeting[MOST * MOST];
    uint32_t in_file[MOST];
};

/* GPUs at 0000:01:00.0 and on, all reach all, NVML is silent. */
static struct said *say(uint32_t gpus)
{
    struct said *said = calloc(1, sizeof *said);

    said->found = (struct hr_discovery){.gpus = gpus, .gpu = said->gpu, .pair = said->pair};
    said->sources = (struct hr_sources){.found = &said->found, .meeting = said->meeting};
    for (uint32_t i = 0; i < gpus; i++) {
        snprintf(said->gpu[i].bus_id, sizeof said->gpu[i].bus_id, "0000:%02x:00.0", i + 1);
        said->gpu[i].generation = 80;
        for (uint32_t j = 0; j < gpus; j++)
            said->pair[i * gpus + j] = (struct hr_pair){.access = i != j, .rank = -1};
    }
    return said;
}

static void forget(struct said *said)
{
    hr_topology_destroy(said->found.topology);
    hr_topology_destroy(said->sources.file);
    free(said);
}

static void merge(struct said *said)
{
    cr_assert_eq(hr_sources_merge(&said->sources), 0);
    cr_assert_eq(said->found.topology->gpu_count, said->found.gpus);
}

static void nvml_link(struct said *said, uint32_t gpu, enum hr_nvml_far far, const char *to, uint32_t count)
{
    struct hr_nvml_gpu *nvml = &said->nvml[gpu];

    said->sources.nvml = said->nvml;
    for (uint32_t i = 0; i < said->found.gpus; i++)
        said->nvml[i].told = true;
    for (; count > 0; count--) {
        nvml->link[nvml->links].far = far;
        snprintf(nvml->link[nvml->links++].bus_id, HR_TOPOLOGY_NAME_BYTES, "%s", to);
    }
}

static void expect_relation(const struct said *said, uint32_t a, uint32_t b, const char *want)
{
    char have[16];

    hr_topology_relation(said->found.topology, a, b, have);
    cr_expect(strcmp(have, want) == 0, "GPU%u and GPU%u: %s, not %s", a, b, have, want);
}

static uint32_t links(const struct said *said, uint32_t a, uint32_t b, double *gbps)
{
    const struct hr_topology *t = said->found.topology;

    return hr_topology_links(t, t->gpus[a], t->gpus[b], HR_LINKS_FABRIC, gbps);
}

/* The machine file as the third source, its GPUs in the given order. */
static struct said *say_with_file(const char *name, const uint32_t *order, uint32_t gpus)
{
    struct said *said = say(gpus);

    said->sources.file = read_machine(name);
    said->sources.file_path = name;
    said->sources.in_file = said->in_file;
    for (uint32_t i = 0; i < gpus; i++) {
        said->in_file[i] = said->sources.file->gpus[order[i]];
        snprintf(said->gpu[i].bus_id, sizeof said->gpu[i].bus_id, "%s",
                 said->sources.file->elements[said->in_file[i]].name);
    }
    return said;
}

static void meet(struct said *said, uint32_t a, uint32_t b, enum hr_meeting meeting)
{
    said->meeting[a * said->found.gpus + b] = said->meeting[b * said->found.gpus + a] = (uint8_t)meeting;
}

Test(merge, without_anything_but_the_driver_gpus_share_a_socket_and_have_no_links)
{
    struct said *said = say(3);
    double gbps;

    merge(said);
    expect_relation(said, 0, 2, "PHB");
    cr_expect_eq(links(said, 0, 1, NULL), 0);
    const struct hr_topology *t = said->found.topology;
    cr_expect_str_eq(t->elements[t->gpus[1]].name, "0000:02:00.0");
    hr_topology_links(t, t->gpus[0], (uint32_t)t->elements[t->gpus[0]].ports[0].peer, HR_LINKS_HOST, &gbps);
    cr_expect_float_eq(gbps, 31.5, 0.1, "an A100's slot");
    forget(said);
}

Test(merge, nvml_tells_how_far_up_gpus_meet)
{
    struct said *said = say(4);

    meet(said, 0, 1, HR_MEET_PIX);
    meet(said, 2, 3, HR_MEET_NODE);
    for (uint32_t i = 0; i < 2; i++) {
        meet(said, i, 2, HR_MEET_SYS);
        meet(said, i, 3, HR_MEET_SYS);
    }
    merge(said);
    expect_relation(said, 0, 1, "PIX");
    expect_relation(said, 2, 3, "NODE");
    expect_relation(said, 1, 3, "SYS");
    cr_expect_str_eq(said->found.tree_from, "NVML");
    forget(said);
}

Test(merge, meetings_that_are_no_tree_are_not_believed)
{
    struct said *said = say(3);

    meet(said, 0, 1, HR_MEET_PIX);
    meet(said, 1, 2, HR_MEET_PIX);
    meet(said, 0, 2, HR_MEET_SYS);
    merge(said);
    expect_relation(said, 0, 1, "PHB");
    expect_relation(said, 0, 2, "PHB");
    forget(said);
}

Test(merge, a_file_that_agrees_with_nvml_gives_the_tree_and_nvml_the_links)
{
    const uint32_t order[] = {3, 0, 2};
    struct said *said = say_with_file("square4", order, 3);

    meet(said, 0, 1, HR_MEET_SYS);
    meet(said, 0, 2, HR_MEET_PIX);
    meet(said, 1, 2, HR_MEET_SYS);
    nvml_link(said, 0, HR_NVML_FAR_GPU, said->gpu[2].bus_id, 1); /* the file says 2 */
    nvml_link(said, 2, HR_NVML_FAR_GPU, said->gpu[0].bus_id, 1);
    nvml_link(said, 2, HR_NVML_FAR_GPU, "0000:99:00.0", 2); /* one that the process does not see */
    merge(said);
    cr_expect_str_eq(said->found.tree_from, "topology file");
    cr_expect_str_eq(said->found.links_from, "NVML");
    cr_expect_geq(hr_topology_find(said->found.topology, "0000:81:00.0"), 0, "the file's bridge");
    expect_relation(said, 0, 2, "NV1");
    expect_relation(said, 0, 1, "SYS");
    cr_expect_eq(links(said, 1, 2, NULL), 0, "of GPUs 0 and 2 NVML knows nothing");
    forget(said);
}

Test(merge, where_a_file_contradicts_nvml_the_tree_is_nvmls)
{
    const uint32_t order[] = {0, 1};
    struct said *said = say_with_file("square4", order, 2);

    meet(said, 0, 1, HR_MEET_SYS);
    merge(said);
    cr_expect_str_eq(said->found.tree_from, "NVML");
    cr_expect_str_eq(said->found.links_from, "topology file");
    expect_relation(said, 0, 1, "NV2");
    cr_expect_lt(hr_topology_find(said->found.topology, "0000:01:00.0"), 0, "its bridge is not there");
    forget(said);
}

Test(merge, a_files_links_through_switches_are_those_of_the_visible_gpus)
{
    const uint32_t order[] = {7, 4};
    struct said *said = say_with_file("hgx-h100", order, 2);

    merge(said);
    expect_relation(said, 0, 1, "NV18");
    cr_expect_eq(said->found.topology->gpu_count, 2);
    forget(said);
}

Test(merge, switches_of_two_boards_are_joined_where_the_driver_has_atomics_between_them)
{
    struct said *said = say(4);

    for (uint32_t i = 0; i < 4; i++) {
        nvml_link(said, i, HR_NVML_FAR_SWITCH, i < 2 ? "0000:f0:00.0" : "0000:f2:00.0", 1);
        nvml_link(said, i, HR_NVML_FAR_SWITCH, i < 2 ? "0000:f1:00.0" : "0000:f3:00.0", 1);
        for (uint32_t j = 0; j < 4; j++)
            said->pair[i * 4 + j].atomics = i != j;
    }
    merge(said);
    const struct hr_topology *t = said->found.topology;
    int left = hr_topology_find(t, "0000:f1:00.0"), right = hr_topology_find(t, "0000:f3:00.0");
    cr_assert(left >= 0 && right >= 0);
    cr_expect_eq(hr_topology_links(t, (uint32_t)left, (uint32_t)right, HR_LINKS_FABRIC, NULL), 2);
    struct hr_graph *graph = hr_graph_compile(t, HR_LINKS_FABRIC);
    uint32_t legs = graph->first_leg[1] - graph->first_leg[0];
    cr_expect_eq(legs, 3, "GPU 0 reaches all others without a GPU in between");
    hr_graph_destroy(graph);
    forget(said);
}

Test(merge, without_nvml_atomics_betray_links)
{
    struct said *said = say(4), *all = say(3);
    static const uint8_t square[4][4] = {{0, 1, 1, 0}, {1, 0, 0, 1}, {1, 0, 0, 1}, {0, 1, 1, 0}};

    for (uint32_t i = 0; i < 16; i++)
        said->pair[i].atomics = square[i / 4][i % 4];
    for (uint32_t i = 0; i < 9; i++)
        all->pair[i].atomics = i / 3 != i % 3;
    merge(said);
    cr_expect_str_eq(said->found.links_from, "driver");
    for (uint32_t i = 0; i < 16; i++)
        cr_expect_eq(links(said, i / 4, i % 4, NULL), square[i / 4][i % 4]);
    merge(all);
    cr_expect_eq(links(all, 0, 1, NULL), 0, "a switch, not a mesh");
    expect_relation(all, 0, 1, "NV1");
    forget(said);
    forget(all);
}

Test(merge, parts_of_one_card_have_names_of_their_own_and_no_links)
{
    struct said *said = say(2);

    snprintf(said->gpu[1].bus_id, sizeof said->gpu[1].bus_id, "%s", said->gpu[0].bus_id);
    nvml_link(said, 0, HR_NVML_FAR_SWITCH, "0000:f0:00.0", 12);
    nvml_link(said, 1, HR_NVML_FAR_SWITCH, "0000:f0:00.0", 12);
    for (uint32_t i = 0; i < 4; i++)
        said->pair[i].access = false;
    merge(said);
    const struct hr_topology *t = said->found.topology;
    cr_expect_str_eq(t->elements[t->gpus[0]].name, "0000:01:00.0");
    cr_expect_str_eq(t->elements[t->gpus[1]].name, "0000:01:00.0/1");
    struct hr_graph *graph = hr_graph_compile(t, HR_LINKS_FABRIC);
    cr_expect_eq(graph->edges, 0);
    hr_graph_destroy(graph);
    forget(said);
}

Test(merge, links_of_a_pair_without_access_are_down)
{
    struct said *said = say(3);

    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t j = 0; j < 3; j++) {
            if (i != j)
                nvml_link(said, i, HR_NVML_FAR_GPU, said->gpu[j].bus_id, 2);
        }
    }
    said->pair[1].access = said->pair[3].access = false;
    merge(said);
    cr_expect_eq(links(said, 0, 1, NULL), 0);
    cr_expect_eq(links(said, 1, 0, NULL), 0);
    cr_expect_eq(links(said, 0, 2, NULL), 2);
    forget(said);
}

Test(calibrate, measured_rates_are_shared_by_the_links_and_bad_ways_are_down)
{
    struct said *said = say(3);
    double gbps;

    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t j = 0; j < 3; j++) {
            if (i != j)
                nvml_link(said, i, HR_NVML_FAR_GPU, said->gpu[j].bus_id, 2);
        }
    }
    merge(said);
    said->pair[1].state = HR_PAIR_GOOD;
    said->pair[1].gbps = 46;
    said->pair[2].state = HR_PAIR_CORRUPTS;
    said->gpu[0].to_host_gbps = 20;
    said->gpu[0].from_host_gbps = 22;
    hr_calibrate(&said->found);
    cr_expect_eq(links(said, 0, 1, &gbps), 2);
    cr_expect_float_eq(gbps, 46, 1e-9);
    cr_expect_eq(links(said, 1, 0, &gbps), 2);
    cr_expect_float_eq(gbps, 50, 1e-9, "not measured");
    cr_expect_eq(links(said, 0, 2, NULL), 0);
    cr_expect_eq(links(said, 2, 0, NULL), 2);
    cr_expect(!hr_pair_usable(&said->found, 0, 2) && hr_pair_usable(&said->found, 2, 0));
    const struct hr_topology *t = said->found.topology;
    uint32_t socket = 0;
    while (t->elements[socket].kind != HR_ELEMENT_SOCKET)
        socket++;
    hr_topology_links(t, t->gpus[0], socket, HR_LINKS_HOST, &gbps);
    cr_expect_float_eq(gbps, 20, 1e-9);
    hr_topology_links(t, socket, t->gpus[0], HR_LINKS_HOST, &gbps);
    cr_expect_float_eq(gbps, 22, 1e-9);
    forget(said);
}

Test(calibrate, a_copy_over_switches_is_spread_over_all_ports)
{
    struct said *said = say(2);
    double out, in;

    for (uint32_t i = 0; i < 2; i++) {
        nvml_link(said, i, HR_NVML_FAR_SWITCH, "0000:f0:00.0", 9);
        nvml_link(said, i, HR_NVML_FAR_SWITCH, "0000:f1:00.0", 9);
    }
    merge(said);
    said->pair[1].state = said->pair[2].state = HR_PAIR_GOOD;
    said->pair[1].gbps = 360;
    said->pair[2].gbps = 180;
    hr_calibrate(&said->found);
    const struct hr_topology *t = said->found.topology;
    uint32_t hub = (uint32_t)hr_topology_find(t, "0000:f1:00.0");
    cr_expect_eq(hr_topology_links(t, t->gpus[0], hub, HR_LINKS_FABRIC, &out), 9);
    hr_topology_links(t, hub, t->gpus[0], HR_LINKS_FABRIC, &in);
    cr_expect_float_eq(out, 180, 1e-6);
    cr_expect_float_eq(in, 90, 1e-6);
    forget(said);
}
