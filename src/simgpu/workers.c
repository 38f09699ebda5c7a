/*
 * The threads that do the work: a few workers serve slices of all running grids in turn, copy threads the copy engines, and
 * one thread per device the host functions. All are made at first use, detached, with signals of others blocked; they hold no
 * resource that a process could not exit with at any moment.
 */
#include "simgpu/check.h"
#include "simgpu/graph.h"
#include "simgpu/linkfault.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SLICE_INSTRUCTIONS 6000
#define SPINS 2000
#define COPY_THREADS 2
#define SMALL_COPY_BYTES (UINT64_C(1) << 20)

bool sg_thread_start(void *(*body)(void *), void *arg, const char *name)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV); /* a host function may fault as any of the job's code may */
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    bool ok = !pthread_create(&thread, &attr, body, arg);
    if (ok)
        pthread_setname_np(thread, name);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!ok)
        sg_log(SG_LOG_ERROR, "cannot start thread %s", name);
    return ok;
}

/* ---- kernels ---- */

static struct sg_op *next_grid(void)
{
    for (int i = 0; i < sg.device_count; i++) {
        struct sg_device *d = &sg.devices[(sg.next_device + (unsigned)i) % (unsigned)sg.device_count];
        struct sg_op *op;
        DL_FOREACH2(d->grids, op, run_next)
        {
            if (op->kernel.finished || op->kernel.creating || op->kernel.skip)
                continue;
            DL_DELETE2(d->grids, op, run_prev, run_next); /* to the end: they take turns */
            DL_APPEND2(d->grids, op, run_prev, run_next);
            sg.next_device = (unsigned)d->index + 1;
            return op;
        }
    }
    return NULL;
}

static void create_grid(struct sg_op *op)
{
    struct sg_kernel *k = &op->kernel;
    int device = op->stream->context->device;
    struct ptx_grid_args args = {
        .function = k->function->ptx,
        .grid = {k->grid[0], k->grid[1], k->grid[2]},
        .block = {k->block[0], k->block[1], k->block[2]},
        .dynamic_shared_bytes = k->shared_bytes,
        .params = k->params,
        .pagetable = &k->view,
        .max_resident_blocks = k->resident_blocks,
        .cooperative = k->cooperative,
        .sm_count = (uint32_t)sg.config.model->sm_count,
        .seed = sg_random(),
        .heap = op->stream->context->heap,
        .fifo = op->stream->context->fifo,
        .texture = sg_texture_of,
        .set_condition = sg_condition_set,
        .context = op->stream->context->object.id,
    };
    k->view = sg.devices[device].pagetable;
    k->view.touched = sg.devices[device].touched;
    k->view.touch_id = (uint32_t)op->seq;
    if (sg_check.accesses)
        sg_access_watch(op);
    k->creating = true;
    pthread_mutex_unlock(&sg.lock);
    struct ptx_grid *run = ptx_grid_create(&args);
    pthread_mutex_lock(&sg.lock);
    k->creating = false;
    k->run = run;
    k->finished = k->out_of_memory = !run;
    if (run && op->stream->context->sticky)
        ptx_grid_abort(run);
    sg_workers_notify();
}

CUresult sg_fault_to_error(enum ptx_fault_kind kind)
{
    switch (kind) {
    case PTX_FAULT_NONE: return CUDA_SUCCESS;
    case PTX_FAULT_ILLEGAL_ADDRESS: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case PTX_FAULT_MISALIGNED: return CUDA_ERROR_MISALIGNED_ADDRESS;
    case PTX_FAULT_ASSERT: return CUDA_ERROR_ASSERT;
    case PTX_FAULT_ILLEGAL_INSTRUCTION: return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case PTX_FAULT_STACK: return CUDA_ERROR_HARDWARE_STACK_ERROR;
    default: return CUDA_ERROR_LAUNCH_FAILED;
    }
}

static void report_fault(struct sg_op *op, const struct ptx_fault *f)
{
    static const char *const kinds[] = {"",
                                        "illegal address",
                                        "misaligned address",
                                        "trap",
                                        "assertion failed",
                                        "illegal instruction",
                                        "stack exhausted",
                                        "aborted",
                                        "deadlock at a barrier"};
    char where[300] = "", line[700];
    if (f->kind == PTX_FAULT_ILLEGAL_ADDRESS || f->kind == PTX_FAULT_MISALIGNED) {
        char near[220] = "";
        enum sg_finding_kind rule = sg_finding_at(op->stream->context->device, f->address);
        bool global = !f->space || !strcmp(f->space, "global") || !strcmp(f->space, "generic");
        if (!f->space || strcmp(f->space, "shared") != 0)
            sg_describe_address(f->address, near, sizeof near);
        if (global && f->kind == PTX_FAULT_ILLEGAL_ADDRESS)
            sg_finding_count(rule);
        snprintf(where, sizeof where, ": %s of %u bytes at %s 0x%" PRIx64 "%s%s%s%s", f->write ? "write" : "read",
                 f->bytes, f->space ? f->space : "generic", f->address, *near ? ", " : "", near,
                 global && f->kind == PTX_FAULT_ILLEGAL_ADDRESS ? ": " : "",
                 global && f->kind == PTX_FAULT_ILLEGAL_ADDRESS ? sg_finding_name(rule) : "");
    }
    snprintf(line, sizeof line, "%s in kernel %s, block (%u,%u,%u), thread (%u,%u,%u), PTX line %u, device %d%s",
             kinds[f->kind], op->kernel.function->info->name, f->block[0], f->block[1], f->block[2], f->thread[0],
             f->thread[1], f->thread[2], f->line, op->stream->context->device, where);
    sg_context_fail(op->stream->context, sg_fault_to_error(f->kind), line);
}

static void finish_kernel(struct sg_op *op)
{
    struct sg_kernel *k = &op->kernel;
    struct sg_device *d = &sg.devices[op->stream->context->device];
    DL_DELETE2(d->grids, op, run_prev, run_next); /* NOLINT(clang-analyzer-core.NullDereference): it is on the list */
    d->share = d->grids ? d->share - k->share : 0;
    if (k->out_of_memory) {
        sg_context_fail(op->stream->context, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "no host memory to run a grid");
    } else {
        const struct ptx_counters *n = ptx_grid_counters(k->run);
        d->kernels++;
        for (int t = 0; t < SG_TIER_COUNT; t++) {
            d->read[t] += n->read_bytes[t];
            d->written[t] += n->write_bytes[t];
        }
        d->warp_instructions += n->warp_instructions;
        d->flops += n->flops;
        d->double_flops += n->double_flops;
        d->tensor_flops += n->tensor_flops;
        sg_time_kernel_ran(op, n);
        const struct ptx_fault *fault = ptx_grid_fault(k->run);
        if (fault && fault->kind != PTX_FAULT_NONE && fault->kind != PTX_FAULT_ABORTED)
            report_fault(op, fault);
        struct ptx_grid *run = k->run;
        k->run = NULL;
        pthread_mutex_unlock(&sg.lock);
        ptx_grid_destroy(run);
        pthread_mutex_lock(&sg.lock);
    }
    sg_complete(op);
    sg_pump();
}

bool sg_slice_run(struct sg_op *op, uint64_t instructions)
{
    struct sg_kernel *k = &op->kernel;
    k->users++;
    if (!k->run)
        create_grid(op);
    if (k->run) {
        struct ptx_grid *run = k->run;
        pthread_mutex_unlock(&sg.lock);
        enum ptx_progress progress = ptx_grid_run(run, instructions);
        pthread_mutex_lock(&sg.lock);
        if (sg.config.replay)
            sg_replay_event(SG_REPLAY_SLICE, op, instructions);
        if (progress == PTX_DONE)
            k->finished = true;
        else if (sg_check.deadlock)
            sg_deadlock_look(op);
        bool was_skipped = k->skip;
        k->skip = progress == PTX_IDLE && k->users > 1;
        if (was_skipped && !k->skip && !k->finished && sg.idle_workers)
            pthread_cond_signal(&sg.work_cv);
    }
    if (!--k->users && k->finished)
        finish_kernel(op);
    else if (k->skip && !k->users)
        k->skip = false;
    return true;
}

static bool run_slice(void)
{
    struct sg_op *op = next_grid();
    return op && sg_slice_run(op, SLICE_INSTRUCTIONS);
}

static struct sg_op *next_copy(uint64_t most_bytes)
{
    for (int i = 0; i < sg.device_count; i++) {
        for (int e = 0; e < SG_ENGINE_COUNT; e++) {
            struct sg_op *op = sg.devices[i].engine[e];
            if (!op || sg.devices[i].engine_busy[e])
                continue;
            uint64_t bytes = op->kind == SG_OP_COPY ? sg_copy_bytes(&op->copy) : op->fill.width_bytes * op->fill.height;
            if (bytes <= most_bytes)
                return op;
        }
    }
    return NULL;
}

void sg_engine_run(struct sg_device *d, enum sg_engine engine)
{
    struct sg_op *op = d->engine[engine];
    DL_DELETE2(d->engine[engine], op, run_prev, run_next);
    d->engine_busy[engine] = true;
    bool op_hangs = op->hung = op->kind == SG_OP_COPY && sg_linkfault_hangs(&op->copy);
    sg_copy_op_run(op);
    if (op_hangs) /* and the engine with it */
        return;
    d->engine_busy[engine] = false;
    sg_pump();
    if (d->engine[engine])
        sg_copiers_notify();
}

static bool run_copy(uint64_t most_bytes)
{
    struct sg_op *op = next_copy(most_bytes);
    if (op)
        sg_engine_run(&sg.devices[op->stream->context->device], op->engine);
    return op != NULL;
}

bool sg_work_once(void)
{
    return sg.config.replay ? sg_replay_step() : run_copy(SMALL_COPY_BYTES) || run_slice();
}

void sg_copy_op_run(struct sg_op *op)
{
    if (op->hung)
        return;
    while (op->inline_run && op->kind == SG_OP_COPY && sg_linkfault_hangs(&op->copy)) {
        op->hung = true;
        pthread_cond_wait(&sg.done_cv, &sg.lock); /* for ever: until the process is ended */
    }
    struct sg_moved moved = {.turn = op->seq};
    uint64_t bad = 0;
    struct sg_device *d = &sg.devices[op->stream->context->device];
    pthread_mutex_unlock(&sg.lock);
    bool ok =
        op->kind == SG_OP_COPY ? sg_copy_execute(&op->copy, &moved, &bad) : sg_fill_execute(&op->fill, &moved, &bad);
    pthread_mutex_lock(&sg.lock);
    for (int i = 0; i < SG_DIRECTION_COUNT && op->kind == SG_OP_COPY; i++)
        d->copied[i] += moved.bytes[i];
    sg_time_moved(op, &moved);
    if (!ok && moved.link_error) {
        sg_linkfault_end(op, &moved);
    } else if (!ok) {
        char near[220], line[400];
        enum sg_finding_kind rule = sg_finding_at(d->index, bad);
        sg_describe_address(bad, near, sizeof near);
        sg_finding_count(rule);
        snprintf(line, sizeof line, "illegal address in a %s on device %d: 0x%" PRIx64 ", %s: %s",
                 op->kind == SG_OP_COPY ? "copy" : "memset", d->index, bad, near, sg_finding_name(rule));
        sg_context_fail(op->stream->context, CUDA_ERROR_ILLEGAL_ADDRESS, line);
    }
    sg_complete(op);
}

static void *worker(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&sg.lock);
    for (bool spun = false;;) {
        if (run_slice()) {
            spun = false;
            continue;
        }
        if (!spun) { /* a launch often follows soon: sleeping and waking would cost more than looking */
            uint64_t seen = atomic_load(&sg.work_count);
            pthread_mutex_unlock(&sg.lock);
            for (int i = 0; i < SPINS && atomic_load_explicit(&sg.work_count, memory_order_relaxed) == seen; i++)
                sg_relax();
            pthread_mutex_lock(&sg.lock);
            spun = true;
            continue;
        }
        sg.idle_workers++;
        pthread_cond_wait(&sg.work_cv, &sg.lock);
        sg.idle_workers--;
        spun = false;
    }
    return NULL;
}

/* In a replay whoever waits does the work; it may have been waiting for there to be some. */
static bool is_replay(void)
{
    if (sg.config.replay && sg.waiting)
        pthread_cond_broadcast(&sg.done_cv);
    return sg.config.replay;
}

void sg_workers_notify(void)
{
    static bool started;
    if (is_replay())
        return;
    atomic_fetch_add_explicit(&sg.work_count, 1, memory_order_release);
    if (!started) {
        started = true;
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        for (long i = 0; i < (n < 1 ? 1 : n > 64 ? 64 : n); i++)
            sg.workers += sg_thread_start(worker, NULL, "simgpu-worker");
    }
    if (sg.idle_workers)
        pthread_cond_signal(&sg.work_cv);
}

/* ---- copies ---- */

static void *copier(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&sg.lock);
    for (;;) {
        if (run_copy(UINT64_MAX))
            continue;
        sg.idle_copy_threads++;
        pthread_cond_wait(&sg.copy_cv, &sg.lock);
        sg.idle_copy_threads--;
    }
    return NULL;
}

void sg_copiers_notify(void)
{
    if (is_replay())
        return;
    if (!sg.copy_threads)
        for (int i = 0; i < COPY_THREADS; i++)
            sg.copy_threads += sg_thread_start(copier, NULL, "simgpu-copy");
    if (sg.idle_copy_threads)
        pthread_cond_signal(&sg.copy_cv);
}

/* ---- host functions ---- */

static void *host_thread(void *arg)
{
    struct sg_device *d = arg;
    sg_thread()->in_host_call = true;
    atomic_fetch_sub(&sg.api_threads, 1);
    pthread_mutex_lock(&sg.lock);
    d->host_tid = gettid();
    pthread_getcpuclockid(pthread_self(), &d->host_cpu_clock);
    for (;;) {
        struct sg_op *op = d->host_ops;
        if (!op || (sg.config.replay && !d->host_turns)) {
            pthread_cond_wait(&d->host_cv, &sg.lock);
            continue;
        }
        d->host_turns = 0;
        d->host_busy = true;
        atomic_store_explicit(&d->host_back, false, memory_order_relaxed);
        DL_DELETE2(d->host_ops, op, run_prev, run_next);
        struct sg_host_call call = op->host;
        sg_time_host_begin(op);
        pthread_mutex_unlock(&sg.lock);
        if (call.callback)
            call.callback(call.handle, call.status, call.data);
        else
            call.fn(call.data);
        atomic_store_explicit(&d->host_back, true, memory_order_relaxed);
        pthread_mutex_lock(&sg.lock);
        d->host_busy = false;
        sg_complete(op);
        sg_pump();
    }
    return NULL;
}

bool sg_host_look(const struct sg_device *d, uint64_t *cpu_ns_out, bool *sleeps_out)
{
    if (!d->host_busy || atomic_load_explicit(&d->host_back, memory_order_relaxed))
        return false;
    struct timespec cpu = {0};
    clock_gettime(d->host_cpu_clock, &cpu);
    *cpu_ns_out = (uint64_t)cpu.tv_sec * 1000000000 + (uint64_t)cpu.tv_nsec;
    char path[64], text[128] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)d->host_tid);
    FILE *f = fopen(path, "re");
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = '\0';
        fclose(f);
    }
    const char *after_name = strrchr(text, ')'); /* "tid (name) S ..." */
    *sleeps_out = !after_name || after_name[1] != ' ' || (after_name[2] != 'R' && after_name[2] != 'D');
    return true;
}

void sg_host_notify(struct sg_device *d)
{
    if (!d->host_thread)
        d->host_thread = sg_thread_start(host_thread, d, "simgpu-host");
    is_replay();
    pthread_cond_signal(&d->host_cv);
}
