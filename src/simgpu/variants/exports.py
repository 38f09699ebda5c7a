#!/usr/bin/env python3
"""A linker's version script with the functions that a driver of a version exports: exports.py VERSION versions.def OUT"""
import re
import sys

version, table, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
since = {}
with open(table, encoding="utf-8") as f:
    for name, first, symbol in re.findall(r"^SG_VERSION\((\w+), (\d+), \w+, (\w+)\)", f.read(), re.M):
        since[symbol] = min(int(first), since.get(symbol, int(first)))
names = sorted(symbol for symbol, first in since.items() if first <= version)
with open(out, "w", encoding="utf-8") as f:
    f.write("{\nglobal:\n" + "".join(f"    {name};\n" for name in names) + "local:\n    *;\n};\n")
