/*
 * What headroom takes for granted of a CUDA driver, each a small check against the driver at hand: contract [--list] [--seconds N]
 * [NAME...]. Rows of JSON on stdout (gpu.h). "required": without it headroom could corrupt or stop a job; else it loses speed, or
 * has another way.
 */
#include "contract.h"

static const struct gpu_item items[] = {
    {"granularity", "chunks are powers of two of 64 KiB to 32 MiB", contract_granularity, true},
    {"reserve", "more addresses than VRAM can be reserved, aligned", contract_reserve, true},
    {"map-rules", "mapping what is mapped, at an offset or off the granularity is refused", contract_map_rules, false},
    {"access-rules", "access over a hole is refused; cuMemGetAccess tells what was set", contract_access_rules, false},
    {"access-span", "one call gives access to several mappings, device and host", contract_access_span, true},
    {"unmap-rules", "one call unmaps adjacent whole mappings; parts and holes are refused", contract_unmap_rules, true},
    {"remap", "another chunk at the same address, and the first one back with its bytes", contract_remap, true},
    {"release", "memory whose handle was released stays until it is unmapped", contract_release, true},
    {"alias", "one chunk at two addresses holds the same bytes", contract_alias, true},
    {"too-much", "a chunk larger than VRAM is CUDA_ERROR_OUT_OF_MEMORY, and the next call works", contract_too_much,
     true},
    {"survives-context", "chunks outlive the context that they were made in", contract_survives, true},
    {"host-chunk", "kernels and copies use chunks in host memory", contract_host_chunk, false},
    {"host-swap", "a kernel finds its bytes when their chunk moved to host memory and back", contract_host_swap, true},
    {"host-locations", "the current NUMA node and node -1 are refused as places of chunks", contract_host_locations,
     false},
    {"host-rights", "the CPU reads a host chunk once it has access of its own", contract_host_rights, false},
    {"copies", "copies and fills span chunks of one kind", contract_copies, true},
    {"peer-copy", "cuMemcpyPeerAsync within one device serves mapped memory", contract_peer_copy, false},
    {"map-while-running", "making and mapping a chunk does not wait for a kernel", contract_no_wait_map, true},
    {"unmap-while-running", "cuMemUnmap does not wait for a kernel", contract_no_wait_unmap, false},
    {"pointer-device", "what pointer queries say of mapped device memory", contract_pointer_device, false},
    {"pointer-host", "what pointer queries say of mapped host memory", contract_pointer_host, false},
    {"pointer-plain", "what pointer queries say of memory of cuMemAlloc, which headroom imitates",
     contract_pointer_plain, false},
    {"retain", "cuMemRetainAllocationHandle tells mapped memory from others", contract_retain, false},
    {"ipc", "mapped memory has no legacy IPC handle", contract_ipc, false},
    {"parameters", "cuFuncGetParamInfo tells offsets and sizes, by-value structs included", contract_parameters, true},
    {"resolver-itself", "the resolver gives itself: five arguments from 12.0 on, four before", contract_resolver_itself,
     true},
    {"resolver-versions", "a look-up by version gives the function of that version", contract_resolver_versions, false},
    {"resolver-streams", "flag 2 gives the functions of per-thread default streams", contract_resolver_streams, false},
    {"resolver-absent", "what is no function is not found", contract_resolver_absent, false},
    {"query", "cuStreamQuery tells of a stream's own work, without waiting", contract_query, true},
    {"stream-words", "stream memory operations work on mapped memory", contract_words, false},
    {"capacity", "cuMemGetInfo and cuDeviceTotalMem agree", contract_capacity, false},
    {"peers", "peer access between two GPUs", contract_peers, false},
    {"graph-kernel", "a kernel node uses what is mapped when it runs", contract_graph_kernel, true},
    {"graph-host", "the same when it was moved to host memory", contract_graph_host, true},
    {"capture-forbids", "a global capture is broken by a call that may wait", contract_capture_forbids, false},
    {"capture-relaxed", "a relaxed thread's allocations and questions leave a capture alone", contract_capture_relaxed,
     true},
    {"capture-other-thread", "so they do from another thread", contract_capture_other_thread, true},
    {"capture-aside", "launches on another stream go on during a capture", contract_capture_aside, true},
};

int main(int argc, char **argv)
{
    return gpu_main(argc, argv, "contract", items, sizeof items / sizeof items[0]);
}
