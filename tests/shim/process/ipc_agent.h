/* What a test (test_ipc.c) asks of an agent, a process that uses CUDA, and what it answers: one message each. */
#ifndef TESTS_SHIM_PROCESS_IPC_AGENT_H
#define TESTS_SHIM_PROCESS_IPC_AGENT_H

#include <cuda.h>
#include <stdint.h>

enum ipc_do {
    IPC_ALLOC,        /* bytes, value of each word -> slot */
    IPC_FREE,         /* slot */
    IPC_EXPORT,       /* slot, offset -> handle */
    IPC_OPEN,         /* handle, flags -> slot; address in `value` */
    IPC_CLOSE,        /* slot */
    IPC_OPEN_AT_ONCE, /* handle, threads -> slot; the opens that worked in `value` */
    IPC_ADD,          /* slot, stride in words, words, what is added; by a kernel */
    IPC_SUM,          /* slot, bytes -> sum over all words in `value` */
    IPC_ATTRIBUTES,   /* slot -> a mixture of what pointer queries say, in `value` */
    IPC_BALLAST,      /* buffers, bytes of each: they are allocated */
    IPC_WORK,         /* rounds: each adds one to words all over the ballast -> sum of them */
    IPC_EVENT,        /* -> event_handle; its own event */
    IPC_EVENT_OPEN,   /* event_handle: the other's event */
    IPC_RECORD,       /* its own event, behind what it has submitted */
    IPC_WAIT,         /* its stream waits for the other's event */
    IPC_GRAPH,        /* slot, words, value: instantiates a graph that sets the words */
    IPC_GRAPH_LAUNCH, /* launches it */
    IPC_SYNC_MEMOPS,  /* slot: sets that attribute */
    IPC_DMA_BUF,      /* slot, bytes: a dma-buf of it */
    IPC_RESET,        /* destroys its context with all that it holds, and makes another */
    IPC_FORK,  /* a child that does nothing but wait for the end of its standard input -> its process id in `value` */
    IPC_FILES, /* -> how many descriptors it has, in `value` */
    IPC_END,
};
struct ipc_order {
    uint32_t what, slot;
    uint64_t a, b, c;
    CUipcMemHandle handle;
    CUipcEventHandle event;
};
struct ipc_answer {
    int32_t result; /* a CUresult */
    uint32_t slot;
    uint64_t value;
    CUipcMemHandle handle;
    CUipcEventHandle event;
};

#define IPC_SLOTS 256

#endif
