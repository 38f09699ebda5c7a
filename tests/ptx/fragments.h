/* Where the PTX ISA says that the elements of mma's fragments are: element i of a lane, by the size of an element in bytes. */
#ifndef TEST_PTX_FRAGMENTS_H
#define TEST_PTX_FRAGMENTS_H

#include <stdbool.h>

enum role { A, B, C };

struct shape {
    const char *name;
    unsigned m, n, k;
};

struct place {
    unsigned row, col;
};

static inline struct place place_of(const struct shape *s, enum role role, unsigned bytes, unsigned lane, unsigned i)
{
    unsigned group = lane >> 2, thread = lane % 4;
    if (role == C)
        return (struct place){i < 2 ? group : group + 8, thread * 2 + (i & 1)};
    if (role == B) {
        unsigned row = 0;
        switch (bytes) {
        case 1: row = thread * 4 + (i & 3) + (i < 4 ? 0 : 16); break;
        case 2: row = thread * 2 + (i & 1) + (i < 2 ? 0 : 8); break;
        default: row = thread + 4 * i; break;
        }
        return (struct place){row, group};
    }
    bool low = true;
    unsigned col = 0;
    switch (bytes) {
    case 1:
        low = i < 4 || (i >= 8 && i < 12);
        col = thread * 4 + (i & 3) + (i < 8 ? 0 : 16);
        break;
    case 2:
        low = s->k == 8 ? i < 2 : i < 2 || (i >= 4 && i < 6);
        col = thread * 2 + (i & 1) + (i < 4 ? 0 : 8);
        break;
    case 4:
        low = i == 0 || i == 2;
        col = i < 2 ? thread : thread + 4;
        break;
    default:
        low = i % 2 == 0;
        col = i % 2 == 0 ? i * 2 + thread : i * 2 - 2 + thread;
        break;
    }
    return (struct place){low ? group : group + 8, col};
}

#endif
