/* One entry of a table: how it is made, and which port a request takes. */
#include "fabric/tables.h"

#include <stdlib.h>
#include <string.h>

#define PART_BYTES 256

static int by_rate(const void *a, const void *b)
{
    const struct hr_port_rate *x = a, *y = b;

    if (x->mbps != y->mbps)
        return x->mbps > y->mbps ? -1 : 1;
    return (x->port > y->port) - (x->port < y->port);
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void hr_entry_make(const struct hr_tables_options *options, struct hr_port_rate *rates, uint32_t count,
                   struct hr_entry *entry_out)
{
    uint32_t divisor = 0;

    memset(entry_out, 0, sizeof *entry_out);
    entry_out->policy = (uint8_t)options->policy;
    entry_out->address_shift = options->address_shift ? options->address_shift : 21;
    if (count > 1)
        qsort(rates, count, sizeof *rates, by_rate);
    entry_out->port_count = (uint8_t)(count < HR_ENTRY_PORTS ? count : HR_ENTRY_PORTS);
    for (uint32_t i = 0; i < entry_out->port_count; i++) {
        int64_t tenths = (rates[i].mbps + 50) / 100;
        entry_out->port[i] = rates[i].port;
        entry_out->weight[i] = (uint16_t)(tenths < 1 ? 1 : tenths > UINT16_MAX ? UINT16_MAX : tenths);
        divisor = common_divisor(entry_out->weight[i], divisor);
    }
    for (uint32_t i = 0; i < entry_out->port_count; i++) {
        entry_out->weight[i] = (uint16_t)(entry_out->weight[i] / divisor);
        entry_out->weight_sum += entry_out->weight[i];
    }
}

uint32_t hr_entry_pick(const struct hr_entry *entry, uint64_t address, uint64_t ticket)
{
    uint64_t turn;

    if (entry->policy == HR_PORTS_ROUND_ROBIN)
        turn = ticket;
    else if (entry->policy == HR_PORTS_BY_ADDRESS)
        turn = address >> entry->address_shift;
    else
        return 0;
    if (entry->weight_sum == entry->port_count)
        return (uint32_t)(turn % entry->port_count);
    uint32_t place = (uint32_t)(turn % entry->weight_sum), index = 0;
    while (place >= entry->weight[index])
        place -= entry->weight[index++];
    return index;
}

void hr_entry_part(const struct hr_entry *entry, uint32_t index, uint64_t bytes, uint64_t *offset_out,
                   uint64_t *bytes_out)
{
    uint64_t units = bytes / PART_BYTES, before = 0;

    for (uint32_t i = 0; i < index; i++)
        before += entry->weight[i];
    uint64_t after = before + entry->weight[index];
    /* Quotient and rest apart, so that no request is too large for 64 bits. */
    uint64_t whole = units / entry->weight_sum, rest = units % entry->weight_sum;
    uint64_t begin = (whole * before + rest * before / entry->weight_sum) * PART_BYTES;
    uint64_t end = (whole * after + rest * after / entry->weight_sum) * PART_BYTES;
    if (index + 1u == entry->port_count)
        end = bytes;
    *offset_out = begin;
    *bytes_out = end - begin;
}
