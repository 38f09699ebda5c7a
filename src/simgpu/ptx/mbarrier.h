/* mbarriers, for asynchronous copies that arrive at them. */
#ifndef SG_PTX_MBARRIER_H
#define SG_PTX_MBARRIER_H

#include "simgpu/ptx/run.h"

/* Each lane arrives `count` times (0: the barrier is only checked) at the mbarrier that it names. False = fault. */
bool ptx_mbarrier_arrive_all(struct ptx_run *r, struct ptx_warp *w, enum ptx_space space,
                             const uint64_t address[PTX_LANES], uint32_t lanes, uint32_t count, uint32_t pc);
/* Takes `bytes` off what the mbarrier at this shared address expects. False = fault. */
bool ptx_mbarrier_complete(struct ptx_run *r, struct ptx_warp *w, unsigned lane, uint64_t address, uint32_t bytes,
                           uint32_t pc);

#endif
