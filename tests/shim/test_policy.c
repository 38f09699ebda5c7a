#include "core_test.h"
