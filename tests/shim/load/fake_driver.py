#!/usr/bin/env python3
"""Write a driver for tests of loading: fake_driver.py CUDA_H VERSIONS_DEF OUTPUT CUDA_VERSION [OPTION...].

It exports the functions that a driver of that CUDA version has, and answers each by noting the call. cuGetExportTable gives the
test a struct fake_stats (fake.h). Options:
  exported-calls   calls itself through its exported names (to be linked without -Bsymbolic)
  other-pointers   cuGetProcAddress returns other addresses than dlsym
  one-address      functions that a test does not tell apart share one address
"""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "hooks"))
import cuda_h  # noqa: E402

SPECIAL = {"cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetExportTable",
           "cuMemAlloc_v2", "cuDeviceGetCount", "cuParamSetf"}


def main():
    header, versions, output, version, *options = sys.argv[1:]
    since = {m.group(4): (m.group(1), int(m.group(2)), int(m.group(3))) for m in
             re.finditer(r"^VERSION\((\w+), (\d+), (\d), (\w+)\)$", open(versions, encoding="utf-8").read(), re.M)}
    names = [f.name for f in cuda_h.functions(header)]
    if int(version) > 13000:  # newer than cuda.h may be
        later = os.path.join(os.path.dirname(versions), "later.def")
        for m in re.finditer(r"^LATER\((\w+), (\w+), (\d+),", open(later, encoding="utf-8").read(), re.M):
            since[m.group(1)] = (m.group(2), int(m.group(3)), int(m.group(1).endswith("_ptsz")))
            names.append(m.group(1))
    names = [n for n in names if since[n][1] <= int(version)]
    out = [f"#define FAKE_VERSION {version}", '#include "fake_driver.h"', "enum {"]
    out += [f"    I_{n}," for n in names] + ["    I_COUNT };"]
    out.append("static const char *const names[] = {" + ", ".join(f'"{n}"' for n in names) + "};")
    share = "one-address" in options
    for n in names:
        if n in SPECIAL:
            continue
        if share and not n.startswith("cuMem"):
            out.append(f'extern int {n}(void) __attribute__((alias("fake_shared")));')
        else:
            out.append(f"FAKE_FUNCTION({n})")
    for special in sorted(SPECIAL & set(names)):
        out.append(f"#define HAVE_{special}")
    if "exported-calls" in options:
        out.append("#define EXPORTED_CALLS")
    if "other-pointers" in options:
        out.append("#define OTHER_POINTERS")
        out += [f"FAKE_TRAMPOLINE({n})" for n in names]
    out.append("static const struct form forms[] = {")
    for n in names:
        base, ver, per_thread = since[n]
        address = f"other_{n}" if "other-pointers" in options else n
        out.append(f'    {{"{base}", {ver}, {per_thread}, I_{n}, (void *){address}}},')
    out += ["};", '#include "fake_body.h"', ""]
    with open(output, "w", encoding="utf-8") as f:
        f.write("\n".join(out))


if __name__ == "__main__":
    main()
