/*
 * Graphs: what the files of the graph and capture functions share.
 *
 * A graph is a list of nodes in the order in which they were made. What a node does is its work: immutable and counted, so that
 * clones, executable graphs and launches under way share it, and whoever changes it makes another one.
 *
 * An executable graph holds a copy of the graph's shape (nodes without handles) and programs made from it: steps in a topological
 * order, each on a lane. A lane is a hidden stream; a step waits for those of other lanes that it depends on, by marks, as for
 * events. So the nodes of a launch are operations like all others. Two steps share a lane only where one comes after the other
 * anyway: a launch orders what the graph orders, and nothing else.
 *
 * Bodies of conditional nodes are programs of their own, submitted when the condition is known.
 *
 * All of this needs sg.lock unless it says otherwise.
 */
#ifndef SG_GRAPH_H
#define SG_GRAPH_H

#include "simgpu/copyop.h"
#include "simgpu/launch.h"
#include "simgpu/sim.h"

#define SG_NODE_ATTRIBUTES 17 /* ids of CUlaunchAttributeID */

/* ---- work ---- */

struct sg_node_attributes {
    uint32_t set; /* a bit per id */
    CUlaunchAttributeValue value[SG_NODE_ATTRIBUTES];
};

struct sg_work_kernel {
    CUfunction function; /* one of the two, as the job gave it; `launched` is what runs */
    CUkernel kernel;
    uint64_t launched; /* the sg_function's handle */
    unsigned grid[3], block[3], shared_bytes;
    uint8_t *packed; /* the parameters, as the function wants them */
    void **pointers; /* to each of them in packed; NULL: they came in a buffer */
    size_t packed_bytes;
    void *extra[5];                        /* what the job is told then */
    struct sg_node_attributes *attributes; /* NULL: none */
};

struct sg_work_copy {
    CUDA_MEMCPY3D params; /* as the job is told */
    struct sg_end dst_end, src_end;
    struct sg_extent extent;
    struct sg_operand dst, src;    /* as found when it was placed */
    uint64_t dst_stamp, src_stamp; /* what lay behind them then */
};

struct sg_work_fill {
    CUDA_MEMSET_NODE_PARAMS params;
    struct sg_fill fill;
    uint64_t stamp;
};

struct sg_graph_memory;
struct sg_condition;
struct sg_work {
    unsigned refs;
    CUgraphNodeType type;
    uint64_t context; /* a handle; 0 = none in particular */
    union {
        struct sg_work_kernel kernel;
        struct sg_work_copy copy;
        struct sg_work_fill fill;
        CUDA_HOST_NODE_PARAMS host;
        uint64_t event; /* a handle */
        struct {
            unsigned count, flags;
            CUstreamBatchMemOpParams *parts;
        } batch;
        struct sg_graph_memory *memory; /* counted */
        struct {
            struct sg_condition *condition; /* counted */
            CUgraphConditionalNodeType type;
            unsigned size;
        } conditional;
    };
};

struct sg_work *sg_work_ref(struct sg_work *work);
void sg_work_unref(struct sg_work *work); /* NULL is fine */
bool sg_work_is_memory(const struct sg_work *work);

/*
 * Makes work from parameters, which are checked and copied. `context` NULL means the calling thread's current one. Errors:
 * INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE (functions, events), OUT_OF_MEMORY, NOT_SUPPORTED (what simgpu does not have).
 * The kernel's may release sg.lock meanwhile (a library's function is loaded).
 */
CUresult sg_work_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct sg_work **work_out);
CUresult sg_work_launch(const struct sg_launch *launch, struct sg_function *function, struct sg_work **work_out);
CUresult sg_work_copy(const CUDA_MEMCPY3D *params, CUcontext context, struct sg_work **work_out);
CUresult sg_work_ends(const struct sg_end *dst, const struct sg_end *src, const struct sg_extent *extent,
                      struct sg_context *context, struct sg_work **work_out);
CUresult sg_work_fill(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context, struct sg_work **work_out);
CUresult sg_work_host(const CUDA_HOST_NODE_PARAMS *params, struct sg_work **work_out);
CUresult sg_work_event(CUgraphNodeType type, CUevent event, struct sg_work **work_out);
CUresult sg_work_batch(CUcontext context, unsigned count, const CUstreamBatchMemOpParams *parts, unsigned flags,
                       struct sg_work **work_out);
/* Of memory nodes: takes the reference over, also on an error. */
CUresult sg_work_memory(CUgraphNodeType type, struct sg_graph_memory *memory, struct sg_work **work_out);
struct sg_work *sg_work_new(CUgraphNodeType type); /* of no parameters; NULL: out of host memory */
/* Finds the memory that copies and memsets use, now, and notes what lies behind it: the work that an executable graph has. */
CUresult sg_work_place(const struct sg_work *work, struct sg_work **placed_out);
/* Does the memory still lie where it was when the work was placed? INVALID_VALUE, with one line, if not. */
CUresult sg_work_still_placed(const struct sg_work *work);
/* Copies the kernel's work with other attributes. */
CUresult sg_work_with_attribute(const struct sg_work *work, CUlaunchAttributeID id, const CUlaunchAttributeValue *value,
                                struct sg_work **work_out);
CUresult sg_work_with_attributes(const struct sg_work *work, const struct sg_node_attributes *attributes,
                                 struct sg_work **work_out);
bool sg_work_is_cooperative(const struct sg_work *work);
/* An operation that does this work, all but memory nodes, events and conditional ones. NULL in *op_out: there is nothing to do. */
CUresult sg_work_op(const struct sg_work *work, unsigned part, struct sg_op **op_out);
unsigned sg_work_parts(const struct sg_work *work); /* how many operations it takes */

/* ---- graphs ---- */

struct sg_link {
    struct sg_node *node;
    CUgraphEdgeData data;
};
struct sg_edges {
    struct sg_link *at;
    size_t count, room;
};

struct sg_graph;
struct sg_node {
    struct sg_object object; /* id 0: part of an executable graph's shape */
    struct sg_graph *graph;
    struct sg_work *work;
    struct sg_edges dependencies, dependents;
    struct sg_graph **graphs; /* the child graph's, or a conditional's bodies; owned */
    CUgraph *handles;         /* of those, for the job */
    unsigned graph_count;
    uint64_t origin; /* the node's that this one was copied from; 0 = none */
    unsigned number; /* in its graph */
    size_t index;    /* scratch; of a shape: in its executable graph */
    bool disabled;   /* of a shape */
    struct sg_node *prev, *next;
};

struct sg_user_object;
struct sg_user_ref {
    struct sg_user_object *object;
    unsigned count;
    struct sg_user_ref *next;
};

struct sg_graph {
    struct sg_object object; /* id 0 as above */
    struct sg_node *nodes;
    size_t count;
    unsigned next_number;
    struct sg_node *owner; /* the node that executes it; NULL = the job's */
    bool is_body, moved;
    uint64_t origin;  /* the graph's that it was cloned from */
    uint64_t exec;    /* the last executable graph made of it */
    uint64_t capture; /* captured into now */
    struct sg_user_ref *users;
    struct sg_condition **conditions; /* made for this graph; counted */
    unsigned condition_count;
};

CUresult sg_graph_create(bool with_handle, struct sg_graph **graph_out);
void sg_graph_destroy(struct sg_graph *graph); /* with all that it owns; NULL is fine */
/* Adds a node, which takes `work` over, also on an error. */
CUresult sg_node_add(struct sg_graph *graph, struct sg_work *work, const struct sg_edges *dependencies,
                     struct sg_node **node_out);
void sg_node_destroy(struct sg_node *node);
CUresult sg_link_add(struct sg_node *from, struct sg_node *to, const CUgraphEdgeData *data);
void sg_edges_free(struct sg_edges *links);
CUresult sg_edges_add(struct sg_edges *links, struct sg_node *node, const CUgraphEdgeData *data);
CUresult sg_edges_copy(struct sg_edges *to, const struct sg_edges *from);
/* Nodes of `graph` from the arrays of a call: INVALID_VALUE for strangers, doubles and wrong edge data. */
CUresult sg_edges_from(const struct sg_graph *graph, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                       size_t count, struct sg_edges *links_out);
bool sg_edge_is_default(const CUgraphEdgeData *data);
CUresult sg_edge_check(const struct sg_node *from, const CUgraphEdgeData *data);
/* A copy of nodes, edges and works: a clone with handles, or a shape without. */
CUresult sg_graph_copy(const struct sg_graph *from, bool with_handles, struct sg_graph **copy_out);
bool sg_graph_is_captured(const struct sg_graph *graph); /* is anything captured into it, or into what is below it? */
/* Anything of that type in the graph or below it? */
bool sg_graph_has(const struct sg_graph *graph, CUgraphNodeType type);
static inline bool sg_graph_has_memory(const struct sg_graph *graph)
{
    return sg_graph_has(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC) || sg_graph_has(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
}
/* May nodes of that type be put into the graph? NOT_SUPPORTED, INVALID_VALUE. */
CUresult sg_graph_admits(const struct sg_graph *graph, CUgraphNodeType type);
/* Adds a node that executes a copy of `child`, or `child` itself where it is moved. */
CUresult sg_node_add_child(struct sg_graph *graph, struct sg_graph *child, bool move, const struct sg_edges *deps,
                           struct sg_node **node_out);
/* sg_enter, then the graph or node behind a handle: INVALID_VALUE. */
CUresult sg_enter_graph(const char *api, CUgraph handle, struct sg_graph **graph_out);
CUresult sg_enter_node(const char *api, CUgraphNode handle, int type, struct sg_node **node_out); /* type -1: any */
void sg_node_set_work(struct sg_node *node, struct sg_work *work);                                /* takes it over */
/* The context that a call names: NULL = the current one. INVALID_CONTEXT; its error. */
CUresult sg_context_named(CUcontext handle, struct sg_context **context_out);
/* What cuGraphNodeSetParams and its kin say, as work. INVALID_VALUE for other types than the node's. */
CUresult sg_work_from_params(const CUgraphNodeParams *params, struct sg_work **work_out);

/* ---- user objects ---- */

CUresult sg_users_copy(const struct sg_graph *from, struct sg_user_ref **users_out); /* more references to the same */
CUresult sg_users_copy_all(const struct sg_graph *from,
                           struct sg_user_ref **users_out); /* and to those of graphs below */
void sg_users_free(struct sg_user_ref *users); /* gives them back; destructors run on a thread of their own */

/* ---- conditions ---- */

struct sg_condition {
    unsigned refs;
    uint64_t handle;
    uint64_t context; /* a handle */
    uint64_t graph;   /* a handle */
    unsigned value, flags;
    bool used; /* a node has it */
};
struct sg_condition *sg_condition_ref(struct sg_condition *condition);
void sg_condition_unref(struct sg_condition *condition);
uint32_t sg_condition_value(const struct sg_condition *condition);
void sg_condition_reset(const struct sg_condition *condition); /* to its value at launch, if it has one */
/* A kernel's cudaGraphSetConditional. Thread-safe, no lock. False: no such handle, or one of another context. */
bool sg_condition_set(uint64_t context, uint64_t handle, uint32_t value);

/* ---- memory of allocation nodes ---- */

struct sg_graph_memory {
    unsigned refs;
    int device;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    uint64_t va, bytes;
    uint64_t graph;                      /* a handle: whose node allocates it */
    uint64_t freed_by;                   /* a handle: the graph with the free node; 0 = none */
    struct sg_chunk *chunk;              /* what backs it, kept from launch to launch; NULL = nothing yet, or trimmed */
    struct sg_alloc *alloc;              /* its addresses; NULL: the context is gone */
    bool allocated;                      /* by what has been launched, and not freed */
    bool orphan;                         /* its graph is gone and it is allocated: one reference is its own */
    bool planned;                        /* scratch of a launch */
    unsigned in_flight;                  /* operations that will map or unmap it */
    struct sg_graph_memory *prev, *next; /* of the device */
};
CUresult sg_graph_memory_create(const CUDA_MEM_ALLOC_NODE_PARAMS *params, uint64_t graph,
                                struct sg_graph_memory **memory_out);
struct sg_graph_memory *sg_graph_memory_ref(struct sg_graph_memory *memory);
void sg_graph_memory_unref(struct sg_graph_memory *memory);
struct sg_graph_memory *sg_graph_memory_at(uint64_t va);                   /* that begins there */
CUresult sg_graph_memory_back(struct sg_graph_memory *memory);             /* takes VRAM for it: OUT_OF_MEMORY */
void sg_graph_memory_note(struct sg_graph_memory *memory, bool allocated); /* as launches go */
void sg_graph_memory_map(struct sg_graph_memory *memory);                  /* in the device's time */
void sg_graph_memory_unmap(struct sg_graph_memory *memory);                /* likewise */
/* cuMemFree of it. INVALID_VALUE where a graph frees it, or it is not allocated. */
CUresult sg_graph_memory_free(struct sg_graph_memory *memory);
/* May a node of that graph free it? INVALID_VALUE: twice in one graph, or both in its own and another. */
CUresult sg_graph_memory_may_free(const struct sg_graph_memory *memory, const struct sg_graph *graph);
/* Frees it in the stream's order, for cuMemFreeAsync outside of captures. Errors as above; OUT_OF_MEMORY. May release sg.lock. */
CUresult sg_graph_memory_free_in(struct sg_graph_memory *memory, struct sg_stream *stream);
void sg_graph_memory_gone(struct sg_graph_memory *memory); /* its context ends */

/* ---- executable graphs ---- */

enum sg_graph_step_kind { SG_STEP_NODE, SG_STEP_JOIN, SG_STEP_CONDITION };
struct sg_program;
struct sg_graph_step {
    enum sg_graph_step_kind kind;
    struct sg_node *node; /* of the shape; NULL: a join */
    size_t *dependencies, dependency_count;
    size_t lane;
    bool is_marked, is_leaf;   /* a step of another lane depends on it; none does */
    struct sg_program *bodies; /* of a condition: node->graph_count */
};
struct sg_lane {
    uint64_t context; /* a handle; 0 = that of the launch */
    uint64_t stream;  /* a handle; 0 = not made yet */
    int priority;     /* the most urgent of its nodes' */
};
struct sg_program {
    struct sg_graph_step *steps;
    size_t count;
    struct sg_lane *lanes;
    size_t lane_count;
};

struct sg_exec {
    struct sg_object object;
    unsigned refs; /* the job's, and one of each launch in flight */
    uint64_t graph;
    unsigned long long flags;
    struct sg_graph *shape;
    struct sg_node **nodes; /* of the shape and all below it, by index */
    size_t node_count;
    struct sg_program program;
    struct sg_user_ref *users, *old_users; /* the latter until no launch is in flight */
    struct sg_condition **conditions;
    unsigned condition_count;
    struct sg_mark *last; /* the end of the latest launch */
};

/* One launch under way. */
struct sg_run {
    unsigned refs;
    struct sg_exec *exec;
    struct sg_work **works; /* what each node does, if bodies are yet to be submitted; NULL: disabled */
    uint64_t submit_ns;
    int priority;
    uint64_t context; /* of the launch's stream */
};

/* Makes the program of a shape whose nodes are numbered. INVALID_VALUE, and *bad_out: the node is part of a circle. */
CUresult sg_program_make(const struct sg_graph *shape, struct sg_program *program_out, struct sg_node **bad_out);
void sg_program_free(struct sg_program *program);
void sg_exec_unref(struct sg_exec *exec);
CUresult sg_exec_take_users(struct sg_exec *exec,
                            const struct sg_graph *graph); /* the graph's user objects replace its own */
/* Submits a launch. INVALID_VALUE: a copy's memory lies elsewhere now, an allocation is not free, or is not there to be freed;
 * INVALID_HANDLE: a module or an event is gone; CONTEXT_IS_DESTROYED; OUT_OF_MEMORY. Then nothing is submitted. May release
 * sg.lock when it succeeds. */
CUresult sg_exec_launch(struct sg_exec *exec, struct sg_stream *stream);
CUresult sg_exec_upload(struct sg_exec *exec,
                        struct sg_stream *stream); /* takes memory for it, and orders itself alike */
CUresult sg_enter_exec(const char *api, CUgraphExec handle, struct sg_exec **exec_out);
/* May the work take the place of an executable graph's? SUCCESS, or what a call of its own says. *result_out for an update. */
CUresult sg_exec_may_change(const struct sg_exec *exec, const struct sg_work *from, const struct sg_work *to,
                            CUgraphExecUpdateResult *result_out);
/* Replaces params of the shape by the graph's: all or nothing. GRAPH_EXEC_UPDATE_FAILURE. */
CUresult sg_exec_update(struct sg_exec *exec, struct sg_graph *shape, const struct sg_graph *graph,
                        CUgraphExecUpdateResultInfo *info_out);

/* ---- operations of launches (see engine.c) ---- */

bool sg_graph_op_step(struct sg_op *op); /* the head of its stream: true if something changed */
void sg_graph_op_free(struct sg_op *op);

#endif
