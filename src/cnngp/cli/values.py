"""What the values of options may be. Each is checked while the command line is read, before any file is.

A parser takes the words of the user and returns what they stand for; what it refuses is one line that begins with the
option: `--learn foo: expected loo or likelihood`.
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
            raise BadValue(value, f"{', '.join(words[:-1])} or {words[-1]}")
        return value

    return parse


def whole(least: int) -> Callable[[Any], int]:
    """A whole number of at least this."""

    def parse(value: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise BadValue(value, f"a whole number of {least} or more")
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
    return _number(value, lambda number: number > 0.0, "a positive number of seconds")


def share(value: Any) -> float:
    """Between none and all."""
    return _number(value, lambda number: 0.0 < number < 1.0, "a share between 0 and 1, such as 0.9")


def noise(value: Any) -> float | str:
    """A variance, or how to choose one."""
    expected = "a variance of 0 or more, ml to choose it by likelihood, or loo by leave-one-out"
    return str(value) if value in ("ml", "loo") else _number(value, lambda number: number >= 0.0, expected)


def amplitude(value: Any) -> float | str:
    """A factor, or how to choose one."""
    return str(value) if value in ("ml", "loo") else _number(value, lambda n: n > 0.0, "ml, loo or a positive number")


def size(value: Any) -> str:
    """A height and a width, as they are written."""
    parts = re.split(r"[x×,]", str(value).strip())
    if len(parts) > 2 or not _positive(parts):
        raise BadValue(value, "a height and a width such as 48x64, or one number for both")
    return str(value)


def shape(least: int) -> Callable[[Any], tuple[int, ...]]:
    """Channels, then sizes: at least so many numbers."""

    def parse(value: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):  # the default
            return value
        parts = re.split(r"[,x×]", str(value).strip())
        if not least <= len(parts) <= 4 or not _positive(parts):
            raise BadValue(value, "the channels, then the sizes, such as 1,28,28 for images or 1,128 for signals")
        return tuple(map(int, parts))

    return parse


def data(value: Any) -> str:
    """Any source but an empty one: that would be the folder in which the command runs."""
    if not str(value).strip():
        raise BadValue(value, "the name of a data set, an .npz file or a folder of images; this folder itself is .")
    return str(value)


def words(value: Any) -> str:
    """A value as it is given on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _number(value: Any, allowed: Callable[[float], bool], expected: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and allowed(number)):
        raise BadValue(value, expected)
    return number


def _positive(parts: Sequence[str]) -> bool:
    return all(part.strip().isdecimal() and int(part) > 0 for part in parts)
