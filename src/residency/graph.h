/*
 * What executable graphs name. Kernels of a graph follow their addresses, so for each executable graph the words of its kernels'
 * parameters are kept that lie in a window, node by node, and made accessible before every launch, as for a kernel. What its
 * copies and fills name is held where it is (hold.h) as long as it lives.
 *
 * A graph itself is asked when it is made executable, or updates one: whatever put its nodes there, the driver knows their parameters. So
 * graphs, clones, children and captures have no record here; only the bodies of conditional nodes cannot be asked for.
 *
 * Reading (hr_exec_find and what follows it) is for submissions only, and takes no lock but at a thread's first look-up after some
 * executable graph was made or destroyed. What was replaced is freed when the gate is closed.
 * Locks: HR_RANK_REGISTRY. Holds take the move lock: hold none, and no submission, where a function takes a list.
 */
#ifndef HR_RESIDENCY_GRAPH_H
#define HR_RESIDENCY_GRAPH_H

#include "residency/access.h"
#include "residency/hold.h"

enum hr_graph_item_kind {
    HR_GRAPH_WORD,  /* a kernel is given address */
    HR_GRAPH_RANGE, /* [address, address + bytes) is an operand */
    HR_GRAPH_COPY,  /* bytes at `from` are copied to address, both in windows: so are the addresses among them */
};
struct hr_graph_item {
    enum hr_graph_item_kind kind;
    int user;         /* the GPU that does it, where that matters (hr_peers_matter); else -1 */
    CUgraphNode node; /* whose it is */
    CUdeviceptr address, from;
    size_t bytes;
    bool is_held;
    struct hr_hold hold;
};
/* What a graph, or one node, names. All zero at first. */
struct hr_graph_list {
    struct hr_graph_item *item;
    uint32_t count, capacity;
    bool no_memory;     /* something is missing from the list */
    bool unknown;       /* something of it could not be found out: everything has to be backed before a launch */
    bool reads_host;    /* copies memory of the host into a window, with whatever addresses it holds at a launch */
    bool allocates;     /* has nodes that allocate */
    size_t alloc_bytes; /* so much */
};
void hr_graph_add(struct hr_graph_list *list, const struct hr_graph_item *item);
/* Places and holds its operands. Errors as of hr_hold_take; what is no live allocation is left out, for the driver to refuse. */
CUresult hr_graph_hold(struct hr_thread *t, struct hr_graph_list *list);
/* Frees the list, and drops what it still holds. */
void hr_graph_list_finish(struct hr_graph_list *list);

struct hr_exec;
/* Of an executable graph that was made; takes over what the list holds. OUT_OF_MEMORY: it is not known, and everything is backed before
 * its launches. */
void hr_exec_made(CUgraphExec handle, struct hr_graph_list *list);
/* The same for all of it, or for one of its nodes, after its parameters have changed. */
void hr_exec_updated(CUgraphExec handle, struct hr_graph_list *list);
void hr_exec_node_set(CUgraphExec handle, CUgraphNode node, struct hr_graph_list *list);
/* It is about to be destroyed: nothing is known of it until hr_exec_end, which says whether it is gone. NULL is fine. */
struct hr_exec *hr_exec_take(CUgraphExec handle);
void hr_exec_end(struct hr_exec *exec, bool gone);

/* In a submission; valid until its end. NULL: nothing is known of it. */
const struct hr_exec *hr_exec_find(CUgraphExec handle);
bool hr_exec_is_unknown(const struct hr_exec *exec); /* as of a list */
bool hr_exec_allocates(const struct hr_exec *exec, size_t *bytes_out);
/* What a launch on a stream of GPU launcher (-1 = not known, or the only one) finds, as hr_access_touch. */
enum hr_touch hr_exec_touch(const struct hr_exec *exec, uint64_t now, int launcher);
/* Adds what it names to a set: of user only, or, with HR_EXEC_ALL_USERS, of all. */
#define HR_EXEC_ALL_USERS (-2)
void hr_exec_add(const struct hr_exec *exec, int user, struct hr_working_set *set);
/* The GPUs (a bit each) that are users. */
uint64_t hr_exec_users(const struct hr_exec *exec);

/* With the gate closed: frees what was replaced. */
void hr_graph_collect_quiet(void);
/* Closes the gate for it where there is much. Takes the move lock; hold none, and no submission. */
void hr_graph_collect(void);

/* Bodies of conditional nodes. The array is the driver's, and lives as long as the node. */
void hr_graph_bodies_made(CUgraphNode node, const CUgraph *bodies, unsigned count);
unsigned hr_graph_bodies_of(CUgraphNode node, const CUgraph **bodies_out);
void hr_graph_bodies_gone(CUgraphNode node);
bool hr_graph_bodies_any(void);

/* The driver's memory for nodes that allocate has changed: what it took of a GPU lowers what windows may use. */
void hr_graph_account_memory(void);

#endif
