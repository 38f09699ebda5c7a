#!/usr/bin/env python3
"""Array work with CuPy, the same in every run: a job for tests/gpu/check.py.

smoke_cupy.py [--mib N] [--steps N]

Prints an object: results (sums as hexadecimal floats), peak_bytes (what CuPy's pool held), step_seconds (median of the later
half). The status is 3 where there is no CuPy or no GPU.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import cupy
except ImportError as missing:
    print(json.dumps({"missing": str(missing)}))
    sys.exit(3)


def step(arrays, i):
    """Elementwise work, a sum, a product, a transform and a sort, over arrays that take turns."""
    a, b = arrays[i % len(arrays)], arrays[(i + 1) % len(arrays)]
    a += cupy.float32(0.5) * b
    side = 1024
    square = a[:side * side].reshape(side, side)
    product = square @ square.T
    spectrum = cupy.fft.rfft(b[:1 << 20])
    ordered = cupy.sort(b[:1 << 20])
    total = sum(float(cupy.abs(x).sum()) for x in arrays)
    return [total, float(product.sum()), float(cupy.abs(spectrum).sum()), float(ordered[::1024].sum())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    try:
        cupy.cuda.Device(0).use()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(json.dumps({"missing": str(error)}))
        return 3
    count = 16
    words = args.mib * (1 << 20) // count // 4
    arrays = [cupy.sin(cupy.arange(words, dtype=cupy.float32) * cupy.float32(1e-3 * (k + 1))) for k in range(count)]
    results, seconds = [], []
    for i in range(args.steps):
        cupy.cuda.Device(0).synchronize()
        start = time.monotonic()
        results += [value.hex() for value in step(arrays, i)]
        seconds.append(time.monotonic() - start)
    pool = cupy.get_default_memory_pool()
    print(json.dumps({"results": results, "peak_bytes": pool.total_bytes(),
                      "step_seconds": statistics.median(seconds[len(seconds) // 2:]), "version": cupy.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
