"""Speed of the GPU engine on one GPU, beside PyTorch: `python -m benchmarks.gpu [--data FOLDER] [--kind ntk]`.

Medians of repeated runs of 4096 × 4096 pairs, without the tables (about a thousandth of the time). PyTorch runs the
same recursion, as a user would write it, in the same process: eager at the best of several block sizes, and compiled.
Images are those of MNIST if `--data` names a folder with its files, else random strokes; the speed is the same.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import Conv, Dense, NormalizedExp, ReLU, Sequential, zoo
from cnngp.kernel.engines.cuda.card import NEVER
from cnngp.kernel.engines.cuda.cuda_source import Path as KernelPath
from cnngp.kernel.engines.cuda.engine import CudaEngine
from cnngp.kernel.program import Kind, lower
from cnngp.network import Network

PAIRS = 4096


def images(n: int, shape: tuple[int, ...], folder: str | None, seed: int = 0) -> np.ndarray:
    if folder is not None and shape == (1, 28, 28):
        raw = gzip.decompress(Path(folder, "train-images-idx3-ubyte.gz").read_bytes())
        return (np.frombuffer(raw, np.uint8, offset=16)[: n * 784].reshape(n, *shape) / 255).astype(np.float32)
    rng = np.random.default_rng(seed)
    x = (rng.random((n, *shape)) < 0.06).astype(np.float32)
    x += 0.7 * (np.roll(x, 1, -1) + np.roll(x, -1, -2))
    return np.minimum(x, 1.0)


def engine_rate(
    net: Network,
    shape: tuple[int, ...],
    dtype: str,
    folder: str | None,
    n: int = PAIRS,
    repeats: int = 7,
    kind: Kind = "nngp",
    path: KernelPath | None = None,
) -> tuple[float, float]:
    """(pairs/s, seconds to compile). With kind "ntk" a pair gives K and Θ.

    `path` overrides the choice of CUDA kernel.
    """
    import cupy

    program = lower(net, shape, kind)
    start = time.perf_counter()
    engine = CudaEngine(program, dtype, devices=[0], path=path)
    card = engine.cards()[0]
    _ = card.functions
    compiled = time.perf_counter() - start
    x = images(2 * n, shape, folder).astype(dtype).reshape(2 * n, shape[0], -1)
    first, second = card.tables(x[:n])[0], card.tables(x[n:])[0]
    out = cupy.full((n, n), cupy.nan, dtype)
    theta = cupy.full((n, n), cupy.nan, dtype) if kind == "ntk" else None
    places = [out, None] if theta is None else [out, None, theta, None]
    card.pairs(first, second, places, n, NEVER)
    seconds = []
    for _ in range(repeats):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        card.pairs(first, second, places, n, NEVER)
        end.record()
        end.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    assert all(bool(cupy.isfinite(a).all()) for a in (out, theta) if a is not None)
    return n * n / statistics.median(seconds), compiled


# ---- the same recursion in PyTorch -----------------------------------------------------------------------------------


def torch_resnet(x: Any, z: Any) -> Any:
    """K of ResNet-32 for all pairs of images from two blocks."""
    import torch
    import torch.nn.functional as F

    n, m = len(x), len(z)

    def relu(k: Any, a: Any, b: Any) -> Any:
        h, w = k.shape[-2:]
        k, a, b = k.view(n, m, h, w), a.view(n, 1, h, w), b.view(1, m, h, w)
        p = (a * b).clamp(min=1e-30).sqrt()
        c = (k / p).clamp(-1, 1)
        angle = torch.acos(c)
        v = p * (torch.sqrt((1 - c * c).clamp(min=0)) + (math.pi - angle) * c) / (2 * math.pi)
        return v.reshape(n * m, 1, h, w)

    def nonlinearity(t: Any) -> Any:
        return relu(*t), t[1] / 2, t[2] / 2

    def conv(t: Any, stride: int = 1) -> Any:
        return tuple(F.avg_pool2d(v, 3, stride, 1, count_include_pad=True) for v in t)

    def add(a: Any, b: Any) -> Any:
        return tuple(v + w for v, w in zip(a, b, strict=True))

    t: Any = (
        (x[:, None] * z[None]).mean(2).reshape(n * m, 1, *x.shape[2:]),
        (x * x).mean(1, keepdim=True),
        (z * z).mean(1, keepdim=True),
    )
    t = conv(t)
    for stage in range(3):
        stride = 1 if stage == 0 else 2
        a = nonlinearity(t)
        skip = a if stride == 1 else tuple(v[..., ::2, ::2] for v in a)
        t = add(skip, conv(nonlinearity(conv(a, stride))))
        for _ in range(4):
            t = add(t, conv(nonlinearity(conv(nonlinearity(t)))))
    t = tuple(v.mean((-1, -2), keepdim=True) for v in t)
    return nonlinearity(t)[0].view(n, m)


def torch_rate(compile_it: bool, folder: str | None) -> float:
    """Pairs/s at the best block size."""
    import torch

    x = torch.from_numpy(images(2048, (1, 28, 28), folder)).cuda()
    best = 0.0
    for block in (200,) if compile_it else (100, 200, 300):  # compiling takes half a minute
        f = torch.compile(torch_resnet, dynamic=False) if compile_it else torch_resnet
        seconds = []
        for k in range(6):
            a, b = x[:block], x[block : 2 * block]
            torch.cuda.synchronize()
            start = time.perf_counter()
            f(a, b)
            torch.cuda.synchronize()
            if k:
                seconds.append(time.perf_counter() - start)
        best = max(best, block * block / statistics.median(seconds))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with MNIST's train-images-idx3-ubyte.gz")
    parser.add_argument("--json", help="where to write the figures")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--kind", choices=["nngp", "ntk"], default="nngp", help="ntk: K and Θ of every pair")
    options = parser.parse_args()
    import cupy

    card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    mnist, cifar = (1, 28, 28), (3, 32, 32)
    rival = {layer: Sequential(*[Conv(3, weight_var=2.0), layer] * 7, Dense()) for layer in (ReLU(), NormalizedExp())}
    jobs: list[tuple[str, Network, tuple[int, ...], str]] = [
        ("resnet(32)", zoo.resnet(32), mnist, "float32"),
        ("convnet()", zoo.convnet(), mnist, "float32"),
        ("residual_cnn()", zoo.residual_cnn(), mnist, "float32"),
        ("resnet(32)", zoo.resnet(32), cifar, "float32"),
        ("resnet(110)", zoo.resnet(110), mnist, "float32"),
        ("dense_nngp()", zoo.dense_nngp(), (784,), "float32"),
        ("resnet(32)", zoo.resnet(32), mnist, "float64"),
        ("convnet()", zoo.convnet(), mnist, "float64"),
        ("resnet(32)", zoo.resnet(32), cifar, "float64"),
        *((f"7 conv, {layer}", net, mnist, "float32") for layer, net in rival.items()),
        ("resnet(32), walk", zoo.resnet(32), mnist, "float32"),
        ("resnet(32), walk", zoo.resnet(32), (3, 64, 64), "float32"),
    ]
    rows: list[dict[str, Any]] = []
    print(f"{card}, {PAIRS} × {PAIRS} pairs, kind {options.kind}, medians")
    print(f"{'network':24}{'input':>12}{'type':>9}{'M pairs/s':>11}{'10¹² el./s':>12}{'of first':>10}{'compile':>9}")
    for name, net, shape, dtype in jobs:
        rate, compiled = engine_rate(
            net, shape, dtype, options.data, kind=options.kind, path="walk" if "walk" in name else None
        )
        elements = rate * net.shapes(shape).elements
        rows.append(
            {"network": name, "input": shape, "dtype": dtype, "pairs": rate, "elements": elements, "compile": compiled}
        )
        ratio = elements / rows[0]["elements"]
        text = "×".join(map(str, shape))
        print(
            f"{name:24}{text:>12}{dtype:>9}{rate / 1e6:11.2f}{elements / 1e12:12.3f}{ratio:10.2f}{compiled:8.1f} s",
            flush=True,
        )
    if not options.no_torch and options.kind == "nngp":
        for name, compile_it in (("PyTorch eager", False), ("torch.compile", True)):
            rate = torch_rate(compile_it, options.data)
            rows.append({"network": name, "input": mnist, "dtype": "float32", "pairs": rate})
            times = rows[0]["pairs"] / rate
            print(f"{name:24}{'1×28×28':>12}{'float32':>9}{rate / 1e6:11.2f}   resnet(32) is {times:.1f}×", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"card": card, "kind": options.kind, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
