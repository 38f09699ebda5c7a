#include "cli/doctor.h"

/*
 * The driver, asked by a process of its own that tells its findings by a pipe: a line is a level's number, the topic, the advice
 * and the text, with tabs in between; a line that begins with '@' says what it is about to do, for when it never returns, and
 * nothing at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "driver/driver.h"

#define OLDEST 11040
#define FIRST_WITH_HOST_CHUNKS 12020
#define FIRST_WITH_PARAMETERS 12040
#define FIRST_WITH_HOST_AS_SUCH 13000
#define MOST_GPUS 64
#define MIB ((double)(1 << 20))

static int told; /* the pipe's end, in the process that asks */

__attribute__((format(printf, 4, 5))) static void tell(enum hr_doctor_level level, const char *topic,
                                                       const char *advice, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\t')
            *c = ' ';
    dprintf(told, "%d\t%s\t%s\t%s\n", (int)level, topic, advice ? advice : "", text);
}

static void about_to(const char *what)
{
    dprintf(told, "@%s\n", what);
}

/* ---- in that process ---- */

static const char *error_name(CUresult error)
{
    static char number[32];
    const char *name = NULL;
    if (hr_drv.cuGetErrorName(error, &name) == CUDA_SUCCESS && name)
        return name;
    snprintf(number, sizeof number, "error %d", (int)error);
    return number;
}

static void tell_version(void)
{
    const char *path = hr_driver_path();
    int version = hr_driver_version(), major = version / 1000, minor = version % 1000 / 10;
    if (version < OLDEST)
        tell(HR_DOCTOR_BAD, "driver", "a driver of CUDA 11.4 or later, best of 12.4 or later",
             "%s is CUDA %d.%d, which headroom is not made for", path, major, minor);
    else if (version < FIRST_WITH_PARAMETERS && !HR_HAS(cuFuncGetParamInfo))
        tell(HR_DOCTOR_NOTE, "driver", "a driver of CUDA 12.4 or later",
             "%s is CUDA %d.%d: it does not tell the parameters of kernels, which are read from the code that a job "
             "loads",
             path, major, minor);
    else
        tell(HR_DOCTOR_OK, "driver", NULL, "%s, CUDA %d.%d", path, major, minor);
}

/* What the driver's own library needs of the kernel's side; a driver that needs none of it starts. */
static void tell_device_files(void)
{
    static const char *const paths[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg"};
    if (access(paths[2], F_OK) == 0) /* of WSL, in place of the others */
        return;
    for (int i = 0; i < 2; i++)
        if (access(paths[i], R_OK | W_OK) != 0)
            tell(HR_DOCTOR_BAD, "driver",
                 errno == ENOENT ? "load the kernel's modules (modprobe nvidia-uvm); of a container: --gpus all"
                                 : "permission to open it, as a group of this user",
                 "%s: %s", paths[i], strerror(errno));
}

static bool start_driver(void)
{
    about_to("load the driver");
    if (!hr_driver_load()) {
        tell(HR_DOCTOR_BAD, "driver",
             "install the vendor's driver, or name it in HEADROOM_DRIVER; without a GPU: --sim h200",
             "there is no libcuda.so.1");
        return false;
    }
    tell_version();
    about_to("start the driver (cuInit)");
    CUresult r = hr_drv.cuInit(0);
    if (r == CUDA_SUCCESS)
        return true;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (r == CUDA_ERROR_NO_DEVICE && visible)
        tell(HR_DOCTOR_BAD, "driver", "CUDA_VISIBLE_DEVICES: the list ends at its first entry that is no GPU here",
             "cuInit gives %s, with CUDA_VISIBLE_DEVICES=%s", error_name(r), visible);
    else
        tell(HR_DOCTOR_BAD, "driver", NULL, "cuInit gives %s", error_name(r));
    tell_device_files();
    return false;
}

static int attribute(CUdevice device, CUdevice_attribute which, int otherwise)
{
    int value = otherwise;
    return hr_drv.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : otherwise;
}

static bool can_make(CUmemLocation location)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
    CUmemGenericAllocationHandle handle;
    size_t bytes = 0;
    if (!HR_HAS(cuMemCreate) ||
        hr_drv.cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS ||
        hr_drv.cuMemCreate(&handle, bytes, &prop, 0) != CUDA_SUCCESS)
        return false;
    hr_drv.cuMemRelease(handle);
    return true;
}

/* By trying, in the order in which the library does: what attributes promise some containers refuse. */
static void tell_host_chunks(CUdevice device)
{
    int version = hr_driver_version(), node = attribute(device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0);
    if (version >= FIRST_WITH_HOST_CHUNKS &&
        can_make((CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node < 0 ? 0 : node}))
        tell(HR_DOCTOR_OK, "host", NULL, "kernels can use what was moved out where it is, in host memory of node %d",
             node < 0 ? 0 : node);
    else if (version >= FIRST_WITH_HOST_AS_SUCH && can_make((CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}))
        tell(HR_DOCTOR_OK, "host", NULL, "kernels can use what was moved out where it is, in host memory");
    else
        tell(HR_DOCTOR_WARN, "host",
             version >= FIRST_WITH_HOST_CHUNKS ? "in a container: --cap-add SYS_NICE"
                                               : "a driver of CUDA 12.2 or later",
             "the driver makes no chunks in host memory here: all that one kernel uses has to fit into VRAM at once");
}

/* Contexts on all GPUs: drivers of 12.2 and 12.3 make chunks in host memory only then. */
static void try_contexts(int count, const CUdevice *device)
{
    CUcontext context[MOST_GPUS];
    int made = 0;
    about_to("make contexts and a chunk of host memory");
    for (; made < count; made++) {
        CUresult r = hr_drv.cuCtxCreate_v2(&context[made], 0, device[made]);
        if (r == CUDA_SUCCESS)
            continue;
        tell(HR_DOCTOR_BAD, "gpu", "nvidia-smi shows who uses it, and its compute mode",
             "no context can be made on GPU %d: %s", made, error_name(r));
        break;
    }
    if (made > 0)
        tell_host_chunks(device[0]);
    while (made-- > 0)
        hr_drv.cuCtxDestroy_v2(context[made]);
}

static void tell_gpu(int number, CUdevice device)
{
    char name[256] = "";
    size_t bytes = 0;
    hr_drv.cuDeviceGetName(name, sizeof name - 1, device);
    hr_drv.cuDeviceTotalMem_v2(&bytes, device);
    if (!attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0))
        tell(HR_DOCTOR_BAD, "gpu", "a GPU of the Pascal generation or later, and a driver in its usual mode",
             "GPU %d (%s) cannot map memory at chosen addresses", number, name);
    else if (attribute(device, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0))
        tell(HR_DOCTOR_NOTE, "gpu", NULL, "GPU %d (%s) uses the host's memory: there is nothing to move", number, name);
    else
        tell(HR_DOCTOR_OK, "gpu", NULL, "GPU %d (%s) has %.0f MiB and maps memory at chosen addresses", number, name,
             (double)bytes / MIB);
    if (attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT) == CU_COMPUTEMODE_PROHIBITED)
        tell(HR_DOCTOR_BAD, "gpu", "nvidia-smi -c 0", "GPU %d is in the mode that prohibits contexts", number);
}

static void tell_peers(int count, const CUdevice *device)
{
    int reach = 0, atomics = 0, pairs = count * (count - 1);
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++) {
            int can = 0, native = 0;
            if (a == b || hr_drv.cuDeviceCanAccessPeer(&can, device[a], device[b]) != CUDA_SUCCESS || !can)
                continue;
            reach++;
            if (hr_drv.cuDeviceGetP2PAttribute(&native, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, device[a],
                                               device[b]) == CUDA_SUCCESS &&
                native)
                atomics++;
        }
    if (pairs > 0)
        tell(reach == pairs ? HR_DOCTOR_OK : HR_DOCTOR_NOTE, "peers",
             "`headroom topo` shows the ways, `headroom topo --measure` tries them",
             "of %d pairs of GPUs %d reach the other's memory, %d of them with atomics", pairs, reach, atomics);
}

static void ask(void)
{
    CUdevice device[MOST_GPUS];
    int count = 0, got = 0;
    if (!start_driver() || hr_drv.cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return;
    count = count < MOST_GPUS ? count : MOST_GPUS;
    for (int i = 0; i < count; i++)
        if (hr_drv.cuDeviceGet(&device[got], i) == CUDA_SUCCESS)
            got++;
    for (int i = 0; i < got; i++)
        tell_gpu(i, device[i]);
    if (got == 0) {
        tell(HR_DOCTOR_BAD, "gpu", "CUDA_VISIBLE_DEVICES", "the driver shows no GPU");
        return;
    }
    tell_peers(got, device);
    try_contexts(got, device);
}

/* ---- what it exports ---- */

struct names {
    char (*at)[96];
    size_t count, room;
};

static void keep(const char *name, void *arg)
{
    struct names *names = arg;
    if (names->count == names->room) {
        size_t room = names->room ? 2 * names->room : 1024;
        char(*more)[96] = realloc(names->at, room * sizeof *more);
        if (!more)
            return;
        names->at = more;
        names->room = room;
    }
    snprintf(names->at[names->count++], sizeof *names->at, "%s", name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Such a function reaches the driver without headroom; jobs only call it if they were made for that driver. */
static void exports(const char *shim)
{
    struct names ours = {0}, theirs = {0};
    char missing[2048] = "";
    size_t count = 0;
    if (hr_elf_symbols(shim, "cu", keep, &ours) && hr_elf_symbols(hr_driver_path(), "cu", keep, &theirs)) {
        qsort(ours.at, ours.count, sizeof *ours.at, by_name);
        for (size_t i = 0; i < theirs.count; i++) {
            if (ours.count && bsearch(theirs.at[i], ours.at, ours.count, sizeof *ours.at, by_name))
                continue;
            size_t used = strlen(missing);
            if (used + strlen(theirs.at[i]) + sizeof ", and more" < sizeof missing)
                snprintf(missing + used, sizeof missing - used, "%s%s", count ? ", " : "", theirs.at[i]);
            else if (!strstr(missing, ", and more"))
                strcat(missing, ", and more");
            count++;
        }
        if (count == 0)
            tell(HR_DOCTOR_OK, "exports", NULL, "all %zu functions of the driver go through headroom", theirs.count);
        else
            tell(HR_DOCTOR_NOTE, "exports", "a version of headroom for that driver, if a job uses them",
                 "%zu of the driver's %zu functions are not known here: %s", count, theirs.count, missing);
    } else {
        tell(HR_DOCTOR_NOTE, "exports", NULL, "what the driver exports cannot be compared: a file cannot be read");
    }
    free(ours.at);
    free(theirs.at);
}

/* ---- in the command ---- */

struct listener {
    struct hr_doctor *doctor;
    char line[8192];
    size_t used;
    char doing[256]; /* "" at the end */
};

static void hear_line(struct listener *l)
{
    char *field[4] = {l->line};
    if (l->line[0] == '@') {
        snprintf(l->doing, sizeof l->doing, "%s", l->line + 1);
        return;
    }
    for (int i = 1; i < 4; i++) {
        char *tab = strchr(field[i - 1], '\t');
        if (!tab)
            return;
        *tab = '\0';
        field[i] = tab + 1;
    }
    int level = field[0][0] - '0';
    if (level < 0 || level >= HR_DOCTOR_LEVELS)
        return;
    hr_doctor_say(l->doctor, (enum hr_doctor_level)level, field[1], field[2][0] ? field[2] : NULL, "%s", field[3]);
}

static void hear(struct listener *l, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '\n' && l->used + 1 < sizeof l->line) {
            l->line[l->used++] = bytes[i];
            continue;
        }
        l->line[l->used] = '\0';
        l->used = 0;
        hear_line(l);
    }
}

/* true: it has ended by itself, or at least has nothing more to say. */
static bool listen_to(struct listener *l, int fd, unsigned deadline_s)
{
    uint64_t deadline_ns = hr_clock_ns() + deadline_s * UINT64_C(1000000000);
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t now_ns = hr_clock_ns();
        int ready = now_ns < deadline_ns ? poll(&p, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        char bytes[4096];
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return true;
        hear(l, bytes, (size_t)n);
    }
}

void hr_doctor_driver(struct hr_doctor *doctor, const char *shim, unsigned deadline_s)
{
    struct listener listener = {.doctor = doctor};
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "driver", NULL, "no pipe: %s", strerror(errno));
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        told = ends[1];
        ask();
        about_to("compare what the driver exports");
        if (shim[0] && hr_driver_load())
            exports(shim);
        about_to("");
        _exit(0);
    }
    close(ends[1]);
    bool ended = child > 0 && listen_to(&listener, ends[0], deadline_s);
    close(ends[0]);
    if (child < 0) {
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "driver", NULL, "no process to ask it: %s", strerror(errno));
        return;
    }
    if (!ended) {
        kill(child, SIGKILL); /* what sleeps in the kernel is left there */
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "driver",
                      "nvidia-smi, and the kernel's log (dmesg), for errors of the GPU",
                      "it has not answered for %u s; it was about to %s", deadline_s, listener.doing);
        return;
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "driver", NULL, "it crashed (signal %d); it was about to %s",
                      WTERMSIG(status), listener.doing);
    else if (listener.doing[0])
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "driver", NULL, "it ended the process (status %d); it was about to %s",
                      WEXITSTATUS(status), listener.doing);
}
