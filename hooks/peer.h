#ifndef HR_HOOKS_PEER_H
#define HR_HOOKS_PEER_H

#include "shim/shim.h"

/* Whether copies between two GPUs of ours arrive, as far as is known; the same one is always usable. */
bool hr_peer_usable(CUdevice a, CUdevice b) HR_HIDDEN;

#endif
