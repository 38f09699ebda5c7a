#include "core_test.h"

#include "support/sanitizer.h"

/* Random moves of 8 MiB runs in a 1 GiB buffer: the moved run is checked after each, every byte at the end. */
#define MOVES (SANITIZED_THREADS ? 250 : 1000)
#define BUFFER_BYTES ((SANITIZED_THREADS ? 256 : 1024) * MIB)
static void random_moves(const char *deny)
{
    const size_t bytes = BUFFER_BYTES, run = 8 * MIB;
    CUdeviceptr buffer;
    machine("h200,vram=1536M", deny);
    void *host = malloc(run);
    OK(cuMemAlloc_v2(&buffer, bytes));
    for (size_t at = 0; at < bytes; at += run) {
        fill(host, run, 1, at / 8);
        OK(cuMemcpyHtoD_v2(buffer + at, host, run));
    }
    struct hr_thread *t = hr_thread_self();
    uint64_t state = 12345;
    size_t out = 0, in = 0;
    for (int move = 0; move < MOVES; move++) {
        state = state * UINT64_C(6364136223846793005) + 1;
        size_t at = (state >> 33) % (bytes / run) * run;
        struct hr_chunk *c = hr_space_chunk(buffer + at);
        size_t moved = atomic_load(&c->state) == HR_CHUNK_RESIDENT ? hr_access_evict_range(t, buffer + at, run)
                                                                   : hr_access_restore_range(t, buffer + at, run);
        cr_assert_eq(moved, run / CHUNK, "move %d moved %zu chunks", move, moved);
        *(atomic_load(&c->state) == HR_CHUNK_RESIDENT ? &in : &out) += 1;
        OK(cuMemcpyDtoH_v2(host, buffer + at, run));
        check(host, run, 1, at / 8);
    }
    cr_assert(out > MOVES * 3 / 10 && in > MOVES * 3 / 10, "%zu out, %zu in", out, in);
    for (size_t at = 0; at < bytes; at += run) {
        OK(cuMemcpyDtoH_v2(host, buffer + at, run));
        check(host, run, 1, at / 8);
    }
    cr_assert_eq(hr_stat_sum(HR_STAT_moved_out_bytes), out * run);
    cr_assert_eq(hr_stat_sum(HR_STAT_moved_in_bytes), in * run);
    free(host);
}

Test(moves, keep_every_byte_where_host_memory_can_be_mapped, .timeout = 300)
{
    random_moves("");
}

Test(moves, keep_every_byte_where_host_memory_cannot_be_mapped, .timeout = 300)
{
    random_moves("host_numa");
}

static uint64_t parts_ns(void)
{
    return hr_stat_sum(HR_STAT_stall_drain_ns) + hr_stat_sum(HR_STAT_stall_copy_ns) + hr_stat_sum(HR_STAT_stall_map_ns);
}

/* What memory costs outside of launches is no part of what they waited. */
Test(moves, what_launches_waited_for_is_part_of_what_they_waited, .timeout = 60)
{
    CUdeviceptr p[8];
    setenv("HEADROOM_COMMIT", "eager", 1);
    machine("h200,vram=24M", "");
    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc_v2(&p[i], 6 * MIB));
        OK(cuMemsetD8_v2(p[i], 1, 6 * MIB));
    }
    OK(cuCtxSynchronize());
    CHECK(hr_stat_sum(HR_STAT_fresh_host_bytes) > 0);
    CHECK(hr_stat_sum(HR_STAT_stall_ns) == 0 && parts_ns() == 0, "no launch yet: %llu", (unsigned long long)parts_ns());
    for (int i = 0; i < 40; i++) {
        OK(stride_add(p[i % 8], 4096, 256, 1, NULL));
        OK(cuCtxSynchronize());
    }
    uint64_t stall_ns = hr_stat_sum(HR_STAT_stall_ns);
    CHECK(parts_ns() > 0 && parts_ns() <= stall_ns, "%llu of %llu", (unsigned long long)parts_ns(),
          (unsigned long long)stall_ns);
}
