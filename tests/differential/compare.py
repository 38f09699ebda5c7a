#!/usr/bin/env python3
"""The same calls natively and under headroom: compare.py CLIENT LIBRARY SIMGPU_FOLDER VARIANTS_FOLDER HOOKS_DEF.

CLIENT makes the calls of the .calls files beside this script (client.c), natively with plenty of VRAM, and under headroom with plenty and with little, on every
variant of the driver; then calls at random, with a seed (HEADROOM_TEST_SEED, else a fixed one). Every line that it prints has to be the same, but for what
differences.txt lists.
"""
import glob
import os
import re
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
PLENTY, LITTLE = "h200,gpus=2,vram=256M,host=2G", "h200,gpus=2,vram=24M,host=2G"
MODES = {"native": (PLENTY, False), "plenty": (PLENTY, True), "little": (LITTLE, True)}
LINE = re.compile(r"(\S+ (cu\w+)\(.*?\)) = (.*)$")
Rule = namedtuple("Rule", "call native headroom reason")


def rules(path):
    """([Rule], {function: reason})"""
    differences, uncalled = [], {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            kind, _, rest = line.strip().partition(" ")
            fields = [field.strip() for field in rest.split(" | ")]
            if kind == "difference":
                differences.append(Rule(*[re.compile(x) for x in fields[:3]], fields[3]))
            elif kind == "uncalled":
                uncalled[fields[0]] = fields[1]
            elif line.strip() and not line.startswith("#"):
                sys.exit("differences.txt: not understood: " + line)
    return differences, uncalled


def run(client, library, driver, mode, more):
    machine, headroom = MODES[mode]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HEADROOM_", "SIMGPU")) and k != "LD_PRELOAD"}
    env.update(SIMGPU=machine, SIMGPU_LOG="off", HEADROOM_STATS="off", HEADROOM_LOG="error", HEADROOM_HOST="1G", HEADROOM_VERIFY="off",
               LD_LIBRARY_PATH=driver)
    if headroom:
        env["LD_PRELOAD"] = library
    done = subprocess.run([client, *sorted(glob.glob(os.path.join(HERE, "*.calls")), key=lambda p: not p.endswith("/setup.calls")), *more],
                          env=env, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode != 0:
        sys.exit(f"{driver} {mode} {more}: status {done.returncode} after: {done.stdout[-300:]}\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()


def parts(line):
    m = LINE.match(line)
    return (m.group(1), m.group(3)) if m else (line, "")


def several_wrong(call):
    """Which of several errors is told is nobody's business."""
    return call.count("<") > 1


class Comparison:
    def __init__(self, differences):
        self.differences, self.used, self.wrong = differences, [0] * len(differences), []
        self.functions, self.calls, self.either = set(), 0, 0

    def listed(self, call, native, headroom):
        for i, rule in enumerate(self.differences):
            if rule.call.fullmatch(call) and rule.native.fullmatch(native) and rule.headroom.fullmatch(headroom):
                self.used[i] += 1
                return True
        return False

    def compare(self, where, native, headroom):
        for ours, theirs in zip(native, headroom):
            m = LINE.match(ours)
            if m:
                self.functions.add(m.group(2))
                self.calls += 1
            if ours == theirs:
                continue
            (call, outcome), (other_call, other) = parts(ours), parts(theirs)
            if call != other_call:
                self.wrong.append(f"{where}: {ours}\n    under headroom: {theirs}\n    (what follows is not compared)")
                return
            if several_wrong(call) and outcome[0] != "0" and other[0] != "0":
                self.either += 1
            elif not self.listed(call, outcome, other):
                self.wrong.append(f"{where}: {ours}\n    under headroom: {other}")
        if len(native) != len(headroom):
            self.wrong.append(f"{where}: {len(native)} lines, under headroom {len(headroom)}")


def main():
    client, library, simgpu, variants, hooks_def = sys.argv[1:]
    differences, uncalled = rules(os.path.join(HERE, "differences.txt"))
    drivers = {v: os.path.join(variants, v) for v in ("114", "118", "122", "124", "129")}
    drivers["current"] = simgpu
    seed = os.environ.get("HEADROOM_TEST_SEED", "20")
    batches = [[], [f"random={seed},60"]]
    jobs = [(name, mode, more) for name in drivers for more in batches for mode in MODES
            if not more or name in ("114", "122", "current")]
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(map(repr, jobs), pool.map(lambda j: run(client, library, drivers[j[0]], j[1], j[2]), jobs)))
    comparison = Comparison(differences)
    for name, mode, more in jobs:
        if mode != "native":
            comparison.compare(" ".join([name, mode, *more]), results[repr((name, "native", more))], results[repr((name, mode, more))])
    with open(hooks_def, encoding="utf-8") as f:
        table = re.findall(r"^(?:HOOK|REFUSE)\((\w+),", f.read(), re.M)
    never = [f for f in table if f not in comparison.functions]
    wrong = comparison.wrong
    wrong += [f"never called, and not listed: {f}" for f in never if not any(re.fullmatch(u, f) for u in uncalled)]
    wrong += [f"listed as never called, but there is none: {u}" for u in uncalled if not any(re.fullmatch(u, f) for f in never)]
    wrong += [f"listed, but does not differ: {r.call.pattern}" for r, n in zip(differences, comparison.used) if n == 0]
    print(f"{len(comparison.functions)} functions, {comparison.calls} calls compared, {len(comparison.wrong)} differences; "
          f"{comparison.either} with one of several errors, {sum(comparison.used)} more for {len(differences)} listed reasons; {len(never)} of {len(table)} hooks never called, for {len(uncalled)} listed reasons")
    for line in wrong[:40]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
