"""Modules that finite networks need and `torch.nn` lacks. The importer knows them all, so they round-trip."""

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
    Cos,
    Elementwise,
    Erf,
    LayerNorm,
    LeakyReLU,
    Nonlinearity,
    NormalizedExp,
    Rbf,
    ReLU,
    Sign,
    Sin,
    SquaredReLU,
    Step,
)

# fmt: off
NAMED: dict[str, Callable[[Any], Any]] = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu, "softplus": F.softplus, "elu": F.elu, "selu": F.selu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"), "softsign": F.softsign, "mish": F.mish, "hardtanh": F.hardtanh,
    "relu6": F.relu6, "hardswish": F.hardswish, "arctan": torch.arctan, "gaussian": lambda x: torch.exp(-x.square()),
}
# fmt: on
"""PyTorch versions of the named functions of `Elementwise`."""
_OF_TENSORS: dict[type, Callable[[Any], Callable[[Any], Any]]] = {
    Erf: lambda layer: torch.erf,
    Abs: lambda layer: torch.abs,
    Sin: lambda layer: torch.sin,
    Cos: lambda layer: torch.cos,
    Sign: lambda layer: torch.sign,
    GELU: lambda layer: F.gelu,
    SquaredReLU: lambda layer: lambda x: torch.relu(x).square(),
    Step: lambda layer: lambda x: (x > 0).to(x.dtype),
    ReLU: lambda layer: torch.relu if layer.gain == 1.0 else lambda x: torch.relu(x).mul_(layer.gain),
    LeakyReLU: lambda layer: partial(F.leaky_relu, negative_slope=layer.slope),
    Rbf: lambda layer: lambda x: _sine(x * math.sqrt(2.0 * layer.gamma)),
    NormalizedExp: lambda layer: lambda x: _normalized_exp(x, math.sqrt(layer.gamma)),
    LayerNorm: lambda layer: lambda x: x * _inverse_scale(x, layer.eps, layer.over),
    Elementwise: lambda layer: NAMED.get(layer.fn) or partial(_through, as_callable(layer.fn)),
}


def torch_function(layer: Nonlinearity) -> Callable[[Any], Any]:
    """Return the nonlinearity as a function of a tensor. It leaves its argument unchanged."""
    return _OF_TENSORS[type(layer)](layer)


def _through(fn: Callable[[Any], Any], x: Any) -> Any:
    """Apply an elementwise function of NumPy arrays to a tensor."""
    return _Through.apply(x, fn)


class _Through(torch.autograd.Function):  # type: ignore[misc]
    """Makes `backward` raise: without an autograd function the gradient would silently be 0."""

    @staticmethod
    def forward(ctx: Any, x: Any, fn: Callable[[Any], Any]) -> Any:
        if x.device.type == "meta":  # the importer traces shapes without data
            return torch.empty_like(x)
        values = fn(x.detach().to("cpu", torch.float64).numpy())
        return torch.as_tensor(values, dtype=x.dtype, device=x.device)


def _sine(x: Any) -> Any:
    """sin x + cos x = √2 sin(x + π/4)."""
    return torch.sin(x + math.pi / 4.0).mul_(math.sqrt(2.0))


def _inverse_scale(x: Any, eps: float = 0.0, over: str = "channels") -> Any:
    """1/√(mean square + eps), 0 where that sum is 0; the mean is over channels, or over channels and locations."""
    mean = x.square().mean(1 if over == "channels" else tuple(range(1, x.ndim)), keepdim=True) + eps
    return torch.where(mean > 0, mean, torch.inf).rsqrt()


def _normalized_exp(x: Any, a: float) -> Any:
    """s (sin(ax/s) + cos(ax/s)), with s² the mean square over the channels."""
    inverse = _inverse_scale(x)
    return _sine(x * (a * inverse)) * torch.where(inverse > 0, 1.0 / inverse, 0.0)


class Activation(nn.Module):  # type: ignore[misc]
    """A nonlinearity for which `torch.nn` has no module."""

    def __init__(self, layer: Nonlinearity) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return torch_function(self.layer)(x)

    def extra_repr(self) -> str:
        return repr(self.layer)


class Broadcast(nn.Module):  # type: ignore[misc]
    """Repeats channels, so that a skip fits the branch it is added to; (1/C) Σ_c x_c x'_c does not change.

    With fewer channels out than in, it keeps the first ones: correct only for hidden channels, which are exchangeable.
    """

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.channels, self.out_channels = channels, out_channels

    def forward(self, x: Any) -> Any:
        source = torch.arange(self.out_channels, device=x.device) % self.channels
        copies = (self.out_channels - 1 - source) // self.channels + 1
        # Each output channel copies an input channel; one that is copied n_c times is scaled by √(C_out/(C·n_c)).
        scale = torch.sqrt(max(self.out_channels, self.channels) / (self.channels * copies.double())).to(x.dtype)
        return x[:, source] * scale.reshape(-1, *[1] * (x.ndim - 2))

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.out_channels}"


class Branches(nn.Module):  # type: ignore[misc]
    """Sum of branches that share one input."""

    def __init__(self, *branches: Any) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        total = self.branches[0](x)
        for branch in self.branches[1:]:
            total = total + branch(x)
        return total


OWN_LEAVES = (Activation, Broadcast)
