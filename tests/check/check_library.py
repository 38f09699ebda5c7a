#!/usr/bin/env python3
"""What the built library exports and needs: check_library.py LIBRARY CUDA_H HOOKS_DEF EXEMPT_DEF VERSIONS_DEF
HOOKS_FOLDER [sanitized].

Each check prints one line. The library is read with nm, readelf and objdump.
"""
import re
import subprocess
import sys

# The oldest C library that must do: 2.17 is what manylinux2014 promises, and the oldest that aarch64 has.
OLDEST_GLIBC = (2, 17)
OWN_EXPORTS = re.compile(r"^(dlopen|headroom_\w+|nvml\w+)$")


def tool(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def exports(library):
    return {line.split()[-1].split("@")[0]: line.split()[-2] for line in tool("nm", "-D", "--defined-only", library).splitlines()}


def undefined(library):
    return [line.split()[-1].split("@")[0] for line in tool("nm", "-D", "--undefined-only", library).splitlines()]


def check_completeness(cuda_h, hooks_def, exempt_def):
    names, rows, wrong = [f.name for f in cuda_h], {}, []
    for path in (hooks_def, exempt_def):
        for line in re.sub(r"/\*.*?\*/", "", open(path, encoding="utf-8").read(), flags=re.S).splitlines():
            m = re.fullmatch(r'(HOOK|REFUSE)\((\w+), [A-Z]+\)|(EXEMPT)\((\w+), "([^"]{4,})"\)', line)
            if m:
                rows.setdefault(m.group(2) or m.group(4), []).append(m.group(1) or m.group(3))
            elif line.strip():
                wrong.append(f"not a row: {line}")
    wrong += [f"{n} has {len(rows.get(n, []))} rows" for n in names if len(rows.get(n, [])) != 1]
    wrong += [f"{n} is no function of cuda.h" for n in rows if n not in names]
    return rows, wrong


def check_siblings(names, rows, exempt_def):
    """A hooked function's other forms are hooked or refused too; a form with 32-bit addresses may be exempt."""
    narrow = set(re.findall(r'EXEMPT\((\w+), "32-bit', open(exempt_def, encoding="utf-8").read()))
    base = {n: re.sub(r"(_v\d)?(_ptsz|_ptds)?$", "", n) for n in names}
    covered = {base[n] for n in names if rows[n] != ["EXEMPT"]}
    return [f"{n} is exempt but another form of it is not" for n in names
            if base[n] in covered and rows[n] == ["EXEMPT"] and n not in narrow]


def check_exports(library, names):
    found = exports(library)
    wrong = [f"{n} is not exported" for n in names if n not in found]
    wrong += [f"{n} is exported as {found[n]}, not as code" for n in names if found.get(n, "T") != "T"]
    wrong += [f"{n} should not be exported" for n in found if n not in names and not OWN_EXPORTS.match(n)]
    return wrong


def check_needs(library):
    wrong = [f"needs {n} from another library" for n in undefined(library) if re.match(r"cu[A-Z]|nv", n)]
    for line in tool("readelf", "-rW", library).splitlines():
        m = re.search(r"\s(cu[A-Z]\w+)", line)
        if m:
            wrong.append(f"relocation by the name {m.group(1)}: another library could take its place")
    dynamic = tool("readelf", "-dW", library)
    if "[libcuda.so.1]" not in "".join(re.findall(r"SONAME.*", dynamic)):
        wrong.append("the SONAME is not the driver's")
    for needed in re.findall(r"NEEDED.*\[(.*)\]", dynamic):
        if not re.match(r"(libc|libdl|libpthread|libm|librt)\.so\.\d|ld-linux", needed):
            wrong.append(f"needs {needed}")
    return wrong


def check_glibc(library):
    wrong = []
    for line in tool("objdump", "-T", library).splitlines():
        m = re.search(r"\*UND\*.*\(?GLIBC_([0-9.]+)\)?\s+(\w+)", line)
        if m and tuple(map(int, m.group(1).split("."))) > OLDEST_GLIBC:
            wrong.append(f"{m.group(2)} needs glibc {m.group(1)}")
    return wrong


def check_start(library):
    """Nothing of ours may run when the library is loaded: the only constructor is the compiler's frame_dummy."""
    sizes = re.findall(r"\(INIT_ARRAYSZ\)\s+(\d+)", tool("readelf", "-dW", library))
    return [f"constructors of {sizes[0]} bytes"] if sizes and int(sizes[0]) > 8 else []


def check_versions(names, versions_def):
    found = re.findall(r"^VERSION\((\w+), (\d+), ([01]), (\w+)\)$", open(versions_def, encoding="utf-8").read(), re.M)
    functions = [f for _, _, _, f in found]
    wrong = [f"versions.def has {functions.count(n)} rows for {n}" for n in names if functions.count(n) != 1]
    wrong += [f"versions.def: {f} is no form of {b}" for b, _, per_thread, f in found
              if not re.fullmatch(re.escape(b) + r"(_v\d)?" + (r"(_ptsz|_ptds)" if per_thread == "1" else ""), f)]
    return wrong


def check_nvml(library, hooks_folder):
    names = re.findall(r"^NVML(?:_HOOK)?\((\w+)\)$", open(hooks_folder + "/nvml.def", encoding="utf-8").read(), flags=re.M)
    found = exports(library)
    return [f"{n} is not exported" for n in names if n not in found] + ([] if len(names) > 400 else ["rows are missing"])


def main():
    library, header, hooks_def, exempt_def, versions_def, hooks_folder, *flags = sys.argv[1:]
    sys.path.insert(0, hooks_folder)
    import cuda_h  # pylint: disable=import-outside-toplevel
    functions = cuda_h.functions(header)
    names = [f.name for f in functions]
    rows, incomplete = check_completeness(functions, hooks_def, exempt_def)
    checks = [
        ("K4: every function of cuda.h stands in exactly one row", incomplete),
        ("K4: every form of a hooked function is hooked or refused",
         [] if incomplete else check_siblings(names, rows, exempt_def)),
        ("every function of cuda.h is exported, and nothing else but our own names", check_exports(library, names)),
        ("K11: the loader's look-up is not ours", [n for n in ("dlsym", "dlvsym") if n in exports(library)]),
        ("every function of nvml.def is exported", check_nvml(library, hooks_folder)),
        ("versions.def has every function once", check_versions(names, versions_def)),
    ]
    if "sanitized" not in flags:
        checks += [
            ("K17: no undefined function of the driver, no relocation by its name", check_needs(library)),
            ("K16: only symbol versions of glibc %d.%d and older" % OLDEST_GLIBC, check_glibc(library)),
            ("nothing runs when the library is loaded", check_start(library)),
        ]
    for title, wrong in checks:
        print(f"{'FAIL' if wrong else 'ok'}: {title}" + "".join(f"\n    {w}" for w in wrong))
    return 1 if any(wrong for _, wrong in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
