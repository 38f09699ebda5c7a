#!/usr/bin/env python3
"""What the headers of several CUDA versions say of the driver's functions, as a table, and the hook tables compared with it.

headers.py check TABLE HOOKS_FOLDER HEADERS_FOLDER   compares; each check prints one line
headers.py write TABLE HEADERS_FOLDER                makes the table anew

HEADERS_FOLDER holds unpacked packages (tests/setup.sh), each with a cuda.h and a cudaTypedefs.h, or an nvml.h. Where it is there, the
table itself is compared with the headers as well. A row of the table is FUNCTION BASE SINCE HEADERS. SINCE is the CUDA version for which
cuGetProcAddress(BASE) means the function, HEADERS are the versions that declare it. NVML's functions have the base nvml and no SINCE.
"""
import glob
import os
import re
import sys
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../hooks"))
import cuda_h  # noqa: E402

Row = namedtuple("Row", "function base since headers")
FORM = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
TABLE_MADE_FOR = 13000  # hooks.def and exempt.def; what came later stands in later.def


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def number(version):
    major, minor = version.split(".")
    return int(major) * 1000 + int(minor) * 10


def cuda_headers(folder):
    """{"11.8": path of cuda.h}, in the order of versions."""
    found = {}
    for path in glob.glob(os.path.join(folder, "**/cuda.h"), recursive=True):
        value = int(re.search(r"#define\s+CUDA_VERSION\s+(\d+)", text_of(path)).group(1))
        found["%d.%d" % (value // 1000, value % 1000 // 10)] = path
    return dict(sorted(found.items(), key=lambda item: number(item[0])))


def since_of(headers, functions):
    """cudaTypedefs.h has the versions in its names; a base's forms come in the order of their numbers."""
    since, versions, forms = {}, {}, {}
    typed = "".join(text_of(os.path.join(os.path.dirname(h), "cudaTypedefs.h")) for h in headers)
    for base, version, thread in re.findall(r"\bPFN_(cu\w+?)_v(\d{4,5})(_ptsz|_ptds|)\)", typed):
        versions.setdefault((base, thread), set()).add(int(version))
    for name in functions:
        match = FORM.search(name)
        forms.setdefault((name[:match.start()], match.group(2) or ""), []).append((int((match.group(1) or "_v1")[2:]), name))
    for key, names in forms.items():
        known = sorted(versions.get(key, ()))
        if known and len(known) != len(names):
            sys.exit(f"{key}: the forms {names} for the versions {known}")
        since.update({name: version for (_, name), version in zip(sorted(names), known)})
    return since


def derive(folder):
    headers = cuda_headers(folder)
    declared = {v: {f.name for f in cuda_h.declared(h)} for v, h in headers.items()}
    functions = sorted(set().union(*declared.values()))
    since = since_of(headers.values(), functions)
    for name in functions:
        yield Row(name, FORM.sub("", name), str(since.get(name, "-")), ",".join(v for v in headers if name in declared[v]))
    nvml = {}
    for path in glob.glob(os.path.join(folder, "**/nvml.h"), recursive=True):
        version = "%s.%s" % re.search(r"nvidia_nvml_dev(?:_cu\d+)?-(\d+)\.(\d+)", path).groups()
        for name in set(re.findall(r"DECLDIR\s+(nvml\w+)\s*\(", text_of(path))):
            nvml.setdefault(name, set()).add(version)
    for name in sorted(nvml):
        yield Row(name, "nvml", "-", ",".join(sorted(nvml[name], key=number)))


def write(table, folder):
    with open(table, "w", encoding="utf-8") as f:
        f.write("# Made by tests/check/headers.py from the headers of CUDA and NVML: function, base, since, headers.\n")
        f.writelines(" ".join(row) + "\n" for row in derive(folder))


def rows(table):
    return [Row(*line.split()) for line in text_of(table).splitlines() if not line.startswith("#")]


def definitions(folder, name, pattern):
    return re.findall(pattern, text_of(os.path.join(folder, name)), re.M)


def check_covered(table, hooks):
    """Every function of every header has one row, and no row is of a function that no header has."""
    hooked = definitions(hooks, "hooks.def", r"^(?:HOOK|REFUSE)\((\w+),") + definitions(hooks, "exempt.def", r"^EXEMPT\((\w+),")
    later = definitions(hooks, "later.def", r"^LATER\((\w+),")
    names = {r.function for r in table if r.base != "nvml"}
    wrong = []
    for r in (r for r in table if r.base != "nvml"):
        places = hooked.count(r.function), later.count(r.function)
        expected = (0, 1) if r.since != "-" and int(r.since) > TABLE_MADE_FOR else (1, 0)
        if places != expected:
            wrong.append(f"{r.function} (in {r.headers}): {places[0]} rows in hooks.def and exempt.def, {places[1]} in later.def")
    return wrong + [f"{n} is in no header" for n in hooked + later if n not in names]


def check_versions(table, hooks):
    """versions.def and later.def say since when a name means which form, as cudaTypedefs.h does."""
    known = {f: (b, v, t) for b, v, t, f in definitions(hooks, "versions.def", r"^VERSION\((\w+), (\d+), ([01]), (\w+)\)$")}
    known.update({f: (b, v, str(int(bool(re.search("_pts[zd]$|_ptds$", f)))))
                  for f, b, v in definitions(hooks, "later.def", r"^LATER\((\w+), (\w+), (\d+),")})
    wrong = []
    for r in (r for r in table if r.base != "nvml"):
        thread = "1" if re.search(r"(_ptsz|_ptds)$", r.function) else "0"
        base, since, per_thread = known.get(r.function, ("", "", ""))
        if (base, per_thread) != (r.base, thread) or r.since not in ("-", since):
            wrong.append(f"{r.function}: {base} {since} {per_thread}, the headers say {r.base} {r.since} {thread}")
    return wrong


def check_introduced(table):
    """No header declares a function before the version for which cuGetProcAddress first means it."""
    return [f"{r.function} is of {r.since} and stands in {r.headers}" for r in table
            if r.since != "-" and int(r.since) > number(r.headers.split(",")[0])]


def check_nvml(table, hooks):
    named = definitions(hooks, "nvml.def", r"^NVML(?:_HOOK)?\((\w+)\)$")
    return [f"{r.function} (in {r.headers}) has {named.count(r.function)} rows" for r in table
            if r.base == "nvml" and named.count(r.function) != 1]


def check(table_path, hooks, folder):
    table = rows(table_path)
    headers = sorted({v for r in table if r.base != "nvml" for v in r.headers.split(",")}, key=number)
    nvml = sorted({v for r in table if r.base == "nvml" for v in r.headers.split(",")}, key=number)
    functions = sum(r.base != "nvml" for r in table)
    checks = [
        (f"K4: every function of cuda.h of {', '.join(headers)} has one row ({functions} functions)", check_covered(table, hooks)),
        ("versions.def and later.def agree with cudaTypedefs.h", check_versions(table, hooks)),
        ("no function is older than its version", check_introduced(table)),
        (f"every function of nvml.h of {', '.join(nvml)} has one row ({len(table) - functions} functions)", check_nvml(table, hooks)),
        ("the table has what it is made for", [] if len(headers) >= 6 and len(nvml) >= 3 and functions > 680 else [str(headers)]),
    ]
    if os.path.isdir(folder):
        changed = set(derive(folder)) ^ set(table)
        checks.append(("the headers say what the table says", [" ".join(r) for r in sorted(changed)]))
    for title, wrong in checks:
        print(f"{'FAIL' if wrong else 'ok'}: {title}" + "".join(f"\n    {w}" for w in wrong))
    if not os.path.isdir(folder):
        print(f"not here: the headers themselves ({folder}; tests/setup.sh gets them)")
    return 1 if any(wrong for _, wrong in checks) else 0


def main():
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3])
        return 0
    return check(sys.argv[2], sys.argv[3], sys.argv[4])


if __name__ == "__main__":
    sys.exit(main())
