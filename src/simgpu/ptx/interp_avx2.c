/* The interpreter with AVX2 and FMA. */
#define INTERP_NAME ptx_interp_avx2
#include "simgpu/ptx/interp.inc"
