#!/usr/bin/env python3
"""A program of this folder on a simulated GPU with memory enough, and under headroom with a half, a third and a quarter of it.

run_clients.py BUILD_DIR PROGRAM [--small] [--gpus N] [--model NAME] [--thrice] [ARGUMENT...]

Output and exit status must be the same; without headroom the small card must not do; nothing may be unmapped or freed under
work in flight. --small, for builds with a sanitizer: a smaller footprint, and only half of it. --thrice: with a third of it, and
simulated GPUs that look for races, of which there may be none.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile


def run(command, env):
    return subprocess.run(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("program")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--gpus", default="1")
    parser.add_argument("--model", default="h200")
    parser.add_argument("--thrice", action="store_true")
    args, more = parser.parse_known_args()
    build = os.path.abspath(args.build)
    headroom = os.path.join(build, "headroom")
    mib = 48 if args.thrice else 16 if args.small else 32
    job = [os.path.join(build, "tests", "clients", args.program), f"MiB={mib}"] + more
    wrong = []

    def check(what, ok):
        if not ok:
            wrong.append(what)

    def machine(vram_mib):
        return f"{args.model},gpus={args.gpus},vram={vram_mib}M"

    alone = run([headroom, "sim", machine(4 * mib), "--"] + job, {})
    check(f"alone: status {alone.returncode}: {alone.stderr}", alone.returncode == 0)
    check(f"alone: one line, not {alone.stdout!r}", alone.stdout.count("\n") == 1)
    short = run([headroom, "sim", machine(mib // 2), "--"] + job, {})
    check(f"half of the memory without headroom: status {short.returncode}, {short.stderr}",
          short.returncode != 0 and "CUDA_ERROR_OUT_OF_MEMORY" in short.stderr)
    for factor in (3,) if args.thrice else (2,) if args.small else (2, 3, 4):
        with tempfile.TemporaryDirectory() as folder:
            report, stats = os.path.join(folder, "report.json"), os.path.join(folder, "stats.jsonl")
            done = run([headroom, "run", "--sim", machine(mib // factor), "--"] + job,
                       {"SIMGPU_REPORT": report, "HEADROOM_STATS": stats, **({"SIMGPU_CHECK": "race"} if args.thrice else {})})
            name = f"{factor} times the card's memory"
            check(f"{name}: status {done.returncode}: {done.stderr}", done.returncode == alone.returncode)
            check(f"{name}: {done.stdout!r} is not {alone.stdout!r}", done.stdout == alone.stdout)
            print(f"{name}: {done.stdout.strip()}")
            if done.returncode != 0:
                continue
            text = open(report, encoding="utf-8").read()
            races = re.findall(r'"(?:race|host_race)": (\d+)', text)
            check(f"{name}: races: {races}", not args.thrice or (races and not any(map(int, races))))
            for gpu in json.loads(text)["gpus"]:
                check(f"{name}: unmapped in flight", gpu["unmapped_in_flight"] == 0)
                check(f"{name}: freed in flight", gpu["freed_in_flight"] == 0)
            counters = [json.loads(line) for line in open(stats)][-1]["counters"]
            check(f"{name}: everything was in VRAM: {counters}",
                  counters["moved_out_bytes"] > 0 or counters["fresh_host_bytes"] > 0)
    for line in wrong:
        print("FAILED " + line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
