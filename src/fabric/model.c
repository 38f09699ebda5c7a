/*
 * A fluid simulation. Between two events every moving copy has a rate; rates are max-min fair: all grow together until an edge
 * is full, whoever uses it stays there, the others go on growing. An event is the end of a copy's start or of its bytes.
 *
 * A lane is one leg of one path of one plan. Its chunks go in order: at most one moves, and one more may be starting meanwhile
 * (unless the costs say that starts do not overlap).
 */
#include "fabric/model.h"

#include "base/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct use {
    uint32_t edge;
    double part; /* of the lane's rate */
};

struct lane {
    struct use *use;
    uint32_t use_count;
    uint32_t begun;      /* chunks of the path whose copy on this leg was started */
    uint32_t ready;      /* of these, started long enough ago to move */
    uint32_t done;       /* of these, through */
    double start_end_ns; /* when the one that is starting will be ready; INFINITY = none is */
    double left;         /* bytes of the moving one, number `done` */
    double rate;         /* bytes a nanosecond */
    bool frozen;
};

struct route {
    uint32_t legs;
    struct lane *lane;
    double latency_ns;
    uint32_t chunk_count;
    struct hr_part *chunk; /* in order */
    uint32_t limit;        /* chunks from here on were given back */
    bool dead;
};

struct play {
    struct route *route;
    uint32_t route_count;
    double end_ns;
};

struct hr_model {
    const struct hr_graph *graph;
    struct hr_pipeline_costs costs;
    double now_ns;
    bool *failed;  /* by edge */
    double *room;  /* by edge, while rates are computed */
    double *users; /* by edge */
    struct play *play;
    uint32_t play_count;
    struct hr_part *delivered;
    uint32_t delivered_count, delivered_room;
};

static void play_finish(struct play *play)
{
    for (uint32_t i = 0; play->route && i < play->route_count; i++) {
        for (uint32_t k = 0; play->route[i].lane && k < play->route[i].legs; k++)
            free(play->route[i].lane[k].use);
        free(play->route[i].lane);
        free(play->route[i].chunk);
    }
    free(play->route);
}

void hr_model_destroy(struct hr_model *model)
{
    if (!model)
        return;
    for (uint32_t i = 0; i < model->play_count; i++)
        play_finish(&model->play[i]);
    free(model->play);
    free(model->failed);
    free(model->room);
    free(model->users);
    free(model->delivered);
    free(model);
}

struct hr_model *hr_model_create(const struct hr_graph *graph, const struct hr_pipeline_costs *costs)
{
    struct hr_model *model = calloc(1, sizeof *model);

    if (!model)
        return NULL;
    model->graph = graph;
    model->costs = hr_pipeline_costs_of(costs);
    model->failed = calloc(graph->edges + 1, sizeof *model->failed);
    model->room = calloc(graph->edges + 1, sizeof *model->room);
    model->users = calloc(graph->edges + 1, sizeof *model->users);
    if (!model->failed || !model->room || !model->users) {
        hr_model_destroy(model);
        return NULL;
    }
    return model;
}

double hr_model_now_ns(const struct hr_model *model)
{
    return model->now_ns;
}

double hr_model_end_ns(const struct hr_model *model, uint32_t plan)
{
    return model->play[plan].end_ns;
}

const struct hr_part *hr_model_delivered(const struct hr_model *model, uint32_t *count_out)
{
    *count_out = model->delivered_count;
    return model->delivered;
}

/* ---- beginning ---- */

static bool make_lanes(struct route *route, const struct hr_path *path)
{
    route->legs = path->legs;
    route->lane = calloc(path->legs, sizeof *route->lane);
    for (uint32_t k = 0; route->lane && k < path->legs; k++) {
        struct lane *lane = &route->lane[k];
        lane->start_end_ns = INFINITY;
        lane->use = calloc(path->load_count, sizeof *lane->use);
        if (!lane->use)
            return false;
        for (uint32_t i = 0; i < path->load_count; i++) {
            if (path->load[i].leg == k)
                lane->use[lane->use_count++] =
                    (struct use){path->load[i].edge, (double)path->load[i].mbps / (double)path->mbps};
        }
    }
    return route->lane != NULL;
}

static bool make_route(struct route *route, const struct hr_plan *plan, uint32_t number, const struct hr_routes *routes)
{
    const struct hr_plan_path *path = &plan->path[number];

    route->latency_ns = path->latency_ns;
    route->chunk = calloc(path->chunks + 1, sizeof *route->chunk);
    if (!route->chunk)
        return false;
    for (uint32_t i = 0; i < plan->chunk_count; i++) {
        if (plan->chunk[i].path == number)
            route->chunk[route->chunk_count++] = (struct hr_part){plan->chunk[i].offset, plan->chunk[i].bytes};
    }
    route->limit = route->chunk_count;
    return make_lanes(route, &routes->path[path->route]);
}

int hr_model_begin(struct hr_model *model, const struct hr_plan *plan, const struct hr_routes *routes)
{
    struct play *grown = realloc(model->play, (model->play_count + 1) * sizeof *grown);

    if (!grown)
        return -ENOMEM;
    model->play = grown;
    struct play *play = &grown[model->play_count];
    *play = (struct play){.route_count = plan->path_count, .end_ns = -1};
    play->route = calloc(plan->path_count, sizeof *play->route);
    bool done = play->route != NULL;
    for (uint32_t i = 0; done && i < plan->path_count; i++)
        done = make_route(&play->route[i], plan, i, routes);
    /* Room for every chunk that can still arrive, so that arriving never needs memory. */
    uint32_t room = model->delivered_room + plan->chunk_count;
    struct hr_part *delivered = done ? realloc(model->delivered, room * sizeof *delivered) : NULL;
    if (!delivered) {
        play_finish(play);
        return -ENOMEM;
    }
    model->delivered = delivered;
    model->delivered_room = room;
    return (int)model->play_count++;
}

/* ---- what may start ---- */

static bool may_begin(const struct hr_model *model, const struct route *route, uint32_t leg)
{
    const struct lane *lane = &route->lane[leg];
    uint32_t at_source = leg == 0 ? route->limit : route->lane[leg - 1].done;

    if (route->dead || lane->begun >= at_source || lane->start_end_ns != INFINITY)
        return false;
    if (lane->begun - lane->done >= (model->costs.no_overlap ? 1u : 2u))
        return false;
    return leg + 1 == route->legs || lane->begun - route->lane[leg + 1].done < model->costs.slots;
}

static bool moves(const struct route *route, const struct lane *lane)
{
    return !route->dead && lane->ready > lane->done;
}

static void begin_what_may(struct hr_model *model)
{
    for (uint32_t p = 0; p < model->play_count; p++) {
        for (uint32_t i = 0; i < model->play[p].route_count; i++) {
            struct route *route = &model->play[p].route[i];
            for (uint32_t k = 0; k < route->legs; k++) {
                if (!may_begin(model, route, k))
                    continue;
                struct lane *lane = &route->lane[k];
                /* The links' latency is paid once a path, with its first chunk. */
                lane->start_end_ns =
                    model->now_ns + model->costs.start_ns + (lane->begun == 0 ? route->latency_ns / route->legs : 0);
                lane->begun++;
            }
        }
    }
}

/* ---- rates ---- */

#define FOR_LANES(model, play_, route_, lane_)                                                                         \
    for (struct play *play_ = (model)->play; play_ < (model)->play + (model)->play_count; play_++)                     \
        for (struct route *route_ = play_->route; route_ < play_->route + play_->route_count; route_++)                \
            for (struct lane *lane_ = route_->lane; lane_ < route_->lane + route_->legs; lane_++)

static void count_users(struct hr_model *model)
{
    for (uint32_t e = 0; e < model->graph->edges; e++)
        model->users[e] = 0;
    FOR_LANES(model, play, route, lane)
    {
        for (uint32_t u = 0; !lane->frozen && u < lane->use_count; u++)
            model->users[lane->use[u].edge] += lane->use[u].part;
    }
}

static void share_out(struct hr_model *model)
{
    bool growing = false;

    for (uint32_t e = 0; e < model->graph->edges; e++)
        model->room[e] = model->failed[e] ? 0 : (double)model->graph->edge[e].mbps / 1000;
    FOR_LANES(model, play, route, lane)
    {
        lane->rate = 0;
        lane->frozen = !moves(route, lane);
        growing = growing || !lane->frozen;
    }
    while (growing) {
        double grow = INFINITY;
        count_users(model);
        for (uint32_t e = 0; e < model->graph->edges; e++) {
            if (model->users[e] > 1e-12)
                grow = hr_number_min(grow, model->room[e] / model->users[e]);
        }
        for (uint32_t e = 0; e < model->graph->edges; e++)
            model->room[e] -= grow * model->users[e];
        growing = false;
        FOR_LANES(model, play, route, lane)
        {
            if (lane->frozen)
                continue;
            lane->rate += grow;
            for (uint32_t u = 0; u < lane->use_count; u++)
                lane->frozen = lane->frozen || model->room[lane->use[u].edge] <= 1e-9;
            growing = growing || !lane->frozen;
        }
    }
}

/* ---- events ---- */

static double next_event(struct hr_model *model)
{
    double next = INFINITY;

    FOR_LANES(model, play, route, lane)
    {
        if (route->dead)
            continue;
        next = hr_number_min(next, lane->start_end_ns);
        if (moves(route, lane) && lane->rate > 0)
            next = hr_number_min(next, model->now_ns + lane->left / lane->rate);
    }
    return next;
}

static void advance(struct hr_model *model, double to_ns)
{
    FOR_LANES(model, play, route, lane)
    {
        if (moves(route, lane))
            lane->left -= lane->rate * (to_ns - model->now_ns);
    }
    model->now_ns = to_ns;
}

static void finish_chunk(struct hr_model *model, struct play *play, struct route *route, struct lane *lane)
{
    lane->done++;
    if (lane->ready > lane->done)
        lane->left = (double)route->chunk[lane->done].bytes;
    if (lane + 1 < route->lane + route->legs)
        return;
    model->delivered[model->delivered_count++] = route->chunk[lane->done - 1];
    for (uint32_t i = 0; i < play->route_count; i++) {
        const struct route *other = &play->route[i];
        if (!other->dead && other->lane[other->legs - 1].done < other->limit)
            return;
    }
    play->end_ns = model->now_ns;
}

static void take_events(struct hr_model *model)
{
    FOR_LANES(model, play, route, lane)
    {
        if (route->dead)
            continue;
        if (lane->start_end_ns <= model->now_ns) {
            lane->start_end_ns = INFINITY;
            if (lane->ready == lane->done)
                lane->left = (double)route->chunk[lane->ready].bytes;
            lane->ready++;
        }
        /* Half a byte is what a double of nanoseconds cannot tell from nothing. */
        if (moves(route, lane) && lane->left <= 0.5)
            finish_chunk(model, play, route, lane);
    }
}

static bool all_ended(const struct hr_model *model)
{
    for (uint32_t p = 0; p < model->play_count; p++) {
        if (model->play[p].end_ns < 0)
            return false;
    }
    return true;
}

int hr_model_run(struct hr_model *model, double until_ns)
{
    while (!all_ended(model)) {
        begin_what_may(model);
        share_out(model);
        double next = next_event(model);
        if (next == INFINITY)
            return -EPIPE;
        if (next > until_ns) {
            advance(model, until_ns);
            return -ETIMEDOUT;
        }
        advance(model, next);
        take_events(model);
    }
    return 0;
}

/* ---- what is under way ---- */

/* Adds the bytes that were begun and have not crossed this leg yet to the edges that it uses. */
static void add_waiting(const struct route *route, const struct lane *lane, double *bytes)
{
    double waiting = 0;

    for (uint32_t c = lane->done; c < route->lane[0].begun; c++)
        waiting += c == lane->done && lane->ready > lane->done ? lane->left : (double)route->chunk[c].bytes;
    for (uint32_t u = 0; u < lane->use_count; u++)
        bytes[lane->use[u].edge] += waiting * lane->use[u].part;
}

int hr_model_busy_ns(const struct hr_model *model, const struct hr_routes *routes, double *busy_ns_out)
{
    double *bytes = calloc(model->graph->edges + 1, sizeof *bytes);

    if (!bytes)
        return -ENOMEM;
    FOR_LANES(model, play, route, lane)
    {
        if (!route->dead)
            add_waiting(route, lane, bytes);
    }
    for (uint32_t i = 0; i < routes->path_count; i++) {
        busy_ns_out[i] = 0;
        for (uint32_t k = 0; k < routes->path[i].load_count; k++) {
            uint32_t edge = routes->path[i].load[k].edge;
            busy_ns_out[i] =
                hr_number_max(busy_ns_out[i], bytes[edge] / ((double)model->graph->edge[edge].mbps / 1000));
        }
    }
    free(bytes);
    return 0;
}

/* ---- failing ---- */

static bool uses(const struct route *route, uint32_t edge)
{
    for (uint32_t k = 0; k < route->legs; k++) {
        for (uint32_t u = 0; u < route->lane[k].use_count; u++) {
            if (route->lane[k].use[u].edge == edge)
                return true;
        }
    }
    return false;
}

static int by_offset(const void *a, const void *b)
{
    const struct hr_part *x = a, *y = b;

    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Adjacent extents become one, so that chunks need not end where the old ones did. */
static uint32_t fuse(struct hr_part *extents, uint32_t count)
{
    uint32_t fused = 0;

    if (count > 0)
        qsort(extents, count, sizeof *extents, by_offset);
    for (uint32_t i = 0; i < count; i++) {
        if (fused > 0 && extents[fused - 1].offset + extents[fused - 1].bytes == extents[i].offset)
            extents[fused - 1].bytes += extents[i].bytes;
        else
            extents[fused++] = extents[i];
    }
    return fused;
}

/* The plan's part that goes on by itself may be over already. */
static void settle(struct hr_model *model, struct play *play)
{
    bool open = false;

    for (uint32_t i = 0; i < play->route_count; i++) {
        const struct route *route = &play->route[i];
        open = open || (!route->dead && route->lane[route->legs - 1].done < route->limit);
    }
    if (!open && play->end_ns < 0)
        play->end_ns = model->now_ns;
}

int hr_model_fail(struct hr_model *model, uint32_t edge, struct hr_part **extents_out)
{
    struct hr_part *extents = calloc(model->delivered_room + 1, sizeof *extents);
    uint32_t count = 0;

    if (!extents)
        return -ENOMEM;
    model->failed[edge] = true;
    for (uint32_t p = 0; p < model->play_count; p++) {
        for (uint32_t i = 0; i < model->play[p].route_count; i++) {
            struct route *route = &model->play[p].route[i];
            if (route->dead)
                continue;
            bool dies = uses(route, edge);
            uint32_t keep = dies ? route->lane[route->legs - 1].done : route->lane[0].begun;
            for (uint32_t c = keep; c < route->limit; c++)
                extents[count++] = route->chunk[c];
            route->limit = keep;
            route->dead = dies;
        }
        settle(model, &model->play[p]);
    }
    *extents_out = extents;
    return (int)fuse(extents, count);
}
