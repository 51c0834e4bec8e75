"""Overhead of storing a kernel matrix: `python -m benchmarks.store`.

    python -m benchmarks.store --images 2500                                   # resnet(32) on the CPU
    python -m benchmarks.store --images 10000 --network small_cnn --size 8
    python -m benchmarks.store --device cuda --images 30000 --tiles 2048 4096 8192

Every round runs each contestant once; medians are printed. The second share is by processor time, which other programs
on the machine affect less; "in the engine" is the time in the engine's calls as a share of the run, over 100 % if two
tiles are computed at a time. "bare engine" is the engine's own symmetric matrix in host memory. Below the line are the
separate parts of the store, in bytes of the matrix per second. Images are random: the work does not depend on the
pixels.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import Kernel, gram, zoo
from cnngp.gp.checks import float64_buffer
from cnngp.matrix.store.store import opened
from cnngp.matrix.tile_size import default_tile

NETWORKS = {"resnet32": lambda: zoo.resnet(32), "convnet": zoo.convnet, "small_cnn": zoo.small_cnn}


def seconds(function: Callable[[], Any]) -> float:
    return both_seconds(function)[0]


def both_seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by wall clock, and of processor time."""
    start, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - processor


def timed(engine: Any) -> list[float]:
    """Return a list to which every call of the engine appends its seconds."""
    clock: list[float] = []
    for name in ("cross", "symmetric"):
        original = getattr(engine, name)

        def call(*args: Any, original: Any = original) -> Any:
            start = time.perf_counter()
            result = original(*args)
            clock.append(time.perf_counter() - start)
            return result

        setattr(engine, name, call)
    return clock


def into_store(kernel: Kernel, X: Any, place: Path, tile: int) -> Callable[[], Any]:
    return lambda: gram(kernel, X, store=place, tile=tile, progress=False)


def rewrite(place: Path, tile: int) -> None:
    """Write every tile again from memory, to time only the writing."""
    block = np.random.default_rng(0).random((tile, tile), dtype=np.float32)
    with opened(place) as store:
        store.prepare(store.found)  # type: ignore[arg-type]
        for t in store.grid:
            store.write(
                t, np.ascontiguousarray(block[: t.rows.stop - t.rows.start, : t.columns.stop - t.columns.start])
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2500)
    parser.add_argument("--network", choices=NETWORKS, default="resnet32")
    parser.add_argument("--size", type=int, default=28, help="height and width of the images")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tiles", type=int, nargs="*", help="sides of tiles; the default one by default")
    parser.add_argument("--store-only", action="store_true", help="leave out the matrix in memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the stores go; a temporary folder by default")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    shape = (1, args.size, args.size)
    X = np.random.default_rng(0).random((args.images, *shape), dtype=np.float32)
    kernel = Kernel(NETWORKS[args.network](), device=args.device, threads=args.threads)
    engine = kernel.engine_for(shape)
    flat = X.reshape(len(X), 1, -1)
    engine.symmetric(flat[:64])
    clock = timed(engine)
    n = args.images
    pairs, matrix_bytes = n * (n - 1) // 2, 4 * n * n
    tiles = args.tiles or [default_tile(kernel.network.shapes(shape).elements, args.device, (n, n), True)[0]]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        contestants: dict[str, Callable[[], Any]] = {"bare engine": lambda: engine.symmetric(flat)}
        if args.device == "cuda":
            contestants["bare engine, matrix stays on the card"] = lambda: engine.symmetric(flat, "cupy")
        if not args.store_only:
            contestants["gram in memory"] = lambda: gram(kernel, X, progress=False)
        for tile in tiles:
            contestants[f"gram with a store, tile {tile}"] = into_store(kernel, X, Path(folder, str(tile)), tile)
        times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contestants}
        for _ in range(args.rounds):
            for name, run in contestants.items():
                for tile in tiles:
                    shutil.rmtree(Path(folder, str(tile)), ignore_errors=True)
                clock.clear()
                wall, processor = both_seconds(run)
                times[name].append((wall, processor, sum(clock) / wall))
        medians = {name: tuple(map(statistics.median, zip(*t, strict=True))) for name, t in times.items()}
        bare = medians["bare engine"]
        print(f"{n:,} images, {args.network}, {engine.identity}, matrix of {matrix_bytes / 1e9:.3g} GB")
        for name, (t, processor, busy) in medians.items():
            rate = f"{t:8.2f} s {pairs / t:>14,.0f} pairs/s"
            shares = f"{bare[0] / t:7.1%} {bare[1] / processor:7.1%} {busy:7.1%} in the engine"
            print(f"{name:40} {rate} {shares}", flush=True)
        print("-" * 80)
        parts: dict[str, float] = {}
        for tile in tiles:
            place = Path(folder, str(tile))
            K = gram(kernel, X, store=place, tile=tile, verify=False, progress=False)
            parts[f"verify, tile {tile}"] = seconds(lambda p=place: gram(kernel, X, store=p, progress=False))
            parts[f"read into the float64 buffer, tile {tile}"] = seconds(lambda K=K: float64_buffer(K))
            parts[f"write, tile {tile}"] = seconds(lambda p=place, t=tile: rewrite(p, t))
        for name, t in parts.items():
            print(f"{name:40} {t:8.2f} s {matrix_bytes / t / 1e9:>14.2f} GB/s")
    if args.json:
        print(json.dumps({"images": n, "network": args.network, "seconds": medians, "parts": parts}))


if __name__ == "__main__":
    main()
