"""Compiles the functions that a plan needs, and puts their addresses into it.

Each is compiled once on a machine and kept on disk by Numba. They are called through addresses: if they called each
other directly, LLVM would optimise and translate the whole call tree again for every function in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiling import callback
from .operations.both import done, relu_maps, relu_totals, windows
from .operations.box import boxes, fill, pointwise, product, relu_map, relu_total
from .operations.window import window
from .plan import (
    A0,
    A1,
    ACT,
    B0,
    B1,
    BOX,
    C0,
    C1,
    COL_K,
    COL_START,
    COL_TAPS,
    DST,
    FILL,
    NO_ACT,
    OP_CALL,
    OWN_TABLE,
    POINTWISE,
    PRODUCT,
    RELU,
    ROW_BEFORE,
    ROW_CALL,
    ROW_K,
    ROW_TAPS,
    ROWS,
    SLOPE,
    SRC,
    TABLE,
    TIMES,
    TOTAL,
    WINDOW,
)
from .rows import PAIR_ROWS, PAIR_SLOPES, SELF_ROWS, SELF_SLOPES, VARIANCE_ROWS, VARIANCE_SLOPES
from .work import signature

_window, _windows = cache(window), cache(windows)
_pair_product, _self_product = product(both=False), product(both=True)
box, relu_box = boxes(relu=False), boxes(relu=True)
_WITHOUT_MAPS = {PRODUCT: _pair_product, FILL: fill}


@cache
def compiled(function: Callable[..., None], dtype: str, is_row: bool) -> Any:
    return callback(function, signature(dtype, is_row))


def _put_addresses(
    ints: NDArray[np.int64],
    dtype: str,
    row: Callable[[NDArray[np.int64]], Callable[..., None]],
    operations: Iterable[Callable[..., None]],
) -> NDArray[np.int64]:
    """A copy of the plan's operations with the addresses of their functions."""
    ints = ints.copy()
    for op, operation in zip(ints, operations, strict=True):
        op[OP_CALL] = compiled(operation, dtype, False).address
        if op[ACT] != NO_ACT:
            op[ROW_CALL] = compiled(row(op), dtype, True).address
    return ints


def pair_calls(ints: NDArray[np.int64], dtype: str) -> NDArray[np.int64]:
    """The plan's operations with the addresses of their functions, for pairs."""

    def operation(op: NDArray[np.int64]) -> Callable[..., None]:
        if op[BOX] == WINDOW:
            return _window(int(op[ROW_K]), int(op[COL_K]))
        if op[BOX] == POINTWISE:
            return relu_map if op[ACT] == RELU else pointwise
        if op[BOX] == TOTAL:
            return relu_total
        return _WITHOUT_MAPS.get(int(op[BOX]), relu_box if op[ACT] == RELU else box)

    operations = [operation(op) for op in ints]
    for i in _pairs(ints):
        both = relu_totals if ints[i + 1, BOX] == TOTAL else relu_maps
        if ints[i, BOX] == WINDOW:
            both = _windows(int(ints[i, ROW_K]), int(ints[i, COL_K]))
        operations[i : i + 2] = both, done
    rows = PAIR_ROWS | PAIR_SLOPES
    return _put_addresses(ints, dtype, lambda op: rows[int(op[ACT])], operations)


# What two operations must agree in to be done at once.
_SAME = [SRC, A0, B0, C0, A1, B1, C1, OWN_TABLE, TABLE, ROW_K, ROW_BEFORE, ROW_TAPS, COL_K, COL_START, COL_TAPS]
# The kinds of sums of a slope and a value that can be done at once. A slope alone has no short way to a total.
_TOGETHER = [(POINTWISE, POINTWISE), (WINDOW, WINDOW), (ROWS, TOTAL)]


def _pairs(ints: NDArray[np.int64]) -> Iterator[int]:
    """The operations with the slope of a ReLU that the next one, with its value, can be done together with."""
    for i in range(len(ints) - 1):
        slope, value = ints[i], ints[i + 1]
        if slope[ACT] != SLOPE + RELU or value[ACT] != RELU or (slope[_SAME] != value[_SAME]).any():
            continue
        read = slope[SRC], slope[SRC] + slope[TIMES]
        apart = slope[DST] != value[DST] and slope[DST] not in read and value[DST] not in read
        if (slope[BOX], value[BOX]) in _TOGETHER and (apart or slope[BOX] == POINTWISE):
            yield i


def variance_calls(ints: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same for images with themselves, always in float64 and in the general way.

    Operations at equal places give the variances and write them into the tables, where the others read them.
    """

    def operation(op: NDArray[np.int64]) -> Callable[..., None]:
        if op[BOX] == PRODUCT:
            return _self_product
        return fill if op[BOX] == FILL else pointwise if op[BOX] == POINTWISE else box

    still, moved = VARIANCE_ROWS | VARIANCE_SLOPES, SELF_ROWS | SELF_SLOPES

    def row(op: NDArray[np.int64]) -> Callable[..., None]:
        return (still if op[OWN_TABLE] == op[TABLE] else moved)[int(op[ACT])]

    return _put_addresses(ints, "float64", row, map(operation, ints))
