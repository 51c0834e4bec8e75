"""The tangent kernel: its derivatives against quadrature and differences, and properties of its recursion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cnngp import GELU, Dense, NetworkError, Sequential, Step
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
    for K in (0.01, 1.0, 9.0):
        expected = expectation(slope(layer, K), math.sqrt(K), math.sqrt(K), 1.0)
        assert float(derivatives.derivative_diagonal(layer, np.array([K]))[0]) == pytest.approx(expected, rel=1e-10)


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
