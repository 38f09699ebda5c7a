/*
 * Peer access: which contexts may reach cuMemAlloc memory of which others.
 *
 * Access goes from one context to another, in one direction. Page tables are per device, so a context's memory shows in a
 * device's table as long as any context of that device has enabled it (sg_context.viewers). VMM memory is not touched by
 * this: there cuMemSetAccess decides.
 */
#include "simgpu/fabric.h"
#include "simgpu/sim.h"

#include <stdlib.h>

#define MOST_CONNECTIONS 8 /* of a device on machines without NVSwitch, as cuda.h has it */

bool sg_peer_enabled(const struct sg_context *viewer, const struct sg_context *owner)
{
    for (unsigned i = 0; i < viewer->peer_count; i++)
        if (viewer->peers[i] == owner)
            return true;
    return false;
}

static bool add(struct sg_context *viewer, struct sg_context *owner)
{
    struct sg_context **more = realloc(viewer->peers, (viewer->peer_count + 1) * sizeof(struct sg_context *));
    if (!more)
        return false;
    viewer->peers = more;
    viewer->peers[viewer->peer_count++] = owner;
    if (!owner->viewers[viewer->device]++)
        sg_alloc_expose(owner, viewer->device, true);
    return true;
}

static void drop(struct sg_context *viewer, unsigned index)
{
    struct sg_context *owner = viewer->peers[index];
    viewer->peers[index] = viewer->peers[--viewer->peer_count];
    if (!--owner->viewers[viewer->device])
        sg_alloc_expose(owner, viewer->device, false);
}

void sg_peers_drop(struct sg_context *context)
{
    while (context->peer_count)
        drop(context, 0);
    free(context->peers);
    context->peers = NULL;
    struct sg_context *other;
    DL_FOREACH(sg.contexts, other)
    for (unsigned i = other->peer_count; i-- > 0;)
        if (other->peers[i] == context)
            drop(other, i);
}

bool sg_can_reach(int from, int to)
{
    return sg.config.topology ? sg_node_can_reach(sg.card[from], sg.card[to]) : sg.config.model->peer;
}

/* Natively, and not over PCIe. */
static bool has_atomics(int from, int to)
{
    const struct sg_model *m = sg.config.model;
    return m->peer && m->peer_atomics &&
           (!sg.config.topology || sg_node_between(sg.card[from], sg.card[to]) == SG_NEAR_NVLINK);
}

static bool has_switches(void)
{
    const struct sg_topology *t = sg.config.topology;
    for (uint32_t i = 0; t && i < t->count; i++)
        if (t->element[i].kind == SG_ELEMENT_SWITCH)
            return true;
    return false;
}

/* Contexts of one device share its connections. */
static bool has_connection_left(int device, int peer)
{
    uint64_t connected = 0;
    const struct sg_context *c;
    DL_FOREACH(sg.contexts, c)
    for (unsigned i = 0; c->device == device && i < c->peer_count; i++)
        connected |= UINT64_C(1) << c->peers[i]->device;
    return connected >> peer & 1 || __builtin_popcountll(connected) < MOST_CONNECTIONS || has_switches();
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxEnablePeerAccess", &c);
    if (r)
        return r;
    struct sg_context *peer = SG_FIND(handle, SG_CONTEXT);
    if (flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!peer || !peer->active || peer == c)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (peer->device == c->device || !sg_can_reach(c->device, peer->device))
        return sg_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    if (sg_peer_enabled(c, peer))
        return sg_leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    if (!has_connection_left(c->device, peer->device))
        return sg_leave(CUDA_ERROR_TOO_MANY_PEERS);
    return sg_leave(add(c, peer) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxDisablePeerAccess", &c);
    if (r)
        return r;
    struct sg_context *peer = SG_FIND(handle, SG_CONTEXT);
    if (!peer || !peer->active)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    for (unsigned i = 0; i < c->peer_count; i++) {
        if (c->peers[i] == peer) {
            drop(c, i);
            return sg_leave(CUDA_SUCCESS);
        }
    }
    return sg_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

/* ---- links between devices ---- */

static bool is_device(CUdevice device)
{
    return device >= 0 && device < sg.device_count;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult r = sg_enter_unlocked("cuDeviceCanAccessPeer");
    if (r)
        return r;
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device) || !is_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && sg_can_reach(device, peer);
    return CUDA_SUCCESS;
}

/* 0 is the best: links of their own before PCIe, and PCIe before what the host has to carry. */
static int rank(int from, int to)
{
    if (!sg.config.topology || sg_node_between(sg.card[from], sg.card[to]) == SG_NEAR_NVLINK)
        return 0;
    return sg_can_reach(from, to) ? 1 : 2;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination)
{
    CUresult r = sg_enter_unlocked("cuDeviceGetP2PAttribute");
    if (r)
        return r;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(source) || !is_device(destination) || source == destination)
        return CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = rank(source, destination); break;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = sg_can_reach(source, destination); break;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = has_atomics(source, destination); break;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; break; /* there are no arrays here */
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* What a link that carries atomics does natively, by operation: all that PTX has for global memory. */
static unsigned atomic_capabilities(CUatomicOperation operation)
{
    unsigned both = CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED;
    unsigned sizes = CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
    switch ((int)operation) {
    case CU_ATOMIC_OPERATION_INTEGER_ADD:
    case CU_ATOMIC_OPERATION_INTEGER_MIN:
    case CU_ATOMIC_OPERATION_INTEGER_MAX: return both | sizes | CU_ATOMIC_CAPABILITY_REDUCTION;
    case CU_ATOMIC_OPERATION_INTEGER_INCREMENT:
    case CU_ATOMIC_OPERATION_INTEGER_DECREMENT:
        return CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_REDUCTION;
    case CU_ATOMIC_OPERATION_AND:
    case CU_ATOMIC_OPERATION_OR:
    case CU_ATOMIC_OPERATION_XOR: return both | sizes | CU_ATOMIC_CAPABILITY_REDUCTION;
    case CU_ATOMIC_OPERATION_EXCHANGE:
    case CU_ATOMIC_OPERATION_CAS: return both | sizes;
    case CU_ATOMIC_OPERATION_FLOAT_ADD: return CU_ATOMIC_CAPABILITY_SIGNED | sizes | CU_ATOMIC_CAPABILITY_REDUCTION;
    default: return 0; /* minima and maxima of floats are not atomic operations of global memory */
    }
}

static CUresult link_capabilities(unsigned *capabilities, const CUatomicOperation *operations, unsigned count,
                                  bool native)
{
    if (!capabilities || !operations || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if ((unsigned)operations[i] >= CU_ATOMIC_OPERATION_MAX)
            return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        capabilities[i] = native ? atomic_capabilities(operations[i]) : 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *capabilities, const CUatomicOperation *operations,
                                          unsigned int count, CUdevice source, CUdevice destination)
{
    CUresult r = sg_enter_unlocked("cuDeviceGetP2PAtomicCapabilities");
    if (r)
        return r;
    if (!is_device(source) || !is_device(destination) || source == destination)
        return CUDA_ERROR_INVALID_DEVICE;
    return link_capabilities(capabilities, operations, count, has_atomics(source, destination));
}

/* All models are PCIe cards or modules on PCIe hosts: no native atomics with host memory (the attribute says 0 as well). */
CUresult cuDeviceGetHostAtomicCapabilities(unsigned int *capabilities, const CUatomicOperation *operations,
                                           unsigned int count, CUdevice device)
{
    CUresult r = sg_enter_unlocked("cuDeviceGetHostAtomicCapabilities");
    if (r)
        return r;
    return is_device(device) ? link_capabilities(capabilities, operations, count, false) : CUDA_ERROR_INVALID_DEVICE;
}
