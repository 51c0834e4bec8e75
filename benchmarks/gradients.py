"""Cost of a gradient relative to the kernel matrix: `python -m benchmarks.gradients`.

    python -m benchmarks.gradients --images 300 --rounds 5
    python -m benchmarks.gradients --cases "resnet(32)" --dtypes float32
    python -m benchmarks.gradients --device cuda      # on a GPU, whose gradient is first compared with the CPU's

`kernel.gradient(X, Z, G)` gives the derivatives with respect to all parameters of the network at once. Every round
computes the kernel matrix and then the gradient for the same images; medians are printed. Images are random: the work
does not depend on the pixels.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from cnngp import GELU, Conv, Dense, Elementwise, Erf, Kernel, Sequential
from cnngp.common.devices import Device

from .cpu import CASES, images, images_of

SMOOTH = {
    name: (lambda layer=layer: Sequential(*[Conv(3, weight_var=1.5), layer] * 6, Dense()), (1, 28, 28))
    for name, layer in (("six GELU", GELU()), ("six Erf", Erf()), ("six tanh", Elementwise("tanh")))
}
DEFAULT = [
    "resnet(32)",
    "convnet()",
    "CIFAR resnet(32)",
    "pooled twice",
    "pool, then 5 × 5",
    "global on 8 × 8",
    *SMOOTH,
]


def cost(name: str, n: int, dtype: str, threads: int, rounds: int, device: Device = "cpu") -> dict[str, float]:
    """Median seconds of a kernel and of a gradient, and their ratio by wall clock and by processor time."""
    make, shape = (CASES | SMOOTH)[name]
    kernel = Kernel(make(), device=device, dtype=dtype, threads=threads, check=device == "cuda")
    X, Z = images(n, shape, dtype, 0), images(n, shape, dtype, 1)
    G = np.random.default_rng(2).normal(size=(n, n))
    contestants: dict[str, Callable[[], object]] = {
        "kernel": lambda: kernel(X, Z, progress=False),
        "gradient": lambda: kernel.gradient(X, Z, G, progress=False),
    }
    kernel(X[:2], Z[:2])
    kernel.gradient(X[:2], Z[:2], G[:2, :2])
    clock: dict[str, list[float]] = {who: [] for who in contestants}
    processor: dict[str, list[float]] = {who: [] for who in contestants}
    for _ in range(rounds):
        for who, work in contestants.items():
            begun, before = time.perf_counter(), time.process_time()
            work()
            clock[who].append(time.perf_counter() - begun)
            processor[who].append(time.process_time() - before)
    found = {who: float(np.median(times)) for who, times in clock.items()}
    busy = {who: float(np.median(times)) for who, times in processor.items()}
    return found | {
        "parameters": len(kernel.network.parameters()),
        "pairs/s": n * n / found["gradient"],
        "kernels": found["gradient"] / found["kernel"],
        "kernels by processor time": busy["gradient"] / busy["kernel"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--images", type=int, help="300 on the CPU, 2048 on a card")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="*", default=DEFAULT)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    count = args.images or {"cpu": 300, "cuda": 2048}[args.device]
    results = {}
    print(
        f"{'network':18} {'type':8} {'parameters':>10} {'pairs':>9} {'kernel':>9} {'gradient':>9} {'pairs/s':>11}   "
        "kernels (CPU time)"
    )
    for name in args.cases:
        for dtype in args.dtypes:
            n = count if name in SMOOTH else images_of(name, count)
            n = n if dtype == "float32" else max(8, n // 2)
            c = results[f"{name} {dtype}"] = cost(name, n, dtype, args.threads, args.rounds, args.device)
            print(
                f"{name:18} {dtype:8} {c['parameters']:>10} {n * n:>9,} {c['kernel']:>8.3f}s {c['gradient']:>8.3f}s "
                f"{c['pairs/s']:>11,.0f} {c['kernels']:>9.1f} ({c['kernels by processor time']:.1f})",
                flush=True,
            )
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
