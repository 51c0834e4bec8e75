"""The reference's formulas and their derivatives against quadrature of E[φ(u) φ(v)], and against differences."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from cnngp.network import reference
from cnngp.network.layers import GELU, Erf, Sign, Sin, Step
from cnngp.network.reference import formulas
from helpers.gaussian_expectation import expectation, one_dimensional
from helpers.nonlinearities import PHI, SLOPES

VARIANCES = [0.0, 1e-12, 0.01, 1.0, 4.0, 100.0]
PAIRS = [(v, v) for v in VARIANCES] + [(0.0, 4.0), (1e-12, 1.0), (1e-12, 100.0), (0.01, 4.0), (1.0, 4.0), (100.0, 0.01)]
CORRELATIONS = [-1.0, -0.999, -0.7, 0.0, 0.5, 0.9, 0.999, 1.0]
LAYERS = pytest.mark.parametrize("layer", PHI, ids=repr)
WITH_SLOPE = pytest.mark.parametrize("layer", SLOPES, ids=repr)


def at(of: Any, layer: Any, K1: float, K2: float, rho: float) -> float:
    """A formula of a pair of locations."""
    K = rho * math.sqrt(K1) * math.sqrt(K2)
    return float(of(layer, *(np.array([k]) for k in (K, K1, K2)))[0])


def closed_form(layer: Any, K1: float, K2: float, rho: float) -> float:
    return at(reference.nonlinearity, layer, K1, K2, rho)


def diagonal(layer: Any, K: float) -> float:
    return float(reference.nonlinearity_diagonal(layer, np.array([K]))[0])


def phi(layer: Any, K: float, functions: Any = PHI) -> Any:
    """The function at a location where the variance is K."""
    return lambda x: functions[layer](x, math.sqrt(K))


def second_moment(layer: Any, K: float) -> float:
    return one_dimensional(phi(layer, K), math.sqrt(K), power=2)


@LAYERS
def test_pair_formula_is_the_expectation(layer: Any) -> None:
    checked = 0
    for (K1, K2), rho in itertools.product(PAIRS, CORRELATIONS):
        if min(K1, K2) == 0.0 and rho != 0.0:
            continue  # a constant has no correlation
        expected = expectation(phi(layer, K1), math.sqrt(K1), math.sqrt(K2), rho, g=phi(layer, K2))
        # Relative accuracy, and rounding on the scale of √(E[φ(u)²] E[φ(v)²]) where cancellation leaves less than that.
        floor = 1e-15 * math.sqrt(second_moment(layer, K1) * second_moment(layer, K2))
        # At |ρ| = 1 a rounding error of ρ moves θ, so Step and Sign by √ε.
        slope = 6e-8 if isinstance(layer, Step | Sign) and abs(rho) == 1.0 else 0.0
        assert closed_form(layer, K1, K2, rho) == pytest.approx(expected, rel=1e-10, abs=floor + slope), (K1, K2, rho)
        checked += expected != 0.0
    assert checked > 60


@LAYERS
@pytest.mark.parametrize("K", VARIANCES)
def test_diagonal_formula_is_the_second_moment(layer: Any, K: float) -> None:
    jump = {Step(): 0.5, Sign(): 1.0}.get(layer)
    expected = jump * (K > 0) if jump else second_moment(layer, K)
    assert diagonal(layer, K) == pytest.approx(expected, rel=1e-12, abs=1e-30 if K == 0.0 else 0.0)


def test_huge_and_tiny_variances_keep_their_digits() -> None:
    for layer, K in itertools.product((Erf(), GELU()), (1e4, 1e8, 1e12, 1e16)):
        # The arcsine of the textbook formulas is at most 1 here and would leave 7 digits at 1e16.
        assert diagonal(layer, K) == pytest.approx(second_moment(layer, K), rel=3e-15, abs=0.0)
    # GELU is the ReLU there: V̇ = 1/2 at correlation one, 1/4 at zero.
    for rho, slope, close in ((1.0, 0.5, 1e-6), (0.0, 0.25, 1e-12)):
        assert at(formulas.derivative, GELU(), 1e14, 1e14, rho) == pytest.approx(slope, rel=close)
    # φ(x) ≈ φ'(0) x: V ≈ φ'(0)² K.
    for layer, slope in ((Erf(), 2.0 / math.sqrt(math.pi)), (Sin(), 1.0), (GELU(), 0.5)):
        for rho in (-0.7, 0.5, 1.0):
            assert closed_form(layer, 1e-20, 4e-20, rho) == pytest.approx(slope**2 * rho * 2e-20, rel=1e-14, abs=0.0)


@WITH_SLOPE
def test_the_derivative_is_the_expectation_of_the_slopes(layer: Any) -> None:
    pairs = [(0.01, 0.01), (1.0, 1.0), (4.0, 4.0), (0.01, 4.0), (1.0, 9.0)]
    for (K1, K2), rho in itertools.product(pairs, (-0.999, -0.7, 0.0, 0.5, 0.9, 0.999)):
        slopes = phi(layer, K1, SLOPES), phi(layer, K2, SLOPES)
        expected = expectation(slopes[0], math.sqrt(K1), math.sqrt(K2), rho, g=slopes[1])
        found = at(formulas.derivative, layer, K1, K2, rho)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-11), (K1, K2, rho)
    for K in (0.01, 1.0, 9.0):
        expected = expectation(phi(layer, K, SLOPES), math.sqrt(K), math.sqrt(K), 1.0)
        assert float(formulas.derivative_diagonal(layer, np.array([K]))[0]) == pytest.approx(expected, rel=1e-10)
