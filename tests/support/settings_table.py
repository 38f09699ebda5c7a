#!/usr/bin/env python3
"""The settings table of README.md, made from src/base/config.def.

settings_table.py CONFIG_DEF README           checks that the table is up to date (exit status 1 if not)
settings_table.py CONFIG_DEF README --write   replaces it
"""
import ast
import re
import sys

BEGIN = "<!-- settings: made by tests/support/settings_table.py from src/base/config.def -->"
END = "<!-- end of settings -->"


def rows(text):
    """Yield the arguments of each SETTING(...) as strings; C string literals are unquoted and joined."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    token = re.compile(r'\s*(?:(?P<text>(?:"(?:[^"\\]|\\.)*"\s*)+)|(?P<word>\w+))\s*(?P<end>[,)])')
    for start in re.finditer(r"\bSETTING\(", text):
        at, arguments = start.end(), []
        while True:
            m = token.match(text, at)
            if not m:
                sys.exit("config.def: cannot read a row near: " + text[at:at + 60])
            literals = re.findall(r'"(?:[^"\\]|\\.)*"', m.group("text") or "")
            arguments.append("".join(ast.literal_eval(x) for x in literals) if literals else m.group("word"))
            at = m.end()
            if m.group("end") == ")":
                break
        yield arguments


def table(config_def):
    out = [BEGIN, "", "| variable | flag | takes | default | what it does |", "|---|---|---|---|---|"]
    with open(config_def, encoding="utf-8") as f:
        for _field, env, flag, _type, _choices, default, accepted, effect, text in rows(f.read()):
            later = "" if effect == "NOW" else " *Not yet in effect.*"
            cells = ["`HEADROOM_%s`" % env, "`--%s`" % flag, accepted, "`%s`" % default, text + later]
            out.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(out + ["", END])


def main():
    config_def, readme = sys.argv[1:3]
    with open(readme, encoding="utf-8") as f:
        text = f.read()
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        sys.exit("%s: the marks of the settings table are missing" % readme)
    new = text[:begin] + table(config_def) + text[end + len(END):]
    if sys.argv[3:] == ["--write"]:
        with open(readme, "w", encoding="utf-8") as f:
            f.write(new)
    elif new != text:
        sys.exit("%s: the settings table is not what config.def says; run tests/support/settings_table.py %s %s --write"
                 % (readme, config_def, readme))


if __name__ == "__main__":
    main()
