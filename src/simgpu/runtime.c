/* What kernels get from the system: the heap of malloc and the queue of printf, one of each per context, made by the first
 * module that asks for them. */
#include "simgpu/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult sg_runtime_prepare(struct sg_context *c, const struct ptx_module *ptx)
{
    if (ptx_module_uses_printf(ptx) && !c->fifo) {
        c->fifo = ptx_fifo_create(c->limits[CU_LIMIT_PRINTF_FIFO_SIZE]);
        if (!c->fifo)
            return CUDA_ERROR_OUT_OF_MEMORY;
        sg.fifos++;
    }
    size_t bytes = c->limits[CU_LIMIT_MALLOC_HEAP_SIZE];
    if (!ptx_module_uses_heap(ptx) || c->heap || !bytes)
        return CUDA_SUCCESS;
    struct sg_alloc *alloc;
    CUresult r = sg_alloc_create(c, bytes, true, &alloc);
    if (r)
        return r;
    c->heap = ptx_heap_create(alloc->region.va, bytes);
    if (!c->heap) {
        sg_alloc_destroy(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->heap_va = alloc->region.va;
    c->heap_bytes = bytes;
    return CUDA_SUCCESS; /* the memory goes with the context's other allocations */
}

void sg_runtime_finish(struct sg_context *c)
{
    ptx_heap_destroy(c->heap);
    sg.fifos -= c->fifo != NULL;
    ptx_fifo_destroy(c->fifo);
    c->heap = NULL;
    c->heap_bytes = 0;
    c->fifo = NULL;
}

/* All that waits, of all contexts; NULL = nothing. */
static char *take_text(size_t *bytes_out)
{
    char *all = NULL;
    size_t total = 0;
    struct sg_context *c;
    DL_FOREACH(sg.contexts, c)
    {
        size_t bytes = 0;
        char *text = c->fifo ? ptx_fifo_take(c->fifo, &bytes) : NULL;
        if (!text)
            continue;
        char *bigger = realloc(all, total + bytes);
        if (bigger) {
            all = bigger;
            memcpy(all + total, text, bytes);
            total += bytes;
        }
        free(text);
    }
    *bytes_out = total;
    return all;
}

void sg_print_flush(void)
{
    size_t bytes;
    if (!sg.fifos)
        return;
    while (sg.printing) /* what an earlier thread has taken must be out before anybody goes on */
        pthread_cond_wait(&sg.print_cv, &sg.lock);
    char *text = take_text(&bytes);
    if (!text)
        return;
    sg.printing = true;
    pthread_mutex_unlock(&sg.lock);
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    free(text);
    pthread_mutex_lock(&sg.lock);
    sg.printing = false;
    pthread_cond_broadcast(&sg.print_cv);
}
