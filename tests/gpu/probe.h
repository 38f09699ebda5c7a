/* The questions of probe.c's table. Each is as gpu.h says of items; a row "ok" or "different" compares with what is assumed. */
#ifndef PROBE_H
#define PROBE_H

#include "gpu.h"

#define ASSUMED(condition, name, ...) gpu_row((condition) ? GPU_OK_ : GPU_DIFFERENT_, name, __VA_ARGS__)
#define SAW(name, ...) gpu_row(GPU_SEEN_, name, __VA_ARGS__)

/* probe_place.c: what depends on where memory lies */
void probe_span(void);
void probe_graph_copy(void);
void probe_graph_fill(void);
void probe_buffer_id(void);
void probe_texture(void);
void probe_tensor_map(void);
void probe_hints(void);
void probe_host_kinds(void);
void probe_charge(void);

/* probe_call.c: what calls may be made when, and what is there */
void probe_capture_calls(void);
void probe_capture_unmap(void);
void probe_free_waits(void);
void probe_addresses(void);
void probe_pointers(void);
void probe_membarrier(void);
void probe_attributes(void);

/* probe_time.c: what things cost */
void probe_chunk_costs(void);
void probe_swap_costs(void);
void probe_pinned_cost(void);
void probe_copy_rates(void);
void probe_kernel_rates(void);
void probe_atomics(void);
void probe_launch_cost(void);

#endif
