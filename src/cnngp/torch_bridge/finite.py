"""Build a finite PyTorch module from a network: choose each layer's channels, and widen skips to match."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import torch
from torch import nn

from cnngp.common.errors import is_whole
from cnngp.network.composition import check_network
from cnngp.network.layers import (
    GELU,
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Elementwise,
    GlobalAvgPool,
    Identity,
    LeakyReLU,
    Network,
    NetworkError,
    Nonlinearity,
    ReLU,
    Sequential,
    Sum,
    as_layer,
)
from cnngp.network.placed import Placed, placed
from cnngp.network.shapes import check_input_shape, shape_text, sum_scale, windows
from cnngp.network.walk import leaves

from .parts import Activation, Branches, Broadcast
from .sampling import Finite

Channels = int | Sequence[int] | Mapping[str, int]
Weighted = Conv | ConvTranspose | Dense

_HOW = "give one number for each layer with weights except those that make the output"
_PAD = {"zeros": "ZeroPad", "circular": "CircularPad", "reflect": "ReflectionPad", "replicate": "ReplicationPad"}
_ACTIVATIONS = {ReLU(): nn.ReLU, GELU(): nn.GELU, Elementwise("tanh"): nn.Tanh, Elementwise("silu"): nn.SiLU}


def build_finite(
    net: Network, channels: Channels, input_shape: Sequence[int], outputs: int, dtype: Any, device: Any
) -> Finite:
    """Build the module, whose weights are not drawn yet, with their standard deviations."""
    layer = as_layer(net)
    c, spatial = check_input_shape(input_shape)
    check_network(layer)
    root = placed(layer, spatial)
    if math.prod(root.after) != 1:
        raise NetworkError(f"the network has {shape_text(root.after)} output locations; end it in Dense()")
    builder = _Builder(channels)
    with torch.device("meta"):  # skips PyTorch's own initialisation, which would be overwritten
        parts, _ = builder.build(root, _Flow(c, 0, True), _count("outputs", outputs), last=True)
    if left := [*builder.by_order, *builder.by_place]:
        raise NetworkError(f"channels: {left} belong to no layer; {_HOW}")
    module = parts[0] if len(parts) == 1 and isinstance(parts[0], nn.Sequential) else nn.Sequential(*parts)
    if root.after:
        module.append(nn.Flatten())
    module = module.to_empty(device=device).to(dtype)
    names = {part: name for name, part in module.named_modules()}
    stds = {f"{name}.{which}": s for p, name in names.items() for which, s in builder.stds.get(p, {}).items()}
    return Finite(module, stds, outputs)


@dataclass(frozen=True)
class _Flow:
    """State of the activations before a layer. `level` is the number of downsampling minus upsampling layers so far."""

    channels: int
    level: int
    is_input: bool = False


class _Builder:
    """Builds modules; `channels` is one width for all, widths in the order of the layers, or widths by place."""

    def __init__(self, channels: Channels) -> None:
        self.by_order: list[int] = []
        self.by_place: dict[str, int] = {}
        self.stds: dict[Any, dict[str, float]] = {}
        """Standard deviations of the weights and biases of each module."""
        if isinstance(channels, Mapping):
            self.by_place = {place: _count("channels", n) for place, n in channels.items()}
        elif isinstance(channels, Sequence):
            self.by_order = [_count("channels", n) for n in channels]
        self.ordered = isinstance(channels, Sequence)
        is_one = not isinstance(channels, Mapping | Sequence)
        self.base = _count("channels", channels) if is_one else self.by_place.pop("*", 64)

    def build(self, here: Placed, flow: _Flow, want: int | None, last: bool) -> tuple[list[Any], _Flow]:
        """Modules to run in series, and the flow after them. `want` is the required number of output channels, and
        `last` is True if these are the network's outputs."""
        match here.layer:
            case Conv() | ConvTranspose() | Dense() as net:
                return self._weighted(net, here, flow, want, last)
            case LeakyReLU(slope):
                return [nn.LeakyReLU(slope)], flow
            case Nonlinearity() as net:
                return [_ACTIVATIONS[net]() if net in _ACTIVATIONS else Activation(net)], flow
            case Identity():
                return [], flow
            case AvgPool() as net:
                size = [w.kernel for w in windows(net, len(here.before), here.place)]
                if len(size) == 3 and any(k > n for k, n in zip(size, here.before, strict=True)):
                    told = f"PyTorch has no AvgPool3d of {shape_text(tuple(size))} on a map of"
                    raise NetworkError(f"{told} {shape_text(here.before)}; use less", here.place)
                pool = _torch("AvgPool", here)(net.size, net.stride, net.padding, False, net.count_include_pad)
                return [pool], replace(flow, level=flow.level + _downsamples(here))
            case GlobalAvgPool():
                return ([_torch("AdaptiveAvgPool", here)(1), nn.Flatten()] if here.before else []), flow
            case Sequential():
                modules: list[Any] = []
                final = max((i for i, inner in enumerate(here.children) if _has_weights(inner)), default=-1)
                for i, inner in enumerate(here.children):
                    some, flow = self.build(inner, flow, want if i == final else None, last and i == final)
                    modules += some
                return modules, flow
            case Sum():
                return self._parallel(here, flow, want, last)
            case _:
                assert_never(here.layer)

    def _weighted(
        self, layer: Weighted, here: Placed, flow: _Flow, want: int | None, last: bool
    ) -> tuple[list[Any], _Flow]:
        level = flow.level + _downsamples(here)
        told = None if last else self._told(here.place)
        if told is not None and want is not None and told != want:
            asked = f"channels={told} is asked for, but the Sum it ends in has {want} channels"
            raise NetworkError(asked, here.place)
        width = want or told or self.base * 2 ** max(level, 0)
        parts, module = _layer(layer, here, flow.channels, width)
        module.cnngp_layer = layer
        # √(weight_var · s / channels in), so that a sum over the channels has the layer's variance
        self.stds[module] = {"weight": math.sqrt(sum_scale(layer, here.before) / flow.channels)}
        if layer.bias_var > 0:
            self.stds[module]["bias"] = math.sqrt(layer.bias_var)
        return parts, _Flow(width, level)

    def _told(self, place: str) -> int | None:
        if not self.ordered:
            return self.by_place.pop(place, None)
        if not self.by_order:
            raise NetworkError(f"channels has no number left for it; {_HOW}", place or "the network")
        return self.by_order.pop(0)

    def _parallel(self, here: Placed, flow: _Flow, want: int | None, last: bool) -> tuple[list[Any], _Flow]:
        """Build a sum. Branches with weights come first: they determine the number of channels of the others."""
        weighted = [_has_weights(branch) for branch in here.children]
        if want is None and not flow.is_input and not all(weighted):
            want = flow.channels
        done: dict[int, Any] = {}
        after = flow
        for i in sorted(range(len(weighted)), key=lambda i: not weighted[i]):
            modules, passed = self.build(here.children[i], flow, want if weighted[i] else None, last)
            if weighted[i]:
                want = passed.channels
            elif want is not None and want != flow.channels:
                if flow.is_input and want < flow.channels:
                    told = f"the skip carries the input's {flow.channels} channels into {want}; use more channels"
                    raise NetworkError(told, here.place)
                modules.append(Broadcast(flow.channels, want))
            if weighted[i] or not any(weighted):  # a skip may hold a pool
                after = replace(passed, channels=want or passed.channels)
            done[i] = modules[0] if len(modules) == 1 else nn.Sequential(*modules) if modules else nn.Identity()
        return [Branches(*(done[i] for i in sorted(done)))], after


def _count(what: str, n: object) -> int:
    if not is_whole(n, least=1):
        raise NetworkError(f"{what}={n!r} is not a positive integer")
    return int(n)


def _has_weights(here: Placed) -> bool:
    """True if it contains weights, so that its number of output channels can be chosen."""
    return any(isinstance(layer, Weighted) for _, layer in leaves(here.layer))


def _downsamples(here: Placed) -> int:
    """1 for a layer with a stride, −1 for a transposed one, else 0, also for a dense layer or global pool."""
    layer = here.layer
    if not isinstance(layer, Conv | ConvTranspose | AvgPool):
        return 0
    moves = any(w.stride != 1 for w in windows(layer, len(here.before), here.place))
    return -moves if isinstance(layer, ConvTranspose) else int(moves)


def _torch(name: str, here: Placed) -> Any:
    """The class of torch.nn for this number of spatial axes, such as Conv2d."""
    return getattr(nn, f"{name}{len(here.before)}d")


def _layer(layer: Weighted, here: Placed, channels: int, width: int) -> tuple[list[Any], Any]:
    """Modules of a layer, with padding or flattening before it and cropping after it; and the one with weights."""
    bias = layer.bias_var > 0
    if isinstance(layer, Dense):
        linear = nn.Linear(channels * math.prod(here.before), width, bias=bias)
        return [nn.Flatten(), linear] if here.before else [linear], linear
    along = windows(layer, len(here.before), here.place)
    kernel, stride, dilation, before = zip(*((w.kernel, w.stride, w.dilation, w.before) for w in along), strict=True)
    if isinstance(layer, Conv):
        plain = layer.padding_mode == "zeros" and all(w.before == w.after for w in along)
        own = before if plain else 0
        beside = () if plain else tuple(p for w in reversed(along) for p in (w.before, w.after))  # the last axis first
        padding = [_torch(_PAD[layer.padding_mode], here)(beside)] if any(beside) else []
        conv = _torch("Conv", here)(channels, width, kernel, stride, own, dilation, bias=bias)
        return [*padding, conv], conv
    # PyTorch pads both ends by `before`; output_padding adds what is missing at the end, a crop removes any excess.
    extra = [
        n - ((size - 1) * w.stride - 2 * w.before + w.reach)
        for n, size, w in zip(here.after, here.before, along, strict=True)
    ]
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise NetworkError(f"{layer!r}: torch's output_padding must be smaller than the stride or dilation", here.place)
    more, less = [max(e, 0) for e in extra], [side for e in reversed(extra) for side in (0, min(e, 0))]
    up = _torch("ConvTranspose", here)(channels, width, kernel, stride, before, more, 1, bias, dilation)
    return [up, _torch("ZeroPad", here)(less)] if any(less) else [up], up
