#!/usr/bin/env python3
"""The last column of docs/known-failures.md: which test files carry each number in a test's title.

known_failures.py ROOT           checks that the column is up to date (exit status 1 if not)
known_failures.py ROOT --write   rewrites it

A title carries K28 when it has the word k28, as in Test(oom, k28_is_reported_as_such), test('K28 ...')
or ("K28: ...", outcome) in a table of checks.
"""
import os
import re
import sys

from settle import settle

TITLE = re.compile(r'''\b(?:Test|ParameterizedTest)\s*\(([^){]*)\)|\btest\s*\(\s*'([^']*)'|^\s*def\s+(test_\w+)'''
                   r'''|\(\s*"(K\d+: [^"]*)"''', re.M)
NUMBER = re.compile(r"(?<![a-z0-9])k(\d+)(?![a-z0-9])", re.I)


def numbers_by_file(root):
    found = {}
    for folder, _, names in os.walk(os.path.join(root, "tests")):
        if os.path.relpath(folder, root).startswith(os.path.join("tests", "support")):
            continue
        for name in sorted(names):
            if not name.endswith((".c", ".py", "meson.build")):
                continue
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8", errors="replace") as f:
                text = f.read()
            for title in TITLE.finditer(text):
                words = " ".join(g for g in title.groups() if g).replace("_", " ")
                for number in NUMBER.findall(words):
                    found.setdefault(int(number), set()).add(os.path.relpath(path, root))
    return found


def main():
    root = sys.argv[1]
    path = os.path.join(root, "docs", "known-failures.md")
    found = numbers_by_file(root)
    with open(path, encoding="utf-8") as f:
        old = f.read()
    lines = []
    for line in old.split("\n"):
        row = re.match(r"(\| K(\d+) \|[^|]*\|[^|]*\|)", line)
        if row:
            files = sorted(found.get(int(row.group(2)), ()))
            line = row.group(1) + " " + ", ".join("`%s`" % name for name in files) + " |"
        lines.append(line)
    new = "\n".join(lines)
    settle(path, new, sys.argv[2:] == ["--write"],
           "docs/known-failures.md does not say where its numbers are tested; run tests/support/known_failures.py . --write")


if __name__ == "__main__":
    main()
