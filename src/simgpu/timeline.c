/* Lines: how an engine is used over virtual time, finding room on it, and what has been used when. */
#include "simgpu/sim.h"

#include <stdlib.h>
#include <string.h>

#define MANY_STEPS 4096 /* then the older half is summed up and forgotten */

const char *const sg_line_names[SG_LINE_COUNT] = {"sms", "h2d", "d2h", "d2d", "peer"};

static struct sg_timed timed[SG_MAX_DEVICES];

struct sg_timed *sg_timed(int device)
{
    return &timed[device];
}

/* The step that holds at this time. Times before the first step are free of use. */
static size_t step_at(const struct sg_profile *p, uint64_t ns)
{
    size_t low = 0, high = p->count;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (p->step[mid].at_ns <= ns)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static uint64_t step_end(const struct sg_profile *p, size_t i)
{
    return i + 1 < p->count ? p->step[i + 1].at_ns : UINT64_MAX;
}

struct sg_slot sg_profile_find(const struct sg_profile *p, uint64_t ready_ns, uint32_t want, uint32_t least,
                               sg_duration_fn *duration_ns, const void *of)
{
    struct sg_slot slot = {ready_ns, 0, want};
    if (!p->count) {
        slot.end_ns = ready_ns + duration_ns(of, ready_ns, want);
        return slot;
    }
    for (size_t i = step_at(p, ready_ns);; i++) {
        if (p->step[i].at_ns > slot.start_ns)
            slot.start_ns = p->step[i].at_ns;
        uint32_t room = p->capacity - p->step[i].used;
        slot.units = want < room ? want : room;
        if (slot.units < least)
            continue; /* the last step has all the room */
        slot.end_ns = slot.start_ns + duration_ns(of, slot.start_ns, slot.units);
        size_t j = i;
        while (step_end(p, j) < slot.end_ns) {
            room = p->capacity - p->step[++j].used;
            if (room >= slot.units)
                continue;
            if (room < least)
                break;
            slot.units = room; /* fewer for longer */
            slot.end_ns = slot.start_ns + duration_ns(of, slot.start_ns, room);
        }
        if (step_end(p, j) >= slot.end_ns && p->capacity - p->step[j].used >= slot.units)
            return slot;
        i = j - 1; /* goes on at the step that was in the way */
    }
}

uint32_t sg_profile_most(const struct sg_profile *p, uint64_t start_ns, uint64_t end_ns)
{
    uint32_t most = 0;
    if (!p->count)
        return 0;
    for (size_t i = step_at(p, start_ns); i < p->count && p->step[i].at_ns < end_ns; i++)
        if (p->step[i].used > most)
            most = p->step[i].used;
    return most;
}

uint64_t sg_profile_transfer(const struct sg_profile *other, uint64_t start_ns, uint64_t bytes, double full_gbps,
                             double rest_gbps)
{
    double left = (double)bytes, at = (double)start_ns;
    for (size_t i = other->count ? step_at(other, start_ns) : 0; i + 1 < other->count; i++) {
        double rate = other->step[i].used ? rest_gbps : full_gbps, end = (double)step_end(other, i);
        if (at + left / rate <= end)
            return (uint64_t)(at + left / rate + 0.5);
        if (end > at) {
            left -= (end - at) * rate;
            at = end;
        }
    }
    return (uint64_t)(at + left / full_gbps + 0.5);
}

/* Makes a step begin at this time; its index. */
static size_t split(struct sg_profile *p, uint64_t ns)
{
    size_t i = step_at(p, ns);
    if (p->step[i].at_ns == ns)
        return i;
    memmove(&p->step[i + 2], &p->step[i + 1], (p->count - i - 1) * sizeof p->step[0]);
    p->step[i + 1] = (struct sg_step){ns, p->step[i].used};
    p->count++;
    return i + 1;
}

static void merge(struct sg_profile *p, size_t i)
{
    if (!i || i >= p->count || p->step[i - 1].used != p->step[i].used)
        return;
    memmove(&p->step[i], &p->step[i + 1], (p->count - i - 1) * sizeof p->step[0]);
    p->count--;
}

bool sg_profile_add(struct sg_profile *p, const struct sg_slot *slot)
{
    if (p->count + 3 > p->room) {
        size_t room = p->room ? p->room * 2 : 64;
        struct sg_step *more = realloc(p->step, room * sizeof *more);
        if (!more)
            return false;
        p->step = more;
        p->room = room;
    }
    if (!p->count)
        p->step[p->count++] = (struct sg_step){0, 0};
    if (slot->end_ns <= slot->start_ns)
        return true;
    size_t first = split(p, slot->start_ns), last = split(p, slot->end_ns);
    for (size_t i = first; i < last; i++)
        p->step[i].used += slot->units;
    merge(p, last);
    merge(p, first);
    return true;
}

/* ---- what was used when ---- */

static void sum_up(const struct sg_timed *t, uint64_t from_ns, uint64_t to_ns, struct sg_busy *sum)
{
    size_t at[SG_LINE_COUNT];
    for (int i = 0; i < SG_LINE_COUNT; i++)
        at[i] = t->line[i].count ? step_at(&t->line[i], from_ns) : 0;
    while (from_ns < to_ns) {
        uint64_t next = to_ns;
        bool used[SG_LINE_COUNT];
        for (int i = 0; i < SG_LINE_COUNT; i++) {
            const struct sg_profile *p = &t->line[i];
            used[i] = p->count && p->step[at[i]].used;
            uint64_t end = p->count ? step_end(p, at[i]) : UINT64_MAX;
            next = end < next ? end : next;
        }
        uint64_t ns = next - from_ns;
        bool copies = used[SG_LINE_H2D] || used[SG_LINE_D2H] || used[SG_LINE_D2D] || used[SG_LINE_PEER];
        for (int i = 0; i < SG_LINE_COUNT; i++)
            sum->line[i] += used[i] ? ns : 0;
        sum->any += used[SG_LINE_SM] || copies ? ns : 0;
        sum->compute_and_copy += used[SG_LINE_SM] && copies ? ns : 0;
        sum->copy_alone += !used[SG_LINE_SM] && copies ? ns : 0;
        sum->both_ways += used[SG_LINE_H2D] && used[SG_LINE_D2H] ? ns : 0;
        from_ns = next;
        for (int i = 0; i < SG_LINE_COUNT; i++)
            if (t->line[i].count && step_end(&t->line[i], at[i]) <= from_ns)
                at[i]++;
    }
}

static uint64_t last_step_ns(const struct sg_timed *t)
{
    uint64_t last = t->floor_ns;
    for (int i = 0; i < SG_LINE_COUNT; i++) {
        const struct sg_profile *p = &t->line[i];
        if (p->count && p->step[p->count - 1].at_ns > last)
            last = p->step[p->count - 1].at_ns;
    }
    return last;
}

void sg_timed_busy(int device, struct sg_busy *busy_out)
{
    const struct sg_timed *t = &timed[device];
    *busy_out = t->busy;
    sum_up(t, t->floor_ns, last_step_ns(t), busy_out);
}

static void forget_before(struct sg_timed *t, uint64_t ns)
{
    sum_up(t, t->floor_ns, ns, &t->busy);
    t->floor_ns = ns;
    for (int i = 0; i < SG_LINE_COUNT; i++) {
        struct sg_profile *p = &t->line[i];
        if (!p->count)
            continue;
        size_t keep = step_at(p, ns);
        memmove(p->step, p->step + keep, (p->count - keep) * sizeof p->step[0]);
        p->count -= keep;
    }
}

static uint64_t copy_duration(const void *of, uint64_t start_ns, uint32_t units)
{
    (void)units;
    return sg_price_copy(of, start_ns) - start_ns;
}

static uint64_t kernel_duration(const void *of, uint64_t start_ns, uint32_t units)
{
    (void)start_ns;
    return sg_price_kernel(of, units);
}

struct sg_slot sg_timed_find(const struct sg_vop *v, enum sg_line line, int device, uint64_t ready_ns)
{
    struct sg_timed *t = &timed[device];
    struct sg_profile *p = &t->line[line];
    p->capacity = line == SG_LINE_SM ? (uint32_t)sg.config.model->sm_count : 1;
    if (line == SG_LINE_PEER && sg.config.topology)
        p->capacity = 16; /* the links are lines of their own; an engine for each */
    if (ready_ns < t->floor_ns)
        ready_ns = t->floor_ns;
    if (line != SG_LINE_SM)
        return sg_profile_find(p, ready_ns, 1, 1, copy_duration, v);
    uint32_t want = sg_price_sms(v);
    return sg_profile_find(p, ready_ns, want, (want + 3) / 4, kernel_duration, v);
}

void sg_timed_add(const struct sg_vop *v, enum sg_line line, int device, const struct sg_slot *slot)
{
    struct sg_timed *t = &timed[device];
    struct sg_profile *p = &t->line[line];
    sg_profile_add(p, slot); /* if the host has no memory left, the line counts as free */
    if (p->count > MANY_STEPS)
        forget_before(t, p->step[p->count / 2].at_ns);
    sg_timeline_note(v, (int)line, device, slot->start_ns, slot->end_ns);
}
