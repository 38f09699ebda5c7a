/* Buffers that together do not fit into the small GPU of the tests, with numbers that tell whether anything went wrong with them. */
#include "process_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STRIDE_WORDS 1024
#define WORDS (BUFFER_BYTES / 4)

static const char kernel_text[] = ".version 6.3\n"
                                  ".target sm_70\n"
                                  ".address_size 64\n"
                                  ".visible .entry add_one(.param .u64 buffer)\n"
                                  "{\n"
                                  "  .reg .b32 %r<8>;\n"
                                  "  .reg .b64 %rd<4>;\n"
                                  "  ld.param.u64 %rd1, [buffer];\n"
                                  "  mov.u32 %r2, %ctaid.x;\n"
                                  "  mov.u32 %r3, %ntid.x;\n"
                                  "  mov.u32 %r4, %tid.x;\n"
                                  "  mad.lo.s32 %r5, %r2, %r3, %r4;\n"
                                  "  cvta.to.global.u64 %rd1, %rd1;\n"
                                  "  mul.wide.u32 %rd2, %r5, 4096;\n"
                                  "  add.s64 %rd3, %rd1, %rd2;\n"
                                  "  ld.global.u32 %r6, [%rd3];\n"
                                  "  add.s32 %r6, %r6, 1;\n"
                                  "  st.global.u32 [%rd3], %r6;\n"
                                  "  ret;\n"
                                  "}\n";

void need(int holds, const char *what, const char *file, int line)
{
    if (holds)
        return;
    fprintf(stderr, "job %d: %s:%d: %s\n", (int)getpid(), file, line, what);
    _exit(9);
}

void ok(CUresult result, const char *what, int line)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "job %d: line %d: %s gave %d\n", (int)getpid(), line, what, (int)result);
    _exit(9);
}

CUcontext context_on(int device)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, device));
    return context;
}

static uint32_t first_value(const struct set *set, unsigned buffer)
{
    return set->seed * 1000003u + buffer * 7919u;
}

void set_make(struct set *set, CUcontext context, unsigned count, unsigned seed)
{
    CUmodule module;
    *set = (struct set){.context = context, .count = count, .seed = seed};
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, kernel_text));
    OK(cuModuleGetFunction(&set->kernel, module, "add_one"));
    for (unsigned i = 0; i < count; i++) {
        OK(cuMemAlloc_v2(&set->buffer[i], BUFFER_BYTES));
        OK(cuMemsetD32_v2(set->buffer[i], first_value(set, i), WORDS));
    }
}

void set_add(struct set *set)
{
    OK(cuCtxSetCurrent(set->context));
    for (unsigned i = 0; i < set->count; i++) {
        void *params[] = {&set->buffer[i]};
        OK(cuLaunchKernel(set->kernel, WORDS / STRIDE_WORDS / 128, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    }
    set->added++;
}

void set_check(const struct set *set)
{
    uint32_t *words = malloc(BUFFER_BYTES);
    NEED(words != NULL);
    OK(cuCtxSetCurrent(set->context));
    for (unsigned i = 0; i < set->count; i++) {
        OK(cuMemcpyDtoH_v2(words, set->buffer[i], BUFFER_BYTES));
        for (size_t w = 0; w < WORDS; w++)
            NEED(words[w] == first_value(set, i) + (w % STRIDE_WORDS == 0 ? set->added : 0));
    }
    free(words);
}

void set_free(struct set *set)
{
    OK(cuCtxSetCurrent(set->context));
    for (unsigned i = 0; i < set->count; i++)
        OK(cuMemFree_v2(set->buffer[i]));
}

void work(int device, unsigned seed)
{
    struct set set;
    CUcontext context = context_on(device);
    set_make(&set, context, BUFFERS, seed);
    for (int round = 0; round < 3; round++)
        set_add(&set);
    set_check(&set);
    set_free(&set);
    OK(cuCtxDestroy_v2(context));
    printf("worked with %u\n", seed);
    fflush(stdout);
}
