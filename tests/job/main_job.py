#!/usr/bin/env python3
"""The main job: train_gpt with several times the memory of its GPU, bit-identical to a run with enough.

main_job.py BUILD_DIR [--steps N] [--small] [--few] [--only NAME]

Runs the job on a simulated GPU with plenty of memory and on one with 64 MiB, without headroom (it must end in
CUDA_ERROR_OUT_OF_MEMORY) and with it, in several ways; compares standard output byte by byte, reads the simulated GPU's
report, and prints the figures as a table. Exits 1 if anything is not as it must be. With --small (for builds with a
sanitizer) the card has 16 MiB and the job is as much smaller; --few leaves out the runs with one stream.
HEADROOM_TEST_LONG in the environment means four steps and every run.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
FULL = {"vram": 64, "four": [], "eight": ["--layers", "36"], "arena": ["--layers", "7"]}
SMALL = {"vram": 16, "four": ["--layers", "4"], "eight": ["--layers", "9"], "arena": ["--layers", "1"]}


class Case:
    def __init__(self, name, flags, vram_factor=1, settings=None, env=None, most_vram=None, least_vram=0.8,
                 vram_share=0.0, preload_only=False):
        self.name, self.flags, self.vram_factor = name, flags, vram_factor
        self.settings, self.env = settings or {}, env or {}
        self.most_vram, self.least_vram, self.vram_share, self.preload_only = most_vram, least_vram, vram_share, preload_only


def cases(size):
    four, vram = size["four"], size["vram"]
    unmappable = {"SIMGPU_DENY": "host_numa"}
    return [
        Case("4x", four, vram_share=0.9),
        Case("4x, 2 streams", four + ["--streams", "2"]),
        Case("4x, 4 streams", four + ["--streams", "4"]),
        Case("4x, host memory not mappable", four, env=unmappable, vram_share=0.9),
        Case("4x, not mappable, 4 streams", four + ["--streams", "4"], env=unmappable),
        Case("4x of a cap, half of the card", four, vram_factor=2, settings={"HEADROOM_VRAM": f"{vram}M"},
             most_vram=vram * MIB, least_vram=0.4),
        Case("4x, LD_PRELOAD alone", four, settings={"HEADROOM_RATIO": "6"}, preload_only=True),
        Case("8x", size["eight"]),
    ]


class Runner:
    def __init__(self, build, steps, size):
        self.build, self.steps, self.size, self.failures = build, steps, size, []
        self.references = {}

    def job(self, flags):
        return [os.path.join(self.build, "examples", "train_gpt"), "--steps", str(self.steps)] + flags

    def run(self, command, env):
        start = time.time()
        done = subprocess.run(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done, time.time() - start

    def check(self, case, what, ok):
        if not ok:
            self.failures.append(f"{case}: {what}")
        return ok

    def reference(self, flags):
        """Standard output with enough memory; streams and arena must not matter."""
        key = tuple(f for i, f in enumerate(flags)
                    if f not in ("--streams", "--arena") and (i == 0 or flags[i - 1] != "--streams"))
        if key not in self.references:
            done, _ = self.run([self.headroom, "sim", "h200", "--"] + self.job(list(key)), {})
            self.check("reference", "exit status 0: " + done.stderr, done.returncode == 0)
            self.references[key] = done.stdout
        return self.references[key]

    @property
    def headroom(self):
        return os.path.join(self.build, "headroom")

    def out_of_memory(self, name, command, env):
        done, _ = self.run(command, env)
        self.check(name, "must fail", done.returncode != 0)
        self.check(name, "must name CUDA_ERROR_OUT_OF_MEMORY and cuMemAlloc: " + done.stderr[-300:],
                   "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr and "cuMemAlloc" in done.stderr)
        print(f"{name}: {done.stderr.strip().splitlines()[-1]}", flush=True)

    def preload_env(self, case_env, machine, settings):
        return {"LD_PRELOAD": os.path.join(self.build, "libheadroom.so"),
                "LD_LIBRARY_PATH": os.path.join(self.build, "simgpu"), "SIMGPU": machine, **settings, **case_env}

    def case(self, case, folder):
        report, stats = os.path.join(folder, "report.json"), os.path.join(folder, "stats.jsonl")
        for path in (report, stats):
            if os.path.exists(path):
                os.unlink(path)
        env = {"SIMGPU_REPORT": report, "HEADROOM_STATS": stats, **case.env}
        expected = self.reference(case.flags)
        machine = f"h200,vram={case.vram_factor * self.size['vram']}M"
        if case.preload_only:
            done, seconds = self.run(self.job(case.flags), self.preload_env(env, machine, case.settings))
        else:
            done, seconds = self.run([self.headroom, "run", "--sim", machine, "--"] + self.job(case.flags),
                                     {**env, **case.settings})
        if not self.check(case.name, f"exit status {done.returncode}: {done.stderr[-400:]}", done.returncode == 0):
            return None
        self.check(case.name, "the same output as with enough memory", done.stdout == expected)
        gpu = json.load(open(report))["gpus"][0]
        summary = [json.loads(line) for line in open(stats)][-1]
        counters = summary["counters"]
        tiers = {t: gpu["kernel_read_bytes"][t] + gpu["kernel_write_bytes"][t] for t in ("vram", "peer", "host")}
        share = tiers["vram"] / max(1, sum(tiers.values()))
        peak = gpu["peak_vram_bytes"]
        self.check(case.name, "nothing unmapped in flight", gpu["unmapped_in_flight"] == 0)
        self.check(case.name, "nothing freed in flight", gpu["freed_in_flight"] == 0)
        self.check(case.name, f"peak VRAM {peak} of {gpu['vram_bytes']}", peak >= case.least_vram * gpu["vram_bytes"])
        self.check(case.name, f"peak VRAM {peak} within the cap", case.most_vram is None or peak <= case.most_vram)
        # How often a move succeeds depends on time, which a sanitizer stretches; what is computed does not.
        self.check(case.name, f"{share:.3f} of the bytes from VRAM", self.size is SMALL or share >= case.vram_share)
        self.check(case.name, "bytes were moved both ways",
                   counters["moved_in_bytes"] > 0 and counters["moved_out_bytes"] > 0)
        print(f"{case.name:32} {seconds:7.1f} s  peak {peak / MIB:6.1f} MiB  from VRAM {100 * share:6.2f} %  "
              f"in {counters['moved_in_bytes'] / MIB:8.0f} MiB  out {counters['moved_out_bytes'] / MIB:8.0f} MiB  "
              f"hits {100 * counters['launches_resident'] / max(1, counters['launches']):5.1f} %", flush=True)
        return counters["moved_in_bytes"] + counters["moved_out_bytes"]

    def arena(self, folder):
        """One allocation of more than the VRAM that the job cuts up itself moves no more than one a buffer, by a margin."""
        flags = self.size["arena"]
        apart = self.case(Case("an allocation a buffer", flags), folder)
        whole = self.case(Case("one allocation, an arena", flags + ["--arena"]), folder)
        self.check("arena", f"moved {whole} bytes, an allocation a buffer {apart}",
                   apart is not None and whole is not None and whole <= 1.5 * apart)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--steps", type=int, default=4 if os.environ.get("HEADROOM_TEST_LONG") else 1)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--few", action="store_true", help="those with several streams, unless HEADROOM_TEST_LONG is set")
    parser.add_argument("--only")
    args = parser.parse_args()
    size = SMALL if args.small else FULL
    runner = Runner(os.path.abspath(args.build), args.steps, size)
    machine = f"h200,vram={size['vram']}M"
    runner.out_of_memory("without headroom", [runner.headroom, "sim", machine, "--"] + runner.job(size["four"]), {})
    runner.out_of_memory("HEADROOM_RATIO=2", runner.job(size["four"]),
                         runner.preload_env({}, machine, {"HEADROOM_RATIO": "2"}))
    with tempfile.TemporaryDirectory() as folder:
        few = args.few and not os.environ.get("HEADROOM_TEST_LONG")
        for case in cases(size):
            if args.only == case.name or (args.only is None and not (few and "--streams" not in case.flags)):
                runner.case(case, folder)
        if (args.only is None and not few) or args.only == "arena":
            runner.arena(folder)
    for failure in runner.failures:
        print("FAILED " + failure)
    return 1 if runner.failures else 0


if __name__ == "__main__":
    sys.exit(main())
