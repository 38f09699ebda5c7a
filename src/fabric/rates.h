/* What names and numbers in topology files imply: rates of links by generation, of PCIe by speed and width, between sockets. */
#ifndef HR_FABRIC_RATES_H
#define HR_FABRIC_RATES_H

#include <stdbool.h>
#include <stdint.h>

#define HR_GENERATION_GFX 0x80000000u /* set: the number of a "gfx" name, read as hexadecimal */
#define HR_PCIE_DEFAULT_SPEED 16.0
#define HR_PCIE_DEFAULT_WIDTH 16

/* GB/s of one NVLink or xGMI link and direction of that generation; 25 for one that is not known. */
double hr_rates_link_gbps(uint32_t generation);
/* A generation with links of about that rate. */
uint32_t hr_rates_generation(double link_gbps, bool xgmi);
/* "16.0 GT/s PCIe" -> 16.0; empty, "0" or "Unknown...": the default. false: not accepted. */
bool hr_rates_pcie_speed(const char *text, double *gts_out);
/* GB/s of `width` lanes after line coding. */
double hr_rates_pcie_gbps(double gts, uint32_t width);
/* The speed and width that come nearest to a rate. */
void hr_rates_pcie_nearest(double gbps, double *gts_out, uint32_t *width_out);
/* GB/s between two sockets of that kind ("x86_64/GenuineIntel/6/85"). */
double hr_rates_socket_gbps(const char *processor);

#endif
