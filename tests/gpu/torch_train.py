#!/usr/bin/env python3
"""A few steps of training with PyTorch, the same in every run as far as PyTorch can: a job for tests/gpu/check.py.

torch_train.py --model gpt|conv [--bf16] [--graph] [--workers N] [--steps N] [--batch N]

Prints an object: results (losses, then a sum for each parameter, as hexadecimal floats), peak_bytes (what PyTorch's allocator
held at most), step_seconds (median of the later half). The status is 3 where there is no PyTorch or no GPU.
"""
import argparse
import contextlib
import json
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS is loaded; else it is not deterministic
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    print(json.dumps({"missing": str(missing)}))
    sys.exit(3)

VOCABULARY, CONTEXT = 4096, 512


class Block(nn.Module):
    """Attention as plain products: fused kernels are not deterministic everywhere."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5 + mask
        x = x + self.out((weights.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers=8, width=1024, heads=16):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

    def forward(self, x, y):
        h = self.token(x) + self.place
        for block in self.blocks:
            h = block(h, self.mask)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1).float(), y.flatten())


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.way = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.way(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Conv(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        inner, blocks = widths[0], []
        for i, outer in enumerate(widths):
            blocks += [Residual(inner, outer, 2 if i else 1), Residual(outer, outer, 1)]
            inner = outer
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inner, 100)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.blocks(self.stem(x)).mean((2, 3))).float(), y)


class Batches(torch.utils.data.Dataset):
    """Batch i depends on nothing but i, so that workers do not matter."""

    def __init__(self, model, batch, count):
        self.model, self.batch, self.count = model, batch, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        if self.model == "gpt":
            text = torch.randint(VOCABULARY, (self.batch, CONTEXT + 1), generator=g)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        return torch.randn(self.batch, 3, 128, 128, generator=g), torch.randint(100, (self.batch,), generator=g)


class Trainer:
    def __init__(self, args):
        torch.manual_seed(1)
        self.args = args
        self.model = (Gpt() if args.model == "gpt" else Conv()).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, capturable=args.graph)
        self.graph, self.x, self.y, self.loss = None, None, None, None

    def step(self, x, y):
        # Casts are not kept between operations: a graph must make its own.
        half = torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if self.args.bf16 else contextlib.nullcontext()
        self.optimizer.zero_grad(set_to_none=True)
        with half:
            loss = self.model(x, y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def capture(self, x, y):
        """Three steps on a stream beside, as PyTorch asks for, then one into the graph."""
        self.x, self.y = x.clone(), y.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self.step(self.x, self.y)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.step(self.x, self.y)

    def run(self, x, y):
        if not self.args.graph:
            return self.step(x, y)
        if self.graph is None:
            self.capture(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss.clone()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=("gpt", "conv"), default="gpt")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse()
    if not torch.cuda.is_available():
        print(json.dumps({"missing": "PyTorch sees no GPU"}))
        return 3
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    trainer = Trainer(args)
    batch = args.batch or (8 if args.model == "gpt" else 64)
    loader = torch.utils.data.DataLoader(Batches(args.model, batch, args.steps), batch_size=None, num_workers=args.workers,
                                         pin_memory=args.workers > 0)
    losses, seconds = [], []
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        torch.cuda.synchronize()
        start = time.monotonic()
        losses.append(trainer.run(x, y))
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - start)
    results = [float(loss).hex() for loss in losses]
    results += [float(p.detach().abs().sum()).hex() for p in trainer.model.parameters()]
    print(json.dumps({"results": results, "peak_bytes": torch.cuda.max_memory_reserved(),
                      "step_seconds": statistics.median(seconds[len(seconds) // 2:]), "version": torch.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
