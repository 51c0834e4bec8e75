"""Each closed form of the reference against two-dimensional quadrature of E[φ(u) φ(v)]."""

import itertools
import math

import numpy as np
import pytest

from cnngp.network import reference
from cnngp.network.functions import FUNCTIONS as NAMED
from cnngp.network.layers import GELU, Abs, Elementwise, Erf, LeakyReLU, NormalizedExp, ReLU, Sign, Sin, Step
from helpers.gaussian_expectation import expectation, one_dimensional
from helpers.nonlinearities import PHI

VARIANCES = [0.0, 1e-12, 0.01, 1.0, 4.0, 100.0]
PAIRS = [(v, v) for v in VARIANCES] + [(0.0, 4.0), (1e-12, 1.0), (1e-12, 100.0), (0.01, 4.0), (1.0, 4.0), (100.0, 0.01)]
CORRELATIONS = [-1.0, -0.999, -0.7, 0.0, 0.5, 0.9, 0.999, 1.0]
LAYERS = pytest.mark.parametrize("layer", PHI, ids=repr)


def closed_form(layer, K1, K2, rho):
    K = rho * math.sqrt(K1) * math.sqrt(K2)
    return float(reference.nonlinearity(layer, *(np.array([k]) for k in (K, K1, K2)))[0])


def phi(layer, K):
    """The function at a location where the variance is K."""
    return lambda x: PHI[layer](x, math.sqrt(K))


def size(layer, K):
    """√E[φ(u)²]."""
    return math.sqrt(one_dimensional(phi(layer, K), math.sqrt(K), power=2))


@LAYERS
def test_pair_formula_is_the_expectation(layer):
    checked = 0
    for (K1, K2), rho in itertools.product(PAIRS, CORRELATIONS):
        if min(K1, K2) == 0.0 and rho != 0.0:
            continue  # a constant has no correlation
        expected = expectation(phi(layer, K1), math.sqrt(K1), math.sqrt(K2), rho, g=phi(layer, K2))
        # Relative accuracy, and rounding on the scale of √(E[φ(u)²] E[φ(v)²]) where cancellation leaves less than that.
        floor = 1e-15 * size(layer, K1) * size(layer, K2)
        # At |ρ| = 1 a rounding error of ρ moves θ, so Step and Sign by √ε.
        slope = 6e-8 if isinstance(layer, Step | Sign) and abs(rho) == 1.0 else 0.0
        assert closed_form(layer, K1, K2, rho) == pytest.approx(expected, rel=1e-10, abs=floor + slope), (K1, K2, rho)
        checked += expected != 0.0
    assert checked > 60


@LAYERS
@pytest.mark.parametrize("K", VARIANCES)
def test_diagonal_formula_is_the_second_moment(layer, K):
    value = float(reference.nonlinearity_diagonal(layer, np.array([K]))[0])
    jump = {Step(): 0.5, Sign(): 1.0}.get(layer)
    expected = jump * (K > 0) if jump else one_dimensional(phi(layer, K), math.sqrt(K), power=2)
    assert value == pytest.approx(expected, rel=1e-12, abs=1e-30 if K == 0.0 else 0.0)


@pytest.mark.parametrize("layer", [ReLU(), LeakyReLU(0.1), Abs(), NormalizedExp(2.0)], ids=repr)
@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_homogeneous_functions_scale_with_the_variance(layer, scale):
    for rho in CORRELATIONS:
        small, large = closed_form(layer, 1.0, 4.0, rho), closed_form(layer, scale, 4.0 * scale, rho)
        assert large == pytest.approx(scale * small, rel=1e-12, abs=1e-15 * scale)


@pytest.mark.parametrize("layer", [Erf(), GELU()], ids=repr)
@pytest.mark.parametrize("K", [1e4, 1e8, 1e12, 1e16])
def test_huge_variance_keeps_its_digits(layer, K):
    # The arcsine of the textbook formulas is at most 1 here and would leave 7 digits at 1e16.
    expected = one_dimensional(phi(layer, K), math.sqrt(K), power=2)
    assert float(reference.nonlinearity_diagonal(layer, np.array([K]))[0]) == pytest.approx(
        expected, rel=3e-15, abs=0.0
    )


@pytest.mark.parametrize("layer", [Erf(), Sin(), GELU()], ids=repr)
def test_tiny_variance_keeps_its_digits(layer):
    # φ(x) ≈ φ'(0) x: V ≈ φ'(0)² K.
    slope = {Erf(): 2.0 / math.sqrt(math.pi), Sin(): 1.0, GELU(): 0.5}[layer]
    for rho in (-0.7, 0.5, 1.0):
        assert closed_form(layer, 1e-20, 4e-20, rho) == pytest.approx(slope**2 * rho * 2e-20, rel=1e-14, abs=0.0)


@pytest.mark.parametrize(
    ("name", "error"), [("tanh", 1e-13), ("silu", 1e-13), ("arctan", 1e-13), ("gaussian", 1e-13), ("elu", 1e-7)]
)
def test_elementwise_is_the_expectation(name, error):
    for s1, s2, rho in [
        (0.0, 1.0, 0.0),
        (0.1, 4.0, 0.5),
        (1.0, 2.0, -0.9),
        (5.0, 4.0, 0.999),
        (0.3, 0.4, 0.2),
        (3.0, 3.0, -1.0),
    ]:
        K = rho * s1 * s2
        value = reference.nonlinearity(Elementwise(name), *(np.array([k]) for k in (K, s1**2, s2**2)))
        expected = expectation(NAMED[name], s1, s2, rho)
        assert float(value[0]) == pytest.approx(expected, rel=error, abs=error), (s1, s2, rho)
