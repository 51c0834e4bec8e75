"""What a store already holds, looked at before it is filled: tiles that are missing, damaged, or in a wrong place."""

from __future__ import annotations

import logging

from cnngp.common.progress import progress_bar

from .store.store import GramStore

log = logging.getLogger("cnngp")

TileAt = tuple[int, int]


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
