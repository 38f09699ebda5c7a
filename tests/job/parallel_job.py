#!/usr/bin/env python3
"""train_gpt on several GPUs at once, each with a third of the memory (half, with --few) that its part of the job needs.

parallel_job.py BUILD_DIR [--steps N] [--few] [--machine NAME] [--only NAME]

Data parallel and pipeline parallel over 2, 4 and 8 GPUs: gradients and activations go from GPU to GPU by peer copies. Standard output
must be, byte for byte, that of the same job on GPUs with plenty; the simulated machine's report must tell of every GPU that
it was filled, and that nothing was unmapped or freed in flight. Prints a table; exits 1 if anything is not as it must be.
--few runs two GPUs only, with a smaller job. HEADROOM_TEST_LONG in the environment means three steps and several streams as well.
"""
import argparse
import json
import os
import sys
import tempfile

from main_job import MIB, Runner

VRAM = 16
# Width for memory, a short context for little arithmetic: 12 MiB a layer, and what the ends of the model need.
SHAPE = ["--width", "256", "--heads", "32"]


def cases(few, thorough):
    layers = 2 if few else 3
    context = ["--context", "8" if few else "16"]
    for gpus in (2,) if few else (2, 4, 8):
        for streams in (1, 3) if thorough else (1,):
            more = ["--gpus", str(gpus), "--streams", str(streams)] + context
            tail = f", {streams} streams" if streams > 1 else ""
            yield f"data, {gpus} GPUs{tail}", gpus, more + ["--parallel", "data", "--layers", str(layers)]
            yield (f"pipeline, {gpus} GPUs{tail}", gpus,
                   more + ["--parallel", "pipeline", "--layers", str(layers * gpus), "--batches", "2"])


def run_case(runner, machine, name, gpus, flags, folder):
    report, stats = os.path.join(folder, "report.json"), os.path.join(folder, "stats.jsonl")
    for path in (report, stats):
        if os.path.exists(path):
            os.unlink(path)
    job = runner.job(SHAPE + flags)
    plenty, _ = runner.run([runner.headroom, "sim", machine, "--"] + job, {})
    runner.check(name, "exit status 0 with plenty: " + plenty.stderr[-400:], plenty.returncode == 0)
    small = f"{machine},vram={VRAM}M"
    tight, _ = runner.run([runner.headroom, "sim", small, "--"] + job, {})
    runner.check(name, "without headroom it must be out of memory", "CUDA_ERROR_OUT_OF_MEMORY" in tight.stderr)
    done, seconds = runner.run([runner.headroom, "run", "--sim", small, "--"] + job,
                               {"SIMGPU_REPORT": report, "HEADROOM_STATS": stats})
    if not runner.check(name, f"exit status {done.returncode}: {done.stderr[-400:]}", done.returncode == 0):
        return
    runner.check(name, "the same output as with enough memory", done.stdout == plenty.stdout)
    cards = json.load(open(report))["gpus"][:gpus]
    counters = [json.loads(line) for line in open(stats)][-1]["counters"]
    for card in cards:
        runner.check(name, "nothing unmapped or freed in flight",
                     card["unmapped_in_flight"] == 0 and card["freed_in_flight"] == 0)
        runner.check(name, f"peak VRAM {card['peak_vram_bytes']} of {card['vram_bytes']}",
                     card["peak_vram_bytes"] >= 0.8 * card["vram_bytes"])
    runner.check(name, "bytes were moved both ways",
                 counters["moved_in_bytes"] > 0 and counters["moved_out_bytes"] > 0)
    least = min(card["peak_vram_bytes"] for card in cards) / MIB
    print(f"{name:28} {seconds:7.1f} s  least peak {least:5.1f} MiB  in {counters['moved_in_bytes'] / MIB:7.0f} MiB  "
          f"out {counters['moved_out_bytes'] / MIB:7.0f} MiB", flush=True)


def main():
    thorough = bool(os.environ.get("HEADROOM_TEST_LONG"))
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--steps", type=int, default=3 if thorough else 1)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--machine", default="dgx1v")
    parser.add_argument("--only")
    args = parser.parse_args()
    runner = Runner(os.path.abspath(args.build), args.steps, None)
    with tempfile.TemporaryDirectory() as folder:
        for name, gpus, flags in cases(args.few and not thorough, thorough):
            if args.only in (None, name):
                run_case(runner, args.machine, name, gpus, flags, folder)
    for failure in runner.failures:
        print("FAILED " + failure)
    return 1 if runner.failures else 0


if __name__ == "__main__":
    sys.exit(main())
