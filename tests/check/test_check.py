#!/usr/bin/env python3
"""The checks of check_library.py notice what they are for: test_check.py CUDA_H HOOKS_DEF EXEMPT_DEF HOOKS_FOLDER PLUGIN."""
import os
import re
import sys
import tempfile

import check_library as check

header, hooks_def, exempt_def, hooks_folder, plugin = sys.argv[1:]
sys.path.insert(0, hooks_folder)
import cuda_h  # noqa: E402

functions = cuda_h.functions(header)
names = [f.name for f in functions]
failed = 0


def expect(title, wrong, word):
    global failed
    noticed = any(word in w for w in wrong)
    failed += not noticed
    print(f"{'ok' if noticed else 'FAIL'}: {title}")


def changed(path, change):
    with tempfile.NamedTemporaryFile("w", suffix=".def", delete=False, encoding="utf-8") as f:
        f.write(change(open(path, encoding="utf-8").read()))
    return f.name


lost = changed(hooks_def, lambda t: re.sub(r"^\w+\(cuMemFree_v2, FREE\)\n", "", t, flags=re.M))
expect("K4: a lost row is noticed", check.check_completeness(functions, lost, exempt_def)[1], "cuMemFree_v2 has 0 rows")
twice = changed(exempt_def, lambda t: t + 'EXEMPT(cuMemFree_v2, "twice")\n')
expect("K4: a second row is noticed", check.check_completeness(functions, hooks_def, twice)[1], "cuMemFree_v2 has 2 rows")
rows = check.check_completeness(functions, hooks_def, exempt_def)[0]
expect("K4: an exempt form of a hooked function is noticed",
       check.check_siblings(names, dict(rows, cuMemcpyDtoD_v2_ptds=["EXEMPT"]), exempt_def), "cuMemcpyDtoD_v2_ptds")
expect("K17: an undefined function of the driver is noticed", check.check_needs(plugin), "needs cuMemAlloc_v2")
expect("a missing export is noticed", check.check_exports(plugin, names), "cuMemFree_v2 is not exported")
for path in (lost, twice):
    os.unlink(path)
sys.exit(1 if failed else 0)
