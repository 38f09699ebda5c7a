#!/usr/bin/env python3
"""The check on one GPU: contract, probes, driver-API jobs, frameworks; one table, and JSON.

check.py --build DIR [--sim] [--few] [--json FILE] [--budget SECONDS] [--only PART]...

tests/gpu/check.sh builds what is needed and calls this. Parts: contract, probe, jobs, torch, cupy, jax. --sim runs the first
three on the simulated GPU of the build. The status is 1 if a required row failed, 2 if nothing could be run.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from table import (Budget, Table, bound_seconds, first_difference, json_lines, last_object, overhead_bytes, rates_of,
                   setting_bytes, stats_counters, throughput)

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
PARTS = ("contract", "probe", "jobs", "torch", "cupy", "jax")
CLIENTS = ("reduction", "sort", "spmv", "fft", "stencil", "nbody", "histogram", "pipeline", "tables")
STEP_S = 60
MISSING = 3  # exit status of a job whose framework is not there


class Done:
    def __init__(self, returncode, stdout, stderr, seconds, timed_out):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr
        self.seconds, self.timed_out = seconds, timed_out

    def why(self):
        """Why it counts as failed, in one line."""
        last = self.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
        return f"no end within {self.seconds:.0f} s" if self.timed_out else f"status {self.returncode}: {last[0][:200]}"

    def tail(self):
        """The end of stderr, for whoever reads the JSON later."""
        return self.stderr[-3000:]


def run_step(command, env, seconds):
    """Runs a command with a deadline; what it has started ends with it."""
    start = time.monotonic()
    timed_out = False
    # Not as a context: leaving it would wait for a process that hangs in the driver.
    process = subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            out, err = "", "it does not end even when killed"
    return Done(process.returncode, out, err, time.monotonic() - start, timed_out)


def escaped(counters, cap):
    """What shows that a job went past the library, or the library past its cap; None if nothing does."""
    if not counters.get("launches"):
        return "the library was not in use"
    if cap and counters.get("peak_vram_bytes", 0) > cap:
        return f"{counters['peak_vram_bytes'] / MIB:.0f} MiB of VRAM were used, the cap is {cap / MIB:.0f}"
    if cap and not counters.get("moved_out_bytes", 0) + counters.get("fresh_host_bytes", 0):
        return "nothing left VRAM: the cap was not in effect"
    return None


def moves(counters):
    out, fresh, back, peak = (counters.get(name, 0) / MIB for name in
                              ("moved_out_bytes", "fresh_host_bytes", "moved_in_bytes", "peak_vram_bytes"))
    return f"{peak:.0f} MiB of VRAM, {out:.0f} MiB out, {back:.0f} in, {fresh:.0f} never in VRAM at first"


class Check:
    def __init__(self, build, sim, few, budget, table, runner=run_step):
        self.build, self.sim, self.few, self.budget, self.table, self.runner = build, sim, few, budget, table, runner
        self.rates, self.context_bytes, self.rows = {}, 0, []

    def path(self, *names):
        return os.path.join(self.build, *names)

    def native(self):
        if not self.sim:
            return {}
        return {"LD_LIBRARY_PATH": self.path("simgpu"), "SIMGPU": "h200,vram=256M", "SIMGPU_LOG": "off"}

    def shimmed(self, folder, cap_bytes=None):
        """With cap_bytes of VRAM for the job's memory; without, all."""
        preload = [self.path("libheadroom.so")] + [p for p in (os.environ.get("LD_PRELOAD"),) if p]
        env = {**self.native(), "LD_PRELOAD": ":".join(preload), "HEADROOM_STATS": os.path.join(folder, "%p.jsonl"),
               "HEADROOM_LOG": "warn"}
        return {**env, "HEADROOM_VRAM": str(setting_bytes(cap_bytes, self.context_bytes))} if cap_bytes else env

    def step(self, command, env, want_s=STEP_S):
        """A Done, or None when no time is left."""
        granted = self.budget.grant(want_s)
        return None if granted is None else self.runner(command, env, granted)

    def under_headroom(self, command, cap_bytes, env=None):
        """(Done or None, the counters of all its processes)"""
        with tempfile.TemporaryDirectory() as folder:
            done = self.step(command, {**self.shimmed(folder, cap_bytes), **(env or {})})
            texts = []
            for name in sorted(os.listdir(folder)):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as f:
                    texts.append(f.read())
        return done, stats_counters(texts)

    # ---- programs that tell rows

    def program(self, part, want_s):
        names = []
        if self.few and part == "probe":  # without those whose time is in kernels and copies
            listed = self.step([self.path("tests", "gpu", part), "--list"], self.native())
            names = [n for n in (listed.stdout.split() if listed else []) if n not in ("kernel-rates", "copy-rates")]
        granted = self.budget.grant(want_s)
        if granted is None:
            self.table.add(part, "all", "skipped", "no time was left", self.sim)
            return True
        done = self.runner([self.path("tests", "gpu", part), "--seconds", str(int(granted))] + names, self.native(), granted + 15)
        rows = json_lines(done.stdout)
        for row in rows:
            broken = self.sim and (part == "contract" or row["verdict"] in ("failed", "hang", "died"))
            lost = {"stderr": done.tail()} if row["verdict"] == "died" else {}
            self.table.add(part, row["name"], row["verdict"], row["saw"], row["required"] or broken,
                           value=row.get("value"), unit=row.get("unit"), says=row["says"], **lost)
        if done.returncode != 0 or done.timed_out or not rows:
            self.table.add(part, "the program", "timeout" if done.timed_out else "failed", done.why(), True, done.seconds,
                           stderr=done.tail())
        self.rows += rows
        return done.returncode != 2

    def learn(self):
        """What caps and bounds are reckoned with, from the probes' rows; asks for them if they were not wanted."""
        names = {row["name"].split(".")[0] for row in self.rows}
        if "attributes" not in names:
            done = self.step([self.path("tests", "gpu", "probe"), "attributes", "copy-rates"], self.native())
            self.rows += json_lines(done.stdout) if done else []
        self.rates, self.context_bytes = rates_of(self.rows), overhead_bytes(self.rows)

    # ---- jobs of the driver API

    def job(self, name, command, need_bytes, factors):
        native = self.step(command, self.native())
        if native is None:
            self.table.add("jobs", name, "skipped", "no time was left")
            return
        if native.returncode != 0:
            self.table.add("jobs", f"{name}, native", "timeout" if native.timed_out else "failed", native.why(), True,
                           native.seconds, stderr=native.tail())
            return
        for factor in factors:
            done, counters = self.under_headroom(command, need_bytes // factor)
            what = f"{name}, 1/{factor} of its memory"
            if done is None:
                self.table.add("jobs", what, "skipped", "no time was left")
            elif done.returncode != 0:
                self.table.add("jobs", what, "timeout" if done.timed_out else "failed", done.why(), True, done.seconds,
                               stderr=done.tail(), counters=counters)
            else:
                self.table.add("jobs", what, *self.judge_job(native, done, counters, need_bytes // factor), True, done.seconds,
                               native_seconds=native.seconds, stderr=done.tail(), counters=counters)

    @staticmethod
    def judge_job(native, done, counters, cap):
        if done.stdout != native.stdout:
            return "different", f"it printed {done.stdout.strip()[-120:]!r}, natively {native.stdout.strip()[-120:]!r}"
        wrong = escaped(counters, cap)
        if wrong:
            return "different", f"the same output, but {wrong}"
        return "ok", f"the same output; {moves(counters)}; {done.seconds:.1f} s, native {native.seconds:.1f} s"

    def jobs(self):
        train = [self.path("examples", "train_gpt"), "--steps", "1" if self.sim else "4"]
        if self.sim and not self.few:
            self.job("train_gpt", train + ["--layers", "4"], 64 * MIB, (4,))
        elif not self.sim:
            self.job("train_gpt", train, 256 * MIB, (2, 4))
            self.job("train_gpt, 4 streams", train + ["--streams", "4"], 256 * MIB, (4,))
        mib = 16 if self.sim else 64
        for name in CLIENTS[:1] if self.few else CLIENTS[:3] if self.sim else CLIENTS:
            self.job(f"client {name}", [self.path("tests", "clients", name), f"MiB={mib}"], mib * MIB, (2,) if self.sim else (4,))


class Framework:
    """A job of a framework: natively, then under headroom. It prints an object with results, peak_bytes and step_seconds."""

    def __init__(self, part, name, command, env=None):
        self.part, self.name, self.command, self.env = part, name, command, env or {}
        self.native, self.alone, self.again = None, None, None

    def first(self, check):
        """Runs it natively; False if there is no use in going on."""
        self.alone = check.step(self.command, {**check.native(), **self.env})
        if self.alone is None:
            check.table.add(self.part, self.name, "skipped", "no time was left")
            return False
        self.native = last_object(self.alone.stdout)
        if self.alone.returncode == MISSING:
            check.table.add(self.part, self.name, "skipped", (self.native or {}).get("missing", "it is not installed"))
            return False
        if self.alone.returncode != 0 or not self.native or not self.native.get("results"):
            verdict = "timeout" if self.alone.timed_out else "failed"
            check.table.add(self.part, f"{self.name}, native", verdict, self.alone.why(), True, self.alone.seconds,
                            stderr=self.alone.tail())
            return False
        return True

    def deterministic(self, check):
        """Whether a second native run gives the same; None when no time is left to know."""
        if self.again is None:
            done = check.step(self.command, {**check.native(), **self.env})
            if done is None or done.returncode != 0:
                return None
            self.again = last_object(done.stdout)
        return first_difference(self.native["results"], (self.again or {}).get("results", [])) is None

    def capped(self, check, factor):
        """Under headroom, with 1/factor of the native peak; without a cap for factor 0."""
        peak = self.native.get("peak_bytes") or 0
        cap = max(64 * MIB, peak // factor) if factor else None
        what = f"{self.name}, " + (f"1/{factor} of its memory" if factor else "no cap")
        done, counters = check.under_headroom(self.command, cap, self.env)
        if done is None:
            check.table.add(self.part, what, "skipped", "no time was left")
            return
        found = last_object(done.stdout) or {}
        if done.returncode != 0 or not found.get("results"):
            verdict = "timeout" if done.timed_out else "failed"
            check.table.add(self.part, what, verdict, done.why(), True, done.seconds, stderr=done.tail(), counters=counters)
            return
        native_s, step_s = self.native.get("step_seconds"), found.get("step_seconds")
        bound = bound_seconds(native_s, peak, cap, check.rates) if cap else native_s
        verdict, required, saw = self.judge(check, found)
        wrong = escaped(counters, cap)
        if wrong:
            verdict, required, saw = "different", True, f"{wrong}; {saw}"
        check.table.add(self.part, what, verdict, f"{saw}; {moves(counters)}; {throughput(step_s, native_s, bound)}", required, done.seconds,
                        peak_bytes=peak, cap_bytes=cap, step_seconds=step_s, native_step_seconds=native_s,
                        bound_seconds=bound, stderr=done.tail(), counters=counters)

    def judge(self, check, found):
        apart = first_difference(self.native["results"], found["results"])
        if apart is None:
            return "ok", True, f"{len(found['results'])} results identical"
        same = self.deterministic(check)
        if same is False:
            return "seen", False, "results differ, and so do those of two native runs"
        if same is None:
            return "seen", False, f"{apart}; no second native run could be made to know whether that is usual"
        return "different", True, apart


def frameworks(python):
    torch = [python, os.path.join(HERE, "torch_train.py")]
    segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    cases = []
    for name, flags, env in (("gpt fp32", "--model gpt", {}), ("conv bf16", "--model conv --bf16", {}),
                             ("gpt bf16, expandable segments", "--model gpt --bf16", segments),
                             ("gpt bf16, CUDA graph", "--model gpt --bf16 --graph", {}),
                             ("conv fp32, DataLoader workers", "--model conv --workers 4", {}),
                             ("gpt bf16", "--model gpt --bf16", {}), ("conv fp32", "--model conv", {}),
                             ("conv bf16, expandable segments, CUDA graph", "--model conv --bf16 --graph", segments)):
        cases.append(Framework("torch", name, torch + flags.split(), env))
    cases.insert(4, Framework("cupy", "arrays", [python, os.path.join(HERE, "smoke_cupy.py")]))
    jax = [python, os.path.join(HERE, "smoke_jax.py")]
    cases.insert(5, Framework("jax", "no preallocation", jax, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}))
    cases.insert(6, Framework("jax", "preallocation", jax,
                              {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.06"}))
    return cases


def run_frameworks(check, cases):
    """All natively and with half of their memory first, then with a quarter, then without a cap: time ends with what says least."""
    alive, absent = [], set()
    for case in cases:
        if case.part in absent:
            check.table.add(case.part, case.name, "skipped", "it is not installed")
        elif case.first(check):
            alive.append(case)
            case.capped(check, 2)
        elif case.alone is not None and case.alone.returncode == MISSING:
            absent.add(case.part)
    for factor in (4, 0):
        for case in alive:
            case.capped(check, factor)


def write_json(path, check, spent_s):
    about = {row["name"]: row["saw"] for row in check.table.rows if row["name"] in ("attributes.name", "attributes.driver")}
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"schema": 1, "simulated": check.sim, "gpu": about.get("attributes.name"),
                   "driver": about.get("attributes.driver"), "seconds": round(spent_s, 1), "link_gbps": check.rates,
                   "failed": [row["name"] for row in check.table.failed()], "rows": check.table.rows}, f, indent=1)
        f.write("\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--sim", action="store_true")
    parser.add_argument("--few", action="store_true", help="for builds with a sanitizer: less of everything")
    parser.add_argument("--json")
    parser.add_argument("--budget", type=float, default=460)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the frameworks")
    parser.add_argument("--only", action="append", choices=PARTS)
    return parser.parse_args()


def main():
    args = parse()
    parts = args.only or (PARTS[:3] if args.sim else PARTS)
    budget = Budget(args.budget)
    check = Check(os.path.abspath(args.build), args.sim, args.few, budget, Table(sys.stderr))
    usable = True
    if "contract" in parts:
        usable = check.program("contract", 90)
    if usable and "probe" in parts:
        usable = check.program("probe", 90)
    if usable:
        check.learn()
    if usable and "jobs" in parts:
        check.jobs()
    if usable and not args.sim:
        run_frameworks(check, [case for case in frameworks(args.python) if case.part in parts])
    print(check.table.markdown())
    print(f"\n{check.table.counts()}; {budget.spent():.0f} s of {args.budget:.0f}")
    if args.json:
        write_json(args.json, check, budget.spent())
    if not usable:
        print("check: there is no driver or no GPU here", file=sys.stderr)
        return 2
    for row in check.table.failed():
        print(f"FAILED {row['part']}: {row['name']}: {row['saw']}")
        if row.get("stderr"):
            print(row["stderr"])
    return 1 if check.table.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
