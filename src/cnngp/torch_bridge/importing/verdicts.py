"""The three things that a PyTorch call can be to the kernel, and the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .graph import Call


@dataclass(frozen=True)
class Becomes:
    call: Call


@dataclass(frozen=True)
class Passes:
    """The value goes through unchanged, as far as the kernel is concerned."""

    told: str = "Identity()"


@dataclass(frozen=True)
class No:
    reason: str


Verdict = Becomes | Passes | No


class Arguments:
    """The arguments of a function after its tensor, by place or by name. What no rule takes is left, and then refused.

    >>> given = Arguments(("x", 0.2), {"inplace": True, "scale": 3})
    >>> given.take(1, "negative_slope", 0.01), given.left
    (0.2, {'scale': 3})
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        known = ("inplace", "out", "input")  # the flow of values shows what is written where
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        self._given = {key: v for key, v in given if key != 0 and key not in known}

    def take(self, place: int, name: str, default: Any = None) -> Any:
        return self._given.pop(name) if name in self._given else self._given.pop(place, default)

    def take_all(self) -> None:
        self._given = {}

    @property
    def left(self) -> dict[int | str, Any]:
        return {key: v for key, v in self._given.items() if v is not None}
