#include "ptx/conformance/conform.h"

const struct conform_table conform_tables[] = {{0}};
