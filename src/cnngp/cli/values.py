"""What the values of options may be. Each is checked while the command line is read, before any file is.

A parser takes the words of the user and returns them, or what they stand for; what it refuses is one line that begins
with the option: `--learn foo: expected loo or likelihood`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import typer

_PORTS = 65_535


class BadValue(typer.BadParameter):
    """A value that an option does not take. Click adds which option it was."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"{str(value) or repr('')}: expected {expected}")

    def format_message(self) -> str:
        parameter: Any = self.param
        if parameter is None:
            return self.message
        return f"{max(parameter.opts, key=len)} {self.message}"


def choice(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(value: str) -> str:
        if value not in words:
            raise BadValue(value, either(words))
        return value

    return parse


def whole(least: int, of: str = "a whole number") -> Callable[[Any], int]:
    """A whole number of at least this."""

    def parse(value: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            raise BadValue(value, f"{of} of {least} or more") from None
        if number < least:
            raise BadValue(value, f"{of} of {least} or more")
        return number

    return parse


def port(value: Any) -> int:
    """Of this machine."""
    number = whole(0)(value)
    if number > _PORTS:
        raise BadValue(value, f"a number up to {_PORTS:,}")
    return number


def seconds(value: Any) -> float:
    """More than none."""
    number = _number(value)
    if number is None or number <= 0.0:
        raise BadValue(value, "a number of seconds, more than 0")
    return number


def noise(value: Any) -> str:
    """A variance, or how to choose one; the words as they are."""
    number = _number(value)
    if value not in ("ml", "loo") and (number is None or number < 0.0):
        raise BadValue(value, "a variance of 0 or more, ml to choose it by likelihood, or loo by leave-one-out")
    return str(value)


def amplitude(value: Any) -> str:
    number = _number(value)
    if value not in ("ml", "loo") and (number is None or number <= 0.0):
        raise BadValue(value, "ml, loo or a positive number")
    return str(value)


def size(value: Any) -> str:
    """A height and a width."""
    parts = re.split(r"[x×,]", str(value).strip())
    if len(parts) > 2 or not _positive(parts):
        raise BadValue(value, "a height and a width such as 48x64, or one number for both")
    return str(value)


def shape(least: int) -> Callable[[Any], str]:
    """Channels, then sizes: at least so many numbers."""

    def parse(value: Any) -> str:
        parts = re.split(r"[,x×]", str(value).strip())
        if not least <= len(parts) <= 4 or not _positive(parts):
            raise BadValue(value, "the channels, then the sizes, such as 1,28,28 for images or 1,128 for signals")
        return str(value)

    return parse


def shape_of(text: str) -> tuple[int, ...]:
    """1,28,28 or 1x28x28 as numbers, after `shape` has seen it."""
    return tuple(int(part) for part in re.split(r"[,x×]", text))


def data(value: Any) -> str:
    """Any source but an empty one: that would be the folder in which the command runs."""
    if not str(value).strip():
        raise BadValue(value, "the name of a data set, an .npz file or a folder of images; this folder itself is .")
    return str(value)


def either(words: Sequence[str]) -> str:
    """
    >>> either(["auto", "cpu", "cuda"])
    'auto, cpu or cuda'
    """
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _positive(parts: Sequence[str]) -> bool:
    return all(part.strip().isdecimal() and int(part) > 0 for part in parts)
