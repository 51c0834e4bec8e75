"""A network as a finite PyTorch module: how many channels each layer has, and where a skip is widened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import torch
from torch import nn

from cnngp.common.checks import is_whole
from cnngp.network.layers import (
    GELU,
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Elementwise,
    GlobalAvgPool,
    Identity,
    Layer,
    LeakyReLU,
    Network,
    NetworkError,
    Nonlinearity,
    Pool,
    ReLU,
    Sequential,
    Sum,
    as_layer,
)
from cnngp.network.placed import shape_table
from cnngp.network.shapes import Spatial, axis_maps, check_input_shape, output_spatial, shape_text, sum_scale, windows
from cnngp.network.walk import at, child

from ..parts import Activation, Branches, Broadcast
from .drawing import Finite

Channels = int | Sequence[int] | Mapping[str, int]
Weighted = Conv | ConvTranspose | Dense

_PAD = {"zeros": "ZeroPad", "circular": "CircularPad", "reflect": "ReflectionPad", "replicate": "ReplicationPad"}


def build_finite(
    net: Network, channels: Channels, input_shape: Sequence[int], outputs: int, dtype: Any, device: Any
) -> Finite:
    """The module with its weights not yet drawn, and the standard deviation of each."""
    layer = as_layer(net)
    c, spatial = check_input_shape(input_shape)
    out = shape_table(layer, input_shape).output
    if math.prod(out) != 1:
        raise NetworkError(f"the network has {shape_text(out)} output locations; end it in Dense()")
    builder = _builder(channels)
    with torch.device("meta"):  # torch's own initial weights would be drawn for nothing
        parts, flow = builder.build(layer, _Flow(c, spatial, 0, True), _count("outputs", outputs), "", True)
    left: list[Any] = [*(builder.by_order or []), *builder.by_place]
    if left:
        raise NetworkError(f"channels: {left} belong to no layer; {_HOW}")
    module = parts[0] if len(parts) == 1 and isinstance(parts[0], nn.Sequential) else nn.Sequential(*parts)
    if flow.spatial:
        module.append(nn.Flatten())
    module = module.to_empty(device=device).to(dtype)
    stds: dict[str, float] = {}
    for name, part in module.named_modules():
        if isinstance(part, Broadcast):
            part.reset()
        if part in builder.stds:
            weight_std, bias_std = builder.stds[part]
            stds[f"{name}.weight"] = weight_std
            if part.bias is not None:
                stds[f"{name}.bias"] = bias_std
    return Finite(module, stds, outputs)


@dataclass(frozen=True)
class _Flow:
    """What arrives at a layer. `level` counts the layers that downsampled, less those that upsampled."""

    channels: int
    spatial: Spatial
    level: int
    is_input: bool


@dataclass
class _Builder:
    base: int
    by_order: list[int] | None
    by_place: dict[str, int]
    stds: dict[Any, tuple[float, float]] = field(default_factory=dict)
    """Of each module with weights, the standard deviation of its weights and of its biases."""

    def build(self, net: Layer, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[list[Any], _Flow]:
        """Modules to run one after the other, and what leaves them. `want` is how many channels have to come out,
        `last` says that they are the network's outputs."""
        match net:
            case Conv() | ConvTranspose() | Dense():
                return self.weighted(net, flow, want, place, last)
            case Nonlinearity():
                return [_activation(net)], flow
            case Identity():
                return [], flow
            case AvgPool() | GlobalAvgPool():
                after = output_spatial(net, axis_maps(net, flow.spatial, place))
                _check_torch_pools(net, flow.spatial, place)
                level = flow.level + _downsamples(net)
                return _pool(net, len(flow.spatial)), _Flow(flow.channels, after, level, flow.is_input)
            case Sequential():
                return self.series(net, flow, want, place, last)
            case Sum():
                return self.parallel(net, flow, want, place, last)
            case _:
                assert_never(net)

    def weighted(
        self, layer: Weighted, flow: _Flow, want: int | None, place: str, last: bool
    ) -> tuple[list[Any], _Flow]:
        out = output_spatial(layer, axis_maps(layer, flow.spatial, place))
        level = flow.level + _downsamples(layer)
        told = None if last else self.told(place)
        if told is not None and want is not None and told != want:
            raise NetworkError(at(place, f"channels={told} is asked for, but the Sum it ends in has {want} channels"))
        width = want or told or self.base * 2 ** max(level, 0)
        before, module, after = _layer(layer, flow, out, width, place)
        module.cnngp_layer = layer
        # √(weight_var · s / channels in), so that a sum over the channels has the layer's variance
        weight_std = math.sqrt(sum_scale(layer, flow.spatial) / flow.channels)
        self.stds[module] = weight_std, math.sqrt(layer.bias_var)
        return [*before, module, *after], _Flow(width, out, level, False)

    def told(self, place: str) -> int | None:
        if self.by_order is not None:
            if not self.by_order:
                raise NetworkError(f"{place or 'the network'}: channels has no number left for it; {_HOW}")
            return self.by_order.pop(0)
        return self.by_place.pop(place, None)

    def series(self, net: Sequential, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[list[Any], _Flow]:
        modules: list[Any] = []
        final = max((i for i, layer in enumerate(net.layers) if _has_weights(layer)), default=-1)
        for i, layer in enumerate(net.layers):
            wish = want if i == final else None
            some, flow = self.build(layer, flow, wish, child(place, "layers", i), last and i == final)
            modules += some
        return modules, flow

    def parallel(self, net: Sum, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[list[Any], _Flow]:
        if want is None and not flow.is_input and any(not _has_weights(b) for b in net.branches):
            want = flow.channels
        branches: dict[int, list[Any]] = {}
        after = flow
        for i, branch in enumerate(net.branches):
            if _has_weights(branch):
                branches[i], after = self.build(branch, flow, want, child(place, "branches", i), last)
                want = after.channels
        weightless = after is flow
        for i, branch in enumerate(net.branches):
            if not _has_weights(branch):
                branches[i], passed = self.build(branch, flow, None, child(place, "branches", i), last)
                if want is not None and want != flow.channels:
                    branches[i].append(_widen(flow, want, place))
                after = passed if weightless else after  # a skip may hold a pool
        done = [_one(branches[i]) for i in sorted(branches)]
        is_input = weightless and flow.is_input
        return [Branches(*done)], _Flow(want or flow.channels, after.spatial, after.level, is_input)


_HOW = "give one number for each layer with weights except those that make the output"


def _builder(channels: Channels) -> _Builder:
    if isinstance(channels, Mapping):
        by_place = {place: _count("channels", n) for place, n in channels.items()}
        return _Builder(by_place.pop("*", 64), None, by_place)
    if isinstance(channels, Sequence):
        return _Builder(1, [_count("channels", n) for n in channels], {})
    return _Builder(_count("channels", channels), None, {})


def _count(what: str, n: object) -> int:
    if not is_whole(n, least=1):
        raise NetworkError(f"{what}={n!r} is not a positive integer")
    return int(n)


def _widen(flow: _Flow, want: int, place: str) -> Any:
    """The channels of a skip repeated (or, of hidden channels, the first ones taken) to fit the sum it goes into."""
    if flow.is_input and want < flow.channels:
        raise NetworkError(
            at(place, f"the skip carries the input's {flow.channels} channels into {want}; use more channels")
        )
    return Broadcast(flow.channels, want)


def _has_weights(net: Layer) -> bool:
    """Whether there are weights in it, so that it can be told how many channels to give."""
    match net:
        case Conv() | ConvTranspose() | Dense():
            return True
        case Sum():
            return any(map(_has_weights, net.branches))
        case Sequential():
            return any(map(_has_weights, net.layers))
        case _:
            return False


def _downsamples(layer: Weighted | Pool) -> int:
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


# ---- modules ---------------------------------------------------------------------------------------------------------


def _torch(name: str, axes: int) -> Any:
    return getattr(nn, f"{name}{axes}d")


def _one(modules: list[Any]) -> Any:
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules) if modules else nn.Identity()


def _layer(layer: Weighted, flow: _Flow, out: Spatial, width: int, place: str) -> tuple[list[Any], Any, list[Any]]:
    """torch's module of the layer, with what has to be padded or flattened before it and cropped after it."""
    bias = layer.bias_var > 0
    if isinstance(layer, Dense):
        flatten = [nn.Flatten()] if flow.spatial else []
        return flatten, nn.Linear(flow.channels * math.prod(flow.spatial), width, bias=bias), []
    axes = len(flow.spatial)
    along = windows(layer, axes, place)
    kernel, stride, dilation, before = zip(*((w.kernel, w.stride, w.dilation, w.before) for w in along), strict=True)
    if isinstance(layer, Conv):
        plain = layer.padding_mode == "zeros" and all(w.before == w.after for w in along)
        own = before if plain else 0
        beside = () if plain else tuple(p for w in reversed(along) for p in (w.before, w.after))  # the last axis first
        padding = [_torch(_PAD[layer.padding_mode], axes)(beside)] if any(beside) else []
        return padding, _torch("Conv", axes)(flow.channels, width, kernel, stride, own, dilation, bias=bias), []
    # torch pads both ends by `before`; what is then missing at the end is output_padding, what is too much is cropped.
    extra = [
        out[a] - ((flow.spatial[a] - 1) * stride[a] - 2 * before[a] + dilation[a] * (kernel[a] - 1) + 1)
        for a in range(axes)
    ]
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise NetworkError(f"{place}: {layer!r}: torch's output_padding must be smaller than the stride or dilation")
    more, less = tuple(max(e, 0) for e in extra), [side for e in reversed(extra) for side in (0, min(e, 0))]
    module = _torch("ConvTranspose", axes)(
        flow.channels, width, kernel, stride, before, more, bias=bias, dilation=dilation
    )
    return [], module, [_torch("ZeroPad", axes)(less)] if any(less) else []


def _pool(layer: Pool, axes: int) -> list[Any]:
    if isinstance(layer, AvgPool):
        pool = _torch("AvgPool", axes)
        return [pool(layer.size, layer.stride, layer.padding, count_include_pad=layer.count_include_pad)]
    return [_torch("AdaptiveAvgPool", axes)(1), nn.Flatten()] if axes else []


def _check_torch_pools(layer: Pool, spatial: Spatial, place: str) -> None:
    """PyTorch's average pool in three dimensions wants a window inside the map before padding."""
    if isinstance(layer, AvgPool) and len(spatial) == 3:
        size = layer.size if isinstance(layer.size, tuple) else (layer.size,) * 3
        if any(k > n for k, n in zip(size, spatial, strict=True)):
            raise NetworkError(
                at(place, f"PyTorch has no AvgPool3d of {shape_text(size)} on a map of {shape_text(spatial)}; use less")
            )


_ACTIVATIONS = {ReLU(): nn.ReLU, GELU(): nn.GELU, Elementwise("tanh"): nn.Tanh, Elementwise("silu"): nn.SiLU}


def _activation(layer: Nonlinearity) -> Any:
    if isinstance(layer, LeakyReLU):
        return nn.LeakyReLU(layer.slope)
    return _ACTIVATIONS[layer]() if layer in _ACTIVATIONS else Activation(layer)
