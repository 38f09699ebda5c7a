/* Ports found by measuring; all times are made up from a fixed seed. */
#include "machine.h"

#include "fabric/probe.h"

#include <math.h>

TestSuite(probe, .timeout = 30);

/* One transfer of 1 MiB through a port that carries gbps, with so much noise (a part) on both times. */
static void transfer(struct hr_probe *probe, int port, double gbps, double noise, uint64_t *state)
{
    double jitter = 1 + noise * (2.0 * random_below(state, 1000001) / 1e6 - 1);
    double round_trip_ns = 2000 * jitter;

    hr_probe_note(probe, (uint32_t)port, 1 << 20, round_trip_ns, round_trip_ns + (1 << 20) / gbps * jitter);
}

Test(probe, finds_the_faster_of_two_within_20_transfers)
{
    uint64_t state = 71;

    for (uint32_t round = 0; round < 200; round++) {
        static const double gbps[2] = {25, 31};
        struct hr_probe probe;
        cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
        for (uint32_t i = 0; i < 20; i++) {
            int port = hr_probe_choose(&probe);
            transfer(&probe, port, gbps[port], 0.05, &state);
        }
        cr_assert_eq(probe.current, 1, "round %u", round);
        cr_assert_eq(probe.switches, 1);
    }
}

Test(probe, does_not_flap_between_equals_under_noise)
{
    uint64_t state = 72;

    for (uint32_t round = 0; round < 20; round++) {
        struct hr_probe probe;
        cr_assert_eq(hr_probe_init(&probe, 4, NULL), 0);
        for (uint32_t i = 0; i < 5000; i++)
            transfer(&probe, hr_probe_choose(&probe), 25, 0.05, &state);
        cr_assert_eq(probe.switches, 0, "%llu switches", (unsigned long long)probe.switches);
    }
}

Test(probe, stays_for_a_gain_below_the_margin)
{
    static const double gbps[2] = {25, 26.5};
    struct hr_probe probe;
    uint64_t state = 73;

    cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
    for (uint32_t i = 0; i < 2000; i++) {
        int port = hr_probe_choose(&probe);
        transfer(&probe, port, gbps[port], 0.02, &state);
    }
    cr_expect_eq(probe.switches, 0);
}

Test(probe, follows_when_a_port_becomes_slow)
{
    double gbps[3] = {50, 40, 25};
    struct hr_probe probe;
    uint64_t state = 74;

    cr_assert_eq(hr_probe_init(&probe, 3, NULL), 0);
    for (uint32_t i = 0; i < 100; i++) {
        int port = hr_probe_choose(&probe);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect_eq(probe.current, 0);
    gbps[0] = 10;
    for (uint32_t i = 0; i < 100; i++) {
        int port = hr_probe_choose(&probe);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect_eq(probe.current, 1);
    cr_expect_float_eq(probe.port[0].gbps, 10, 3);
}

Test(probe, most_transfers_go_through_the_best_port)
{
    static const double gbps[2] = {50, 10};
    struct hr_probe probe;
    uint64_t state = 75;
    uint32_t best = 0;

    cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        int port = hr_probe_choose(&probe);
        best += port == 0;
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect(best >= 740 && best < 1000, "%u of 1000", best);
}

Test(probe, leaves_a_port_that_goes_down_and_measures_it_anew)
{
    static const double gbps[2] = {50, 25};
    struct hr_probe probe;
    uint64_t state = 76;

    cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
    for (uint32_t i = 0; i < 50; i++) {
        int port = hr_probe_choose(&probe);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_assert_eq(probe.current, 0);
    hr_probe_set_up(&probe, 0, false);
    for (uint32_t i = 0; i < 20; i++)
        cr_assert_eq(hr_probe_choose(&probe), 1);
    hr_probe_set_up(&probe, 0, true);
    cr_expect_eq(hr_probe_choose(&probe), 0, "what came back is measured first");
    cr_expect(isinf(hr_probe_estimate_ns(&probe, 0)));
    for (uint32_t i = 0; i < 30; i++) {
        int port = hr_probe_choose(&probe);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect_eq(probe.current, 0);
    hr_probe_set_up(&probe, 0, false);
    hr_probe_set_up(&probe, 1, false);
    cr_expect_eq(hr_probe_choose(&probe), -1);
}
