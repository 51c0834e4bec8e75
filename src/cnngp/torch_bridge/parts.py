"""The few modules that finite networks need and `torch.nn` lacks. The importer knows them all, so they round-trip."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cnngp.network.functions import as_callable
from cnngp.network.layers import (
    GELU,
    Abs,
    AvgPool,
    Cos,
    Elementwise,
    Erf,
    LeakyReLU,
    Nonlinearity,
    Pool,
    Rbf,
    ReLU,
    Sin,
    Step,
)

# fmt: off
NAMED: dict[str, Callable[[Any], Any]] = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu, "softplus": F.softplus, "elu": F.elu, "selu": F.selu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"), "softsign": F.softsign, "mish": F.mish, "hardtanh": F.hardtanh,
    "relu6": F.relu6, "hardswish": F.hardswish, "arctan": torch.arctan, "gaussian": lambda x: torch.exp(-x.square()),
}
# fmt: on
"""PyTorch's own form of the named functions of `Elementwise`."""


def _through_numpy(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        if x.device.type == "meta":  # the importer runs on shapes alone
            return torch.empty_like(x)
        values = fn(x.detach().to("cpu", torch.float64).numpy())
        return torch.as_tensor(values, dtype=x.dtype, device=x.device)

    return apply


def torch_function(layer: Nonlinearity) -> Callable[[Any], Any]:
    """The nonlinearity as a function of a tensor. It makes a new tensor."""
    match layer:
        case ReLU():
            gain = layer.gain
            return torch.relu if gain == 1.0 else lambda x: torch.relu(x).mul_(gain)
        case LeakyReLU():
            return lambda x: F.leaky_relu(x, layer.slope)
        case Erf():
            return torch.erf  # type: ignore[no-any-return]
        case Abs():
            return torch.abs  # type: ignore[no-any-return]
        case Step():
            return lambda x: (x > 0).to(x.dtype)
        case Sin():
            return torch.sin  # type: ignore[no-any-return]
        case Cos():
            return torch.cos  # type: ignore[no-any-return]
        case Rbf():
            a = math.sqrt(2.0 * layer.gamma)  # sin(az) + cos(az) = √2 sin(az + π/4)
            return lambda x: torch.sin(x * a + math.pi / 4.0).mul_(math.sqrt(2.0))
        case GELU():
            return F.gelu
        case Elementwise():
            if isinstance(layer.fn, str) and layer.fn in NAMED:
                return NAMED[layer.fn]
            return _through_numpy(as_callable(layer.fn))
        case _:
            raise NotImplementedError(f"{layer!r} has no function of a tensor")


_AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def average(layer: Pool) -> Callable[[Any], Any]:
    """The pool as a function of a tensor (batch, channels, …). It makes a new tensor."""
    if isinstance(layer, AvgPool):
        return lambda x: _AVG_POOL[x.ndim - 2](
            x, layer.size, layer.stride, layer.padding, count_include_pad=layer.count_include_pad
        )
    return lambda x: x.flatten(2).mean(2) if x.ndim > 2 else x.clone()


class Activation(nn.Module):  # type: ignore[misc]
    """Any nonlinearity of a network that `torch.nn` has no module for."""

    def __init__(self, layer: Nonlinearity) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return torch_function(self.layer)(x)

    def extra_repr(self) -> str:
        return repr(self.layer)


def broadcast(channels: int, out_channels: int) -> tuple[Any, Any]:
    """Which channel each output channel copies, and its factor: √(C_out/(C·n_c)) for one that is copied n_c times."""
    with torch.device("cpu"):
        source = torch.arange(out_channels) % channels
        copies = torch.bincount(source, minlength=channels)[source].to(torch.float64)
        return source, torch.sqrt(max(out_channels, channels) / (channels * copies))


class Broadcast(nn.Module):  # type: ignore[misc]
    """Channels repeated, so that a skip fits the branch it is added to; (1/C) Σ_c x_c x'_c does not change.

    With fewer channels out than in, the first ones stand for all: only right for hidden channels, which are alike.
    """

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.channels, self.out_channels = channels, out_channels
        self.source: Any
        self.scale: Any
        self.register_buffer("source", torch.empty(out_channels, dtype=torch.int64), persistent=False)
        self.register_buffer("scale", torch.empty(out_channels, dtype=torch.float64), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Fill the buffers, which are empty after a module came off the meta device."""
        source, scale = broadcast(self.channels, self.out_channels)
        self.source = source.to(self.source.device)
        self.scale = scale.to(self.scale)

    def forward(self, x: Any) -> Any:
        scale = self.scale.to(x.dtype).reshape(-1, *[1] * (x.ndim - 2))
        return x[:, self.source] * scale

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.out_channels}"


class Crop(nn.Module):  # type: ignore[misc]
    """Drops the last locations of each axis: an even transposed convolution with padding "same" needs it."""

    def __init__(self, ends: tuple[int, ...]) -> None:
        super().__init__()
        self.ends = ends

    def forward(self, x: Any) -> Any:
        for axis, end in enumerate(self.ends):
            x = x.narrow(2 + axis, 0, x.shape[2 + axis] - end)
        return x.contiguous()

    def extra_repr(self) -> str:
        return repr(self.ends)


class Branches(nn.Module):  # type: ignore[misc]
    """The sum of its branches."""

    def __init__(self, *branches: Any) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        total = self.branches[0](x)
        for branch in self.branches[1:]:
            total = total + branch(x)
        return total


OWN_LEAVES = (Activation, Broadcast, Crop)
