"""Networks meet sizes: the geometry of each layer for one input shape."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar, assert_never

from . import sheets
from .geometry import SizeError, Window, check_reads
from .layers import (
    AvgPool,
    Conv,
    Convolution,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Layer,
    NetworkError,
    PerAxis,
)
from .sheets import AxisMap
from .walk import at

Spatial = tuple[int, ...]
Linear: TypeAlias = Conv | ConvTranspose | Dense | AvgPool | GlobalAvgPool
T = TypeVar("T")


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


def _spread(layer: Layer, name: str, value: PerAxis, axes: int, place: str) -> tuple[int, ...]:
    """One value for each of the input's axes."""
    values = value if isinstance(value, tuple) else (value,) * axes
    if len(values) != axes:
        raise NetworkError(
            at(place, f"{layer!r} has {name}={value!r} for {len(values)} axes, but its input has {axes}")
        )
    return values


def windows(layer: Convolution, axes: int, place: str) -> tuple[Window, ...]:
    """The layer's window along each of the input's axes."""
    if axes == 0:
        raise NetworkError(at(place, f"{layer!r} needs spatial axes, but its input has one location; use Dense()"))
    kernel = _spread(layer, "kernel_size", layer.kernel_size, axes, place)
    stride = _spread(layer, "stride", layer.stride, axes, place)
    dilation = _spread(layer, "dilation", layer.dilation, axes, place)
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


def pool_windows(layer: AvgPool, axes: int, place: str) -> tuple[Window, ...]:
    """The pool's window along each of the input's axes."""
    if axes == 0:
        raise NetworkError(at(place, f"{layer!r} needs spatial axes, but its input has one location; leave it out"))
    size = _spread(layer, "size", layer.size, axes, place)
    stride = size if layer.stride is None else _spread(layer, "stride", layer.stride, axes, place)
    padding = _spread(layer, "padding", layer.padding, axes, place)
    return tuple(Window(k, s, 1, pad, pad, "zeros") for k, s, pad in zip(size, stride, padding, strict=True))


def axis_maps(layer: Linear, spatial: Spatial, place: str) -> tuple[AxisMap, ...]:
    """What a linear layer does along each axis of its input, for every displacement between two images."""
    match layer:
        case Dense():
            return tuple(map(sheets.dense, spatial))
        case GlobalAvgPool():
            return tuple(map(sheets.global_pool, spatial))
        case AvgPool():
            return tuple(
                _fitted(layer, spatial, axis, place, partial(sheets.pool, w, size, layer.count_include_pad))
                for axis, (w, size) in enumerate(zip(pool_windows(layer, len(spatial), place), spatial, strict=True))
            )
        case Conv():
            return tuple(
                _fitted(layer, spatial, axis, place, partial(sheets.convolution, w, size))
                for axis, (w, size) in enumerate(zip(windows(layer, len(spatial), place), spatial, strict=True))
            )
        case ConvTranspose():
            return _transposed_maps(layer, spatial, place)
        case _:
            assert_never(layer)


def _fitted(layer: Layer, spatial: Spatial, axis: int, place: str, make: Callable[[], T]) -> T:
    """What `make` makes of an axis; where it does not fit, an error that names the layer, the map and the axis."""
    try:
        return make()
    except SizeError as error:
        raise NetworkError(at(place, f"{layer!r} on {shape_text(spatial)}: axis {axis}: {error}")) from None


def _transposed_maps(layer: ConvTranspose, spatial: Spatial, place: str) -> tuple[AxisMap, ...]:
    extra = layer.output_padding if isinstance(layer.output_padding, tuple) else (layer.output_padding,) * len(spatial)
    maps = []
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
        _fitted(layer, spatial, axis, place, partial(check_reads, out, w.kernel))
        maps.append(sheets.transposed_convolution(w, size, out))
    return tuple(maps)


def filter_size(layer: Convolution, axes: int) -> int:
    """The number of filter elements per channel."""
    k = layer.kernel_size
    return math.prod(k) if isinstance(k, tuple) else k**axes


def sum_scale(layer: Linear, spatial: Spatial) -> float:
    """What the sum over locations is multiplied by: weight_var · s, weight_var / locations, 1 / pairs of locations."""
    match layer:
        case Dense():
            return layer.weight_var / math.prod(spatial)
        case GlobalAvgPool():
            return 1.0 / math.prod(spatial) ** 2
        case AvgPool():
            size = layer.size
            return 1.0 / (math.prod(size) if isinstance(size, tuple) else size ** len(spatial)) ** 2
        case Conv() | ConvTranspose():
            patch = filter_size(layer, len(spatial)) if layer.fan_in == "patch" else 1
            return layer.weight_var / patch
        case _:
            assert_never(layer)


def output_spatial(layer: Linear, axes: Sequence[AxisMap]) -> Spatial:
    return () if isinstance(layer, Dense | GlobalAvgPool) else tuple(s.out_size for s in axes)


def shape_text(spatial: Spatial) -> str:
    return " × ".join(map(str, spatial)) if spatial else "1"


def check_branches_agree(outs: Sequence[Spatial], place: str) -> None:
    if len(set(outs)) > 1:
        told = ", ".join(f"branches[{i}] gives {shape_text(s)}" for i, s in enumerate(outs))
        raise NetworkError(
            at(place, f"the branches of a Sum must have one shape, but {told}; give the skip a Conv(1, stride=…)")
        )
