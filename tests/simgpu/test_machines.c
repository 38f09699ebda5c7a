/* Machines of several cards: models, topology files, and what the driver says about them. */
#include "node_call.h"
#include "scene.h"

#include <errno.h>
#include <math.h>
#include <sys/wait.h>

/* ---- what the machines are ---- */

static int links_between(int a, int b)
{
    struct sg_node_element e;
    struct sg_node_port p;
    int n = 0;
    cr_assert_eq(NODE(sg_node_element, a, &e), 0);
    for (int i = 0; i < (int)e.ports; i++) {
        cr_assert_eq(NODE(sg_node_port, a, i, &p), 0);
        n += p.peer_element == b;
    }
    return n;
}

static void matrix_is(const char *machine_text, const char *const *rows, int cards)
{
    machine(machine_text);
    int count;
    OK(cuDeviceGetCount(&count));
    cr_assert_eq(count, cards);
    for (int a = 0; a < cards; a++)
        for (int b = 0; b < cards; b++)
            cr_assert_eq(links_between(a, b), rows[a][b] - '0', "%s: %d to %d: %d links", machine_text, a, b,
                         links_between(a, b));
}

Test(machines, dgx1v_is_a_hybrid_cube_mesh)
{
    static const char *const rows[] = {"01122000", "10210200", "12020010", "21200001",
                                       "20000112", "02001021", "00101202", "00012120"};
    int can, value;
    char id[16];
    CUdevice d;
    matrix_is("dgx1v,vram=64M", rows, 8);
    OK(cuDeviceCanAccessPeer(&can, 0, 4));
    cr_assert_eq(can, 1);
    OK(cuDeviceCanAccessPeer(&can, 0, 5)); /* no link, another socket */
    cr_assert_eq(can, 0);
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 3));
    cr_assert_eq(value, 0);
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 7));
    cr_assert_eq(value, 2);
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 7));
    cr_assert_eq(value, 0);
    OK(cuDeviceGetPCIBusId(id, sizeof id, 5));
    cr_assert_str_eq(id, "0000:86:00.0");
    OK(cuDeviceGetByPCIBusId(&d, "0000:8a:00.0"));
    cr_assert_eq(d, 7);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 2));
    cr_assert_eq(value, 0x0a);
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&d, "0000:17:00.0"));
}

Test(machines, mi250x_has_its_matrix)
{
    static const char *const rows[] = {"04100020", "40010100", "10042000", "01400001",
                                       "00200410", "01004001", "20001004", "00010140"};
    matrix_is("mi250x,vram=64M", rows, 8);
}

Test(machines, meshes_squares_rings_and_chains)
{
    static const char *const a100[] = {"0444", "4044", "4404", "4440"};
    matrix_is("4xa100,vram=64M", a100, 4);
}

Test(machines, square_has_no_diagonals)
{
    static const char *const square[] = {"0220", "2002", "2002", "0220"};
    matrix_is("square4,vram=64M", square, 4);
    int can;
    struct sg_node_element e;
    OK(cuDeviceCanAccessPeer(&can, 1, 2));
    cr_assert_eq(can, 0);
    cr_assert_eq(NODE(sg_node_element, 3, &e), 0);
    cr_assert(e.kind == SG_ELEMENT_CARD && e.device == 3 && e.memory_bytes == 64 * MIB && e.ports == 5);
}

Test(machines, switches_and_sockets_are_elements)
{
    machine("hgx-h100,vram=64M,gpus=4");
    struct sg_node_element e;
    int kinds[4] = {0}, elements = NODE(sg_node_elements), can;
    for (int i = 0; i < elements; i++) {
        cr_assert_eq(NODE(sg_node_element, i, &e), 0);
        kinds[e.kind]++;
        cr_assert_eq(e.device, i < 4 ? i : -1);
    }
    cr_assert(kinds[0] == 8 && kinds[1] == 4 && kinds[2] == 4 && kinds[3] == 2);
    cr_assert_eq(links_between(0, 8), 5);
    cr_assert_eq(links_between(7, 11), 4);
    OK(cuDeviceCanAccessPeer(&can, 0, 3));
    cr_assert_eq(can, 1);
    cr_assert_eq(NODE(sg_node_element, elements, &e), -EINVAL);
    cr_assert_eq(NODE(sg_node_element, -1, &e), -EINVAL);
}

Test(machines, sixteen_cards)
{
    machine("chain16,vram=16M");
    int count, can;
    OK(cuDeviceGetCount(&count));
    cr_assert_eq(count, 16);
    cr_assert_eq(links_between(14, 15), 2);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    cr_assert_eq(can, 1);
    OK(cuDeviceCanAccessPeer(&can, 0, 9));
    cr_assert_eq(can, 0);
}

Test(machines, one_model_alone_has_no_topology)
{
    struct sg_node_element e;
    cr_assert_eq(NODE(sg_node_elements), -ENODEV);
    machine("h200,gpus=2");
    cr_assert_eq(NODE(sg_node_elements), 0);
    cr_assert_eq(NODE(sg_node_element, 0, &e), -ENODEV);
    cr_assert_eq(NODE(sg_node_version), SG_NODE_VERSION);
    int can;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    cr_assert_eq(can, 1);
}

/* ---- topology files ---- */

static const char box[] =
    "<system version=\"1\">\n"
    "<cpu numaid=\"0\" affinity=\"ff\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"85\">\n"
    " <pci busid=\"0000:15:00.0\" class=\"0x060400\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">\n"
    "  <pci busid=\"0000:16:00.0\" class=\"0x020000\"><nic><net name=\"mlx5_0\" dev=\"0\"/></nic></pci>\n"
    "  <pci busid=\"0000:1a:00.0\" class=\"0x030200\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">\n"
    "   <gpu dev=\"1\" sm=\"70\" rank=\"1\" gdr=\"1\"><nvlink target=\"0000:17:00.0\" count=\"2\" "
    "tclass=\"0x030200\"/>\n"
    "    <nvlink target=\"0000:c4:00.0\" count=\"3\" tclass=\"0x068000\"/></gpu></pci>\n"
    "  <pci busid=\"0000:17:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"8\">\n"
    "   <gpu dev=\"0\" sm=\"70\" rank=\"0\" gdr=\"1\"><nvlink target=\"0000:1A:00.0\" count=\"2\" "
    "tclass=\"0x030200\"/></gpu></pci>\n"
    " </pci>\n"
    "</cpu>\n"
    "<cpu numaid=\"1\" affinity=\"ff00\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"85\">\n"
    " <pci busid=\"0000:b1:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"2\" "
    "sm=\"70\"/></pci>\n"
    "</cpu></system>\n";

static const char *write_box(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/simgpu-node-%d.xml", (int)getpid());
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

Test(machines, a_topology_file_makes_a_machine)
{
    char text[128];
    snprintf(text, sizeof text, "topo=%s,vram=64M", write_box(box));
    setenv("SIMGPU", text, 1);
    CUresult r = cuInit(0);
    char id[16], name[64];
    int can, count;
    unlink(write_box(""));
    OK(r);
    OK(cuDeviceGetCount(&count));
    cr_assert_eq(count, 3);
    OK(cuDeviceGetPCIBusId(id, sizeof id, 0)); /* as the devices are numbered, not as they stand */
    cr_assert_str_eq(id, "0000:17:00.0");
    OK(cuDeviceGetName(name, sizeof name, 0));
    cr_assert_str_eq(name, "Tesla V100-SXM2-16GB");
    cr_assert_eq(links_between(0, 1), 2); /* told at both ends */
    cr_assert_eq(links_between(0, 2), 0);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    cr_assert_eq(can, 1);
    OK(cuDeviceCanAccessPeer(&can, 1, 2));
    cr_assert_eq(can, 0);
    struct sg_node_element e;
    struct sg_node_port p;
    int kinds[4] = {0}, elements = NODE(sg_node_elements);
    for (int i = 0; i < elements; i++) {
        cr_assert_eq(NODE(sg_node_element, i, &e), 0);
        kinds[e.kind]++;
        if (e.kind == SG_ELEMENT_SWITCH) {
            cr_assert_str_eq(e.bus_id, "0000:C4:00.0");
            cr_assert_eq(links_between(1, i), 3);
        }
    }
    cr_assert(kinds[0] == 3 && kinds[1] == 1 && kinds[2] == 1 && kinds[3] == 2);
    cr_assert_eq(NODE(sg_node_element, 0, &e), 0);
    cr_assert_eq(NODE(sg_node_port, 0, (int)e.ports - 1, &p), 0); /* half a PCIe 4.0 link */
    cr_assert(fabs(p.gbps - 13) < 0.01, "%g", p.gbps);
}

static int scene_init(void)
{
    return cuInit(0);
}

SCENES({"init", scene_init})

Test(machines, bad_machines_are_told_in_one_line, .timeout = 60)
{
    static const struct {
        const char *text, *machine, *line;
    } bad[] = {
        {NULL, "SIMGPU_LINK=fail:0.0@5", "fail needs a machine with links"}, /* of the default machine */
        {NULL, "SIMGPU_LINK=fail:0.0", "expected fail:ELEMENT.PORT@BYTES"},
        {NULL, "SIMGPU_LINK=hang:0-1", "with two of the machine's GPUs"},
        {NULL, "SIMGPU_LINK=corrupt:0-0", "with two of the machine's GPUs"},
        {NULL, "SIMGPU_LINK=sever:0-1", "expected fail:ELEMENT.PORT@BYTES, corrupt:A-B, hang:A-B or sticky"},
        {NULL, "SIMGPU=dgx3", "known machines are dgx1v, dgx2,"},
        {NULL, "SIMGPU=4xa100,gpus=5", "gpus takes a number from 1 to 4"},
        {NULL, "SIMGPU=h200,gpus=9", "gpus takes a number from 1 to 8"},
        {NULL, "SIMGPU=topo=/no/such/file", "No such file"},
        {NULL, "SIMGPU=dgx1v,model=h100", "model=NAME says"},
        {"<system><cpu>", NULL, "line 1: "},
        {"<system><cpu></cpu></system>", NULL, "it has 0 cards"},
        {"<graph/>", NULL, "does not begin with <system>"},
        {"<system><cpu><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" sm=\"75\"/></pci></cpu></system>", NULL,
         "no model of cards of sm 75"},
        {"<system><cpu><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" sm=\"70\"><nvlink target=\"0000:02:00.0\" "
         "count=\"1\" "
         "tclass=\"0x030200\"/></gpu></pci></cpu></system>",
         NULL, "which is not there"},
        {"<system><cpu><pci><gpu dev=\"0\" sm=\"70\"/></pci></cpu></system>", NULL, "no busid"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char machine_text[160];
        const char *path = bad[i].text ? write_box(bad[i].text) : NULL;
        snprintf(machine_text, sizeof machine_text, "SIMGPU=topo=%s", path ? path : "");
        const char *env[] = {path ? machine_text : bad[i].machine, "SIMGPU_LOG=warn", NULL};
        struct hr_test_result r = play("SIM_SCENE=init", env);
        if (path)
            unlink(path);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == CUDA_ERROR_INVALID_VALUE, "%zu: %d", i, r.status);
        cr_assert_not_null(strstr(r.err, bad[i].line), "%zu: %s", i, r.err);
        const char *end = strchr(r.err, '\n');
        cr_assert(end && !end[1], "%zu: %s", i, r.err);
        hr_test_result_finish(&r);
    }
}
