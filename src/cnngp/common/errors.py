"""Exception classes and checks of numbers. A message is one line: what was found, what was expected, what to do."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard


class DatasetError(ValueError):
    """Error for a data set that is missing, broken or of another kind than requested."""


class ModelFileError(ValueError):
    """Error for a saved model that cannot be read or trusted."""


class StoreError(ValueError):
    """Error for a kernel-matrix store that cannot be used: made for another matrix, damaged, full or not writable."""


def one_line(error: object) -> str:
    """Return the message of an error as one line, or the name of its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def is_number(value: object, least: float) -> TypeGuard[float]:
    """Return True if `value` is a finite real number of at least `least`.

    >>> is_number(0.5, least=0.0), is_number(True, least=0.0), is_number(float("nan"), least=0.0)
    (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, Real):  # NumPy registers its scalars as Real
        return False
    return math.isfinite(value) and float(value) >= least


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Return True if `value` is an integer of at least `least`.

    >>> is_whole(3, least=1), is_whole(3.0, least=1), is_whole(True, least=1)
    (True, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
