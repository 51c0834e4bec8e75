"""`gram` on a cluster with everything but the arithmetic and the tiles: what one million images cost the client.

Prints, as JSON, the peak of memory and the seconds of the whole process, which is client, scheduler and workers in one.
The engine computes nothing and no tile is written; grid, tasks, metadata, images and marks are real.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from cnngp import Dense, Kernel, gram
from cnngp.common.tiles import Tile
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.cluster import run as cluster_run
from cnngp.matrix.store.store import GramStore

WRITTEN: list[tuple[int, int]] = []
TASKS: list[int] = []
hand_out = cluster_run.Run._next


def counted(self: Any, workers: int) -> Any:
    task = hand_out(self, workers)
    TASKS.extend([1] * (task is not None))
    return task


def write(self: GramStore, tile: Tile, block: Any) -> None:
    WRITTEN.append((tile.i, tile.j))


def present(self: GramStore) -> Any:
    there = np.zeros(self.grid.counts, np.bool_)
    for i, j in WRITTEN:
        there[i, j] = there[j, i] = True
    return there


def nothing(self: CpuEngine, *images_output_advance: Any) -> None:
    return None


def run(client: Client, images: int, tile: int, place: str) -> dict[str, Any]:
    WRITTEN.clear()
    TASKS.clear()
    X = np.random.default_rng(0).random((images, 4), dtype=np.float32)
    wall, processor, own = time.perf_counter(), time.process_time(), time.thread_time()
    K = gram(Kernel(Dense(), device="cpu", threads=1, check=False), X, store=place, tile=tile, client=client)
    return {
        "wall": time.perf_counter() - wall,
        "processor": time.process_time() - processor,
        "client_thread": time.thread_time() - own,
        "tiles": len(WRITTEN),
        "tasks": len(TASKS),
        "once": len(set(WRITTEN)) == len(WRITTEN),
        "shape": K.shape,
    }


def main(images: int, tile: int, place: str) -> None:
    GramStore.write = write  # type: ignore[method-assign]
    GramStore.present = present  # type: ignore[method-assign]
    CpuEngine.cross = CpuEngine.symmetric = nothing  # type: ignore[method-assign,assignment]
    cluster_run.Run._next = counted  # type: ignore[method-assign]
    options = {"n_workers": 8, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options, silence_logs=logging.CRITICAL) as local, Client(local) as client:
        run(client, 4 * tile, tile, f"{place}-warm")  # imports, and what is compiled
        result = run(client, images, tile, place)
    print(json.dumps(result | {"peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Not ru_maxrss, which a process inherits from the one that started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(300, exit=True)  # it takes seconds; one that stops tells where
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
