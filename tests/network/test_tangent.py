"""The tangent kernel: its derivatives against quadrature, its recursion against finite networks and differences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cnngp import (
    GELU,
    Abs,
    AvgPool,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    LeakyReLU,
    Network,
    NetworkError,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
)
from cnngp.network import reference
from cnngp.network.layers import Nonlinearity
from cnngp.network.reference import formulas as derivatives
from helpers.gaussian_expectation import expectation
from helpers.nonlinearities import SLOPES

VARIANCES = [(0.01, 0.01), (1.0, 1.0), (4.0, 4.0), (0.01, 4.0), (1.0, 9.0)]
EACH = pytest.mark.parametrize("layer", SLOPES, ids=repr)


def slope(layer: Nonlinearity, K: float) -> Callable[[Any], Any]:
    return lambda x: SLOPES[layer](x, math.sqrt(K))


def _at(layer: Nonlinearity, K1: float, K2: float, rho: float) -> float:
    K = rho * math.sqrt(K1) * math.sqrt(K2)
    return float(derivatives.derivative(layer, *(np.array([k]) for k in (K, K1, K2)))[0])


@EACH
def test_the_derivative_is_the_expectation_of_the_slopes(layer: Nonlinearity) -> None:
    for (K1, K2), rho in itertools.product(VARIANCES, (-0.999, -0.7, 0.0, 0.5, 0.9, 0.999)):
        expected = expectation(slope(layer, K1), math.sqrt(K1), math.sqrt(K2), rho, g=slope(layer, K2))
        assert _at(layer, K1, K2, rho) == pytest.approx(expected, rel=1e-9, abs=1e-11), (K1, K2, rho)


@EACH
def test_the_diagonal_is_the_second_moment_of_the_slope(layer: Nonlinearity) -> None:
    for K in (0.01, 1.0, 9.0):
        expected = expectation(slope(layer, K), math.sqrt(K), math.sqrt(K), 1.0)
        assert float(derivatives.derivative_diagonal(layer, np.array([K]))[0]) == pytest.approx(expected, rel=1e-10)


@EACH
def test_the_derivative_is_that_of_the_covariance(layer: Nonlinearity) -> None:
    """V̇ = ∂V/∂K at fixed variances."""
    h = 1e-4
    for (K1, K2), rho in itertools.product(VARIANCES, (-0.6, 0.3, 0.8)):
        p = math.sqrt(K1 * K2)
        K = np.array([rho * p + h * p, rho * p - h * p])
        V = reference.nonlinearity(layer, K, np.full(2, K1), np.full(2, K2))
        assert _at(layer, K1, K2, rho) == pytest.approx((V[0] - V[1]) / (2 * h * p), rel=1e-5, abs=1e-7)


def test_large_variances_keep_their_digits() -> None:
    """GELU is the ReLU there: V̇ = 1/2 at correlation one, 1/4 at zero."""
    assert _at(GELU(), 1e14, 1e14, 1.0) == pytest.approx(0.5, rel=1e-6)
    assert _at(GELU(), 1e14, 1e14, 0.0) == pytest.approx(0.25, rel=1e-12)


def test_a_step_is_refused_with_the_reason() -> None:
    with pytest.raises(NetworkError, match="Step\\(\\) has no tangent kernel: its slope is zero almost everywhere"):
        reference.kernel(Sequential(Dense(), Step(), Dense()), np.eye(2), kind="ntk")


def test_a_linear_network_counts_its_layers() -> None:
    """Without nonlinearities every layer's weights contribute K: Θ = depth · K where there are no biases."""
    X = np.random.default_rng(0).normal(size=(3, 4))
    for depth in (1, 2, 5):
        net = Sequential(*[Dense(1.3)] * depth)
        np.testing.assert_allclose(reference.kernel(net, X, kind="ntk"), depth * reference.kernel(net, X), rtol=1e-13)


NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "dense": (Sequential(Dense(1.5, 0.1), Erf(), Dense(1.2, 0.3), GELU(), Dense()), (5,)),
    "convolutions": (
        Sequential(Conv(3, weight_var=2.0, bias_var=0.1), ReLU(), Conv(3, stride=2, fan_in="channels"), Sin(), Dense()),
        (2, 5, 5),
    ),
    "residual": (
        Sequential(
            Conv(3, weight_var=1.5),
            Sum(Identity(), Sequential(LeakyReLU(0.2), Conv(3, bias_var=0.2), ReLU(), Conv(3))),
            Abs(),
            Dense(bias_var=0.1),
        ),
        (1, 4, 4),
    ),
    "pools": (
        Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3, bias_var=0.1), ReLU(), GlobalAvgPool(), Dense()),
        (1, 4, 4),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("one_torch_thread")
def test_finite_networks_approach_it(name: str) -> None:
    """The empirical tangent kernel, by torch.func, averaged: within the spread of draws and a bias of 1/channels."""
    net, shape = NETWORKS[name]
    channels, draws = {"dense": (1000, 12), "pools": (300, 30)}.get(name, (300, 6))
    X = np.random.default_rng(1).normal(size=(3, *shape))
    each = np.array([_empirical(net, X, channels, seed) for seed in range(draws)])
    expected = reference.kernel(net, X, kind="ntk")
    spread = each.std(axis=0, ddof=1) / math.sqrt(draws)
    assert spread.max() <= 0.03 * expected.max(), "too few draws to tell anything"
    assert (np.abs(each.mean(axis=0) - expected) <= 5.0 * spread + 3.0 / channels * expected.max()).all()


def _empirical(net: Network, X: np.ndarray, channels: int, seed: int) -> np.ndarray:
    """Σ ∂f(x)/∂θ ∂f(x')/∂θ of one network with standard normal parameters θ."""
    import torch

    torch.manual_seed(seed)
    x = torch.from_numpy(X)
    parameters: list[Any] = []
    _forward(net, x, iter(()), parameters, channels, last=True)  # only to draw them

    def f(drawn: list[Any]) -> Any:
        return _forward(net, x, iter(drawn), [], channels, last=True).reshape(len(x))

    total = torch.zeros(len(x), len(x), dtype=x.dtype)
    for J in torch.func.jacrev(f)(parameters):
        flat = J.reshape(len(x), -1)
        total += flat @ flat.T
    return total.numpy()


def _forward(net: Network, x: Any, given: Any, made: list[Any], channels: int, last: bool) -> Any:
    """The network on a batch; parameters are taken from `given`, or drawn and put into `made`."""
    import torch
    from torch.nn import functional as F

    def parameter(*shape: int) -> Any:
        p = next(given, None)
        if p is None:
            p = torch.randn(*shape, dtype=x.dtype)
            made.append(p)
        return p

    match net:
        case Conv():
            k, C = net.kernel_size, x.shape[1]
            scale = net.weight_var / C / (k * k if net.fan_in == "patch" else 1)
            w, b = parameter(channels, C, k, k), parameter(channels)
            return F.conv2d(x, math.sqrt(scale) * w, math.sqrt(net.bias_var) * b, net.stride, k // 2)
        case Dense():
            flat = x.reshape(len(x), -1)
            w, b = parameter(1 if last else channels, flat.shape[1]), parameter(1 if last else channels)
            return flat @ (math.sqrt(net.weight_var / flat.shape[1]) * w).T + math.sqrt(net.bias_var) * b
        case ReLU() | LeakyReLU() | Erf() | GELU() | Sin() | Abs():
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
                x = _forward(layer, x, given, made, channels, last and i == len(net.layers) - 1)
            return x
        case Sum():
            return sum(_forward(branch, x, given, made, channels, False) for branch in net.branches)
        case _:
            raise NotImplementedError(repr(net))


def test_other_shapes_run() -> None:
    """1-D, 3-D and transposed layers: symmetric, positive definite, and the same from both sides."""
    for net, shape in (
        (Sequential(Conv(3), ReLU(), ConvTranspose(3, stride=2), Erf(), Dense()), (2, 6)),
        (Sequential(Conv(3), Cos(), Conv(2, padding_mode="circular"), ReLU(), GlobalAvgPool(), Dense()), (1, 2, 3, 3)),
    ):
        X = np.random.default_rng(0).normal(size=(4, *shape))
        T = reference.kernel(net, X, kind="ntk")
        np.testing.assert_allclose(T, T.T, rtol=1e-13)
        assert np.linalg.eigvalsh(T).min() > 0.0
        np.testing.assert_allclose(reference.kernel(net, X[:2], X, kind="ntk")[0, 1:], T[0, 1:], rtol=1e-13)
        assert (T.diagonal() > reference.diagonal(net, X)).all(), "the layers before the last add to K"
