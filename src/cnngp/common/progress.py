"""The one progress bar: on a terminal or in a notebook, after two seconds, with the rate and the time left."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
    delay: float = 2.0,
    keep: bool = False,
) -> Iterator[Any]:
    """A tqdm bar labelled `what`, that counts `unit`s from `done` to `total`; `keep` leaves it on the screen.

    Where no bar is shown (`wanted=False`, no terminal, inside `hidden`), its methods do nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets gets a bar of characters
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
        yield bar


@contextmanager
def hidden() -> Iterator[None]:
    """No bars inside, as `--quiet` wants it."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def duration(seconds: float) -> str:
    """A time for people: 3.21 s, 43.0 s, 4 min, 3 h 40 min."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
