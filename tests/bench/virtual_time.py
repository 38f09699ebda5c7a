#!/usr/bin/env python3
"""How long train_gpt would take on a named machine, and what the time goes into.

virtual_time.py BUILD_DIR [--machine h200] [--runs N] [--steps N] [--streams N] [JOB FLAGS...]

Runs the job natively on a card that holds it all, then under headroom on that card and on cards with a half and a quarter of
the memory that it allocates, each several times, and prints a table from the simulated machine's reports: virtual time from the
first call on, without setting up contexts and modules; the SMs' time; what copies take in each direction, and how much of that
the SMs did not run beside ("exposed"); the price of driver calls and the time in which calls waited. The spread is that of the
virtual time over the runs: threads that run side by side hand over at moments that differ. Prints Markdown.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

MIB = 1 << 20
CARDS = [("1x, native", 1, False), ("1x", 1, True), ("2x", 2, True), ("4x", 4, True)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build")
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--streams", type=int, default=1)
    return parser.parse_known_args()


def run(args, job, vram_mib, headroom):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        tool = os.path.join(args.build, "headroom")
        machine = f"{args.machine},vram={vram_mib}M"
        front = [tool, "run", "--sim", machine, "--"] if headroom else [tool, "sim", machine, "--"]
        done = subprocess.run(front + job, env={**os.environ, "SIMGPU_REPORT": path}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"virtual_time: {' '.join(front + job)} gave {done.returncode}: {done.stderr}")
        with open(path, encoding="utf-8") as f:
            return json.load(f), done.stdout


def allocated_mib(args, job):
    env = {**os.environ, "LD_LIBRARY_PATH": os.path.join(args.build, "src", "simgpu")}
    plan = subprocess.run(job + ["--plan"], env=env, capture_output=True, text=True, check=True)
    return float(re.search(r"^total +([\d.]+) MiB", plan.stdout + plan.stderr, re.M).group(1))


def figures(report):
    gpu, calls = report["gpus"][0], report["host_calls"]
    setup = calls["setup"]["ns"]
    return {
        "total": report["virtual_time_ns"] - setup,
        "kernels": gpu["busy_ns"]["sms"],
        "in": gpu["busy_ns"]["h2d"],
        "out": gpu["busy_ns"]["d2h"],
        "within": gpu["busy_ns"]["d2d"],
        "exposed": gpu["copy_alone_ns"],
        "calls": sum(c["ns"] for c in calls.values()) - setup,
        "waits": report["host_wait_ns"],
        "given_up": report["given_up"],
    }


def ms(ns):
    return f"{ns / 1e6:.2f} ms"


def main():
    args, rest = parse()
    job = [os.path.join(args.build, "examples", "train_gpt"), "--steps", str(args.steps), "--streams", str(args.streams)] + rest
    need = allocated_mib(args, job)
    report, expected = run(args, job, 4096, False)
    enough = int(report["gpus"][0]["peak_vram_bytes"] / MIB * 1.25)
    print(f"{args.machine}; the job allocates {need:.0f} MiB; {args.steps} step(s), {args.streams} stream(s), "
          f"{args.runs} runs each\n")
    print("| card | virtual time | spread | SMs | H2D | D2H | within | copies exposed | driver calls | calls waited |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, times, headroom in CARDS:
        vram_mib = enough if times == 1 else int(need / times) // 2 * 2
        got = []
        for _ in range(args.runs):
            report, output = run(args, job, vram_mib, headroom)
            if output != expected:
                sys.exit(f"virtual_time: {name}: the job printed something else than with memory enough")
            got.append(figures(report))
        totals = sorted(g["total"] for g in got)
        middle = sorted(got, key=lambda g: g["total"])[len(got) // 2]
        spread = (totals[-1] - totals[0]) / middle["total"]
        cells = [ms(middle["total"]), f"{spread * 100:.2f} %"]
        cells += [ms(middle[k]) for k in ("kernels", "in", "out", "within", "exposed", "calls", "waits")]
        print(f"| {name}: {vram_mib} MiB | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
