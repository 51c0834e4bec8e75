"""What a store already holds, looked at before it is filled: tiles that are missing, damaged, or in a wrong place."""

from __future__ import annotations

import logging

import numpy as np

from cnngp.common.progress import progress_bar
from cnngp.common.tiles import Tile
from cnngp.kernel.kernel import Kernel

from .images import ImageRows
from .store.store import GramStore

log = logging.getLogger("cnngp")

TileAt = tuple[int, int]
# What two engines may differ by, relative to the largest entry, in the check of stores of format 1.
_SAME = 1e-5


def missing_and_damaged(store: GramStore, verify: bool, progress: bool) -> tuple[list[TileAt], list[TileAt]]:
    """The tiles that are not there, and, when asked to look, those that are damaged."""
    there = store.present()
    missing = store.missing(there)
    return missing, damaged_tiles(store, missing, progress) if verify and there.any() else []


def damaged_tiles(store: GramStore, missing: list[TileAt], progress: bool) -> list[TileAt]:
    """All tiles but the missing ones are read; gives those that are damaged."""
    absent = set(missing)
    present = [(t.i, t.j) for t in store.grid if (t.i, t.j) not in absent]
    bad = []
    with progress_bar(len(present), "verifying", "tile", wanted=progress, keep=True) as bar:
        for at, damaged in store.damaged(present):
            if damaged:
                bad.append(at)
            bar.update(1)
    return bad


def report(store: GramStore, bad: list[TileAt]) -> None:
    shown = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
    log.warning(
        "%s: %d of %d tiles were damaged and are computed again: %s", store.name, len(bad), len(store.grid), shown
    )


def seal_earlier_tiles(
    store: GramStore,
    kernel: Kernel,
    x: ImageRows,
    z: ImageRows | None,
    lacking: list[TileAt],
    verify: bool,
    progress: bool,
) -> list[TileAt]:
    """Bring a store of format 1 to the present one. Its tiles do not say where they belong, so in each some entries are
    computed and compared. Gives those that belong elsewhere.
    """
    if store.read_only or not verify:
        log.warning(
            "%s was written by an earlier version, whose tiles do not say where they belong; a tile in a wrong place "
            "would not be noticed. Run gram on it once, with verify=True and where it can be written, to check that",
            store.name,
        )
        return []
    misplaced: list[TileAt] = []
    without = set(lacking)
    good = [t for t in store.grid if (t.i, t.j) not in without]
    shown = progress_bar(len(good), "checking", "tile", wanted=progress, keep=True)
    with shown as bar, store.writing("its tiles stay valid"):
        for t in good:
            if _belongs(store, kernel, x, z, t):
                store.seal(t.i, t.j)
            else:
                misplaced.append((t.i, t.j))
            bar.update(1)
    store.adopt_seals()
    return misplaced


def _belongs(store: GramStore, kernel: Kernel, x: ImageRows, z: ImageRows | None, t: Tile) -> bool:
    """Whether the corners of a tile are those of its images, as far as engines agree."""
    block = store.read(t.i, t.j)
    r, c = [0, block.shape[0] - 1], [0, block.shape[1] - 1]
    card = 0 if kernel.device == "cuda" else None
    engine, rows = kernel.engine_for(x.image_shape), x.block(t.rows, card)[r]
    if t.on_diagonal:
        wanted = engine.symmetric(rows, "numpy", None)
    else:
        wanted = engine.cross(rows, (x if z is None else z).block(t.columns, card)[c], "numpy", None)
    return bool(np.abs(block[np.ix_(r, c)] - wanted).max() <= _SAME * np.abs(wanted).max())
