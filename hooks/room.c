#include "room.h"

#include "residency/access.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "space/space.h"
#include "tier/tier.h"

struct hr_room hr_room_begin(void)
{
    struct hr_room room = {hr_context_current(), 0, 0};
    if (room.context)
        room.free_before = hr_gpu_free_beside_ours(room.context->gpu);
    return room;
}

bool hr_room_make(struct hr_room *room, CUresult r, size_t bytes)
{
    if (r != CUDA_ERROR_OUT_OF_MEMORY || !room->context)
        return false;
    unsigned gpu = room->context->gpu;
    size_t more = room->held_bytes > 0 ? 3 * room->held_bytes : HR_ROOM_FOR_CODE;
    size_t limit_bytes = (size_t)hr_tier_vram_limit(gpu) * hr_chunk_bytes(); /* without what is held */
    if (limit_bytes == 0 || bytes > limit_bytes + room->held_bytes)
        return false;
    more = more < bytes ? bytes : more;
    more = more < limit_bytes ? more : limit_bytes;
    room->held_bytes += more;
    hr_gpu_hold(gpu, more, true);
    size_t released = hr_access_release_vram(hr_thread_self(), gpu, more);
    room->free_before = hr_gpu_free_beside_ours(gpu);
    return released > 0;
}

CUresult hr_room_end(const struct hr_room *room, CUresult r)
{
    if (room->held_bytes > 0)
        hr_gpu_hold(room->context->gpu, room->held_bytes, false);
    if (r == CUDA_SUCCESS && room->context)
        hr_gpu_charge_overhead(room->context->gpu, room->free_before, hr_gpu_free_beside_ours(room->context->gpu));
    return r;
}
