/*
 * Routes found by measuring: each transfer towards an owner is timed, and the port that answers fastest on average is used. One
 * hr_probe per router and owner (or group of owners that share their ports). No clock: the caller hands in the times. Locks: none.
 *
 * Ports are compared by what a reference transfer would take: round trip + bytes / rate, both as moving averages. Another port
 * has to be more than a tenth better for several measurements in a row before it is switched to; now and then a transfer goes
 * to another port, so that its figures stay fresh.
 */
#ifndef HR_FABRIC_PROBE_H
#define HR_FABRIC_PROBE_H

#include "fabric/tables.h"

struct hr_probe_settings {
    double gain;              /* weight of a new sample in the averages; 0 = 0.25 */
    double margin;            /* part by which another port must be better; 0 = 0.1 */
    uint32_t samples;         /* measurements in a row that must say so; 0 = 3 */
    uint32_t explore;         /* every how manieth transfer tries another port; 0 = 4 */
    uint64_t reference_bytes; /* 0 = 1 MiB */
};

struct hr_probe_port {
    double round_trip_ns;
    double gbps;
    uint64_t samples;
    uint32_t tries; /* transfers that it was chosen for before its first measurement */
    bool up;
};

struct hr_probe {
    struct hr_probe_settings settings;
    uint32_t ports;
    uint32_t current;
    uint32_t challenger; /* the port that has been better lately */
    uint32_t streak;     /* for so many measurements in a row */
    uint32_t turn;       /* transfers since the last try of another port */
    uint32_t next_try;
    uint64_t switches;
    struct hr_probe_port port[HR_ENTRY_PORTS];
};

/* 1 to HR_ENTRY_PORTS ports, all up, number 0 in use. settings may be NULL. -EINVAL: another number of ports. */
int hr_probe_init(struct hr_probe *probe, uint32_t ports, const struct hr_probe_settings *settings);

#define HR_PROBE_ALL UINT32_MAX
/*
 * The port for the next transfer, among those whose bit is set: a transfer may be unable to use others though they are up, which changes nothing
 * of which port is the current one. -1: none of them is up.
 */
int hr_probe_choose(struct hr_probe *probe, uint32_t allowed);

/* A transfer through `port` of `bytes` took round_trip_ns until its first and elapsed_ns until its last byte. */
void hr_probe_note(struct hr_probe *probe, uint32_t port, uint64_t bytes, double round_trip_ns, double elapsed_ns);

/* A port went down or came back; one that comes back is measured anew. */
void hr_probe_set_up(struct hr_probe *probe, uint32_t port, bool up);

/* What a reference transfer would take through the port, ns; INFINITY before its first measurement. */
double hr_probe_estimate_ns(const struct hr_probe *probe, uint32_t port);

#endif
