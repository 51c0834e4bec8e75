"""A network as a finite PyTorch module: how many channels each layer has, and where a skip is widened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    ReLU,
    Sequential,
    Sum,
    as_layer,
)
from cnngp.network.placed import shape_table
from cnngp.network.shapes import Spatial, axis_maps, check_input_shape, output_spatial, shape_text, sum_scale, windows
from cnngp.network.walk import at, inside, leaves

from ..parts import Activation, Branches, Broadcast
from .drawing import Finite

Channels = int | Sequence[int] | Mapping[str, int]
Weighted = Conv | ConvTranspose | Dense

_HOW = "give one number for each layer with weights except those that make the output"
_PAD = {"zeros": "ZeroPad", "circular": "CircularPad", "reflect": "ReflectionPad", "replicate": "ReplicationPad"}
_ACTIVATIONS = {ReLU(): nn.ReLU, GELU(): nn.GELU, Elementwise("tanh"): nn.Tanh, Elementwise("silu"): nn.SiLU}


def build_finite(
    net: Network, channels: Channels, input_shape: Sequence[int], outputs: int, dtype: Any, device: Any
) -> Finite:
    """The module with its weights not yet drawn, and the standard deviation of each."""
    layer = as_layer(net)
    c, spatial = check_input_shape(input_shape)
    out = shape_table(layer, input_shape).output
    if math.prod(out) != 1:
        raise NetworkError(f"the network has {shape_text(out)} output locations; end it in Dense()")
    builder = _Builder(channels)
    with torch.device("meta"):  # torch's own initial weights would be drawn for nothing
        parts, flow = builder.build(layer, _Flow(c, spatial, 0, True), _count("outputs", outputs), "", True)
    builder.check_all_used()
    module = parts[0] if len(parts) == 1 and isinstance(parts[0], nn.Sequential) else nn.Sequential(*parts)
    if flow.spatial:
        module.append(nn.Flatten())
    module = module.to_empty(device=device).to(dtype)
    stds: dict[str, float] = {}
    for name, part in module.named_modules():
        for which, std in builder.stds.get(part, {}).items():
            stds[f"{name}.{which}"] = std
    return Finite(module, stds, outputs)


@dataclass(frozen=True)
class _Flow:
    """What arrives at a layer. `level` counts the layers that downsampled, less those that upsampled."""

    channels: int
    spatial: Spatial
    level: int
    is_input: bool

    def after(self, layer: Layer, place: str) -> _Flow:
        """What a layer or pool leaves of it, with as many channels."""
        assert isinstance(layer, Weighted | AvgPool | GlobalAvgPool)
        level = self.level
        if isinstance(layer, Conv | ConvTranspose | AvgPool):  # others leave one location, which no width is chosen by
            strides = layer.size if isinstance(layer, AvgPool) and layer.stride is None else layer.stride
            moves = (max(strides) if isinstance(strides, tuple) else strides) != 1
            level += (-1 if isinstance(layer, ConvTranspose) else 1) * moves
        return replace(self, spatial=output_spatial(layer, axis_maps(layer, self.spatial, place)), level=level)


class _Builder:
    """`channels`: a width for all, widths in the order of the layers, or by place."""

    def __init__(self, channels: Channels) -> None:
        self.base = 64
        self.by_order: list[int] | None = None
        self.by_place: dict[str, int] = {}
        self.stds: dict[Any, dict[str, float]] = {}
        """Of each module with weights, the standard deviation of its weights and of its biases."""
        if isinstance(channels, Mapping):
            self.by_place = {place: _count("channels", n) for place, n in channels.items()}
            self.base = self.by_place.pop("*", self.base)
        elif isinstance(channels, Sequence):
            self.by_order = [_count("channels", n) for n in channels]
        else:
            self.base = _count("channels", channels)

    def check_all_used(self) -> None:
        left: list[Any] = [*(self.by_order or []), *self.by_place]
        if left:
            raise NetworkError(f"channels: {left} belong to no layer; {_HOW}")

    def build(self, net: Layer, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[list[Any], _Flow]:
        """Modules to run one after the other, and what leaves them. `want` is how many channels have to come out,
        `last` says that they are the network's outputs."""
        match net:
            case Conv() | ConvTranspose() | Dense():
                return self._weighted(net, flow, want, place, last)
            case LeakyReLU():
                return [nn.LeakyReLU(net.slope)], flow
            case Nonlinearity():
                return [_ACTIVATIONS[net]() if net in _ACTIVATIONS else Activation(net)], flow
            case Identity():
                return [], flow
            case AvgPool():
                _check_torch_pools(net, flow.spatial, place)
                pool = _torch("AvgPool", flow)(net.size, net.stride, net.padding, False, net.count_include_pad)
                return [pool], flow.after(net, place)
            case GlobalAvgPool():
                parts = [_torch("AdaptiveAvgPool", flow)(1), nn.Flatten()] if flow.spatial else []
                return parts, flow.after(net, place)
            case Sequential():
                modules: list[Any] = []
                final = max((i for i, layer in enumerate(net.layers) if _has_weights(layer)), default=-1)
                for i, (where, layer) in enumerate(inside(net, place)):
                    some, flow = self.build(layer, flow, want if i == final else None, where, last and i == final)
                    modules += some
                return modules, flow
            case Sum():
                return self._parallel(net, flow, want, place, last)
            case _:
                assert_never(net)

    def _weighted(
        self, layer: Weighted, flow: _Flow, want: int | None, place: str, last: bool
    ) -> tuple[list[Any], _Flow]:
        after = flow.after(layer, place)
        told = None if last else self._told(place)
        if told is not None and want is not None and told != want:
            raise NetworkError(at(place, f"channels={told} is asked for, but the Sum it ends in has {want} channels"))
        width = want or told or self.base * 2 ** max(after.level, 0)
        parts, module = _layer(layer, flow, after.spatial, width, place)
        module.cnngp_layer = layer
        # √(weight_var · s / channels in), so that a sum over the channels has the layer's variance
        self.stds[module] = {"weight": math.sqrt(sum_scale(layer, flow.spatial) / flow.channels)}
        if layer.bias_var > 0:
            self.stds[module]["bias"] = math.sqrt(layer.bias_var)
        return parts, replace(after, channels=width, is_input=False)

    def _told(self, place: str) -> int | None:
        if self.by_order is None:
            return self.by_place.pop(place, None)
        if not self.by_order:
            raise NetworkError(f"{place or 'the network'}: channels has no number left for it; {_HOW}")
        return self.by_order.pop(0)

    def _parallel(self, net: Sum, flow: _Flow, want: int | None, place: str, last: bool) -> tuple[list[Any], _Flow]:
        """Branches with weights first: they say how many channels the others have to have."""
        branches = list(enumerate(inside(net, place)))
        if want is None and not flow.is_input and not all(_has_weights(b) for b in net.branches):
            want = flow.channels
        done: dict[int, Any] = {}
        after = flow
        for i, (where, branch) in sorted(branches, key=lambda b: not _has_weights(b[1][1])):
            weighted = _has_weights(branch)
            modules, passed = self.build(branch, flow, want if weighted else None, where, last)
            if weighted:
                want = passed.channels
            elif want is not None and want != flow.channels:
                if flow.is_input and want < flow.channels:
                    told = f"the skip carries the input's {flow.channels} channels into {want}; use more channels"
                    raise NetworkError(at(place, told))
                modules.append(Broadcast(flow.channels, want))
            if weighted or not any(map(_has_weights, net.branches)):  # a skip may hold a pool
                after = replace(passed, channels=want or passed.channels)
            done[i] = modules[0] if len(modules) == 1 else nn.Sequential(*modules) if modules else nn.Identity()
        return [Branches(*(done[i] for i in sorted(done)))], after


def _count(what: str, n: object) -> int:
    if not is_whole(n, least=1):
        raise NetworkError(f"{what}={n!r} is not a positive integer")
    return int(n)


def _has_weights(net: Layer) -> bool:
    """Whether there are weights in it, so that it can be told how many channels to give."""
    return any(isinstance(layer, Weighted) for _, layer in leaves(net))


def _torch(name: str, flow: _Flow) -> Any:
    """The class of torch.nn for as many axes."""
    return getattr(nn, f"{name}{len(flow.spatial)}d")


def _layer(layer: Weighted, flow: _Flow, out: Spatial, width: int, place: str) -> tuple[list[Any], Any]:
    """torch's module of the layer, among what has to be padded or flattened before it and cropped after it."""
    bias = layer.bias_var > 0
    if isinstance(layer, Dense):
        linear = nn.Linear(flow.channels * math.prod(flow.spatial), width, bias=bias)
        return [nn.Flatten(), linear] if flow.spatial else [linear], linear
    along = windows(layer, len(flow.spatial), place)
    kernel, stride, dilation, before = zip(*((w.kernel, w.stride, w.dilation, w.before) for w in along), strict=True)
    if isinstance(layer, Conv):
        plain = layer.padding_mode == "zeros" and all(w.before == w.after for w in along)
        own = before if plain else 0
        beside = () if plain else tuple(p for w in reversed(along) for p in (w.before, w.after))  # the last axis first
        padding = [_torch(_PAD[layer.padding_mode], flow)(beside)] if any(beside) else []
        conv = _torch("Conv", flow)(flow.channels, width, kernel, stride, own, dilation, bias=bias)
        return [*padding, conv], conv
    # torch pads both ends by `before`; what is then missing at the end is output_padding, what is too much is cropped.
    extra = [
        n - ((size - 1) * w.stride - 2 * w.before + w.dilation * (w.kernel - 1) + 1)
        for n, size, w in zip(out, flow.spatial, along, strict=True)
    ]
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise NetworkError(f"{place}: {layer!r}: torch's output_padding must be smaller than the stride or dilation")
    more, less = [max(e, 0) for e in extra], [side for e in reversed(extra) for side in (0, min(e, 0))]
    up = _torch("ConvTranspose", flow)(flow.channels, width, kernel, stride, before, more, 1, bias, dilation)
    return [up, _torch("ZeroPad", flow)(less)] if any(less) else [up], up


def _check_torch_pools(layer: AvgPool, spatial: Spatial, place: str) -> None:
    """PyTorch's average pool in three dimensions wants a window inside the map before padding."""
    size = layer.size if isinstance(layer.size, tuple) else (layer.size,) * len(spatial)
    if len(spatial) == 3 and any(k > n for k, n in zip(size, spatial, strict=True)):
        raise NetworkError(
            at(place, f"PyTorch has no AvgPool3d of {shape_text(size)} on a map of {shape_text(spatial)}; use less")
        )
