"""Speed of the CPU engine and of alternatives, in one run: `python -m benchmarks.cpu`.

    python -m benchmarks.cpu --images 1000 --rounds 5
    python -m benchmarks.cpu --neural-tangents nt/bin/python     # an environment with neural-tangents==0.6.5 jax==0.5.3
                                                                 # jaxlib==0.5.3 tf2jax==0.3.7
    python -m benchmarks.cpu --prototype fused_resnet_numba.py   # a kernel specialised to resnet(32), if you have one
    python -m benchmarks.cpu --memory --wait
    python -m benchmarks.cpu --cases "convnet()" "pooled twice" "global on 8 × 8" --no-torch --dtypes float32
    python -m benchmarks.cpu --ntk --no-torch                    # cost of the tangent kernel beside the GP's

Every round runs each contestant once, so that noise on the machine affects all alike; medians are printed. The rivals
get fewer pairs, at their best block size. Images are random: the work does not depend on the pixels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Kernel, ReLU, Sequential, zoo
from cnngp.network import Network


def _stack(*parts: Network | int) -> Network:
    """A network of the given pools; a number stands for that many 3 × 3 convolutions with ReLUs."""
    layers: list[Network] = []
    for part in parts:
        layers += [part] if isinstance(part, Network) else [Conv(3, weight_var=2.0), ReLU()] * part
    return Sequential(*layers, Dense())


POOLED = {
    "pooled twice": (lambda: _stack(2, AvgPool(2), 2, AvgPool(2), 1), (1, 28, 28)),
    "pool, then 5 × 5": (lambda: _stack(2, AvgPool(2), 3, AvgPool(5, 1)), (1, 28, 28)),
    "global on 8 × 8": (lambda: _stack(3, GlobalAvgPool()), (1, 8, 8)),
    "global on 32 × 32": (lambda: _stack(3, GlobalAvgPool()), (3, 32, 32)),
}
CASES = {
    "resnet(32)": (lambda: zoo.resnet(32), (1, 28, 28)),
    "convnet()": (zoo.convnet, (1, 28, 28)),
    "residual_cnn()": (zoo.residual_cnn, (1, 28, 28)),
    "CIFAR resnet(32)": (lambda: zoo.resnet(32), (3, 32, 32)),
    **POOLED,
}


def images_of(name: str, n: int) -> int:
    """Number of images for the work of about n × n pairs of `convnet()`; a pooled pair may cost a thousand times it."""
    share = elements_of("convnet()") / elements_of(name) if name in POOLED else 1.0
    return max(8, int(n * min(1.0, share) ** 0.5))


def images(n: int, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    return np.random.default_rng(seed).random((n, *shape)).astype(dtype)


def ours(name: str, n: int, dtype: str, threads: int, both: bool = False) -> tuple[int, Callable[[], float]]:
    """Number of pairs, and a timed run of this package for K, or for K and Θ."""
    make, shape = CASES[name]
    n = images_of(name, n)
    kernel = Kernel(make(), device="cpu", dtype=dtype, threads=threads)
    X, Z = images(n, shape, dtype, 0), images(n, shape, dtype, 1)
    compute: Callable[..., Any] = kernel.both if both else kernel
    compute(X[:2], Z[:2])

    def run() -> float:
        start = time.perf_counter()
        compute(X, Z, progress=False)
        return time.perf_counter() - start

    return n * n, run


def pytorch(name: str, dtype: str, threads: int) -> tuple[int, Callable[[], float]]:
    import torch

    from .rivals import torch_kernel

    torch.set_num_threads(threads)
    make, shape = CASES[name]
    net = make()

    def block_run(b: int, repeat: int) -> float:
        x, z = (torch.from_numpy(images(b, shape, dtype, seed)) for seed in (0, 1))
        with torch.inference_mode():
            torch_kernel(net, x, z)
            start = time.perf_counter()
            for _ in range(repeat):
                torch_kernel(net, x, z)
        return time.perf_counter() - start

    best = min((8, 12, 16, 24, 32), key=lambda b: block_run(b, 2) / (b * b))
    repeat = max(1, 3000 // (best * best))
    return best * best * repeat, lambda: block_run(best, repeat)


def neural_tangents(python: str, name: str, dtype: str) -> tuple[int, Callable[[], float]] | None:
    if name == "residual_cnn()":
        return None
    worker = Path(__file__).with_name("neural_tangents_worker.py")
    channels, size, _ = CASES[name][1]
    best: tuple[float, int, Any] | None = None
    for block in (2, 5) if name in POOLED else (10, 20, 40):
        command = [python, str(worker), name, str(2 * block), str(channels), str(size), str(block), dtype]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            return None
        process.stdin.write("\n")
        process.stdin.flush()
        rate = (2 * block) ** 2 / float(process.stdout.readline())
        if best is not None and rate <= best[0]:
            process.kill()
            continue
        if best is not None:
            best[2].kill()
        best = (rate, block, process)
    assert best is not None
    _, block, process = best

    def run() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return (2 * block) ** 2, run


def prototype(path: str, n: int) -> tuple[int, Callable[[], float]]:
    spec = importlib.util.spec_from_file_location("prototype", path)
    assert spec is not None
    assert spec.loader is not None
    p = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(p)
    x, y = (images(n, (28, 28), "float64", seed) for seed in (0, 1))
    t1, t2 = p.tables(x), p.tables(y)
    x1, x2 = p.pad(x.astype(np.float32)), p.pad(y.astype(np.float32))
    masks = p.mask(28), p.mask(14), p.mask(7)
    out = np.empty((n, n), np.float32)
    p.gram(x1[:2], t1[:2], x2[:2], t2[:2], *masks, out[:2, :2].copy())

    def run() -> float:
        start = time.perf_counter()
        p.gram(x1, t1, x2, t2, *masks, out)  # without its tables, which NumPy computes
        return time.perf_counter() - start

    return n * n, run


def elements_of(name: str) -> int:
    make, shape = CASES[name]
    return make().shapes(shape).elements


def against_the_first(cases: list[str], dtypes: list[str], n: int, threads: int, rounds: int) -> dict[str, float]:
    """Map elements per second of every case relative to the first, interleaved; by wall clock and processor time."""
    field = {(name, dtype): ours(name, n, dtype, threads)[1] for name in cases for dtype in dtypes}
    pairs = {name: images_of(name, n) ** 2 for name in cases}
    clock: dict[tuple[str, str], list[float]] = {case: [] for case in field}
    processor: dict[tuple[str, str], list[float]] = {case: [] for case in field}
    for _ in range(rounds):
        for case, run in field.items():
            before = time.process_time()
            clock[case].append(run())
            processor[case].append(time.process_time() - before)

    def rates(seconds: dict[tuple[str, str], list[float]]) -> dict[tuple[str, str], float]:
        return {case: pairs[case[0]] * elements_of(case[0]) / float(np.median(t)) for case, t in seconds.items()}

    by_clock, by_processor = rates(clock), rates(processor)
    first = next(iter(field))
    print(f"\nmap elements/s against {first[0]}, {first[1]}; {n} × {n} pairs, {rounds} rounds")
    results = {}
    for case in field:
        ratios = by_clock[case] / by_clock[first], by_processor[case] / by_processor[first]
        print(f"{case[0]:18} {case[1]:8} {ratios[0]:>6.2f} by the clock, {ratios[1]:>5.2f} by processor time")
        results[f"{case[0]} {case[1]} against the first"] = ratios[1]
    return results


WAIT = """
import time, numpy as np
start = time.perf_counter()
from cnngp import Conv, Dense, Kernel, ReLU, Sequential, zoo
net = {net}
Kernel(net, device="cpu")(np.random.default_rng(0).random((20, 1, 28, 28)))
print(time.perf_counter() - start)
"""
MEMORY = """
import numpy as np
from benchmarks.cpu import CASES, images
from cnngp import Kernel, zoo
def memory(what):  # in MB; ru_maxrss would be inherited from the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) / 1024
make, shape = CASES["{name}"]
X, Z = images({n}, shape, "float32", 0), images({n}, shape, "float32", 1)
Kernel(zoo.resnet(8), device="cpu", threads=2)(np.zeros((40, 1, 28, 28)))  # imports and compiles
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = memory("VmRSS")
K = Kernel(make(), device="cpu", threads=2)(X, Z, progress=False)
print(memory("VmHWM") - before - K.nbytes / 2**20)
"""
# Number of images on each side of the matrix whose memory is measured. Memory does not grow beyond a strip of rows;
# more images of the last network would take an hour.
MEMORY_OF = {"resnet(32)": 5000, "pooled twice": 1000, "global on 8 × 8": 1000, "global on 32 × 32": 48}


def in_process(code: str, **env: str) -> float:
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | env)
    return float(out.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--neural-tangents", metavar="PYTHON")
    parser.add_argument("--prototype", metavar="FILE")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--ntk", action="store_true", help="also both kernels from one pass")
    parser.add_argument("--memory", action="store_true", help="memory beyond input and output")
    parser.add_argument("--wait", action="store_true", help="the first call, with and without compiled code on disk")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    results: dict[str, Any] = {}
    print(f"{'network':18} {'type':8} {'who':16} {'pairs/s':>10} {'elements/s':>11} {'ours is':>8}")
    for name in args.cases:
        elements = elements_of(name)
        for dtype in args.dtypes:
            n = args.images if dtype == "float32" else args.images // 2
            field = {"cnngp": ours(name, n, dtype, args.threads)}
            if args.ntk:
                field["cnngp, K and Θ"] = ours(name, n, dtype, args.threads, both=True)
            if not args.no_torch and name not in POOLED:  # the rival in PyTorch has no pools
                field["PyTorch"] = pytorch(name, dtype, args.threads)
            if args.neural_tangents and (worker := neural_tangents(args.neural_tangents, name, dtype)):
                field["neural-tangents"] = worker
            if args.prototype and name == "resnet(32)" and dtype == "float32":
                field["prototype"] = prototype(args.prototype, n)
            times: dict[str, list[float]] = {who: [] for who in field}
            for _ in range(args.rounds):
                for who, (_, run) in field.items():
                    times[who].append(run())
            rates = {who: field[who][0] / float(np.median(t)) for who, t in times.items()}
            for who, rate in rates.items():
                ratio = f"{rates['cnngp'] / rate:.1f}×"
                print(f"{name:18} {dtype:8} {who:16} {rate:>10,.0f} {rate * elements:>11.3g} {ratio:>8}", flush=True)
                results[f"{name} {dtype} {who}"] = rate
    results |= against_the_first(args.cases, args.dtypes, args.images // 2, args.threads, args.rounds)
    if args.wait:
        with tempfile.TemporaryDirectory() as cache:
            first = in_process(WAIT.format(net="zoo.resnet(32)"), NUMBA_CACHE_DIR=cache)
            net = "Sequential(Conv(5), ReLU(), Conv(3, stride=2), ReLU(), Dense())"
            new = in_process(WAIT.format(net=net), NUMBA_CACHE_DIR=cache)
        print(f"first call on a machine {first:.1f} s, on a new network later {new:.1f} s (imports included)")
        results["first call"], results["new network"] = first, new
    if args.memory:
        for name, n in MEMORY_OF.items():
            results[f"memory {name}"] = found = in_process(MEMORY.format(name=name, n=n))
            print(f"memory beyond input and output, {name}, {n:,} × {n:,}: {found:.0f} MB")
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
