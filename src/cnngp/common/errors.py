"""Errors, each one line that says what was found, what was expected and what to do; and the checks of numbers."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard


class DatasetError(ValueError):
    """Data that is missing, broken or not what was asked for."""


class ModelFileError(ValueError):
    """A saved model that cannot be trusted or read."""


class StoreError(ValueError):
    """A store of kernel matrices that cannot be used as asked: of something else, damaged, full or not writable."""


def one_line(error: object) -> str:
    """What an error says, in one line; the name of its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def is_number(value: object, least: float) -> TypeGuard[float]:
    """Whether it is one finite number of this size or more.

    >>> is_number(0.5, least=0.0), is_number(True, least=0.0), is_number(float("nan"), least=0.0)
    (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, Real):  # NumPy's numbers are registered there
        return False
    return math.isfinite(value) and float(value) >= least


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether it is one whole number of this size or more.

    >>> is_whole(3, least=1), is_whole(3.0, least=1), is_whole(True, least=1)
    (True, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
