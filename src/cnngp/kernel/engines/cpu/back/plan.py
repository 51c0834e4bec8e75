"""A reversed program as a plan: the steps of the way back are rows of it too, in columns that they leave free."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import Op, Program
from cnngp.kernel.program.steps import Back, Pixels, Reverse, Total, as_program
from cnngp.kernel.series.packed import Rows

from ..calls import compiled
from ..plan import ACT, NO_ACT, OP_CALL, OWN_TABLE, ROW_CALL, ROW_K, ROW_LIST, SERIES, TABLE, CpuPlan, make_plan
from .maps import (
    ADDRESSES,
    OWN_SHARES,
    PAIR_BACKS,
    SELF_BACKS,
    SHARES,
    SLOT,
    TIMES,
    WRITES,
    dot,
    pair_pixels,
    self_pixels,
    still,
    total,
)
from .series import series_back, series_still, series_variances

_pair_backs = PAIR_BACKS | {SERIES: series_back(both=False)}
_self_backs = SELF_BACKS | {SERIES: series_back(both=True)}


def known_at(plan: CpuPlan) -> int:
    """Where the frame has the addresses of the sums and of both images' shares: behind those of rows."""
    return ROW_LIST + int(plan.ints[:, ROW_K].max(initial=1))


def reversed_plan(reverse: Reverse, rows: dict[int, Rows]) -> CpuPlan:
    """`rows` says which rows of their series Elementwise layers use, as in `make_plan`."""
    program = reverse.program
    plan = make_plan(as_program(reverse), rows, series_entries=2)
    starts = np.concatenate([[0], np.cumsum(program.buffers)])
    known = known_at(plan)
    for row, step in zip(plan.ints, reverse.steps, strict=True):
        if not isinstance(step, Op):
            row[ADDRESSES] = known
        if isinstance(step, Back | Total):
            row[SLOT] = step.slot
        if isinstance(step, Pixels):
            row[SHARES] = shares_of_variances(program)
        if isinstance(step, Back):
            row[TIMES], row[WRITES] = starts[step.times], step.dst is not None
            if step.activation is not None:
                plane, pitch = math.prod(step.activation.shape[1:]), step.activation.shape[2]
                for column, (a, b, c) in ((OWN_SHARES, step.first), (SHARES, step.second)):
                    row[column] = step.activation.offset + a * plane + b * pitch + c
    return plan


def shares_of_variances(program: Program) -> int:
    """How many shares an image collects for its variances; the gradients of its pixels stand behind them."""
    return max(1, program.elements)


def with_backs(ints: NDArray[np.int64], reverse: Reverse, dtype: str, of_pairs: bool) -> NDArray[np.int64]:
    """The operations of the way back get the addresses of their functions."""
    for row, step in zip(ints, reverse.steps, strict=True):
        function: Callable[..., None]
        if isinstance(step, Total):
            function = total
        elif isinstance(step, Pixels):
            function = pair_pixels if of_pairs else self_pixels
        elif not isinstance(step, Back):
            if row[ACT] == SERIES and row[OWN_TABLE] == row[TABLE] and not of_pairs:
                row[ROW_CALL] = compiled(series_variances, dtype, True).address
            continue
        elif row[ACT] == NO_ACT:
            function = dot
        elif of_pairs:
            function = _pair_backs[int(row[ACT])]
        elif row[OWN_TABLE] == row[TABLE]:
            function = series_still if row[ACT] == SERIES else still
        else:
            function = _self_backs[int(row[ACT])]
        row[OP_CALL] = compiled(function, dtype, False).address
    return ints
