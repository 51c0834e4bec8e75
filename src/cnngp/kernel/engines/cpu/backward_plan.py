"""A reversed program as a plan: its backward steps are rows of it too, in columns that they leave free."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import Op, Program
from cnngp.kernel.program.steps import Back, Pixels, Reverse, Total, as_program
from cnngp.kernel.series.packed import Rows

from .machine_code import address, operation, row
from .plan import (
    ACT,
    ADDRESSES,
    BACK_TIMES,
    NO_ACT,
    OP_CALL,
    OWN_SHARES,
    OWN_TABLE,
    ROW_CALL,
    ROW_K,
    ROW_LIST,
    SERIES,
    SHARES,
    SLOT,
    TABLE,
    WRITES,
    CpuPlan,
    make_plan,
)


def known_at(plan: CpuPlan) -> int:
    """Where the frame has the addresses of the sums and of both images' shares: behind those of rows."""
    return ROW_LIST + int(plan.ints[:, ROW_K].max(initial=1))


def reversed_plan(reverse: Reverse, rows: dict[int, Rows]) -> CpuPlan:
    """`rows` says which rows of their series Elementwise layers use, as in `make_plan`."""
    program = reverse.program
    plan = make_plan(as_program(reverse), rows, series_entries=2)
    starts = np.concatenate([[0], np.cumsum(program.buffers)])
    known = known_at(plan)
    for op, step in zip(plan.ints, reverse.steps, strict=True):
        if not isinstance(step, Op):
            op[ADDRESSES] = known
        if isinstance(step, Back | Total):
            op[SLOT] = step.slot
        if isinstance(step, Pixels):
            op[SHARES] = shares_of_variances(program)
        if isinstance(step, Back):
            op[BACK_TIMES], op[WRITES] = starts[step.times], step.dst is not None
            if step.activation is not None:
                plane, pitch = math.prod(step.activation.shape[1:]), step.activation.shape[2]
                for column, (a, b, c) in ((OWN_SHARES, step.first), (SHARES, step.second)):
                    op[column] = step.activation.offset + a * plane + b * pitch + c
    return plan


def shares_of_variances(program: Program) -> int:
    """How many shares an image collects for its variances; the gradients of its pixels stand behind them."""
    return max(1, program.elements)


def with_backs(ints: NDArray[np.int64], reverse: Reverse, dtype: str, of_pairs: bool) -> NDArray[np.int64]:
    """The plan with the addresses of the functions of backward steps."""
    for op, step in zip(ints, reverse.steps, strict=True):
        if isinstance(step, Op):
            if op[ACT] == SERIES and op[OWN_TABLE] == op[TABLE] and not of_pairs:
                op[ROW_CALL] = address(row("back.series.series_variances"), dtype)
            continue
        if isinstance(step, Total):
            function = operation("back.maps.total")
        elif isinstance(step, Pixels):
            function = operation("back.maps.pair_pixels" if of_pairs else "back.maps.self_pixels")
        elif op[ACT] == NO_ACT:
            function = operation("back.maps.dot")
        elif of_pairs:
            function = operation("back.PAIR_BACKS", int(op[ACT]))
        elif op[OWN_TABLE] == op[TABLE]:
            function = operation("back.STILL_BACKS", int(op[ACT]))
        else:
            function = operation("back.SELF_BACKS", int(op[ACT]))
        op[OP_CALL] = address(function, dtype)
    return ints
