#!/usr/bin/env python3
"""Print the folder of the cuda.h to build against: find_cuda_h.py BUILD_DIR [EXPLICIT_DIR].

Order: EXPLICIT_DIR, CUDA_HOME, /usr/local/cuda, the system include path, BUILD_DIR/cuda-include (unpacked there by the
set-up script). The header must be 13.0 or newer, since the hook table takes its signatures from it.
"""
import os
import re
import sys

NEEDED = 13000


def version(folder):
    try:
        with open(os.path.join(folder, "cuda.h"), encoding="utf-8", errors="replace") as f:
            m = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", f.read())
            return int(m.group(1)) if m else 0
    except OSError:
        return 0


def main():
    build = sys.argv[1]
    explicit = sys.argv[2] if len(sys.argv) > 2 else ""
    if explicit:
        tries = [explicit]
    else:
        tries = [os.path.join(os.environ["CUDA_HOME"], "include")] if os.environ.get("CUDA_HOME") else []
        tries += ["/usr/local/cuda/include", "/usr/local/include", "/usr/include", os.path.join(build, "cuda-include")]
    for folder in tries:
        if version(folder) >= NEEDED:
            print(os.path.realpath(folder))
            return 0
    sys.stderr.write("no cuda.h of CUDA 13.0 or newer in: " + ", ".join(tries) + " (run tests/setup.sh)\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
