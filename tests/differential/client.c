/*
 * Makes the calls of .calls files and prints one line for each: client FILE... [random=SEED,COUNT] [only=SCENARIO]. Run natively and under
 * headroom, the output has to be the same (compare.py).
 */
#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES = 2048, AFTER = 2 };

/* The variable "ptx": a kernel that adds one to n words, and a global. */
static char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                    ".visible .global .align 8 .b8 word[64];\n"
                    ".visible .entry bump(.param .u64 p, .param .u32 n)\n{\n"
                    ".reg .pred %q; .reg .b32 %r<6>; .reg .b64 %d<4>;\n"
                    "ld.param.u64 %d0, [p]; ld.param.u32 %r0, [n];\n"
                    "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
                    "mad.lo.u32 %r4, %r1, %r2, %r3;\nsetp.ge.u32 %q, %r4, %r0;\n@%q ret;\n"
                    "mul.wide.u32 %d1, %r4, 4; add.u64 %d2, %d0, %d1;\n"
                    "ld.global.u32 %r5, [%d2]; add.u32 %r5, %r5, 1; st.global.u32 [%d2], %r5;\nret;\n}\n";

struct part {
    char function[64];
    int count;
    char argument[ARGUMENTS][TEXT];
};

struct line {
    char text[512]; /* as it stands in the file, for structures and scenarios */
    bool once;
    int iterations, after_count;
    struct part call, after[AFTER];
};

struct scenario {
    char name[32];
    int first, count;
};

static struct line lines[LINES];
static int line_count, scenario_count;
static struct scenario scenarios[64];
static int calls_made;
static bool captures; /* a .calls file has begun a capture, in which nobody may wait */

/* ---- reading ---- */

static void read_part(struct part *part, char *text)
{
    char *save = NULL, *word = strtok_r(text, " ", &save);
    snprintf(part->function, sizeof part->function, "%s", word != NULL ? word : "");
    while ((word = strtok_r(NULL, " ", &save)) != NULL && part->count < ARGUMENTS)
        snprintf(part->argument[part->count++], TEXT, "%s", word);
}

static void add_line(char *text)
{
    if (line_count == LINES || scenario_count == 0)
        exit(3);
    struct line *line = &lines[line_count++];
    scenarios[scenario_count - 1].count++;
    snprintf(line->text, sizeof line->text, "%s", text);
    if (strncmp(text, "struct ", 7) == 0)
        return;
    line->once = *text == '!';
    char *rest = text + line->once, *part = strsep(&rest, ";");
    read_part(&line->call, part);
    while (rest != NULL && line->after_count < AFTER)
        read_part(&line->after[line->after_count++], strsep(&rest, ";"));
    line->iterations = 1;
    for (int i = 0; i < line->call.count; i++) {
        const char *dots = *line->call.argument[i] == '%' ? strstr(line->call.argument[i], "..") : NULL;
        if (dots != NULL) {
            line->iterations = (int)(number(dots + 2) - (uint64_t)strtol(line->call.argument[i] + 1, NULL, 10)) + 1;
            line->call.argument[i][dots - line->call.argument[i]] = 0;
        }
    }
}

/* Once for each of {a,b}. */
static void expand(const char *text)
{
    const char *open = strchr(text, '{'), *close = open != NULL ? strchr(open, '}') : NULL;
    char one[512];
    if (close == NULL) {
        snprintf(one, sizeof one, "%s", text);
        add_line(one);
        return;
    }
    for (const char *at = open + 1; at <= close;) {
        size_t bytes = strcspn(at, ",}");
        snprintf(one, sizeof one, "%.*s%.*s%s", (int)(open - text), text, (int)bytes, at, close + 1);
        expand(one);
        at += bytes + 1;
    }
}

static void read_file(const char *path)
{
    char text[512];
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        perror(path);
        exit(3);
    }
    while (fgets(text, sizeof text, f) != NULL) {
        text[strcspn(text, "\n")] = 0;
        if (*text == 0 || *text == '#')
            continue;
        if (*text == '=') {
            snprintf(scenarios[scenario_count].name, sizeof scenarios->name, "%.31s", text + 2);
            scenarios[scenario_count++].first = line_count;
        } else {
            expand(text);
        }
    }
    fclose(f);
}

/* ---- calling ---- */

static void *pageable(size_t bytes, unsigned char fill)
{
    void *p = malloc(bytes);
    if (p == NULL)
        exit(3);
    memset(p, fill, bytes);
    return p;
}

static uint64_t value_of(const char *name)
{
    const struct variable *v = variable(name, strlen(name));
    return v != NULL ? v->value : 0;
}

/* The graph that the call was captured into: how many nodes, and whether it runs. */
static void end_capture(void)
{
    uint64_t graph = 0, executable = 0, nodes = 0;
    uint64_t end[ARGUMENTS] = {value_of("k"), (uint64_t)(uintptr_t)&graph};
    int r = call("cuStreamEndCapture", end);
    printf(" capture %d", r);
    if (r != 0 || graph == 0)
        return;
    MUST("cuGraphGetNodes", graph, 0, (uint64_t)(uintptr_t)&nodes);
    const char *name = driver_version() >= 11040 ? "cuGraphInstantiateWithFlags" : "cuGraphInstantiate_v2";
    uint64_t make[ARGUMENTS] = {(uint64_t)(uintptr_t)&executable, graph, 0};
    r = call(name, make);
    printf(" nodes %d made %d", (int)nodes, r);
    if (r == 0) {
        uint64_t run[ARGUMENTS] = {executable, value_of("t")};
        printf(" run %d", call("cuGraphLaunch", run));
        uint64_t wait[ARGUMENTS] = {value_of("t")};
        printf(" %d", call("cuStreamSynchronize", wait));
        MUST("cuGraphExecDestroy", executable);
    }
    MUST("cuGraphDestroy", graph);
}

static void make_call(const struct scenario *s, struct part *part, const struct replacement *instead, int replacements,
                      int iteration, bool keep, struct line *line)
{
    struct prepared p;
    if (driver_function(part->function) == NULL)
        return;
    prepare(&p, part->argument, part->count, instead, replacements, iteration);
    printf("%s %s(%s)", s->name, part->function, p.text);
    fflush(stdout);
    int r = call(part->function, p.value);
    calls_made++;
    printf(" = %d", r);
    bool set = r == 0 && (keep || (line != NULL && line->after_count > 0));
    take_outputs(&p, set);
    if (p.captures)
        end_capture();
    static const uint64_t nothing[ARGUMENTS];
    if (strncmp(part->function, "cuStreamBeginCapture", 20) == 0 ||
        strncmp(part->function, "cuStreamEndCapture", 18) == 0)
        captures = part->function[8] == 'B';
    int late = captures ? 0 : call("cuCtxSynchronize", nothing);
    for (int i = 0; i < replacements; i++) { /* which is not the current context's */
        uint64_t stream[ARGUMENTS] = {value_of("p")};
        if (strcmp(instead[i].label, "peers") == 0 && stream[0] != 0)
            late = late != 0 ? late : call("cuStreamSynchronize", stream);
    }
    printf(late != 0 ? " then %d\n" : "\n", late);
    for (int i = 0; line != NULL && set && i < line->after_count; i++)
        make_call(s, &line->after[i], NULL, 0, iteration, false, NULL);
}

/* The argument texts of a call whose values may be others: its own, and those in its structures. */
static int places(struct part *part, const char *out[])
{
    int count = 0;
    for (int i = 0; i < part->count; i++) {
        const struct structure *s = *part->argument[i] == '@' ? structure(part->argument[i] + 1) : NULL;
        out[count++] = part->argument[i];
        for (int k = 0; s != NULL && k < s->count; k++)
            out[count++] = s->field[k].argument;
    }
    return count;
}

static void play_line(const struct scenario *s, struct line *line)
{
    if (strncmp(line->text, "struct ", 7) == 0) {
        char text[512];
        snprintf(text, sizeof text, "%s", line->text + 7);
        define_structure(text);
        return;
    }
    const char *place[ARGUMENTS * FIELDS];
    int count = places(&line->call, place);
    for (int iteration = 0; iteration < line->iterations; iteration++) {
        make_call(s, &line->call, NULL, 0, iteration, true, line);
        struct replacement instead;
        for (int i = 0; !line->once && i < count; i++) {
            for (int which = 0; alternative(place[i], which, &instead); which++)
                make_call(s, &line->call, &instead, 1, iteration, false, line);
        }
    }
}

/* ---- memory ---- */

/* Everything that memory is: sums of all buffers of the set-up. */
static void print_sums(const char *where)
{
    static const char *const buffers[] = {"A", "B", "M", "h", "h2", "q", "q2", "D", "E", "G1", "G2", "R"};
    static unsigned char *copy;
    static const size_t most = 8 << 20;
    copy = copy != NULL ? copy : pageable(most, 0);
    printf("sums %s", where);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        const struct variable *v = variable(buffers[i], strlen(buffers[i]));
        if (v == NULL || v->value == 0)
            continue;
        uint64_t sum = 14695981039346656037u;
        int r = 0;
        if (v->kind == DEV) {
            uint64_t arguments[ARGUMENTS] = {(uint64_t)(uintptr_t)copy, v->value, v->bytes};
            r = call("cuMemcpyDtoH_v2", arguments);
        } else {
            memcpy(copy, (const void *)(uintptr_t)v->value, v->bytes);
        }
        for (size_t k = 0; k + 8 <= v->bytes; k += 8) {
            uint64_t word;
            memcpy(&word, copy + k, 8);
            sum = (sum ^ word) * 1099511628211u;
        }
        printf(r != 0 ? " %s:error" : " %s:%08x", v->name, (unsigned)(sum ^ sum >> 32));
    }
    printf("\n");
}

/* Between scenarios other memory is used, so that, where it is scarce, the buffers have to go. */
static void use_ballast(void)
{
    static const uint64_t nothing[ARGUMENTS];
    if (captures || call("cuCtxSynchronize", nothing) != 0) /* or no context is current that lives */
        return;
    for (int i = 1; i <= 2; i++) {
        uint64_t address = value_of(i == 1 ? "G1" : "G2");
        if (address != 0)
            MUST("cuMemsetD8_v2", address, (uint64_t)i, 8 << 20);
    }
}

static struct scenario *scenario(const char *name)
{
    for (int i = 0; i < scenario_count; i++) {
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    }
    exit(3);
}

static void play(struct scenario *s)
{
    for (int i = 0; i < s->count; i++) {
        if (i % 16 == 7 && strcmp(s->name, "setup") != 0 && strcmp(s->name, "teardown") != 0)
            use_ballast();
        play_line(s, &lines[s->first + i]);
    }
}

/* ---- random calls ---- */

static uint64_t random_state;

static unsigned random_below(unsigned n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % n;
}

static bool ends_something(const char *function)
{
    static const char *const words[] = {"Destroy", "Unload",     "Free",       "Release",
                                        "Reset",   "Unregister", "SetCurrent", "Detach"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strstr(function, words[i]) != NULL)
            return true;
    }
    return false;
}

/* Its lines make sense in their order only. */
static bool is_a_story(const struct scenario *s)
{
    for (int i = 0; i < s->count; i++) {
        if (strstr(lines[s->first + i].call.function, "cuCtxSetCurrent") != NULL)
            return true;
    }
    return false;
}

/* Lines that begin and end nothing, with any of their arguments replaced. */
static void play_random(const struct scenario *s, int wanted)
{
    int varied = 0;
    for (int i = 0; i < s->count; i++)
        varied += !lines[s->first + i].once && lines[s->first + i].iterations > 0;
    for (int done = 0; varied > 0 && done < wanted;) {
        struct line *line = &lines[s->first + (int)random_below((unsigned)s->count)];
        if (line->once || line->iterations == 0)
            continue;
        const char *place[ARGUMENTS * FIELDS];
        struct replacement instead[ARGUMENTS * FIELDS];
        int count = places(&line->call, place), replacements = 0;
        for (int i = 0; i < count; i++) {
            int choices = 0;
            while (alternative(place[i], choices, &instead[replacements]))
                choices++;
            if (choices == 0 || random_below(4) != 0)
                continue;
            alternative(place[i], (int)random_below((unsigned)choices), &instead[replacements]);
            if (strcmp(instead[replacements].label, "vast") != 0)
                replacements++;
        }
        make_call(s, &line->call, instead, replacements, (int)random_below((unsigned)line->iterations), false, line);
        done++;
        if (random_below(16) == 0)
            use_ballast();
    }
}

int main(int argc, char **argv)
{
    const char *only = NULL; /* the one scenario to play */
    int random_calls = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "random=", 7) == 0) {
            char *end;
            random_state = strtoull(argv[i] + 7, &end, 10);
            random_calls = (int)strtol(end + 1, NULL, 10);
        } else if (strncmp(argv[i], "only=", 5) == 0) {
            only = argv[i] + 5;
        } else {
            read_file(argv[i]);
        }
    }
    set_variable("q", HOST, (uint64_t)(uintptr_t)pageable(8 << 20, 0x11), 8 << 20);
    set_variable("q2", HOST, (uint64_t)(uintptr_t)pageable(8 << 20, 0x22), 8 << 20);
    set_variable("ptx", HANDLE, (uint64_t)(uintptr_t)ptx, 0);
    open_driver();
    for (int i = 0; i < scenario_count; i++) {
        struct scenario *s = &scenarios[i];
        if (strcmp(s->name, "setup") == 0 || strcmp(s->name, "teardown") == 0 || (only && strcmp(s->name, only) != 0))
            continue;
        if (random_calls > 0 && is_a_story(s))
            continue;
        play(scenario("setup"));
        if (random_calls > 0) {
            for (int k = 0; k < s->count; k++) { /* what it sets up */
                struct line *line = &lines[s->first + k];
                if ((line->once && !ends_something(line->call.function)) || line->iterations == 0)
                    play_line(s, line);
            }
            play_random(s, random_calls);
        } else {
            play(s);
        }
        print_sums(s->name);
        play(scenario("teardown"));
    }
    printf("calls %d\n", calls_made);
    return 0;
}
