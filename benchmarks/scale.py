"""Overhead of a Dask cluster: `python -m benchmarks.scale`.

    python -m benchmarks.scale                         # resnet(32), two workers of one thread on this machine
    python -m benchmarks.scale --images 8192 --workers 8 --rounds 5
    python -m benchmarks.scale --solver                # also the iterative solver, by number of images and noise

Compares the bare engine, with as many threads as all workers together, with `gram` into a store on a local Dask
cluster, alternating in every round; medians. The second share is by processor time of client and workers, which other
programs on the machine affect less. Images are random: the work does not depend on the pixels.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.store import NETWORKS
from cnngp import Kernel, gram


def processor_seconds(client: Any) -> float:
    """Processor time of this process and of all workers."""
    return time.process_time() + sum(client.run(time.process_time).values())


def measure(args: argparse.Namespace, client: Any, folder: Path) -> dict[str, list[tuple[float, float]]]:
    shape = (1, args.size, args.size)
    X = np.random.default_rng(0).random((args.images, *shape), dtype=np.float32)
    threads = args.workers * args.threads
    kernel = Kernel(NETWORKS[args.network](), device="cpu", threads=threads)
    engine = kernel.engine_for(shape)
    flat = X.reshape(len(X), 1, -1)
    engine.symmetric(flat[:64])
    gram(kernel, X[:128], store=folder / "warm", tile=32, client=client)  # workers import and load compiled code
    expected = engine.symmetric(flat)

    def bare(round_: int) -> Any:
        return engine.symmetric(flat)

    def on_cluster(round_: int) -> Any:
        return gram(kernel, X, store=folder / str(round_), tile=args.tile, client=client, progress=False)

    times: dict[str, list[tuple[float, float]]] = {"bare engine": [], "cluster with a store": []}
    for round_ in range(args.rounds):
        for name, run in zip(times, (bare, on_cluster), strict=True):
            processor, start = processor_seconds(client), time.perf_counter()
            K = run(round_)
            wall = time.perf_counter() - start
            times[name].append((wall, processor_seconds(client) - processor))
            if name != "bare engine" and not np.array_equal(K[:], expected):
                raise SystemExit("the matrix of the cluster differs from the engine's")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--network", choices=NETWORKS, default="resnet32")
    parser.add_argument("--size", type=int, default=28, help="height and width of the images")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--tile", type=int, help="side of a tile; by default as gram chooses")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the stores go; a temporary folder by default")
    parser.add_argument("--solver", action="store_true", help="measure the iterative solver too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    options = {"n_workers": args.workers, "threads_per_worker": args.threads, "dashboard_address": ":0"}
    with (
        tempfile.TemporaryDirectory(dir=args.folder) as folder,
        LocalCluster(**options, silence_logs=logging.ERROR) as cluster,
        Client(cluster) as client,
    ):
        times = measure(args, client, Path(folder))
    pairs = args.images * (args.images - 1) // 2
    medians = {name: tuple(map(statistics.median, zip(*t, strict=True))) for name, t in times.items()}
    base = medians["bare engine"]
    threads = args.workers * args.threads
    print(f"{args.images:,} images, {args.network}, {args.workers} workers × {args.threads} threads, medians")
    print(f"{'':24} {'seconds':>10} {'pairs/s':>12} {'share':>8} {'by processor time':>18}")
    for name, (wall, processor) in medians.items():
        label = f"{name}, {threads} threads" if name == "bare engine" else name
        share = f"{base[0] / wall:8.1%} {base[1] / processor:18.1%}"
        print(f"{label:24} {wall:10.2f} {pairs / wall:12,.0f} {share}")
    if args.json:
        print(json.dumps({"images": args.images, "network": args.network, "seconds": medians}))
    if args.solver:
        from benchmarks.solver import report

        report()


if __name__ == "__main__":
    main()
