/*
 * Transfers differ in size, and routes in legs, so what is compared is neither time nor bytes / time: from each transfer follows the rate at which its
 * route moves bytes, with the model of pipeline.c, and from that what a transfer of one size for all would have taken.
 */
#include "fabric/probed.h"

#include "fabric/pipeline.h"

#include "base/number.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define REFERENCE_BYTES (UINT64_C(16) << 20)
#define EXPLORE 16 /* every so manieth transfer tries another route */

struct wanted {
    uint32_t count;
    struct hr_path route[HR_PROBED_ROUTES];
};

static bool same_gpus(const struct hr_path *a, const uint16_t *gpu, uint32_t legs)
{
    return a->legs == legs && memcmp(a->gpu, gpu, (legs + 1) * sizeof *gpu) == 0;
}

/* 0 also where there is no such way, no room for another, or it is there. */
static int want(struct wanted *wanted, const struct hr_graph *graph, const uint16_t *gpu, uint32_t legs)
{
    if (wanted->count == HR_PROBED_ROUTES)
        return 0;
    for (uint32_t i = 0; i < wanted->count; i++)
        if (same_gpus(&wanted->route[i], gpu, legs))
            return 0;
    int rc = hr_route_along(graph, gpu, legs, &wanted->route[wanted->count]);
    wanted->count += rc == 0;
    return rc == -ENETUNREACH ? 0 : rc;
}

static int want_flow(struct wanted *wanted, const struct hr_graph *graph, uint32_t source, uint32_t destination)
{
    struct hr_route_limits limits = {.keep_slow = true};
    struct hr_routes routes = {0};
    int rc = hr_route_large(graph, &limits, source, destination, &routes);

    for (uint32_t i = 0; rc == 0 && i < routes.path_count; i++)
        rc = want(wanted, graph, routes.path[i].gpu, routes.path[i].legs);
    hr_routes_finish(&routes);
    return rc;
}

static int64_t width_over(const struct hr_graph *graph, uint32_t source, uint32_t relay, uint32_t destination)
{
    int64_t in = hr_graph_leg_mbps(graph, source, relay), out = hr_graph_leg_mbps(graph, relay, destination);

    return in < out ? in : out;
}

static bool is_wanted(const struct wanted *wanted, uint32_t relay)
{
    for (uint32_t i = 0; i < wanted->count; i++)
        if (wanted->route[i].legs == 2 && wanted->route[i].gpu[1] == relay)
            return true;
    return false;
}

static int want_relayed(struct wanted *wanted, const struct hr_graph *graph, uint32_t source, uint32_t destination)
{
    for (int rc = 0; wanted->count < HR_PROBED_ROUTES;) {
        int64_t widest = 0;
        uint32_t best = 0;
        for (uint32_t relay = 0; relay < graph->gpus; relay++) {
            int64_t width = relay == source || relay == destination ? 0 : width_over(graph, source, relay, destination);
            if (width > widest && !is_wanted(wanted, relay)) {
                widest = width;
                best = relay;
            }
        }
        if (widest == 0)
            break;
        rc = want(wanted, graph, (uint16_t[]){(uint16_t)source, (uint16_t)best, (uint16_t)destination}, 2);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Routes that are there as before keep their places. */
static void keep_known(struct hr_probed *probed, struct wanted *wanted)
{
    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++) {
        struct hr_path *old = &probed->route[i], *new = NULL;
        for (uint32_t k = 0; old->legs > 0 && k < wanted->count && !new; k++)
            if (wanted->route[k].legs > 0 && same_gpus(&wanted->route[k], old->gpu, old->legs))
                new = &wanted->route[k];
        if (old->legs > 0 && (!new || new->mbps != old->mbps))
            hr_probe_set_up(&probed->probe, i, false);
        hr_path_finish(old);
        if (!new)
            continue;
        *old = *new;
        *new = (struct hr_path){0};
    }
}

int hr_probed_renew(struct hr_probed *probed, const struct hr_graph *graph, uint64_t serial)
{
    struct hr_probe_settings settings = {.explore = EXPLORE, .reference_bytes = REFERENCE_BYTES};
    struct wanted wanted = {0};
    uint16_t direct[] = {(uint16_t)probed->source, (uint16_t)probed->destination};
    int rc = want(&wanted, graph, direct, 1);

    rc = rc == 0 ? want_flow(&wanted, graph, probed->source, probed->destination) : rc;
    rc = rc == 0 ? want_relayed(&wanted, graph, probed->source, probed->destination) : rc;
    if (rc == 0 && probed->serial == 0)
        rc = hr_probe_init(&probed->probe, HR_PROBED_ROUTES, &settings);
    if (rc != 0) {
        for (uint32_t i = 0; i < wanted.count; i++)
            hr_path_finish(&wanted.route[i]);
        return rc;
    }
    keep_known(probed, &wanted);
    for (uint32_t i = 0, k = 0; i < HR_PROBED_ROUTES; i++) {
        while (k < wanted.count && wanted.route[k].legs == 0)
            k++;
        if (probed->route[i].legs == 0 && k < wanted.count)
            probed->route[i] = wanted.route[k++];
        hr_probe_set_up(&probed->probe, i, probed->route[i].legs > 0);
    }
    probed->serial = serial;
    return 0;
}

void hr_probed_finish(struct hr_probed *probed)
{
    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++)
        hr_path_finish(&probed->route[i]);
}

static int copy_path(const struct hr_path *path, struct hr_path *out)
{
    struct hr_path copy = *path;

    copy.gpu = malloc((path->legs + 1) * sizeof *copy.gpu);
    copy.load = malloc((path->load_count + 1) * sizeof *copy.load);
    if (!copy.gpu || !copy.load) {
        hr_path_finish(&copy);
        return -ENOMEM;
    }
    memcpy(copy.gpu, path->gpu, (path->legs + 1) * sizeof *copy.gpu);
    memcpy(copy.load, path->load, path->load_count * sizeof *copy.load);
    *out = copy;
    return 0;
}

int hr_probed_choose(struct hr_probed *probed, uint32_t allowed, struct hr_routes *routes_out)
{
    uint32_t open = 0;

    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++)
        open += probed->route[i].legs > 0 && allowed >> i & 1;
    int route = open > 1 ? hr_probe_choose(&probed->probe, allowed) : -1;
    if (route < 0)
        return -EAGAIN;
    *routes_out = (struct hr_routes){.source = probed->source, .destination = probed->destination};
    int rc = copy_path(&probed->route[route], &routes_out->path[0]);
    if (rc != 0)
        return rc;
    routes_out->path_count = 1;
    routes_out->mbps = routes_out->path[0].mbps;
    return 0;
}

/* With h legs, bytes S and pieces of c: elapsed = what starting and latency take + (S + (h - 1) * c) / rate. */
static double rate_of(const struct hr_path *path, const struct hr_probed_sample *sample)
{
    struct hr_pipeline_costs costs = hr_pipeline_costs_of(NULL);
    double fixed_ns = path->latency_ns + sample->legs * costs.start_ns;
    double moving_ns = hr_number_max(sample->elapsed_ns - fixed_ns, sample->elapsed_ns * 0.1);
    uint64_t piece = sample->chunk_bytes < sample->bytes ? sample->chunk_bytes : sample->bytes;

    return ((double)sample->bytes + (double)(sample->legs - 1) * (double)piece) / moving_ns;
}

void hr_probed_note(struct hr_probed *probed, const struct hr_path *path, const struct hr_probed_sample *sample)
{
    if (sample->bytes == 0 || sample->legs == 0 || !(sample->elapsed_ns > 0))
        return;
    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++) {
        if (probed->route[i].legs == 0 || !same_gpus(&probed->route[i], path->gpu, path->legs))
            continue;
        double gbps = rate_of(path, sample);
        double ns = hr_pipeline_path_ns(gbps, sample->legs, path->latency_ns, (double)REFERENCE_BYTES, NULL);
        hr_probe_note(&probed->probe, i, REFERENCE_BYTES, ns - (double)REFERENCE_BYTES / gbps, ns);
        return;
    }
}
