"""A systematic sweep of single layers: every combination of arguments along an axis, on every axis, on small images.

Many layers are tried at once: they are the branches of one wide sum, each behind and before a nonlinearity and with a
weight of its own, so a wrong place in any of them moves the result, and in float64 by far more than rounding does.
`tests/kernel/test_geometries.py` runs it on the CPU engine and through the CUDA source run as C++; on a card with
`-m gpu`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cnngp import Abs, Conv, ConvTranspose, Dense, Erf, LeakyReLU, ReLU, Sequential, Sum
from cnngp.network import Network
from cnngp.network.geometry import PaddingMode, SizeError, Window

Layer = Conv | ConvTranspose
Spatial = tuple[int, ...]
KINDS = ("zeros", "circular", "reflect", "replicate", "transposed")
SHAPES = {
    1: [(1,), (2,), (6,), (9,), (40,)],
    2: [(1, 1), (1, 6), (6, 1), (2, 3), (6, 6), (9, 8), (2, 28), (3, 37)],
    3: [(1, 1, 1), (1, 3, 2), (2, 1, 3), (3, 2, 1), (3, 3, 3)],
}


@dataclass(frozen=True)
class Axis:
    """A layer's arguments along one axis; `extra` is the output padding of a transposed one."""

    kernel: int
    stride: int
    dilation: int
    padding: tuple[int, int]
    extra: int = 0


def layer_of(kind: str, axes: Sequence[Axis], weight_var: float, bias_var: float) -> Layer:
    kernel, stride, dilation, padding, extra = (
        tuple(values)
        for values in zip(*((a.kernel, a.stride, a.dilation, a.padding, a.extra) for a in axes), strict=True)
    )
    if kind == "transposed":
        return ConvTranspose(kernel, stride, padding, dilation, weight_var, bias_var, output_padding=extra)
    return Conv(kernel, stride, padding, dilation, weight_var, bias_var, padding_mode=_mode(kind))


def _mode(kind: str) -> PaddingMode:
    return "zeros" if kind == "transposed" else kind  # type: ignore[return-value]


def _out_size(kind: str, window: Window, size: int, extra: int) -> int:
    """How many places come out; 0 where the layer does not fit."""
    if kind == "transposed":
        return (size - 1) * window.stride - window.before - window.after + window.reach + extra
    try:
        return window.output_size(size)
    except SizeError:
        return 0


@cache
def axis_arguments(kind: str, size: int, longest: int) -> tuple[Axis, ...]:
    """All arguments along an axis of that size: padding none to far beyond "same", filters wider than the axis."""
    found = []
    for kernel, dilation in itertools.product(sorted({1, 2, 3, 5, size, size + 1}), (1, 2, 3)):
        reach = dilation * (kernel - 1)
        pads = sorted({0, 1, reach // 2, reach, reach + 1, 2 * reach + 3})
        for stride, before, after in itertools.product((1, 2, kernel + 1), pads, pads):
            for extra in range(max(stride, dilation)) if kind == "transposed" else (0,):
                out = _out_size(kind, Window(kernel, stride, dilation, before, after, _mode(kind)), size, extra)
                if 1 <= out <= longest:
                    found.append(Axis(kernel, stride, dilation, (before, after), extra))
    return tuple(found)


def layers(spatial: Spatial, rng: np.random.Generator, count: int | None, longest: Spatial = ()) -> list[Layer]:
    """Layers on images of that shape, twice `count` of each kind.

    None: until every argument along every axis was there. Outputs are at most `longest` places long along each axis, a
    little longer than the input where that is not given.
    """
    made: list[Layer] = []
    for kind in KINDS:
        ends = longest or tuple(max(32, n + 8) for n in spatial)
        lists = [axis_arguments(kind, n, end) for n, end in zip(spatial, ends, strict=True)]
        # Engines have fast ways for windows that move by one place along all axes. Drawn one axis at a time they would
        # hardly ever come up, so they are every other layer.
        neighbours = [[a for a in each if a.stride == a.dilation == 1] for each in lists]
        for some in (lists, neighbours):
            most = min(map(len, some)) and (count or max(map(len, some)))
            columns = [[each[int(i)] for i in _order(rng, len(each), most)] for each in some]
            made += [
                layer_of(kind, axes, float(rng.uniform(0.5, 2.0)), float(rng.choice([0.0, 0.3])))
                for axes in zip(*columns, strict=True)
            ]
    return [made[int(i)] for i in rng.permutation(len(made))]


def _order(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """`count` of 0 … n − 1 in random order: all of them before any comes again."""
    return np.concatenate([rng.permutation(n) for _ in range(-(-count // max(n, 1)))] or [[]])[:count]


BEFORE: tuple[Network | None, ...] = (None, ReLU(), Abs(), Erf())


def wide_sum(branches: Sequence[Layer], acts: Sequence[Network | None] = BEFORE) -> Network:
    """One network of many layers: Σ_i w_i · mean(ReLU-like(layer_i(f_i(·))))."""
    made = []
    for i, layer in enumerate(branches):
        f = acts[i % len(acts)]
        made.append(Sequential(*([] if f is None else [f]), layer, LeakyReLU(0.2), Dense(1.0 + 0.37 * (i % 7))))
    return Sequential(Conv(1), Sum(*made))


def sweep(
    shapes: Sequence[Spatial], count: int | None, batch: int, longest: Spatial = (), seed: int = 0
) -> Iterator[tuple[Network, tuple[int, ...]]]:
    """Wide sums of at most `batch` layers with the shape of their images; `count` and `longest` as in `layers`."""
    rng = np.random.default_rng(seed)
    for spatial in shapes:
        found = layers(spatial, rng, count, longest)
        for i in range(0, len(found), batch):
            yield wide_sum(found[i : i + batch]), (2, *spatial)


def parts(net: Network) -> Iterator[Network]:
    """The layers of a wide sum, each as a network of its own, to find the one that is wrong."""
    assert isinstance(net, Sequential)
    total = net.layers[1]
    assert isinstance(total, Sum)
    return (Sequential(net.layers[0], branch) for branch in total.branches)
