/*
 * Whether copies between GPUs arrive, right and in time, and how fast. The driver's word is not enough: there are machines where it
 * grants access and data arrives wrong, or never.
 *
 * The copies are made by another process, `headroom topo --probe` (src/fabric/measure.h), because what hangs cannot be taken back. It
 * is found beside this library, or where both are installed. Where there is none (a library copied by itself) nothing is tried,
 * links have the rates that their generation implies, and what an earlier run of `headroom topo --measure` has left counts.
 *
 * What was found is kept in the file HEADROOM_TOPO_CACHE (default: headroom/paths in the user's cache folder), by driver version,
 * bus ids and UUIDs; of a simulated node only where that is set, since its faults are a matter of the environment.
 */
#ifndef HR_FABRIC_VERIFY_H
#define HR_FABRIC_VERIFY_H

#include "fabric/discover.h"

/*
 * Fills states and measurements of the pairs and of the way to the host, from the file and by copies as `copies` says, and logs each
 * bad pair once. Waits for the copies: seconds on a large machine, the first time. Failures leave pairs unproven. Blocks the calling
 * thread only. Locks: none.
 */
void hr_verify(struct hr_discovery *discovery, enum hr_discover_copies copies);

/* What is said of a pair whose state is bad, or of `both` directions, in one line of up to HR_VERIFY_TEXT_BYTES. Pure. */
#define HR_VERIFY_TEXT_BYTES 240
void hr_verify_describe(const struct hr_discovery *discovery, uint32_t from, uint32_t to, bool both, char *text_out);

/* The command to start in place of the one that is found; the command itself says so. Before hr_verify, and not afterwards. */
void hr_verify_use_command(const char *path);

/*
 * Keeps what CUDA_VISIBLE_DEVICES says now, for the process that makes the copies: jobs change it once their driver has started, and then
 * that one would not see the same GPUs. Once, before hr_verify; where it is not called the variable counts as it is then. Locks: none.
 */
void hr_verify_keep_devices(void);

#endif
