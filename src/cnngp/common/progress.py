"""Progress bar for terminals and notebooks, shown after a second, with the rate and the time left."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

_hidden: ContextVar[bool] = ContextVar("cnngp_progress_hidden", default=False)


@contextmanager
def progress_bar(
    total: int | None,
    what: str,
    unit: str,
    *,
    done: int = 0,
    wanted: bool = True,
    delay: float = 1.0,
    keep: bool = False,
) -> Iterator[Any]:
    """A tqdm bar labelled `what` that counts `unit`s from `done` to `total`; `keep` leaves it on the screen.

    It is redrawn every second, even while a single step takes longer. If no bar is shown (`wanted=False`, no terminal,
    inside `hidden`), its methods do nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets gets a text bar
        from tqdm.auto import tqdm

    only_on_terminals = False if "ipykernel" in sys.modules else None
    with tqdm(
        total=total,
        initial=done,
        desc=what,
        unit=unit,
        unit_scale=unit in ("pair", "B"),
        delay=delay,
        disable=only_on_terminals if wanted and not _hidden.get() else True,
        leave=keep,
    ) as bar:
        if bar.disable:
            yield bar
            return
        over = threading.Event()

        def tick() -> None:
            if not over.wait(max(delay, 0.1)):
                bar.refresh()
                while not over.wait(1.0):
                    bar.refresh()

        ticking = threading.Thread(target=tick, daemon=True)
        ticking.start()
        try:
            yield bar
        finally:
            over.set()
            ticking.join()


@contextmanager
def hidden() -> Iterator[None]:
    """Context manager that hides all progress bars, for `--quiet`."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def beside_bars(stream: Any) -> AbstractContextManager[Any]:
    """Context manager for printing a line while bars are shown: it clears them and redraws them below."""
    std = sys.modules.get("tqdm.std")
    return nullcontext() if std is None else std.tqdm.external_write_mode(stream)


def duration(seconds: float) -> str:
    """Format a duration: 3.21 s, 43.0 s, 4 min, 3 h 40 min."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
