#!/usr/bin/env python3
"""Make what the library needs out of cuda.h and the hook table: generate.py WHAT CUDA_H HOOKS_DEF EXEMPT_DEF OUTPUT.

WHAT is one of
  functions  HR_FUNCTION(name) for every function, in header order: the enum, the table of real functions, the names
  hooks      prototypes of the hook bodies, and HR_ROUTE(name, KIND): what cuGetProcAddress hands out for each function
  refuse     C bodies of the REFUSE rows
  entries    assembly rows: a lazy-binding stub for every function, a forwarder for every EXEMPT row
  exports    the linker's version script
Every function must stand in exactly one row; anything else fails here, naming it.
"""
import os
import re
import sys
from collections import namedtuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda_h  # noqa: E402

Row = namedtuple("Row", "kind name group")
OWN_EXPORTS = ["dlopen", "headroom_*", "nvml*"]
# Arguments that are addresses though their type does not say so.
ADDRESS_ARGUMENTS = {("cuMemRetainAllocationHandle", "addr"), ("cuTensorMapEncodeTiled", "globalAddress"),
                     ("cuTensorMapEncodeIm2col", "globalAddress"), ("cuTensorMapEncodeIm2colWide", "globalAddress"),
                     ("cuTensorMapReplaceAddress", "globalAddress")}


def rows(path):
    text = re.sub(r"/\*.*?\*/", "", open(path, encoding="utf-8").read(), flags=re.S)
    return [Row(m.group(1), m.group(2), m.group(3).strip())
            for m in re.finditer(r'^(HOOK|REFUSE|EXEMPT)\((\w+), ("[^"]*"|\w+)\)$', text, flags=re.M)]


def table(functions, hooks_def, exempt_def):
    """name -> Row for every function; exits naming every function that has no row, two rows, or is not in cuda.h."""
    found, wrong = {}, []
    for row in rows(hooks_def) + rows(exempt_def):
        if row.name in found:
            wrong.append("two rows: " + row.name)
        found[row.name] = row
    names = {f.name for f in functions}
    wrong += ["no row: " + n for n in sorted(names - found.keys())]
    wrong += ["not a function of cuda.h: " + n for n in sorted(found.keys() - names)]
    if wrong:
        sys.exit("hook table: " + "; ".join(wrong))
    return found


def arguments(function):
    """[(type, name)] of a function's parameters."""
    if function.params in ("", "void"):
        return []
    out = []
    for i, text in enumerate(function.params.split(",")):
        m = re.match(r"^(.*?[\s*])(\w+)\s*(\[\s*\])?$", text.strip())
        if not m:
            sys.exit(f"cannot read parameter {i} of {function.name}: {text}")
        out.append((m.group(1).strip() + (" *" if m.group(3) else ""), m.group(2)))
    return out


def checked(function, args):
    """The address arguments, when they alone decide whether window memory is named; [] = refuse whatever they are."""
    scalar = [n for t, n in args if t == "CUdeviceptr" or (function.name, n) in ADDRESS_ARGUMENTS]
    inside = [n for t, n in args if re.search(r"MEMCPY|NODE_PARAMS|NodeParams|RESOURCE_DESC|BatchMemOpParams|Decompress", t)
              or (t.startswith("CUdeviceptr") and n.endswith("s"))]
    return [] if inside else scalar


def head(what):
    return f"/* Made by hooks/generate.py {what} from cuda.h and the hook table. */\n"


def make_functions(functions, _table):
    return head("functions") + "".join(f"HR_FUNCTION({f.name})\n" for f in functions)


def make_hooks(functions, found):
    out = head("hooks")
    out += '#ifndef HR_ROUTE\n#include "driver/driver.h"\n#pragma GCC diagnostic push\n#pragma GCC diagnostic ignored "-Wdeprecated-declarations"\n'
    for f in functions:
        if found[f.name].kind == "HOOK":
            out += f'__typeof__({f.name}) hk_{f.name} __attribute__((visibility("hidden")));\n'
        elif found[f.name].kind == "REFUSE":
            out += f'__typeof__({f.name}) rf_{f.name} __attribute__((visibility("hidden")));\n'
    out += "#pragma GCC diagnostic pop\n#else\n"
    for f in functions:
        out += f"HR_ROUTE({f.name}, {found[f.name].kind})\n"
    return out + "#endif\n"


def make_refuse(functions, found):
    out = head("refuse") + '#include "shim/refuse.h"\n\n#include "hr_hooks.h"\n\n'
    out += '#pragma GCC diagnostic ignored "-Wdeprecated-declarations"\n'
    for f in functions:
        if found[f.name].kind != "REFUSE":
            continue
        args = arguments(f)
        names = checked(f, args)
        test = " || ".join(f"hr_window_holds((CUdeviceptr){n})" for n in names) or "true"
        params = ", ".join(f"{t}{'' if t.endswith('*') else ' '}{n}" for t, n in args) or "void"
        out += (f'\nextern __typeof__({f.name}) {f.name} __attribute__((alias("rf_{f.name}"), visibility("default")));\n'
                f"CUresult rf_{f.name}({params})\n{{\n"
                f"    if (hr_passes(__builtin_return_address(0)) || !({test}))\n"
                f"        return hr_drv.{f.name}({', '.join(n for _, n in args)});\n"
                f"    return hr_refuse(HR_FN_{f.name});\n}}\n")
    return out


def make_entries(functions, found):
    out = ""
    for i, f in enumerate(functions):
        out += f"HR_LAZY {f.name}, {i}\n"
        if found[f.name].kind == "EXEMPT":
            out += f"HR_FORWARD {f.name}, {i}\n"
    return out


def make_exports(functions, _table):
    names = [f.name for f in functions] + OWN_EXPORTS
    return "{\nglobal:\n" + "".join(f"    {n};\n" for n in names) + "local:\n    *;\n};\n"


def main():
    what, header, hooks_def, exempt_def, output = sys.argv[1:]
    functions = cuda_h.functions(header)
    makers = {"functions": make_functions, "hooks": make_hooks, "refuse": make_refuse, "entries": make_entries,
              "exports": make_exports}
    text = makers[what](functions, table(functions, hooks_def, exempt_def))
    with open(output, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
