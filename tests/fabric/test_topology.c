/* Machines are built, read, printed and written back. */
#include "machine.h"

#include "fabric/rates.h"

#include <string.h>

TestSuite(topology, .timeout = 30);

static const char *const machines[] = {"dgx1v", "mi250x", "a100x4", "hgx-h100", "mi300x", "square4", "pcie8"};
#define MACHINE_COUNT (sizeof machines / sizeof *machines)

static const uint8_t dgx1v[8][8] = {
    {0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
    {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1}, {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0},
};
static const uint8_t mi250x[8][8] = {
    {0, 4, 1, 0, 0, 0, 2, 0}, {4, 0, 0, 1, 0, 1, 0, 0}, {1, 0, 0, 4, 2, 0, 0, 0}, {0, 1, 4, 0, 0, 0, 0, 1},
    {0, 0, 2, 0, 0, 4, 1, 0}, {0, 1, 0, 0, 4, 0, 0, 1}, {2, 0, 0, 0, 1, 0, 0, 4}, {0, 0, 0, 1, 0, 1, 4, 0},
};

static void expect_links(const char *name, const uint8_t links[8][8], double gbps_per_link)
{
    struct hr_topology *topology = read_machine(name);

    cr_assert_eq(topology->gpu_count, 8);
    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t j = 0; j < 8; j++) {
            double gbps;
            uint32_t got = hr_topology_links(topology, topology->gpus[i], topology->gpus[j], HR_LINKS_FABRIC, &gbps);
            cr_expect_eq(got, links[i][j], "%s %u-%u: %u links", name, i, j, got);
            cr_expect_float_eq(gbps, links[i][j] * gbps_per_link, 1e-9);
        }
    }
    hr_topology_destroy(topology);
}

Test(topology, reads_links_and_their_rates_from_nccl_files)
{
    expect_links("dgx1v", dgx1v, 25);
    expect_links("mi250x", mi250x, 50);
}

Test(topology, reads_switches_and_sockets_from_nccl_files)
{
    struct hr_topology *topology = read_machine("hgx-h100");
    uint32_t switches = 0, sockets = 0, socket[2] = {0};
    double gbps;

    for (uint32_t i = 0; i < topology->element_count; i++) {
        switches += topology->elements[i].kind == HR_ELEMENT_SWITCH;
        if (topology->elements[i].kind == HR_ELEMENT_SOCKET)
            socket[sockets++ % 2] = i;
    }
    cr_expect_eq(switches, 4);
    cr_expect_eq(sockets, 2);
    cr_expect_eq(hr_topology_links(topology, socket[0], socket[1], HR_LINKS_HOST, &gbps), 1);
    cr_expect_float_eq(gbps, 22, 1e-9, "between Sapphire Rapids sockets");
    for (uint32_t gpu = 0; gpu < 8; gpu++) {
        uint32_t links = 0;
        for (uint32_t i = 0; i < topology->element_count; i++)
            links += hr_topology_links(topology, topology->gpus[gpu], i, HR_LINKS_FABRIC, NULL);
        cr_expect_eq(links, 18);
        int bridge = topology->elements[topology->gpus[gpu]].ports[0].peer;
        hr_topology_links(topology, topology->gpus[gpu], (uint32_t)bridge, HR_LINKS_HOST, &gbps);
        cr_expect_float_eq(gbps, 63.0, 0.1, "PCIe 5 x16");
    }
    hr_topology_destroy(topology);
}

Test(topology, prints_the_matrix_that_nvidia_smi_prints)
{
    struct hr_topology *topology = read_machine("pcie8");
    char *text = hr_topology_print_matrix(topology);

    cr_expect_str_eq(text, "\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNUMA Affinity\n"
                           "GPU0\t X \tPIX\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\t0\n"
                           "GPU1\tPIX\t X \tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\t0\n"
                           "GPU2\tPXB\tPXB\t X \tPIX\tSYS\tSYS\tSYS\tSYS\t0\n"
                           "GPU3\tPXB\tPXB\tPIX\t X \tSYS\tSYS\tSYS\tSYS\t0\n"
                           "GPU4\tSYS\tSYS\tSYS\tSYS\t X \tPIX\tPHB\tPHB\t1\n"
                           "GPU5\tSYS\tSYS\tSYS\tSYS\tPIX\t X \tPHB\tPHB\t1\n"
                           "GPU6\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\t X \tPHB\t1\n"
                           "GPU7\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\tPHB\t X \t1\n");
    free(text);
    hr_topology_destroy(topology);
}

/* Read as it is printed, it is printed the same again. */
static void expect_same_matrix(const char *name, const struct hr_topology *topology)
{
    struct hr_topology *again = NULL;
    struct hr_text_error error = {0};
    char *text = hr_topology_print_matrix(topology);
    int rc = hr_topology_read_matrix(text, strlen(text), 0, &again, &error);
    cr_assert_eq(rc, 0, "%s: line %u: %s", name, error.line, error.text);
    char *printed = hr_topology_print_matrix(again);
    cr_expect_str_eq(printed, text);
    free(text);
    free(printed);
    hr_topology_destroy(again);
}

Test(topology, a_matrix_is_printed_as_it_was_read)
{
    for (size_t i = 0; i < MACHINE_COUNT; i++) {
        struct hr_topology *topology = read_machine(machines[i]);
        expect_same_matrix(machines[i], topology);
        hr_topology_destroy(topology);
    }
}

Test(topology, an_nccl_file_is_written_as_it_was_read)
{
    for (size_t i = 0; i < MACHINE_COUNT; i++) {
        struct hr_topology *topology = read_machine(machines[i]), *again = NULL;
        struct hr_text_error error = {0};
        char *text = hr_topology_write_xml(topology);
        int rc = hr_topology_read_xml(text, strlen(text), &again, &error);
        cr_assert_eq(rc, 0, "%s: line %u: %s", machines[i], error.line, error.text);
        cr_expect_eq(again->element_count, topology->element_count);
        for (uint32_t a = 0; a < topology->element_count; a++) {
            for (uint32_t b = 0; b < topology->element_count; b++) {
                double before, after;
                int a2 = hr_topology_find(again, topology->elements[a].name);
                int b2 = hr_topology_find(again, topology->elements[b].name);
                cr_assert(a2 >= 0 && b2 >= 0, "%s: %s is lost", machines[i], topology->elements[a].name);
                uint32_t links = hr_topology_links(topology, a, b, HR_LINKS_ALL, &before);
                cr_expect_eq(hr_topology_links(again, (uint32_t)a2, (uint32_t)b2, HR_LINKS_ALL, &after), links);
                cr_expect_float_eq(before, after, 1e-6, "%s: %s-%s", machines[i], topology->elements[a].name,
                                   topology->elements[b].name);
            }
        }
        free(text);
        hr_topology_destroy(topology);
        hr_topology_destroy(again);
    }
}

Test(topology, reads_what_nvidia_smi_really_prints)
{
    static const char text[] = "\t\033[4mGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n"
                               "GPU0\t X \tNV12\tPXB\t0-31\t0\t\tN/A\n"
                               "GPU1\tNV12\t X \tSYS\t32-63\t1\t\tN/A\n"
                               "mlx5_0\tPXB\tSYS\t X \t\t\t\t\n"
                               "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n";
    struct hr_topology *topology;
    struct hr_text_error error = {0};
    double gbps;

    cr_assert_eq(hr_topology_read_matrix(text, strlen(text), 25, &topology, &error), 0, "%s", error.text);
    cr_assert_eq(topology->gpu_count, 2);
    cr_expect_eq(hr_topology_links(topology, topology->gpus[0], topology->gpus[1], HR_LINKS_FABRIC, &gbps), 12);
    cr_expect_float_eq(gbps, 300, 1e-9);
    hr_topology_destroy(topology);
}

/* In virtual machines the column of the sockets often says N/A: SYS alone tells that there are two. */
Test(topology, a_matrix_need_not_name_the_sockets)
{
    for (size_t i = 0; i < MACHINE_COUNT; i++) {
        struct hr_topology *topology = read_machine(machines[i]);
        for (uint32_t e = 0; e < topology->element_count; e++)
            topology->elements[e].numa = -1;
        expect_same_matrix(machines[i], topology);
        hr_topology_destroy(topology);
    }
}

/* As in a DGX-2: two boards, each with switches of its own, which are linked to those of the other. */
Test(topology, links_over_two_switches_are_links)
{
    struct hr_topology *topology = hr_topology_create();
    char text[16];

    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(hr_topology_add(topology, HR_ELEMENT_GPU, NULL), (int)i);
    for (uint32_t i = 4; i < 8; i++)
        cr_assert_eq(hr_topology_add(topology, HR_ELEMENT_SWITCH, NULL), (int)i);
    for (uint32_t gpu = 0; gpu < 4; gpu++) { /* switches 4 and 5 on the first board, 6 and 7 on the other */
        for (uint32_t side = 0; side < 2; side++)
            cr_assert_eq(hr_topology_join(topology, gpu, 4 + gpu / 2 * 2 + side, HR_LINK_NVLINK, 1, 25, 700), 0);
    }
    cr_assert_eq(hr_topology_join(topology, 4, 6, HR_LINK_NVLINK, 2, 25, 700), 0);
    cr_assert_eq(hr_topology_join(topology, 5, 7, HR_LINK_NVLINK, 2, 25, 700), 0);
    for (uint32_t other = 1; other < 4; other++) {
        hr_topology_relation(topology, 0, other, text);
        cr_expect_str_eq(text, "NV2", "GPU0 and GPU%u: %s", other, text);
    }
    hr_topology_destroy(topology);
}

static void refuses_xml(const char *text, uint32_t line, const char *word)
{
    struct hr_topology *topology;
    struct hr_text_error error = {0};
    int rc = hr_topology_read_xml(text, strlen(text), &topology, &error);

    cr_assert_neq(rc, 0, "accepted: %s", text);
    cr_expect_eq(error.line, line, "line %u: %s", error.line, error.text);
    cr_expect_not_null(strstr(error.text, word), "\"%s\" does not name \"%s\"", error.text, word);
    cr_expect_not_null(strstr(error.text, "accepted: "), "\"%s\" does not say what is", error.text);
}

#define PCI "<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">"

Test(topology, names_what_is_wrong_with_an_nccl_file_and_where)
{
    refuses_xml("nonsense", 1, "not XML");
    refuses_xml("<system version=\"1\">\n<cpu>\n</system>", 3, "mismatched tag");
    refuses_xml("<graphs version=\"1\"/>", 1, "graphs");
    refuses_xml("<system version=\"2\"/>", 1, "\"2\"");
    refuses_xml("<system version=\"1\"/>", 0, "no <gpu>");
    refuses_xml("<system>\n<pci class=\"0x0302\"/></system>", 2, "busid");
    refuses_xml("<system>\n\n<pci busid=\"a\" class=\"x\"/></system>", 3, "class \"x\"");
    refuses_xml("<system><pci busid=\"a\" class=\"0x03\" link_speed=\"fast\"/></system>", 1, "\"fast\"");
    refuses_xml("<system><pci busid=\"a\" class=\"0x03\" link_width=\"-3\"/></system>", 1, "\"-3\"");
    refuses_xml("<system><gpu dev=\"0\"/></system>", 1, "outside of <pci>");
    refuses_xml("<system>" PCI "<gpu dev=\"99999\"/></pci></system>", 1, "99999");
    refuses_xml("<system>" PCI "<gpu dev=\"0\"/></pci>\n" PCI "<gpu dev=\"1\"/></pci></system>", 2, "twice");
    refuses_xml("<system>" PCI
                "<gpu dev=\"0\"><nvlink target=\"b\" count=\"65\" tclass=\"0x03\"/></gpu></pci></system>",
                1, "\"65\"");
    refuses_xml("<system>" PCI "<gpu dev=\"0\"><nvlink target=\"b\" count=\"1\" tclass=\"0x02\"/></gpu></pci></system>",
                1, "\"0x02\"");
    refuses_xml("<system><nvlink/></system>", 1, "outside of <gpu>");
    refuses_xml("<!DOCTYPE system [<!ENTITY a \"b\">]><system/>", 1, "DOCTYPE");
}

static void refuses_matrix(const char *text, uint32_t line, const char *word)
{
    struct hr_topology *topology;
    struct hr_text_error error = {0};

    cr_assert_neq(hr_topology_read_matrix(text, strlen(text), 0, &topology, &error), 0, "accepted: %s", text);
    cr_expect_eq(error.line, line, "line %u: %s", error.line, error.text);
    cr_expect_not_null(strstr(error.text, word), "\"%s\" does not name \"%s\"", error.text, word);
}

Test(topology, names_what_is_wrong_with_a_matrix_and_where)
{
    refuses_matrix("", 0, "GPU0");
    refuses_matrix("\tGPU0\tGPU1\nGPU0\tX\tNV0\nGPU1\tNV0\tX\n", 2, "\"NV0\"");
    refuses_matrix("\tGPU0\tGPU1\nGPU0\tX\tPIX\n", 0, "no row GPU1");
    refuses_matrix("\tGPU0\tGPU1\nGPU0\tX\n", 2, "ends after 1 of 2");
    refuses_matrix("\tGPU0\tGPU2\n", 1, "GPU2");
    refuses_matrix("\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n", 0, "differently");
    refuses_matrix("\tGPU0\tGPU1\nGPU0\tPIX\tX\n", 2, "\"PIX\"");
    refuses_matrix("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tSYS\nGPU1\tPIX\tX\tPIX\nGPU2\tSYS\tPIX\tX\n", 0, "makes it");
}

Test(topology, extras_say_what_a_file_cannot)
{
    struct hr_topology *topology = read_machine("square4"), *other = read_machine("square4");
    struct hr_text_error error = {0};
    static const char text[] = "# measured\n"
                               "gpu 0000:02:00.0 memory_bytes=17179869184 base=0x400000000\n"
                               "link 0000:02:00.0 0000:03:00.0 gbps=24.25 latency_ns=900\n"
                               "link 0000:03:00.0 0000:83:00.0 up=0\n";
    double gbps;

    cr_assert_eq(hr_topology_read_extras(text, strlen(text), topology, &error), 0, "%s", error.text);
    int a = hr_topology_find(topology, "0000:02:00.0"), b = hr_topology_find(topology, "0000:03:00.0");
    cr_expect_eq(topology->elements[a].memory_bytes, UINT64_C(16) << 30);
    cr_expect_eq(topology->elements[a].base, UINT64_C(16) << 30);
    cr_expect_eq(hr_topology_links(topology, (uint32_t)a, (uint32_t)b, HR_LINKS_FABRIC, &gbps), 2);
    cr_expect_float_eq(gbps, 48.5, 1e-9);
    hr_topology_links(topology, (uint32_t)b, (uint32_t)a, HR_LINKS_FABRIC, &gbps);
    cr_expect_float_eq(gbps, 50, 1e-9, "the other direction is its own");
    int d = hr_topology_find(topology, "0000:83:00.0");
    cr_expect_eq(hr_topology_links(topology, (uint32_t)b, (uint32_t)d, HR_LINKS_FABRIC, NULL), 0);
    char *written = hr_topology_write_extras(topology);
    cr_assert_eq(hr_topology_read_extras(written, strlen(written), other, &error), 0, "%s", error.text);
    char *again = hr_topology_write_extras(other);
    cr_expect_str_eq(again, written);
    free(written);
    free(again);
    hr_topology_destroy(topology);
    hr_topology_destroy(other);
}

Test(topology, extras_with_a_mistake_change_nothing)
{
    static const char *const wrong[] = {"gpu nobody memory_bytes=1\n", "link 0000:02:00.0 0000:83:00.0 gbps=1\n",
                                        "gpu 0000:02:00.0 memory_bytes=x\n", "link 0000:02:00.0 0000:03:00.0 gbps=0\n",
                                        "what is this\n"};
    struct hr_topology *topology = read_machine("square4");
    char *before = hr_topology_write_extras(topology);

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct hr_text_error error = {0};
        char text[256];
        snprintf(text, sizeof text, "gpu 0000:03:00.0 memory_bytes=4096\n%s", wrong[i]);
        cr_expect_neq(hr_topology_read_extras(text, strlen(text), topology, &error), 0, "accepted: %s", wrong[i]);
        cr_expect_eq(error.line, 2, "%s", error.text);
        char *after = hr_topology_write_extras(topology);
        cr_expect_str_eq(after, before);
        free(after);
    }
    free(before);
    hr_topology_destroy(topology);
}

Test(topology, builders_refuse_what_makes_no_machine)
{
    struct hr_topology *topology = hr_topology_create();

    cr_assert_eq(hr_topology_add(topology, HR_ELEMENT_GPU, "a"), 0);
    cr_assert_eq(hr_topology_add(topology, HR_ELEMENT_GPU, "b"), 1);
    cr_expect_lt(hr_topology_add(topology, HR_ELEMENT_GPU, "a"), 0, "a name twice");
    cr_expect_lt(hr_topology_add(topology, HR_ELEMENT_GPU, "a b"), 0, "a name with a space");
    cr_expect_neq(hr_topology_join(topology, 0, 0, HR_LINK_NVLINK, 1, 25, 0), 0, "to itself");
    cr_expect_neq(hr_topology_join(topology, 0, 2, HR_LINK_NVLINK, 1, 25, 0), 0, "to nobody");
    cr_expect_neq(hr_topology_join(topology, 0, 1, HR_LINK_NVLINK, 1, 0, 0), 0, "without a rate");
    cr_expect_neq(hr_topology_join(topology, 0, 1, HR_LINK_NVLINK, 257, 25, 0), 0, "too many");
    cr_expect_eq(hr_topology_join(topology, 0, 1, HR_LINK_NVLINK, 256, 25, 0), 0);
    cr_expect_neq(hr_topology_join(topology, 0, 1, HR_LINK_NVLINK, 1, 25, 0), 0, "too many in all");
    hr_topology_destroy(topology);
    const uint32_t extents[] = {8, 8, 8, 8};
    topology = hr_topology_torus(extents, 4, 1, 25);
    cr_assert_eq(topology->gpu_count, 4096);
    for (uint32_t i = 0; i < 4096; i++)
        cr_assert_eq(topology->elements[i].port_count, 8);
    hr_topology_destroy(topology);
}
