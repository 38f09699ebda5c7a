/*
 * Reads NCCL's topology XML. The tree of sockets, bridges and GPUs follows from nesting; NVLinks name their targets, which may come
 * later in the file, so they are kept until its end. Every limit is checked where the number is read: the text may be hostile.
 */
#include "fabric/parser.h"
#include "fabric/rates.h"
#include "fabric/text.h"
#include "fabric/topology.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (16u << 20)
#define MAX_DEPTH 64
#define MAX_LINK_COUNT 64
#define PCI_BRIDGE "0x0604"
#define PCI_GPU "0x03"
#define PCI_SWITCH "0x068000"
#define PCI_CPU "0x068001"

enum tag { TAG_OTHER, TAG_SYSTEM, TAG_CPU, TAG_PCI, TAG_GPU };

struct frame {
    enum tag tag;
    int element; /* what children hang from; -1 = nothing */
    double gbps; /* of a pci: its uplink */
    char name[HR_TOPOLOGY_NAME_BYTES];
};

struct pending_link {
    uint32_t from;
    uint32_t count;
    uint32_t line;
    enum hr_link_kind kind;
    enum { TO_GPU, TO_SWITCH, TO_CPU } target_kind;
    int socket; /* of the GPU */
    char target[HR_TOPOLOGY_NAME_BYTES];
};

struct reader {
    const struct hr_expat *expat;
    XML_Parser parser;
    struct hr_topology *topology;
    struct hr_text_error *error_out;
    int rc; /* first failure; the parser is stopped then */
    uint32_t depth;
    struct frame frame[MAX_DEPTH];
    struct pending_link *link;
    uint32_t link_count, link_room;
    int32_t *device; /* by GPU in order of appearance: its dev=, -1 = none */
    uint32_t device_room;
};

static uint32_t line_of(const struct reader *reader)
{
    return (uint32_t)reader->expat->XML_GetCurrentLineNumber(reader->parser);
}

static void stop(struct reader *reader, int rc)
{
    if (reader->rc == 0) {
        reader->rc = rc;
        reader->expat->XML_StopParser(reader->parser, XML_FALSE);
    }
}

#define refuse(reader, ...) stop(reader, hr_text_refuse((reader)->error_out, line_of(reader), __VA_ARGS__))

static const char *attribute(const char **attributes, const char *name)
{
    for (; attributes[0]; attributes += 2) {
        if (strcmp(attributes[0], name) == 0)
            return attributes[1];
    }
    return NULL;
}

/* A bus id in lower case, as NCCL compares them. */
static bool copy_name(struct reader *reader, const char *text, const char *what, char *name_out)
{
    size_t length = text ? strlen(text) : 0;

    if (length == 0 || length >= HR_TOPOLOGY_NAME_BYTES) {
        refuse(reader, "%s \"%.40s\" is no bus id; accepted: such as \"0000:07:00.0\", at most %d characters", what,
               text ? text : "", HR_TOPOLOGY_NAME_BYTES - 1);
        return false;
    }
    for (size_t i = 0; i <= length; i++)
        name_out[i] = (char)tolower((unsigned char)text[i]);
    return true;
}

/* The number's failure is said in the caller's name; absent attributes take `absent`. */
static bool number(struct reader *reader, const char **attributes, const char *name, uint64_t high, uint64_t absent,
                   uint64_t *value_out)
{
    const char *text = attribute(attributes, name);

    if (!text) {
        *value_out = absent;
        return true;
    }
    if (hr_text_unsigned(text, 0, high, value_out))
        return true;
    refuse(reader, "%s=\"%.40s\" is no number that fits; accepted: 0 to %llu", name, text, (unsigned long long)high);
    return false;
}

static int add(struct reader *reader, enum hr_element_kind kind, const char *name)
{
    int element = hr_topology_add(reader->topology, kind, name);

    if (element == -ENOMEM)
        stop(reader, -ENOMEM);
    else if (element == -EEXIST)
        refuse(reader, "bus id \"%s\" is there twice; accepted: one <pci> each", name);
    else if (element == -EINVAL)
        refuse(reader, "\"%.40s\" is no bus id; accepted: such as \"0000:07:00.0\"", name);
    else if (element < 0)
        refuse(reader, "too many elements; accepted: %d GPUs, %d in all", HR_TOPOLOGY_MAX_GPUS,
               HR_TOPOLOGY_MAX_ELEMENTS);
    return element;
}

static void join(struct reader *reader, uint32_t line, uint32_t a, uint32_t b, enum hr_link_kind kind, uint32_t count,
                 double gbps)
{
    int rc = hr_topology_join(reader->topology, a, b, kind, count, gbps, hr_topology_default_latency_ns(kind));

    if (rc == -ENOMEM)
        stop(reader, rc);
    else if (rc == -E2BIG)
        stop(reader, hr_text_refuse(reader->error_out, line, "%s or %s has too many links; accepted: %d",
                                    reader->topology->elements[a].name, reader->topology->elements[b].name,
                                    HR_TOPOLOGY_MAX_PORTS));
    else if (rc != 0)
        stop(reader, hr_text_refuse(reader->error_out, line, "%s is linked to itself; accepted: links between two",
                                    reader->topology->elements[a].name));
}

/* The nearest enclosing element, which what is inside hangs from. */
static int holder(const struct reader *reader)
{
    for (uint32_t i = reader->depth; i-- > 0;) {
        if (reader->frame[i].element >= 0)
            return reader->frame[i].element;
    }
    return -1;
}

static void start_cpu(struct reader *reader, const char **attributes, struct frame *frame)
{
    const char *numa = attribute(attributes, "numaid");
    uint64_t id = 0;

    if (numa && strcmp(numa, "-1") != 0 && !number(reader, attributes, "numaid", 1023, 0, &id))
        return;
    frame->element = add(reader, HR_ELEMENT_SOCKET, NULL);
    if (frame->element < 0)
        return;
    struct hr_element *element = &reader->topology->elements[frame->element];
    const char *arch = attribute(attributes, "arch"), *vendor = attribute(attributes, "vendor");
    const char *family = attribute(attributes, "familyid"), *model = attribute(attributes, "modelid");
    element->numa = numa && strcmp(numa, "-1") != 0 ? (int32_t)id : -1;
    if (arch && vendor && family && model)
        snprintf(element->processor, sizeof element->processor, "%s/%s/%s/%s", arch, vendor, family, model);
    for (char *c = element->processor; *c; c++) { /* it is written back between quotes */
        if (!isalnum((unsigned char)*c) && !strchr("/_-.", *c))
            *c = '_';
    }
    for (uint32_t i = 0; reader->rc == 0 && i + 1 < reader->topology->element_count; i++) {
        if (reader->topology->elements[i].kind == HR_ELEMENT_SOCKET)
            join(reader, line_of(reader), i, (uint32_t)frame->element, HR_LINK_SOCKET, 1,
                 hr_rates_socket_gbps(reader->topology->elements[frame->element].processor));
    }
}

static void start_pci(struct reader *reader, const char **attributes, struct frame *frame)
{
    const char *class = attribute(attributes, "class"), *speed = attribute(attributes, "link_speed");
    uint64_t width;
    double gts;

    if (!copy_name(reader, attribute(attributes, "busid"), "busid", frame->name))
        return;
    if (!class || strncmp(class, "0x", 2) != 0) {
        refuse(reader, "class \"%.40s\" of %s is no PCI class; accepted: such as \"0x030200\"", class ? class : "",
               frame->name);
        return;
    }
    if (!hr_rates_pcie_speed(speed ? speed : "", &gts)) {
        refuse(reader, "link_speed \"%.40s\" is no PCIe speed; accepted: \"16.0 GT/s PCIe\", also 2.5, 5, 8, 32, 64",
               speed ? speed : "");
        return;
    }
    if (!number(reader, attributes, "link_width", 64, HR_PCIE_DEFAULT_WIDTH, &width))
        return;
    frame->gbps = hr_rates_pcie_gbps(gts, width ? (uint32_t)width : HR_PCIE_DEFAULT_WIDTH);
    int above = holder(reader);
    bool bridge = strncmp(class, PCI_BRIDGE, 6) == 0, fabric_switch = strcmp(class, PCI_SWITCH) == 0;
    if (!bridge && !fabric_switch)
        return;
    frame->element = add(reader, bridge ? HR_ELEMENT_BRIDGE : HR_ELEMENT_SWITCH, frame->name);
    if (frame->element >= 0 && above >= 0)
        join(reader, line_of(reader), (uint32_t)above, (uint32_t)frame->element, HR_LINK_PCIE, 1, frame->gbps);
}

/* "90" of sm=, "gfx90a" or "910" of gcn=. */
static bool generation(struct reader *reader, const char **attributes, uint32_t *generation_out)
{
    const char *gcn = attribute(attributes, "gcn");
    uint64_t sm;

    if (gcn && strncmp(gcn, "gfx", 3) == 0) {
        char hex[16];
        snprintf(hex, sizeof hex, "0x%.12s", gcn + 3);
        if (!hr_text_unsigned(hex, 1, 0xffff, &sm)) {
            refuse(reader, "gcn \"%.40s\" is no GPU generation; accepted: such as \"gfx90a\"", gcn);
            return false;
        }
        *generation_out = HR_GENERATION_GFX | (uint32_t)sm;
        return true;
    }
    if (!number(reader, attributes, "sm", 999, 0, &sm))
        return false;
    *generation_out = (uint32_t)sm;
    return true;
}

static bool note_device(struct reader *reader, uint32_t gpu, int32_t device)
{
    if (gpu >= reader->device_room) {
        uint32_t room = gpu * 2 + 16;
        int32_t *grown = realloc(reader->device, room * sizeof *grown);
        if (!grown) {
            stop(reader, -ENOMEM);
            return false;
        }
        reader->device = grown;
        reader->device_room = room;
    }
    reader->device[gpu] = device;
    return true;
}

static void start_gpu(struct reader *reader, const char **attributes, struct frame *frame)
{
    const struct frame *pci = reader->depth ? &reader->frame[reader->depth - 1] : NULL;
    uint64_t device;
    uint32_t number_of_generation;

    if (!pci || pci->tag != TAG_PCI) {
        refuse(reader, "<gpu> outside of <pci>; accepted: <pci busid=... class=\"0x03...\"><gpu dev=... sm=...>");
        return;
    }
    if (!number(reader, attributes, "dev", HR_TOPOLOGY_MAX_GPUS - 1, UINT64_MAX, &device) ||
        !generation(reader, attributes, &number_of_generation))
        return;
    int above = holder(reader);
    frame->element = add(reader, HR_ELEMENT_GPU, pci->name);
    if (frame->element < 0)
        return;
    struct hr_element *element = &reader->topology->elements[frame->element];
    element->generation = number_of_generation;
    if (!note_device(reader, (uint32_t)element->gpu, device == UINT64_MAX ? -1 : (int32_t)device))
        return;
    if (above >= 0)
        join(reader, line_of(reader), (uint32_t)above, (uint32_t)frame->element, HR_LINK_PCIE, 1, pci->gbps);
}

static int socket_above(const struct reader *reader)
{
    for (uint32_t i = reader->depth; i-- > 0;) {
        if (reader->frame[i].tag == TAG_CPU)
            return reader->frame[i].element;
    }
    return -1;
}

static void start_link(struct reader *reader, const char **attributes, enum hr_link_kind kind)
{
    const struct frame *gpu = reader->depth ? &reader->frame[reader->depth - 1] : NULL;
    const char *class = attribute(attributes, "tclass");
    struct pending_link link = {.line = line_of(reader), .kind = kind, .socket = socket_above(reader)};
    uint64_t count;

    if (!gpu || gpu->tag != TAG_GPU || gpu->element < 0) {
        refuse(reader, "a link outside of <gpu>; accepted: <gpu ...><nvlink target=... count=... tclass=...>");
        return;
    }
    link.from = (uint32_t)gpu->element;
    if (!copy_name(reader, attribute(attributes, "target"), "target", link.target) ||
        !number(reader, attributes, "count", MAX_LINK_COUNT, 0, &count))
        return;
    if (count == 0) {
        refuse(reader, "link to %s without a count; accepted: 1 to %d", link.target, MAX_LINK_COUNT);
        return;
    }
    link.count = (uint32_t)count;
    if (class && strcmp(class, PCI_CPU) == 0) {
        link.target_kind = TO_CPU;
    } else if (class && strcmp(class, PCI_SWITCH) == 0) {
        link.target_kind = TO_SWITCH;
    } else if (class && strncmp(class, PCI_GPU, 4) == 0) {
        link.target_kind = TO_GPU;
    } else {
        refuse(reader,
               "tclass \"%.40s\" is no end of a link; accepted: 0x03.... (GPU), 0x068000 (switch), 0x068001 (CPU)",
               class ? class : "");
        return;
    }
    if (reader->link_count == reader->link_room) {
        uint32_t room = reader->link_room * 2 + 64;
        struct pending_link *grown = realloc(reader->link, room * sizeof *grown);
        if (!grown) {
            stop(reader, -ENOMEM);
            return;
        }
        reader->link = grown;
        reader->link_room = room;
    }
    reader->link[reader->link_count++] = link;
}

static void XMLCALL on_start(void *data, const char *name, const char **attributes)
{
    struct reader *reader = data;
    struct frame frame = {.tag = TAG_OTHER, .element = -1};

    if (reader->rc != 0)
        return;
    if (reader->depth == MAX_DEPTH) {
        refuse(reader, "nested too deep; accepted: %d levels", MAX_DEPTH);
        return;
    }
    if (reader->depth == 0) {
        const char *version = attribute(attributes, "version");
        if (strcmp(name, "system") != 0 || (version && strcmp(version, "1") != 0)) {
            refuse(reader, "<%.40s> with version \"%.20s\" at the top; accepted: <system version=\"1\">", name,
                   version ? version : "");
            return;
        }
        frame.tag = TAG_SYSTEM;
    } else if (strcmp(name, "cpu") == 0) {
        frame.tag = TAG_CPU;
        start_cpu(reader, attributes, &frame);
    } else if (strcmp(name, "pci") == 0) {
        frame.tag = TAG_PCI;
        start_pci(reader, attributes, &frame);
    } else if (strcmp(name, "gpu") == 0) {
        frame.tag = TAG_GPU;
        start_gpu(reader, attributes, &frame);
    } else if (strcmp(name, "nvlink") == 0) {
        start_link(reader, attributes, HR_LINK_NVLINK);
    } else if (strcmp(name, "xgmi") == 0) {
        start_link(reader, attributes, HR_LINK_XGMI);
    }
    reader->frame[reader->depth++] = frame;
}

static void XMLCALL on_end(void *data, const char *name)
{
    struct reader *reader = data;

    (void)name;
    if (reader->rc == 0)
        reader->depth--;
}

/* A document type may define entities that expand without end, and NCCL writes none. */
static void XMLCALL on_doctype(void *data, const char *name, const char *system, const char *public, int internal)
{
    (void)system, (void)public, (void)internal;
    refuse((struct reader *)data, "<!DOCTYPE %.40s>; accepted: plain elements and attributes", name);
}

/* ---- what can be resolved at the end only ---- */

static int by_target(const void *a, const void *b)
{
    const struct pending_link *x = a, *y = b;
    int order = strcmp(x->target, y->target);

    return order ? order : (x->from > y->from) - (x->from < y->from);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct hr_element *const *)a)->name, (*(const struct hr_element *const *)b)->name);
}

static int find_name(const struct hr_topology *topology, struct hr_element **sorted, uint32_t count, const char *name)
{
    struct hr_element key, *pointer = &key;

    snprintf(key.name, sizeof key.name, "%s", name);
    struct hr_element **found = bsearch(&pointer, sorted, count, sizeof *sorted, by_name);
    return found ? (int)(*found - topology->elements) : -1;
}

/* Links between GPUs are told by both ends; where the ends differ, what one does not know is down in its direction. */
static void join_gpus(struct reader *reader, const struct pending_link *link, uint32_t to)
{
    struct hr_topology *topology = reader->topology;
    const struct hr_element *target = &topology->elements[to];
    double gbps = hr_rates_link_gbps(topology->elements[link->from].generation);
    struct pending_link key = {.from = to};

    snprintf(key.target, sizeof key.target, "%s", topology->elements[link->from].name);
    const struct pending_link *back = bsearch(&key, reader->link, reader->link_count, sizeof *back, by_target);
    uint32_t theirs = back ? back->count : 0, most = theirs > link->count ? theirs : link->count;
    if (back && link->from > to)
        return; /* joined from the other end */
    uint32_t first = topology->elements[link->from].port_count, first_there = target->port_count;
    join(reader, link->line, link->from, to, link->kind, most, gbps);
    for (uint32_t i = 0; reader->rc == 0 && i < most; i++) {
        if (i >= link->count)
            hr_topology_set_up(topology, link->from, first + i, false);
        if (i >= theirs)
            hr_topology_set_up(topology, to, first_there + i, false);
    }
}

static void join_links(struct reader *reader)
{
    struct hr_topology *topology = reader->topology;

    for (uint32_t i = 0; reader->rc == 0 && i < reader->link_count; i++) {
        if (i > 0 && by_target(&reader->link[i - 1], &reader->link[i]) == 0 && reader->link[i].target_kind != TO_CPU) {
            stop(reader, hr_text_refuse(reader->error_out, reader->link[i].line,
                                        "a second link from %s to %s; accepted: one, with a count",
                                        topology->elements[reader->link[i].from].name, reader->link[i].target));
            return;
        }
    }
    /* Switches that no <pci> describes come to be first, since the sorted names hold pointers to elements. */
    for (uint32_t i = 0; reader->rc == 0 && i < reader->link_count; i++) {
        const struct pending_link *link = &reader->link[i];
        bool again = i > 0 && strcmp(link[-1].target, link->target) == 0 && link[-1].target_kind == TO_SWITCH;
        if (link->target_kind == TO_SWITCH && !again && hr_topology_find(topology, link->target) < 0)
            add(reader, HR_ELEMENT_SWITCH, link->target);
    }
    uint32_t known = topology->element_count;
    struct hr_element **sorted = calloc(known + 1, sizeof(struct hr_element *));
    if (!sorted) {
        stop(reader, -ENOMEM);
        return;
    }
    for (uint32_t i = 0; i < known; i++)
        sorted[i] = &topology->elements[i];
    qsort(sorted, known, sizeof *sorted, by_name);
    for (uint32_t i = 0; reader->rc == 0 && i < reader->link_count; i++) {
        const struct pending_link *link = &reader->link[i];
        int to = link->target_kind == TO_CPU ? link->socket : find_name(topology, sorted, known, link->target);
        if (to < 0) /* a GPU that the file leaves out, as NCCL does with hidden ones */
            continue;
        if (topology->elements[to].kind == HR_ELEMENT_GPU)
            join_gpus(reader, link, (uint32_t)to);
        else
            join(reader, link->line, link->from, (uint32_t)to, link->kind, link->count,
                 hr_rates_link_gbps(topology->elements[link->from].generation));
    }
    free(sorted);
}

/* GPUs are numbered by dev= where all have one. */
static void number_gpus(struct reader *reader)
{
    struct hr_topology *topology = reader->topology;
    uint32_t count = topology->gpu_count;
    uint32_t *ordered = calloc(count + 1, sizeof *ordered);
    int32_t *by_device = calloc(HR_TOPOLOGY_MAX_GPUS, sizeof *by_device);

    if (!ordered || !by_device) {
        stop(reader, -ENOMEM);
        goto out;
    }
    for (uint32_t gpu = 0; gpu < count; gpu++) {
        int32_t device = reader->device[gpu];
        if (device < 0)
            goto out;
        if (by_device[device]) {
            stop(reader, hr_text_refuse(reader->error_out, 0, "two GPUs with dev=\"%d\"; accepted: one each", device));
            goto out;
        }
        by_device[device] = (int32_t)topology->gpus[gpu] + 1;
    }
    for (uint32_t device = 0, at = 0; device < HR_TOPOLOGY_MAX_GPUS; device++) {
        if (by_device[device]) {
            uint32_t element = (uint32_t)by_device[device] - 1;
            topology->elements[element].gpu = (int32_t)at;
            topology->gpus[at++] = element;
        }
    }
out:
    free(ordered);
    free(by_device);
}

static void parse(struct reader *reader, const char *text, size_t bytes)
{
    const struct hr_expat *expat = reader->expat;

    expat->XML_SetUserData(reader->parser, reader);
    expat->XML_SetElementHandler(reader->parser, on_start, on_end);
    expat->XML_SetStartDoctypeDeclHandler(reader->parser, on_doctype);
    if (expat->XML_Parse(reader->parser, text, (int)bytes, 1) == XML_STATUS_OK || reader->rc != 0)
        return;
    enum XML_Error code = expat->XML_GetErrorCode(reader->parser);
    if (code == XML_ERROR_NO_MEMORY)
        reader->rc = -ENOMEM;
    else
        reader->rc = hr_text_refuse(reader->error_out, line_of(reader),
                                    "not XML: %s; accepted: NCCL's topology, <system version=\"1\"><cpu ...><pci ...>",
                                    expat->XML_ErrorString(code));
}

int hr_topology_read_xml(const char *text, size_t bytes, struct hr_topology **topology_out,
                         struct hr_text_error *error_out)
{
    const struct hr_expat *expat = hr_expat();

    if (!expat) {
        hr_text_refuse(error_out, 0, "reading XML needs libexpat.so.1, which is not on this machine");
        return -ENOSYS;
    }
    if (bytes > MAX_BYTES)
        return hr_text_refuse(error_out, 0, "%zu bytes; accepted: at most %u", bytes, MAX_BYTES);
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return -ENOMEM;
    reader->expat = expat;
    reader->error_out = error_out;
    reader->topology = hr_topology_create();
    reader->parser = expat->XML_ParserCreate(NULL);
    reader->rc = reader->topology && reader->parser ? 0 : -ENOMEM;
    if (reader->rc == 0)
        parse(reader, text, bytes);
    if (reader->rc == 0 && reader->topology->gpu_count == 0)
        reader->rc = hr_text_refuse(error_out, 0, "no <gpu> in it; accepted: at least one");
    if (reader->rc == 0) {
        if (reader->link_count > 0)
            qsort(reader->link, reader->link_count, sizeof *reader->link, by_target);
        join_links(reader);
    }
    if (reader->rc == 0)
        number_gpus(reader);
    int rc = reader->rc;
    if (rc == 0)
        *topology_out = reader->topology;
    else
        hr_topology_destroy(reader->topology);
    if (reader->parser)
        expat->XML_ParserFree(reader->parser);
    free(reader->link);
    free(reader->device);
    free(reader);
    return rc;
}
