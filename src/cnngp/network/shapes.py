"""Networks meet sizes: the geometry of each layer for one input shape, and the table a person reads."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from .composition import at, check_network, child
from .geometry import AxisSum, SizeError, Window, convolved, total, transposed
from .layers import (
    GELU,
    Abs,
    Conv,
    Convolution,
    ConvTranspose,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    Layer,
    LeakyReLU,
    Network,
    NetworkError,
    Nonlinearity,
    PerAxis,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
    as_layer,
)

Spatial = tuple[int, ...]


def check_input_shape(input_shape: Sequence[int]) -> tuple[int, Spatial]:
    """(channels, spatial shape) of (C,), (C, L), (C, H, W) or (C, D, H, W)."""
    try:
        shape = tuple(operator.index(n) for n in input_shape)
    except TypeError:
        shape = ()
    if not 1 <= len(shape) <= 4 or min(shape) < 1:
        raise NetworkError(
            f"input_shape={input_shape!r}: expected positive integers (channels, height, width), or (features,), "
            "(channels, length) or (channels, depth, height, width)"
        )
    return shape[0], shape[1:]


def windows(layer: Convolution, axes: int, place: str) -> tuple[Window, ...]:
    """The layer's window along each of the input's axes."""
    if axes == 0:
        raise NetworkError(at(place, f"{layer!r} needs spatial axes, but its input has one location; use Dense()"))

    def spread(name: str, value: PerAxis) -> tuple[int, ...]:
        values = value if isinstance(value, tuple) else (value,) * axes
        if len(values) != axes:
            raise NetworkError(
                at(place, f"{layer!r} has {name}={value!r} for {len(values)} axes, but its input has {axes}")
            )
        return values

    kernel = spread("kernel_size", layer.kernel_size)
    stride = spread("stride", layer.stride)
    dilation = spread("dilation", layer.dilation)
    match layer.padding:
        case "same":
            reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
            pads = [(r // 2, r - r // 2) for r in reach]
        case "valid":
            pads = [(0, 0)] * axes
        case int(p):
            pads = [(p, p)] * axes
        case entries:
            if len(entries) != axes:
                raise NetworkError(
                    at(place, f"{layer!r} has padding for {len(entries)} axes, but its input has {axes}")
                )
            pads = [(p, p) if isinstance(p, int) else p for p in entries]
    return tuple(
        Window(k, s, d, before, after, layer.padding_mode)
        for k, s, d, (before, after) in zip(kernel, stride, dilation, pads, strict=True)
    )


def axis_sums(layer: Conv | ConvTranspose | Dense, spatial: Spatial, place: str) -> tuple[AxisSum, ...]:
    """What the layer sums along each axis of its input. The output shape is the sums' output sizes."""
    match layer:
        case Dense():
            return tuple(map(total, spatial))
        case Conv():
            sums = []
            for axis, (window, size) in enumerate(zip(windows(layer, len(spatial), place), spatial, strict=True)):
                try:
                    sums.append(convolved(window, size))
                except SizeError as error:
                    raise NetworkError(at(place, f"{layer!r} on {shape_text(spatial)}: axis {axis}: {error}")) from None
            return tuple(sums)
        case ConvTranspose():
            return _transposed_sums(layer, spatial, place)
        case _:
            assert_never(layer)


def _transposed_sums(layer: ConvTranspose, spatial: Spatial, place: str) -> tuple[AxisSum, ...]:
    extra = layer.output_padding if isinstance(layer.output_padding, tuple) else (layer.output_padding,) * len(spatial)
    sums = []
    for axis, (w, size) in enumerate(zip(windows(layer, len(spatial), place), spatial, strict=True)):
        here = at(place, f"{layer!r} on {shape_text(spatial)}: axis {axis}")
        if len(extra) != len(spatial):
            raise NetworkError(
                f"{here}: output_padding={extra} for {len(extra)} axes, but its input has {len(spatial)}"
            )
        if extra[axis] and extra[axis] >= max(w.stride, w.dilation):
            raise NetworkError(
                f"{here}: output_padding={extra[axis]} must be smaller than the stride or the dilation "
                f"({max(w.stride, w.dilation)})"
            )
        if layer.padding == "same":
            out = size * w.stride
        else:
            out = (size - 1) * w.stride - w.before - w.after + w.reach + extra[axis]
        if out < 1:
            raise NetworkError(f"{here}: the output would have {out} locations; use less padding or larger images")
        try:
            sums.append(transposed(w, size, out))
        except SizeError as error:
            raise NetworkError(f"{here}: {error}") from None
    return tuple(sums)


def filter_size(layer: Convolution, axes: int) -> int:
    """The number of filter elements per channel."""
    k = layer.kernel_size
    return math.prod(k) if isinstance(k, tuple) else k**axes


def sum_scale(layer: Conv | ConvTranspose | Dense, spatial: Spatial) -> float:
    """What the sum over locations is multiplied by: weight_var · s, or weight_var / locations for `Dense`."""
    match layer:
        case Dense():
            return layer.weight_var / math.prod(spatial)
        case Conv() | ConvTranspose():
            patch = filter_size(layer, len(spatial)) if layer.fan_in == "patch" else 1
            return layer.weight_var / patch
        case _:
            assert_never(layer)


def output_spatial(layer: Conv | ConvTranspose | Dense, sums: tuple[AxisSum, ...]) -> Spatial:
    return () if isinstance(layer, Dense) else tuple(s.out_size for s in sums)


def shape_text(spatial: Spatial) -> str:
    return " × ".join(map(str, spatial)) if spatial else "1"


# Rough operation counts of the pair formulas, for the table only; additions and multiplications count one each.
def _nonlinearity_cost(layer: Nonlinearity) -> int:
    match layer:
        case ReLU() | LeakyReLU() | Abs() | Step():
            return 15
        case Erf() | Sin() | Cos():
            return 25
        case GELU():
            return 40
        case Elementwise():
            return 100
        case _:
            assert_never(layer)


@dataclass(frozen=True)
class ShapeRow:
    place: str
    layer: str
    output: Spatial
    cost: int


@dataclass(frozen=True)
class ShapeTable:
    """Rows of (place, layer, output shape, operations per pair of images); prints as a table."""

    channels: int
    rows: tuple[ShapeRow, ...]

    @property
    def output(self) -> Spatial:
        return self.rows[-1].output

    @property
    def cost(self) -> int:
        return sum(row.cost for row in self.rows)

    def __iter__(self) -> Iterator[ShapeRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [(r.place, r.layer, shape_text(r.output), f"{r.cost:,}") for r in self.rows]
        cells = [("place", "layer", "output", "operations per pair"), *cells, ("all", "", "", f"{self.cost:,}")]
        w = [max(len(row[i]) for row in cells) for i in range(4)]
        return "\n".join(f"{a:<{w[0]}}  {b:<{w[1]}}  {c:>{w[2]}}  {d:>{w[3]}}" for a, b, c, d in cells)


def shape_table(net: Network, input_shape: Sequence[int]) -> ShapeTable:
    layer = as_layer(net)
    channels, spatial = check_input_shape(input_shape)
    check_network(layer)
    name = f"{channels} channel{'s' if channels > 1 else ''}"
    rows = [ShapeRow("(input)", name, spatial, channels * math.prod(spatial))]
    _rows(layer, spatial, "", rows)
    return ShapeTable(channels, tuple(rows))


def _rows(net: Layer, spatial: Spatial, place: str, rows: list[ShapeRow]) -> Spatial:
    match net:
        case Conv() | ConvTranspose() | Dense():
            sums = axis_sums(net, spatial, place)
            cost, left = 0, math.prod(spatial)
            for s in sums:  # one pass an axis, the map shrinking on the way
                left //= s.size
                cost += s.taps * left
                left *= s.out_size
            out = output_spatial(net, sums)
            rows.append(ShapeRow(place or "(network)", repr(net), out, cost + math.prod(out)))
            return out
        case ReLU() | LeakyReLU() | Erf() | Abs() | Step() | Sin() | Cos() | GELU() | Elementwise():
            cost = _nonlinearity_cost(net) * math.prod(spatial)
            rows.append(ShapeRow(place or "(network)", repr(net), spatial, cost))
            return spatial
        case Identity():
            rows.append(ShapeRow(place or "(network)", repr(net), spatial, 0))
            return spatial
        case Sequential():
            for i, layer in enumerate(net.layers):
                spatial = _rows(layer, spatial, child(place, "layers", i), rows)
            return spatial
        case Sum():
            outs = []
            for i, branch in enumerate(net.branches):
                outs.append(_rows(branch, spatial, child(place, "branches", i), rows))
            check_branches_agree(outs, place)
            n = len(outs)
            rows.append(ShapeRow(place or "(network)", f"Sum of {n}", outs[0], (n - 1) * math.prod(outs[0])))
            return outs[0]
        case _:
            assert_never(net)


def check_branches_agree(outs: Sequence[Spatial], place: str) -> None:
    if len(set(outs)) > 1:
        told = ", ".join(f"branches[{i}] gives {shape_text(s)}" for i, s in enumerate(outs))
        raise NetworkError(
            at(place, f"the branches of a Sum must have one shape, but {told}; give the skip a Conv(1, stride=…)")
        )
