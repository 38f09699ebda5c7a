#!/usr/bin/env python3
"""A library that only forwards, to compare headroom with: forward.py hr_functions.def OUTPUT.S

Every function of the driver jumps through a table of its own, which cuInit (bench_forward.c) fills.
"""
import re
import sys

CODE = """
#if defined(__x86_64__)
.macro forward name, slot
.globl \\name
.type \\name, %function
\\name:
    jmp *forward_slots+8*\\slot(%rip)
.size \\name, . - \\name
.endm
#else
.macro forward name, slot
.globl \\name
.type \\name, %function
\\name:
    adrp x16, forward_slots+8*\\slot
    ldr x16, [x16, :lo12:forward_slots+8*\\slot]
    br x16
.size \\name, . - \\name
.endm
#endif
.text
"""


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        names = [n for n in re.findall(r"HR_FUNCTION\((\w+)\)", f.read()) if n != "cuInit"]
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write(CODE)
        for slot, name in enumerate(names):
            f.write("forward %s, %d\n" % (name, slot))
        f.write(".bss\n.balign 8\n.globl forward_slots\n.hidden forward_slots\nforward_slots: .skip %d\n" % (8 * len(names)))
        f.write(".section .rodata\n.globl forward_names\n.hidden forward_names\nforward_names:\n")
        f.write("".join('    .asciz "%s"\n' % n for n in names) + "    .byte 0\n")
        f.write('.section .note.GNU-stack,"",%progbits\n')


if __name__ == "__main__":
    main()
