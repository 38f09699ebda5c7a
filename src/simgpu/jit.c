/* The options of the loading and linking functions: logs, times, targets. Options that only tune code have no effect here. */
#include "simgpu/image.h"

#include <string.h>

static bool is_target(unsigned target)
{
    static const unsigned known[] = {
#define T(name) CU_TARGET_COMPUTE_##name
        T(30),   T(32),   T(35),   T(37),   T(50),   T(52),   T(53),   T(60),   T(61),   T(62),   T(70),  T(72),
        T(75),   T(80),   T(86),   T(87),   T(89),   T(90),   T(100),  T(110),  T(103),  T(120),  T(121), T(90A),
        T(100A), T(110A), T(103A), T(120A), T(121A), T(100F), T(110F), T(103F), T(120F), T(121F),
#undef T
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i] == target)
            return true;
    return false;
}

static CUresult read_one(struct sg_jit *jit, size_t index, CUjit_option option, void *value)
{
    unsigned number = (unsigned)(uintptr_t)value;
    switch ((int)option) {
    case CU_JIT_ERROR_LOG_BUFFER: jit->error = value; break;
    case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        jit->error_bytes = number;
        jit->error_index = index;
        break;
    case CU_JIT_INFO_LOG_BUFFER: jit->info = value; break;
    case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        jit->info_bytes = number;
        jit->info_index = index;
        break;
    case CU_JIT_WALL_TIME: jit->time_index = index; break;
    case CU_JIT_TARGET:
        if (!is_target(number))
            return CUDA_ERROR_INVALID_VALUE;
        jit->target = number & 0xffff; /* without the bits for accelerated and family features */
        break;
    case CU_JIT_OPTIMIZATION_LEVEL: return number > 4 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_JIT_FALLBACK_STRATEGY: return number > CU_PREFER_BINARY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_JIT_CACHE_MODE: return number > CU_JIT_CACHE_OPTION_CA ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_JIT_GLOBAL_SYMBOL_COUNT: return number ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    default: break;
    }
    return CUDA_SUCCESS;
}

CUresult sg_jit_read(struct sg_jit *jit, unsigned count, const CUjit_option *options, void **values)
{
    *jit = (struct sg_jit){.values = values, .error_index = SIZE_MAX, .info_index = SIZE_MAX, .time_index = SIZE_MAX};
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        unsigned option = (unsigned)options[i];
        if (option >= CU_JIT_NUM_OPTIONS)
            return CUDA_ERROR_INVALID_VALUE;
        jit->seen[option / 32] |= 1u << option % 32;
        CUresult r = read_one(jit, i, options[i], values[i]);
        if (r)
            return r;
    }
    bool both = sg_jit_has(jit, CU_JIT_TARGET) && sg_jit_has(jit, CU_JIT_THREADS_PER_BLOCK);
    return both ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool sg_jit_has(const struct sg_jit *jit, CUjit_option option)
{
    return jit->seen[option / 32] >> option % 32 & 1;
}

static void append(char *buffer, size_t bytes, size_t *used, const char *text)
{
    if (!buffer || !bytes)
        return;
    size_t room = bytes - 1 - *used, length = strlen(text);
    if (*used && length && room) {
        buffer[(*used)++] = '\n';
        room--;
    }
    length = length < room ? length : room;
    memcpy(buffer + *used, text, length);
    *used += length;
    buffer[*used] = 0;
}

void sg_jit_log(struct sg_jit *jit, const char *text)
{
    append(jit->error, jit->error_bytes, &jit->error_used, text);
    append(jit->info, jit->info_bytes, &jit->info_used, ""); /* nothing to inform of, but the buffer is a string */
    if (jit->error_index != SIZE_MAX)
        jit->values[jit->error_index] = (void *)(uintptr_t)jit->error_used;
    if (jit->info_index != SIZE_MAX)
        jit->values[jit->info_index] = (void *)(uintptr_t)jit->info_used;
}

void sg_jit_time(struct sg_jit *jit, uint64_t start_ns)
{
    jit->wall_ms += (float)(sg_now_ns() - start_ns) * 1e-6f;
    if (jit->time_index != SIZE_MAX)
        memcpy(&jit->values[jit->time_index], &jit->wall_ms, sizeof jit->wall_ms);
}
