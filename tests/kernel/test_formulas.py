"""Every nonlinearity is known to every consumer, and its row in the table of formulas says what the reference does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnngp import (
    GELU,
    Abs,
    Cos,
    Elementwise,
    Erf,
    LayerNorm,
    LeakyReLU,
    NormalizedExp,
    Rbf,
    ReLU,
    Sign,
    Sin,
    SquaredReLU,
    Step,
    reference,
)
from cnngp.kernel.engines.cpu import back, plan, rows
from cnngp.kernel.formulas import FAMILIES, RELU, RELU_LIKE, SERIES, formula
from cnngp.network.layers import LAYERS, NetworkError, Nonlinearity
from cnngp.network.reference import formulas as derivatives

EACH = [ReLU(), ReLU(2.5), LeakyReLU(0.2), LeakyReLU(-0.5), LeakyReLU(3e9), Erf(), Abs(), Step(), Sin(), Cos(), GELU()]
EACH += [Rbf(0.1), Rbf(7.0), Elementwise("tanh"), Elementwise("softplus"), NormalizedExp(), NormalizedExp(5.0)]
EACH += [LayerNorm(), LayerNorm(eps=0.1), Sign(), SquaredReLU()]


def test_every_nonlinearity_is_tried_here() -> None:
    kinds = {layer for layer in LAYERS.values() if issubclass(layer, Nonlinearity)}
    assert kinds == {type(layer) for layer in EACH} == set(Nonlinearity.__subclasses__())


def test_every_family_is_used_and_has_what_its_layers_promise() -> None:
    assert {formula(layer).family for layer in EACH} == set(FAMILIES)
    for layer in EACH:
        row = formula(layer)
        if row.family is not SERIES:
            assert bool(row.no_slope) == (row.family.slope is None) == (row.family.slope_diagonal is None)
            assert bool(row.no_gradient) == (row.family.parts is None) == (row.family.still is None)


def test_the_cpu_has_rows_for_every_family() -> None:
    codes = {plan.CODES[family] for family in FAMILIES}
    assert codes == set(rows.PAIR_ROWS) == set(rows.VARIANCE_ROWS)
    assert set(rows.PAIR_SLOPES) == set(rows.VARIANCE_SLOPES)
    assert set(back.PAIR_BACKS) == set(back.SELF_BACKS) == set(back.STILL_BACKS)
    assert max(codes) < plan.SLOPE


@pytest.mark.parametrize("layer", EACH, ids=repr)
def test_the_reference_has_its_derivatives(layer: Nonlinearity) -> None:
    K, K1, K2 = np.array([0.3]), np.array([1.0]), np.array([2.0])
    if formula(layer).no_slope:
        with pytest.raises(NetworkError, match="has no tangent kernel"):
            derivatives.derivative(layer, K, K1, K2)
    else:
        assert np.isfinite(derivatives.derivative(layer, K, K1, K2)).all()
    if not formula(layer).no_gradient:
        assert np.isfinite(derivatives.by_variance(layer, K, K1, K2)).all()


@pytest.mark.parametrize("layer", EACH, ids=repr)
def test_pytorch_has_a_function_for_it(layer: Nonlinearity) -> None:
    pytest.importorskip("torch")
    from cnngp.torch_bridge.parts import torch_function

    assert callable(torch_function(layer))


@pytest.mark.parametrize("layer", EACH, ids=repr)
def test_the_level_is_near_the_variance_to_expect(layer: Nonlinearity) -> None:
    """Units need its power of two, to a few; GELU and Cos are told by their largest."""
    for level in (-12.0, 0.0, 2.0):
        V = reference.nonlinearity_diagonal(layer, np.array([2.0**level]))[0]
        assert abs(formula(layer).level(level) - math.log2(V)) <= 1.5


@pytest.mark.parametrize("layer", EACH, ids=repr)
def test_what_is_said_of_the_sign_holds(layer: Nonlinearity) -> None:
    rho = np.linspace(-1.0, 1.0, 41)
    V = reference.nonlinearity(layer, 2.0 * rho, np.full(41, 4.0), np.full(41, 1.0))
    sign = formula(layer).sign
    if sign == "nonnegative":
        assert (V >= 0.0).all()
    elif sign == "of K":
        assert (V[rho >= 0.0] >= 0.0).all()


@pytest.mark.parametrize("layer", [layer for layer in EACH if formula(layer).family in (RELU, RELU_LIKE)], ids=repr)
def test_the_relus_families_are_a_combination_of_the_relu_and_the_identity(layer: Nonlinearity) -> None:
    row, unit = formula(layer), 0.3
    K = np.linspace(-2.0, 2.0, 21)
    K1, K2 = np.full(21, 4.0), np.full(21, 1.0)
    R = 2.0 * reference.relu(K, K1, K2)
    V = reference.nonlinearity(layer, unit * K, unit * K1, unit * K2)
    np.testing.assert_allclose(
        row.factor(unit) * (row.alpha * R + row.beta * K), V, rtol=1e-13, atol=1e-13 * np.abs(V).max()
    )
    variance = reference.nonlinearity_diagonal(layer, unit * K1)
    np.testing.assert_allclose(row.factor(unit) * K1, variance, rtol=1e-14)
