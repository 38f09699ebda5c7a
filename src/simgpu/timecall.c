/* Virtual time of host threads: what calls cost (costs.def), and the clocks that they advance. */
#include "simgpu/timecall.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#define SEEN_SLOTS 1024

enum class {
#define X(name) CLASS_##name,
    SG_COST_CLASSES(X)
#undef X
        CLASS_COUNT
};

static const struct {
    const char *function;
    enum class class;
    uint32_t ns;
} costs[] = {
#define SG_COST(function, class_, ns, source) {function, CLASS_##class_, ns},
#define SG_UNIT_COST(name, class_, ns, source)
#define SG_CONSTANT(name, value, source)
#include "simgpu/costs.def"
#undef SG_COST
#undef SG_UNIT_COST
};

static const struct {
    enum class class;
    double ns;
} unit_costs[SG_UNIT_COUNT] = {
#define SG_COST(function, class_, ns, source)
#define SG_UNIT_COST(name, class_, ns, source) [SG_UNIT_##name] = {CLASS_##class_, ns},
#include "simgpu/costs.def"
#undef SG_COST
#undef SG_UNIT_COST
#undef SG_CONSTANT
};

static struct {
    _Atomic(uint64_t) count, ns;
} totals[CLASS_COUNT];
static _Atomic(uint64_t) waited_ns, latest_ns;

/* The row of a function's name by the address of the literal: compared by content once for each. A slot holds the address
 * and the row in one word, so that it needs no lock. */
static unsigned row_of(const char *function)
{
    static _Atomic(uint64_t) seen[SEEN_SLOTS];
    uint64_t address = (uint64_t)(uintptr_t)function;
    _Atomic(uint64_t) *slot = &seen[(address * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
    uint64_t word = atomic_load_explicit(slot, memory_order_relaxed);
    if (word >> 16 == (address & (UINT64_MAX >> 16)))
        return (unsigned)(word & 0xffff);
    unsigned row = 0;
    for (unsigned i = 1; i < sizeof costs / sizeof costs[0]; i++)
        if (!strcmp(costs[i].function, function))
            row = i;
    atomic_store_explicit(slot, address << 16 | row, memory_order_relaxed);
    return row;
}

/* A thread that comes into being starts at the time of the latest one. */
static uint64_t *clock_of(struct sg_thread *t)
{
    if (!t->clock_ns)
        t->clock_ns = atomic_load_explicit(&latest_ns, memory_order_relaxed);
    return &t->clock_ns;
}

static void raise_latest(uint64_t ns)
{
    uint64_t seen = atomic_load_explicit(&latest_ns, memory_order_relaxed);
    while (seen < ns &&
           !atomic_compare_exchange_weak_explicit(&latest_ns, &seen, ns, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void advance(enum class class, uint64_t ns)
{
    uint64_t *clock = clock_of(sg_thread());
    *clock += ns;
    raise_latest(*clock);
    atomic_fetch_add_explicit(&totals[class].ns, ns, memory_order_relaxed);
}

void sg_time_call(const char *function)
{
    unsigned row = row_of(function);
    enum class class = costs[row].class;
    advance(class, costs[row].ns);
    atomic_fetch_add_explicit(&totals[class].count, 1, memory_order_relaxed);
    if (class != CLASS_query && class != CLASS_other)
        sg_thread()->polls = 0;
}

void sg_time_units(enum sg_unit_cost cost, double units)
{
    advance(unit_costs[cost].class, (uint64_t)(unit_costs[cost].ns * units));
}

uint64_t sg_thread_clock_ns(void)
{
    return *clock_of(sg_thread());
}

void sg_thread_clock_set(uint64_t ns)
{
    *clock_of(sg_thread()) = ns;
    raise_latest(ns);
}

void sg_thread_clock_join(uint64_t ns)
{
    uint64_t *clock = clock_of(sg_thread());
    if (*clock >= ns)
        return;
    atomic_fetch_add_explicit(&waited_ns, ns - *clock, memory_order_relaxed);
    *clock = ns;
    raise_latest(ns);
}

uint64_t sg_latest_clock_ns(void)
{
    return atomic_load_explicit(&latest_ns, memory_order_relaxed);
}

uint64_t sg_virtual_now_ns(void)
{
    return sg_thread_clock_ns();
}

void sg_call_report(FILE *f)
{
    static const char *const names[] = {
#define X(name) #name,
        SG_COST_CLASSES(X)
#undef X
    };
    fprintf(f, "  \"host_wait_ns\": %" PRIu64 ",\n  \"host_calls\": {", atomic_load(&waited_ns));
    for (int i = 0; i < CLASS_COUNT; i++)
        fprintf(f, "%s\"%s\": {\"count\": %" PRIu64 ", \"ns\": %" PRIu64 "}", i ? ", " : "", names[i],
                atomic_load(&totals[i].count), atomic_load(&totals[i].ns));
    fprintf(f, "},\n");
}
