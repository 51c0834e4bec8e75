"""Which functions the operations of a plan call, and the plan with their addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from .machine_code import Function, address, operation, row
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

Ints = NDArray[np.int64]

_FILL = operation("operations.box.fill")
_POINTWISE, _RELU_MAP = operation("operations.box.pointwise"), operation("operations.box.relu_map")
_PAIR_PRODUCT, _SELF_PRODUCT = (operation("operations.box.product", both) for both in (False, True))
_BOX, _RELU_BOX = (operation("operations.box.boxes", relu) for relu in (False, True))
_RELU_TOTAL, _RELU_TOTALS = operation("operations.box.relu_total"), operation("operations.both.relu_totals")
_RELU_MAPS, _DONE = operation("operations.both.relu_maps"), operation("operations.both.done")


def pair_calls(ints: Ints, dtype: str) -> Ints:
    """The plan's operations with the addresses of their functions, for pairs."""
    operations = list(map(_pair_operation, ints))
    for i in _pairs(ints):
        both = _RELU_TOTALS if ints[i + 1, BOX] == TOTAL else _RELU_MAPS
        if ints[i, BOX] == WINDOW:
            both = operation("operations.both.windows", int(ints[i, ROW_K]), int(ints[i, COL_K]))
        operations[i : i + 2] = both, _DONE
    return _with_addresses(ints, dtype, operations, lambda op: _row("PAIR", op))


def _pair_operation(op: Ints) -> Function:
    is_relu = op[ACT] == RELU
    if op[BOX] == WINDOW:
        return operation("operations.window.window", int(op[ROW_K]), int(op[COL_K]))
    if op[BOX] == POINTWISE:
        return _RELU_MAP if is_relu else _POINTWISE
    special = {TOTAL: _RELU_TOTAL, PRODUCT: _PAIR_PRODUCT, FILL: _FILL}
    return special.get(int(op[BOX]), _RELU_BOX if is_relu else _BOX)


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


def variance_calls(ints: Ints) -> Ints:
    """The same for images with themselves, always in float64 and in the general way.

    Operations at equal places give the variances and write them into the tables, where the others read them.
    """
    general = {PRODUCT: _SELF_PRODUCT, FILL: _FILL, POINTWISE: _POINTWISE}
    operations = [general.get(int(op[BOX]), _BOX) for op in ints]
    return _with_addresses(
        ints, "float64", operations, lambda op: _row("VARIANCE" if op[OWN_TABLE] == op[TABLE] else "SELF", op)
    )


def _row(table: str, op: Ints) -> Function:
    act = int(op[ACT])
    return row(f"rows.{table}_{'ROWS' if act < SLOPE else 'SLOPES'}", act)


def _with_addresses(ints: Ints, dtype: str, operations: list[Function], row_of: Callable[[Ints], Function]) -> Ints:
    """A copy of the plan's operations with the addresses of their functions."""
    ints = ints.copy()
    for op, function in zip(ints, operations, strict=True):
        op[OP_CALL] = address(function, dtype)
        if op[ACT] != NO_ACT:
            op[ROW_CALL] = address(row_of(op), dtype)
    return ints
