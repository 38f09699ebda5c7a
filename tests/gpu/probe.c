/*
 * Open questions about CUDA drivers, each answered by a measurement on the one at hand: probe [--list] [--seconds N] [NAME...].
 * Rows of JSON on stdout (gpu.h). Nothing here is required: "different" says that what headroom takes for likely is not so.
 */
#include "probe.h"

static const struct gpu_item items[] = {
    {"span", "one copy over device and host chunks", probe_span, false},
    {"graph-copy", "a copy node after its operand was mapped anew (assumed: bound to the old place, or refused)",
     probe_graph_copy, false},
    {"graph-fill", "a memset node after its operand was mapped anew (assumed: bound to the old place, or refused)",
     probe_graph_fill, false},
    {"buffer-id", "the buffer id of mapped memory changes with the chunk (assumed: yes)", probe_buffer_id, false},
    {"texture", "a texture object over mapped memory: its number, and what it reads after a remap", probe_texture,
     false},
    {"tensor-map", "where an encoded tensor map holds its address (assumed: as one of its 8-byte words)",
     probe_tensor_map, false},
    {"hints", "prefetch, advice and range attributes on plain and on mapped memory", probe_hints, false},
    {"host-kinds", "places in host memory where chunks can be made", probe_host_kinds, false},
    {"charge", "when a chunk is taken from free memory (assumed: when it is made)", probe_charge, false},
    {"capture-calls", "calls during a global capture of the same thread, unprotected and relaxed", probe_capture_calls,
     false},
    {"capture-unmap", "mapping and unmapping in another, unprotected thread during a global capture",
     probe_capture_unmap, false},
    {"free-waits", "cuMemFree while a kernel runs on another stream", probe_free_waits, false},
    {"addresses", "the largest reservation of addresses", probe_addresses, false},
    {"pointers", "names for which the resolver gives another pointer than dlsym", probe_pointers, false},
    {"membarrier", "the process-wide barrier of the kernel (assumed: there)", probe_membarrier, false},
    {"attributes", "attributes that headroom asks for", probe_attributes, false},
    {"chunk-costs", "making, mapping, granting, unmapping and releasing a chunk", probe_chunk_costs, false},
    {"swap-costs", "16 chunks unmapped, mapped anew and granted: the time in which launches are held", probe_swap_costs,
     false},
    {"pinned-cost", "pinned host memory of a chunk's size", probe_pinned_cost, false},
    {"copy-rates", "copies between device and host memory", probe_copy_rates, false},
    {"kernel-rates", "a kernel that reads or writes device and host chunks", probe_kernel_rates, false},
    {"atomics", "atomics of many blocks on a word in host memory (assumed: right)", probe_atomics, false},
    {"launch-cost", "an empty launch", probe_launch_cost, false},
};

int main(int argc, char **argv)
{
    return gpu_main(argc, argv, "probe", items, sizeof items / sizeof items[0]);
}
