"""Tiles of a matrix: how large they are, that they cover it once, what is told while they are computed, and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cnngp
from cnngp import Conv, Dense, Kernel, ReLU, Sequential, gram
from cnngp.common.tiles import Grid
from cnngp.matrix.tile_size import default_tile

KERNEL = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu", threads=1)
X = np.random.default_rng(0).random((37, 1, 4, 4))
Z = np.random.default_rng(1).random((23, 1, 4, 4))


def test_default_tiles_are_a_few_seconds_of_work_and_fit_small_sets() -> None:
    engine = KERNEL.engine_for((1, 4, 4))
    assert default_tile(engine.program.elements, "cpu", (60000, 60000), True) == (2048, 2048)
    assert default_tile(engine.program.elements, "cpu", (300, 300), True) == (512, 512)
    assert default_tile(engine.program.elements, "cpu", (10, 60000), False) == (256, 2048)
    costly = Kernel(cnngp.network.zoo.resnet(32), device="cpu").engine_for((1, 28, 28))
    assert default_tile(costly.program.elements, "cpu", (60000, 60000), True) == (1024, 1024)
    assert default_tile(engine.program.elements, "cpu", (4096, 4096), True, workers=2) == (512, 512)
    assert default_tile(costly.program.elements, "cuda", (60000, 60000), True) == (4096, 4096)


def test_progress_counts_every_pair_once_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[int, int, list[int]]] = []

    @contextmanager
    def bar(total: int, *_: Any, done: int = 0, **options: Any) -> Iterator[Any]:
        bars.append((total, done, []))
        yield SimpleNamespace(update=bars[-1][2].append)

    monkeypatch.setattr("cnngp.matrix.gram.progress_bar", bar)
    gram(KERNEL, X, store=tmp_path / "K", tile=16)
    (tmp_path / "K/K/c/1/0").unlink()
    gram(KERNEL, X, store=tmp_path / "K", verify=False)
    gram(KERNEL, X, Z, tile=8)
    pairs = 37 * 36 // 2
    assert [(total, done, sum(steps)) for total, done, steps in bars] == [
        (pairs, 0, pairs),
        (pairs, pairs - 256, 256),
        (37 * 23, 0, 37 * 23),
    ]


def test_the_chunks_of_a_grid_cover_it_once() -> None:
    for shape, tile, symmetric in (((37, 37), (8, 8), True), ((37, 23), (8, 5), False), ((3, 3), (8, 8), True)):
        grid = Grid(shape, tile, symmetric)
        seen = np.zeros(shape, int)
        for t in grid:
            for i, j in grid.chunks_of(t.i, t.j):
                place = grid.at(i, j)
                seen[place.rows, place.columns] += 1
        assert (seen == 1).all()


MEMORY = """
import resource, sys, numpy as np
from cnngp import Dense, Kernel, gram
n, folder = int(sys.argv[1]), sys.argv[2]
X = np.load(folder + "/X.npy", mmap_mode="r")[:n]
kernel = Kernel(Dense(), device="cpu", threads=1)
gram(kernel, X[:600], store=folder + "/warm", tile=256)
gram(kernel, X, store=folder + f"/{n}", tile=256)
gram(kernel, X, store=folder + f"/{n}")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_memory_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """144 MB of matrix more, and not a tenth of it in memory; verification included."""
    np.save(tmp_path / "X.npy", np.random.default_rng(0).random((6000, 4), dtype=np.float32))
    peaks = []
    for n in (1000, 6000):
        command = [sys.executable, "-c", MEMORY, str(n), str(tmp_path)]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 14
