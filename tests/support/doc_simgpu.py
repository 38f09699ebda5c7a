#!/usr/bin/env python3
"""docs/simgpu-coverage.md: every export of simgpu's libcuda.so.1, whether it is implemented, and a test that touches it.

doc_simgpu.py ROOT CUDA_H           checks that it is up to date (exit status 1 if not)
doc_simgpu.py ROOT CUDA_H --write   rewrites it

A function is implemented if a source of simgpu defines it; all others are generated and return CUDA_ERROR_NOT_SUPPORTED. The
test is the first that names the function; what no test names is called with empty arguments by tests/simgpu/test_symbols.c.
"""
import glob
import os
import re
import sys

from settle import settle

FOLDERS = ["tests/simgpu", "tests/clients", "tests/shim", "tests/job", "tests/jobs", "tests/fabric", "tests/bench"]
EVERYTHING = "tests/simgpu/test_symbols.c"


def implemented(root):
    names = set()
    for path in glob.glob(os.path.join(root, "src/simgpu/*.c")):
        with open(path, encoding="utf-8") as f:
            names.update(re.findall(r"^CUresult (cu\w+)\(", f.read(), re.M))
    return names


def since(root):
    with open(os.path.join(root, "src/simgpu/versions.def"), encoding="utf-8") as f:
        rows = re.findall(r"^SG_VERSION\((\w+), (\d+), (\w+), (\w+)\)", f.read(), re.M)
    first = {}
    for _name, version, _rule, symbol in rows:
        first[symbol] = min(int(version), first.get(symbol, 1 << 30))
    return first


def tests(root):
    """For each function the first test file that names it."""
    first = {}
    for folder in FOLDERS:
        for path in sorted(glob.glob(os.path.join(root, folder, "**/*.[ch]"), recursive=True)):
            with open(path, encoding="utf-8") as f:
                for name in set(re.findall(r"\bcu[A-Z]\w+", f.read())):
                    first.setdefault(name, os.path.relpath(path, root))
    return first


def document(root, header):
    sys.path.insert(0, os.path.join(root, "hooks"))
    import cuda_h
    names = sorted(f.name for f in cuda_h.functions(header))
    done, versions, named = implemented(root), since(root), tests(root)
    known = done & set(names)
    yield "# What simgpu implements"
    yield ""
    yield ("Made by `tests/support/doc_simgpu.py`. Of %d exports %d are implemented; the others return "
           "`CUDA_ERROR_NOT_SUPPORTED` and say so in one line. What is left out of those that are implemented is in "
           "[simgpu.md](simgpu.md#which-part-of-the-driver-api)." % (len(names), len(known)))
    yield ""
    yield "| function | since CUDA | here | test |"
    yield "|---|---|---|---|"
    for name in names:
        version = versions.get(name)
        shown = "%d.%d" % (version // 1000, version % 1000 // 10) if version else ""
        path = named.get(name)
        test = "[%s](../%s)" % (os.path.basename(path or EVERYTHING), path or EVERYTHING)
        yield "| `%s` | %s | %s | %s |" % (name, shown, "implemented" if name in done else "not supported",
                                           test if path else test + ", empty arguments")


def main():
    root, header, write = sys.argv[1], sys.argv[2], sys.argv[3:] == ["--write"]
    path = os.path.join(root, "docs/simgpu-coverage.md")
    new = "\n".join(document(root, header)) + "\n"
    settle(path, new, write,
           "docs/simgpu-coverage.md is not what the sources say; run tests/support/doc_simgpu.py . CUDA_H --write")


if __name__ == "__main__":
    main()
