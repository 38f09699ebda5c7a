/*
 * Stream memory operations: waits for a value in memory, and writes of one, in a stream's order.
 *
 * Who satisfies a wait may be a kernel, a copy, or a plain store of the host into pinned memory, of which nobody tells the
 * driver. So while a stream's head waits, a thread looks at it again and again, ever more seldom; no worker and no thread of
 * the job's is held up by it.
 */
#include "simgpu/capture.h"
#include "simgpu/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SHORTEST_PAUSE_NS 20000
#define LONGEST_PAUSE_NS 500000

/* ---- carrying them out; see sim.h ---- */

static void *place(const struct sg_value *v, bool write)
{
    enum sg_tier tier;
    return sg_translate(&sg.devices[v->device].pagetable, v->va, v->bytes, write, &tier);
}

static uint64_t load(const void *at, unsigned bytes)
{
    return bytes == 8 ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE)
                      : __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
}

static bool holds(const struct sg_value *v, uint64_t now)
{
    uint64_t mask = v->bytes == 8 ? UINT64_MAX : UINT32_MAX;
    switch (v->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return v->bytes == 8 ? (int64_t)(now - v->value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)v->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == (v->value & mask);
    case CU_STREAM_WAIT_VALUE_AND: return (now & v->value & mask) != 0;
    default: return (~(now | v->value) & mask) != 0;
    }
}

bool sg_value_ready(const struct sg_op *op)
{
    const void *at = place(&op->value, false);
    return !at || holds(&op->value, load(at, op->value.bytes)); /* memory that is gone: the run reports it */
}

void sg_value_run(struct sg_op *op)
{
    const struct sg_value *v = &op->value;
    bool write = op->kind == SG_OP_VALUE_WRITE;
    void *at = place(v, write);
    if (!at) {
        char near[220], line[400];
        sg_describe_address(v->va, near, sizeof near);
        snprintf(line, sizeof line, "illegal address in a stream memory operation on device %d: 0x%" PRIx64 ", %s",
                 v->device, v->va, near);
        sg_context_fail(op->stream->context, CUDA_ERROR_ILLEGAL_ADDRESS, line);
    } else if (write && v->bytes == 8) {
        __atomic_store_n((uint64_t *)at, v->value, __ATOMIC_RELEASE);
    } else if (write) {
        __atomic_store_n((uint32_t *)at, (uint32_t)v->value, __ATOMIC_RELEASE);
    }
    sg_complete(op);
}

/* ---- looking again; all guarded by sg.lock ---- */

static struct {
    pthread_cond_t cv;
    bool started, wanted;
    uint64_t pause_ns;
} poll = {.cv = PTHREAD_COND_INITIALIZER};

static void *poller(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&sg.lock);
    for (;;) {
        while (!poll.wanted)
            pthread_cond_wait(&poll.cv, &sg.lock);
        poll.wanted = false; /* sg_pump asks again for what still waits */
        uint64_t done = atomic_load(&sg.done_count);
        struct timespec pause = {0, (long)poll.pause_ns};
        pthread_mutex_unlock(&sg.lock);
        nanosleep(&pause, NULL); /* a store of the host makes no event to wait for */
        pthread_mutex_lock(&sg.lock);
        if (sg.config.replay)
            sg_replay_look();
        else
            sg_pump();
        poll.wanted |= sg.config.replay && sg.busy_streams;
        bool moved = atomic_load(&sg.done_count) != done;
        poll.pause_ns = moved                              ? SHORTEST_PAUSE_NS
                        : poll.pause_ns < LONGEST_PAUSE_NS ? poll.pause_ns * 2
                                                           : poll.pause_ns;
    }
    return NULL;
}

void sg_value_poll(void)
{
    if (poll.wanted)
        return;
    poll.wanted = true;
    if (!poll.started) {
        poll.pause_ns = SHORTEST_PAUSE_NS;
        poll.started = sg_thread_start(poller, NULL, "simgpu-values");
        sg.value_threads += poll.started;
    }
    pthread_cond_signal(&poll.cv);
}

/* ---- the API ---- */

static CUresult check(const struct sg_context *c, CUdeviceptr va, unsigned bytes)
{
    if (va % bytes || !sg_range_is_memory(va, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_mapping *m = sg_mapping_at(va);
    return m && !m->access[c->device] ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult submit(struct sg_stream *s, struct sg_op *op)
{
    if (op->kind == SG_OP_VALUE_WRITE)
        return sg_submit_async(s, op);
    sg_submit(s, op); /* with SIMGPU_SYNC too: the caller itself may be who writes the value */
    return CUDA_SUCCESS;
}

static CUresult check_wait_flags(unsigned flags)
{
    if (flags & ~(3u | (unsigned)CU_STREAM_WAIT_VALUE_FLUSH))
        return CUDA_ERROR_INVALID_VALUE;
    return flags & CU_STREAM_WAIT_VALUE_FLUSH ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS; /* as the attribute says */
}

CUresult sg_value_check(const struct sg_context *c, const CUstreamBatchMemOpParams *p)
{
    CUresult r;
    switch ((int)p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        r = check_wait_flags(p->waitValue.flags);
        return r ? r : check(c, p->waitValue.address, p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ? 8 : 4);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        if (p->writeValue.flags)
            return CUDA_ERROR_INVALID_VALUE;
        return check(c, p->writeValue.address, p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ? 8 : 4);
    case CU_STREAM_MEM_OP_BARRIER: /* a stream's operations are in order, and done before the next begins */
        return p->memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sg_value_op(const struct sg_context *c, const CUstreamBatchMemOpParams *p, struct sg_op **op_out)
{
    enum sg_op_kind kind = SG_OP_VALUE_WAIT;
    struct sg_value v;
    *op_out = NULL;
    switch ((int)p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        v = (struct sg_value){p->waitValue.address, p->waitValue.value, 4, p->waitValue.flags, c->device};
        break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        v = (struct sg_value){p->waitValue.address, p->waitValue.value64, 8, p->waitValue.flags, c->device};
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        kind = SG_OP_VALUE_WRITE;
        v = (struct sg_value){p->writeValue.address, p->writeValue.value, 4, p->writeValue.flags, c->device};
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        kind = SG_OP_VALUE_WRITE;
        v = (struct sg_value){p->writeValue.address, p->writeValue.value64, 8, p->writeValue.flags, c->device};
        break;
    default: return CUDA_SUCCESS;
    }
    struct sg_op *op = sg_op_new(kind);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->value = v;
    *op_out = op;
    return CUDA_SUCCESS;
}

static CUresult capture(struct sg_stream *s, unsigned count, const CUstreamBatchMemOpParams *parts)
{
    struct sg_work *w;
    CUresult r = sg_work_batch(SG_HANDLE(CUcontext, s->context), count, parts, 0, &w);
    return r ? r : sg_capture_work(s, w);
}

/* One operation of its own: a batch of one. */
static CUresult single(const char *api, CUstream stream, const CUstreamBatchMemOpParams *part, bool per_thread)
{
    struct sg_stream *s;
    struct sg_op *op = NULL;
    CUresult r = sg_enter_work(api, stream, per_thread, &s);
    if (r)
        return r;
    r = sg_value_check(s->context, part);
    if (!r && s->captured)
        return sg_leave(capture(s, 1, part));
    if (!r)
        r = sg_value_op(s->context, part, &op);
    return sg_leave(r ? r : submit(s, op));
}

static CUresult wait_value(const char *api, CUstream stream, CUdeviceptr va, uint64_t value, unsigned bytes,
                           unsigned flags, bool per_thread)
{
    CUstreamBatchMemOpParams p = {.waitValue = {.address = va, .value64 = value, .flags = flags}};
    p.operation = bytes == 8 ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
    return single(api, stream, &p, per_thread);
}

static CUresult write_value(const char *api, CUstream stream, CUdeviceptr va, uint64_t value, unsigned bytes,
                            unsigned flags, bool per_thread)
{
    CUstreamBatchMemOpParams p = {.writeValue = {.address = va, .value64 = value, .flags = flags}};
    p.operation = bytes == 8 ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    return single(api, stream, &p, per_thread);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr va, cuuint32_t value, unsigned int flags)
{
    return wait_value("cuStreamWaitValue32", stream, va, value, 4, flags, false);
}

CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr va, cuuint32_t value, unsigned int flags)
{
    return wait_value("cuStreamWaitValue32", stream, va, value, 4, flags, true);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr va, cuuint64_t value, unsigned int flags)
{
    return wait_value("cuStreamWaitValue64", stream, va, value, 8, flags, false);
}

CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr va, cuuint64_t value, unsigned int flags)
{
    return wait_value("cuStreamWaitValue64", stream, va, value, 8, flags, true);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr va, cuuint32_t value, unsigned int flags)
{
    return write_value("cuStreamWriteValue32", stream, va, value, 4, flags, false);
}

CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr va, cuuint32_t value, unsigned int flags)
{
    return write_value("cuStreamWriteValue32", stream, va, value, 4, flags, true);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr va, cuuint64_t value, unsigned int flags)
{
    return write_value("cuStreamWriteValue64", stream, va, value, 8, flags, false);
}

CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr va, cuuint64_t value, unsigned int flags)
{
    return write_value("cuStreamWriteValue64", stream, va, value, 8, flags, true);
}

/* ---- batches ---- */

static CUresult batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *parts, unsigned flags,
                      bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuStreamBatchMemOp", stream, per_thread, &s);
    if (r)
        return r;
    if (count >= 256 || !parts || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t id = s->object.id;
    for (unsigned i = 0; i < count && !r; i++)
        r = sg_value_check(s->context, &parts[i]);
    if (!r && count && s->captured)
        return sg_leave(capture(s, count, parts));
    for (unsigned i = 0; i < count && !r; i++) {
        struct sg_op *op;
        r = sg_value_op(s->context, &parts[i], &op);
        if (!r && op)
            r = submit(s, op);
        s = sg_object_find(id, SG_STREAM); /* SIMGPU_SYNC releases the lock */
        if (!r && !s)
            r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return sg_leave(r);
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *parts, unsigned int flags)
{
    return batch(stream, count, parts, flags, false);
}

CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *parts,
                                    unsigned int flags)
{
    return batch(stream, count, parts, flags, true);
}
