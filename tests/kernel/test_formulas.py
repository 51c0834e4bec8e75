"""Every nonlinearity is known to every consumer, and its row in the table of formulas says what the reference does."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from cnngp import GELU, Abs, Cos, Elementwise, Erf, LayerNorm, LeakyReLU, NetworkError
from cnngp.kernel.formulas import FAMILIES, SERIES, formula
from cnngp.network import reference
from cnngp.network.layers import LAYERS, Nonlinearity, NormalizedExp, Rbf, ReLU, Sign, Sin, SquaredReLU, Step
from cnngp.network.reference import formulas as derivatives
from helpers.derivatives import by_own_variance, by_variance

EACH = [ReLU(), ReLU(2.5), LeakyReLU(0.2), LeakyReLU(-0.5), LeakyReLU(3e9), Erf(), Abs(), Step(), Sin(), Cos(), GELU()]
EACH += [Rbf(0.1), Rbf(7.0), Elementwise("tanh"), Elementwise("softplus"), NormalizedExp(), NormalizedExp(5.0)]
EACH += [LayerNorm(), LayerNorm(eps=0.1), LayerNorm("all"), Sign(), SquaredReLU()]


def test_every_nonlinearity_and_every_family_is_tried_here() -> None:
    kinds = {layer for layer in LAYERS.values() if issubclass(layer, Nonlinearity)}
    assert kinds == {type(layer) for layer in EACH} == set(Nonlinearity.__subclasses__())
    assert {formula(layer).family for layer in EACH} == set(FAMILIES)
    for row in map(formula, EACH):
        if row.family is not SERIES:
            assert bool(row.no_slope) == (row.family.slope is None) == (row.family.slope_diagonal is None)
            assert bool(row.no_gradient) == (row.family.parts is None) == (row.family.still is None)
    pytest.importorskip("torch")
    from cnngp.torch_bridge.parts import torch_function

    assert all(callable(torch_function(layer)) for layer in EACH)


UNIT = 0.3
"""Of a map's numbers, and no power of two."""
CLOSED = [layer for layer in EACH if formula(layer).family is not SERIES]
POINTS = [
    (rho * math.sqrt(K1 * K2), K1, K2) for K1, K2 in ((1.0, 2.0), (0.01, 4.0)) for rho in (-0.9, -0.2, 0.0, 0.6, 0.95)
]


def on_numbers(layer: Nonlinearity) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A layer's formulas of pairs, and of an image alone, on Python's own numbers."""
    row, f = formula(layer), formula(layer).family
    own = UNIT * row.argument, row.alpha, 1e-150
    constants = f.constants(own[0], row.alpha, row.beta)

    def pair(which: str, K: float, *variances: float) -> Any:
        tables = [f.table(v / UNIT, own) for v in variances]  # type: ignore[misc]
        return getattr(f, which)(K / UNIT, *tables, constants)

    return pair, lambda which, K: getattr(f, which)(K / UNIT, own)


def expected(of: Callable[..., Any], layer: Nonlinearity, *numbers: float) -> float:
    return float(of(layer, *(np.array([x]) for x in numbers))[0])


@pytest.mark.parametrize("layer", CLOSED, ids=repr)
def test_the_functions_of_a_family_are_those_of_the_reference(layer: Nonlinearity) -> None:
    (pair, alone), factor, slopes = on_numbers(layer), formula(layer).factor(UNIT), not formula(layer).no_slope
    exact, close = (partial(pytest.approx, rel=rel, abs=rel / 100) for rel in (1e-11, 1e-10))
    scale = factor / UNIT
    for K, K1, K2 in POINTS:
        assert factor * pair("value", K, K1, K2) == exact(expected(reference.nonlinearity, layer, K, K1, K2))
        assert factor * alone("diagonal", K1) == exact(expected(reference.nonlinearity_diagonal, layer, K1))
        if not slopes:
            with pytest.raises(NetworkError, match="has no tangent kernel"):
                expected(derivatives.derivative, layer, K, K1, K2)
            continue
        V_dot = expected(derivatives.derivative, layer, K, K1, K2)
        assert scale * pair("slope", K, K1, K2) == close(V_dot)
        slope, first, second, *_ = pair("parts", K, K1, K2)
        assert scale * slope == close(V_dot)
        for share, K_own, K_other in ((first, K1, K2), (second, K2, K1)):
            by_one = expected(by_variance, layer, K, K_own, K_other)
            assert scale * share * alone("still", K_own)[1] == close(by_one)
        assert scale * alone("slope_diagonal", K1) == close(expected(derivatives.derivative_diagonal, layer, K1))
        assert scale * alone("still", K1)[0] == close(expected(by_own_variance, layer, K1))


@pytest.mark.parametrize("layer", EACH, ids=repr)
def test_what_a_row_says_of_size_and_sign_holds(layer: Nonlinearity) -> None:
    """Units need the power of two of V, to a few; GELU and Cos are told by their largest."""
    for level in (-12.0, 0.0, 2.0):
        V = reference.nonlinearity_diagonal(layer, np.array([2.0**level]))[0]
        assert abs(formula(layer).level(level) - math.log2(V)) <= 1.5
    rho = np.linspace(-1.0, 1.0, 41)
    V = reference.nonlinearity(layer, 2.0 * rho, np.full(41, 4.0), np.full(41, 1.0))
    known = {"nonnegative": V >= 0.0, "of K": V[rho >= 0.0] >= 0.0, "any": np.ones(1, bool)}
    assert known[formula(layer).sign].all()
