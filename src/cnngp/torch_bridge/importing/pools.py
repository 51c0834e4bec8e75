"""What PyTorch's average pools become: `AvgPool` and `GlobalAvgPool`, or a refusal where no window is the same."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from cnngp.network.layers import AvgPool

from .fold import compact
from .graph import Mean
from .trace import Value
from .verdicts import Arguments, Becomes, No, Passes, Verdict

MAXIMUM = (
    "the maximum of several locations is not Gaussian and its covariance has no closed form here; "
    "use the average, nn.AvgPool2d, which becomes AvgPool, or a convolution with stride"
)


def average(axes: int, given: Arguments, before: Value, after: Value) -> Verdict:
    """`F.avg_pool2d` and its kin."""
    size, stride, padding = (given.take(i, n) for i, n in enumerate(("kernel_size", "stride", "padding"), start=1))
    ceil_mode, count_include_pad = given.take(4, "ceil_mode", False), given.take(5, "count_include_pad", True)
    divisor = given.take(6, "divisor_override")
    if before.ndim != 2 + axes:
        return No(_wrong_axes(axes, before))
    k, p = _spread(size, axes), _spread(padding or 0, axes)
    s = k if stride is None or stride == () else _spread(stride, axes)
    if divisor is not None and divisor != math.prod(k):
        return No(
            f"divisor_override={divisor} is not the number of locations in the window, {math.prod(k)}; leave it out "
            "and multiply by a constant"
        )
    if ceil_mode:
        whole = [(n + 2 * q - w) // step + 1 for n, w, step, q in zip(before.shape[2:], k, s, p, strict=True)]
        if whole != list(after.shape[2:]):
            return No("ceil_mode=True makes windows at the end that are cut off; use ceil_mode=False, or other sizes")
    if count_include_pad is False and divisor is not None and any(p):
        count_include_pad = True  # torch divides every window by the divisor then
    counted = bool(count_include_pad) or not any(p)
    return Becomes(AvgPool(compact(k), None if s == k else compact(s), compact(p), counted))


def adaptive(axes: int, before: Value, after: Value) -> Verdict:
    """Window i of n out of m locations goes from ⌊i·m/n⌋ to ⌈(i+1)·m/n⌉; a pool if they are alike."""
    if before.ndim != 2 + axes:
        return No(_wrong_axes(axes, before))
    sizes, outs = before.shape[2:], after.shape[2:]
    if sizes == outs:
        return Passes()  # every location is its own average
    if set(outs) == {1}:
        return Becomes(Mean(sizes))
    windows = [_window(m, n) for m, n in zip(sizes, outs, strict=True)]
    if None in windows:
        return No(
            f"its windows differ in size where {' × '.join(map(str, sizes))} locations become "
            f"{' × '.join(map(str, outs))}; use sizes that divide the map, or nn.AvgPool{axes}d"
        )
    k, s = zip(*(w for w in windows if w is not None), strict=True)
    return Becomes(AvgPool(compact(k), None if s == k else compact(s)))


def mean(dims: Any, keepdim: bool, before: Value) -> Verdict:
    """`x.mean((2, 3))`: the mean over all locations, or over whole axes if they are kept."""
    if dims is None or before.ndim < 3:
        return No("it averages over images or channels; average over the locations, x.mean((2, 3))")
    axes = sorted(d % before.ndim for d in (dims if isinstance(dims, list | tuple) else [dims]))
    sizes = before.shape[2:]
    if not axes or axes[0] < 2:
        return No("it averages over images or channels; average over the locations, x.mean((2, 3))")
    if len(axes) == len(sizes):
        return Becomes(Mean(sizes))
    if not keepdim:
        return No("it averages over some of the axes only and drops them; average over all, or use keepdim=True")
    return Becomes(AvgPool(tuple(m if a + 2 in axes else 1 for a, m in enumerate(sizes))))


def _window(m: int, n: int) -> tuple[int, int] | None:
    """(size, stride) of the n equal windows that adaptive pooling lays over m locations, or None."""
    starts = [i * m // n for i in range(n)]
    lengths = {-(-(i + 1) * m // n) - start for i, start in enumerate(starts)}
    steps = {b - a for a, b in pairwise(starts)} or {m}
    if len(lengths) > 1 or len(steps) > 1 or 0 in steps:
        return None
    return lengths.pop(), steps.pop()


def _spread(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * axes if len(values) == 1 else values


def _wrong_axes(axes: int, before: Value) -> str:
    return f"its input has {before.ndim - 2} spatial axes, not {axes}"
