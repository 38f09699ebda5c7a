#include "cli/topo.h"

/* `headroom topo`: options, finding the machine, and the helper that tries copies. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "driver/driver.h"
#include "fabric/measure.h"
#include "fabric/text.h"
#include "fabric/verify.h"

#define RANGE_ALIGN (UINT64_C(2) << 20)

struct options {
    const char *sim, *file, *svg, *report;
    bool measure, json, xml;
};

static void print_help(void)
{
    printf(
        "headroom topo [--sim MACHINE | --file FILE] [--measure] [--json | --xml | --svg FILE]\n"
        "headroom topo --report FILE [--json | --svg FILE]\n"
        "\n"
        "Shows how the GPUs are connected: the matrix that `nvidia-smi topo -m` prints, each GPU's range of global\n"
        "addresses, and the paths of large copies with the bandwidth to expect. What earlier jobs have measured "
        "counts.\n"
        "\n"
        "  --sim MACHINE   of a simulated GPU node, for example dgx1v (`headroom sim --help` says what MACHINE can "
        "be)\n"
        "  --file FILE     of a topology file, without any GPU: NCCL's XML, or such a matrix; FILE.extras is read too\n"
        "  --measure       try and time a copy between every two GPUs now, and keep what it shows for later jobs\n"
        "  --json          everything, for programs\n"
        "  --xml           as NCCL topology XML\n"
        "  --svg FILE      a picture (- = standard output), coloured by the load when every GPU sends to every other\n"
        "  --report FILE   what a job, running or finished, has sent between its GPUs (its stats log), or the traffic\n"
        "                  and the load of each link of a simulated node (its SIMGPU_REPORT)\n"
        "\n"
        "With --probe NS PAIR... it is the helper that headroom starts to try copies; that is not for users.\n");
}

static int parse(int argc, char **argv, struct options *options)
{
    struct {
        const char *flag, **value;
    } texts[] = {
        {"--sim", &options->sim}, {"--file", &options->file}, {"--svg", &options->svg}, {"--report", &options->report}};
    struct {
        const char *flag;
        bool *value;
    } switches[] = {{"--measure", &options->measure}, {"--json", &options->json}, {"--xml", &options->xml}};

    for (int at = 1; at < argc; at++) {
        bool known = false;
        for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
            if (strcmp(argv[at], switches[i].flag) == 0)
                known = *switches[i].value = true;
        }
        for (size_t i = 0; i < sizeof texts / sizeof *texts && !known; i++) {
            size_t length = strlen(texts[i].flag);
            if (strncmp(argv[at], texts[i].flag, length) != 0 || (argv[at][length] && argv[at][length] != '='))
                continue;
            known = true;
            *texts[i].value = argv[at][length] ? argv[at] + length + 1 : at + 1 < argc ? argv[++at] : "";
            if (!**texts[i].value)
                return hr_cli_fail(HR_CLI_USAGE, "topo: %s needs a value (`headroom topo --help`)", texts[i].flag);
        }
        if (!known && argv[at][0] != '-')
            return hr_cli_fail(HR_CLI_USAGE, "topo: '%s' belongs to no flag (`headroom topo --help` lists them)",
                               argv[at]);
        if (!known)
            return hr_cli_fail(HR_CLI_USAGE, "topo: no flag %s (`headroom topo --help` lists them)", argv[at]);
    }
    if ((options->sim != NULL) + (options->file != NULL) + (options->report != NULL) > 1)
        return hr_cli_fail(HR_CLI_USAGE, "topo: only one of --sim, --file and --report can be given");
    if (options->json + options->xml + (options->svg != NULL) > 1 || (options->report && options->xml))
        return hr_cli_fail(HR_CLI_USAGE,
                           "topo: only one of --json, --xml and --svg can be given (--xml not of a report)");
    if (options->measure && (options->file || options->report))
        return hr_cli_fail(HR_CLI_USAGE, "topo: --measure needs GPUs, so --file and --report cannot be given with it");
    return HR_CLI_OK;
}

/* ---- the helper ---- */

/* The timer's signal ends the process, whatever it waits in. 0 = no timer; a part of a microsecond is one, not none. */
static void set_timer(uint64_t wait_ns)
{
    uint64_t wait_us = (wait_ns + 999) / 1000;
    struct itimerval timer = {
        .it_value = {.tv_sec = (time_t)(wait_us / 1000000), .tv_usec = (suseconds_t)(wait_us % 1000000)}};

    setitimer(ITIMER_REAL, &timer, NULL);
}

/* false: another process has to go on behind this item. */
static bool probe_pair(int item, const char *from, const char *to, uint64_t wait_ns)
{
    static const char *const states[] = {"skipped", "good", "corrupts", "hangs", "fails"};
    struct hr_measured measured = {0};
    bool host = strcmp(from, to) == 0;

    bool prepared = hr_measure_prepare(from, to);
    if (prepared) {
        printf("begin %d %" PRIu64 "\n", item, hr_clock_ns());
        fflush(stdout);
        set_timer(wait_ns);
        if (host)
            hr_measure_host(from, &measured);
        else
            hr_measure_path(from, to, &measured);
        set_timer(0);
    }
    printf("end %d %s %" PRIu64 " %" PRIu64 "\n", item, states[measured.state], measured.mbps,
           host ? measured.back_mbps : measured.start_ns);
    fflush(stdout);
    if (!prepared || measured.state == HR_PAIR_GOOD)
        return true;
    set_timer(wait_ns);
    bool goes_on = hr_measure_go_on(from, to);
    set_timer(0);
    return goes_on;
}

/* argv: --probe NS FROM,TO ... */
static int probe(int argc, char **argv)
{
    sigset_t none;
    uint64_t wait_ns;

    signal(SIGALRM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL); /* who asked is gone */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (argc < 2 || !hr_text_unsigned(argv[1], 1, HR_MEASURE_MOST_WAIT_NS, &wait_ns))
        return hr_cli_fail(HR_CLI_USAGE, "topo: --probe NS FROM,TO ...");
    if (!hr_driver_load() || hr_drv.cuInit(0) != CUDA_SUCCESS)
        return HR_CLI_FAILED;
    puts("ready");
    fflush(stdout);
    for (int i = 2; i < argc; i++) {
        char *comma = strchr(argv[i], ',');
        if (!comma)
            return hr_cli_fail(HR_CLI_USAGE, "topo: --probe NS FROM,TO ...");
        *comma = 0;
        if (!probe_pair(i - 2, argv[i], comma + 1, wait_ns))
            break;
    }
    /* Contexts are left to the driver: taking them down could hang where a copy has failed. */
    fflush(stdout);
    _exit(HR_CLI_OK);
}

/* ---- the machine ---- */

static int from_file(const char *path, struct hr_cli_topo *topo)
{
    struct hr_text_error error;

    topo->title = path;
    int rc = hr_discover_file(path, &topo->topology, &error);
    if (rc == -ENOMEM)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    if (rc != 0 && error.line)
        return hr_cli_fail(HR_CLI_FAILED, "%s: line %u: %s", path, error.line, error.text);
    return rc == 0 ? HR_CLI_OK : hr_cli_fail(HR_CLI_FAILED, "%s: %s", path, error.text);
}

static int from_driver(const struct options *options, struct hr_cli_topo *topo)
{
    struct hr_cli_places places;
    struct hr_text_error error;
    const char *name = "an unknown error";
    char self[PATH_MAX];

    topo->title = options->sim ? options->sim : "this machine";
    if (options->sim) {
        hr_cli_find_places(&places);
        int status = hr_cli_simulate(&places, options->sim);
        if (status != HR_CLI_OK)
            return status;
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    hr_verify_use_command(self);
    if (!hr_driver_load())
        return hr_cli_fail(HR_CLI_FAILED, "no CUDA driver (libcuda.so.1) on this machine (--sim MACHINE, --file FILE)");
    CUresult r = hr_drv.cuInit(0);
    if (r != CUDA_SUCCESS) {
        hr_drv.cuGetErrorName(r, &name);
        return hr_cli_fail(HR_CLI_FAILED, "the driver does not start: cuInit gave %s", name);
    }
    int rc = hr_discover_machine(options->measure ? HR_COPIES_ALL : HR_COPIES_KEPT, &topo->found, &error);
    if (rc != 0)
        return hr_cli_fail(HR_CLI_FAILED, "%s", error.text);
    topo->topology = topo->found->topology;
    return HR_CLI_OK;
}

/* Ranges that a source fixed, else one behind the other; none where a size is not known. */
static int make_ranges(struct hr_cli_topo *topo)
{
    uint32_t gpus = topo->topology->gpu_count, fixed = 0, sized = 0;
    uint64_t *sizes = calloc(gpus, sizeof *sizes);
    struct hr_range *ranges = calloc(gpus, sizeof *ranges);
    int rc = sizes && ranges ? 0 : -ENOMEM;

    for (uint32_t i = 0; rc == 0 && i < gpus; i++) {
        const struct hr_element *gpu = &topo->topology->elements[topo->topology->gpus[i]];
        sizes[i] = gpu->memory_bytes;
        ranges[i] = (struct hr_range){gpu->base, gpu->memory_bytes};
        fixed += gpu->has_base;
        sized += gpu->memory_bytes > 0;
    }
    if (rc == 0 && fixed > 0 && fixed < gpus)
        hr_cli_fail(0, "only %" PRIu32 " of %" PRIu32 " GPUs are given a base=: all ranges are laid out without", fixed,
                    gpus);
    if (rc == 0 && sized == gpus)
        rc = fixed == gpus ? hr_ranges_from(ranges, gpus, &topo->ranges)
                           : hr_ranges_layout(sizes, gpus, RANGE_ALIGN, &topo->ranges);
    free(sizes);
    free(ranges);
    return rc;
}

static int complete(struct hr_cli_topo *topo)
{
    topo->links = hr_graph_compile(topo->topology, HR_LINKS_FABRIC);
    topo->everything = hr_graph_compile(topo->topology, HR_LINKS_ALL);
    if (!topo->links || !topo->everything)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    int rc = make_ranges(topo);
    if (rc == -ENOMEM)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    if (rc != 0)
        hr_cli_fail(0, "the GPUs' ranges overlap or do not fit 48 bits");
    return HR_CLI_OK;
}

int hr_cli_topo_route(const struct hr_cli_topo *topo, uint32_t from, uint32_t to, struct hr_routes *routes_out,
                      bool *over_links_out)
{
    int rc = hr_route_large(topo->links, NULL, from, to, routes_out);

    *over_links_out = rc == 0;
    if (rc != -ENETUNREACH)
        return rc;
    return hr_route_large(topo->everything, NULL, from, to, routes_out);
}

bool hr_cli_topo_staged(const struct hr_cli_topo *topo, uint32_t from, uint32_t to)
{
    return topo->found && !hr_pair_usable(topo->found, from, to);
}

/* ---- what is shown ---- */

static int print_json(cJSON *json)
{
    char *text = json ? cJSON_Print(json) : NULL;

    cJSON_Delete(json);
    if (!text)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    puts(text);
    free(text);
    return HR_CLI_OK;
}

static int show(const struct options *options, const struct hr_cli_topo *topo)
{
    if (options->json)
        return print_json(hr_cli_topo_json(topo));
    if (options->svg) {
        struct hr_cli_picture picture = {0};
        int status = hr_cli_topo_picture(topo, &picture);
        if (status == HR_CLI_OK)
            status = hr_cli_picture_write(&picture, options->svg);
        hr_cli_picture_finish(&picture);
        return status;
    }
    if (options->xml) {
        char *text = hr_topology_write_xml(topo->topology);
        if (!text)
            return hr_cli_fail(HR_CLI_FAILED, "out of memory");
        fputs(text, stdout);
        free(text);
        return HR_CLI_OK;
    }
    hr_cli_topo_print(topo);
    return HR_CLI_OK;
}

int hr_cli_topo(int argc, char **argv)
{
    struct options options = {0};
    struct hr_cli_topo topo = {0};

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help();
        return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
    }
    if (argc > 1 && strcmp(argv[1], "--probe") == 0)
        return probe(argc - 1, argv + 1);
    int status = parse(argc, argv, &options);
    if (status != HR_CLI_OK)
        return status;
    if (options.report)
        return hr_cli_topo_report(options.report, options.json, options.svg);
    status = options.file ? from_file(options.file, &topo) : from_driver(&options, &topo);
    if (status == HR_CLI_OK && topo.topology) {
        status = complete(&topo);
        if (status == HR_CLI_OK)
            status = show(&options, &topo);
    }
    hr_ranges_destroy(topo.ranges);
    hr_graph_destroy(topo.links);
    hr_graph_destroy(topo.everything);
    if (topo.found)
        hr_discovery_destroy(topo.found);
    else
        hr_topology_destroy(topo.topology);
    return fflush(stdout) == 0 ? status : HR_CLI_FAILED;
}
