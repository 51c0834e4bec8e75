"""Every nonlinearity is known to every consumer, and its row in the table of formulas says what the reference does."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from cnngp import GELU, Abs, Cos, Elementwise, Erf, LayerNorm, LeakyReLU, NetworkError
from cnngp.kernel.formulas import FAMILIES, SERIES, Formula, formula
from cnngp.network import reference
from cnngp.network.layers import LAYERS, Nonlinearity, NormalizedExp, Rbf, ReLU, Sign, Sin, SquaredReLU, Step
from cnngp.network.reference import formulas as derivatives
from helpers.derivatives import by_own_variance, by_variance

EACH = [ReLU(), ReLU(2.5), LeakyReLU(0.2), LeakyReLU(-0.5), LeakyReLU(3e9), Erf(), Abs(), Step(), Sin(), Cos(), GELU()]
EACH += [Rbf(0.1), Rbf(7.0), Elementwise("tanh"), Elementwise("softplus"), NormalizedExp(), NormalizedExp(5.0)]
EACH += [LayerNorm(), LayerNorm(eps=0.1), LayerNorm("all"), Sign(), SquaredReLU()]


def test_every_nonlinearity_is_tried_here() -> None:
    kinds = {layer for layer in LAYERS.values() if issubclass(layer, Nonlinearity)}
    assert kinds == {type(layer) for layer in EACH} == set(Nonlinearity.__subclasses__())
    pytest.importorskip("torch")
    from cnngp.torch_bridge.parts import torch_function

    assert all(callable(torch_function(layer)) for layer in EACH)


def test_every_family_is_used_and_has_what_its_layers_promise() -> None:
    assert {formula(layer).family for layer in EACH} == set(FAMILIES)
    for layer in EACH:
        row = formula(layer)
        if row.family is not SERIES:
            assert bool(row.no_slope) == (row.family.slope is None) == (row.family.slope_diagonal is None)
            assert bool(row.no_gradient) == (row.family.parts is None) == (row.family.still is None)


@dataclass(frozen=True)
class Row:
    """A layer's formulas on Python's own numbers, in a map whose unit is no power of two."""

    layer: Nonlinearity
    unit: float = 0.3

    @property
    def row(self) -> Formula:
        return formula(self.layer)

    @property
    def own(self) -> tuple[float, float, float]:
        return self.unit * self.row.argument, self.row.alpha, 1e-150

    def pair(self, which: str, K: float, K1: float, K2: float) -> Any:
        f = self.row.family
        tables = [f.table(v / self.unit, self.own) for v in (K1, K2)]  # type: ignore[misc]
        return getattr(f, which)(K / self.unit, *tables, f.constants(self.own[0], self.row.alpha, self.row.beta))

    def alone(self, which: str, K: float) -> Any:
        return getattr(self.row.family, which)(K / self.unit, self.own)

    @property
    def factor(self) -> float:
        return self.row.factor(self.unit)


CLOSED = [layer for layer in EACH if formula(layer).family is not SERIES]
POINTS = [
    (rho * math.sqrt(K1 * K2), K1, K2) for K1, K2 in ((1.0, 2.0), (0.01, 4.0)) for rho in (-0.9, -0.2, 0.0, 0.6, 0.95)
]


def expected(of: Callable[..., Any], layer: Nonlinearity, *numbers: float) -> float:
    return float(of(layer, *(np.array([x]) for x in numbers))[0])


@pytest.mark.parametrize("layer", CLOSED, ids=repr)
def test_the_functions_of_a_family_are_those_of_the_reference(layer: Nonlinearity) -> None:
    row, exact = Row(layer), partial(pytest.approx, rel=1e-11, abs=1e-13)
    close = partial(pytest.approx, rel=1e-10, abs=1e-12)
    if row.row.no_slope:
        with pytest.raises(NetworkError, match="has no tangent kernel"):
            derivatives.derivative(layer, *(np.ones(1),) * 3)
    scale = row.factor / row.unit
    for K, K1, K2 in POINTS:
        assert row.factor * row.pair("value", K, K1, K2) == exact(expected(reference.nonlinearity, layer, K, K1, K2))
        assert row.factor * row.alone("diagonal", K1) == exact(expected(reference.nonlinearity_diagonal, layer, K1))
        if row.row.no_slope:
            continue
        V_dot = expected(derivatives.derivative, layer, K, K1, K2)
        assert scale * row.pair("slope", K, K1, K2) == close(V_dot)
        slope, first, second, *_ = row.pair("parts", K, K1, K2)
        assert scale * slope == close(V_dot)
        for share, K_own, K_other in ((first, K1, K2), (second, K2, K1)):
            by_one = expected(by_variance, layer, K, K_own, K_other)
            assert scale * share * row.alone("still", K_own)[1] == close(by_one)
        assert scale * row.alone("slope_diagonal", K1) == close(expected(derivatives.derivative_diagonal, layer, K1))
        assert scale * row.alone("still", K1)[0] == close(expected(by_own_variance, layer, K1))


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
