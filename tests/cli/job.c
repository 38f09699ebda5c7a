/* A CUDA job that leaves in unusual ways, for test_job_ends.c: job fork|kill|exit|plain|few.
 *
 * It uses three quarters more memory than a 16 MiB GPU has, so that with headroom something moves, and has a kernel in
 * flight when it leaves. few: as plain, but its kernels touch only the first words of each buffer.
 */
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUFFERS = 7, BUFFER_BYTES = 4 << 20, WORDS = BUFFER_BYTES / 4, FEW_WORDS = WORDS / 64 };

/* Adds 1 to each word of a buffer, `rounds` times. */
static const char kernel_text[] = ".version 6.3\n"
                                  ".target sm_70\n"
                                  ".address_size 64\n"
                                  ".visible .entry count(.param .u64 buffer, .param .u32 rounds)\n"
                                  "{\n"
                                  "  .reg .pred %p<2>;\n"
                                  "  .reg .b32 %r<8>;\n"
                                  "  .reg .b64 %rd<4>;\n"
                                  "  ld.param.u64 %rd1, [buffer];\n"
                                  "  ld.param.u32 %r1, [rounds];\n"
                                  "  mov.u32 %r2, %ctaid.x;\n"
                                  "  mov.u32 %r3, %ntid.x;\n"
                                  "  mov.u32 %r4, %tid.x;\n"
                                  "  mad.lo.s32 %r5, %r2, %r3, %r4;\n"
                                  "  cvta.to.global.u64 %rd1, %rd1;\n"
                                  "  mul.wide.u32 %rd2, %r5, 4;\n"
                                  "  add.s64 %rd3, %rd1, %rd2;\n"
                                  "  ld.global.u32 %r6, [%rd3];\n"
                                  "LOOP:\n"
                                  "  add.s32 %r6, %r6, 1;\n"
                                  "  add.s32 %r1, %r1, -1;\n"
                                  "  setp.ne.s32 %p1, %r1, 0;\n"
                                  "  @%p1 bra LOOP;\n"
                                  "  st.global.u32 [%rd3], %r6;\n"
                                  "  ret;\n"
                                  "}\n";

static void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        const char *name = "?";
        cuGetErrorName(result, &name);
        fprintf(stderr, "job: %s: %s\n", what, name);
        exit(3);
    }
}

static CUdeviceptr buffers[BUFFERS];
static CUfunction count_kernel;

static void launch(CUdeviceptr buffer, unsigned blocks, unsigned rounds)
{
    void *params[] = {&buffer, &rounds};
    check(cuLaunchKernel(count_kernel, blocks, 1, 1, 256, 1, 1, 0, NULL, params, NULL), "cuLaunchKernel");
}

static void begin(int touched_words)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;

    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module, kernel_text), "cuModuleLoadData");
    check(cuModuleGetFunction(&count_kernel, module, "count"), "cuModuleGetFunction");
    for (int i = 0; i < BUFFERS; i++) {
        check(cuMemAlloc_v2(&buffers[i], BUFFER_BYTES), "cuMemAlloc");
        check(cuMemsetD32_v2(buffers[i], (unsigned)i, WORDS), "cuMemsetD32");
    }
    for (int i = 0; i < BUFFERS; i++) {
        launch(buffers[i], touched_words / 256, 1);
    }
}

/* Every word of buffer i is i, plus 1 where the kernels were. */
static void verify(int touched_words)
{
    unsigned *words = malloc(BUFFER_BYTES);

    if (words == NULL) {
        exit(4);
    }
    for (int i = 0; i < BUFFERS; i++) {
        check(cuMemcpyDtoH_v2(words, buffers[i], BUFFER_BYTES), "cuMemcpyDtoH");
        for (int w = 0; w < WORDS; w++) {
            if (words[w] != (unsigned)i + (w < touched_words)) {
                fprintf(stderr, "job: buffer %d word %d is %u\n", i, w, words[w]);
                exit(5);
            }
        }
    }
    free(words);
    puts("verified");
    fflush(stdout);
}

static void fork_and_go_on(int touched_words)
{
    int status;

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        exit(11); /* with all exit handlers, as a shell's child or a worker of a data loader may */
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 11) {
        fprintf(stderr, "job: the child did not end as it should\n");
        exit(6);
    }
    verify(touched_words);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";

    int touched_words = strcmp(mode, "few") == 0 ? FEW_WORDS : WORDS;

    begin(touched_words);
    if (strcmp(mode, "fork") == 0) {
        fork_and_go_on(touched_words);
        return 0;
    }
    verify(touched_words);
    if (strcmp(mode, "kill") == 0) {
        launch(buffers[0], 64, 1000000);
        raise(SIGKILL);
    } else if (strcmp(mode, "exit") == 0) {
        launch(buffers[0], 64, 1000000);
        exit(7);
    }
    return strcmp(mode, "plain") == 0 || strcmp(mode, "few") == 0 ? 0 : 99;
}
