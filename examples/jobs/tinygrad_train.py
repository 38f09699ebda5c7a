#!/usr/bin/env python3
"""Trains with tinygrad, as any program would: tinygrad_train.py NET [--steps N] [--batch N] [...]

NET is `conv`, a small convolutional net that learns to read digits, or `gpt`, a small transformer that learns to
continue a text. All data is made here or read from a file: the same in every run. Prints every step's loss, as a decimal
number and with all its bits, and at the end a hash of the weights. DEV chooses the device, as tinygrad documents.
"""
import argparse
import hashlib
import os
import sys

import numpy as np
from tinygrad import Context, Device, Tensor, TinyJit, nn
from tinygrad.nn.state import get_parameters, get_state_dict, load_state_dict

SONNETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "sonnets.txt")

# Digits of 5 by 7 points, a row each.
GLYPHS = [
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111", "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
]


def digits(count, random):
    """Images of 28 by 28 with a digit each, three times as large as its points, somewhere, in noise; and the digits."""
    shapes = np.array([[[float(c) for c in row] for row in glyph.split()] for glyph in GLYPHS], np.float32)
    shapes = shapes.repeat(3, axis=1).repeat(3, axis=2)
    labels = random.integers(0, 10, count)
    images = random.random((count, 1, 28, 28), np.float32) * np.float32(0.3)
    for image, label in zip(images, labels):
        y, x = random.integers(0, 8), random.integers(0, 14)
        image[0, y:y + 21, x:x + 15] += shapes[label]
    return images - np.float32(0.3), labels.astype(np.int32)


class Conv:
    """Four convolutions, two batch normalisations, a linear layer."""

    def __init__(self, a):
        w = a.width
        self.layers = [nn.Conv2d(1, w, 5), Tensor.relu, nn.Conv2d(w, w, 5), Tensor.relu, nn.BatchNorm(w), Tensor.max_pool2d,
                       nn.Conv2d(w, 2 * w, 3), Tensor.relu, nn.Conv2d(2 * w, 2 * w, 3), Tensor.relu, nn.BatchNorm(2 * w),
                       Tensor.max_pool2d, lambda x: x.flatten(1), nn.Linear(18 * w, 10)]

    def loss(self, x, y):
        return x.sequential(self.layers).sparse_categorical_crossentropy(y)


class Block:
    def __init__(self, width, heads):
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def __call__(self, x):
        b, t, w = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (z.reshape(b, t, self.heads, w // self.heads).transpose(1, 2) for z in parts)
        x = x + self.out(q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))
        return x + self.down(self.up(self.norm2(x)).gelu())


class Gpt:
    """A decoder over bytes."""

    def __init__(self, a):
        self.tokens, self.places = nn.Embedding(128, a.width), nn.Embedding(a.context, a.width)
        self.blocks = [Block(a.width, a.width // 32) for _ in range(a.layers)]
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, 128, bias=False)

    def loss(self, x, y):
        h = self.tokens(x) + self.places(Tensor.arange(x.shape[1]).reshape(1, -1))
        return self.head(self.norm(h.sequential(self.blocks))).sparse_categorical_crossentropy(y)


def conv_data(a, random):
    """The whole data set lives on the device, in parts; a step takes a batch out of one, in every round the same."""
    parts = []
    for _ in range(a.parts):
        images, labels = digits(a.images, random)
        pick = random.integers(0, a.images, a.batch).astype(np.int32)
        parts.append([Tensor(data).realize() for data in (images, labels, pick)])
    for step in range(a.steps):
        images, labels, pick = parts[step % a.parts]
        yield images[pick].realize(), labels[pick].realize()


def gpt_data(a, random):
    with open(a.text, "rb") as f:
        text = np.frombuffer(f.read(), np.uint8).astype(np.int32) % 128
    for _ in range(a.steps):
        starts = random.integers(0, len(text) - a.context - 1, a.batch)
        rows = np.stack([text[s:s + a.context + 1] for s in starts])
        yield Tensor(rows[:, :-1].copy()).realize(), Tensor(rows[:, 1:].copy()).realize()


def start_values(net, random):
    """Weights from numpy, the same on every device: small numbers for matrices, ones for scales, zeros else."""
    values = {}
    for name, tensor in get_state_dict(net).items():
        if tensor.ndim > 1:
            scale = 0.1 if name in ("tokens.weight", "places.weight") else np.prod(tensor.shape[1:]) ** -0.5
            value = random.standard_normal(tensor.shape, np.float32) * np.float32(scale)
        else:
            value = np.full(tensor.shape, name.endswith((".weight", "running_var")), np.float32)
        values[name] = Tensor(value, dtype=tensor.dtype)
    load_state_dict(net, values, verbose=False)


def train(a):
    random = np.random.default_rng(a.seed)
    net, data = (Conv(a), conv_data) if a.net == "conv" else (Gpt(a), gpt_data)
    start_values(net, random)
    if a.net == "conv":
        optimizer = nn.optim.SGD(get_parameters(net), lr=a.rate, momentum=0.9)
    else:
        optimizer = nn.optim.Adam(get_parameters(net), lr=a.rate)
    Tensor.realize(*get_parameters(optimizer))

    @TinyJit
    def step(x, y):
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = net.loss(x, y).backward()
            return loss.realize(*optimizer.schedule_step())

    count = sum(p.numel() for p in get_parameters(net))
    print(f"{a.net}: {count} parameters, batch {a.batch}, {a.steps} steps on {Device.DEFAULT}", flush=True)
    for i, (x, y) in enumerate(data(a, random)):
        loss = step(x, y).item()
        print(f"step {i} loss {loss:.6f} {loss.hex()}", flush=True)
    digest = hashlib.sha256()
    for name, tensor in sorted(get_state_dict(net).items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    print(f"weights sha256 {digest.hexdigest()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=["conv", "gpt"])
    for name, value in (("steps", 8), ("batch", 8), ("width", 32), ("layers", 4), ("context", 32), ("seed", 1),
                        ("parts", 4), ("images", 1000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--text", default=SONNETS)
    train(parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
