#!/usr/bin/env python3
"""The hook table with every hook but those of loading turned into a refused row: bare_table.py HOOKS_DEF OUTPUT."""
import re
import sys

KEPT = ("cuInit", "cuGetProcAddress", "cuGetProcAddress_v2")

text = open(sys.argv[1], encoding="utf-8").read()
text = re.sub(r"^HOOK\((\w+),", lambda m: f"{'HOOK' if m.group(1) in KEPT else 'REFUSE'}({m.group(1)},", text, flags=re.M)
open(sys.argv[2], "w", encoding="utf-8").write(text)
