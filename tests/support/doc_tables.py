#!/usr/bin/env python3
"""The tables in the documents that are made from tables in the source.

doc_tables.py ROOT           checks that they are up to date (exit status 1 if not)
doc_tables.py ROOT --write   rewrites them

A table lies between <!-- NAME: ... --> and <!-- end of NAME -->.
"""
import ast
import os
import re
import sys

from settle import settle


def rows(path, macro):
    """Yield the arguments of each MACRO(...) as strings; C string literals are unquoted and joined."""
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    token = re.compile(r'\s*(?:(?P<text>(?:"(?:[^"\\]|\\.)*"\s*)+)|(?P<word>\w+))\s*(?P<end>[,)])')
    for start in re.finditer(r"\b%s\(" % macro, text):
        at, arguments = start.end(), []
        while True:
            m = token.match(text, at)
            if not m:
                sys.exit("%s: cannot read a row near: %s" % (path, text[at:at + 60]))
            literals = re.findall(r'"(?:[^"\\]|\\.)*"', m.group("text") or "")
            arguments.append("".join(ast.literal_eval(x) for x in literals) if literals else m.group("word"))
            at = m.end()
            if m.group("end") == ")":
                break
        yield arguments


def row(cells):
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def settings(root):
    yield row(["variable", "flag", "takes", "default", "what it does"])
    yield "|---|---|---|---|---|"
    for _field, env, flag, _type, _choices, default, accepted, effect, text in rows(
            os.path.join(root, "src/base/config.def"), "SETTING"):
        later = "" if effect == "NOW" else " *Not yet in effect.*"
        yield row(["`HEADROOM_%s`" % env, "`--%s`" % flag, accepted, "`%s`" % default, text + later])


def counters(root):
    yield row(["counter", "what it counts"])
    yield "|---|---|"
    for name, text in rows(os.path.join(root, "src/stats/stats.def"), "STAT"):
        yield row(["`%s`" % name, text])


TABLES = [("settings", "README.md", settings), ("counters", "docs/stats-log.md", counters)]


def main():
    root, write = sys.argv[1], sys.argv[2:] == ["--write"]
    for name, document, make in TABLES:
        path = os.path.join(root, document)
        with open(path, encoding="utf-8") as f:
            old = f.read()
        m = re.search(r"(<!-- %s:[^\n]*-->\n)(.*?)(<!-- end of %s -->)" % (name, name), old, re.S)
        if not m:
            sys.exit("%s: the marks of the table of %s are missing" % (document, name))
        lines = "\n".join(make(root))
        new = old[:m.end(1)] + "\n" + lines + "\n\n" + old[m.start(3):]
        settle(path, new, write, "%s: the table of %s is not what the source says; run tests/support/doc_tables.py . --write"
               % (document, name))


if __name__ == "__main__":
    main()
