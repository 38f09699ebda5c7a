#!/usr/bin/env python3
"""docs/coverage.md: every function of the driver, what headroom does with it, and why or where that is tested.

doc_coverage.py ROOT           checks that it is up to date (exit status 1 if not)
doc_coverage.py ROOT --write   rewrites it

It is made of hooks/hooks.def, exempt.def, later.def, versions.def and nvml.def. The test of a hooked function is the first that names it, or its
form without _ptsz or _ptds.
"""
import glob
import os
import re
import sys

from settle import settle

FOLDERS = ["tests/shim", "tests/differential", "tests/fabric", "tests/job", "tests/clients", "tests/jobs", "tests/cli", "tests/bench"]


def text_of(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as f:
        return f.read()


def tests(root):
    """For each function the first test file that names it."""
    first = {}
    for folder in FOLDERS:
        for path in sorted(glob.glob(os.path.join(root, folder, "**/*.[ch]"), recursive=True)):
            with open(path, encoding="utf-8") as f:
                for name in set(re.findall(r"\b(?:cu[A-Z]|nvml[A-Z])\w+", f.read())):
                    first.setdefault(name, os.path.relpath(path, root))
    return first


def link(path):
    return "[%s](../%s)" % (os.path.basename(path), path)


def shown(version):
    return "%d.%d" % (int(version) // 1000, int(version) % 1000 // 10)


def rows(root):
    """(function, since, what, reason or test) of every function of the driver."""
    since = {f: v for v, f in re.findall(r"^VERSION\(\w+, (\d+), [01], (\w+)\)$", text_of(root, "hooks/versions.def"), re.M)}
    named = tests(root)
    for kind, name, _group in re.findall(r"^(HOOK|REFUSE)\((\w+), (\w+)\)$", text_of(root, "hooks/hooks.def"), re.M):
        path = named.get(name) or named.get(re.sub(r"_pts[zd]$|_ptds$", "", name))
        where = link(path) if path else "no test names it"
        if kind == "REFUSE":
            where = "only where it names memory of a window"
        yield name, shown(since[name]), "hooked" if kind == "HOOK" else "refused", where
    for name, reason in re.findall(r'^EXEMPT\((\w+), "([^"]*)"\)$', text_of(root, "hooks/exempt.def"), re.M):
        yield name, shown(since[name]), "exempt", reason
    for name, version, what, reason in re.findall(r'^LATER\((\w+), \w+, (\d+), (\w+), "([^"]*)"\)$',
                                                  text_of(root, "hooks/later.def"), re.M):
        yield name, shown(version), "passed on" if what == "PASS" else "withheld", reason


def document(root):
    table = sorted(rows(root))
    count = {what: sum(r[2] == what for r in table) for what in ("hooked", "refused", "exempt", "passed on", "withheld")}
    nvml = re.findall(r"^(NVML|NVML_HOOK)\((\w+)\)$", text_of(root, "hooks/nvml.def"), re.M)
    yield "# What headroom does with each function"
    yield ""
    yield ("Made by `tests/support/doc_coverage.py` from the tables in `hooks/`, which `tests/check` compares with the headers of CUDA "
           "11.8 to 13.5 and of NVML. Of %d functions of the driver %d are *hooked* (answered by headroom), %d *refused* where they name "
           "its memory (`CUDA_ERROR_NOT_SUPPORTED` and one line), and %d *exempt*: they go to the driver unseen, for the reason given. Of what "
           "came after CUDA 13.0, %d are *passed on* and %d *withheld*: to a look-up they are missing, as in a driver of 13.0." %
           (len(table), count["hooked"], count["refused"], count["exempt"], count["passed on"], count["withheld"]))
    yield ""
    yield "| function | since CUDA | here | why, or tested in |"
    yield "|---|---|---|---|"
    for row in table:
        yield "| `%s` | %s | %s | %s |" % row
    yield ""
    yield "## NVML"
    yield ""
    hooked = [name for kind, name in nvml if kind == "NVML_HOOK"]
    yield ("%d functions go to the real library; %d are answered so that they agree with what the driver tells the job: %s." %
           (len(nvml) - len(hooked), len(hooked), ", ".join("`%s`" % name for name in hooked)))


def main():
    root, write = sys.argv[1], sys.argv[2:] == ["--write"]
    path = os.path.join(root, "docs/coverage.md")
    new = "\n".join(document(root)) + "\n"
    settle(path, new, write, "docs/coverage.md is not what the tables say; run tests/support/doc_coverage.py . --write")


if __name__ == "__main__":
    main()
