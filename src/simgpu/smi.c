/*
 * The driver's side of NVML.
 *
 * Each process shows what it uses in a small memory file of its own, which others find among its open files in /proc: nothing is
 * left behind when a process is killed, and there is no table that could go stale. Only processes on an equal machine count.
 */
#include "simgpu/smi.h"

#include "simgpu/cards.h"
#include "simgpu/fabric.h"
#include "simgpu/sim.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_NAME "simgpu-use"
#define MAGIC UINT64_C(0x3165737575706773)

struct shown {
    uint64_t magic, pid, vram_bytes;
    int32_t gpus;
    char machine[64];
    _Atomic(uint64_t) used[SG_MAX_DEVICES];
};
static struct shown *mine;

static void describe(struct shown *s)
{
    s->magic = MAGIC;
    s->pid = (uint64_t)getpid();
    s->vram_bytes = sg.config.vram_bytes;
    s->gpus = sg.config.gpus;
    snprintf(s->machine, sizeof s->machine, "%s", sg.config.topology ? sg.config.topology->key : sg.config.model->key);
}

void sg_smi_publish(void)
{
    int fd = memfd_create(FILE_NAME, MFD_CLOEXEC);
    if (fd < 0)
        return;
    void *p = MAP_FAILED;
    if (!ftruncate(fd, sizeof *mine))
        p = mmap(NULL, sizeof *mine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        close(fd);
        return;
    }
    mine = p; /* the file stays open: that is how others find it */
    describe(mine);
}

void sg_smi_used(int card, uint64_t used_bytes)
{
    if (mine)
        atomic_store_explicit(&mine->used[card], used_bytes, memory_order_relaxed);
}

/* ---- the other processes ---- */

/* A process' file, if it has one and is on an equal machine. */
static bool read_shown(long pid, struct shown *out)
{
    char folder[64], path[320], target[64];
    bool found = false;
    snprintf(folder, sizeof folder, "/proc/%ld/fd", pid);
    DIR *d = opendir(folder); /* another user's: cannot be opened */
    struct dirent *e;
    while (d && !found && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0)
            continue;
        target[n] = 0;
        if (strncmp(target, "/memfd:" FILE_NAME " ", strlen("/memfd:" FILE_NAME " ")) != 0)
            continue;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        found = fd >= 0 && pread(fd, out, sizeof *out, 0) == (ssize_t)sizeof *out;
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
    struct shown own = {0};
    describe(&own);
    return found && out->magic == MAGIC && out->pid == (uint64_t)pid && out->vram_bytes == own.vram_bytes &&
           out->gpus == own.gpus && !strncmp(out->machine, own.machine, sizeof own.machine);
}

static unsigned processes(int card, struct sg_smi_process *out, unsigned room)
{
    unsigned n = 0;
    DIR *d = opendir("/proc");
    struct dirent *e;
    while (d && (e = readdir(d))) {
        struct shown s;
        char *end;
        long pid = strtol(e->d_name, &end, 10);
        if (pid <= 0 || *end || !read_shown(pid, &s) || !s.used[card])
            continue;
        if (n < room)
            out[n] = (struct sg_smi_process){(unsigned)pid, s.used[card]};
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

/* ---- cards ---- */

static bool init(void)
{
    pthread_mutex_lock(&sg.lock);
    bool ok = sg_config_once() == CUDA_SUCCESS;
    pthread_mutex_unlock(&sg.lock);
    return ok;
}

static int count(void)
{
    return sg.config.gpus;
}

static bool is_card(int card)
{
    return card >= 0 && card < sg.config.gpus;
}

static struct sg_smi_pci pci_of(const char *bus_id)
{
    char *next;
    struct sg_smi_pci at;
    at.domain = (unsigned)strtoul(bus_id, &next, 16);
    at.bus = (unsigned)strtoul(next + (*next == ':'), &next, 16);
    at.slot = (unsigned)strtoul(next + (*next == ':'), &next, 16);
    at.function = (unsigned)strtoul(next + (*next == '.'), &next, 16);
    return at;
}

/* The link's number among a card's NVLink ports. */
static const struct sg_topo_link *link_at(int card, unsigned number)
{
    const struct sg_topology *t = sg.config.topology;
    for (size_t i = 0; t && i < t->links; i++) {
        const struct sg_topo_link *l = &t->link[i];
        if (l->kind == SG_LINK_NVLINK && (l->a == card || l->b == card) && !number--)
            return l;
    }
    return NULL;
}

/* A process that uses CUDA sees what cuMemGetInfo says; one that only watches sees what all use. */
static uint64_t used_of(int card)
{
    struct sg_smi_process all[64];
    uint64_t sum = 0;
    int device = atomic_load(&sg.ready) ? sg_device_of(card) : -1;
    if (device >= 0) {
        pthread_mutex_lock(&sg.lock);
        sum = sg.devices[device].used_bytes + sg_cards_others(card);
        pthread_mutex_unlock(&sg.lock);
        return sum;
    }
    unsigned n = processes(card, all, 64);
    for (unsigned i = 0; i < n && i < 64; i++)
        sum += all[i].used_bytes;
    return sum < sg.config.vram_bytes ? sum : sg.config.vram_bytes;
}

static bool card(int at, struct sg_smi_card *out)
{
    if (!is_card(at))
        return false;
    const struct sg_model *m = sg.config.model;
    struct sg_pci pci = sg_node_pci(at);
    *out = (struct sg_smi_card){.pci = {pci.domain, pci.bus, pci.slot, pci.function},
                                .pci_id = (unsigned)m->pci_device_id << 16 | 0x10de,
                                .major = m->major,
                                .minor = m->minor,
                                .ecc = m->ecc,
                                .peer = m->peer,
                                .total_bytes = sg.config.vram_bytes,
                                .used_bytes = used_of(at)};
    snprintf(out->name, sizeof out->name, "%s", m->name);
    sg_device_uuid(at, out->uuid);
    while (link_at(at, out->links))
        out->links++;
    return true;
}

static bool link_of(int at, unsigned number, struct sg_smi_link *out)
{
    const struct sg_topo_link *l = is_card(at) ? link_at(at, number) : NULL;
    if (!l)
        return false;
    const struct sg_topo_element *far = &sg.config.topology->element[l->a == at ? l->b : l->a];
    struct sg_node_port port = {.up = 1};
    if (sg_node_router())
        sg_router_port(sg_node_router(), l->a, l->a_port, &port);
    *out = (struct sg_smi_link){.up = port.up != 0,
                                .far_end = far->kind == SG_ELEMENT_CARD     ? SG_SMI_CARD
                                           : far->kind == SG_ELEMENT_SWITCH ? SG_SMI_SWITCH
                                                                            : SG_SMI_PROCESSOR,
                                .pci = pci_of(far->bus_id)};
    return true;
}

static bool pair(int a, int b, struct sg_smi_pair *out)
{
    if (!is_card(a) || !is_card(b) || a == b)
        return false;
    const struct sg_model *m = sg.config.model;
    const struct sg_topology *t = sg.config.topology;
    *out = (struct sg_smi_pair){SG_SMI_SOCKET, m->peer, m->peer && m->peer_atomics, false};
    if (!t)
        return true;
    enum sg_nearness near = sg_topology_pcie_between(t, a, b);
    out->common = near == SG_NEAR_BRIDGE    ? SG_SMI_BRIDGE
                  : near == SG_NEAR_BRIDGES ? SG_SMI_BRIDGES
                  : near == SG_NEAR_SOCKET  ? SG_SMI_SOCKET
                                            : SG_SMI_SYSTEM;
    out->nvlink = sg_topology_between(t, a, b) == SG_NEAR_NVLINK;
    out->access = m->peer && (out->nvlink || near < SG_NEAR_SOCKETS);
    out->atomics = out->atomics && out->nvlink;
    return true;
}

const struct sg_smi *sg_smi(void)
{
    static struct sg_smi table = {.version = SG_SMI_VERSION,
                                  .init = init,
                                  .count = count,
                                  .card = card,
                                  .link = link_of,
                                  .pair = pair,
                                  .processes = processes};
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    table.cuda_version = sg_driver_version;
    pthread_mutex_unlock(&lock);
    return &table;
}
