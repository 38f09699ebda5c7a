/*
 * The per-user host ledger: local processes under headroom share the host's memory, so what one has promised and not yet
 * used is not available to the next. (M2: never advertise bytes that nothing can back.)
 *
 * A small table in a file of the user's runtime folder ($XDG_RUNTIME_DIR, else a private folder in /tmp), a slot a process,
 * read and changed under a file lock that the kernel releases when its holder dies. No descriptor is kept open. A slot whose
 * process (pid and start time) is gone is taken over. Where the file cannot be used, each process counts for itself.
 */
#ifndef HR_SPACE_SHARE_H
#define HR_SPACE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Says that this process has promised `promised_bytes` of host memory in all, of which it uses `used_bytes` now. Granted (true)
 * when what it and the others have promised and not used fits into available_bytes (what the machine has free now), or when
 * the promise did not grow. Not granted: nothing changes. Locks: none of ours; waits at most 50 ms for the file's.
 */
bool hr_share_promise(size_t promised_bytes, size_t used_bytes, size_t available_bytes);
/* What the other processes have promised and not used. */
size_t hr_share_others(void);
/* Gives the slot back. */
void hr_share_leave(void);

#endif
