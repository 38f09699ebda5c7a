#!/usr/bin/env python3
"""Halide's pipelines, in several ways: halide_compare.py BUILD_DIR [--small]

Runs six Halide pipelines on a simulated GPU with memory enough, where each compares its results with Halide's own on the
CPU, and under headroom on GPUs with a half and a quarter of the memory that the largest of them needs. What they print,
hashes of the results included, must be the same. --small: smaller images, and a quarter only.
"""
import argparse
import os
import sys

import beside

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "halide_pipelines.py")


def check(bench, arguments):
    size = ["--images", "5", "--side", "768"] if arguments.small else ["--images", "10", "--side", "1024"]
    job = [bench.python, JOB] + size
    alone = bench.sim(job, beside.PLENTY)
    print(alone.stdout, end="")
    tasks, cards = {}, {}
    for times in (4,) if arguments.small else (2, 4):
        vram = beside.card(bench.footprint(alone), times)
        cards[f"headroom, {times}x"] = vram
        tasks[f"headroom, {times}x"] = lambda vram=vram: bench.under(job, vram, {})
    tasks["too small"] = lambda: bench.refused(job, vram, {})
    done = beside.together(tasks)
    print(beside.HEAD)
    print(beside.row("alone", alone, 0, None))
    for name, vram in cards.items():
        beside.same(name, alone, done[name])
        if done[name].summary["counters"]["moved_out_bytes"] == 0:
            raise beside.Failed(f"{name}: nothing was moved")
        print(beside.row(name, done[name], bench.footprint(alone), vram))
    print("Alone on the smallest card they end for want of memory; under headroom all results are the same, bit for bit.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--small", action="store_true")
    sys.exit(beside.main(check, parser.parse_args()))
