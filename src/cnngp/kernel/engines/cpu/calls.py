"""Which functions the operations of a plan call, and the plan with their addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import columns as col
from .machine_code import Function, address
from .plan import Ints


def pair_calls(ints: Ints, dtype: str) -> Ints:
    """The plan's operations with the addresses of their functions, for pairs."""
    operations = [_operation(op, True) for op in ints]
    for i in _done_together(ints):
        slope, value = ints[i], ints[i + 1]
        together = _function("relu.relu_total", True) if value[col.BOX] == col.TOTAL else _function("relu.relu_maps")
        if slope[col.BOX] == col.WINDOW:
            together = _function("window.windows", slope[col.ROW_K], slope[col.COL_K])
        operations[i : i + 2] = together, _function("relu.done")
    rows = [None if op[col.ACT] == col.RELU else _row(op, False) for op in ints]  # the ReLU is part of operations
    return _with_addresses(ints, dtype, operations, rows)


def variance_calls(ints: Ints) -> Ints:
    """The same for images with themselves, always in float64 and in the general way.

    Operations at equal places give the variances and write them into the tables, where the others read them.
    """
    gradient = bool((ints[:, col.BOX] >= col.BACK).any())
    rows = []
    for op in ints:
        code = op[col.ACT] % col.SLOPE
        if op[col.OWN_TABLE] != op[col.TABLE]:
            rows.append(_row(op, True))
        elif op[col.ACT] < col.SLOPE:
            rows.append(Function("row", "rows.forms.variance_row", (int(code), gradient)))
        else:
            rows.append(Function("row", "rows.forms.variance_slope_row", (int(code),)))
    return _with_addresses(ints, "float64", [_operation(op, False) for op in ints], rows)


def _function(name: str, *numbers: int) -> Function:
    return Function("operation", f"operations.{name}", tuple(map(int, numbers)))


def _row(op: Ints, both: bool) -> Function:
    name = "value_row" if op[col.ACT] < col.SLOPE else "slope_row"
    return Function("row", f"rows.forms.{name}", (int(op[col.ACT]) % col.SLOPE, both))


def _operation(op: Ints, pairs: bool) -> Function:
    act, is_relu = int(op[col.ACT]), pairs and op[col.ACT] == col.RELU
    match int(op[col.BOX]):
        case col.FILL:
            return _function("box.fill")
        case col.PRODUCT:
            return _function("box.product", not pairs)
        case col.POINTWISE:
            return _function("relu.relu_map" if is_relu else "box.pointwise")
        case col.TOTAL if pairs:
            return _function("relu.relu_total", False)
        case col.WINDOW if pairs:
            return _function("window.window", op[col.ROW_K], op[col.COL_K])
        case col.SUM:
            return _function("backward.total")
        case col.TO_PIXELS:
            return _function("backward.pixels", not pairs)
        case col.BACK if act == col.NO_ACT:
            return _function("backward.dot")
        case col.BACK if pairs or op[col.OWN_TABLE] != op[col.TABLE]:
            return _function("backward.back", act, not pairs)
        case col.BACK:
            return _function("backward.still", act)
        case _:
            return _function("box.boxes", is_relu)


# What two operations must agree in to be done at once.
_SAME = [
    *(col.SRC, col.A0, col.B0, col.C0, col.A1, col.B1, col.C1, col.OWN_TABLE, col.TABLE),
    *(col.ROW_K, col.ROW_BEFORE, col.ROW_TAPS, col.COL_K, col.COL_START, col.COL_TAPS),
]
# The kinds of sums of a slope and a value that can be done at once. A slope alone has no short way to a total.
_TOGETHER = [(col.POINTWISE, col.POINTWISE), (col.WINDOW, col.WINDOW), (col.ROWS, col.TOTAL)]


def _done_together(ints: Ints) -> Iterator[int]:
    """The operations with the slope of a ReLU that the next one, with its value, can be done together with."""
    for i in range(len(ints) - 1):
        slope, value = ints[i], ints[i + 1]
        if slope[col.ACT] != col.SLOPE + col.RELU or value[col.ACT] != col.RELU or (slope[_SAME] != value[_SAME]).any():
            continue
        read = slope[col.SRC], slope[col.SRC] + slope[col.TIMES]
        apart = slope[col.DST] != value[col.DST] and slope[col.DST] not in read and value[col.DST] not in read
        if (slope[col.BOX], value[col.BOX]) in _TOGETHER and (apart or slope[col.BOX] == col.POINTWISE):
            yield i


def _with_addresses(ints: Ints, dtype: str, operations: list[Function], rows: Sequence[Function | None]) -> Ints:
    """A copy of the plan's operations with the addresses of their functions."""
    ints = ints.copy()
    for op, function, row in zip(ints, operations, rows, strict=True):
        op[col.OP_CALL] = address(function, dtype)
        if row is not None and op[col.ACT] != col.NO_ACT and op[col.BOX] < col.BACK:
            op[col.ROW_CALL] = address(row, dtype)
    return ints
