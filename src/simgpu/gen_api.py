#!/usr/bin/env python3
"""Generate what simgpu takes from cuda.h: gen_api.py [--thunks] CUDA_H OUT.c SOURCE.c...

Functions that no SOURCE defines (a line that starts with 'CUresult NAME(') get a body that returns
CUDA_ERROR_NOT_SUPPORTED and says so once. The table of all exports and the table of error names follow. With --thunks the
table's addresses are not those of the exports, but of a jump to each.
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "hooks"))
import cuda_h  # noqa: E402


def error_names(header):
    text = subprocess.run(["cc", "-E", "-P", "-x", "c", header], check=True, capture_output=True, text=True).stdout
    body = re.search(r"enum cudaError_enum\s*\{(.*?)\}", text, re.S).group(1)
    return re.findall(r"\b(CUDA_[A-Z0-9_]+)\s*=", body)


def thunk(name):
    """A jump of a few bytes; the label is known to this file only."""
    return (f'__asm__(".text\\n.balign 16\\n.type thunk_{name}, %function\\nthunk_{name}: " SG_JUMP "{name}\\n");\n'
            f"extern const char thunk_{name}[];")


JUMP = """#if defined __x86_64__
#define SG_JUMP "endbr64; jmp "
#elif defined __aarch64__
#define SG_JUMP "bti c; b "
#endif"""


def main():
    thunks = sys.argv[1] == "--thunks"
    header, out, *sources = sys.argv[2:] if thunks else sys.argv[1:]
    implemented = set()
    for path in sources:
        with open(path, encoding="utf-8") as f:
            implemented.update(re.findall(r"^CUresult (cu\w+)\(", f.read(), re.M))
    functions = cuda_h.functions(header)
    unknown = implemented - {f.name for f in functions}
    if unknown:
        sys.exit("not in cuda.h: " + ", ".join(sorted(unknown)))
    lines = ['#include "simgpu/sim.h"', "", '#pragma GCC diagnostic ignored "-Wunused-parameter"', ""]
    for f in functions:
        if f.name not in implemented:
            lines.append(f"CUresult {f.name}({f.params}) {{\n    return sg_unsupported(\"{f.name}\");\n}}")
    if thunks:
        lines += [JUMP] + [thunk(f.name) for f in functions]
    lines.append("\nconst struct sg_symbol sg_symbols[] = {")
    for f in sorted(functions):
        flag = "true" if f.name in implemented else "false"
        address = f"(void *)thunk_{f.name}" if thunks else f"(void *)&{f.name}"
        lines.append(f'    {{"{f.name}", {address}, {flag}}},')
    lines += ["};", "const size_t sg_symbol_count = sizeof sg_symbols / sizeof sg_symbols[0];",
              "\nconst struct sg_error_name sg_error_names[] = {"]
    for name in error_names(header):
        text = "no error" if name == "CUDA_SUCCESS" else name.replace("CUDA_ERROR_", "").lower().replace("_", " ")
        lines.append(f'    {{{name}, "{name}", "{text}"}},')
    lines += ["};", "const size_t sg_error_name_count = sizeof sg_error_names / sizeof sg_error_names[0];", ""]
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))


if __name__ == "__main__":
    main()
