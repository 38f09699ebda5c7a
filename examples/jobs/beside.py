"""Runs a job alone on a simulated GPU with memory enough, and under headroom on smaller ones; measures and compares.

The smaller cards are made from what the job needed on the large one, so that a run `at 4x` is one in which the job holds
at least four times the memory of its card.
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PLENTY = 1024 * MIB
BASELINE = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
"""


class Failed(Exception):
    pass


class Run:
    """What a run printed and what was measured of it."""

    def __init__(self, done, seconds, report, summary):
        self.stdout, self.stderr, self.status, self.seconds = done.stdout, done.stderr, done.returncode, seconds
        self.gpu, self.findings = (report["gpus"][0], report["findings"]) if report else (None, None)
        self.summary = summary


class Bench:
    """The built programs, and the folder of the private Python."""

    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.headroom = os.path.join(self.build, "headroom")
        self.python = os.path.join(self.build, "jobs-venv", "bin", "python")
        self.folder = tempfile.TemporaryDirectory()
        self.count = 0
        if subprocess.run([self.python, "-c", "import tinygrad, halide, numpy"], stdin=subprocess.DEVNULL,
                          capture_output=True).returncode if os.path.exists(self.python) else True:
            raise Failed(f"tinygrad, Halide and numpy are not in {self.build}/jobs-venv: run tests/setup.sh, "
                         "which installs them from the Python package index")
        self.empty_bytes = self.sim([self.python, "-c", BASELINE], PLENTY).gpu["peak_vram_bytes"]

    def place(self, name):
        self.count += 1
        return os.path.join(self.folder.name, f"{self.count}-{name}")

    def run(self, command, env, report=None, stats=None):
        env = {**os.environ, **env}
        if report:
            env["SIMGPU_REPORT"] = report
        start = time.monotonic()
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        seconds = time.monotonic() - start
        simgpu = summary = None
        if report and os.path.exists(report):
            with open(report, encoding="utf-8") as f:
                simgpu = json.load(f)
        if stats and os.path.exists(stats):
            with open(stats, encoding="utf-8") as f:
                summary = json.loads(f.readlines()[-1])
        return Run(done, seconds, simgpu, summary)

    def plain(self, command, env):
        """Without any GPU."""
        return good(command, self.run(command, env))

    def sim(self, command, vram_bytes, env=None):
        """Alone on a simulated GPU."""
        done = self.run([self.headroom, "sim", f"h200,vram={vram_bytes}", "--"] + command, env or {}, self.place("report"))
        return good(command, done)

    def refused(self, command, vram_bytes, env):
        """Alone on a GPU that is too small."""
        done = self.run([self.headroom, "sim", f"h200,vram={vram_bytes}", "--"] + command, env)
        if done.status == 0:
            raise Failed(f"{' '.join(command)} fits into {vram_bytes} bytes without headroom")
        if "memory" not in done.stderr.lower():
            raise Failed(f"{' '.join(command)} failed for another reason than memory:\n{done.stderr[-2000:]}")
        return done

    def under(self, command, vram_bytes, env, settings=None):
        """Under headroom."""
        stats = self.place("stats")
        flags = [f"--{name}={value}" for name, value in (settings or {}).items()]
        done = self.run([self.headroom, "run", "--sim", f"h200,vram={vram_bytes}", "--stats", stats] + flags + ["--"] + command,
                        env, self.place("report"), stats)
        good(command, done)
        for what in ("unmapped_in_flight", "freed_in_flight"):
            if done.gpu[what]:
                raise Failed(f"{' '.join(command)}: {what}: {done.gpu[what]}")
        if any(done.findings.values()):
            raise Failed(f"{' '.join(command)}: simgpu found {done.findings}:\n{done.stderr[-2000:]}")
        return done

    def footprint(self, alone):
        """What a job that ran alone took of its GPU, beside what every process takes."""
        return alone.gpu["peak_vram_bytes"] - self.empty_bytes


def good(command, done):
    if done.status:
        raise Failed(f"{' '.join(command)} ended with status {done.status}:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done


def card(footprint_bytes, times):
    """A card of which a job of that footprint needs at least `times` the memory."""
    return int(footprint_bytes / times) // (2 * MIB) * (2 * MIB)


def same(name, alone, other):
    if alone.stdout != other.stdout:
        raise Failed(f"{name}: printed something else than alone:\n{alone.stdout}\n--- and now\n{other.stdout}")


HEAD = f"{'run':34} {'time':>7}  {'takes':>9}  {'card':>8}  {'times':>5}  {'moved in':>9}  {'moved out':>9}  all in VRAM"


def row(name, run, footprint_bytes, vram_bytes):
    text = f"{name:34} {run.seconds:5.1f} s"
    if vram_bytes:
        text += f"  {footprint_bytes / MIB:5.1f} MiB  {vram_bytes / MIB:4.0f} MiB  {footprint_bytes / vram_bytes:4.1f}x"
    if run.summary:
        counters = run.summary["counters"]
        text += (f"  {counters['moved_in_bytes'] / MIB:5.0f} MiB  {counters['moved_out_bytes'] / MIB:5.0f} MiB"
                 f"  {100 * counters['launches_resident'] / max(1, counters['launches']):5.1f} % of launches")
    return text


def together(tasks):
    """Runs {name: function} with two at a time; the results by name. The first failure is raised."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = {name: pool.submit(task) for name, task in tasks.items()}
        return {name: future.result() for name, future in futures.items()}


def main(check, arguments):
    """Calls check(bench); prints why, if it fails. The process's exit status."""
    try:
        check(Bench(arguments.build), arguments)
    except Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    return 0
