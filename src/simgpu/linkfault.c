#include "simgpu/linkfault.h"

#include "simgpu/fabric.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FAILS 64
#define CORRUPT_EVERY 512 /* bytes */

static struct {
    unsigned pair[SG_MOST_CARDS][SG_MOST_CARDS]; /* enum sg_path_fault */
    bool any_pair, sticky;
    struct {
        int element, port;
        uint64_t bytes;
    } fail[MOST_FAILS];
    size_t fails;
} faults;

/* A number in front of `end`, or of the text's end. */
static bool number(const char **at, const char *stop, char end, uint64_t *out)
{
    const char *from = *at;
    for (*out = 0; *at < stop && **at >= '0' && **at <= '9' && *out < UINT64_C(1) << 56; ++*at)
        *out = *out * 10 + (uint64_t)(**at - '0');
    if (*at == from || (end ? *at == stop || **at != end : *at != stop))
        return false;
    *at += end != 0;
    return true;
}

static const char *read_fail(const struct sg_config *c, const char *at, const char *stop)
{
    uint64_t element, port, bytes;
    if (!number(&at, stop, '.', &element) || !number(&at, stop, '@', &port) || !number(&at, stop, 0, &bytes))
        return "expected fail:ELEMENT.PORT@BYTES";
    if (!c->topology)
        return "fail needs a machine with links, such as dgx1v";
    if (element >= c->topology->count || port >= c->topology->element[element].ports)
        return "the machine has no such element and port";
    if (faults.fails == MOST_FAILS)
        return "there is room for 64 links that fail";
    faults.fail[faults.fails].element = (int)element;
    faults.fail[faults.fails].port = (int)port;
    faults.fail[faults.fails++].bytes = bytes;
    return NULL;
}

static const char *read_pair(const struct sg_config *c, const char *at, const char *stop, enum sg_path_fault fault)
{
    uint64_t a, b, cards = (uint64_t)c->gpus;
    if (!number(&at, stop, '-', &a) || !number(&at, stop, 0, &b) || a == b || a >= cards || b >= cards)
        return fault == SG_PATH_HANG ? "expected hang:A-B, with two of the machine's GPUs"
                                     : "expected corrupt:A-B, with two of the machine's GPUs";
    faults.pair[a][b] |= fault;
    faults.pair[b][a] |= fault;
    faults.any_pair = true;
    return NULL;
}

bool sg_linkfault_read(const struct sg_config *c, const char **at_out, size_t *bytes_out, const char **why_out)
{
    memset(&faults, 0, sizeof faults);
    for (const char *text = getenv("SIMGPU_LINK"); text && *text;) {
        size_t bytes = strcspn(text, ",");
        const char *stop = text + bytes, *why = NULL;
        if (bytes > 5 && !memcmp(text, "fail:", 5))
            why = read_fail(c, text + 5, stop);
        else if (bytes > 8 && !memcmp(text, "corrupt:", 8))
            why = read_pair(c, text + 8, stop, SG_PATH_CORRUPT);
        else if (bytes > 5 && !memcmp(text, "hang:", 5))
            why = read_pair(c, text + 5, stop, SG_PATH_HANG);
        else if (bytes == 6 && !memcmp(text, "sticky", 6))
            faults.sticky = true;
        else
            why = "expected fail:ELEMENT.PORT@BYTES, corrupt:A-B, hang:A-B or sticky";
        if (why) {
            *at_out = text;
            *bytes_out = bytes;
            *why_out = why;
            return false;
        }
        text = stop + (*stop == ',');
    }
    return true;
}

void sg_linkfault_arm(void)
{
    for (size_t i = 0; i < faults.fails; i++)
        sg_router_fail_after(sg_node_router(), faults.fail[i].element, faults.fail[i].port, faults.fail[i].bytes);
}

bool sg_linkfault_any_path(void)
{
    return faults.any_pair;
}

unsigned sg_linkfault_path(int a, int b)
{
    return faults.pair[a][b];
}

void sg_linkfault_corrupt(uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += CORRUPT_EVERY) {
        uint8_t byte, wrong;
        sg_move_bytes(&byte, false, data + i, true, 1);
        wrong = byte ^ 0x55;
        sg_move_bytes(data + i, true, &wrong, false, 1);
    }
}

bool sg_linkfault_hangs(const struct sg_copy *c)
{
    if (!faults.any_pair || c->src_device == SG_ON_HOST || c->dst_device == SG_ON_HOST)
        return false;
    int from = sg_page_owner(&sg.devices[c->src_device].pagetable, c->src);
    int to = sg_page_owner(&sg.devices[c->dst_device].pagetable, c->dst);
    return from >= 0 && to >= 0 && from != to && faults.pair[sg.card[from]][sg.card[to]] & SG_PATH_HANG &&
           sg_node_is_direct(from, to, c->dst, c->src);
}

static void fail(struct sg_context *c, const char *line)
{
    if (faults.sticky) {
        sg_context_fail(c, CUDA_ERROR_NVLINK_UNCORRECTABLE, line);
        return;
    }
    c->passing = CUDA_ERROR_NVLINK_UNCORRECTABLE;
    sg_log(SG_LOG_ERROR, "%s", line);
}

void sg_linkfault_end(struct sg_op *op, const struct sg_moved *moved)
{
    char line[200];
    uint64_t done = 0;
    for (int i = 0; i < SG_DIRECTION_COUNT; i++)
        done += moved->bytes[i];
    snprintf(line, sizeof line,
             "a %s on device %d ended after %" PRIu64 " bytes: the link or the router on its way refused the rest",
             op->kind == SG_OP_COPY ? "copy" : "memset", op->stream->context->device, done);
    fail(op->stream->context, line);
}

void sg_linkfault_kernel(struct sg_op *op, int peer)
{
    char line[400];
    snprintf(line, sizeof line,
             "kernel %s on device %d used memory of device %d, and a link or a router refused a part",
             op->kernel.function->info->name, op->stream->context->device, peer);
    fail(op->stream->context, line);
}

CUresult sg_context_tell(uint64_t id)
{
    struct sg_context *c = sg_object_find(id, SG_CONTEXT); /* another thread may have destroyed it meanwhile */
    if (!c)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult r = c->sticky ? c->sticky : c->passing;
    c->passing = CUDA_SUCCESS;
    return r;
}
