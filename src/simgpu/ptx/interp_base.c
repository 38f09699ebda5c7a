/* The interpreter with the baseline instruction set of the architecture. */
#define INTERP_NAME ptx_interp_base
#include "simgpu/ptx/interp.inc"
