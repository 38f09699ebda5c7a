/* CUDA_VISIBLE_DEVICES: what a process sees of a machine, and that what it does not see stays as it is. */
#include "sim_test.h"

#include "simgpu/node.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MACHINE "dgx1v,vram=32M"
#define MOST 16

/* Run by a process each, since the variable is read once. */
struct seen {
    CUresult init;
    int count;
    char bus_id[MOST][16];
    char uuid[MOST][16];
    int reach[MOST][MOST], rank[MOST][MOST], element[MOST]; /* element: of each device */
};

static void look(struct seen *s)
{
    int (*elements)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "sg_node_elements");
    int (*element)(int, struct sg_node_element *) =
        (int (*)(int, struct sg_node_element *))dlsym(RTLD_DEFAULT, "sg_node_element");
    s->init = cuInit(0);
    if (s->init || cuDeviceGetCount(&s->count))
        return;
    for (int d = 0; d < s->count; d++) {
        CUdevice device, back;
        if (cuDeviceGet(&device, d) || cuDeviceGetPCIBusId(s->bus_id[d], 16, device) ||
            cuDeviceGetUuid((CUuuid *)s->uuid[d], device) || cuDeviceGetByPCIBusId(&back, s->bus_id[d]) ||
            back != device)
            _exit(98);
        for (int other = 0; other < s->count; other++) {
            cuDeviceCanAccessPeer(&s->reach[d][other], d, other);
            if (d != other)
                cuDeviceGetP2PAttribute(&s->rank[d][other], CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, d, other);
        }
    }
    for (int e = 0; element && e < elements(); e++) {
        struct sg_node_element one;
        if (!element(e, &one) && one.kind == SG_ELEMENT_CARD && one.device >= 0) {
            s->element[one.device] = e;
            if (strcmp(one.bus_id, s->bus_id[one.device]) != 0)
                _exit(97);
        }
    }
}

static struct seen see(const char *list)
{
    struct seen s = {.init = CUDA_ERROR_UNKNOWN};
    int ends[2], status;
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        setenv("SIMGPU", MACHINE, 1);
        if (list)
            setenv("CUDA_VISIBLE_DEVICES", list, 1);
        else
            unsetenv("CUDA_VISIBLE_DEVICES");
        look(&s);
        _exit(write(ends[1], &s, sizeof s) == sizeof s ? 0 : 99);
    }
    close(ends[1]);
    cr_assert(read(ends[0], &s, sizeof s) == sizeof s && waitpid(child, &status, 0) == child && status == 0,
              "with '%s' the process ended with 0x%x", list ? list : "(nothing)", (unsigned)status);
    close(ends[0]);
    return s;
}

static void put_uuid(const char *bytes, size_t digits, char *text)
{
    char all[40];
    const unsigned char *b = (const unsigned char *)bytes;
    snprintf(all, sizeof all, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    sprintf(text, "GPU-%.*s", (int)digits, all);
}

/* Exactly these of the machine's cards, in this order. */
static void shows(const struct seen *all, const char *list, int count, const int *cards)
{
    struct seen s = see(list);
    cr_expect_eq(s.init, count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE, "'%s': cuInit gave %d", list, (int)s.init);
    cr_assert_eq(s.count, count, "'%s' shows %d", list, s.count);
    for (int d = 0; d < count; d++) {
        cr_expect_str_eq(s.bus_id[d], all->bus_id[cards[d]], "'%s': device %d", list, d);
        cr_expect(memcmp(s.uuid[d], all->uuid[cards[d]], 16) == 0, "'%s': device %d", list, d);
        cr_expect_eq(s.element[d], cards[d], "'%s': device %d", list, d);
        for (int other = 0; other < count; other++) {
            cr_expect_eq(s.reach[d][other], all->reach[cards[d]][cards[other]], "'%s': %d to %d", list, d, other);
            cr_expect_eq(s.rank[d][other], all->rank[cards[d]][cards[other]], "'%s': %d to %d", list, d, other);
        }
    }
}
#define SHOWS(list, ...) shows(&all, list, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})
#define SHOWS_NONE(list) shows(&all, list, 0, NULL)

Test(visible, lists_of_numbers_are_read_as_drivers_do, .timeout = 60)
{
    struct seen all = see(NULL);
    cr_assert_eq(all.count, 8);
    SHOWS("0,1,2,3,4,5,6,7", 0, 1, 2, 3, 4, 5, 6, 7);
    SHOWS("2,1", 2, 1);
    SHOWS("7, 3 ,\t5", 7, 3, 5);
    SHOWS("0,2,-1,1", 0, 2);
    SHOWS("4,8,1", 4);
    SHOWS("6,99999999999999999999,1", 6);
    SHOWS("3,", 3);
    SHOWS("3,,4", 3);
    SHOWS("1x,2gpu", 1, 2);
    SHOWS("5,NoDevFiles", 5);
    SHOWS_NONE("");
    SHOWS_NONE("-1");
    SHOWS_NONE(" ");
    SHOWS_NONE(",1");
    SHOWS_NONE("8");
    SHOWS_NONE("NoDevFiles");
    SHOWS_NONE("none");
    SHOWS_NONE("MIG-0");
    SHOWS_NONE("1,1");
    SHOWS_NONE("0,1,2,0");
}

Test(visible, uuids_may_be_short_and_have_to_be_unambiguous, .timeout = 60)
{
    struct seen all = see(NULL);
    char list[400], one[48], two[48];
    put_uuid(all.uuid[5], 36, one);
    put_uuid(all.uuid[2], 36, two);
    snprintf(list, sizeof list, "%s,%s", one, two);
    SHOWS(list, 5, 2);
    snprintf(list, sizeof list, "%s,%s", one, one);
    SHOWS_NONE(list);
    snprintf(list, sizeof list, "%s,3", one); /* of another kind */
    SHOWS(list, 5);
    snprintf(list, sizeof list, "3,%s", one);
    SHOWS(list, 3);
    snprintf(list, sizeof list, "%s0", one); /* longer than a UUID */
    SHOWS_NONE(list);
    SHOWS_NONE("GPU-");
    SHOWS_NONE("GPU-zz");
    size_t digits = 1;
    for (int other = 0; other < all.count; other++)
        for (put_uuid(all.uuid[5], digits, one), put_uuid(all.uuid[other], digits, two);
             other != 5 && !strcmp(one, two);) {
            digits++;
            put_uuid(all.uuid[5], digits, one);
            put_uuid(all.uuid[other], digits, two);
        }
    SHOWS(one, 5);
    put_uuid(all.uuid[5], digits - 1, one); /* too short by one */
    SHOWS_NONE(one);
}

/* What the process sees when it starts counts. */
Test(visible, later_changes_of_the_variable_change_nothing)
{
    int count;
    CUcontext context;
    setenv("CUDA_VISIBLE_DEVICES", "3", 1);
    machine(MACHINE);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    cr_assert_eq(count, 1);
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate_v2(&context, 0, 1));
    OK(cuCtxCreate_v2(&context, 0, 0));
}

/* Processes that see different cards under the same number share memory of the card, not of the number. */
static void use_imported(const CUipcMemHandle *handle, const char *list, CUresult expected, int device)
{
    pid_t child = fork();
    int status;
    if (child == 0) {
        CUcontext context;
        CUdeviceptr p;
        int ordinal = -1;
        uint32_t value = 0;
        setenv("CUDA_VISIBLE_DEVICES", list, 1);
        if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
            _exit(1);
        CUresult r = cuIpcOpenMemHandle_v2(&p, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (r != expected)
            _exit(2);
        if (r == CUDA_SUCCESS && (cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) ||
                                  ordinal != device || cuMemcpyDtoH_v2(&value, p, 4) || value != 4711))
            _exit(3);
        _exit(0);
    }
    cr_assert(waitpid(child, &status, 0) == child && status == 0, "with '%s' the process ended with 0x%x", list,
              (unsigned)status);
}

Test(visible, memory_of_other_processes_is_of_the_same_card, .timeout = 60)
{
    CUcontext context;
    CUdeviceptr p;
    CUipcMemHandle handle;
    int ready[2], done[2], status;
    char c;
    setenv("SIMGPU", MACHINE, 1);
    cr_assert(pipe(ready) == 0 && pipe(done) == 0);
    pid_t owner = fork();
    if (owner == 0) {
        setenv("CUDA_VISIBLE_DEVICES", "2,1", 1);
        bool fine = !cuInit(0) && !cuCtxCreate_v2(&context, 0, 0) && !cuMemAlloc_v2(&p, 4096) &&
                    !cuMemsetD32_v2(p, 4711, 1024) && !cuCtxSynchronize() && !cuIpcGetMemHandle(&handle, p);
        _exit(fine && write(ready[1], &handle, sizeof handle) == sizeof handle && read(done[0], &c, 1) == 1 ? 0 : 1);
    }
    cr_assert(read(ready[0], &handle, sizeof handle) == sizeof handle);
    use_imported(&handle, "2", CUDA_SUCCESS, 0);
    use_imported(&handle, "0,1,2", CUDA_SUCCESS, 2);
    use_imported(&handle, "3,2", CUDA_SUCCESS, 1);
    use_imported(&handle, "1,0", CUDA_ERROR_MAP_FAILED, 0); /* it does not see that card */
    cr_assert(write(done[1], "x", 1) == 1 && waitpid(owner, &status, 0) == owner && status == 0);
}

/* Copies take the links of the cards that they are between: NVML and the node's counters tell which. */
Test(visible, copies_take_the_links_of_the_cards)
{
    CUcontext context[2];
    CUdeviceptr from, to;
    struct sg_node_counters before, after;
    int (*counters)(int, int, struct sg_node_counters *) =
        (int (*)(int, int, struct sg_node_counters *))dlsym(RTLD_DEFAULT, "sg_node_counters");
    int (*port)(int, int, struct sg_node_port *) =
        (int (*)(int, int, struct sg_node_port *))dlsym(RTLD_DEFAULT, "sg_node_port");
    cr_assert(counters && port);
    setenv("CUDA_VISIBLE_DEVICES", "3,2", 1);
    machine(MACHINE);
    for (int d = 0; d < 2; d++)
        OK(cuCtxCreate_v2(&context[d], 0, d));
    OK(cuMemAlloc_v2(&to, 4 * MIB)); /* of card 2 */
    OK(cuCtxSetCurrent(context[0]));
    OK(cuMemAlloc_v2(&from, 4 * MIB)); /* of card 3 */
    OK(cuCtxEnablePeerAccess(context[1], 0));
    uint64_t sent = 0;
    struct sg_node_port p;
    for (int i = 0; port(3, i, &p) == 0; i++)
        if (p.peer_element == 2 && !counters(3, i, &before))
            sent -= before.bytes;
    OK(cuMemcpyPeer(to, context[1], from, context[0], 4 * MIB));
    OK(cuCtxSynchronize());
    for (int i = 0; port(3, i, &p) == 0; i++)
        if (p.peer_element == 2 && !counters(3, i, &after))
            sent += after.bytes;
    cr_assert_eq(sent, 4 * MIB);
}
