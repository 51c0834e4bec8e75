"""Linear layers on given sizes: the input locations that each output location sums, per axis, as plain integers.

Pooling needs K(p, q) for a location p of one image and q of the other. For one displacement d = q − p, the map
p ↦ K(p, p + d) is called a *sheet*. A filter reads both images at the same offset, and a nonlinearity reads one pair of
locations, so both act on each sheet alone; only pools mix sheets. The sheets that a network needs of each layer are
found from the output backwards: a Dense layer needs d = 0, a stride multiplies d, a pool widens the set by its size,
and a global pool needs every displacement. (The case of strides alone is in Garriga-Alonso and van der Wilk,
UAI 2021.) A sheet is stored on its overlap, the locations p for which p and p + d are both inside the image.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice, product
from typing import Any, TypeAlias, assert_never

from .geometry import AxisSum, SizeError, Window, check_reads
from .layers import AvgPool, Conv, Convolution, ConvTranspose, Dense, GlobalAvgPool, NetworkError, PerAxis

Spatial = tuple[int, ...]
Displacement = tuple[int, ...]
LinearLayer: TypeAlias = Conv | ConvTranspose | Dense | AvgPool | GlobalAvgPool
_SHORT = 64  # maps of longer axes are not cached: they take too much memory
# More sheets, or sums of sheets, than this would take minutes to plan and hours for a few pairs.
MOST_SHEETS, MOST_SUMS = 60_000, 1_000_000


@dataclass(frozen=True)
class Piece:
    """Contribution of one input sheet to one output sheet, along one axis.

    `sums` counts locations from the start of the two overlaps; the result is multiplied by `weight`.
    """

    d: int
    sums: AxisSum
    weight: float = 1.0


@dataclass(frozen=True)
class AxisMap:
    """A linear layer along one axis: `pieces(D)` lists the input sheets that make up the output sheet D."""

    size: int
    out_size: int
    pieces: Callable[[int], tuple[Piece, ...]]


def check_input_shape(input_shape: Sequence[int]) -> tuple[int, Spatial]:
    """Split (C,), (C, L), (C, H, W) or (C, D, H, W) into (channels, spatial shape)."""
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


def shape_text(spatial: Spatial) -> str:
    return " × ".join(map(str, spatial)) if spatial else "1"


def windows(layer: Convolution | AvgPool, axes: int, place: str) -> tuple[Window, ...]:
    """Windows of the layer, one for each axis of the input."""
    is_pool = isinstance(layer, AvgPool)
    if axes == 0:
        advice = "leave it out" if is_pool else "use Dense()"
        raise NetworkError(f"{layer!r} needs spatial axes, but its input has one location; {advice}", place)

    def spread(name: str, value: PerAxis) -> tuple[int, ...]:
        """Return one value for each axis of the input."""
        values = value if isinstance(value, tuple) else (value,) * axes
        if len(values) != axes:
            told = f"{layer!r} has {name}={value!r} for {len(values)} axes, but its input has {axes}"
            raise NetworkError(told, place)
        return values

    if isinstance(layer, AvgPool):
        size = spread("size", layer.size)
        stride = size if layer.stride is None else spread("stride", layer.stride)
        padding = spread("padding", layer.padding)
        return tuple(Window(k, s, 1, pad, pad, "zeros") for k, s, pad in zip(size, stride, padding, strict=True))
    kernel = spread("kernel_size", layer.kernel_size)
    stride, dilation = spread("stride", layer.stride), spread("dilation", layer.dilation)
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
                raise NetworkError(f"{layer!r} has padding for {len(entries)} axes, but its input has {axes}", place)
            pads = [(p, p) if isinstance(p, int) else p for p in entries]
    return tuple(
        Window(k, s, d, before, after, layer.padding_mode)
        for k, s, d, (before, after) in zip(kernel, stride, dilation, pads, strict=True)
    )


def axis_maps(layer: LinearLayer, spatial: Spatial, place: str) -> tuple[AxisMap, ...]:
    """Effect of a linear layer along each axis of its input, for every displacement between locations."""
    match layer:
        case Dense():
            return tuple(_kept(dense, size) for size in spatial)
        case GlobalAvgPool():
            return tuple(_kept(pool, Window(size, 1, 1, 0, 0, "zeros"), size) for size in spatial)
        case Conv() | ConvTranspose() | AvgPool():
            maps = []
            for axis, (window, size) in enumerate(zip(windows(layer, len(spatial), place), spatial, strict=True)):
                try:
                    match layer:
                        case AvgPool():
                            maps.append(_kept(pool, window, size, layer.count_include_pad))
                        case Conv():
                            maps.append(_kept(convolution, window, size))
                        case ConvTranspose():
                            out_size = _transposed_size(layer, window, size, axis, len(spatial))
                            maps.append(_kept(transposed_convolution, window, size, out_size))
                except SizeError as error:
                    raise NetworkError(f"{layer!r} on {shape_text(spatial)}: axis {axis}: {error}", place) from None
            return tuple(maps)
        case _:
            assert_never(layer)


def _transposed_size(layer: ConvTranspose, window: Window, size: int, axis: int, axes: int) -> int:
    extra = layer.output_padding if isinstance(layer.output_padding, tuple) else (layer.output_padding,) * axes
    if len(extra) != axes:
        raise SizeError(f"output_padding={extra} for {len(extra)} axes, but its input has {axes}")
    most = max(window.stride, window.dilation)
    if extra[axis] and extra[axis] >= most:
        raise SizeError(f"output_padding={extra[axis]} must be smaller than the stride or the dilation ({most})")
    out = size * window.stride
    if layer.padding != "same":
        out = (size - 1) * window.stride - window.before - window.after + window.reach + extra[axis]
    if out < 1:
        raise SizeError(f"the output would have {out} locations; use less padding or larger images")
    check_reads(out, window.kernel)
    return out


@lru_cache(maxsize=256)
def _remembered(make: Callable[..., AxisMap], *args: Any) -> AxisMap:
    return make(*args)


def _kept(make: Callable[..., AxisMap], *args: Any) -> AxisMap:
    """Cache maps of short axes: a network repeats its layers, and a search compares many networks on one size."""
    is_short = all(a <= _SHORT for a in args if isinstance(a, int))
    return _remembered(make, *args) if is_short else make(*args)


def convolution(window: Window, size: int) -> AxisMap:
    return _tied(size, window.output_size(size), tuple(window.places(t, size) for t in range(window.kernel)))


def transposed_convolution(window: Window, size: int, out_size: int) -> AxisMap:
    """The adjoint of `convolution(window, out_size)`: output μ sums the inputs m whose window reads μ."""
    taps = []
    for t in reversed(range(window.kernel)):  # so that the inputs of an output are in ascending order
        tap: list[int | None] = [None] * out_size
        for m in range(size):
            mu = m * window.stride - window.before + t * window.dilation
            if 0 <= mu < out_size:
                tap[mu] = m
        taps.append(tuple(tap))
    return _tied(size, out_size, tuple(taps))


def dense(size: int) -> AxisMap:
    """Map of a dense layer: every location has weights of its own, so only equal locations contribute."""
    return _tied(size, 1, tuple((p,) for p in range(size)))


def _tied(size: int, out_size: int, taps: tuple[tuple[int | None, ...], ...]) -> AxisMap:
    """Map of shared weights: output P sums the inputs taps[t][P] over t, and weight t is the same at P and P + D."""

    @cache
    def pieces(D: int) -> tuple[Piece, ...]:
        first, n = overlap(out_size, D)
        rows: dict[int, list[list[int]]] = {0: [[] for _ in range(n)]} if D == 0 else {}
        for i, P in enumerate(range(first, first + n)):
            for tap in taps:
                p, q = tap[P], tap[P + D]
                if p is not None and q is not None:
                    if q - p not in rows:
                        rows[q - p] = [[] for _ in range(n)]
                    rows[q - p][i].append(p - overlap(size, q - p)[0])
        return tuple(Piece(d, AxisSum(size - abs(d), tuple(map(tuple, row)))) for d, row in sorted(rows.items()))

    return AxisMap(size, out_size, pieces)


def pool(window: Window, size: int, count_include_pad: bool = True) -> AxisMap:
    """Map of an average pool: every pair of locations in the windows of P and Q = P + D contributes."""
    out_size = window.output_size(size)
    starts = [P * window.stride - window.before for P in range(out_size)]
    inside = [(max(0, start), min(size, start + window.kernel)) for start in starts]

    @cache
    def pieces(D: int) -> tuple[Piece, ...]:
        first, n = overlap(out_size, D)
        rows: dict[tuple[int, float], list[tuple[int, ...]]] = {}
        for i, P in enumerate(range(first, first + n)):
            (low, high), (low2, high2) = inside[P], inside[P + D]
            weight = 1.0 if count_include_pad else window.kernel**2 / ((high - low) * (high2 - low2))
            for d in range(low2 - high + 1, high2 - low):
                begin = overlap(size, d)[0]
                if (d, weight) not in rows:
                    rows[d, weight] = [()] * n
                rows[d, weight][i] = tuple(range(max(low, low2 - d) - begin, min(high, high2 - d) - begin))
        return tuple(Piece(d, AxisSum(size - abs(d), tuple(row)), w) for (d, w), row in sorted(rows.items()))

    return AxisMap(size, out_size, pieces)


def overlap(size: int, d: int) -> tuple[int, int]:
    """First location p with both p and p + d inside an axis, and the number of such locations."""
    return max(0, -d), max(0, size - abs(d))


def needed(axes: Iterable[AxisMap], wanted: frozenset[Displacement]) -> frozenset[Displacement]:
    """Sheets of a layer's input that the wanted sheets of its output depend on."""
    maps = tuple(axes)
    found: set[Displacement] = set()
    for D in wanted:
        along = [{piece.d for piece in axis.pieces(x)} for axis, x in zip(maps, D, strict=True)]
        found.update(islice(product(*along), MOST_SHEETS + 1))
        if len(found) > MOST_SHEETS:
            raise SizeError(
                f"needs the covariances of more than {MOST_SHEETS:,} displacements between locations; "
                "use strides or smaller pools before it, or smaller images"
            )
    if sum(math.prod(len(axis.pieces(x)) for axis, x in zip(maps, D, strict=True)) for D in wanted) > MOST_SUMS:
        raise SizeError(
            f"adds up covariances in more than {MOST_SUMS:,} parts; use larger strides or smaller windows, "
            "count_include_pad=True where it is False, or smaller images"
        )
    return frozenset(found)


def in_order(displacements: Iterable[Displacement]) -> list[Displacement]:
    """Order in which sheets are computed: the diagonal first, because the others read its variances."""
    return sorted(displacements, key=lambda d: (any(d), d))


def filter_size(layer: Convolution, axes: int) -> int:
    """Number of filter elements per channel."""
    k = layer.kernel_size
    return math.prod(k) if isinstance(k, tuple) else k**axes


def sum_scale(layer: LinearLayer, spatial: Spatial) -> float:
    """Factor of the sum over locations: weight_var · s, weight_var / locations, or 1 / pairs of locations."""
    match layer:
        case Dense():
            return layer.weight_var / math.prod(spatial)
        case GlobalAvgPool():
            return 1.0 / math.prod(spatial) ** 2
        case AvgPool():
            size = layer.size
            return 1.0 / (math.prod(size) if isinstance(size, tuple) else size ** len(spatial)) ** 2
        case Conv() | ConvTranspose():
            return layer.weight_var / (filter_size(layer, len(spatial)) if layer.fan_in == "patch" else 1)
        case _:
            assert_never(layer)


def output_spatial(layer: LinearLayer, axes: Sequence[AxisMap]) -> Spatial:
    return () if isinstance(layer, Dense | GlobalAvgPool) else tuple(s.out_size for s in axes)
