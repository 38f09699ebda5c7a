#!/usr/bin/env python3
"""Write a source file with one thing undone: mutants.py NAME SOURCE OUTPUT. The tests of loading must notice each."""
import sys

MUTANTS = {
    "unhooked": ("return target != NULL ? (void *)target : real;", "return target != NULL && *name == 0 ? (void *)target : real;"),
    "arity": ("cuda_version >= SELF_WITH_STATUS_SINCE", "cuda_version >= 0"),
    "offers": ("pfn != NULL && *pfn != NULL &&", "pfn != NULL &&"),
    "alike": ("form->base_bytes == name_bytes &&", "form->base_bytes <= name_bytes &&"),
    "flags": ("(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0", "(flags & ~flags) != 0"),
    "reentry": ("atomic_store_explicit(&hr_driver_high, extent.high,", "atomic_store_explicit(&hr_driver_high, extent.low,"),
    "names": ("if (!nvml && !names(base, \"libcuda.so\"))", "if (!nvml && (slash != NULL || !names(file, \"libcuda.so\")))"),
    "child": ("atomic_store_explicit(&hr_mode_now, HR_MODE_OFF, memory_order_relaxed);", ""),
    "exit": ("    hr_core_exit();", "    hr_core_exit();\n    hr_drv.cuDeviceGetCount(NULL);"),
    "failed": ("hr_core_init() != CUDA_SUCCESS", "(hr_core_init(), false)"),
}

name, source, output = sys.argv[1:]
text = open(source, encoding="utf-8").read()
old, new = MUTANTS[name]
if text.count(old) != 1:
    sys.exit(f"mutant {name}: {text.count(old)} places in {source} read {old!r}, not one")
with open(output, "w", encoding="utf-8") as f:
    f.write(text.replace(old, new))
