#!/usr/bin/env python3
"""A small network trained with JAX, the same in every run: a job for tests/gpu/check.py.

smoke_jax.py [--width N] [--layers N] [--steps N]

Prints an object: results (losses as hexadecimal floats), peak_bytes (what was in use at most), step_seconds (median of the later
half). The status is 3 where there is no JAX or no GPU. The environment says whether JAX takes its memory beforehand.
"""
import argparse
import functools
import json
import os
import statistics
import sys
import time

# Which kernels are chosen must not depend on how long they took.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
try:
    import jax
    from jax import numpy as jnp
except ImportError as missing:
    print(json.dumps({"missing": str(missing)}))
    sys.exit(3)


def loss_of(params, x, y):
    for weight in params:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x - y) ** 2)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train(params, moments, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    moments = [0.9 * m + g for m, g in zip(moments, grads)]
    return [p - 0.1 * m for p, m in zip(params, moments)], moments, loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    device = jax.devices()[0]
    if device.platform not in ("gpu", "cuda"):
        print(json.dumps({"missing": f"JAX sees no GPU but {device.platform}"}))
        return 3
    keys = jax.random.split(jax.random.PRNGKey(1), args.layers + 2)
    params = [jax.random.normal(k, (args.width, args.width)) * args.width ** -0.5 for k in keys[:args.layers]]
    moments = [jnp.zeros_like(p) for p in params]
    x, y = (jax.random.normal(k, (2048, args.width)) for k in keys[args.layers:])
    results, seconds = [], []
    for _ in range(args.steps):
        start = time.monotonic()
        params, moments, loss = train(params, moments, x, y)
        results.append(float(loss.block_until_ready()).hex())
        seconds.append(time.monotonic() - start)
    results += [float(jnp.abs(p).sum()).hex() for p in params]
    stats = device.memory_stats() or {}
    print(json.dumps({"results": results, "peak_bytes": stats.get("peak_bytes_in_use", 0),
                      "step_seconds": statistics.median(seconds[len(seconds) // 2:]), "version": jax.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
