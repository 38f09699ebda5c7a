"""Processes as Python programs make them; the leaves use CUDA through ctypes: tree.py, or tree.py leaf SEED."""
import ctypes
import multiprocessing
import os
import subprocess
import sys

BUFFERS, BYTES = 12, 4 << 20


def leaf(seed):
    cuda = ctypes.CDLL("libcuda.so.1")

    def ok(result):
        if result != 0:
            sys.exit("CUDA error %d" % result)

    context, pointers = ctypes.c_void_p(), []
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    for i in range(BUFFERS):
        p = ctypes.c_uint64()
        ok(cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(BYTES)))
        ok(cuda.cuMemsetD32_v2(p, ctypes.c_uint(seed + i), ctypes.c_size_t(BYTES // 4)))
        pointers.append(p)
    for i, p in enumerate(pointers):
        data = (ctypes.c_uint32 * (BYTES // 4))()
        ok(cuda.cuMemcpyDtoH_v2(data, p, ctypes.c_size_t(BYTES)))
        if bytes(data) != (seed + i).to_bytes(4, "little") * (BYTES // 4):
            sys.exit("buffer %d is wrong" % i)
        ok(cuda.cuMemFree_v2(p))
    ok(cuda.cuCtxDestroy_v2(context))
    return "leaf %d" % seed


def inner(seed):
    return subprocess.run([sys.executable, os.path.abspath(__file__), "leaf", str(seed)], check=True, capture_output=True,
                          text=True).stdout.strip()


def main():
    if sys.argv[1:2] == ["leaf"]:
        print(leaf(int(sys.argv[2])))
        return
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(leaf, [1, 100]), pool.map(inner, [200]), flush=True)
    print("last", leaf(400))  # the root, too, when its children are gone


if __name__ == "__main__":
    main()
