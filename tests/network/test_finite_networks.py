"""Both kernels of the reference against random finite networks, written once more in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cnngp import (
    GELU,
    Abs,
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    LayerNorm,
    LeakyReLU,
    ReLU,
    Sequential,
    Sin,
    Sum,
)
from cnngp.network import Network, reference
from helpers.matrix_oracle import each, fan_in_scale, pads

torch = pytest.importorskip("torch")
F = torch.nn.functional

NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "dense": (Sequential(Dense(1.5, 0.1), Erf(), Dense(1.2, 0.3), GELU(), Dense()), (5,)),
    "convolutions": (
        Sequential(
            Conv(3, stride=2, weight_var=1.8, bias_var=0.1),
            ReLU(),
            Conv((2, 3), padding=((0, 1), 1), dilation=(2, 1), weight_var=1.5, fan_in="channels"),
            Sin(),
            Dense(1.2, 0.3),
        ),
        (2, 6, 5),
    ),
    "residual": (
        Sequential(
            Conv(3, weight_var=1.5),
            Sum(
                Identity(), Sequential(LeakyReLU(0.2), Conv(3, bias_var=0.2), ReLU(), Conv(3, padding_mode="replicate"))
            ),
            Abs(),
            Dense(bias_var=0.1),
        ),
        (1, 4, 4),
    ),
    "transposed": (
        Sequential(
            Conv(3, stride=2, padding=1, weight_var=2.0),
            ReLU(),
            ConvTranspose(3, stride=2, padding=1, output_padding=1, weight_var=2.0, bias_var=0.05),
            ReLU(),
            Dense(),
        ),
        (1, 4, 4),
    ),
    "norms": (
        Sequential(Conv(3, bias_var=0.1), LayerNorm("all", 0.1), ReLU(), Conv(3), LayerNorm("all"), ReLU(), Dense()),
        (1, 4, 4),
    ),
    "pools": (
        Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3, bias_var=0.1), ReLU(), GlobalAvgPool(), Dense()),
        (1, 4, 4),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("one_torch_thread")
def test_finite_networks_approach_both_kernels(name: str) -> None:
    """Averages over draws: within their spread and a bias of 1/channels."""
    net, shape = NETWORKS[name]
    channels, draws = {"dense": (400, 12), "pools": (100, 100)}.get(name, (200, 8))
    X = np.random.default_rng(1).normal(size=(3, *shape))
    both = [_empirical(net, X, channels, seed) for seed in range(draws)]
    for kind, drawn in (("nngp", [K for K, _ in both]), ("ntk", [T for _, T in both])):
        expected, mean = reference.kernel(net, X, kind=kind), np.mean(drawn, axis=0)  # type: ignore[arg-type]
        spread = np.std(drawn, axis=0, ddof=1) / math.sqrt(draws)
        assert spread.max() <= 0.06 * expected.max(), "too few draws to tell anything"
        assert (np.abs(mean - expected) <= 5.0 * spread + 3.0 / channels * expected.max()).all(), kind


def _empirical(net: Network, X: np.ndarray, channels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """E[f(x) f(x')] over the weights of the last layer, and Σ ∂f(x)/∂θ ∂f(x')/∂θ, of one network.

    Its parameters θ are standard normal.
    """
    torch.manual_seed(seed)
    x = torch.from_numpy(X)
    parameters: list[Any] = []
    hidden: list[Any] = []
    _forward(net, x, iter(()), parameters, channels, True, hidden)  # only to draw them
    last = net.layers[-1]  # type: ignore[attr-defined]
    K = last.bias_var + last.weight_var * hidden[-1] @ hidden[-1].T / hidden[-1].shape[1]

    def f(drawn: list[Any]) -> Any:
        return _forward(net, x, iter(drawn), [], channels, True, []).reshape(len(x))

    total = torch.zeros(len(x), len(x), dtype=x.dtype)
    for J in torch.func.jacrev(f)(parameters):
        flat = J.reshape(len(x), -1)
        total += flat @ flat.T
    return K.numpy(), total.numpy()


def _forward(net: Network, x: Any, given: Any, made: list[Any], channels: int, last: bool, hidden: list[Any]) -> Any:
    """The network on a batch; parameters are taken from `given`, or drawn and put into `made`."""

    def parameter(*shape: int) -> Any:
        p = next(given, None)
        if p is None:
            p = torch.randn(*shape, dtype=x.dtype)
            made.append(p)
        return p

    match net:
        case Conv() | ConvTranspose():
            k, C = each(net.kernel_size, 2), x.shape[1]
            stride, dilation, border = each(net.stride, 2), each(net.dilation, 2), pads(net, 2)
            scale = math.sqrt(net.weight_var * fan_in_scale(net, 2) / C)
            b = math.sqrt(net.bias_var) * parameter(channels)
            if isinstance(net, ConvTranspose):
                w = scale * parameter(C, channels, *k)
                cut, extra = [before for before, _ in border], each(net.output_padding, 2)
                return F.conv_transpose2d(x, w, b, stride, cut, extra, 1, dilation)
            mode = {"zeros": "constant"}.get(net.padding_mode, net.padding_mode)
            padded = F.pad(x, [p for pair in reversed(border) for p in pair], mode)
            return F.conv2d(padded, scale * parameter(channels, C, *k), b, stride, 0, dilation)
        case Dense():
            flat = x.reshape(len(x), -1)
            hidden.append(flat)
            w, b = parameter(1 if last else channels, flat.shape[1]), parameter(1 if last else channels)
            return flat @ (math.sqrt(net.weight_var / flat.shape[1]) * w).T + math.sqrt(net.bias_var) * b
        case ReLU() | LeakyReLU() | Erf() | GELU() | Sin() | Abs() | LayerNorm():
            from cnngp.torch_bridge.parts import torch_function

            return torch_function(net)(x)
        case AvgPool():
            return F.avg_pool2d(x, net.size)
        case GlobalAvgPool():
            return x.mean(dim=(2, 3))
        case Identity():
            return x
        case Sequential():
            for i, layer in enumerate(net.layers):
                x = _forward(layer, x, given, made, channels, last and i == len(net.layers) - 1, hidden)
            return x
        case Sum():
            return sum(_forward(branch, x, given, made, channels, False, hidden) for branch in net.branches)
        case _:
            raise NotImplementedError(repr(net))
