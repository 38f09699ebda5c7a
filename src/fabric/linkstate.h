/*
 * A router that works out its own routes. It knows its own ports, and holds for every other router it has heard of that router's own
 * statement of its ports, with a serial number; it fetches newer statements from its direct neighbours. From what it holds it
 * computes shortest ways by itself. There is no counting to infinity: statements are facts, not distances.
 *
 * When a link changes, only its ends make new statements. Rounds in which every router fetches from every neighbour spread them one
 * hop each, so tables agree after at most as many rounds as the machine has hops. Edges that lead out of a part that was cut off
 * are known within it, so what is unreachable is known to be even where old statements remain.
 *
 * Routers name each other by numbers of the caller's, below `capacity`. Pure; each router belongs to one caller at a time (fetching
 * reads the other one). Errors are negative errno values.
 */
#ifndef HR_FABRIC_LINKSTATE_H
#define HR_FABRIC_LINKSTATE_H

#include "fabric/tables.h"

struct hr_self_port {
    int32_t peer; /* router at the other end; -1 = nothing there */
    bool up;      /* carries traffic outwards */
    uint32_t mbps;
};

struct hr_self_router; /* opaque */

/*
 * Router `number` of at most `capacity`. `owner` is the owner whose memory it has, -1 = none (a switch). NULL without memory.
 * destroy takes NULL.
 */
struct hr_self_router *hr_self_create(uint32_t number, uint32_t capacity, int32_t owner);
void hr_self_destroy(struct hr_self_router *router);

/* What the router sees of its own ports: at the start, and after every change. 0, -EINVAL: too many or no such peer, -ENOMEM. */
int hr_self_set_ports(struct hr_self_router *router, const struct hr_self_port *ports, uint32_t count);

/*
 * Takes over whatever `neighbour` knows better. Returns the number of statements taken over, or -ENOMEM (some may be taken over). To
 * be called for neighbours that a port which is up leads to; their answer has to come back over a link too.
 */
int hr_self_fetch(struct hr_self_router *router, const struct hr_self_router *neighbour);

/*
 * The entry for an owner, from what is known now; port_count 0 = it is here. 0 or -ENETUNREACH. Ways are computed again
 * when something was learned since. hops_out (may be NULL): links to the owner.
 */
int hr_self_find(struct hr_self_router *router, uint32_t owner, const struct hr_tables_options *options,
                 struct hr_entry *entry_out, uint32_t *hops_out);

#endif
