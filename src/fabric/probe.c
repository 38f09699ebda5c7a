#include "fabric/probe.h"

#include "base/number.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define MOST_TRIES 4 /* of a port before its first measurement */

int hr_probe_init(struct hr_probe *probe, uint32_t ports, const struct hr_probe_settings *settings)
{
    if (ports < 1 || ports > HR_ENTRY_PORTS)
        return -EINVAL;
    memset(probe, 0, sizeof *probe);
    if (settings)
        probe->settings = *settings;
    struct hr_probe_settings *s = &probe->settings;
    s->gain = s->gain > 0 ? s->gain : 0.25;
    s->margin = s->margin > 0 ? s->margin : 0.1;
    s->samples = s->samples ? s->samples : 3;
    s->explore = s->explore ? s->explore : 4;
    s->reference_bytes = s->reference_bytes ? s->reference_bytes : 1 << 20;
    probe->ports = ports;
    for (uint32_t i = 0; i < ports; i++)
        probe->port[i].up = true;
    return 0;
}

double hr_probe_estimate_ns(const struct hr_probe *probe, uint32_t port)
{
    const struct hr_probe_port *one = &probe->port[port];

    return one->samples ? one->round_trip_ns + (double)probe->settings.reference_bytes / one->gbps : INFINITY;
}

static bool is_open(const struct hr_probe *probe, uint32_t port, uint32_t allowed)
{
    return probe->port[port].up && allowed >> port & 1;
}

/*
 * The next port after the last one tried that is open and satisfies: never measured, or simply not the current one. A port that was tried and tried
 * and never measured, since transfers through it fail or none has ended yet, does not come before the others for ever.
 */
static int another(struct hr_probe *probe, uint32_t allowed, bool unmeasured)
{
    for (uint32_t i = 0; i < probe->ports; i++) {
        uint32_t port = (probe->next_try + i) % probe->ports;
        struct hr_probe_port *one = &probe->port[port];
        if (!is_open(probe, port, allowed) ||
            (unmeasured ? one->samples > 0 || one->tries >= MOST_TRIES : port == probe->current))
            continue;
        one->tries += unmeasured;
        probe->next_try = (port + 1) % probe->ports;
        return (int)port;
    }
    return -1;
}

int hr_probe_choose(struct hr_probe *probe, uint32_t allowed)
{
    int port = another(probe, allowed, true);

    if (port >= 0)
        return port;
    if (++probe->turn >= probe->settings.explore && (port = another(probe, allowed, false)) >= 0) {
        probe->turn = 0;
        return port;
    }
    if (is_open(probe, probe->current, allowed))
        return (int)probe->current;
    for (uint32_t i = 0; i < probe->ports; i++)
        if (is_open(probe, i, allowed) &&
            (port < 0 || hr_probe_estimate_ns(probe, i) < hr_probe_estimate_ns(probe, (uint32_t)port)))
            port = (int)i;
    return port;
}

static double blend(const struct hr_probe *probe, const struct hr_probe_port *port, double average, double sample)
{
    /* The first samples count in full, so that a single odd one at the start is soon forgotten. */
    double gain = hr_number_max(probe->settings.gain, 1.0 / (double)(port->samples + 1));

    return average + gain * (sample - average);
}

static uint32_t best_of(const struct hr_probe *probe)
{
    uint32_t best = probe->current;

    for (uint32_t i = 0; i < probe->ports; i++) {
        if (probe->port[i].up &&
            (!probe->port[best].up || hr_probe_estimate_ns(probe, i) < hr_probe_estimate_ns(probe, best)))
            best = i;
    }
    return best;
}

void hr_probe_note(struct hr_probe *probe, uint32_t port, uint64_t bytes, double round_trip_ns, double elapsed_ns)
{
    struct hr_probe_port *one = &probe->port[port];

    if (!one->up || bytes == 0 || !(round_trip_ns >= 0) || !(elapsed_ns > 0))
        return;
    double moving_ns = hr_number_max(elapsed_ns - round_trip_ns, elapsed_ns * 1e-3); /* a small one is over at once */
    double gbps = (double)bytes / moving_ns;
    one->round_trip_ns = blend(probe, one, one->round_trip_ns, round_trip_ns);
    one->gbps = blend(probe, one, one->gbps, gbps);
    one->samples++;
    uint32_t best = best_of(probe);
    double limit = hr_probe_estimate_ns(probe, probe->current) / (1 + probe->settings.margin);
    if (best == probe->current || !(hr_probe_estimate_ns(probe, best) < limit)) {
        probe->streak = 0;
        return;
    }
    probe->streak = best == probe->challenger ? probe->streak + 1 : 1;
    probe->challenger = best;
    if (probe->streak < probe->settings.samples)
        return;
    probe->current = best;
    probe->streak = 0;
    probe->switches++;
}

void hr_probe_set_up(struct hr_probe *probe, uint32_t port, bool up)
{
    if (probe->port[port].up == up)
        return;
    probe->port[port] = (struct hr_probe_port){.up = up};
    if (port == probe->challenger)
        probe->streak = 0;
    if (!probe->port[probe->current].up) {
        uint32_t best = best_of(probe);
        probe->switches += best != probe->current;
        probe->current = best;
        probe->streak = 0;
    }
}
