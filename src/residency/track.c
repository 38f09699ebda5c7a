#include "residency/track.h"

#include "base/config.h"
#include "base/lock.h"
#include "fabric/machine.h"
#include "residency/context.h"

#include <stdlib.h>

static struct hr_mutex tracks_lock = HR_MUTEX_INIT(HR_RANK_FENCE + 1, "tracks");
static struct hr_track *tracks; /* guarded by tracks_lock: those that nobody has */
struct user {                   /* a context of which there have been tracks, or that is about to end */
    CUcontext context;
    unsigned out; /* of its tracks */
    unsigned ending;
    struct user *next;
};
static struct user *users;   /* guarded by tracks_lock */
static struct hr_cond given; /* with tracks_lock: a track came back whose context is about to end */
static bool given_ready;     /* guarded by tracks_lock */

static void destroy(struct hr_track *track)
{
    for (int i = 0; i < HR_TRACK_STREAMS; i++) {
        if (track->stream[i])
            hr_drv.cuStreamDestroy_v2(track->stream[i]);
        if (track->end[i])
            hr_drv.cuEventDestroy_v2(track->end[i]);
    }
    for (int i = 0; i < HR_TRACK_EVENTS; i++)
        if (track->event[i])
            hr_drv.cuEventDestroy_v2(track->event[i]);
    for (int i = 0; i < 2; i++)
        if (track->timed[i])
            hr_drv.cuEventDestroy_v2(track->timed[i]);
    free(track);
}

/* NULL: no memory. */
static struct user *user_locked(CUcontext context) HR_REQUIRES(tracks_lock)
{
    struct user *user = users;
    while (user && user->context != context)
        user = user->next;
    if (!user && (user = calloc(1, sizeof *user))) {
        user->context = context;
        user->next = users;
        users = user;
    }
    return user;
}

static void count_back_locked(CUcontext context) HR_REQUIRES(tracks_lock)
{
    struct user *user = user_locked(context);
    if (!user || user->out == 0)
        return;
    user->out--;
    if (user->ending && given_ready)
        hr_cond_broadcast(&given);
}

static CUresult make(CUcontext context, struct hr_track **track_out)
{
    struct hr_track *track = calloc(1, sizeof *track);
    CUresult r = track ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < HR_TRACK_STREAMS && r == CUDA_SUCCESS; i++) {
        r = hr_drv.cuStreamCreate(&track->stream[i], CU_STREAM_NON_BLOCKING);
        if (r == CUDA_SUCCESS)
            r = hr_drv.cuEventCreate(&track->end[i], CU_EVENT_DISABLE_TIMING);
    }
    for (int i = 0; i < HR_TRACK_EVENTS && r == CUDA_SUCCESS; i++)
        r = hr_drv.cuEventCreate(&track->event[i], CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < 2 && r == CUDA_SUCCESS && hr_config()->routes == HR_ROUTES_PROBE; i++)
        r = hr_drv.cuEventCreate(&track->timed[i], CU_EVENT_DEFAULT);
    if (r != CUDA_SUCCESS) {
        if (track)
            destroy(track);
        return r;
    }
    track->context = context;
    *track_out = track;
    return CUDA_SUCCESS;
}

CUresult hr_track_take(CUcontext context, struct hr_track **track_out)
{
    struct hr_track *found = NULL;
    hr_mutex_lock(&tracks_lock);
    struct user *user = user_locked(context);
    bool may = user && !user->ending;
    struct hr_track **link = &tracks;
    while (may && *link && (*link)->context != context)
        link = &(*link)->next;
    if (may && *link) {
        found = *link;
        *link = found->next;
    }
    if (may)
        user->out++;
    hr_mutex_unlock(&tracks_lock);
    if (!may)
        return user ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = hr_drv.cuCtxSetCurrent(context); /* it lives as long as the track is out */
    if (r == CUDA_SUCCESS && !found)
        r = make(context, &found);
    if (r == CUDA_SUCCESS) {
        found->next = NULL;
        *track_out = found;
    } else if (found) {
        hr_track_give(found);
    } else {
        hr_mutex_lock(&tracks_lock);
        count_back_locked(context);
        hr_mutex_unlock(&tracks_lock);
    }
    return r;
}

void hr_track_give(struct hr_track *track)
{
    hr_mutex_lock(&tracks_lock);
    track->next = tracks;
    tracks = track;
    count_back_locked(track->context);
    hr_mutex_unlock(&tracks_lock);
}

bool hr_track_rests(const struct hr_track *track, CUresult *error_out)
{
    bool rests = true;
    for (int i = 0; i < HR_TRACK_STREAMS; i++) {
        CUresult r = hr_drv.cuStreamQuery(track->stream[i]);
        rests = rests && r != CUDA_ERROR_NOT_READY;
        if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
            *error_out = r;
    }
    return rests;
}

/* An error is told before or after the end of the work, so it is asked until there is none, or it stays. */
CUresult hr_track_wait(const struct hr_track *track)
{
    CUresult first = CUDA_SUCCESS;
    for (int i = 0; i < HR_TRACK_STREAMS; i++) {
        CUresult r = hr_drv.cuStreamSynchronize(track->stream[i]);
        if (r != CUDA_SUCCESS) {
            first = hr_context_first_error(first, r);
            if (r == CUDA_ERROR_NVLINK_UNCORRECTABLE)
                hr_fabric_doubt();
            hr_drv.cuStreamSynchronize(track->stream[i]);
        }
    }
    return first;
}

void hr_track_close(CUcontext context)
{
    hr_mutex_lock(&tracks_lock);
    struct user *user = user_locked(context);
    if (user)
        user->ending++; /* several threads may try */
    hr_mutex_unlock(&tracks_lock);
}

bool hr_track_are_back(CUcontext context, uint64_t deadline_ns)
{
    hr_mutex_lock(&tracks_lock);
    const struct user *user = user_locked(context);
    if (!given_ready)
        hr_cond_init(&given);
    given_ready = true;
    if (user && user->out > 0)
        hr_cond_wait_until(&given, &tracks_lock, deadline_ns);
    user = user_locked(context); /* another thread may have ended it */
    bool back = !user || user->out == 0;
    hr_mutex_unlock(&tracks_lock);
    return back;
}

void hr_track_ended(CUcontext context, bool gone)
{
    struct hr_track *dead = NULL;
    hr_mutex_lock(&tracks_lock);
    for (struct user **link = &users; *link; link = &(*link)->next) {
        struct user *user = *link;
        if (user->context != context)
            continue;
        if (user->ending > 0)
            user->ending--;
        if (gone && user->ending == 0) {
            *link = user->next;
            free(user);
        }
        break;
    }
    for (struct hr_track **link = &tracks; gone && *link;) {
        struct hr_track *track = *link;
        if (track->context != context) {
            link = &track->next;
            continue;
        }
        *link = track->next;
        track->next = dead;
        dead = track;
    }
    hr_mutex_unlock(&tracks_lock);
    while (dead) { /* what it had went with the context */
        struct hr_track *next = dead->next;
        free(dead);
        dead = next;
    }
}

void hr_track_leave(CUcontext context)
{
    struct hr_track *dead = NULL;
    hr_mutex_lock(&tracks_lock);
    for (struct hr_track **link = &tracks; *link;) {
        struct hr_track *track = *link;
        if (track->context != context) {
            link = &track->next;
            continue;
        }
        *link = track->next;
        track->next = dead;
        dead = track;
    }
    hr_mutex_unlock(&tracks_lock);
    while (dead) {
        struct hr_track *next = dead->next;
        destroy(dead);
        dead = next;
    }
}
