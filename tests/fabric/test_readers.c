/*
 * Readers of text are given what nobody wrote: the sample files with bytes, lines and pieces changed, removed and repeated, from a
 * fixed seed. Whatever comes out must be a machine or one clear line. Under AddressSanitizer a stray access ends the test.
 * HEADROOM_TEST_LONG=1 goes on a hundred times as long.
 */
#include "machine.h"

#include <string.h>

TestSuite(readers, .timeout = 600);

static const char *const machines[] = {"dgx1v", "mi250x", "a100x4", "hgx-h100", "mi300x", "square4", "pcie8"};
#define ROOM (1 << 16)

static uint32_t rounds(uint32_t usual)
{
    return getenv("HEADROOM_TEST_LONG") ? usual * 100 : usual;
}

static const char *const pieces[] = {"<pci ",
                                     "</pci>",
                                     "<gpu ",
                                     "/>",
                                     "\"",
                                     "count=\"64\"",
                                     "-1",
                                     "4294967296",
                                     "0x0604",
                                     "NV18",
                                     "GPU0",
                                     "\t",
                                     "\n",
                                     "SYS",
                                     "X",
                                     "busid=\"0000:06:00.0\"",
                                     "&lt;",
                                     "&#0;",
                                     "\xff\xfe",
                                     "<!DOCTYPE a>",
                                     "memory_bytes=",
                                     "gbps=1e9",
                                     "link ",
                                     "gpu ",
                                     "99999999999999999999"};

/* Changes text in place; it may grow up to ROOM. */
static size_t mutate(char *text, size_t bytes, uint64_t *state)
{
    uint32_t changes = 1 + random_below(state, 6);

    for (uint32_t i = 0; i < changes && bytes > 0; i++) {
        size_t at = random_below(state, (uint32_t)bytes);
        size_t length = 1 + random_below(state, 1 + (uint32_t)(bytes - at) / (1 + random_below(state, 50)));
        length = length < bytes - at ? length : bytes - at;
        switch (random_below(state, 5)) {
        case 0: text[at] = (char)random_next(state); break;
        case 1: text[at] ^= (char)(1 << random_below(state, 8)); break;
        case 2: /* a stretch is gone */
            memmove(text + at, text + at + length, bytes - at - length);
            bytes -= length;
            break;
        case 3: /* a stretch is there twice */
            if (bytes + length <= ROOM) {
                memmove(text + at + length, text + at, bytes - at);
                bytes += length;
            }
            break;
        default: { /* a piece of the language in the wrong place */
            const char *piece = pieces[random_below(state, sizeof pieces / sizeof *pieces)];
            size_t size = strlen(piece);
            if (bytes + size <= ROOM) {
                memmove(text + at + size, text + at, bytes - at);
                memcpy(text + at, piece, size); // NOLINT(bugprone-not-null-terminated-result): no string
                bytes += size;
            }
            break;
        }
        }
    }
    return bytes;
}

/* What was accepted must hold together: both ends of every link know each other, and it can be worked with. */
static void inspect(struct hr_topology *topology)
{
    for (uint32_t i = 0; i < topology->element_count; i++) {
        const struct hr_element *element = &topology->elements[i];
        for (uint32_t p = 0; p < element->port_count; p++) {
            const struct hr_port *port = &element->ports[p];
            cr_assert(port->peer >= 0 && (uint32_t)port->peer < topology->element_count && port->gbps > 0);
            const struct hr_port *back = &topology->elements[port->peer].ports[port->peer_port];
            cr_assert(back->peer == (int32_t)i && back->peer_port == (int32_t)p);
        }
    }
    for (uint32_t i = 0; i < topology->gpu_count; i++)
        cr_assert_eq(topology->elements[topology->gpus[i]].gpu, (int32_t)i);
    char *matrix = hr_topology_print_matrix(topology), *xml = hr_topology_write_xml(topology);
    cr_assert(matrix && xml);
    struct hr_topology *again = NULL;
    struct hr_text_error error = {0};
    int rc = hr_topology_read_xml(xml, strlen(xml), &again, &error);
    cr_assert_eq(rc, 0, "its own text is refused: line %u: %s\n%s", error.line, error.text, xml);
    cr_assert_eq(again->gpu_count, topology->gpu_count);
    hr_topology_destroy(again);
    free(matrix);
    free(xml);
}

static void expect_one_clear_line(const struct hr_text_error *error)
{
    size_t length = strnlen(error->text, sizeof error->text);

    cr_assert(length > 10 && length < sizeof error->text, "\"%.256s\"", error->text);
    cr_assert_null(strchr(error->text, '\n'));
}

typedef int read_fn(const char *text, size_t bytes, struct hr_topology **topology_out, struct hr_text_error *error_out);

static int read_matrix(const char *text, size_t bytes, struct hr_topology **topology_out,
                       struct hr_text_error *error_out)
{
    return hr_topology_read_matrix(text, bytes, 25, topology_out, error_out);
}

static void attack(const char *sample, size_t bytes, read_fn *read, uint64_t *state, uint32_t count, uint32_t *accepted)
{
    char *work = malloc(ROOM);

    for (uint32_t i = 0; i < count; i++) {
        struct hr_topology *topology = NULL;
        struct hr_text_error error = {0};
        memcpy(work, sample, bytes);
        size_t size = mutate(work, bytes, state);
        char *exact = malloc(size + 1); /* so that reading behind the end is seen */
        memcpy(exact, work, size);
        char *trimmed = realloc(exact, size ? size : 1);
        if (read(trimmed, size, &topology, &error) == 0) {
            inspect(topology);
            hr_topology_destroy(topology);
            (*accepted)++;
        } else {
            expect_one_clear_line(&error);
        }
        free(trimmed);
    }
    free(work);
}

Test(readers, nccl_files_that_nobody_wrote)
{
    uint64_t state = 20240901;
    uint32_t accepted = 0, count = rounds(400);

    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        size_t bytes;
        char *text = read_machine_text(machines[i], &bytes);
        attack(text, bytes, hr_topology_read_xml, &state, count, &accepted);
        free(text);
    }
    cr_expect(accepted > 10, "%u of them were accepted: the changes are too coarse to get far", accepted);
}

Test(readers, matrices_that_nobody_printed)
{
    uint64_t state = 7;
    uint32_t accepted = 0, count = rounds(600);

    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        struct hr_topology *topology = read_machine(machines[i]);
        char *text = hr_topology_print_matrix(topology);
        attack(text, strlen(text), read_matrix, &state, count, &accepted);
        free(text);
        hr_topology_destroy(topology);
    }
    cr_expect(accepted > 10, "%u of them were accepted", accepted);
}

Test(readers, extras_that_nobody_wrote)
{
    uint64_t state = 99;
    struct hr_topology *topology = read_machine("dgx1v");
    char *text = hr_topology_write_extras(topology), *work = malloc(ROOM);
    size_t bytes = strlen(text);
    uint32_t accepted = 0;

    for (uint32_t i = 0; i < rounds(2000); i++) {
        struct hr_text_error error = {0};
        memcpy(work, text, bytes);
        size_t size = mutate(work, bytes, &state);
        if (hr_topology_read_extras(work, size, topology, &error) == 0) {
            inspect(topology);
            accepted++;
        } else {
            expect_one_clear_line(&error);
        }
    }
    cr_expect(accepted > 10, "%u of them were accepted", accepted);
    free(work);
    free(text);
    hr_topology_destroy(topology);
}

Test(readers, sizes_that_are_meant_to_hurt)
{
    struct hr_text_error error = {0};
    struct hr_topology *topology = NULL;
    size_t room = 4 << 20, at = 0;
    char *text = malloc(room);

    /* Ever deeper. */
    at = (size_t)sprintf(text, "<system version=\"1\">");
    for (int i = 0; i < 10000; i++)
        at += (size_t)sprintf(text + at, "<pci busid=\"%d\" class=\"0x060400\">", i);
    cr_expect_neq(hr_topology_read_xml(text, at, &topology, &error), 0);
    cr_expect_not_null(strstr(error.text, "nested too deep"), "%s", error.text);
    /* Ever more. */
    at = (size_t)sprintf(text, "<system version=\"1\">");
    for (int i = 0; i < 20000; i++)
        at += (size_t)sprintf(text + at, "<pci busid=\"%d\" class=\"0x060400\"/>", i);
    at += (size_t)sprintf(text + at, "</system>");
    cr_expect_neq(hr_topology_read_xml(text, at, &topology, &error), 0);
    cr_expect_not_null(strstr(error.text, "too many elements"), "%s", error.text);
    /* A row of columns without end. */
    at = (size_t)sprintf(text, "\tGPU0");
    for (int i = 0; i < 100000; i++)
        at += (size_t)sprintf(text + at, "\tmlx5_%d", i);
    cr_expect_neq(hr_topology_read_matrix(text, at, 25, &topology, &error), 0);
    free(text);
}
