/* What the 32 lanes of a warp do together. */
#include "ptx/conformance/ints.h"

#include <string.h>

static bool is(const struct form *f, const char *name)
{
    return !strcmp(f->name, name);
}

/* c holds a clamp value in bits 4..0 and a mask of segments in bits 12..8. */
static void ref_shfl(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                     uint64_t out[CONFORM_RESULTS][CONFORM_LANES])
{
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned b = in[1][lane] & 31, clamp = in[2][lane] & 31, segment = in[2][lane] >> 8 & 31;
        int limit = (int)((lane & segment) | (clamp & ~segment)), from;
        bool valid;
        if (strstr(f->text, ".up")) {
            from = (int)lane - (int)b;
            valid = from >= limit;
        } else {
            if (strstr(f->text, ".down"))
                from = (int)(lane + b);
            else if (strstr(f->text, ".bfly"))
                from = (int)(lane ^ b);
            else
                from = (int)((lane & segment) | (b & ~segment));
            valid = from <= limit;
        }
        out[0][lane] = in[0][valid ? from & 31 : (int)lane];
        out[1][lane] = valid;
    }
}

static void ref_vote(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                     uint64_t out[CONFORM_RESULTS][CONFORM_LANES])
{
    uint64_t ballot = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        ballot |= (in[0][lane] & 1) << lane;
    uint64_t result = strstr(f->text, ".all")   ? ballot == UINT32_MAX
                      : strstr(f->text, ".any") ? ballot != 0
                      : strstr(f->text, ".uni") ? ballot == UINT32_MAX || !ballot
                                                : ballot;
    for (unsigned lane = 0; lane < 32; lane++)
        out[0][lane] = result;
}

static void ref_match(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                      uint64_t out[CONFORM_RESULTS][CONFORM_LANES])
{
    for (unsigned lane = 0; lane < 32; lane++) {
        uint64_t same = 0;
        for (unsigned other = 0; other < 32; other++)
            same |= (uint64_t)(in[0][other] == in[0][lane]) << other;
        bool all = same == UINT32_MAX;
        out[0][lane] = strstr(f->text, ".any") ? same : all ? UINT32_MAX : 0;
        out[1][lane] = all;
    }
}

static void ref_redux(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                      uint64_t out[CONFORM_RESULTS][CONFORM_LANES])
{
    wide sum = 0, min = typed(in[0][0], f->types[0]), max = min;
    uint64_t and = UINT32_MAX, or = 0, xor = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        wide value = typed(in[0][lane], f->types[0]);
        sum += value;
        min = value < min ? value : min;
        max = value > max ? value : max;
        and &= in[0][lane];
        or |= in[0][lane];
        xor ^= in[0][lane];
    }
    uint64_t result = (uint64_t)(form_has(f, M_add) ? sum : form_has(f, M_min) ? min : max);
    if (form_has(f, M_and) || form_has(f, M_or) || form_has(f, M_xor))
        result = form_has(f, M_and) ? and : form_has(f, M_or) ? or : xor;
    for (unsigned lane = 0; lane < 32; lane++)
        out[0][lane] = result;
}

/* Some lane of the warp, and who it is; all lanes see the same. Here it is the lowest. */
static void ref_all_active(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                           uint64_t out[CONFORM_RESULTS][CONFORM_LANES])
{
    (void)in;
    for (unsigned lane = 0; lane < 32; lane++) {
        out[0][lane] = is(f, "elect") ? 0 : UINT32_MAX;
        out[1][lane] = lane == 0;
    }
}

const struct conform_row rows_warp[] = {
    {"shfl<.up|.down|.bfly|.idx>.b32 $D|$E, $a, $b, $c", "ip:iis", .warp_reference = ref_shfl, .open = true,
     .target = "sm_60"},
    {"shfl.sync<.up|.down|.bfly|.idx>.b32 $D|$E, $a, $b, $c, -1", "ip:iii", .warp_reference = ref_shfl, .open = true},
    {"vote<.all|.any|.uni>.pred $D, $a", "p:p", .warp_reference = ref_vote, .target = "sm_60"},
    {"vote.ballot.b32 $D, $a", "i:p", .warp_reference = ref_vote, .target = "sm_60"},
    {"vote.sync<.all|.any|.uni>.pred $D, $a, -1", "p:p", .warp_reference = ref_vote},
    {"vote.sync.ballot.b32 $D, $a, -1", "i:p", .warp_reference = ref_vote},
    {"match.any.sync.b32 $D, $a, -1", "i:q", .warp_reference = ref_match},
    {"match.any.sync.b64 $D, $a, -1", "i:l", .warp_reference = ref_match},
    {"match.all.sync.b32 $D|$E, $a, -1", "ip:q", .warp_reference = ref_match},
    {"match.all.sync.b64 $D|$E, $a, -1", "ip:l", .warp_reference = ref_match},
    {"redux.sync<.add|.min|.max><.u32|.s32> $D, $a, -1", "i:i", .warp_reference = ref_redux},
    {"redux.sync<.and|.or|.xor>.b32 $D, $a, -1", "i:i", .warp_reference = ref_redux},
    {"activemask.b32 $D", "i:", .warp_reference = ref_all_active},
    {"elect.sync $D|$E, -1", "ip:", .warp_reference = ref_all_active},
};
const size_t rows_warp_count = sizeof(rows_warp) / sizeof(rows_warp[0]);
