"""Compiles the functions that a plan needs, and puts their addresses into it.

Each is compiled once on a machine and kept on disk by Numba. They are called through addresses: if they called each
other directly, LLVM would optimise and translate the whole call tree again for every function in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from .box import box, pointwise, relu_map
from .plan import ACT, BOX, COL_K, NO_ACT, OP_CALL, POINTWISE, RELU, ROW_CALL, ROW_K, WINDOW
from .rows import PAIR_ROWS, VARIANCE_ROWS
from .window import window

# Compiled with the first function that a machine has not compiled yet, so that later networks find them ready.
COMMON_WINDOWS = (3, 5, 7)

_window = cache(window)


@cache
def _compiled(function: Callable[..., None], dtype: str, is_row: bool) -> Any:
    real, whole = types.CPointer(getattr(types, dtype)), types.CPointer(types.int64)
    double, i = types.CPointer(types.float64), types.intp
    if is_row:
        signature = types.void(real, i, i, i, real, i, real, i, whole, double, whole, double)
    else:
        signature = types.void(real, real, real, whole, double, whole, double, whole)
    return numba.cfunc(signature, cache=True, error_model="numpy")(function)


def _put_addresses(
    ints: NDArray[np.int64],
    dtype: str,
    rows: dict[int, Callable[..., None]],
    operation: Callable[[NDArray[np.int64]], Callable[..., None]],
    common: list[Callable[..., None]],
) -> NDArray[np.int64]:
    """A copy of the plan's operations with the addresses of their functions."""
    ints = ints.copy()
    used = []
    for op in ints:
        f = _compiled(operation(op), dtype, False)
        op[OP_CALL] = f.address
        used.append(f)
        if op[ACT] != NO_ACT:
            f = _compiled(rows[int(op[ACT])], dtype, True)
            op[ROW_CALL] = f.address
            used.append(f)
    if any(f.cache_hits == 0 for f in used):
        for row in rows.values():
            _compiled(row, dtype, True)
        for f in common:
            _compiled(f, dtype, False)
    return ints


def pair_calls(ints: NDArray[np.int64], dtype: str) -> NDArray[np.int64]:
    """The plan's operations with the addresses of their functions, for pairs."""

    def operation(op: NDArray[np.int64]) -> Callable[..., None]:
        if op[BOX] == WINDOW:
            return _window(int(op[ROW_K]), int(op[COL_K]))
        if op[BOX] == POINTWISE:
            return relu_map if op[ACT] == RELU else pointwise
        return box

    common = [box, pointwise, relu_map, *(_window(k, k) for k in COMMON_WINDOWS)]
    return _put_addresses(ints, dtype, PAIR_ROWS, operation, common)


def variance_calls(ints: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same for the variance recursion, which is always in float64 and takes the general way."""

    def operation(op: NDArray[np.int64]) -> Callable[..., None]:
        return pointwise if op[BOX] == POINTWISE else box

    return _put_addresses(ints, "float64", VARIANCE_ROWS, operation, [box, pointwise])
