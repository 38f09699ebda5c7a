/* Parts of machines, and bus ids. */
#include "machine.h"

#include <errno.h>
#include <string.h>

Test(pick, a_part_keeps_its_links_with_rates_and_states)
{
    struct hr_topology *whole = read_machine("dgx1v"), *part = NULL;
    const uint32_t gpus[] = {whole->gpus[7], whole->gpus[2], whole->gpus[3]};
    double gbps;

    for (uint32_t p = 0; p < whole->elements[gpus[0]].port_count; p++) {
        if (whole->elements[gpus[0]].ports[p].peer == (int32_t)gpus[2])
            hr_topology_set_up(whole, gpus[0], p, false);
    }
    for (uint32_t p = 0; p < whole->elements[gpus[1]].port_count; p++) {
        if (whole->elements[gpus[1]].ports[p].peer == (int32_t)gpus[2])
            hr_topology_set_rate(whole, gpus[1], p, 3.5, 900);
    }
    cr_assert_eq(hr_topology_pick(whole, gpus, 3, HR_LINKS_ALL, &part), 0);
    cr_assert(part && part->elements && part->gpus && part->gpu_count == 3);
    for (uint32_t i = 0; i < 3; i++) {
        cr_expect_str_eq(part->elements[part->gpus[i]].name, whole->elements[gpus[i]].name);
        cr_expect_eq(part->elements[part->gpus[i]].gpu, (int32_t)i);
        cr_expect_eq(part->elements[part->gpus[i]].generation, 70);
    }
    cr_expect_eq(hr_topology_links(part, part->gpus[1], part->gpus[2], HR_LINKS_FABRIC, &gbps), 2, "2 and 3 have two");
    cr_expect_float_eq(gbps, 7, 1e-9);
    hr_topology_links(part, part->gpus[2], part->gpus[1], HR_LINKS_FABRIC, &gbps);
    cr_expect_float_eq(gbps, 50, 1e-9, "the other direction is its own");
    cr_expect_eq(hr_topology_links(part, part->gpus[0], part->gpus[2], HR_LINKS_FABRIC, NULL), 0, "down that way");
    cr_expect_eq(hr_topology_links(part, part->gpus[2], part->gpus[0], HR_LINKS_FABRIC, NULL), 1, "up this way");
    char relation[16];
    hr_topology_relation(part, 0, 1, relation);
    cr_expect_str_eq(relation, "SYS");
    hr_topology_destroy(part);
    cr_assert_eq(hr_topology_pick(whole, gpus, 3, HR_LINKS_HOST, &part), 0);
    cr_expect_eq(hr_topology_links(part, part->gpus[1], part->gpus[2], HR_LINKS_FABRIC, NULL), 0);
    hr_topology_destroy(part);
    hr_topology_destroy(whole);
}

Test(pick, everything_is_the_same_machine)
{
    static const char *const names[] = {"dgx1v", "hgx-h100", "mi250x", "pcie8", "square4"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct hr_topology *whole = read_machine(names[i]), *copy;
        cr_assert_eq(hr_topology_pick(whole, whole->gpus, whole->gpu_count, HR_LINKS_ALL, &copy), 0);
        char *before = hr_topology_print_matrix(whole), *after = hr_topology_print_matrix(copy);
        cr_expect_str_eq(after, before);
        free(before);
        free(after);
        cr_expect_eq(copy->element_count, whole->element_count);
        hr_topology_destroy(whole);
        hr_topology_destroy(copy);
    }
}

Test(pick, what_is_no_gpu_or_comes_twice_is_refused)
{
    struct hr_topology *whole = read_machine("square4"), *part = NULL;
    uint32_t other = 0;

    while (whole->elements[other].kind == HR_ELEMENT_GPU)
        other++;
    const uint32_t twice[] = {whole->gpus[0], whole->gpus[0]}, no_gpu[] = {other}, beyond[] = {whole->element_count};
    cr_expect_eq(hr_topology_pick(whole, twice, 2, HR_LINKS_ALL, &part), -EINVAL);
    cr_expect_eq(hr_topology_pick(whole, no_gpu, 1, HR_LINKS_ALL, &part), -EINVAL);
    cr_expect_eq(hr_topology_pick(whole, beyond, 1, HR_LINKS_ALL, &part), -EINVAL);
    cr_expect_null(part);
    hr_topology_destroy(whole);
}

Test(pick, bus_ids_are_written_in_one_way)
{
    static const struct {
        const char *text, *id;
    } rows[] = {{"0000:0A:00.0", "0000:0a:00.0"},
                {"00000000:0A:00.0", "0000:0a:00.0"},
                {"0a:00", "0000:0a:00.0"},
                {"00010000:01:1f.3", "10000:01:1f.3"},
                {"0:1:2", "0000:01:02.0"}};
    static const char *const wrong[] = {
        "",        "0a",     "0000:0a:00.0 ",    "0000:0a:00.", "x:0a:00", "0000:0a:00.0.1",
        "1:2:3:4", ":0a:00", "123456789:0a:00.0"};
    char id[HR_TOPOLOGY_NAME_BYTES];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect(hr_topology_bus_id(rows[i].text, id), "%s", rows[i].text);
        cr_expect_str_eq(id, rows[i].id);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect(!hr_topology_bus_id(wrong[i], id), "accepted: %s", wrong[i]);
}
