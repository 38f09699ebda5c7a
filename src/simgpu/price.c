/* What operations take on the model's hardware: from the bytes that they moved, tier by tier, and from their arithmetic. */
#include "simgpu/fabric.h"
#include "simgpu/sim.h"

#include <math.h>

#define SG_COST(function, class_, ns, source)
#define SG_UNIT_COST(name, class_, ns, source)
#define SG_CONSTANT(name, value, source) static const double name = value;
#include "simgpu/costs.def"
#undef SG_COST
#undef SG_UNIT_COST
#undef SG_CONSTANT

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double vram_gbps(void)
{
    return sg.config.model->vram_gbps * VRAM_EFFICIENCY;
}

/* Bytes per nanosecond are GB/s. All SMs together reach the VRAM's bandwidth, some of them their share. */
static double memory_ns(const struct sg_vop *v, double share)
{
    const struct sg_model *m = sg.config.model;
    double vram = (double)(v->read[SG_TIER_VRAM] + v->written[SG_TIER_VRAM]) / (vram_gbps() * share);
    double host_in = (double)v->read[SG_TIER_HOST] / m->host_read_gbps;
    double host_out = (double)v->written[SG_TIER_HOST] / m->host_write_gbps;
    double peer_in = (double)v->read[SG_TIER_PEER] / m->peer_gbps;
    double peer_out = (double)v->written[SG_TIER_PEER] / m->peer_gbps;
    if (v->usage.count) { /* what lies between is known */
        peer_in = (double)sg_links_ns(&v->usage);
        peer_out = 0;
    }
    return larger(vram, larger(larger(host_in, host_out), larger(peer_in, peer_out)));
}

/* What one access waits for, on average over where they went. */
static double latency_ns(const struct sg_vop *v, double cycle_ns)
{
    double near = sg.config.model->memory_latency_cycles * cycle_ns, far = sg.config.model->host_latency_ns;
    double vram = (double)(v->read[SG_TIER_VRAM] + v->written[SG_TIER_VRAM]);
    double host = (double)(v->read[SG_TIER_HOST] + v->written[SG_TIER_HOST]);
    double peer = (double)(v->read[SG_TIER_PEER] + v->written[SG_TIER_PEER]);
    double all = vram + host + peer;
    return all > 0 ? (vram * near + (host + peer) * far) / all : near;
}

/* Units for singles, for doubles and for matrices work side by side. */
static double arithmetic_ns(const struct sg_vop *v, double share)
{
    const struct sg_model *m = sg.config.model;
    double singles = (double)(v->flops - v->double_flops - v->tensor_flops) / m->fp32_tflops;
    double doubles = (double)v->double_flops / m->fp64_tflops;
    return larger(larger(singles, doubles), (double)v->tensor_work / m->tensor_tflops) / (1e3 * share);
}

/*
 * The longest of: issuing all warps' instructions with what is resident on each SM, floating-point arithmetic, memory traffic,
 * and one warp's instructions one after the other, as often as the blocks need rounds.
 */
static double running_ns(const struct sg_vop *v, uint32_t sms)
{
    const struct sg_model *m = sg.config.model;
    double cycle_ns = 1e6 / m->clock_khz, share = (double)sms / m->sm_count;
    double warps = (double)v->blocks * v->warps, lanes = v->lanes ? v->lanes : 1;
    double instructions = (double)v->instructions / lanes, accesses = (double)v->accesses / lanes;
    double resident = warps / sms, most = (double)v->per_sm * v->warps;
    double rounds = 1;
    if (resident > most) {
        rounds = resident / most;
        resident = most;
    }
    double per_cycle = resident / ISSUE_CYCLES < m->schedulers_per_sm ? resident / ISSUE_CYCLES : m->schedulers_per_sm;
    double issue = instructions / (sms * per_cycle) * cycle_ns;
    double one_warp =
        instructions / warps * ISSUE_CYCLES * cycle_ns + accesses / warps * latency_ns(v, cycle_ns) / LOADS_IN_FLIGHT;
    return larger(larger(issue, arithmetic_ns(v, share)), larger(memory_ns(v, share), one_warp * rounds));
}

uint32_t sg_price_sms(const struct sg_vop *v)
{
    uint32_t all = (uint32_t)sg.config.model->sm_count;
    return v->blocks >= all ? all : v->blocks ? v->blocks : 1;
}

uint64_t sg_price_kernel(const struct sg_vop *v, uint32_t sms)
{
    return v->ran ? (uint64_t)((v->in_graph ? GRAPH_KERNEL_OVERHEAD_NS : KERNEL_OVERHEAD_NS) + running_ns(v, sms) + 0.5)
                  : 0;
}

static double copy_rate(const struct sg_vop *v, double gbps)
{
    return v->pageable && gbps > PAGEABLE_GBPS ? PAGEABLE_GBPS : gbps;
}

/* Both directions of the host link at once carry less than twice one: what is left of it beside a transfer that is there
 * already. */
static uint64_t host_link(const struct sg_vop *v, uint64_t start_ns, bool in)
{
    const struct sg_model *m = sg.config.model;
    double full = in ? m->h2d_gbps : m->d2h_gbps, opposite = in ? m->d2h_gbps : m->h2d_gbps;
    double rest = 2 * m->both_ways_gbps - opposite;
    const struct sg_profile *other = &sg_timed(v->device)->line[in ? SG_LINE_D2H : SG_LINE_H2D];
    return sg_profile_transfer(other, start_ns, v->bytes[in ? SG_H2D : SG_D2H], copy_rate(v, full), copy_rate(v, rest));
}

uint64_t sg_price_copy(const struct sg_vop *v, uint64_t start_ns)
{
    if (!v->ran)
        return start_ns;
    uint64_t at = start_ns + (uint64_t)COPY_LATENCY_NS;
    if (v->bytes[SG_H2D])
        at = host_link(v, at, true);
    if (v->bytes[SG_D2H])
        at = host_link(v, at, false);
    if (v->usage.count && at < start_ns + (uint64_t)COPY_LATENCY_NS + sg_links_ns(&v->usage) + v->usage.latency_ns)
        at = start_ns + (uint64_t)COPY_LATENCY_NS + sg_links_ns(&v->usage) + v->usage.latency_ns;
    double peer_gbps = v->usage.count ? HUGE_VAL : sg.config.model->peer_gbps;
    double passes = v->kind == SG_OP_FILL ? 1 : 2; /* a copy reads and writes */
    double rest = (double)v->bytes[SG_D2D] * passes / vram_gbps() + (double)v->bytes[SG_P2P] / peer_gbps +
                  (double)v->bytes[SG_H2H] / HOST_COPY_GBPS;
    return at + (uint64_t)(rest + 0.5);
}

enum sg_line sg_price_line(const struct sg_vop *v, int *device_out)
{
    *device_out = v->device;
    if (v->kind == SG_OP_KERNEL)
        return SG_LINE_SM;
    if (v->kind == SG_OP_FILL || !v->ran || !v->any_line)
        return (enum sg_line)v->line;
    if (v->bytes[SG_P2P])
        return SG_LINE_PEER;
    if (v->bytes[SG_H2D] && v->bytes[SG_H2D] >= v->bytes[SG_D2D] && v->bytes[SG_H2D] >= v->bytes[SG_D2H])
        return SG_LINE_H2D;
    return v->bytes[SG_D2H] && v->bytes[SG_D2H] >= v->bytes[SG_D2D] ? SG_LINE_D2H : SG_LINE_D2D;
}

/* Of one that is not done: for a kernel, what its counters have come to. */
uint64_t sg_price_least(const struct sg_vop *v)
{
    if (v->done && !v->ran)
        return 0;
    switch (v->kind) {
    case SG_OP_KERNEL:
        return v->ran ? sg_price_kernel(v, sg_price_sms(v))
                      : (uint64_t)(v->in_graph ? GRAPH_KERNEL_OVERHEAD_NS : KERNEL_OVERHEAD_NS);
    case SG_OP_COPY:
    case SG_OP_FILL: return (uint64_t)COPY_LATENCY_NS;
    case SG_OP_HOST: return sg_price_host();
    default: return 0;
    }
}

uint64_t sg_price_host(void)
{
    return (uint64_t)(HOST_DELAY_NS + HOST_FUNCTION_NS);
}

uint64_t sg_price_delay(int kind)
{
    return kind == SG_OP_KERNEL ? (uint64_t)KERNEL_DELAY_NS : kind == SG_OP_GRAPH ? (uint64_t)GRAPH_DELAY_NS : 0;
}
