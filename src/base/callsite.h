/*
 * Where in the job a call came from: raw return addresses, kept unsymbolised. `headroom report` turns them into names later.
 *
 * libunwind is opened lazily, RTLD_LOCAL, and never linked: as a linked dependency it would slow and break C++ exceptions in the
 * host program. Where it is missing a call site has one frame. Capturing costs microseconds: sample, never on every call.
 */
#ifndef HR_BASE_CALLSITE_H
#define HR_BASE_CALLSITE_H

#include <stddef.h>
#include <stdint.h>

#define HR_CALLSITE_DEPTH 12

struct hr_callsite {
    uint32_t depth;
    void *pc[HR_CALLSITE_DEPTH]; /* innermost first, frames of this library left out */
};

/*
 * The stack of the calling thread. return_pc is the job's return address (__builtin_return_address(0) of the hook), the only
 * frame where libunwind is missing. Not before cuInit. Locks: the dynamic loader's, inside libunwind.
 */
void hr_callsite_capture(void *return_pc, struct hr_callsite *site_out);

/* A hash of the frames, for tables of call sites; never 0. */
uint64_t hr_callsite_hash(const struct hr_callsite *site);

/* "path+0xoffset" of an address, offset within the object as addr2line wants it; "0x..." where no object holds it. */
void hr_callsite_describe(const void *pc, char *out, size_t out_bytes);

#endif
