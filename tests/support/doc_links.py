#!/usr/bin/env python3
"""Every relative link and every path in code marks of the documents leads somewhere: doc_links.py ROOT."""
import glob
import os
import re
import sys

PATHS = ("src/", "tests/", "hooks/", "examples/", "docs/", "include/")


def main():
    root = sys.argv[1]
    bad = []
    documents = glob.glob(os.path.join(root, "*.md")) + glob.glob(os.path.join(root, "docs", "*.md"))
    documents += glob.glob(os.path.join(root, "examples", "*.md"))
    for document in documents:
        with open(document, encoding="utf-8") as f:
            text = f.read()
        here = os.path.dirname(document)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not os.path.exists(os.path.join(here, target)):
                bad.append("%s: no %s" % (document, target))
        for target in re.findall(r"`([\w./-]+)`", text):
            if target.startswith(PATHS) and not os.path.exists(os.path.join(root, target)):
                bad.append("%s: no %s" % (document, target))
    if not documents:
        bad.append("no documents found")
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
