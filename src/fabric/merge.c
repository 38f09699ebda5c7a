/*
 * One machine from what several sources say. The PCIe tree is the file's where NVML does not contradict it (it has the bridges and
 * their speeds), else one with NVML's meeting points, else all GPUs below one socket. Links are NVML's, else the file's, else what
 * atomics over a link betray. Whatever told of a link, it is up only where the driver gives access.
 */
#include "fabric/rates.h"
#include "fabric/sources.h"
#include "fabric/text.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const meeting_names[] = {"", "PIX", "PXB", "PHB", "NODE", "SYS"};

static struct hr_element *gpu_element(const struct hr_discovery *found, uint32_t gpu)
{
    return &found->topology->elements[found->topology->gpus[gpu]];
}

static const struct hr_pair *pair_of(const struct hr_discovery *found, uint32_t from, uint32_t to)
{
    return &found->pair[from * found->gpus + to];
}

static bool reach_each_other(const struct hr_discovery *found, uint32_t a, uint32_t b)
{
    return pair_of(found, a, b)->access || pair_of(found, b, a)->access;
}

/* ---- the PCIe tree ---- */

/* A topology file does not tell host bridges apart, so PHB and NODE are one there. */
static bool same_meeting(enum hr_meeting meeting, const char *relation)
{
    bool socket = meeting == HR_MEET_PHB || meeting == HR_MEET_NODE;

    return strcmp(relation, meeting_names[meeting]) == 0 ||
           (socket && (strcmp(relation, "PHB") == 0 || strcmp(relation, "NODE") == 0));
}

static bool file_agrees(const struct hr_sources *sources, const struct hr_topology *tree)
{
    uint32_t gpus = sources->found->gpus;
    char relation[16];

    for (uint32_t i = 0; i < gpus; i++) {
        for (uint32_t j = 0; j < i; j++) {
            enum hr_meeting meeting = sources->meeting[i * gpus + j];
            if (meeting == HR_MEET_UNKNOWN)
                continue;
            hr_topology_relation(tree, i, j, relation);
            if (same_meeting(meeting, relation))
                continue;
            hr_log_once(HR_LOG_WARN, "%s: GPU %u and GPU %u are %s there and %s to NVML; PCIe is taken as NVML has it",
                        sources->file_path, j, i, relation, meeting_names[meeting]);
            return false;
        }
    }
    return true;
}

/* The matrix of what NVML says, which the reader of such matrices makes a tree of. */
static int tree_of_meetings(const struct hr_sources *sources, struct hr_topology **tree_out)
{
    uint32_t gpus = sources->found->gpus;
    struct hr_text text = {0};
    struct hr_text_error error = {0};

    for (uint32_t i = 0; i < gpus; i++)
        hr_text_add(&text, "\tGPU%u", i);
    for (uint32_t i = 0; i < gpus; i++) {
        hr_text_add(&text, "\nGPU%u", i);
        for (uint32_t j = 0; j < gpus; j++) {
            enum hr_meeting meeting = sources->meeting[(i < j ? i : j) * gpus + (i < j ? j : i)];
            hr_text_add(&text, "\t%s", i == j ? "X" : meeting_names[meeting ? meeting : HR_MEET_PHB]);
        }
    }
    hr_text_add(&text, "\n");
    char *matrix = hr_text_take(&text);
    if (!matrix)
        return -ENOMEM;
    int rc = hr_topology_read_matrix(matrix, strlen(matrix), 0, tree_out, &error);
    free(matrix);
    if (rc == -EINVAL)
        hr_log(HR_LOG_INFO, "what NVML says of PCIe is no tree (%s): all GPUs are taken to share a socket", error.text);
    return rc;
}

static int flat_tree(uint32_t gpus, struct hr_topology **tree_out)
{
    struct hr_topology *tree = hr_topology_create();
    int rc = tree ? 0 : -ENOMEM;

    for (uint32_t i = 0; rc == 0 && i < gpus; i++)
        rc = hr_topology_add(tree, HR_ELEMENT_GPU, NULL) < 0 ? -ENOMEM : 0;
    int socket = rc == 0 ? hr_topology_add(tree, HR_ELEMENT_SOCKET, NULL) : -1;
    rc = rc == 0 && socket < 0 ? socket : rc;
    for (uint32_t i = 0; rc == 0 && i < gpus; i++)
        rc = hr_topology_join(tree, (uint32_t)socket, i, HR_LINK_PCIE, 1, hr_rates_pcie_gbps(16, 16),
                              hr_topology_default_latency_ns(HR_LINK_PCIE));
    if (rc == 0)
        *tree_out = tree;
    else
        hr_topology_destroy(tree);
    return rc;
}

static bool any_meeting(const struct hr_sources *sources)
{
    size_t pairs = (size_t)sources->found->gpus * sources->found->gpus;

    for (size_t i = 0; i < pairs; i++) {
        if (sources->meeting[i] != HR_MEET_UNKNOWN && i / sources->found->gpus != i % sources->found->gpus)
            return true;
    }
    return false;
}

/* What a card's slot carries: NVML's word, else what cards of its generation are made for. */
static double slot_gbps(const struct hr_sources *sources, uint32_t gpu)
{
    uint32_t generation = sources->found->gpu[gpu].generation;

    if (sources->nvml && sources->nvml[gpu].pcie_gbps > 0)
        return sources->nvml[gpu].pcie_gbps;
    return hr_rates_pcie_gbps(generation < 80 ? 8 : generation < 90 ? 16 : 32, 16);
}

static void set_slots(const struct hr_sources *sources, struct hr_topology *tree)
{
    for (uint32_t gpu = 0; gpu < tree->gpu_count; gpu++) {
        struct hr_element *element = &tree->elements[tree->gpus[gpu]];
        for (uint32_t p = 0; p < element->port_count; p++) {
            const struct hr_port port = element->ports[p];
            hr_topology_set_rate(tree, tree->gpus[gpu], p, slot_gbps(sources, gpu), port.latency_ns);
            hr_topology_set_rate(tree, (uint32_t)port.peer, (uint32_t)port.peer_port, slot_gbps(sources, gpu),
                                 port.latency_ns);
        }
    }
}

static int make_tree(struct hr_sources *sources)
{
    struct hr_discovery *found = sources->found;
    struct hr_topology *tree = NULL;
    int rc;

    if (sources->file) {
        rc = hr_topology_pick(sources->file, sources->in_file, found->gpus, HR_LINKS_HOST, &tree);
        if (rc == 0 && file_agrees(sources, tree)) {
            found->topology = tree;
            found->tree_from = "topology file";
            return 0;
        }
        hr_topology_destroy(tree);
        if (rc != 0)
            return rc;
    }
    rc = any_meeting(sources) ? tree_of_meetings(sources, &tree) : -EINVAL;
    found->tree_from = rc == 0 ? "NVML" : "driver";
    if (rc == -EINVAL)
        rc = flat_tree(found->gpus, &tree);
    if (rc == 0)
        set_slots(sources, tree);
    found->topology = rc == 0 ? tree : NULL;
    return rc;
}

/* Bus ids; parts of one card get a number behind theirs. */
static void name_gpus(struct hr_discovery *found)
{
    for (uint32_t i = 0; i < found->gpus; i++) {
        char *name = gpu_element(found, i)->name;
        uint32_t before = 0;
        for (uint32_t j = 0; j < i; j++)
            before += strcmp(found->gpu[j].bus_id, found->gpu[i].bus_id) == 0;
        if (before)
            snprintf(name, HR_TOPOLOGY_NAME_BYTES, "%.20s/%u", found->gpu[i].bus_id, before);
        else
            snprintf(name, HR_TOPOLOGY_NAME_BYTES, "%s", found->gpu[i].bus_id);
    }
}

/* ---- links ---- */

static int join(struct hr_discovery *found, uint32_t a, uint32_t b, uint32_t count, double gbps)
{
    return hr_topology_join(found->topology, a, b, HR_LINK_NVLINK, count, gbps,
                            hr_topology_default_latency_ns(HR_LINK_NVLINK));
}

static int find_or_add(struct hr_topology *topology, enum hr_element_kind kind, const char *name)
{
    int element = hr_topology_find(topology, name);

    return element >= 0 ? element : hr_topology_add(topology, kind, name);
}

static uint32_t count_links(const struct hr_nvml_gpu *gpu, enum hr_nvml_far far, const char *bus_id)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < gpu->links; i++)
        count += gpu->link[i].far == far && (!bus_id || strcmp(gpu->link[i].bus_id, bus_id) == 0);
    return count;
}

/* Links of two GPUs, which both tell; of a hidden GPU nothing is wanted. */
static int join_nvml_gpus(struct hr_sources *sources, uint32_t a, uint32_t b)
{
    const struct hr_discovery *found = sources->found;
    uint32_t there = count_links(&sources->nvml[a], HR_NVML_FAR_GPU, found->gpu[b].bus_id);
    uint32_t back = count_links(&sources->nvml[b], HR_NVML_FAR_GPU, found->gpu[a].bus_id);
    uint32_t most = there > back ? there : back;

    return join(sources->found, found->topology->gpus[a], found->topology->gpus[b], most,
                hr_rates_link_gbps(found->gpu[a].generation));
}

static int socket_of(const struct hr_topology *topology)
{
    for (uint32_t i = 0; i < topology->element_count; i++) {
        if (topology->elements[i].kind == HR_ELEMENT_SOCKET)
            return (int)i;
    }
    return -1;
}

static int join_nvml(struct hr_sources *sources)
{
    struct hr_discovery *found = sources->found;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < found->gpus; i++) {
        const struct hr_nvml_gpu *gpu = &sources->nvml[i];
        double gbps = hr_rates_link_gbps(found->gpu[i].generation);
        for (uint32_t j = i + 1; rc == 0 && j < found->gpus; j++)
            rc = join_nvml_gpus(sources, i, j);
        for (uint32_t k = 0; rc == 0 && k < gpu->links; k++) {
            int to = -1;
            if (gpu->link[k].far == HR_NVML_FAR_SWITCH)
                to = find_or_add(found->topology, HR_ELEMENT_SWITCH, gpu->link[k].bus_id);
            else if (gpu->link[k].far == HR_NVML_FAR_PROCESSOR)
                to = socket_of(found->topology);
            else
                continue;
            rc = to >= 0 ? join(found, found->topology->gpus[i], (uint32_t)to, 1, gbps) : to == -1 ? 0 : to;
        }
    }
    return rc;
}

/* The file's links over the tree, which may be NVML's: of its elements only switches are new then. */
static int join_file(struct hr_sources *sources)
{
    struct hr_discovery *found = sources->found;
    struct hr_topology *links;
    int rc = hr_topology_pick(sources->file, sources->in_file, found->gpus, HR_LINKS_FABRIC, &links);

    if (rc != 0)
        return rc;
    for (uint32_t a = 0; rc == 0 && a < links->element_count; a++) {
        for (uint32_t p = 0; rc == 0 && p < links->elements[a].port_count; p++) {
            const struct hr_port port = links->elements[a].ports[p];
            uint32_t ends[2] = {a, (uint32_t)port.peer};
            if (port.peer < (int32_t)a)
                continue;
            for (int end = 0; rc == 0 && end < 2; end++) {
                const struct hr_element *element = &links->elements[ends[end]];
                int place = element->gpu >= 0 ? (int)found->topology->gpus[element->gpu]
                                              : find_or_add(found->topology, element->kind, element->name);
                rc = place < 0 ? place : 0;
                ends[end] = (uint32_t)place;
            }
            if (rc == 0)
                rc = hr_topology_join(found->topology, ends[0], ends[1], port.kind, 1, port.gbps, port.latency_ns);
        }
    }
    hr_topology_destroy(links);
    return rc;
}

/* Whether links lead from one GPU to another with no third one between. */
static bool linked(const struct hr_topology *topology, uint32_t a, uint32_t b)
{
    bool found = false;
    bool *seen = calloc(topology->element_count + 1, sizeof *seen);
    uint32_t *queue = calloc(topology->element_count + 1, sizeof *queue), head = 0, tail = 0;

    if (seen && queue) {
        queue[tail++] = a;
        seen[a] = true;
    }
    while (head < tail && !found) {
        const struct hr_element *at = &topology->elements[queue[head++]];
        for (uint32_t p = 0; p < at->port_count; p++) {
            uint32_t peer = (uint32_t)at->ports[p].peer;
            if (!(HR_LINKS(at->ports[p].kind) & HR_LINKS_FABRIC) || seen[peer])
                continue;
            found = found || peer == b;
            seen[peer] = true;
            if (topology->elements[peer].kind == HR_ELEMENT_SWITCH)
                queue[tail++] = peer;
        }
    }
    free(seen);
    free(queue);
    return found;
}

static uint32_t switches_of(const struct hr_topology *topology, uint32_t gpu, uint32_t *element_out, uint32_t most)
{
    const struct hr_element *element = &topology->elements[gpu];
    uint32_t count = 0;

    for (uint32_t p = 0; p < element->port_count; p++) {
        uint32_t peer = (uint32_t)element->ports[p].peer;
        bool again = topology->elements[peer].kind != HR_ELEMENT_SWITCH;
        for (uint32_t i = 0; i < count; i++)
            again = again || element_out[i] == peer;
        if (!again && count < most)
            element_out[count++] = peer;
    }
    return count;
}

/*
 * Two boards of switches (DGX-2): NVML tells of the switches next to a GPU, not of the trunks between them. That the driver has
 * atomics from one board to the other betrays them; they are taken to carry all that a board's GPUs can send.
 */
static int join_boards(struct hr_discovery *found, uint32_t a, uint32_t b)
{
    struct hr_topology *topology = found->topology;
    uint32_t here[HR_NVML_LINKS], there[HR_NVML_LINKS];
    uint32_t count = switches_of(topology, topology->gpus[a], here, HR_NVML_LINKS);
    uint32_t others = switches_of(topology, topology->gpus[b], there, HR_NVML_LINKS);
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < count && i < others; i++) {
        uint32_t links = 0;
        for (uint32_t p = 0; p < topology->elements[here[i]].port_count; p++)
            links += topology->elements[topology->elements[here[i]].ports[p].peer].kind == HR_ELEMENT_GPU;
        rc = join(found, here[i], there[i], links, hr_rates_link_gbps(found->gpu[a].generation));
    }
    return rc;
}

static bool betrays_links(const struct hr_discovery *found, uint32_t a, uint32_t b)
{
    return pair_of(found, a, b)->atomics && pair_of(found, b, a)->atomics;
}

/*
 * Without NVML and file: atomics work over links, not over PCIe. How many links there are the first timed copy tells. Where every
 * two of three and more GPUs have them, a switch is the careful reading: direct copies are the best there, and they are never
 * far from it on a full mesh.
 */
static int join_betrayed(struct hr_discovery *found)
{
    struct hr_topology *topology = found->topology;
    bool all = found->gpus > 2;
    int rc = 0, hub = -1;

    for (uint32_t i = 0; i < found->gpus; i++) {
        for (uint32_t j = 0; j < i; j++)
            all = all && betrays_links(found, i, j);
    }
    if (all) {
        hub = hr_topology_add(topology, HR_ELEMENT_SWITCH, NULL);
        rc = hub < 0 ? hub : 0;
    }
    for (uint32_t i = 0; rc == 0 && i < found->gpus; i++) {
        double gbps = hr_rates_link_gbps(found->gpu[i].generation);
        if (all)
            rc = join(found, topology->gpus[i], (uint32_t)hub, 1, gbps);
        for (uint32_t j = i + 1; rc == 0 && !all && j < found->gpus; j++)
            rc = betrays_links(found, i, j) ? join(found, topology->gpus[i], topology->gpus[j], 1, gbps) : 0;
    }
    return rc;
}

static int make_links(struct hr_sources *sources)
{
    struct hr_discovery *found = sources->found;
    bool told = sources->nvml != NULL;
    int rc;

    for (uint32_t i = 0; told && i < found->gpus; i++)
        told = sources->nvml[i].told;
    found->links_from = told ? "NVML" : sources->file ? "topology file" : "driver";
    rc = told ? join_nvml(sources) : sources->file ? join_file(sources) : join_betrayed(found);
    for (uint32_t i = 0; rc == 0 && i < found->gpus; i++) {
        for (uint32_t j = i + 1; rc == 0 && j < found->gpus; j++) {
            if (betrays_links(found, i, j) &&
                !linked(found->topology, found->topology->gpus[i], found->topology->gpus[j]))
                rc = join_boards(found, i, j);
        }
    }
    return rc;
}

/* Links that are there but that the driver does not let be used (MIG, a virtual machine's policy) carry nothing. */
static void close_links(struct hr_discovery *found)
{
    struct hr_topology *topology = found->topology;

    for (uint32_t gpu = 0; gpu < found->gpus; gpu++) {
        const struct hr_element *element = gpu_element(found, gpu);
        bool reaches_any = false;
        for (uint32_t other = 0; other < found->gpus; other++)
            reaches_any = reaches_any || reach_each_other(found, gpu, other);
        for (uint32_t p = 0; p < element->port_count; p++) {
            const struct hr_port port = element->ports[p];
            const struct hr_element *peer = &topology->elements[port.peer];
            bool open = peer->kind == HR_ELEMENT_GPU      ? reach_each_other(found, gpu, (uint32_t)peer->gpu)
                        : peer->kind == HR_ELEMENT_SWITCH ? reaches_any
                                                          : true;
            if ((HR_LINKS(port.kind) & HR_LINKS_FABRIC) && !open) {
                hr_topology_set_up(topology, topology->gpus[gpu], p, false);
                hr_topology_set_up(topology, (uint32_t)port.peer, (uint32_t)port.peer_port, false);
            }
        }
    }
}

int hr_sources_merge(struct hr_sources *sources)
{
    int rc = make_tree(sources);

    if (rc != 0)
        return rc;
    name_gpus(sources->found);
    rc = make_links(sources);
    if (rc == 0)
        close_links(sources->found);
    return rc;
}
