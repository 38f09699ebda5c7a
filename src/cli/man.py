#!/usr/bin/env python3
"""The manual pages, made of what the command itself says with --help, so that the two cannot disagree.

man.py HEADROOM PAGE...    each PAGE is a path that ends in headroom.1 or headroom-SUBCOMMAND.1
"""
import os
import re
import subprocess
import sys

ROW = re.compile(r"^ {2}(\S(?:.*?\S)?) {2,}(\S.*)$")


def ask(command, *arguments):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HEADROOM_", "LD_", "SIMGPU"))}
    done = subprocess.run([command, *arguments], env=clean, capture_output=True, text=True, check=True,
                          stdin=subprocess.DEVNULL)
    return done.stdout.rstrip("\n").split("\n")


def blocks(lines):
    """Runs of lines between empty ones."""
    block = []
    for line in lines + [""]:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("~", "\\(ti")
    return "\\&" + text if text.startswith(".") else text


def rows(block):
    """(term, text) of each row of a block, or None: further lines of a row are indented deeper than its first."""
    found = []
    for line in block:
        row = ROW.match(line)
        if row:
            found.append([row.group(1), row.group(2)])
        elif found and line.startswith("      "):
            found[-1][1] += "\n" + line.strip()
        else:
            return None
    return found


def body(lines):
    for block in blocks(lines):
        table = rows(block)
        if table:
            for term, text in table:
                yield from (".TP", ".B " + roff(term))
                for number, line in enumerate(text.split("\n")):
                    if number and line.startswith("takes "):
                        yield ".br"
                    yield roff(line)
        elif all(line.startswith("  ") for line in block):
            yield from (".PP", ".in +4n", ".nf")
            yield from (roff(line.strip()) for line in block)
            yield from (".fi", ".in")
        else:
            yield ".PP"
            yield from (roff(line.strip()) for line in block)


def synopsis(lines):
    yield ".SH SYNOPSIS"
    for number, line in enumerate(lines):
        if number:
            yield ".br"
        yield roff(line)


def overview(command):
    title, *rest = ask(command, "--help")
    name, what = title.split(": ", 1)
    table = [rows([line])[0] if rows([line]) else [line.strip(), ""] for line in rest if line]
    return name, what, table


def page(command, path):
    name, what, table = overview(command)
    version = name.split(" ", 1)[1]
    stem = os.path.basename(path)[:-len(".1")]
    subcommands = list(dict.fromkeys(term.split()[1] for term, text in table if term.split()[1].isalpha() and term.split()[1].islower()))
    out = ['.\\" made by src/cli/man.py from what --help says',
           '.TH %s 1 "" "headroom %s" "headroom"' % (stem.upper(), version)]
    if stem == "headroom":
        out += [".SH NAME", "headroom \\- " + roff(what)] + list(synopsis([term for term, _ in table]))
        out += [".SH SUBCOMMANDS"]
        for term, text in table:
            if text:
                out += [".TP", ".B " + roff(term), roff(text)]
        out += [".SH ENVIRONMENT", ".PP",
                "The variables that set headroom are those of the flags of", ".BR headroom\\-run (1)."]
    else:
        subcommand = stem.split("-", 1)[1]
        summary = next(text for term, text in table if term.split()[1] == subcommand)
        usage, *rest = blocks(ask(command, subcommand, "--help"))
        out += [".SH NAME", "%s \\- %s" % (roff(stem), roff(summary))] + list(synopsis(usage))
        out += [".SH DESCRIPTION"] + list(body([line for block in rest for line in block + [""]]))
    others = [s for s in ["headroom"] + ["headroom-" + s for s in subcommands] if s != stem]
    out += [".SH SEE ALSO"] + [".BR %s (1)%s" % (roff(s), "," if s != others[-1] else "") for s in others]
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    for one in sys.argv[2:]:
        page(sys.argv[1], one)
