/*
 * A view is computed as a whole and swapped under the lock; it dies with its last user. What was told from outside (links that lie, rates that
 * were measured) is kept as a list and applied again to each topology that the source gives, since a link that comes back is seen by asking
 * again.
 */
#include "fabric/machine.h"

#include "base/config.h"
#include "base/loader.h"
#include "base/lock.h"
#include "base/log.h"
#include "driver/driver.h"
#include "fabric/discover.h"
#include "fabric/portcount.h"
#include "fabric/routers.h"
#include "fabric/verify.h"
#include "stats/stats.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CROWD_GPUS 16 /* up to so many a plan of all pairs at once costs milliseconds */
#define CROWD_TOLERANCE 0.05
#define CROWD_SHARE_OF 8
#define LOAD_WINDOW 8 /* transfers */
#define MOST_GPUS 64  /* of one process's machine: relay masks have a bit for each */

/* Something said of the links from one GPU to another. */
struct said {
    uint32_t from, to;
    bool down;
    double gbps; /* of all of them; 0 = not measured */
    uint32_t latency_ns;
};

struct view {
    struct hr_fabric_view public;                       /* first: a struct hr_fabric_view * is a struct view * */
    struct hr_account account;                          /* guarded by lock */
    _Atomic(uint8_t) direct_only[MOST_GPUS][MOST_GPUS]; /* by pair: enum, found at the first use */
    _Atomic(uint8_t) plan_state;                        /* enum, of: */
    struct hr_all_to_all plan;                          /* how all pairs go at once, made at the first crowd */
    bool plan_relays;
};
enum { DIRECT_UNKNOWN, DIRECT_ONLY, DIRECT_AND_MORE };
enum { PLAN_NONE, PLAN_BEING_MADE, PLAN_READY };

struct hr_fabric {
    uint32_t gpus;
    int ordinal[MOST_GPUS]; /* -1 = not seen by the process */
    struct hr_routers *routers;
    struct hr_topology *topology;       /* guarded by change_lock */
    uint64_t epoch;                     /* guarded by change_lock: of the routers, when the topology was read */
    _Atomic(uint64_t) epoch_seen;       /* the same, for a look without the lock */
    struct said *said;                  /* guarded by change_lock */
    uint32_t said_count;                /* guarded by change_lock */
    bool blocked[MOST_GPUS][MOST_GPUS]; /* guarded by lock: no leg may lead from the one to the other */
    struct view *view;                  /* guarded by lock */
    uint32_t running;                   /* guarded by lock: charged, of all views */
    double load;                        /* guarded by lock: how many were running when one began, of late */
};

/* Whoever makes a new view; outside of it, lock for a moment. */
static struct hr_mutex change_lock = HR_MUTEX_INIT(HR_RANK_START + 2, "fabric changes");
static struct hr_mutex lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "fabric");
static _Atomic(struct hr_fabric *) the_fabric;
static _Atomic(int) failure;  /* of the first attempt */
static _Atomic(bool) doubted; /* a link failed since its state was read; only routers tell of that by themselves */

/* ---- views ---- */

static void view_destroy(struct view *view)
{
    if (!view)
        return;
    hr_account_finish(&view->account);
    hr_all_to_all_finish(&view->plan);
    hr_tables_destroy(view->public.tables);
    hr_graph_destroy(view->public.graph);
    free(view);
}

static struct hr_tables_options table_options(void)
{
    switch (hr_config()->ports) {
    case HR_PORT_ANY: return (struct hr_tables_options){.policy = HR_PORTS_ANY};
    case HR_PORT_ROUNDROBIN: return (struct hr_tables_options){.policy = HR_PORTS_ROUND_ROBIN};
    case HR_PORT_ADDRESS: return (struct hr_tables_options){.policy = HR_PORTS_BY_ADDRESS};
    default: return (struct hr_tables_options){.policy = HR_PORTS_ALL};
    }
}

/* Links of their own where there are any: beside them drivers do not use PCIe between GPUs. */
static unsigned kinds_of(const struct hr_topology *topology)
{
    for (uint32_t i = 0; i < topology->element_count; i++)
        for (uint32_t p = 0; p < topology->elements[i].port_count; p++)
            if (topology->elements[i].ports[p].peer >= 0 &&
                HR_LINKS_FABRIC & HR_LINKS(topology->elements[i].ports[p].kind))
                return HR_LINKS_FABRIC;
    return HR_LINKS_ALL;
}

static struct view *view_make(const struct hr_topology *topology)
{
    static _Atomic(uint64_t) made;
    struct view *view = calloc(1, sizeof *view);
    struct hr_tables_options options = table_options();

    if (!view)
        return NULL;
    view->public.users = 1; /* the fabric's */
    view->public.serial = atomic_fetch_add(&made, 1) + 1;
    view->public.kinds = kinds_of(topology);
    view->public.graph = hr_graph_compile(topology, view->public.kinds);
    if (!view->public.graph || hr_account_init(&view->account, view->public.graph) != 0 ||
        hr_tables_compute(view->public.graph, &options, &view->public.tables) != 0) {
        view_destroy(view);
        return NULL;
    }
    return view;
}

const struct hr_fabric_view *hr_fabric_take(struct hr_fabric *fabric)
{
    hr_mutex_lock(&lock);
    struct view *view = fabric->view;
    view->public.users++;
    hr_mutex_unlock(&lock);
    return &view->public;
}

static bool is_last_locked(struct view *view)
{
    return --view->public.users == 0;
}

void hr_fabric_drop(struct hr_fabric *fabric, const struct hr_fabric_view *dropped)
{
    struct view *view = (struct view *)dropped;

    (void)fabric;
    hr_mutex_lock(&lock);
    bool last = is_last_locked(view);
    hr_mutex_unlock(&lock);
    if (last)
        view_destroy(view);
}

static void view_set(struct hr_fabric *fabric, struct view *view)
{
    hr_mutex_lock(&lock);
    struct view *old = fabric->view;
    fabric->view = view;
    bool last = old && is_last_locked(old);
    hr_mutex_unlock(&lock);
    if (last)
        view_destroy(old);
}

/* ---- what was said of links ---- */

/* The ports of one GPU that lead straight to another. */
static uint32_t apply_to_ports(struct hr_topology *topology, const struct said *said)
{
    uint32_t from = topology->gpus[said->from], to = topology->gpus[said->to], count = 0;
    struct hr_element *element = &topology->elements[from];

    for (uint32_t p = 0; p < element->port_count; p++)
        count += element->ports[p].peer == (int32_t)to;
    for (uint32_t p = 0; p < element->port_count; p++) {
        if (element->ports[p].peer != (int32_t)to)
            continue;
        if (said->down)
            hr_topology_set_up(topology, from, p, false);
        if (said->gbps > 0)
            hr_topology_set_rate(topology, from, p, said->gbps / count, said->latency_ns);
    }
    return count;
}

static void apply_all(struct hr_fabric *fabric, struct hr_topology *topology) HR_REQUIRES(change_lock)
{
    for (uint32_t i = 0; i < fabric->said_count; i++)
        apply_to_ports(topology, &fabric->said[i]);
}

static struct said *said_of(struct hr_fabric *fabric, uint32_t from, uint32_t to) HR_REQUIRES(change_lock)
{
    for (uint32_t i = 0; i < fabric->said_count; i++)
        if (fabric->said[i].from == from && fabric->said[i].to == to)
            return &fabric->said[i];
    struct said *more = realloc(fabric->said, (fabric->said_count + 1) * sizeof *more);
    if (!more)
        return NULL;
    fabric->said = more;
    more[fabric->said_count] = (struct said){.from = from, .to = to};
    return &more[fabric->said_count++];
}

/* ---- making the fabric ---- */

static void *driver_symbol(const char *name, void *arg)
{
    return hr_loader_find(arg, name);
}

static void find_routers(struct hr_fabric *fabric)
{
    void *handle = hr_loader_open(hr_driver_path(), RTLD_LAZY | RTLD_NOLOAD);

    if (handle && hr_routers_open(driver_symbol, handle, &fabric->routers) != 0)
        fabric->routers = NULL;
    dlerror(); /* what the driver lacks is nothing that the job's next dlerror should tell */
}

static void publish(struct hr_fabric *fabric) HR_REQUIRES(change_lock)
{
    struct hr_tables_options options = table_options();
    int rc = fabric->routers ? hr_routers_publish(fabric->routers, fabric->topology, &options) : 0;

    if (rc != 0)
        hr_log(HR_LOG_WARN, "the routers could not be given tables: %s", strerror(-rc));
}

/* The log keeps what stderr was told, each pair once. */
static void note_bad_ways(const struct hr_discovery *found)
{
    for (uint32_t from = 0; found && from < found->gpus; from++) {
        for (uint32_t to = 0; to < found->gpus; to++) {
            const struct hr_pair *there = &found->pair[from * found->gpus + to];
            bool both = found->pair[to * found->gpus + from].state == there->state;
            char text[HR_VERIFY_TEXT_BYTES];
            if (there->state <= HR_PAIR_GOOD || (both && to < from))
                continue;
            hr_verify_describe(found, from, to, both, text);
            hr_stats_event("path", text);
        }
    }
}

/*
 * Discovery finds out which ways are good, everywhere, at the first call. How links are, routers that tell it know best; elsewhere it is
 * what NVML says now.
 */
static int read_topology(const struct hr_fabric *fabric, struct hr_topology **topology_out)
{
    struct hr_text_error why = {0};
    int rc = 0;

    bool first = !hr_discovery_of_process();
    if (!fabric->routers || first)
        rc = hr_discover(topology_out, &why);
    if (first)
        note_bad_ways(hr_discovery_of_process());
    if (rc != 0)
        hr_log(HR_LOG_INFO, "what the machine looks like was not found out: %s", why.text);
    if (!fabric->routers)
        return rc;
    if (rc == 0)
        hr_topology_destroy(*topology_out);
    return hr_routers_read(fabric->routers, topology_out);
}

/* Which GPU of the topology each CUDA device is. Parts of one card have one bus id, and the first part bears it. */
static int match_devices(struct hr_fabric *fabric, const struct hr_topology *topology)
{
    int devices = 0, matched = 0;

    for (uint32_t gpu = 0; gpu < topology->gpu_count; gpu++)
        fabric->ordinal[gpu] = -1;
    if (hr_drv.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return 0;
    for (int i = 0; i < devices; i++) {
        char bus_id[HR_TOPOLOGY_NAME_BYTES], name[HR_TOPOLOGY_NAME_BYTES];
        CUdevice device;
        if (hr_drv.cuDeviceGet(&device, i) != CUDA_SUCCESS)
            continue;
        hr_discover_bus_id(device, bus_id);
        for (uint32_t gpu = 0; gpu < topology->gpu_count; gpu++) {
            if (fabric->ordinal[gpu] >= 0 || !hr_topology_bus_id(topology->elements[topology->gpus[gpu]].name, name) ||
                strcmp(name, bus_id) != 0)
                continue;
            fabric->ordinal[gpu] = i;
            matched++;
            break;
        }
    }
    return matched;
}

/* No leg leads where copies were tried and went wrong, whatever the links there are. */
static int heed_copies(struct hr_fabric *fabric) HR_REQUIRES(change_lock)
{
    const struct hr_discovery *found = hr_discovery_of_process();

    for (uint32_t from = 0; found && from < fabric->gpus; from++) {
        for (uint32_t to = 0; to < fabric->gpus; to++) {
            int a = fabric->ordinal[from], b = fabric->ordinal[to];
            if (a < 0 || b < 0 || found->pair[(uint32_t)a * found->gpus + (uint32_t)b].state <= HR_PAIR_GOOD)
                continue;
            struct said *said = said_of(fabric, from, to);
            if (!said)
                return -ENOMEM;
            said->down = true;
            fabric->blocked[from][to] = true; /* nobody else has the fabric yet */
        }
    }
    apply_all(fabric, fabric->topology);
    return 0;
}

static int make(struct hr_fabric **fabric_out) HR_REQUIRES(change_lock)
{
    struct hr_fabric *fabric = calloc(1, sizeof *fabric);
    int rc = -ENOMEM;

    if (fabric) {
        find_routers(fabric);
        fabric->epoch = fabric->routers ? hr_routers_epoch(fabric->routers) : 0; /* before reading */
        rc = read_topology(fabric, &fabric->topology);
    }
    if (rc == 0 && (fabric->topology->gpu_count < 2 || fabric->topology->gpu_count > MOST_GPUS))
        rc = -ENODEV;
    if (rc == 0 && match_devices(fabric, fabric->topology) < 2)
        rc = -ENODEV;
    if (rc == 0) {
        fabric->gpus = fabric->topology->gpu_count;
        atomic_store(&fabric->epoch_seen, fabric->epoch);
        rc = heed_copies(fabric);
    }
    if (rc == 0) {
        fabric->view = view_make(fabric->topology);
        rc = fabric->view ? 0 : -ENOMEM;
    }
    if (rc != 0) {
        if (fabric) {
            hr_topology_destroy(fabric->topology);
            hr_routers_close(fabric->routers);
            free(fabric->said);
        }
        free(fabric);
        return rc;
    }
    publish(fabric);
    if (fabric->routers)
        hr_portcount_start(fabric->routers, fabric->topology, fabric->ordinal);
    *fabric_out = fabric;
    return 0;
}

int hr_fabric_get(struct hr_fabric **fabric_out)
{
    struct hr_fabric *fabric = atomic_load_explicit(&the_fabric, memory_order_acquire);
    int rc = atomic_load_explicit(&failure, memory_order_acquire);

    if (!fabric && rc == 0) {
        hr_mutex_lock(&change_lock);
        fabric = atomic_load(&the_fabric);
        rc = atomic_load(&failure);
        if (!fabric && rc == 0) {
            rc = make(&fabric);
            if (rc == 0)
                atomic_store_explicit(&the_fabric, fabric, memory_order_release);
            else
                hr_log(HR_LOG_INFO, "transfers between GPUs are left to the driver: what joins them is not known (%s)",
                       strerror(-rc));
            atomic_store_explicit(&failure, rc == 0 ? 0 : -ENODEV, memory_order_release);
        }
        hr_mutex_unlock(&change_lock);
    }
    if (!fabric)
        return -ENODEV;
    *fabric_out = fabric;
    return 0;
}

uint32_t hr_fabric_gpus(const struct hr_fabric *fabric)
{
    return fabric->gpus;
}

int hr_fabric_ordinal(const struct hr_fabric *fabric, uint32_t gpu)
{
    return gpu < fabric->gpus ? fabric->ordinal[gpu] : -1;
}

bool hr_fabric_reachable(int ordinal_a, int ordinal_b)
{
    struct hr_fabric *fabric;

    if (ordinal_a == ordinal_b)
        return true;
    (void)!hr_fabric_get(
        &fabric); /* for the copies that the first call tries: these are known even where no fabric is made */
    const struct hr_discovery *found = hr_discovery_of_process();
    if (!found || ordinal_a < 0 || ordinal_b < 0 || (uint32_t)ordinal_a >= found->gpus ||
        (uint32_t)ordinal_b >= found->gpus)
        return true;
    const struct hr_pair *there = &found->pair[(uint32_t)ordinal_a * found->gpus + (uint32_t)ordinal_b];
    const struct hr_pair *back = &found->pair[(uint32_t)ordinal_b * found->gpus + (uint32_t)ordinal_a];
    return there->state <= HR_PAIR_GOOD && back->state <= HR_PAIR_GOOD;
}

int hr_fabric_gpu(const struct hr_fabric *fabric, int ordinal)
{
    for (uint32_t gpu = 0; ordinal >= 0 && gpu < fabric->gpus; gpu++)
        if (fabric->ordinal[gpu] == ordinal)
            return (int)gpu;
    return -1;
}

/* ---- changes ---- */

/* A view of the topology as it is now; routers follow. */
static int renew(struct hr_fabric *fabric) HR_REQUIRES(change_lock)
{
    struct view *view = view_make(fabric->topology);

    if (!view)
        return -ENOMEM;
    view_set(fabric, view);
    publish(fabric);
    return 0;
}

/* Asks the source again. A machine with other GPUs than before is not believed. */
static bool read_again(struct hr_fabric *fabric) HR_REQUIRES(change_lock)
{
    struct hr_topology *topology = NULL;

    if (read_topology(fabric, &topology) != 0)
        return false;
    bool same = topology->gpu_count == fabric->gpus;
    for (uint32_t gpu = 0; same && gpu < fabric->gpus; gpu++)
        same = strcmp(topology->elements[topology->gpus[gpu]].name,
                      fabric->topology->elements[fabric->topology->gpus[gpu]].name) == 0;
    if (!same) {
        hr_topology_destroy(topology);
        return false;
    }
    apply_all(fabric, topology);
    hr_topology_destroy(fabric->topology);
    fabric->topology = topology;
    return true;
}

bool hr_fabric_refresh(struct hr_fabric *fabric)
{
    if (!fabric->routers)
        return atomic_load_explicit(&doubted, memory_order_relaxed) && atomic_exchange(&doubted, false) &&
               hr_fabric_recheck(fabric);
    if (hr_routers_epoch(fabric->routers) == atomic_load(&fabric->epoch_seen))
        return false;
    bool changed = false;
    hr_mutex_lock(&change_lock);
    uint64_t epoch = hr_routers_epoch(fabric->routers); /* before reading: what changes later is seen next time */
    if (epoch != fabric->epoch) {
        fabric->epoch = epoch;
        atomic_store(&fabric->epoch_seen, epoch);
        changed = read_again(fabric) && renew(fabric) == 0;
    }
    hr_mutex_unlock(&change_lock);
    return changed;
}

bool hr_fabric_recheck(struct hr_fabric *fabric)
{
    if (fabric->routers)
        return hr_fabric_refresh(fabric);
    hr_mutex_lock(&change_lock);
    bool changed = read_again(fabric) && renew(fabric) == 0;
    hr_mutex_unlock(&change_lock);
    return changed;
}

void hr_fabric_doubt(void)
{
    atomic_store(&doubted, true);
}

void hr_fabric_watch(void)
{
    struct hr_fabric *fabric = atomic_load_explicit(&the_fabric, memory_order_acquire);

    if (fabric)
        hr_fabric_refresh(fabric);
}

/* Nobody else has the list's lock while it changes, so what could not be noted is as before. */
static int say(struct hr_fabric *fabric, const struct said *news)
{
    if (news->from >= fabric->gpus || news->to >= fabric->gpus || news->from == news->to)
        return -EINVAL;
    hr_mutex_lock(&change_lock);
    struct said *said = said_of(fabric, news->from, news->to);
    int rc = said ? 0 : -ENOMEM;
    if (said) {
        bool came_back = said->down && !news->down;
        *said = *news;
        if (!came_back || !read_again(fabric)) /* only the source knows what the links were */
            apply_to_ports(fabric->topology, said);
        hr_mutex_lock(&lock);
        fabric->blocked[news->from][news->to] = news->down;
        hr_mutex_unlock(&lock);
        rc = renew(fabric);
    }
    hr_mutex_unlock(&change_lock);
    return rc;
}

int hr_fabric_link_changed(struct hr_fabric *fabric, uint32_t from_gpu, uint32_t to_gpu, bool up)
{
    return say(fabric, &(struct said){.from = from_gpu, .to = to_gpu, .down = !up});
}

int hr_fabric_link_measured(struct hr_fabric *fabric, uint32_t from_gpu, uint32_t to_gpu, double gbps,
                            uint32_t latency_ns)
{
    if (!(gbps > 0 && gbps < 1e6))
        return -EINVAL;
    return say(fabric, &(struct said){.from = from_gpu, .to = to_gpu, .gbps = gbps, .latency_ns = latency_ns});
}

/* ---- routes ---- */

static bool is_blocked_locked(const struct hr_fabric *fabric, const struct hr_path *path)
{
    for (uint32_t leg = 0; leg < path->legs; leg++)
        if (fabric->blocked[path->gpu[leg]][path->gpu[leg + 1]])
            return true;
    return false;
}

static bool passes_over(const struct hr_path *path, uint64_t relay_mask)
{
    for (uint32_t leg = 1; leg < path->legs; leg++)
        if (!(relay_mask >> path->gpu[leg] & 1))
            return false;
    return true;
}

/* The small way asks nobody who passes on. */
static bool is_allowed(const struct hr_routes *routes, uint64_t relay_mask)
{
    for (uint32_t i = 0; i < routes->path_count; i++)
        if (!passes_over(&routes->path[i], relay_mask))
            return false;
    return true;
}

bool hr_fabric_allows(struct hr_fabric *fabric, const struct hr_path *path, uint64_t relay_mask)
{
    hr_mutex_lock(&lock);
    bool blocked = is_blocked_locked(fabric, path);
    hr_mutex_unlock(&lock);
    return !blocked && passes_over(path, relay_mask);
}

/* Legs over switches cannot be taken out of the graph one by one. */
static void leave_out_blocked_locked(const struct hr_fabric *fabric, struct hr_routes *routes)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < routes->path_count; i++) {
        if (!is_blocked_locked(fabric, &routes->path[i])) {
            routes->path[kept++] = routes->path[i];
            continue;
        }
        routes->mbps -= routes->path[i].mbps;
        free(routes->path[i].gpu);
        free(routes->path[i].load);
    }
    for (uint32_t i = kept; i < routes->path_count; i++)
        routes->path[i] = (struct hr_path){0};
    routes->path_count = kept;
}

/* As many are under way as there are GPUs, or half as many for some time. */
static bool is_crowded_locked(const struct hr_fabric *fabric)
{
    return fabric->running >= fabric->gpus || fabric->load * 2 >= fabric->gpus;
}

/* The first one in a crowd makes the plan; others go the shortest ways meanwhile. */
static void make_plan_once(struct view *view)
{
    uint8_t none = PLAN_NONE;

    if (view->public.graph->gpus > CROWD_GPUS ||
        !atomic_compare_exchange_strong(&view->plan_state, &none, PLAN_BEING_MADE) ||
        hr_route_all_to_all(view->public.graph, CROWD_TOLERANCE, &view->plan) != 0)
        return;
    for (uint32_t pair = 0; pair < view->plan.gpus * view->plan.gpus; pair++) {
        struct hr_routes routes = {0};
        if (hr_routes_copy(&view->plan.routes[pair], CROWD_SHARE_OF, &routes) == 0)
            for (uint32_t i = 0; i < routes.path_count; i++)
                view->plan_relays |= routes.path[i].legs > 1;
        hr_routes_finish(&routes);
    }
    atomic_store_explicit(&view->plan_state, PLAN_READY, memory_order_release);
}

enum hr_crowd hr_fabric_crowd(struct hr_fabric *fabric, const struct hr_fabric_view *of)
{
    struct view *view = (struct view *)of;

    hr_mutex_lock(&lock);
    bool crowded = is_crowded_locked(fabric);
    hr_mutex_unlock(&lock);
    if (!crowded)
        return HR_CROWD_NONE;
    make_plan_once(view);
    bool ready = atomic_load_explicit(&view->plan_state, memory_order_acquire) == PLAN_READY;
    return ready && view->plan_relays ? HR_CROWD_SHARES : HR_CROWD_APART;
}

/*
 * In a crowd, what one gains by a detour of its own others lose: each takes its part of a plan in which
 * every GPU sends to every other, without paths that would cost more calls than they carry.
 */
static int crowd_route_locked(const struct view *view, uint32_t from_gpu, uint32_t to_gpu, struct hr_routes *routes_out)
{
    if (atomic_load_explicit(&view->plan_state, memory_order_acquire) == PLAN_READY)
        return hr_routes_copy(&view->plan.routes[from_gpu * view->plan.gpus + to_gpu], CROWD_SHARE_OF, routes_out);
    return hr_route_small(view->public.graph, &view->account, from_gpu, to_gpu, routes_out);
}

int hr_fabric_route(struct hr_fabric *fabric, const struct hr_fabric_view *of, const struct hr_fabric_asked *asked,
                    struct hr_routes *routes_out)
{
    struct view *view = (struct view *)of;
    uint32_t from = asked->from_gpu, to = asked->to_gpu;
    bool no_relay[MOST_GPUS];
    struct hr_route_limits limits = {.account = &view->account, .no_relay = no_relay};

    for (uint32_t gpu = 0; gpu < fabric->gpus; gpu++)
        no_relay[gpu] = !(asked->relay_mask >> gpu & 1);
    hr_mutex_lock(&lock); /* the account changes under it */
    int rc = asked->crowd != HR_CROWD_NONE
                 ? crowd_route_locked(view, from, to, routes_out)
                 : hr_route_for(view->public.graph, &limits, from, to, asked->bytes, routes_out);
    if (rc == 0 && !is_allowed(routes_out, asked->relay_mask)) {
        hr_routes_finish(routes_out);
        rc = hr_route_large(view->public.graph, &limits, from, to, routes_out);
    }
    if (rc == 0)
        leave_out_blocked_locked(fabric, routes_out);
    hr_mutex_unlock(&lock);
    if (rc == 0 && routes_out->path_count == 0) {
        hr_routes_finish(routes_out);
        rc = -ENETUNREACH;
    }
    return rc;
}

bool hr_fabric_direct_only(const struct hr_fabric_view *of, uint32_t from_gpu, uint32_t to_gpu)
{
    struct view *view = (struct view *)of;
    uint8_t known = atomic_load_explicit(&view->direct_only[from_gpu][to_gpu], memory_order_relaxed);
    struct hr_routes routes = {0};

    if (known == DIRECT_UNKNOWN) {
        int rc = hr_route_large(view->public.graph, NULL, from_gpu, to_gpu, &routes);
        known = rc == 0 && routes.path_count == 1 && routes.path[0].legs == 1 ? DIRECT_ONLY : DIRECT_AND_MORE;
        hr_routes_finish(&routes);
        atomic_store_explicit(&view->direct_only[from_gpu][to_gpu], known, memory_order_relaxed);
    }
    return known == DIRECT_ONLY;
}

void hr_fabric_charge(struct hr_fabric *fabric, const struct hr_fabric_view *of, const struct hr_routes *routes)
{
    hr_mutex_lock(&lock);
    fabric->load += (fabric->running - fabric->load) / LOAD_WINDOW;
    fabric->running++;
    hr_account_charge(&((struct view *)of)->account, routes);
    hr_mutex_unlock(&lock);
}

void hr_fabric_release(struct hr_fabric *fabric, const struct hr_fabric_view *of, const struct hr_routes *routes)
{
    hr_mutex_lock(&lock);
    fabric->running--;
    hr_account_release(&((struct view *)of)->account, routes);
    hr_mutex_unlock(&lock);
}

/* ---- the way to the host ---- */

int64_t hr_fabric_host_mbps(struct hr_fabric *fabric, uint32_t gpu, bool to_host)
{
    double gbps = 0;

    if (gpu >= fabric->gpus)
        return 0;
    hr_mutex_lock(&change_lock);
    const struct hr_element *element = &fabric->topology->elements[fabric->topology->gpus[gpu]];
    for (uint32_t p = 0; p < element->port_count; p++) {
        const struct hr_port *port = &element->ports[p];
        if (port->kind == HR_LINK_PCIE && port->peer >= 0)
            gbps += to_host ? port->gbps : fabric->topology->elements[port->peer].ports[port->peer_port].gbps;
    }
    hr_mutex_unlock(&change_lock);
    return (int64_t)(gbps * 1000);
}
