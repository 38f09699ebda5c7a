/* Writes NCCL's topology XML: the tree below each socket, then what hangs from none. */
#include "fabric/rates.h"
#include "fabric/text.h"
#include "fabric/topology.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 56 /* of bridges below each other; readers take 64 levels in all */

struct writer {
    const struct hr_topology *topology;
    struct hr_text text;
    bool *written;
};

static void indent(struct writer *writer, int depth)
{
    hr_text_add(&writer->text, "%*s", depth * 2, "");
}

static bool carries(const struct hr_port *port)
{
    return port->up && (HR_LINKS(port->kind) & HR_LINKS_FABRIC);
}

static const char *target_class(enum hr_element_kind kind)
{
    if (kind == HR_ELEMENT_GPU)
        return "0x030200";
    return kind == HR_ELEMENT_SOCKET ? "0x068001" : "0x068000";
}

static void write_links(struct writer *writer, const struct hr_element *gpu, int depth)
{
    for (uint32_t p = 0; p < gpu->port_count; p++) {
        const struct hr_port *port = &gpu->ports[p];
        bool told = !carries(port);
        uint32_t count = 0;
        for (uint32_t q = 0; q < gpu->port_count; q++) {
            if (gpu->ports[q].peer != port->peer || !carries(&gpu->ports[q]))
                continue;
            told = told || q < p;
            count++;
        }
        if (told)
            continue;
        const struct hr_element *peer = &writer->topology->elements[port->peer];
        indent(writer, depth);
        hr_text_add(&writer->text, "<%s target=\"%s\" count=\"%u\" tclass=\"%s\"/>\n",
                    port->kind == HR_LINK_XGMI ? "xgmi" : "nvlink", peer->name, count, target_class(peer->kind));
    }
}

/* The element's own, else one whose links are about as fast as its first. */
static uint32_t generation_of(const struct hr_element *gpu)
{
    if (gpu->generation)
        return gpu->generation;
    for (uint32_t p = 0; p < gpu->port_count; p++) {
        if (HR_LINKS(gpu->ports[p].kind) & HR_LINKS_FABRIC)
            return hr_rates_generation(gpu->ports[p].gbps, gpu->ports[p].kind == HR_LINK_XGMI);
    }
    return hr_rates_generation(25, false);
}

static void write_gpu(struct writer *writer, const struct hr_element *gpu, int depth)
{
    uint32_t generation = generation_of(gpu);

    indent(writer, depth);
    hr_text_add(&writer->text, "<gpu dev=\"%d\" ", gpu->gpu);
    if (generation & HR_GENERATION_GFX)
        hr_text_add(&writer->text, "gcn=\"gfx%x\"", generation & ~HR_GENERATION_GFX);
    else
        hr_text_add(&writer->text, "sm=\"%u\"", generation);
    hr_text_add(&writer->text, " rank=\"%d\" gdr=\"1\">\n", gpu->gpu);
    write_links(writer, gpu, depth + 1);
    indent(writer, depth);
    hr_text_add(&writer->text, "</gpu>\n");
}

static void write_below(struct writer *writer, uint32_t element, int depth);

static void write_pci(struct writer *writer, uint32_t number, double gbps, int depth)
{
    const struct hr_element *element = &writer->topology->elements[number];
    static const char *const classes[] = {
        [HR_ELEMENT_GPU] = "0x030200", [HR_ELEMENT_SWITCH] = "0x068000", [HR_ELEMENT_BRIDGE] = "0x060400"};
    double gts = HR_PCIE_DEFAULT_SPEED;
    uint32_t width = HR_PCIE_DEFAULT_WIDTH;

    if (gbps > 0)
        hr_rates_pcie_nearest(gbps, &gts, &width);
    uint32_t tenths = (uint32_t)(gts * 10 + 0.5); /* whole numbers, so that no locale's decimal point gets in */
    indent(writer, depth);
    hr_text_add(&writer->text, "<pci busid=\"%s\" class=\"%s\" link_speed=\"%u.%u GT/s PCIe\" link_width=\"%u\">\n",
                element->name, classes[element->kind], tenths / 10, tenths % 10, width);
    if (element->kind == HR_ELEMENT_GPU)
        write_gpu(writer, element, depth + 1);
    else
        write_below(writer, number, depth + 1);
    indent(writer, depth);
    hr_text_add(&writer->text, "</pci>\n");
}

/* What hangs from an element over PCIe and was not met before. Host bridges have no tag of their own. */
static void write_below(struct writer *writer, uint32_t number, int depth)
{
    const struct hr_element *element = &writer->topology->elements[number];

    for (uint32_t p = 0; p < element->port_count && depth < MAX_DEPTH; p++) {
        const struct hr_port *port = &element->ports[p];
        enum hr_element_kind kind = writer->topology->elements[port->peer].kind;
        if (port->kind != HR_LINK_PCIE || writer->written[port->peer] || kind == HR_ELEMENT_SOCKET)
            continue;
        writer->written[port->peer] = true;
        if (kind == HR_ELEMENT_ROOT)
            write_below(writer, (uint32_t)port->peer, depth + 1);
        else
            write_pci(writer, (uint32_t)port->peer, port->gbps, depth);
    }
}

static void write_socket(struct writer *writer, uint32_t number)
{
    const struct hr_element *socket = &writer->topology->elements[number];
    char part[4][HR_TOPOLOGY_NAME_BYTES] = {{0}};
    const char *at = socket->processor;

    writer->written[number] = true;
    hr_text_add(&writer->text, "  <cpu numaid=\"%d\"", socket->numa);
    for (int i = 0; i < 4 && *at; i++) {
        size_t length = strcspn(at, "/");
        memcpy(part[i], at, length);
        at += length + (at[length] == '/');
    }
    if (part[3][0])
        hr_text_add(&writer->text, " arch=\"%s\" vendor=\"%s\" familyid=\"%s\" modelid=\"%s\"", part[0], part[1],
                    part[2], part[3]);
    hr_text_add(&writer->text, ">\n");
    write_below(writer, number, 2);
    hr_text_add(&writer->text, "  </cpu>\n");
}

char *hr_topology_write_xml(const struct hr_topology *topology)
{
    struct writer writer = {.topology = topology};
    bool loose = false;

    writer.written = calloc(topology->element_count + 1, sizeof *writer.written);
    if (!writer.written)
        return NULL;
    hr_text_add(&writer.text, "<system version=\"1\">\n");
    for (uint32_t i = 0; i < topology->element_count; i++) {
        if (topology->elements[i].kind == HR_ELEMENT_SOCKET)
            write_socket(&writer, i);
    }
    for (uint32_t i = 0; i < topology->element_count; i++) {
        enum hr_element_kind kind = topology->elements[i].kind;
        if (writer.written[i] || kind == HR_ELEMENT_SWITCH || kind == HR_ELEMENT_ROOT)
            continue; /* a switch is named by the links that lead to it */
        if (!loose)
            hr_text_add(&writer.text, "  <cpu numaid=\"-1\">\n");
        loose = true;
        writer.written[i] = true;
        write_pci(&writer, i, 0, 2);
    }
    if (loose)
        hr_text_add(&writer.text, "  </cpu>\n");
    hr_text_add(&writer.text, "</system>\n");
    free(writer.written);
    return hr_text_take(&writer.text);
}
