/* Criterion keeps its parameterised tests in a header of their own; here they are part of criterion.h. */
#ifndef MINI_CRITERION_PARAMETERIZED_H
#define MINI_CRITERION_PARAMETERIZED_H

#include "criterion.h"

#endif
