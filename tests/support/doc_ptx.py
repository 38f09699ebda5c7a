#!/usr/bin/env python3
"""The list of instructions in docs/ptx.md is what the conformance tables say.

doc_ptx.py ROOT PROGRAM           checks that it is up to date (exit status 1 if not)
doc_ptx.py ROOT PROGRAM --write   rewrites it

PROGRAM prints the list; it stands between <!-- instructions: ... --> and <!-- end of instructions -->.
"""
import os
import re
import subprocess
import sys

from settle import settle


def untested(root, text):
    """Instructions that are said to be tested in a file which does not name them."""
    for name, path in re.findall(r"^\| `(\w+)` \|.*\(\.\./(tests/[^)]*)\) \|$", text, re.M):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            if not re.search(r"%s\b" % name, f.read()):
                yield "%s does not test %s" % (path, name)


def main():
    root, program, write = sys.argv[1], sys.argv[2], sys.argv[3:] == ["--write"]
    path = os.path.join(root, "docs/ptx.md")
    with open(path, encoding="utf-8") as f:
        old = f.read()
    m = re.search(r"(<!-- instructions:[^\n]*-->\n)(.*?)(<!-- end of instructions -->)", old, re.S)
    if not m:
        sys.exit("docs/ptx.md: the marks of the list of instructions are missing")
    out = subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout.decode("utf-8")
    missing = "\n".join(untested(root, out))
    if missing:
        sys.exit(missing)
    new = old[:m.end(1)] + out + "\n" + old[m.start(3):]
    settle(path, new, write, "docs/ptx.md: not what the conformance tables say; run tests/support/doc_ptx.py . "
           "BUILD/tests/ptx/ptx_instructions --write")


if __name__ == "__main__":
    main()
