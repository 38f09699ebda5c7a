/* The lines beside a topology file that say what it cannot. Checked as a whole before anything is changed. */
#include "fabric/text.h"
#include "fabric/topology.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORDS 8
#define MAX_LINE 256
#define MEMORY_LIMIT (UINT64_C(1) << 48)

struct words {
    uint32_t line;
    int count;
    char text[MAX_LINE];
    char *word[MAX_WORDS];
};

static int split(const char *at, size_t length, struct words *words, struct hr_text_error *error_out)
{
    char *rest;

    words->count = 0;
    if (length >= sizeof words->text || memchr(at, 0, length))
        return hr_text_refuse(error_out, words->line, "a line of %zu bytes; accepted: text of at most %d", length,
                              MAX_LINE - 1);
    memcpy(words->text, at, length);
    words->text[length] = 0;
    words->text[strcspn(words->text, "#\r")] = 0;
    for (char *word = strtok_r(words->text, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        if (words->count == MAX_WORDS)
            return hr_text_refuse(error_out, words->line, "more than %d words", MAX_WORDS);
        words->word[words->count++] = word;
    }
    return 0;
}

static int find(const struct hr_topology *topology, const struct words *words, int index,
                struct hr_text_error *error_out)
{
    const char *name = index < words->count ? words->word[index] : "";
    int element = hr_topology_find(topology, name);

    if (element < 0)
        return hr_text_refuse(error_out, words->line,
                              "\"%.40s\" is no element of the topology; accepted: the bus ids of it", name);
    return element;
}

static const char *value_of(const char *word, const char *key)
{
    size_t length = strlen(key);

    return strncmp(word, key, length) == 0 && word[length] == '=' ? word + length + 1 : NULL;
}

static int read_gpu(const struct words *words, struct hr_topology *topology, bool apply,
                    struct hr_text_error *error_out)
{
    int number = find(topology, words, 1, error_out);

    if (number < 0)
        return number;
    struct hr_element *gpu = &topology->elements[number];
    for (int i = 2; i < words->count; i++) {
        const char *memory = value_of(words->word[i], "memory_bytes"), *base = value_of(words->word[i], "base");
        uint64_t value;
        if (gpu->kind == HR_ELEMENT_GPU && memory && hr_text_unsigned(memory, 0, MEMORY_LIMIT, &value)) {
            gpu->memory_bytes = apply ? value : gpu->memory_bytes;
        } else if (gpu->kind == HR_ELEMENT_GPU && base && hr_text_unsigned(base, 0, MEMORY_LIMIT - 1, &value)) {
            gpu->base = apply ? value : gpu->base;
            gpu->has_base = apply || gpu->has_base;
        } else {
            return hr_text_refuse(error_out, words->line,
                                  "\"%.40s\" for %s; accepted: for a GPU memory_bytes=N or base=N, below 2^48",
                                  words->word[i], gpu->name);
        }
    }
    return 0;
}

struct link_extras {
    bool has_gbps, has_latency, has_up;
    double gbps;
    uint64_t latency_ns, up;
};

static void apply_link(struct hr_topology *topology, uint32_t from, uint32_t to, const struct link_extras *extras)
{
    struct hr_element *element = &topology->elements[from];

    for (uint32_t p = 0; p < element->port_count; p++) {
        struct hr_port *port = &element->ports[p];
        if (port->peer != (int32_t)to)
            continue;
        hr_topology_set_rate(topology, from, p, extras->has_gbps ? extras->gbps : port->gbps,
                             extras->has_latency ? (uint32_t)extras->latency_ns : port->latency_ns);
        if (extras->has_up)
            hr_topology_set_up(topology, from, p, extras->up != 0);
    }
}

static int read_link(const struct words *words, struct hr_topology *topology, bool apply,
                     struct hr_text_error *error_out)
{
    struct link_extras extras = {0};
    int from = find(topology, words, 1, error_out), to = from < 0 ? from : find(topology, words, 2, error_out);
    bool linked = false;

    if (to < 0)
        return to;
    for (int i = 3; i < words->count; i++) {
        const char *gbps = value_of(words->word[i], "gbps"), *latency = value_of(words->word[i], "latency_ns");
        const char *up = value_of(words->word[i], "up");
        if (gbps && hr_text_real(gbps, 0.001, 999999, &extras.gbps))
            extras.has_gbps = true;
        else if (latency && hr_text_unsigned(latency, 0, 1000000000, &extras.latency_ns))
            extras.has_latency = true;
        else if (up && hr_text_unsigned(up, 0, 1, &extras.up))
            extras.has_up = true;
        else
            return hr_text_refuse(error_out, words->line,
                                  "\"%.40s\"; accepted: gbps=X from 0.001, latency_ns=N up to 10^9, up=0 or 1",
                                  words->word[i]);
    }
    for (uint32_t p = 0; p < topology->elements[from].port_count; p++)
        linked = linked || topology->elements[from].ports[p].peer == to;
    if (!linked)
        return hr_text_refuse(error_out, words->line, "%s and %s are not linked; accepted: ends of a link",
                              words->word[1], words->word[2]);
    if (apply)
        apply_link(topology, (uint32_t)from, (uint32_t)to, &extras);
    return 0;
}

static int read_all(const char *text, size_t bytes, struct hr_topology *topology, bool apply,
                    struct hr_text_error *error_out)
{
    struct words words = {0};
    const char *text_end = text + bytes;

    for (const char *at = text; at < text_end;) {
        const char *end = memchr(at, '\n', (size_t)(text_end - at));
        end = end ? end : text_end;
        words.line++;
        int rc = split(at, (size_t)(end - at), &words, error_out);
        if (rc == 0 && words.count > 0) {
            if (strcmp(words.word[0], "gpu") == 0)
                rc = read_gpu(&words, topology, apply, error_out);
            else if (strcmp(words.word[0], "link") == 0)
                rc = read_link(&words, topology, apply, error_out);
            else
                rc = hr_text_refuse(error_out, words.line,
                                    "\"%.40s\"; accepted: lines \"gpu NAME ...\" and \"link NAME NAME ...\"",
                                    words.word[0]);
        }
        if (rc != 0)
            return rc;
        at = end + 1;
    }
    return 0;
}

int hr_topology_read_extras(const char *text, size_t bytes, struct hr_topology *topology,
                            struct hr_text_error *error_out)
{
    int rc = read_all(text, bytes, topology, false, error_out);

    return rc != 0 ? rc : read_all(text, bytes, topology, true, error_out);
}

char *hr_topology_write_extras(const struct hr_topology *topology)
{
    struct hr_text text = {0};

    for (uint32_t i = 0; i < topology->element_count; i++) {
        const struct hr_element *element = &topology->elements[i];
        if (element->memory_bytes || element->has_base)
            hr_text_add(&text, "gpu %s memory_bytes=%llu", element->name, (unsigned long long)element->memory_bytes);
        if (element->has_base)
            hr_text_add(&text, " base=0x%llx", (unsigned long long)element->base);
        if (element->memory_bytes || element->has_base)
            hr_text_add(&text, "\n");
    }
    for (uint32_t i = 0; i < topology->element_count; i++) {
        const struct hr_element *element = &topology->elements[i];
        for (uint32_t p = 0; p < element->port_count; p++) {
            const struct hr_port *port = &element->ports[p];
            bool told = false;
            for (uint32_t q = 0; q < p && !told; q++)
                told = element->ports[q].peer == port->peer;
            if (told)
                continue;
            /* Whole thousandths, so that no locale's decimal point gets in. */
            unsigned long long mbps = (unsigned long long)(port->gbps * 1000 + 0.5);
            hr_text_add(&text, "link %s %s gbps=%llu.%03llu latency_ns=%u up=%d\n", element->name,
                        topology->elements[port->peer].name, mbps / 1000, mbps % 1000, port->latency_ns, port->up);
        }
    }
    return hr_text_take(&text);
}
