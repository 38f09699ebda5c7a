/* What values a kind of operand is tried with. */
#ifndef TEST_PTX_VALUES_H
#define TEST_PTX_VALUES_H

#include <stdint.h>

#define VALUES_CORE 12u /* the first so many special values are tried in triples, all of them in pairs */

unsigned values_count(char kind);
uint64_t values_special(char kind, unsigned index);
uint64_t values_random(char kind, uint64_t *state);
unsigned values_bits(char kind); /* 16, 32, 64; 1 for predicates */

#endif
