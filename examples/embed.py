#!/usr/bin/env python3
"""Turn a file into a C array: embed.py NAME INPUT OUTPUT.

OUTPUT defines `const unsigned char NAME[]`, with a 0 after the file's last byte so that text can be used as a string, and
`const unsigned long NAME_bytes`, which does not count that 0.
"""
import sys


def main():
    name, source, target = sys.argv[1:4]
    with open(source, "rb") as f:
        data = f.read()
    lines = [",".join(str(b) for b in data[i:i + 32]) + "," for i in range(0, len(data), 32)]
    with open(target, "w", encoding="ascii") as f:
        f.write(f"extern const unsigned char {name}[];\nextern const unsigned long {name}_bytes;\n")
        f.write(f"const unsigned char {name}[] = {{\n" + "\n".join(lines) + "\n0};\n")
        f.write(f"const unsigned long {name}_bytes = {len(data)};\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
