/* The traffic of the machine's ports, in the statistics log: where routers count it (routers.h). */
#ifndef HR_FABRIC_PORTCOUNT_H
#define HR_FABRIC_PORTCOUNT_H

#include "fabric/routers.h"

/*
 * From now on each line of figures in the log has it. The topology is the routers' own, with the CUDA ordinals of its GPUs (-1 = none); only
 * what is plugged in where is taken from it, which does not change. The routers must stay. Once; without memory nothing is counted.
 */
void hr_portcount_start(const struct hr_routers *routers, const struct hr_topology *topology, const int *ordinal);

#endif
