/*
 * The matrix of `nvidia-smi topo -m`. What it tells of PCIe is how far up two GPUs meet, so reading it rebuilds a tree with those
 * meeting points: GPUs that meet at one bridge hang from one, and so on up to the sockets.
 */
#include "fabric/text.h"
#include "fabric/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (16u << 20)
#define MAX_COLUMNS 512 /* GPUs and others */
#define MAX_MATRIX_GPUS 256
#define GPU_LINKS 18 /* more than any GPU has ports: there is a switch */
#define PCIE_GBPS 31.5
#define SOCKET_GBPS 16.0

/* How far up two GPUs meet: the same values serve as bonded links of 0. */
enum meeting { SAME, PIX, PXB, PHB, NODE, SYS, MEETINGS };
static const char *const meeting_names[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};

/* ---- writing ---- */

struct walk {
    uint32_t *from; /* by element: element before, UINT32_MAX = not met */
    uint32_t *queue;
};

static enum meeting meet(const struct hr_topology *topology, uint32_t a, uint32_t b, struct walk *walk)
{
    uint32_t head = 0, tail = 0, bridges = 0, roots = 0, sockets = 0;

    for (uint32_t i = 0; i < topology->element_count; i++)
        walk->from[i] = UINT32_MAX;
    walk->from[a] = a;
    walk->queue[tail++] = a;
    while (head < tail && walk->from[b] == UINT32_MAX) {
        uint32_t at = walk->queue[head++];
        if (at != a && topology->elements[at].kind == HR_ELEMENT_GPU)
            continue;
        for (uint32_t p = 0; p < topology->elements[at].port_count; p++) {
            const struct hr_port *port = &topology->elements[at].ports[p];
            if ((HR_LINKS(port->kind) & HR_LINKS_HOST) && walk->from[port->peer] == UINT32_MAX) {
                walk->from[port->peer] = at;
                walk->queue[tail++] = (uint32_t)port->peer;
            }
        }
    }
    if (walk->from[b] == UINT32_MAX)
        return SYS;
    for (uint32_t at = walk->from[b]; at != a; at = walk->from[at]) {
        bridges += topology->elements[at].kind == HR_ELEMENT_BRIDGE;
        roots += topology->elements[at].kind == HR_ELEMENT_ROOT;
        sockets += topology->elements[at].kind == HR_ELEMENT_SOCKET;
    }
    if (sockets > 1)
        return SYS;
    if (sockets == 1)
        return roots > 1 ? NODE : PHB;
    if (roots > 0)
        return PHB;
    return bridges > 1 ? PXB : PIX;
}

/* All switches that a switch leads to without a GPU between, itself first, into the walk's queue; met before: none. */
static uint32_t switches_from(const struct hr_topology *topology, uint32_t start, struct walk *walk)
{
    uint32_t head = 0, tail = 0;

    if (walk->from[start] != UINT32_MAX)
        return 0;
    walk->from[start] = start;
    walk->queue[tail++] = start;
    while (head < tail) {
        const struct hr_element *at = &topology->elements[walk->queue[head++]];
        for (uint32_t p = 0; p < at->port_count; p++) {
            const struct hr_port *port = &at->ports[p];
            if (!port->up || !(HR_LINKS(port->kind) & HR_LINKS_FABRIC) ||
                topology->elements[port->peer].kind != HR_ELEMENT_SWITCH || walk->from[port->peer] != UINT32_MAX)
                continue;
            walk->from[port->peer] = start;
            walk->queue[tail++] = (uint32_t)port->peer;
        }
    }
    return tail;
}

/* Links between two GPUs, or as many as switches let them share, of which several may be linked to each other. */
static uint32_t bonded(const struct hr_topology *topology, uint32_t a, uint32_t b, struct walk *walk)
{
    uint32_t links = hr_topology_links(topology, a, b, HR_LINKS_FABRIC, NULL);

    for (uint32_t i = 0; i < topology->element_count; i++)
        walk->from[i] = UINT32_MAX;
    for (uint32_t i = 0; i < topology->element_count; i++) {
        uint32_t in = 0, out = 0;
        if (topology->elements[i].kind != HR_ELEMENT_SWITCH)
            continue;
        uint32_t count = switches_from(topology, i, walk);
        for (uint32_t k = 0; k < count; k++) {
            in += hr_topology_links(topology, a, walk->queue[k], HR_LINKS_FABRIC, NULL);
            out += hr_topology_links(topology, walk->queue[k], b, HR_LINKS_FABRIC, NULL);
        }
        links += in < out ? in : out;
    }
    return links;
}

static void relation(const struct hr_topology *topology, uint32_t gpu_a, uint32_t gpu_b, struct walk *walk,
                     char *text_out)
{
    uint32_t a = topology->gpus[gpu_a], b = topology->gpus[gpu_b];
    uint32_t links = gpu_a == gpu_b ? 0 : bonded(topology, a, b, walk);

    if (links)
        snprintf(text_out, 16, "NV%u", links);
    else
        snprintf(text_out, 16, "%s", meeting_names[gpu_a == gpu_b ? SAME : meet(topology, a, b, walk)]);
}

static bool walk_init(struct walk *walk, const struct hr_topology *topology)
{
    walk->from = calloc(topology->element_count + 1, sizeof *walk->from);
    walk->queue = calloc(topology->element_count + 1, sizeof *walk->queue);
    return walk->from && walk->queue;
}

static void walk_finish(struct walk *walk)
{
    free(walk->from);
    free(walk->queue);
}

void hr_topology_relation(const struct hr_topology *topology, uint32_t gpu_a, uint32_t gpu_b, char *text_out)
{
    struct walk walk;

    if (walk_init(&walk, topology))
        relation(topology, gpu_a, gpu_b, &walk, text_out);
    else
        snprintf(text_out, 16, "?");
    walk_finish(&walk);
}

/* NUMA node of the nearest socket, -1 = not known. */
static int numa_of(const struct hr_topology *topology, uint32_t element, struct walk *walk)
{
    uint32_t head = 0, tail = 0;

    for (uint32_t i = 0; i < topology->element_count; i++)
        walk->from[i] = UINT32_MAX;
    walk->from[element] = element;
    walk->queue[tail++] = element;
    while (head < tail) {
        const struct hr_element *at = &topology->elements[walk->queue[head++]];
        if (at->kind == HR_ELEMENT_SOCKET)
            return at->numa;
        for (uint32_t p = 0; p < at->port_count; p++) {
            if (at->ports[p].kind == HR_LINK_PCIE && walk->from[at->ports[p].peer] == UINT32_MAX) {
                walk->from[at->ports[p].peer] = 0;
                walk->queue[tail++] = (uint32_t)at->ports[p].peer;
            }
        }
    }
    return -1;
}

char *hr_topology_print_matrix(const struct hr_topology *topology)
{
    struct hr_text text = {0};
    struct walk walk;
    char cell[16];

    if (!walk_init(&walk, topology)) {
        walk_finish(&walk);
        return NULL;
    }
    for (uint32_t i = 0; i < topology->gpu_count; i++)
        hr_text_add(&text, "\tGPU%u", i);
    hr_text_add(&text, "\tNUMA Affinity\n");
    for (uint32_t i = 0; i < topology->gpu_count; i++) {
        hr_text_add(&text, "GPU%u", i);
        for (uint32_t j = 0; j < topology->gpu_count; j++) {
            relation(topology, i, j, &walk, cell);
            hr_text_add(&text, i == j ? "\t %s " : "\t%s", cell);
        }
        int numa = numa_of(topology, topology->gpus[i], &walk);
        if (numa >= 0)
            hr_text_add(&text, "\t%d\n", numa);
        else
            hr_text_add(&text, "\tN/A\n");
    }
    walk_finish(&walk);
    return hr_text_take(&text);
}

/* ---- reading ---- */

struct matrix {
    uint32_t gpus;
    uint32_t columns;
    int32_t column_gpu[MAX_COLUMNS];                 /* -1 = something else */
    uint16_t cell[MAX_MATRIX_GPUS][MAX_MATRIX_GPUS]; /* links << 3, else a meeting */
    bool row[MAX_MATRIX_GPUS];
    int32_t numa[MAX_MATRIX_GPUS];
    int32_t numa_column; /* -1 = none */
};

/* The next cell of a line without the blanks around it; false at the end. */
static bool next_cell(const char **at, const char *end, char *cell_out, size_t room)
{
    const char *begin = *at, *stop = begin;

    if (begin > end)
        return false;
    while (stop < end && *stop != '\t')
        stop++;
    *at = stop + 1;
    while (begin < stop && (*begin == ' ' || *begin == '\r'))
        begin++;
    while (stop > begin && (stop[-1] == ' ' || stop[-1] == '\r'))
        stop--;
    size_t length = (size_t)(stop - begin) < room - 1 ? (size_t)(stop - begin) : room - 1;
    memcpy(cell_out, begin, length);
    cell_out[length] = 0;
    return true;
}

static int gpu_of(const char *name)
{
    uint64_t number;

    if (strncmp(name, "GPU", 3) != 0 || !hr_text_unsigned(name + 3, 0, MAX_MATRIX_GPUS - 1, &number))
        return -1;
    return (int)number;
}

static int read_header(const char *at, const char *end, struct matrix *matrix, uint32_t line,
                       struct hr_text_error *error_out)
{
    char cell[32];
    bool devices = true;

    matrix->numa_column = -1;
    next_cell(&at, end, cell, sizeof cell); /* above the names of the rows */
    for (uint32_t column = 0; next_cell(&at, end, cell, sizeof cell); column++) {
        int gpu = gpu_of(cell);
        if (strcmp(cell, "NUMA Affinity") == 0)
            matrix->numa_column = (int32_t)column;
        if (strcmp(cell, "CPU Affinity") == 0 || strcmp(cell, "NUMA Affinity") == 0)
            devices = false;
        if (!devices || !*cell)
            continue;
        if (column >= MAX_COLUMNS)
            return hr_text_refuse(error_out, line, "more than %d columns", MAX_COLUMNS);
        if (gpu >= 0 && (uint32_t)gpu != matrix->gpus)
            return hr_text_refuse(error_out, line,
                                  "column GPU%d where GPU%u belongs; accepted: GPU0, GPU1, ... in order", gpu,
                                  matrix->gpus);
        while (matrix->columns < column)
            matrix->column_gpu[matrix->columns++] = -1;
        matrix->column_gpu[matrix->columns++] = gpu;
        matrix->gpus += gpu >= 0;
    }
    return 0;
}

static bool read_relation(const char *cell, uint16_t *value_out)
{
    uint64_t links;

    if (strncmp(cell, "NV", 2) == 0 && hr_text_unsigned(cell + 2, 1, 64, &links)) {
        *value_out = (uint16_t)(links << 3);
        return true;
    }
    for (int i = 0; i < MEETINGS; i++) {
        if (strcmp(cell, meeting_names[i]) == 0) {
            *value_out = (uint16_t)i;
            return true;
        }
    }
    return false;
}

static int read_row(const char *at, const char *end, struct matrix *matrix, uint32_t row, uint32_t line,
                    struct hr_text_error *error_out)
{
    char cell[32];
    uint32_t column = 0;
    uint64_t numa;

    if (matrix->row[row])
        return hr_text_refuse(error_out, line, "a second row GPU%u; accepted: one each", row);
    matrix->row[row] = true;
    matrix->numa[row] = -1;
    for (; next_cell(&at, end, cell, sizeof cell); column++) {
        if ((int32_t)column == matrix->numa_column && hr_text_unsigned(cell, 0, 1023, &numa))
            matrix->numa[row] = (int32_t)numa;
        if (column >= matrix->columns || matrix->column_gpu[column] < 0)
            continue;
        uint32_t other = (uint32_t)matrix->column_gpu[column];
        if (!read_relation(cell, &matrix->cell[row][other]) || (matrix->cell[row][other] == SAME) != (row == other))
            return hr_text_refuse(error_out, line, "\"%s\" in row GPU%u, column GPU%u; accepted: %s", cell, row, other,
                                  row == other ? "X" : "NV1 to NV64, PIX, PXB, PHB, NODE, SYS");
    }
    if (column < matrix->columns)
        return hr_text_refuse(error_out, line, "row GPU%u ends after %u of %u cells; accepted: a cell for every column",
                              row, column, matrix->columns);
    return 0;
}

static int read_lines(const char *text, const char *text_end, struct matrix *matrix, struct hr_text_error *error_out)
{
    uint32_t line = 0;

    for (const char *at = text; at < text_end;) {
        const char *end = memchr(at, '\n', (size_t)(text_end - at));
        const char *cells = at;
        char first[32];
        int rc = 0;
        end = end ? end : text_end;
        line++;
        next_cell(&cells, end, first, sizeof first);
        int gpu = gpu_of(first);
        if (matrix->gpus == 0 && memmem(at, (size_t)(end - at), "\tGPU0", 5)) {
            rc = read_header(at, end, matrix, line, error_out);
        } else if (gpu >= 0 && (uint32_t)gpu < matrix->gpus) {
            rc = read_row(cells, end, matrix, (uint32_t)gpu, line, error_out);
        } else if (gpu >= 0) {
            rc = hr_text_refuse(error_out, line, "row GPU%d without a column; accepted: a first line of columns", gpu);
        }
        if (rc != 0)
            return rc;
        at = end + 1;
    }
    if (matrix->gpus == 0)
        return hr_text_refuse(error_out, 0,
                              "no line with a column GPU0; accepted: NCCL's XML, or what `nvidia-smi topo -m` prints");
    for (uint32_t i = 0; i < matrix->gpus; i++) {
        if (!matrix->row[i])
            return hr_text_refuse(error_out, 0, "no row GPU%u; accepted: a row for every column", i);
        for (uint32_t j = 0; j < i; j++) {
            if (matrix->cell[i][j] != matrix->cell[j][i])
                return hr_text_refuse(error_out, 0, "GPU%u and GPU%u are related differently in their two rows", j, i);
        }
    }
    return 0;
}

/* ---- the tree that a matrix tells of ---- */

struct build {
    const struct matrix *matrix;
    struct hr_topology *topology;
    uint32_t socket[MAX_MATRIX_GPUS];             /* by GPU: lowest of those that it may share a socket with */
    bool apart[MAX_MATRIX_GPUS][MAX_MATRIX_GPUS]; /* by lowest GPUs: a relation says that they share none */
    uint32_t group[MEETINGS][MAX_MATRIX_GPUS]; /* by level and GPU: lowest GPU that it meets at that level or below */
    int at[MEETINGS][MAX_MATRIX_GPUS];         /* by level and lowest GPU: its element; -1 = none */
};

static void share_socket(struct build *build, uint32_t i, uint32_t j)
{
    uint32_t a = build->socket[i], b = build->socket[j];
    uint32_t to = a < b ? a : b, from = a < b ? b : a;

    if (to == from)
        return;
    for (uint32_t k = 0; k < build->matrix->gpus; k++) {
        build->socket[k] = build->socket[k] == from ? to : build->socket[k];
        if (build->apart[from][k])
            build->apart[to][k] = build->apart[k][to] = true;
    }
}

/* Where a matrix does not name the sockets, as virtual machines do not: those share one of which no relation says that they do not. */
static void guess_sockets(struct build *build)
{
    const struct matrix *matrix = build->matrix;

    for (uint32_t i = 0; i < matrix->gpus; i++)
        build->socket[i] = i;
    for (uint32_t i = 0; i < matrix->gpus; i++) {
        for (uint32_t j = 0; j < i; j++)
            build->apart[i][j] = build->apart[j][i] = matrix->cell[i][j] == SYS;
    }
    for (uint32_t i = 0; i < matrix->gpus; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (matrix->cell[i][j] < SYS)
                share_socket(build, i, j);
        }
    }
    for (uint32_t i = 0; i < matrix->gpus; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (matrix->cell[i][j] >= MEETINGS && !build->apart[build->socket[i]][build->socket[j]])
                share_socket(build, i, j);
        }
    }
}

/* What hides behind a bonded link: the sockets tell. */
static enum meeting meeting_of(const struct build *build, uint32_t i, uint32_t j)
{
    const struct matrix *matrix = build->matrix;

    if (matrix->cell[i][j] < MEETINGS)
        return (enum meeting)matrix->cell[i][j];
    if (matrix->numa[i] < 0 && matrix->numa[j] < 0)
        return build->socket[i] == build->socket[j] ? PHB : SYS;
    return matrix->numa[i] == matrix->numa[j] ? PHB : SYS;
}

static void group_up(struct build *build)
{
    const struct matrix *matrix = build->matrix;

    guess_sockets(build);
    for (int level = PIX; level < SYS; level++) {
        uint32_t *group = build->group[level];
        for (uint32_t i = 0; i < matrix->gpus; i++)
            group[i] = i;
        for (uint32_t i = 0; i < matrix->gpus; i++) {
            for (uint32_t j = 0; j < i; j++) {
                if (meeting_of(build, i, j) > (enum meeting)level || group[i] == group[j])
                    continue;
                uint32_t from = group[i] > group[j] ? group[i] : group[j];
                uint32_t to = group[i] > group[j] ? group[j] : group[i];
                for (uint32_t k = 0; k < matrix->gpus; k++)
                    group[k] = group[k] == from ? to : group[k];
            }
        }
    }
}

/* Whether the group of `gpu` at a level falls into several of the level below, or for PIX holds several GPUs. */
static bool splits(const struct build *build, enum meeting level, uint32_t gpu)
{
    for (uint32_t i = 0; i < build->matrix->gpus; i++) {
        if (build->group[level][i] != build->group[level][gpu])
            continue;
        uint32_t below = level == PIX ? i : build->group[level - 1][i];
        if (below != (level == PIX ? gpu : build->group[level - 1][gpu]))
            return true;
    }
    return false;
}

static bool needs_element(const struct build *build, enum meeting level, uint32_t gpu)
{
    switch (level) {
    case NODE: return true;
    case PHB: return splits(build, NODE, gpu);
    case PXB: return splits(build, PXB, gpu);
    default: return splits(build, PIX, gpu) || splits(build, PXB, gpu);
    }
}

/* One GPU with everything above it that is not there yet, from the socket down. */
static int hang(struct build *build, uint32_t gpu)
{
    static const enum hr_element_kind kinds[] = {
        [PIX] = HR_ELEMENT_BRIDGE, [PXB] = HR_ELEMENT_BRIDGE, [PHB] = HR_ELEMENT_ROOT, [NODE] = HR_ELEMENT_SOCKET};
    uint32_t latency_ns = hr_topology_default_latency_ns(HR_LINK_PCIE);
    int above = -1, rc = 0;

    for (int level = NODE; rc == 0 && level >= PIX; level--) {
        int *at = &build->at[level][build->group[level][gpu]];
        if (!needs_element(build, (enum meeting)level, gpu))
            continue;
        if (*at < 0) {
            *at = hr_topology_add(build->topology, kinds[level], NULL);
            if (*at < 0)
                return *at;
            build->topology->elements[*at].numa = build->matrix->numa[gpu];
            if (above >= 0)
                rc = hr_topology_join(build->topology, (uint32_t)above, (uint32_t)*at, HR_LINK_PCIE, 1, PCIE_GBPS,
                                      latency_ns);
        }
        above = *at;
    }
    if (rc != 0)
        return rc;
    return hr_topology_join(build->topology, (uint32_t)above, gpu, HR_LINK_PCIE, 1, PCIE_GBPS, latency_ns);
}

static int join_sockets(struct hr_topology *topology)
{
    for (uint32_t i = 0; i < topology->element_count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (topology->elements[i].kind != HR_ELEMENT_SOCKET || topology->elements[j].kind != HR_ELEMENT_SOCKET)
                continue;
            int rc = hr_topology_join(topology, j, i, HR_LINK_SOCKET, 1, SOCKET_GBPS,
                                      hr_topology_default_latency_ns(HR_LINK_SOCKET));
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* GPUs with more bonded links than ports share a switch with all that they are linked to. */
static int join_through_switch(struct build *build, uint32_t gpu, double gbps, bool *switched,
                               struct hr_text_error *error_out)
{
    const struct matrix *matrix = build->matrix;
    uint32_t links = 0;
    int element = hr_topology_add(build->topology, HR_ELEMENT_SWITCH, NULL);

    for (uint32_t i = 0; i < matrix->gpus; i++)
        links = i != gpu && matrix->cell[gpu][i] >= MEETINGS ? matrix->cell[gpu][i] >> 3 : links;
    for (uint32_t i = 0; element >= 0 && i < matrix->gpus; i++) {
        if (i != gpu && matrix->cell[gpu][i] < MEETINGS)
            continue;
        for (uint32_t j = 0; j < matrix->gpus; j++) {
            bool member = j == gpu || matrix->cell[gpu][j] >= MEETINGS;
            uint32_t told = matrix->cell[i][j] >= MEETINGS ? matrix->cell[i][j] >> 3 : 0;
            if (i != j && told != (member ? links : 0))
                return hr_text_refuse(
                    error_out, 0, "GPU%u has more than %d links, but not as many to each of its peers", gpu, GPU_LINKS);
        }
        switched[i] = true;
        int rc = hr_topology_join(build->topology, i, (uint32_t)element, HR_LINK_NVLINK, links, gbps,
                                  hr_topology_default_latency_ns(HR_LINK_NVLINK) / 2);
        if (rc != 0)
            return rc;
    }
    return element < 0 ? element : 0;
}

static int join_links(struct build *build, double gbps, struct hr_text_error *error_out)
{
    const struct matrix *matrix = build->matrix;
    bool switched[MAX_MATRIX_GPUS] = {false};
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < matrix->gpus; i++) {
        uint32_t links = 0;
        for (uint32_t j = 0; j < matrix->gpus; j++)
            links += matrix->cell[i][j] >> 3;
        if (links > GPU_LINKS && !switched[i])
            rc = join_through_switch(build, i, gbps, switched, error_out);
    }
    for (uint32_t i = 0; rc == 0 && i < matrix->gpus; i++) {
        for (uint32_t j = i + 1; rc == 0 && !switched[i] && j < matrix->gpus; j++)
            rc = hr_topology_join(build->topology, i, j, HR_LINK_NVLINK, matrix->cell[i][j] >> 3, gbps,
                                  hr_topology_default_latency_ns(HR_LINK_NVLINK));
    }
    return rc;
}

/* A matrix whose relations cannot be those of a tree is refused: what would be printed is compared with what was read. */
static int compare(const struct build *build, struct hr_text_error *error_out)
{
    char want[16], have[16];

    for (uint32_t i = 0; i < build->matrix->gpus; i++) {
        for (uint32_t j = 0; j < i; j++) {
            uint16_t cell = build->matrix->cell[i][j];
            if (cell >= MEETINGS)
                snprintf(want, sizeof want, "NV%u", cell >> 3);
            else
                snprintf(want, sizeof want, "%s", meeting_names[cell]);
            hr_topology_relation(build->topology, i, j, have);
            if (strcmp(want, have) != 0)
                return hr_text_refuse(error_out, 0, "GPU%u and GPU%u: %s, but what they share with others makes it %s",
                                      j, i, want, have);
        }
    }
    return 0;
}

static int build(const struct matrix *matrix, double gbps, struct hr_topology *topology,
                 struct hr_text_error *error_out)
{
    struct build *build = calloc(1, sizeof *build);
    int rc = build ? 0 : -ENOMEM;

    if (rc != 0)
        return rc;
    build->matrix = matrix;
    build->topology = topology;
    memset(build->at, 0xff, sizeof build->at);
    group_up(build);
    for (uint32_t i = 0; rc == 0 && i < matrix->gpus; i++) {
        rc = hr_topology_add(topology, HR_ELEMENT_GPU, NULL);
        rc = rc < 0 ? rc : 0;
    }
    for (uint32_t i = 0; rc == 0 && i < matrix->gpus; i++)
        rc = hang(build, i);
    if (rc == 0)
        rc = join_sockets(topology);
    if (rc == 0)
        rc = join_links(build, gbps, error_out);
    if (rc == -E2BIG || rc == -EINVAL)
        rc = error_out && error_out->text[0] && rc == -EINVAL
                 ? rc
                 : hr_text_refuse(error_out, 0, "more links than an element can have; accepted: %d",
                                  HR_TOPOLOGY_MAX_PORTS);
    if (rc == 0)
        rc = compare(build, error_out);
    free(build);
    return rc;
}

/* `nvidia-smi` underlines its header with escape sequences; they are left out. The copy is the caller's. */
static char *without_escapes(const char *text, size_t bytes, size_t *bytes_out)
{
    char *plain = calloc(bytes + 1, 1);
    size_t count = 0;

    for (size_t i = 0; plain && i < bytes; i++) {
        if (text[i] == '\033' && i + 1 < bytes && text[i + 1] == '[') {
            for (i += 2; i < bytes && (text[i] < '@' || text[i] > '~');)
                i++;
        } else {
            plain[count++] = text[i];
        }
    }
    *bytes_out = count;
    return plain;
}

int hr_topology_read_matrix(const char *text, size_t bytes, double link_gbps, struct hr_topology **topology_out,
                            struct hr_text_error *error_out)
{
    if (bytes > MAX_BYTES)
        return hr_text_refuse(error_out, 0, "%zu bytes; accepted: at most %u", bytes, MAX_BYTES);
    struct matrix *matrix = calloc(1, sizeof *matrix);
    char *plain = without_escapes(text, bytes, &bytes);
    struct hr_topology *topology = hr_topology_create();
    int rc = matrix && plain && topology ? 0 : -ENOMEM;
    if (rc == 0)
        rc = read_lines(plain, plain + bytes, matrix, error_out);
    if (rc == 0)
        rc = build(matrix, link_gbps > 0 ? link_gbps : 25, topology, error_out);
    free(matrix);
    free(plain);
    if (rc != 0) {
        hr_topology_destroy(topology);
        return rc;
    }
    *topology_out = topology;
    return 0;
}
