/* The checks of contract.c's table. Each is as gpu.h says of items. */
#ifndef CONTRACT_H
#define CONTRACT_H

#include "gpu.h"

/* contract_map.c: mapping, unmapping, access, chunks in host memory */
void contract_granularity(void);
void contract_reserve(void);
void contract_map_rules(void);
void contract_access_rules(void);
void contract_access_span(void);
void contract_unmap_rules(void);
void contract_remap(void);
void contract_release(void);
void contract_alias(void);
void contract_too_much(void);
void contract_survives(void);
void contract_host_chunk(void);
void contract_host_swap(void);
void contract_host_locations(void);
void contract_host_rights(void);
void contract_copies(void);
void contract_peer_copy(void);
void contract_no_wait_map(void);
void contract_no_wait_unmap(void);

/* contract_ask.c: pointer queries, parameters, look-ups, streams */
void contract_pointer_device(void);
void contract_pointer_host(void);
void contract_pointer_plain(void);
void contract_retain(void);
void contract_ipc(void);
void contract_parameters(void);
void contract_resolver_itself(void);
void contract_resolver_versions(void);
void contract_resolver_streams(void);
void contract_resolver_absent(void);
void contract_query(void);
void contract_words(void);
void contract_capacity(void);
void contract_peers(void);

/* contract_graph.c: captures and graphs */
void contract_graph_kernel(void);
void contract_graph_host(void);
void contract_capture_forbids(void);
void contract_capture_relaxed(void);
void contract_capture_other_thread(void);
void contract_capture_aside(void);

#endif
