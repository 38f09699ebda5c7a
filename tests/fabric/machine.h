/* What the fabric's tests share: the machine files, a seeded generator, random graphs. */
#ifndef TESTS_FABRIC_MACHINE_H
#define TESTS_FABRIC_MACHINE_H

#include "fabric/graph.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du;
}

static inline uint32_t random_below(uint64_t *state, uint32_t limit)
{
    return (uint32_t)(random_next(state) >> 33) % limit;
}

static inline char *read_machine_text(const char *name, size_t *bytes_out)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s.xml", MACHINES, name);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file, "%s", path);
    char *text = malloc(1 << 16);
    *bytes_out = fread(text, 1, 1 << 16, file);
    fclose(file);
    return text;
}

static inline struct hr_topology *read_machine(const char *name)
{
    struct hr_topology *topology = NULL;
    struct hr_text_error error = {0};
    size_t bytes;
    char *text = read_machine_text(name, &bytes);

    int rc = hr_topology_read_xml(text, bytes, &topology, &error);
    cr_assert_eq(rc, 0, "%s: line %u: %s", name, error.line, error.text);
    free(text);
    return topology;
}

/* GPUs and a few switches, joined at random; some links one way only. Not always connected. */
static inline struct hr_topology *random_topology(uint64_t *state, uint32_t elements)
{
    struct hr_topology *topology = hr_topology_create();
    uint32_t links = elements + random_below(state, elements * 2);

    for (uint32_t i = 0; i < elements; i++)
        hr_topology_add(topology, i >= 2 && random_below(state, 5) == 0 ? HR_ELEMENT_SWITCH : HR_ELEMENT_GPU, NULL);
    for (uint32_t i = 0; i < links; i++) {
        uint32_t a = random_below(state, elements), b = random_below(state, elements);
        if (a == b)
            continue;
        uint32_t port = topology->elements[a].port_count;
        hr_topology_join(topology, a, b, HR_LINK_NVLINK, 1 + random_below(state, 3), 5 * (1 + random_below(state, 5)),
                         700);
        if (random_below(state, 6) == 0)
            hr_topology_set_up(topology, a, port, false);
    }
    return topology;
}

#endif
