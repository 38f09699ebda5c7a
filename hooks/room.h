/* Calls that take VRAM of the driver's own: room is made for them, and what they took lowers what the windows may use. */
#ifndef HR_HOOKS_ROOM_H
#define HR_HOOKS_ROOM_H

#include "driver/driver.h"
#include "shim/shim.h"

#include <stdbool.h>

#define HR_ROOM_FOR_CODE ((size_t)16 << 20)

struct hr_room {
    struct hr_context *context;
    size_t free_before;
    size_t held_bytes;
};

/* Before the call, which needs about `bytes`; hr_room_end after it, which returns r. */
struct hr_room hr_room_begin(void) HR_HIDDEN;
CUresult hr_room_end(const struct hr_room *room, CUresult r) HR_HIDDEN;
/*
 * Whether the call, which returned r, should be made again: there is more room now, which nobody else takes until the end. Each time more is moved out
 * than before, first `bytes` or a little more. Locks: takes the move lock; hold none, and no submission.
 */
bool hr_room_make(struct hr_room *room, CUresult r, size_t bytes) HR_HIDDEN;

/* Makes the real call, and again where room could be made; sets r. */
#define HR_CALL_WITH_ROOM(r, bytes, real, ...)                                                                         \
    do {                                                                                                               \
        HR_INSIDE();                                                                                                   \
        struct hr_room room_ = hr_room_begin();                                                                        \
        (r) = hr_drv.real(__VA_ARGS__);                                                                                \
        while (hr_room_make(&room_, (r), bytes))                                                                       \
            (r) = hr_drv.real(__VA_ARGS__);                                                                            \
        (r) = hr_room_end(&room_, (r));                                                                                \
    } while (0)
/* The same, and returns from the hook. */
#define HR_WITH_ROOM(bytes, real, ...)                                                                                 \
    do {                                                                                                               \
        CUresult r_;                                                                                                   \
        HR_CALL_WITH_ROOM(r_, bytes, real, __VA_ARGS__);                                                               \
        return r_;                                                                                                     \
    } while (0)

#endif
