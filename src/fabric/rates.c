#include "fabric/rates.h"

#include "fabric/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Links per generation: NVLink 1 has 20 GB/s, 2 to 4 have 25, 5 has 50; xGMI 50 to 64. The first row of a rate is what a writer uses. */
static const struct {
    uint32_t generation;
    double gbps;
} links[] = {
    {60, 20},
    {70, 25},
    {72, 25},
    {75, 25},
    {80, 25},
    {86, 14.0625},
    {87, 25},
    {89, 25},
    {90, 25},
    {100, 50},
    {103, 50},
    {120, 50},
    {HR_GENERATION_GFX | 0x906, 36},
    {HR_GENERATION_GFX | 0x908, 46},
    {HR_GENERATION_GFX | 0x90a, 50},
    {HR_GENERATION_GFX | 0x942, 64},
    {HR_GENERATION_GFX | 0x950, 76.8},
};
#define LINKS (sizeof links / sizeof *links)

double hr_rates_link_gbps(uint32_t generation)
{
    for (size_t i = 0; i < LINKS; i++) {
        if (links[i].generation == generation)
            return links[i].gbps;
    }
    return 25;
}

uint32_t hr_rates_generation(double link_gbps, bool xgmi)
{
    size_t best = LINKS;

    for (size_t i = 0; i < LINKS; i++) {
        if (((links[i].generation & HR_GENERATION_GFX) != 0) != xgmi)
            continue;
        if (best == LINKS || fabs(links[i].gbps - link_gbps) < fabs(links[best].gbps - link_gbps))
            best = i;
    }
    return links[best].generation;
}

/* GB/s of a lane: 8 of 10 bits up to 5 GT/s, 128 of 130 up to 32, flits of 242 in 256 bytes at 64. */
static const struct {
    double gts, lane_gbps;
} speeds[] = {
    {2.5, 0.25}, {5, 0.5}, {8, 8 / 8.125}, {16, 16 / 8.125}, {32, 32 / 8.125}, {64, 8 * 242 / 256.0},
};
#define SPEEDS (sizeof speeds / sizeof *speeds)

bool hr_rates_pcie_speed(const char *text, double *gts_out)
{
    char number[16];
    size_t digits = strspn(text, "0123456789.");
    double gts;

    if (!*text || strcmp(text, "0") == 0 || strncmp(text, "Unknown", 7) == 0) {
        *gts_out = HR_PCIE_DEFAULT_SPEED;
        return true;
    }
    if (digits == 0 || digits >= sizeof number)
        return false;
    snprintf(number, sizeof number, "%.*s", (int)digits, text);
    if (!hr_text_real(number, 0, 1000, &gts))
        return false;
    text += digits;
    text += strspn(text, " ");
    if (strncmp(text, "GT/s", 4) != 0)
        return false;
    for (size_t i = 0; i < SPEEDS; i++) {
        if (fabs(speeds[i].gts - gts) < 0.01) {
            *gts_out = speeds[i].gts;
            return true;
        }
    }
    return false;
}

double hr_rates_pcie_gbps(double gts, uint32_t width)
{
    for (size_t i = 0; i < SPEEDS; i++) {
        if (fabs(speeds[i].gts - gts) < 0.01)
            return speeds[i].lane_gbps * width;
    }
    return 0;
}

void hr_rates_pcie_nearest(double gbps, double *gts_out, uint32_t *width_out)
{
    double best = INFINITY;

    for (uint32_t width = 16; width >= 1; width /= 2) { /* of equal rates the widest */
        for (size_t i = 0; i < SPEEDS; i++) {
            double off = fabs(speeds[i].lane_gbps * width - gbps);
            if (off < best - 1e-6) {
                best = off;
                *gts_out = speeds[i].gts;
                *width_out = width;
            }
        }
    }
}

double hr_rates_socket_gbps(const char *processor)
{
    static const char maker[] = "/GenuineIntel/6/"; /* family 6 */
    uint64_t model;

    if (strncmp(processor, "ppc64", 5) == 0)
        return 32;
    if (strstr(processor, "/AuthenticAMD/"))
        return 16;
    const char *intel = strstr(processor, maker);
    if (intel && hr_text_unsigned(intel + sizeof maker - 1, 0x8f, UINT32_MAX, &model))
        return 22;
    return 10;
}
