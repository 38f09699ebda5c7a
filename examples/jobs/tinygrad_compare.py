#!/usr/bin/env python3
"""tinygrad's training, in several ways: tinygrad_compare.py BUILD_DIR [--small] [--settings]

Trains a convolutional net and a transformer with tinygrad on its own CPU backend, alone on a simulated GPU with memory
enough, and under headroom on GPUs with a half and a quarter of the memory that they need. The losses must fall, agree with
the CPU backend's within rounding, and be the same to the last bit alone and under headroom, as must the weights. Alone
on the smallest card training must end for want of memory. --small: less of everything, and one smaller GPU. --settings: also
with every way of giving memory its backing, where host memory cannot be mapped, and with the simulated GPU looking for races.
"""
import argparse
import os
import re
import sys

import beside

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tinygrad_train.py")
NETS = {"conv": ["--width", "16", "--parts", "4", "--images", "5000", "--steps", "16", "--rate", "0.005"],
        "gpt": ["--width", "192", "--layers", "6", "--batch", "2", "--steps", "6"]}
SMALL = {"conv": ["--width", "8", "--parts", "3", "--images", "3000", "--steps", "12", "--rate", "0.005"],
         "gpt": ["--width", "128", "--layers", "5", "--batch", "1", "--steps", "4"]}
SMALL_TIMES = {"conv": 4, "gpt": 2}  # so that the smaller GPU has 8 MiB: four chunks
# JIT=1: what is compiled once is recorded as CUDA graphs; the small jobs take JIT=2, which does without, unless HEADROOM_TEST_LONG is set: as
# graphs they take several times as long. No pool of processes that compile, no cache on disk: runs do not influence
# each other.
# SPEC=0: tinygrad does not check its own intermediate code, which takes longer than the training.
GRAPHS = "--small" not in sys.argv or os.environ.get("HEADROOM_TEST_LONG", "0") not in ("", "0")
COMMON = {"JIT": "1" if GRAPHS else "2", "PARALLEL": "0", "CACHELEVEL": "0", "SPEC": "0", "CC": "clang"}
GPU = {**COMMON, "DEV": "CUDA:PTX"}
CPU = {**COMMON, "DEV": "CPU"}
FIRST, LATER = 1e-5, 1e-2  # of the first loss; training makes differences of rounding grow from step to step


def losses(run):
    return [float.fromhex(line) for line in re.findall(r"^step \d+ loss \S+ (\S+)$", run.stdout, re.M)]


def check_losses(net, alone, cpu):
    gpu, cpu = losses(alone), losses(cpu)
    if len(gpu) < 4 or len(gpu) != len(cpu):
        raise beside.Failed(f"{net}: {len(gpu)} losses on the GPU, {len(cpu)} on the CPU")
    part = len(gpu) // 4
    first, last = sum(gpu[:part]) / part, sum(gpu[-part:]) / part
    if not last < 0.9 * first:
        raise beside.Failed(f"{net}: the loss does not fall: {gpu}")
    apart = [abs(a - b) / cpu[0] for a, b in zip(gpu, cpu)]
    if not (apart[0] < FIRST and max(apart) < LATER):
        raise beside.Failed(f"{net}: losses differ from the CPU backend's by {max(apart):.1e}: {gpu} and {cpu}")
    print(f"{net}: loss {first:.4f} at first, {last:.4f} at last; from the CPU backend's {apart[0]:.1e} away at first, "
          f"at most {max(apart):.1e} (of the first loss)")


def check(bench, arguments):
    nets = {name: [bench.python, JOB, name] + flags for name, flags in (SMALL if arguments.small else NETS).items()}
    tasks = {}
    for net, job in nets.items():
        tasks[net, "alone"] = lambda job=job: bench.sim(job, beside.PLENTY, GPU)
        tasks[net, "CPU"] = lambda job=job: bench.plain(job, CPU)
    done = beside.together(tasks)
    tasks, cards = {}, {}
    for net, job in nets.items():
        check_losses(net, done[net, "alone"], done[net, "CPU"])
        for times in (SMALL_TIMES[net],) if arguments.small else (2, 4):
            vram = beside.card(bench.footprint(done[net, "alone"]), times)
            cards[net, f"headroom, {times}x"] = vram
            tasks[net, f"headroom, {times}x"] = lambda job=job, vram=vram: bench.under(job, vram, GPU)
        tasks[net, "too small"] = lambda job=job, vram=vram: bench.refused(job, vram, GPU)
        if arguments.settings:
            for name, env, settings in (("lazy", {}, {"commit": "lazy"}), ("eager", {}, {"commit": "eager"}),
                                        ("not mappable", {"SIMGPU_DENY": "host_numa"}, {}),
                                        ("looked at for races", {"SIMGPU_CHECK": "race"}, {})):
                size = vram
                if "SIMGPU_DENY" in env:  # what a launch names must fit into the card, where kernels cannot read host memory
                    size = max(beside.card(bench.footprint(done[net, "alone"]), 2), 12 * beside.MIB)
                cards[net, f"headroom, {name}"] = size
                tasks[net, f"headroom, {name}"] = lambda job=job, size=size, env=env, settings=settings: bench.under(
                    job, size, {**GPU, **env}, settings)
    done.update(beside.together(tasks))
    print(beside.HEAD)
    for (net, name), run in done.items():
        vram = cards.get((net, name))
        if vram:
            beside.same(f"{net}, {name}", done[net, "alone"], run)
            if run.summary["counters"]["moved_out_bytes"] == 0:
                raise beside.Failed(f"{net}, {name}: nothing was moved")
        if name != "too small":
            print(beside.row(f"{net}, {name}", run, bench.footprint(done[net, "alone"]), vram))
    print("Alone on the smallest card both end for want of memory; under headroom losses and weights are the same, bit for bit")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--settings", action="store_true")
    sys.exit(beside.main(check, parser.parse_args()))
