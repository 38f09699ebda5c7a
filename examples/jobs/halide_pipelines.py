#!/usr/bin/env python3
"""Six Halide pipelines on the GPU, compared with Halide's own results on the CPU: halide_pipelines.py [NAME...] [...]

Every pipeline runs over several images whose inputs and outputs all stay on the GPU, forwards and then backwards, and
only then are the results copied back: what the job holds is many times one image. Prints for each pipeline a hash of its
results and the largest difference from the CPU's; fails if that is more than rounding explains.
"""
import argparse
import hashlib
import sys

import halide as hl
import numpy as np

x, y, z, c = (hl.Var(n) for n in ("x", "y", "z", "c"))
xo, yo, zo, xi, yi, zi = (hl.Var(n) for n in ("xo", "yo", "zo", "xi", "yi", "zi"))


class Pipeline:
    """A Func over an input, its output's type and size, and how far CPU and GPU may differ (relative to the largest value)."""

    def __init__(self, func, kind, size, tolerance=0.0):
        self.func, self.kind, self.size, self.tolerance = func, kind, size, tolerance


def clamped(image):
    return hl.BoundaryConditions.repeat_edge(image)


def blur(image, n, gpu):
    """Box of 3 by 3: columns in shared memory, then rows."""
    source, columns, out = clamped(image), hl.Func("columns"), hl.Func("blur")
    columns[x, y] = (hl.u32(source[x, y - 1]) + hl.u32(source[x, y]) + hl.u32(source[x, y + 1])) // 3
    out[x, y] = hl.u16((columns[x - 1, y] + columns[x, y] + columns[x + 1, y]) // 3)
    if gpu:
        out.gpu_tile(x, y, xo, yo, xi, yi, 32, 8)
        columns.compute_at(out, xo).gpu_threads(x, y)
    else:
        columns.compute_root().vectorize(x, 8)
        out.vectorize(x, 8)
    return Pipeline(out, hl.UInt(16), [n, n])


def histogram(image, n, gpu):
    """256 bins, counted with atomic additions, then their running sum."""
    r, bins = hl.RDom([(0, n), (0, n)]), hl.RDom([(1, 255)])
    counts, out = hl.Func("counts"), hl.Func("histogram")
    counts[x] = hl.u32(0)
    counts[hl.i32(image[r.x, r.y] >> 8)] += hl.u32(1)
    out[x] = counts[x]
    out[bins.x] += out[bins.x - 1]
    if gpu:
        counts.compute_root().gpu_tile(x, xo, xi, 64)
        counts.update().atomic().gpu_tile(r.x, r.y, hl.RVar("rxo"), hl.RVar("ryo"), hl.RVar("rxi"), hl.RVar("ryi"), 32, 8)
        out.gpu_tile(x, xo, xi, 64)
        out.update().gpu_single_thread()
    else:
        counts.compute_root()
    return Pipeline(out, hl.UInt(32), [256])


def matmul(image, n, gpu):
    """The image times its own transpose, by tiles of 4 by 2 values per thread."""
    a, product, out = hl.Func("a"), hl.Func("product"), hl.Func("matmul")
    k = hl.RDom([(0, n)])
    a[x, y] = hl.f32(image[x, y]) * (1.0 / 65536.0)
    product[x, y] = 0.0
    product[x, y] += a[k, y] * a[k, x]
    out[x, y] = product[x, y]
    if gpu:
        a.compute_root().gpu_tile(x, y, xo, yo, xi, yi, 32, 8)
        out.gpu_tile(x, y, xo, yo, xi, yi, 64, 16).split(xi, xi, z, 4).split(yi, yi, c, 2).reorder(z, c, xi, yi)
        out.gpu_threads(xi, yi).unroll(z).unroll(c)
        product.compute_at(out, xi).unroll(x).unroll(y)
        product.update().reorder(x, y, k).unroll(x).unroll(y)
    else:
        a.compute_root()
        product.compute_root().vectorize(x, 8)
        product.update().reorder(x, k, y).vectorize(x, 8)
    return Pipeline(out, hl.Float(32), [n, n], 1e-5)


def bilateral_grid(image, n, gpu):
    """Smoothing that keeps edges: a coarse grid over place and brightness is filled, blurred and read between its points."""
    s_sigma, r_sigma = 8, 0.1
    source, value = clamped(image), hl.Func("value")
    value[x, y] = hl.f32(source[x, y]) * (1.0 / 65535.0)
    r = hl.RDom([(0, s_sigma), (0, s_sigma)])
    grid, out = hl.Func("grid"), hl.Func("bilateral_grid")
    sample = value[x * s_sigma + r.x - s_sigma // 2, y * s_sigma + r.y - s_sigma // 2]
    level = hl.i32(hl.clamp(sample, 0.0, 1.0) * (1.0 / r_sigma) + 0.5)
    grid[x, y, z, c] = 0.0
    grid[x, y, level, c] += hl.mux(c, [sample, hl.f32(1.0)])
    stages = [grid]
    for name, step in (("blur_z", (0, 0, 1)), ("blur_x", (1, 0, 0)), ("blur_y", (0, 1, 0))):
        before, after, (dx, dy, dz) = stages[-1], hl.Func(name), step
        after[x, y, z, c] = sum((before[x + d * dx, y + d * dy, z + d * dz, c] * weight
                                 for d, weight in ((-2, 1.0), (-1, 4.0), (0, 6.0), (1, 4.0), (2, 1.0))), hl.f32(0.0))
        stages.append(after)
    level = hl.clamp(value[x, y], 0.0, 1.0) * (1.0 / r_sigma)
    low = hl.i32(level)
    fz, fx, fy = level - low, hl.f32(x % s_sigma) / s_sigma, hl.f32(y % s_sigma) / s_sigma
    gx, gy, last = x // s_sigma, y // s_sigma, stages[-1]

    def between(a, b, t):
        return a + (b - a) * t

    between_points, smooth = hl.Func("between_points"), []
    for channel in (0, 1):
        planes = [between(between(last[gx, gy, low + d, channel], last[gx + 1, gy, low + d, channel], fx),
                          between(last[gx, gy + 1, low + d, channel], last[gx + 1, gy + 1, low + d, channel], fx), fy)
                  for d in (0, 1)]
        smooth.append(between(planes[0], planes[1], fz))
    out[x, y] = smooth[0] / smooth[1]
    if gpu:
        grid.compute_root().reorder(c, z, x, y).gpu_tile(x, y, xo, yo, xi, yi, 8, 8)
        grid.update().reorder(c, r.x, r.y, x, y).gpu_tile(x, y, xo, yo, xi, yi, 8, 8).unroll(c)
        for stage in stages[1:]:
            stage.compute_root().reorder(c, x, y, z).gpu_tile(x, y, z, xo, yo, zo, xi, yi, zi, 16, 4, 2)
        out.gpu_tile(x, y, xo, yo, xi, yi, 32, 8)
    else:
        for stage in stages:
            stage.compute_root()
        grid.update().reorder(c, r.x, r.y, x, y)
        out.vectorize(x, 8)
    return Pipeline(out, hl.Float(32), [n, n], 1e-4)


def scan(image, n, gpu):
    """Summed area table: running sums along rows, then along columns."""
    rows, out = hl.Func("rows"), hl.Func("scan")
    rx, ry = hl.RDom([(1, n - 1)]), hl.RDom([(1, n - 1)])
    rows[x, y] = hl.u32(image[x, y])
    rows[rx.x, y] += rows[rx.x - 1, y]
    out[x, y] = rows[x, y]
    out[x, ry] += out[x, ry - 1]
    if gpu:
        rows.compute_root().gpu_tile(x, y, xo, yo, xi, yi, 32, 8)
        rows.update().gpu_tile(y, yo, yi, 32)
        out.gpu_tile(x, y, xo, yo, xi, yi, 32, 8)
        out.update().reorder(ry, x).gpu_tile(x, xo, xi, 32)
    else:
        rows.compute_root()
        out.update().reorder(x, ry)
    return Pipeline(out, hl.UInt(32), [n, n])


def resize(image, n, gpu):
    """To three quarters, with a cubic kernel whose weights are made on the fly; along rows, then along columns."""
    source, value, out = clamped(image), hl.Func("value"), hl.Func("resize")
    value[x, y] = hl.f32(source[x, y])
    factor, m = hl.f32(4.0 / 3.0), n * 3 // 4

    def cubic(t):
        t = hl.abs(t)
        near, far = 1.5 * t * t * t - 2.5 * t * t + 1.0, -0.5 * t * t * t + 2.5 * t * t - 4.0 * t + 2.0
        return hl.select(t < 1.0, near, t < 2.0, far, hl.f32(0.0))

    def resampled(read, at):
        place = (hl.f32(at) + 0.5) * factor - 0.5
        first = hl.i32(hl.floor(place)) - 1
        weights = [cubic(place - hl.f32(first + k)) for k in range(4)]
        total = sum(weights, hl.f32(0.0))
        return sum((read(first + k) * weights[k] for k in range(4)), hl.f32(0.0)) / total

    wide = hl.Func("wide")
    wide[x, y] = resampled(lambda at: value[at, y], x)
    out[x, y] = hl.u16(hl.clamp(resampled(lambda at: wide[x, at], y) + 0.5, 0.0, 65535.0))
    if gpu:
        wide.compute_root().gpu_tile(x, y, xo, yo, xi, yi, 32, 8)
        out.gpu_tile(x, y, xo, yo, xi, yi, 32, 8)
    else:
        wide.compute_root().vectorize(x, 8)
        out.vectorize(x, 8)
    return Pipeline(out, hl.UInt(16), [m, m], 1.1 / 65536)


PIPELINES = {f.__name__: f for f in (blur, histogram, matmul, bilateral_grid, scan, resize)}
SIDE = {"matmul": 1 / 4}  # of the other pipelines' images: it does more work per value


def images(count, n):
    """Smooth shapes with noise, each a little different."""
    random = np.random.default_rng(7)
    row = np.arange(n, dtype=np.float32)
    for i in range(count):
        waves = np.sin(row[None, :] / (9 + i)) * np.cos(row[:, None] / 13) * 20000 + 32768
        steps = ((row[None, :] + row[:, None]) // 40 % 2) * 8000
        yield (waves + steps + random.random((n, n), np.float32) * 2000).astype(np.uint16)


def empty(pipeline):
    return hl.Buffer(pipeline.kind, pipeline.size)


def run(name, count, n):
    n = int(n * SIDE.get(name, 1))
    sources = list(images(count, n))
    param = hl.ImageParam(hl.UInt(16), 2)
    targets = {"cpu": hl.Target("host"), "gpu": hl.Target("host-cuda-cuda_capability_70")}
    made = {kind: PIPELINES[name](param, n, kind == "gpu") for kind in targets}
    for kind, pipeline in made.items():
        pipeline.func.compile_jit(targets[kind])
    inputs = [hl.Buffer(source) for source in sources]
    outputs = [empty(made["gpu"]) for _ in sources]
    for i in list(range(count)) + list(reversed(range(count))):
        param.set(inputs[i])
        made["gpu"].func.realize(outputs[i], targets["gpu"])
    digest, worst = hashlib.sha256(), 0.0
    for source, output in zip(sources, outputs):
        output.copy_to_host()
        got = np.array(output)
        digest.update(got.tobytes())
        expected = empty(made["cpu"])
        param.set(hl.Buffer(source))
        made["cpu"].func.realize(expected, targets["cpu"])
        expected = np.array(expected).astype(np.float64)
        worst = max(worst, float(np.abs(got - expected).max() / max(1.0, np.abs(expected).max())))
    print(f"{name}: {count} images of {n} x {n}, sha256 {digest.hexdigest()}, relative difference from the CPU {worst:.2e}",
          flush=True)
    return worst <= made["gpu"].tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PIPELINES) + "; default: all")
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--side", type=int, default=512)
    a = parser.parse_args()
    bad = [name for name in a.names or PIPELINES if not run(name, a.images, a.side)]
    if bad:
        print("differs from the CPU: " + ", ".join(bad), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
