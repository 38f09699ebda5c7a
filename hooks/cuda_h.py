#!/usr/bin/env python3
"""Read the function declarations of a cuda.h: the one place that knows how.

As a module: functions(path) -> list of Function(name, params) in header order, true ABI names, without those of later.def.
As a program: cuda_h.py CUDA_H prints one name a line.
"""
import os
import re
import subprocess
import sys
from collections import namedtuple

Function = namedtuple("Function", "name params")


EXTRA = [Function("cuProfilerInitialize", "const char *, const char *, int"), Function("cuProfilerStart", "void"),
         Function("cuProfilerStop", "void")]  # exported by the driver, declared in cudaProfiler.h


def later():
    """The names in later.def."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "later.def")
    with open(path, encoding="utf-8") as f:
        return set(re.findall(r"^LATER\((\w+),", f.read(), re.M))


def declared(header, cc="cc"):
    """All of them."""
    text = subprocess.run([cc, "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c", header],
                          check=True, capture_output=True, text=True).stdout
    found = {}
    for m in re.finditer(r"\bCUresult\s+(cu[A-Za-z0-9_]+)\s*\(([^;{}]*)\)\s*;", text):
        found.setdefault(m.group(1), Function(m.group(1), " ".join(m.group(2).split())))
    for extra in EXTRA:
        found.setdefault(extra.name, extra)
    return list(found.values())


def functions(header, cc="cc"):
    newer = later()
    return [f for f in declared(header, cc) if f.name not in newer]


if __name__ == "__main__":
    for f in functions(sys.argv[1]):
        print(f.name)
