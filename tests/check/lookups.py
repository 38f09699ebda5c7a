#!/usr/bin/env python3
"""What CUDA's own runtimes ask the driver's resolver when they start, asked again: all that they get is ours, or needs no hook.

lookups.py replay LIST LIBRARY DRIVER HOOKS_FOLDER              makes each look-up of the list natively and with the library preloaded
lookups.py observe LIST LIBRARY DRIVER PACKAGES OBSERVER [--write]  compares the list with what the runtimes in PACKAGES ask
lookups.py client LIST                                          (used by replay)

LIST has a row for each look-up: name, version, flags, and the runtimes that make it. A runtime is observed until it notices that no vendor's driver
answers. Every function that comes from the library has to be a row HOOK or REFUSE of the hook table, every one that comes from the driver a row EXEMPT.
"""
import ctypes
import glob
import os
import re
import subprocess
import sys
import tempfile
from collections import namedtuple

Lookup = namedtuple("Lookup", "name version flags")
START = """import ctypes, sys
count = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).cudaGetDeviceCount(ctypes.byref(count))
"""


class Place(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("at", ctypes.c_void_p)]


def read_list(path):
    """Lookup -> the runtimes that make it."""
    with open(path, encoding="utf-8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f if not line.startswith("#")]
    return {Lookup(name, int(version), int(flags)): runtimes.split(",") for name, version, flags, runtimes in rows}


def client(path):
    """A line for each look-up: result, file and symbol of what was handed out."""
    ask = ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2
    whose = ctypes.CDLL(None).dladdr
    for lookup in read_list(path):
        pointer, status, place = ctypes.c_void_p(), ctypes.c_int(), Place()
        result = ask(lookup.name.encode(), ctypes.byref(pointer), lookup.version, ctypes.c_uint64(lookup.flags), ctypes.byref(status))
        if pointer.value and not whose(pointer, ctypes.byref(place)):
            place.file, place.symbol = b"nowhere", b""
        print(result, status.value, (place.file or b"-").decode(), (place.symbol or b"-").decode(), sep="\t")


def run(arguments, env):
    done = subprocess.run([sys.executable] + arguments, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arguments}: status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout.splitlines()


def kinds(folder):
    """Name -> HOOK, REFUSE or EXEMPT; and the names that are withheld since they came after the table."""
    found = {}
    for name in ("hooks.def", "exempt.def"):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            found.update((m.group(2), m.group(1)) for m in re.finditer(r"^(HOOK|REFUSE|EXEMPT)\((\w+),", f.read(), re.M))
    with open(os.path.join(folder, "later.def"), encoding="utf-8") as f:
        later = set(re.findall(r"^\w+\((\w+)", f.read(), re.M))
    return found, later


def replay(path, library, driver, hooks):
    lookups, (kind, later) = list(read_list(path)), kinds(hooks)
    folder = {"LD_LIBRARY_PATH": os.path.dirname(driver), "SIMGPU_LOG": "off", "HEADROOM_STATS": "off"}
    native = run([__file__, "client", path], folder)
    ours = run([__file__, "client", path], {**folder, "LD_PRELOAD": library, "HEADROOM_DRIVER": driver})
    wrong, counts = [], {"HOOK": 0, "REFUSE": 0, "EXEMPT": 0, "absent": 0}
    for lookup, before, after in zip(lookups, native, ours, strict=True):
        (code, status, file, _), (our_code, our_status, our_file, symbol) = before.split("\t"), after.split("\t")
        withheld = any(lookup.name == re.sub(r"(_v\d+)?(_pts[zd])?$", "", name) for name in later)
        if (code, status, file == "-") != (our_code, our_status, our_file == "-") and not withheld:
            wrong.append(f"{lookup}: {before} natively, {after} with the library")
        elif our_file == "-":
            counts["absent"] += 1
        else:
            mine, row = os.path.samefile(our_file, library), kind.get(symbol, "no row")
            if mine != (row in ("HOOK", "REFUSE")):
                wrong.append(f"{lookup}: {symbol} ({row}) comes from {our_file}")
            counts[row] = counts.get(row, 0) + 1
    print(f"{len(lookups)} look-ups of {len({x.name for x in lookups})} names: " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    return wrong + ([] if counts["HOOK"] > 150 else ["hardly any function is hooked"])


def observe(path, library, driver, packages, observer, *write):
    runtimes, found = sorted(glob.glob(os.path.join(packages, "*", "libcudart.so.*"))), {}
    if not runtimes:
        print("no runtime of CUDA could be fetched at set-up: what they look up is not observed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes:
            name = os.path.basename(os.path.dirname(runtime)).rsplit("-", 1)[1]
            seen = os.path.join(folder, name)
            run(["-c", START, runtime], {"LD_PRELOAD": f"{observer} {library}", "HEADROOM_DRIVER": driver, "HEADROOM_STATS": "off",
                                         "SIMGPU_LOG": "off", "OBSERVED": seen})
            with open(seen, encoding="utf-8") as f:
                rows = {Lookup(n, int(v), int(g)) for n, v, g, _ in (line.split("\t") for line in f)}
            print(f"runtime {name}: {len(rows)} look-ups of {len({x.name for x in rows})} names")
            for row in rows:
                found.setdefault(row, []).append(name)
    if write == ("--write",):
        with open(path, "w", encoding="utf-8") as f:
            f.write("# name, version, flags, and the versions of CUDA's runtime that look it up when they start; made by lookups.py observe\n")
            f.writelines("\t".join((x.name, str(x.version), str(x.flags), ",".join(found[x]))) + "\n" for x in sorted(found))
        return []
    known, names = read_list(path), {os.path.basename(os.path.dirname(r)).rsplit("-", 1)[1] for r in runtimes}
    return ([f"{x} of {found[x]} is not in the list" for x in found if set(found[x]) - set(known.get(x, []))] +
            [f"{x} of {known[x]} is not looked up" for x in known if (set(known[x]) & names) - set(found.get(x, []))])


def main():
    mode, *arguments = sys.argv[1:]
    if mode == "client":
        client(*arguments)
        return 0
    wrong = {"replay": replay, "observe": observe}[mode](*arguments)
    for line in wrong[:20]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
