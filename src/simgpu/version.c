/* The version that this library says it is: a file of its own, since variants of the library differ in it. */
#include "simgpu/sim.h"

#ifndef SG_DRIVER_VERSION
#define SG_DRIVER_VERSION 13000
#endif

const int sg_driver_version = SG_DRIVER_VERSION;
