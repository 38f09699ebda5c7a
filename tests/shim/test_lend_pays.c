/* What lending is good for, in virtual time. */
#include "lending.h"
#include "support/sanitizer.h"

/* Two thirds of GPU 0's memory are taken by a module's variables: three times what is left fits into GPU 0 and GPU 1 together. */
static void crowd_gpu_0(void)
{
    static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                               ".visible .global .align 16 .b8 ballast[%u];\n"
                               ".visible .entry nothing() { ret; }\n";
    char ptx[256];
    CUmodule ballast;
    snprintf(ptx, sizeof ptx, text, 172 * (unsigned)MIB);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuModuleLoadData(&ballast, ptx));
}

static struct {
    const char *machine, *peers;
    double host_gbps;
    double ns;
    uint64_t lent_bytes, moved_bytes;
} * figures;

/* Three rounds over all that GPU 0 has, once it has found its place. */
static void measure(void)
{
    use_all();
    use_all();
    uint64_t lent = hr_stat_sum(HR_STAT_lent_out_bytes), moved = hr_stat_sum(HR_STAT_moved_out_bytes),
             start_ns = virtual_ns();
    for (int round = 0; round < 3; round++)
        use_all();
    figures->ns = (double)(virtual_ns() - start_ns);
    figures->lent_bytes = hr_stat_sum(HR_STAT_lent_out_bytes) - lent;
    figures->moved_bytes = hr_stat_sum(HR_STAT_moved_out_bytes) - moved;
}

static void crowded_job(void)
{
    setenv("HEADROOM_PEERS", figures->peers, 1);
    machine_with(figures->machine, "", 3);
    buffer_bytes = 32 * MIB;
    crowd_gpu_0();
    fill_gpu_0(3);
    measure();
    if (strcmp(figures->peers, "off") != 0) { /* GPU 1 starts work */
        size_t bytes = hr_tier_vram_limit(1) * CHUNK;
        double copy_ns = (double)(hr_tier_peer.in_use_chunks(1) * CHUNK) / figures->host_gbps;
        double calls_ns = 30e3 * (double)bytes / (double)CHUNK; /* mapping what leaves, and what is new */
        CUdeviceptr own = allocate_on(1, bytes);
        uint64_t start_ns = virtual_ns();
        add(1, own, bytes, 1, NULL);
        OK(cuCtxSynchronize());
        double back_ns = (double)(virtual_ns() - start_ns);
        printf("%s: GPU 1 had %zu MiB back after %.2f ms, of which copying them takes %.2f ms\n", figures->machine,
               bytes / MIB, back_ns / 1e6, copy_ns / 1e6);
        CHECK(back_ns < copy_ns + calls_ns, "it waited for more than the copies");
        CHECK(in_state(own, bytes, HR_CHUNK_RESIDENT) == bytes / CHUNK && hr_tier_peer.in_use_chunks(1) == 0);
    }
    done();
}

/* Out over the link and in again, or to host memory and back: what is saved is what the link's rate saves, to a few percent. */
Test(lend_pays, a_job_of_three_times_its_vram_is_faster_by_what_the_link_is_faster, .timeout = 300)
{
    static const struct {
        const char *machine;
        double link_gbps, host_gbps; /* as the simulated machines have them */
        double least;                /* with the price of calls, which is the same for both */
    } machines[] = {{"4xa100,gpus=2,vram=288M,host=2G", 4 * 23, 26, 2.3},
                    {"h200,gpus=2,vram=288M,host=2G", 380, 50, 2.6}};
    figures = mmap(NULL, sizeof *figures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < (SANITIZED ? 1 : sizeof machines / sizeof *machines); i++) {
        double ns[2];
        for (int with = 0; with < 2; with++) {
            figures->machine = machines[i].machine;
            figures->host_gbps = machines[i].host_gbps;
            figures->peers = with ? "auto" : "off";
            free(safely(crowded_job));
            ns[with] = figures->ns;
        }
        cr_assert_eq(figures->lent_bytes, figures->moved_bytes, "not all of it went to GPU 1");
        double bytes = 2 * (double)figures->moved_bytes;
        double host_ns = bytes / machines[i].host_gbps, link_ns = bytes / machines[i].link_gbps,
               saved_ns = ns[0] - ns[1];
        printf(
            "%s: %.0f MiB out and in take %.2f ms by host memory and %.2f ms by GPU 1, %.2f times as fast; the copies "
            "alone %.2f and %.2f ms, the links %.2f times as fast\n",
            machines[i].machine, (double)figures->moved_bytes / MIB, ns[0] / 1e6, ns[1] / 1e6, ns[0] / ns[1],
            host_ns / 1e6, (link_ns + (host_ns - link_ns - saved_ns)) / 1e6,
            machines[i].link_gbps / machines[i].host_gbps);
        cr_assert(saved_ns > 0.95 * (host_ns - link_ns) && saved_ns < 1.05 * (host_ns - link_ns),
                  "%.2f ms were saved, and the links say %.2f", saved_ns / 1e6, (host_ns - link_ns) / 1e6);
        cr_assert(ns[0] / ns[1] > machines[i].least, "only %.2f times as fast", ns[0] / ns[1]);
    }
}

/* Moves go over every path as copies of the job do: GPUs 2 and 3, which need their memory themselves, pass on what GPU 1 lends. */
static void over_relays(void)
{
    bool relays = strcmp(figures->peers, "relays") == 0;
    setenv("HEADROOM_PEERS", "auto", 1);
    machine_with(figures->machine, "", relays ? 15 : 3);
    buffer_bytes = 32 * MIB;
    for (int g = 2; relays && g < 4; g++)
        allocate_on(g, hr_tier_vram_limit((unsigned)g) * CHUNK);
    fill_gpu_0(1.6);
    measure();
    CHECK(hr_stat_sum(HR_STAT_moves_failed) == 0);
    done();
}

Test(lend_pays, moves_between_gpus_go_over_every_path, .timeout = 300)
{
    double ns[2];
    figures = mmap(NULL, sizeof *figures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    figures->machine = "dgx1v,vram=256M,host=2G";
    for (int with = 0; with < 2; with++) {
        figures->peers = with ? "relays" : "lender";
        free(safely(over_relays));
        ns[with] = figures->ns;
        cr_assert_eq(figures->lent_bytes, figures->moved_bytes, "not all of it went to GPU 1");
    }
    printf("dgx1v: %.0f MiB to GPU 1 and back take %.2f ms over their own link, %.2f ms over GPUs 2 and 3 as well\n",
           (double)figures->moved_bytes / MIB, ns[0] / 1e6, ns[1] / 1e6);
    cr_assert(ns[0] / ns[1] > 2, "only %.2f times as fast", ns[0] / ns[1]);
}
