/* train_gpt as a program, on the simulated GPU. TRAIN_GPT and SIMGPU_DIR in the environment say where both are. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/sanitizer.h"

struct outcome {
    int status; /* exit status, or -1 */
    char out[1 << 16], err[1 << 16];
};

static void slurp(FILE *from, char *to, size_t room)
{
    rewind(from);
    size_t bytes = fread(to, 1, room - 1, from);
    to[bytes] = 0;
    fclose(from);
}

static void become(const char *flags, FILE *out, FILE *err, const char *machine)
{
    const char *library = getenv("SIMGPU_DIR");
    char copy[512], *argv[64] = {getenv("TRAIN_GPT")}, *save = NULL;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", flags);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    if (!argv[0] || !library)
        _exit(125);
    setenv("LD_LIBRARY_PATH", library, 1);
    setenv("SIMGPU", machine, 1);
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    execv(argv[0], argv);
    _exit(126);
}

static struct outcome *run_on(const char *machine, const char *flags)
{
    struct outcome *o = calloc(1, sizeof *o);
    FILE *out = tmpfile(), *err = tmpfile();
    int status = 0;
    cr_assert(o && out && err && getenv("TRAIN_GPT") && getenv("SIMGPU_DIR"), "no place for output, or no program");
    pid_t pid = fork();
    if (pid == 0)
        become(flags, out, err, machine);
    cr_assert(pid > 0);
    while (waitpid(pid, &status, 0) < 0)
        cr_assert_eq(errno, EINTR);
    o->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    slurp(out, o->out, sizeof o->out);
    slurp(err, o->err, sizeof o->err);
    return o;
}

static struct outcome *run(const char *flags)
{
    return run_on("h200", flags);
}

static int lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

#define TINY "--layers 2 --width 24 --heads 3 --context 19 --batch 3 --steps 3"

/* Width, context and vocabulary that are no multiples of any tile, so that every edge of every kernel counts. */
Test(train, one_step_agrees_with_the_cpu)
{
    static const char *const shapes[] = {
        "--layers 2 --width 24 --heads 3 --context 19 --batch 3",
        "--layers 1 --width 64 --heads 16 --context 32 --batch 1",
        "--layers 1 --width 40 --heads 1 --context 9 --batch 2",
        "--layers 2 --width 24 --heads 3 --context 19 --batch 3 --streams 4",
        "--layers 2 --width 24 --heads 3 --context 19 --batch 3 --arena",
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        char flags[256];
        snprintf(flags, sizeof flags, "%s --cpu-check", shapes[i]);
        struct outcome *o = run(flags);
        cr_expect_eq(o->status, 0, "%s: status %d\n%s%s", flags, o->status, o->out, o->err);
        cr_expect(strstr(o->out, "cpu-check: passed"), "%s", o->out);
        free(o);
    }
}

/* The loss of a step, as the program printed it. */
static double loss_of(const char *out, const char *step)
{
    const char *line = strstr(out, step);
    char *end = NULL;
    cr_assert(line, "no '%s' in:\n%s", step, out);
    double loss = strtod(line + strlen(step), &end);
    cr_assert(strncmp(end, " (", 2) == 0, "%s", line);
    return loss;
}

/* One batch through a pipeline is the same arithmetic as on one GPU, so every bit is the same. */
Test(train, a_pipeline_of_one_batch_computes_what_one_gpu_does)
{
    struct outcome *one = run(TINY " --layers 5");
    cr_assert_eq(one->status, 0, "%s", one->err);
    static const char *const pipelines[] = {"--gpus 3 --streams 3", "--gpus 2", "--gpus 5", "--gpus 2 --arena"};
    for (size_t i = 0; i < (SANITIZED ? 1 : sizeof pipelines / sizeof pipelines[0]); i++) {
        char flags[256];
        snprintf(flags, sizeof flags, TINY " --layers 5 --parallel pipeline --batches 1 %s", pipelines[i]);
        struct outcome *o = run_on("h200,gpus=5", flags);
        cr_expect_eq(o->status, 0, "%s: status %d\n%s", flags, o->status, o->err);
        cr_expect_str_eq(o->out, one->out, "%s", flags);
        free(o);
    }
    free(one);
}

/* Several batches, on one GPU or on several, are sums in another order: the loss agrees as far as floats do. */
Test(train, several_batches_train_like_one_large_one)
{
    static const char *const teams[] = {"--gpus 4 --streams 3", "--gpus 3 --parallel pipeline --batches 4 --streams 2",
                                        "--gpus 4", "--gpus 2 --parallel pipeline --batches 4"};
    struct outcome *large = run("--layers 3 --width 24 --heads 3 --context 19 --batch 8 --steps 3");
    cr_assert_eq(large->status, 0, "%s", large->err);
    for (size_t i = 0; i < (SANITIZED_THREADS ? 1 : SANITIZED ? 2 : sizeof teams / sizeof teams[0]); i++) {
        char flags[256];
        snprintf(flags, sizeof flags, "--layers 3 --width 24 --heads 3 --context 19 --batch 2 --steps 3 %s", teams[i]);
        struct outcome *o = run_on("h200,gpus=4", flags);
        cr_assert_eq(o->status, 0, "%s: status %d\n%s", flags, o->status, o->err);
        for (int step = 1; step <= 3; step++) {
            char word[32];
            snprintf(word, sizeof word, "step %d loss ", step);
            double expected = loss_of(large->out, word), got = loss_of(o->out, word);
            cr_expect(fabs(got - expected) < 1e-4 * expected, "%s: step %d: %g, not %g", flags, step, got, expected);
        }
        free(o);
    }
    free(large);
}

#if !SANITIZED_THREADS /* a matter of numbers alone */
Test(train, loss_falls_by_a_fifth)
{
    struct outcome *o = run("--layers 2 --width 32 --heads 4 --context 32 --batch 4 --steps 24");
    cr_assert_eq(o->status, 0, "%s", o->err);
    double first = loss_of(o->out, "step 1 loss "), last = loss_of(o->out, "step 24 loss ");
    cr_expect(last <= 0.8 * first, "from %g to %g only", first, last);
    free(o);
}
#endif

Test(train, results_do_not_depend_on_streams_or_arena)
{
    static const char *const variants[] = {"--streams 1", "--streams 2", "--streams 4",
                                           "--streams 7", "--arena",     "--arena --streams 3"};
    struct outcome *one = run(TINY);
    cr_assert_eq(one->status, 0, "%s", one->err);
    cr_assert_eq(lines(one->out), 4, "%s", one->out);
    cr_assert(strstr(one->out, "weights sha256 "), "%s", one->out);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        char flags[256];
        snprintf(flags, sizeof flags, TINY " %s", variants[i]);
        struct outcome *other = run(flags);
        cr_expect_eq(other->status, 0, "%s", other->err);
        cr_expect_str_eq(other->out, one->out, "%s", variants[i]);
        free(other);
    }
    struct outcome *seeded = run(TINY " --seed 2");
    cr_expect_str_neq(seeded->out, one->out);
    free(seeded);
    free(one);
}

Test(train, every_stream_carries_its_share)
{
    for (int streams = 1; streams <= 8; streams *= 2) {
        char flags[256];
        unsigned long kernels[16] = {0}, total = 0;
        snprintf(flags, sizeof flags, TINY " --streams %d", streams);
        struct outcome *o = run(flags);
        const char *at = strstr(o->err, "kernels on each stream:");
        cr_assert(at, "%s", o->err);
        char *end = (char *)at + strlen("kernels on each stream:");
        for (int i = 0; i < streams; i++)
            total += kernels[i] = strtoul(end, &end, 10);
        cr_expect_eq(*end, '\n', "%s", at);
        for (int i = 0; i < streams; i++)
            cr_expect(kernels[i] * 2 * (unsigned long)streams >= total, "stream %d of %d: %lu of %lu", i, streams,
                      kernels[i], total);
        free(o);
    }
}

Test(train, too_little_memory_is_one_line_from_the_allocation)
{
    struct outcome *o = run_on("h200,vram=64M", "--layers 18 --width 256 --heads 32 --context 64 --batch 1 --steps 1");
    cr_expect_eq(o->status, 1);
    cr_expect_str_eq(o->out, "");
    const char *line = strstr(o->err, "train_gpt: cuMemAlloc_v2 (");
    cr_expect(line && strstr(line, " bytes): CUDA_ERROR_OUT_OF_MEMORY\n"), "%s", o->err);
    free(o);
}

struct bad_flags {
    const char *flags;
    const char *complaint;
    int status;
};

Test(train, bad_input_is_one_clear_line)
{
    static const struct bad_flags cases[] = {
        {"--layers 0", "train_gpt: --layers: '0' is not a whole number from 1 to 4096\n", 2},
        {"--width 12x", "train_gpt: --width: '12x' is not a whole number from 1 to 16384\n", 2},
        {"--width 10 --heads 3", "train_gpt: --width 10 is not a multiple of --heads 3\n", 2},
        {"--streams 17", "train_gpt: --streams: '17' is not a whole number from 1 to 16\n", 2},
        {"--seed -1", "train_gpt: --seed: '-1' is not a whole number from 0 to 18446744073709551615\n", 2},
        {"--lr nan", "train_gpt: --lr: 'nan' is not a number above 0 and at most 1\n", 2},
        {"--steps", "train_gpt: --steps needs a value\n", 2},
        {"--arena=1", "train_gpt: --arena takes no value\n", 2},
        {"--parallel both", "train_gpt: --parallel: 'both' is neither data nor pipeline\n", 2},
        {"--parallel pipeline --gpus 9 --layers 8",
         "train_gpt: a pipeline of --gpus 9 needs at least as many --layers as that, not 8\n", 2},
        {"--cpu-check --gpus 2", "train_gpt: --cpu-check is for one GPU, not for --gpus 2\n", 2},
        {"--speed 9", "train_gpt: unknown flag '--speed'; train_gpt --help lists the flags\n", 2},
        {"--data /dev/null", "train_gpt: the text has 0 characters; --context 64 needs more than that\n", 2},
        {"--data /nonexistent", "train_gpt: --data: /nonexistent: No such file or directory\n", 1},
        {"--ptx /nonexistent", "train_gpt: --ptx: /nonexistent: No such file or directory\n", 1},
        {"--ptx /", "train_gpt: --ptx: /: Is a directory\n", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome *o = run(cases[i].flags);
        cr_expect_eq(o->status, cases[i].status, "%s: status %d", cases[i].flags, o->status);
        cr_expect_str_eq(o->err, cases[i].complaint);
        cr_expect_str_eq(o->out, "");
        free(o);
    }
}

static void expect_ptx_refused(const char *text, const char *error)
{
    char path[] = "/tmp/train_gpt-XXXXXX", flags[64], line[128];
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    snprintf(flags, sizeof flags, "--ptx %s", path);
    struct outcome *o = run(flags);
    unlink(path);
    snprintf(line, sizeof line, "train_gpt: cuModuleLoadDataEx (%s): ", path);
    cr_expect_eq(o->status, 1);
    cr_expect(strstr(o->err, line) && strstr(o->err, error), "%s", o->err);
    cr_expect_str_eq(o->out, "");
    free(o);
}

Test(train, invalid_ptx_is_one_line_with_the_drivers_error)
{
    expect_ptx_refused("no PTX at all\n", ": CUDA_ERROR_INVALID_IMAGE\n");
    expect_ptx_refused(".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry f() { jump; }\n",
                       ": CUDA_ERROR_INVALID_PTX\n");
}

/* Kernels that another compiler, or another build, left in a file do as well as those inside the program. */
Test(train, ptx_file_gives_the_same_results)
{
    char flags[512];
    cr_assert(getenv("TRAIN_GPT_PTX"));
    snprintf(flags, sizeof flags, TINY " --ptx %s", getenv("TRAIN_GPT_PTX"));
    struct outcome *own = run(TINY), *file = run(flags);
    cr_expect_eq(file->status, 0, "%s", file->err);
    cr_expect_str_eq(file->out, own->out);
    free(own);
    free(file);
}

Test(train, device_that_is_not_there_is_one_line)
{
    struct outcome *o = run("--device 3");
    cr_expect_eq(o->status, 1);
    cr_expect_str_eq(o->err, "train_gpt: cuDeviceGet (device 3): CUDA_ERROR_INVALID_DEVICE\n");
    free(o);
}

Test(train, plan_needs_no_gpu)
{
    struct outcome *o = run_on("nonsense", "--plan");
    cr_expect_eq(o->status, 0, "%s", o->err);
    cr_expect_eq(lines(o->out), 6, "%s", o->out);
    free(o);
}
