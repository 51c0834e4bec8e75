"""Compiles the functions that a plan needs, and puts their addresses into it.

Each is compiled once on a machine and kept on disk by Numba. They are called through addresses: if they called each
other directly, LLVM would optimise and translate the whole call tree again for every function in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from .box import box, fill, pointwise, product, relu_map
from .plan import (
    ACT,
    BOX,
    COL_K,
    COMMON_WINDOWS,
    FILL,
    NO_ACT,
    OP_CALL,
    OWN_TABLE,
    POINTWISE,
    PRODUCT,
    RELU,
    ROW_CALL,
    ROW_K,
    TABLE,
    WINDOW,
)
from .rows import PAIR_ROWS, SELF_ROWS, VARIANCE_ROWS
from .window import window

_window = cache(window)
_pair_product, _self_product = product(both=False), product(both=True)
_WITHOUT_MAPS = {PRODUCT: _pair_product, FILL: fill}


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
    row: Callable[[NDArray[np.int64]], Callable[..., None]],
    operation: Callable[[NDArray[np.int64]], Callable[..., None]],
    common_rows: Iterable[Callable[..., None]],
    common: list[Callable[..., None]],
) -> NDArray[np.int64]:
    """A copy of the plan's operations with the addresses of their functions."""
    ints = ints.copy()
    used = set()
    for op in ints:
        f = _compiled(operation(op), dtype, False)
        op[OP_CALL] = f.address
        used.add(f)
        if op[ACT] != NO_ACT:
            f = _compiled(row(op), dtype, True)
            op[ROW_CALL] = f.address
            used.add(f)
    if any(f.cache_hits == 0 for f in used):
        for function in common_rows:
            _compiled(function, dtype, True)
        for function in common:
            _compiled(function, dtype, False)
    return ints


def pair_calls(ints: NDArray[np.int64], dtype: str) -> NDArray[np.int64]:
    """The plan's operations with the addresses of their functions, for pairs."""

    def operation(op: NDArray[np.int64]) -> Callable[..., None]:
        if op[BOX] == WINDOW:
            return _window(int(op[ROW_K]), int(op[COL_K]))
        if op[BOX] == POINTWISE:
            return relu_map if op[ACT] == RELU else pointwise
        return _WITHOUT_MAPS.get(int(op[BOX]), box)

    common = [box, pointwise, relu_map, *(_window(k, k) for k in COMMON_WINDOWS)]
    return _put_addresses(ints, dtype, lambda op: PAIR_ROWS[int(op[ACT])], operation, PAIR_ROWS.values(), common)


def variance_calls(ints: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same for images with themselves, always in float64 and in the general way.

    Operations at equal places give the variances and write them into the tables, where the others read them.
    """

    def operation(op: NDArray[np.int64]) -> Callable[..., None]:
        if op[BOX] == PRODUCT:
            return _self_product
        return fill if op[BOX] == FILL else pointwise if op[BOX] == POINTWISE else box

    def row(op: NDArray[np.int64]) -> Callable[..., None]:
        return (VARIANCE_ROWS if op[OWN_TABLE] == op[TABLE] else SELF_ROWS)[int(op[ACT])]

    return _put_addresses(ints, "float64", row, operation, VARIANCE_ROWS.values(), [box, pointwise])
