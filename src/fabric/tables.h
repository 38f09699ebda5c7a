/*
 * What every router (GPU or switch) does with a request: by the owner of its address, the ports that lie on shortest ways there. A
 * set of tables covers a whole machine, is computed at once and never changes; views (machine.h) swap one set for the next.
 *
 * Memory: one byte per router and owner (two where a router has more than 255 different answers); the answers themselves are shared
 * by all routers. 4096 GPUs of degree 8: 16 MiB and a few hundred KiB. Pure; errors are negative errno values; locks: none.
 */
#ifndef HR_FABRIC_TABLES_H
#define HR_FABRIC_TABLES_H

#include "fabric/graph.h"

#define HR_ENTRY_PORTS 32

enum hr_port_policy { HR_PORTS_ANY, HR_PORTS_ROUND_ROBIN, HR_PORTS_ALL, HR_PORTS_BY_ADDRESS };

/* One answer. Ports are ordered by weight, the widest first. */
struct hr_entry {
    uint8_t policy;        /* enum hr_port_policy */
    uint8_t port_count;    /* 0 = the owner is here */
    uint8_t address_shift; /* HR_PORTS_BY_ADDRESS: parts of 2^shift bytes go to the ports in turn */
    uint8_t reserved;
    uint32_t weight_sum;
    uint8_t port[HR_ENTRY_PORTS];
    uint16_t weight[HR_ENTRY_PORTS]; /* in proportion to what the way through the port carries; no common divisor */
};

struct hr_router_table {
    uint8_t *narrow; /* by owner: number in `entry`, 0 = here or unreachable; NULL if wide is used */
    uint16_t *wide;
    uint32_t *entry; /* the router's answers, from 1: index into the shared ones */
    uint32_t entry_count;
    int32_t local; /* the owner that is here; -1 = none */
};

struct hr_tables {
    uint64_t version; /* of the topology */
    uint32_t routers; /* = nodes of the graph; those that are neither GPU nor switch have none */
    uint32_t owners;  /* = GPUs */
    struct hr_router_table *router;
    struct hr_entry *entry;
    struct hr_entry here; /* what a GPU answers for its own memory */
    uint32_t entry_count;
    size_t memory_bytes; /* of all of it */
};

struct hr_tables_options {
    enum hr_port_policy policy;
    uint8_t address_shift; /* for HR_PORTS_BY_ADDRESS; 0 = 21 */
};

/*
 * Computes all tables. Where ways of equal length differ in width, weights follow the width; above 16 different widths they are
 * rounded down to 16 steps, and in machines of more than 256 elements widths within an eighth count as equal. -ENOMEM. destroy takes NULL.
 */
int hr_tables_compute(const struct hr_graph *graph, const struct hr_tables_options *options,
                      struct hr_tables **tables_out);
void hr_tables_destroy(struct hr_tables *tables);

/* The answer of a router for an owner; NULL = no way. Constant time: two loads and the entry. */
static inline const struct hr_entry *hr_tables_find(const struct hr_tables *tables, uint32_t router, uint32_t owner)
{
    const struct hr_router_table *table = &tables->router[router];
    uint32_t number = table->narrow ? table->narrow[owner] : table->wide ? table->wide[owner] : 0;

    if (number)
        return &tables->entry[table->entry[number]];
    return table->local == (int32_t)owner && tables->router[router].entry ? &tables->here : NULL;
}

/*
 * Which of the entry's ports (an index) takes a request, for every policy but HR_PORTS_ALL, which takes them all (hr_entry_part).
 * `ticket` counts the router's requests, for HR_PORTS_ROUND_ROBIN. The entry must have ports.
 */
uint32_t hr_entry_pick(const struct hr_entry *entry, uint64_t address, uint64_t ticket);

/*
 * HR_PORTS_ALL: the part of a request of `bytes` that goes through port `index`, by weight, in multiples of 256 bytes but for the
 * last. The parts follow each other and add up; a part may be empty.
 */
void hr_entry_part(const struct hr_entry *entry, uint32_t index, uint64_t bytes, uint64_t *offset_out,
                   uint64_t *bytes_out);

/*
 * Makes an entry of ports and rates: weights in tenths of GB/s, divided by what they have in common; the widest HR_ENTRY_PORTS of
 * them if there are more. For the computation of tables, central or by the routers themselves.
 */
struct hr_port_rate {
    uint8_t port;
    int64_t mbps;
};
void hr_entry_make(const struct hr_tables_options *options, struct hr_port_rate *rates, uint32_t count,
                   struct hr_entry *entry_out);

#endif
