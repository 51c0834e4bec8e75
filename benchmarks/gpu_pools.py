"""Speed of networks with average pooling on one GPU: `python -m benchmarks.gpu_pools [--json FILE] [--double]`.

Medians of repeated runs, without the tables. If neural-tangents can be imported, it runs the same networks in the same
process, at the best of several block sizes. Images are random strokes; the speed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import engine_rate
from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Identity, ReLU, Sequential, Sum
from cnngp.kernel.program import Kind
from cnngp.network import Network

C: list[Network] = [Conv(3), ReLU()]
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def resnet_with_global_pool() -> Network:
    """The convolutions of `zoo.resnet(32)` with the usual global average pool at the end."""
    block = Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3)))
    layers: list[Network] = [Conv(3)]
    for stride in (1, 2, 2):
        first = Sum(Conv(1, stride=stride), Sequential(Conv(3, stride=stride), ReLU(), Conv(3)))
        layers += [ReLU(), first, *[block] * 4]
    return Sequential(*layers, ReLU(), GlobalAvgPool(), Dense())


# name: (network, input, images on each side of the matrix, letters of the network for neural-tangents or None)
NETWORKS: dict[str, tuple[Network, tuple[int, ...], int, str | None]] = {
    "3 conv, global pool": (Sequential(*C * 3, GlobalAvgPool(), Dense()), CIFAR, 192, "ccc g"),
    "10 conv, global pool": (Sequential(*C * 10, GlobalAvgPool(), Dense()), CIFAR, 128, "cccccccccc g"),
    "Myrtle-10": (
        Sequential(*C * 3, AvgPool(2), *C * 3, AvgPool(2), *C * 3, GlobalAvgPool(), Dense()),
        CIFAR,
        192,
        "ccc p ccc p ccc g",
    ),
    "LeNet: 2 × [conv, pool 2]": (Sequential(*C, AvgPool(2), *C, AvgPool(2), Dense()), MNIST, 1536, "c p c p f"),
    "2 × [2 conv, pool 2], conv": (
        Sequential(*C * 2, AvgPool(2), *C * 2, AvgPool(2), *C, Dense()),
        MNIST,
        1024,
        "cc p cc p c f",
    ),
    "2 conv, pool 2, 3 conv, pool 5": (
        Sequential(*C * 2, AvgPool(2), *C * 3, AvgPool(5, 1), Dense()),
        MNIST,
        512,
        "cc p ccc q f",
    ),
    "resnet(32), global pool": (resnet_with_global_pool(), MNIST, 512, None),
}


def neural_tangents_rate(words: str, shape: tuple[int, ...], kind: Kind) -> float | None:
    """Pairs/s of the same network in neural-tangents; None if that cannot be imported."""
    try:
        import jax
        from neural_tangents import stax
    except Exception:
        return None
    parts: dict[str, Callable[[], list[Any]]] = {
        "c": lambda: [stax.Conv(1, (3, 3), padding="SAME", W_std=1.0, b_std=None), stax.Relu()],
        "p": lambda: [stax.AvgPool((2, 2), (2, 2))],
        "q": lambda: [stax.AvgPool((5, 5), (1, 1))],
        "g": lambda: [stax.GlobalAvgPool()],
        "f": lambda: [stax.Flatten()],
    }
    layers = [layer for word in words.replace(" ", "") for layer in parts[word]()]
    _, _, kernel = stax.serial(*layers, stax.Dense(1))
    f = jax.jit(lambda a, b: kernel(a, b, kind))
    rng, best = np.random.default_rng(0), 0.0
    for block in (8, 16, 32):
        x, z = (jax.device_put(rng.random((block, *shape[1:], shape[0])).astype(np.float32)) for _ in range(2))
        f(x, z).block_until_ready()
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            f(x, z).block_until_ready()
            seconds.append(time.perf_counter() - start)
        best = max(best, block * block / sorted(seconds)[2])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="where to write the figures")
    parser.add_argument("--double", action="store_true", help="float64 too")
    parser.add_argument("--kind", choices=["nngp", "ntk"], default="nngp", help="ntk: K and Θ of every pair")
    options = parser.parse_args()
    import cupy

    card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    rows: list[dict[str, Any]] = []
    print(f"{card}, kind {options.kind}, medians")
    print(f"{'network':34}{'input':>10}{'type':>9}{'pairs/s':>14}{'10¹² el./s':>12}{'compile':>9}   neural-tangents")
    for name, (net, shape, n, words) in NETWORKS.items():
        for dtype in ("float32", "float64") if options.double else ("float32",):
            size = n if dtype == "float32" else n // 2
            rate, compiled = engine_rate(net, shape, dtype, None, size, 5, options.kind)
            elements = rate * net.shapes(shape).elements
            rival = None if words is None or dtype == "float64" else neural_tangents_rate(words, shape, options.kind)
            rows.append(
                {"network": name, "input": shape, "dtype": dtype, "pairs": rate, "elements": elements, "rival": rival}
            )
            beside = "" if rival is None else f"{rival:14,.0f} ({rate / rival:.0f}×)"
            print(
                f"{name:34}{'×'.join(map(str, shape)):>10}{dtype:>9}{rate:14,.0f}{elements / 1e12:12.3f}"
                f"{compiled:8.1f} s   {beside}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps({"card": card, "kind": options.kind, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
