/*
 * CUDA_VISIBLE_DEVICES: which of the machine's cards a process sees, and in which order. NVML does not know of it.
 *
 * As documented: numbers, or UUIDs of which the first digits do if no other card's begins so; the list ends at the first entry that
 * is none of these. A card that is named twice leaves none at all, and a list is of the kind that its first entry is: clients that
 * read the variable themselves take the driver to do so. What follows a number's digits is passed over, as they do.
 */
#include "simgpu/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID_TEXT 41 /* "GPU-", 32 digits, four dashes, the end */

static void put_uuid(int card, char text[UUID_TEXT])
{
    uint8_t b[16];
    sg_device_uuid(card, b);
    snprintf(text, UUID_TEXT, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The card whose UUID begins so; -1: none, or more than one. */
static int by_uuid(const char *text, size_t bytes, int cards)
{
    int found = -1;
    for (int card = 0; card < cards; card++) {
        char uuid[UUID_TEXT];
        put_uuid(card, uuid);
        if (bytes >= UUID_TEXT || strncmp(uuid, text, bytes) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = card;
    }
    return found;
}

static int by_number(const char *text, int cards)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return -1;
    unsigned long number = strtoul(text, &end, 10);
    return number < (unsigned long)cards ? (int)number : -1;
}

int sg_visible_read(const char *list, int cards, int card_out[])
{
    int count = 0;
    if (!list) {
        for (; count < cards; count++)
            card_out[count] = count;
        return count;
    }
    bool uuids = strncmp(list, "GPU-", 4) == 0;
    for (const char *at = list;; at++) {
        at += strspn(at, " \t");
        size_t bytes = strcspn(at, ",");
        const char *end = at + bytes;
        while (bytes && (at[bytes - 1] == ' ' || at[bytes - 1] == '\t'))
            bytes--;
        int card = uuids && bytes > 4 && strncmp(at, "GPU-", 4) == 0 ? by_uuid(at, bytes, cards)
                   : uuids                                           ? -1
                                                                     : by_number(at, cards);
        if (card < 0)
            return count;
        for (int i = 0; i < count; i++)
            if (card_out[i] == card)
                return 0;
        card_out[count++] = card;
        at = end;
        if (!*at)
            return count;
    }
}

int sg_device_of(int card)
{
    for (int device = 0; device < sg.device_count; device++)
        if (sg.card[device] == card)
            return device;
    return -1;
}
