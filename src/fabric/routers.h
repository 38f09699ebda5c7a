/*
 * Routers that are programmed from outside: a machine whose driver exports calls for reading ports and writing ranges and tables (simgpu
 * does; docs/simgpu.md, "The node"). Real drivers have none: there hr_routers_open finds nothing, and nothing else changes.
 *
 * Errors are negative errno values. Locks: none; publishing is serialised by the caller.
 */
#ifndef HR_FABRIC_ROUTERS_H
#define HR_FABRIC_ROUTERS_H

#include "fabric/tables.h"

struct hr_routers; /* opaque */

/* Address of the driver's function of that name, or NULL. */
typedef void *hr_routers_symbol(const char *name, void *arg);

/* -ENOSYS: the driver has no such calls, or another version of them; -ENODEV: it has, but the machine has no routers; -ENOMEM. */
int hr_routers_open(hr_routers_symbol *symbol, void *arg, struct hr_routers **routers_out);
void hr_routers_close(struct hr_routers *routers);

/*
 * The machine as the routers tell it: elements and ports have the routers' numbers, GPUs are named by their PCI bus ids, and links are
 * up or down as they are now. The caller's. -ENOMEM, -EIO: the calls contradict each other.
 */
int hr_routers_read(const struct hr_routers *routers, struct hr_topology **topology_out);

/*
 * Lays out all cards' memory as ranges, computes tables for the links that are up in `topology`, which hr_routers_read made, and writes both into
 * every router that has an answer to give. Requests under way use the old or the new answer at each hop, and are given them in an order in which
 * none goes in circles; this object must have written what the routers have. -ENOMEM, -EIO: some routers may have the new ones.
 */
int hr_routers_publish(struct hr_routers *routers, const struct hr_topology *topology,
                       const struct hr_tables_options *options);

/* What left an element by a port so far: all of it, and of that what came from others. -EIO: no such port. */
int hr_routers_counters(const struct hr_routers *routers, uint32_t element, uint32_t port, uint64_t *bytes_out,
                        uint64_t *forwarded_bytes_out);

/* Rises with every link that goes down or comes back. */
uint64_t hr_routers_epoch(const struct hr_routers *routers);

#endif
