"""How a network looks with finitely many channels: which layer has how many, and where a skip is widened.

The plan is plain values. `sampling` builds a module from it and `many` runs a batch of networks from it, so both draw
the same weights from the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from cnngp.common.checks import is_whole
from cnngp.network.composition import at, child
from cnngp.network.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Layer,
    Network,
    NetworkError,
    Nonlinearity,
    Pool,
    Sequential,
    Sum,
    as_layer,
)
from cnngp.network.shapes import (
    Spatial,
    axis_maps,
    check_input_shape,
    output_spatial,
    shape_text,
    sum_scale,
)
from cnngp.network.table import shape_table

Channels = int | Sequence[int] | Mapping[str, int]


@dataclass(frozen=True)
class Weights:
    """A layer with weights: `c_in` channels at `spatial` locations in, `c_out` at `out` locations out."""

    place: str
    layer: Conv | ConvTranspose | Dense
    spatial: Spatial
    out: Spatial
    c_in: int
    c_out: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of torch's weight tensor."""
        match self.layer:
            case Dense():
                return (self.c_out, self.c_in * math.prod(self.spatial))
            case Conv():
                return (self.c_out, self.c_in, *self._kernel())
            case ConvTranspose():
                return (self.c_in, self.c_out, *self._kernel())
            case _:
                assert_never(self.layer)

    def _kernel(self) -> tuple[int, ...]:
        k = self.layer.kernel_size  # type: ignore[union-attr]
        return k if isinstance(k, tuple) else (k,) * len(self.spatial)

    @property
    def weight_std(self) -> float:
        """√(weight_var · s / c_in), so that a sum over c_in channels has the layer's variance."""
        return math.sqrt(sum_scale(self.layer, self.spatial) / self.c_in)

    @property
    def bias_std(self) -> float:
        return math.sqrt(self.layer.bias_var)

    @property
    def numbers(self) -> int:
        """How many random numbers the layer takes."""
        return math.prod(self.shape) + (self.c_out if self.layer.bias_var else 0)


@dataclass(frozen=True)
class Apply:
    layer: Nonlinearity


@dataclass(frozen=True)
class Average:
    """A pool: no weights, so each channel is averaged on its own."""

    layer: Pool
    spatial: Spatial


@dataclass(frozen=True)
class Widen:
    """Channels of a skip repeated (or, of hidden channels, the first ones taken) to fit the sum it goes into."""

    channels: int
    out_channels: int


@dataclass(frozen=True)
class Series:
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Parallel:
    parts: tuple[Part, ...]


Part = Weights | Apply | Average | Widen | Series | Parallel


@dataclass(frozen=True)
class ModulePlan:
    root: Part
    channels: int
    spatial: Spatial
    weights: tuple[Weights, ...]
    """In the order in which they take their random numbers."""

    @property
    def numbers(self) -> int:
        return sum(w.numbers for w in self.weights)

    @property
    def floats_per_image(self) -> int:
        """About how many activations of one image are alive at once: three maps of the largest size."""
        sizes = [max(w.c_in * math.prod(w.spatial), w.c_out * math.prod(w.out)) for w in self.weights]
        return 3 * max(self.channels * math.prod(self.spatial), *sizes)


@dataclass(frozen=True)
class _Flow:
    """What arrives at a layer. `level` counts the layers that downsampled, less those that upsampled."""

    channels: int
    spatial: Spatial
    level: int
    is_input: bool


@dataclass
class _Planner:
    base: int
    by_order: list[int] | None
    by_place: dict[str, int]
    weights: list[Weights] = field(default_factory=list)

    def plan(self, net: Layer, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[Part, _Flow]:
        """`want` is how many channels have to come out, `last` says that they are the network's outputs."""
        match net:
            case Conv() | ConvTranspose() | Dense():
                return self.weighted(net, flow, want, place, last)
            case Nonlinearity():
                return Apply(net), flow
            case Identity():
                return Series(()), flow
            case AvgPool() | GlobalAvgPool():
                after = output_spatial(net, axis_maps(net, flow.spatial, place))
                _check_torch_pools(net, flow.spatial, place)
                level = flow.level + _downsamples(net)
                return Average(net, flow.spatial), _Flow(flow.channels, after, level, flow.is_input)
            case Sequential():
                return self.series(net, flow, want, place, last)
            case Sum():
                return self.parallel(net, flow, want, place, last)
            case _:
                assert_never(net)

    def weighted(
        self, layer: Conv | ConvTranspose | Dense, flow: _Flow, want: int | None, place: str, last: bool
    ) -> tuple[Part, _Flow]:
        out = output_spatial(layer, axis_maps(layer, flow.spatial, place))
        level = flow.level + _downsamples(layer)
        told = None if last else self.told(place)
        if told is not None and want is not None and told != want:
            raise NetworkError(at(place, f"channels={told} is asked for, but the Sum it ends in has {want} channels"))
        width = want or told or self.base * 2 ** max(level, 0)
        weights = Weights(place, layer, flow.spatial, out, flow.channels, width)
        self.weights.append(weights)
        return weights, _Flow(width, out, level, False)

    def told(self, place: str) -> int | None:
        if self.by_order is not None:
            if not self.by_order:
                raise NetworkError(f"{place or 'the network'}: channels has no number left for it; {_HOW}")
            return self.by_order.pop(0)
        return self.by_place.pop(place, None)

    def series(self, net: Sequential, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[Part, _Flow]:
        parts = []
        final = max((i for i, layer in enumerate(net.layers) if _has_weights(layer)), default=-1)
        for i, layer in enumerate(net.layers):
            wish = want if i == final else None
            part, flow = self.plan(layer, flow, wish, child(place, "layers", i), last and i == final)
            parts.append(part)
        return Series(tuple(parts)), flow

    def parallel(self, net: Sum, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[Part, _Flow]:
        if want is None and not flow.is_input and any(not _has_weights(b) for b in net.branches):
            want = flow.channels
        parts: list[Part | None] = [None] * len(net.branches)
        after = flow
        for i, branch in enumerate(net.branches):
            if _has_weights(branch):
                parts[i], after = self.plan(branch, flow, want, child(place, "branches", i), last)
                want = after.channels
        weightless = after is flow
        for i, branch in enumerate(net.branches):
            if not _has_weights(branch):
                skip, passed = self.plan(branch, flow, None, child(place, "branches", i), last)
                parts[i] = skip if want in (None, flow.channels) else Series((skip, self.widen(flow, want, place)))
                after = passed if weightless else after  # a skip may hold a pool
        done = tuple(p for p in parts if p is not None)
        return Parallel(done), _Flow(want or flow.channels, after.spatial, after.level, weightless and flow.is_input)

    def widen(self, flow: _Flow, want: int | None, place: str) -> Widen:
        assert want is not None
        if flow.is_input and want < flow.channels:
            raise NetworkError(
                at(place, f"the skip carries the input's {flow.channels} channels into {want}; use more channels")
            )
        return Widen(flow.channels, want)


_HOW = "give one number for each layer with weights except those that make the output"


def _downsamples(layer: Conv | ConvTranspose | Dense | Pool) -> int:
    match layer:
        case Dense() | GlobalAvgPool():  # one location is left, which no width is chosen by
            return 0
        case AvgPool():
            stride = layer.size if layer.stride is None else layer.stride
        case Conv() | ConvTranspose():
            stride = layer.stride
        case _:
            assert_never(layer)
    if (max(stride) if isinstance(stride, tuple) else stride) == 1:
        return 0
    return -1 if isinstance(layer, ConvTranspose) else 1


def _check_torch_pools(layer: Pool, spatial: Spatial, place: str) -> None:
    """PyTorch's average pool in three dimensions wants a window inside the map before padding."""
    if isinstance(layer, AvgPool) and len(spatial) == 3:
        size = layer.size if isinstance(layer.size, tuple) else (layer.size,) * 3
        if any(k > n for k, n in zip(size, spatial, strict=True)):
            raise NetworkError(
                at(place, f"PyTorch has no AvgPool3d of {shape_text(size)} on a map of {shape_text(spatial)}; use less")
            )


def _has_weights(net: Layer) -> bool:
    """Whether there are weights in it, so that it can be told how many channels to give."""
    match net:
        case Conv() | ConvTranspose() | Dense() | Sum():
            return not isinstance(net, Sum) or any(map(_has_weights, net.branches))
        case Sequential():
            return any(map(_has_weights, net.layers))
        case _:
            return False


def make_plan(net: Network, channels: Channels, input_shape: Sequence[int], outputs: int) -> ModulePlan:
    layer = as_layer(net)
    c, spatial = check_input_shape(input_shape)
    out = shape_table(layer, input_shape).output
    if math.prod(out) != 1:
        raise NetworkError(f"the network has {shape_text(out)} output locations; end it in Dense()")
    planner = _planner(channels)
    root, _ = planner.plan(layer, _Flow(c, spatial, 0, True), _count("outputs", outputs), "", True)
    left: list[Any] = [*(planner.by_order or []), *planner.by_place]
    if left:
        raise NetworkError(f"channels: {left} belong to no layer; {_HOW}")
    return ModulePlan(root, c, spatial, tuple(planner.weights))


def _planner(channels: Channels) -> _Planner:
    if isinstance(channels, Mapping):
        by_place = {place: _count("channels", n) for place, n in channels.items()}
        return _Planner(by_place.pop("*", 64), None, by_place)
    if isinstance(channels, Sequence):
        return _Planner(1, [_count("channels", n) for n in channels], {})
    return _Planner(_count("channels", channels), None, {})


def _count(what: str, n: object) -> int:
    if not is_whole(n, least=1):
        raise NetworkError(f"{what}={n!r} is not a positive integer")
    return int(n)
