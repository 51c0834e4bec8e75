"""The loop over tiles: engines compute while threads write; several GPUs share the tiles."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from cnngp.common import devices
from cnngp.common.arrays import Output
from cnngp.common.tiles import Tell, Tile, share
from cnngp.kernel.engines.base import Engine
from cnngp.kernel.kernel import Kernel

from .images import ImageRows
from .store.store import GramStore


@dataclass(frozen=True)
class Lane:
    """An engine that computes one tile after another, on the CPU or on one GPU."""

    engine: Engine
    card: int | None = None


def lanes(kernel: Kernel, image_shape: tuple[int, ...], most: int | None = None) -> list[Lane]:
    """Return the lanes of this machine, at most `most`.

    Two for a CPU with several threads: they share its thread pool, and the tasks of one fill the gaps while the other
    waits for its last ones. One per GPU: a tile is too small to be divided among several. GPUs of another model than
    the kernel's engine are left out, because their last digits differ.
    """
    engine = kernel.engine_for(image_shape)
    if kernel.device == "cpu":
        return [Lane(engine)] * (2 if getattr(engine, "threads", 1) > 1 and most != 1 else 1)
    found = devices.card_count()
    if found == 1:
        return [Lane(engine, 0)]
    each = [Lane(kernel.engine_on(k, image_shape), k) for k in range(found)[:most]]
    return [lane for lane in each if lane.engine.identity == engine.identity] or [Lane(engine, 0)]


def fill(
    tiles: Iterable[Tile],
    lanes: list[Lane],
    x: ImageRows,
    z: ImageRows | None,
    write: Callable[[Tile, Any], None],
    advance: Tell,
) -> None:
    """Compute and write tiles. `z` is None for the symmetric matrix of x. An error or Ctrl-C ends all lanes."""

    def run(lane: Lane, taken: Iterator[Tile], tell: Tell) -> None:
        """Write each tile in a thread while the next one is computed; two are in memory at a time."""
        rows: tuple[int, Any] = (-1, None)
        writing: Future[None] | None = None
        output: Output = "numpy" if lane.card is None else "cupy"  # the writing thread copies it to the host
        on_card = nullcontext() if lane.card is None else devices.card(lane.card)
        with on_card, ThreadPoolExecutor(1, thread_name_prefix="cnngp-write") as writer:
            for t in taken:
                if rows[0] != t.i:
                    rows = (t.i, x.block(t.rows, lane.card))
                if t.on_diagonal:
                    block = lane.engine.symmetric(rows[1], output, tell)
                else:
                    columns = (x if z is None else z).block(t.columns, lane.card)
                    block = lane.engine.cross(rows[1], columns, output, tell)
                if writing is not None:
                    writing.result()
                writing = writer.submit(write, t, block)
            if writing is not None:
                writing.result()

    share(lanes, tiles, run, advance)


def not_done_by_others(
    store: GramStore,
    missing: Sequence[tuple[int, int]],
    share: tuple[int, int] | None,
    look: Callable[[], Any] = lambda: None,
    done: Callable[[Tile], Any] = lambda tile: None,
) -> Iterator[Tile]:
    """Yield the missing tiles of a matrix that other processes fill too, each only if it is still missing; call `look`
    before each, and `done` for each that another process has written.

    `share` = (k, n) puts the k-th of n shares first, as the others begin with theirs; the rest, or all without a share,
    come in random order. So few tiles are computed twice, and the others compute those of a process that dies.
    """
    rest = list(missing)
    k, n = (0, 1) if share is None else share
    own = [] if share is None else rest[k * len(rest) // n : (k + 1) * len(rest) // n]
    others = list(set(rest) - set(own))
    for i, j in own + random.sample(others, len(others)):
        look()
        tile = store.grid.at(i, j)
        if store.has(tile):
            done(tile)
        else:
            yield tile
