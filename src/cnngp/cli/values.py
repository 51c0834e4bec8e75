"""What the values of options may be. Each is checked while the command line is read, before any file is.

A parser takes the words of the user and returns what they stand for; what it refuses is one line that begins with the
option: `--learn foo: expected loo or likelihood`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import click

Parser = Callable[[str], Any]


class BadValue(click.BadParameter):
    """A value that an option does not take. Click adds which option it was."""

    def __init__(self, value: str, expected: str) -> None:
        super().__init__(f"{value or repr('')}: expected {expected}")

    def format_message(self) -> str:
        return self.message if self.param is None else f"{max(self.param.opts, key=len)} {self.message}"


def choice(*words: str) -> Parser:
    """One of these words."""

    def parse(value: str) -> str:
        if value not in words:
            raise BadValue(value, f"{', '.join(words[:-1])} or {words[-1]}")
        return value

    return parse


def number(expected: str, allowed: Callable[[Any], bool], *words: str, kind: type = float) -> Parser:
    """A finite number of this kind that is allowed, or one of some words."""

    def parse(value: str) -> Any:
        if value in words:
            return value
        try:
            found = kind(value)
        except ValueError:
            found = math.nan
        if not (math.isfinite(found) and allowed(found)):
            raise BadValue(value, expected)
        return found

    return parse


def whole(least: int) -> Parser:
    """A whole number of at least this."""
    return number(f"a whole number of {least} or more", lambda n: n >= least, kind=int)


def shape(least: int, most: int, expected: str) -> Parser:
    """So many positive whole numbers, with commas or crosses between them."""

    def parse(value: str) -> tuple[int, ...]:
        parts = re.split(r"[,x×]", value.strip())
        if not (least <= len(parts) <= most and all(p.strip().isdecimal() and int(p) > 0 for p in parts)):
            raise BadValue(value, expected)
        return tuple(map(int, parts))

    return parse


def data(value: str) -> str:
    """Any source but an empty one: that would be the folder in which the command runs."""
    if not value.strip():
        raise BadValue(value, "the name of a data set, an .npz file or a folder of images; this folder itself is .")
    return value
