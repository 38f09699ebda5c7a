/* Shared by the files of memory between processes (ipc.h) only. */
#ifndef HR_RESIDENCY_IPC_INTERNAL_H
#define HR_RESIDENCY_IPC_INTERNAL_H

#include "residency/exported.h"
#include "residency/ipc.h"

#include <sys/socket.h>
#include <sys/un.h>

#define HR_IPC_MAGIC UINT64_C(0x31637069726468ff) /* the last digit of its text is the version */
#define HR_IPC_DEADLINE_NS UINT64_C(10000000000)  /* for all of an exchange */
#define HR_IPC_STEP_NS UINT64_C(2000000000)       /* for each step of it that the exporter waits for */
#define HR_IPC_BATCH 32                           /* descriptors in a message */

/* The bytes of a CUipcMemHandle. */
struct hr_ipc_handle {
    uint64_t magic;
    uint64_t key;        /* of the exporter's: one for each exported allocation */
    uint64_t start_time; /* of the exporter, in clock ticks since the machine's start; with `pid` it names it */
    uint64_t bytes;      /* of the allocation */
    uint32_t pid;
    uint32_t offset; /* of the allocation in its first chunk */
    CUuuid gpu;
    uint32_t spare;
    uint32_t check; /* over what comes before */
};
_Static_assert(sizeof(struct hr_ipc_handle) == sizeof(CUipcMemHandle), "as large as cuda.h says");

/* What the importer sends, once. */
struct hr_ipc_request {
    uint64_t magic, key;
};
/* What it gets: one without descriptors, then the chunks from the first to the last, up to HR_IPC_BATCH in each message. */
struct hr_ipc_reply {
    uint64_t magic;
    uint64_t chunk_bytes;
    uint32_t chunks, count; /* all of them; descriptors in this message */
    int32_t result;         /* a CUresult: not 0 = there is no more to come */
    uint32_t spare;
};

/* One's own start time; 0 = the system does not tell. */
uint64_t hr_ipc_start_time(void);
/* The abstract address of an exporter of this user; its length. */
socklen_t hr_ipc_address(uint32_t pid, uint64_t start_time, struct sockaddr_un *address_out);
/* Sends or receives one message, with up to HR_IPC_BATCH descriptors. false: it did not work before the deadline. received
 * descriptors are the caller's to close. */
bool hr_ipc_send(int socket, const void *data, size_t bytes, const int *fds, unsigned fd_count, uint64_t deadline_ns);
bool hr_ipc_receive(int socket, void *data, size_t bytes, int *fds_out, unsigned *fd_count_out, uint64_t deadline_ns);
/* Whether the other end is of this user. */
bool hr_ipc_is_own_user(int socket);

/* Starts the thread that hands over, once. OPERATING_SYSTEM: it could not be. */
CUresult hr_ipc_serve(void);
/* The exported allocation with this key. false: there is none, or it was freed. */
bool hr_ipc_exported(uint64_t key, struct hr_hold *hold_out);

/* The chunks of a handle, mapped side by side. Errors as hr_ipc_open. */
struct hr_ipc_mapping {
    CUdeviceptr base; /* of the reservation */
    size_t bytes;
    CUdevice device; /* whose memory it is */
};
CUresult hr_ipc_fetch(const struct hr_ipc_handle *handle, CUdevice user, struct hr_ipc_mapping *mapping_out);
/* Nothing may be using it. */
void hr_ipc_unmap(const struct hr_ipc_mapping *mapping);

#endif
