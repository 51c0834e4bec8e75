"""All nonlinearities, with arguments that matter: the one list that tests run over, and what each function is.

`PHI` has each as a function of a Gaussian z of standard deviation s, `SLOPES` its derivative. Those of a layer norm are
what it is in the limit: s is what infinitely many channels say.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from cnngp import GELU, Abs, Cos, Elementwise, Erf, LayerNorm
from cnngp.network.layers import LeakyReLU, Nonlinearity, NormalizedExp, Rbf, ReLU, Sign, Sin, SquaredReLU, Step

Function = Callable[[Any, float], Any]


def _normed(x: Any, s: float, eps: float) -> Any:
    return x / math.sqrt(s * s + eps) if s > 0.0 or eps > 0.0 else 0.0 * x


def _turning(gamma: float) -> Function:
    a = math.sqrt(gamma)
    return lambda x, s: s * (np.sin(a * _normed(x, s, 0.0)) + np.cos(a * _normed(x, s, 0.0)))


def _turning_slope(gamma: float) -> Function:
    a = math.sqrt(gamma)
    return lambda x, s: a * (np.cos(a * x / s) - np.sin(a * x / s))


PHI: dict[Nonlinearity, Function] = {
    ReLU(gain=math.sqrt(2.0)): lambda x, s: math.sqrt(2.0) * np.maximum(x, 0.0),
    LeakyReLU(-0.5): lambda x, s: np.where(x > 0.0, x, -0.5 * x),
    Abs(): lambda x, s: np.abs(x),
    Step(): lambda x, s: np.heaviside(x, 0.0),
    Sign(): lambda x, s: np.sign(x),
    SquaredReLU(): lambda x, s: np.maximum(x, 0.0) ** 2,
    Erf(): lambda x, s: special.erf(x),
    Sin(): lambda x, s: np.sin(x),
    Cos(): lambda x, s: np.cos(x),
    Rbf(0.5): lambda x, s: np.sin(x) + np.cos(x),
    NormalizedExp(4.0): _turning(4.0),
    LayerNorm(): lambda x, s: _normed(x, s, 0.0),
    LayerNorm(eps=0.1): lambda x, s: _normed(x, s, 0.1),
    GELU(): lambda x, s: x * special.ndtr(x),
}
SLOPES: dict[Nonlinearity, Function] = {
    ReLU(1.5): lambda x, s: 1.5 * np.heaviside(x, 0.0),
    LeakyReLU(-0.5): lambda x, s: np.where(x > 0.0, 1.0, -0.5),
    Abs(): lambda x, s: np.where(x > 0.0, 1.0, -1.0),
    SquaredReLU(): lambda x, s: 2.0 * np.maximum(x, 0.0),
    Erf(): lambda x, s: 2.0 / math.sqrt(math.pi) * np.exp(-x * x),
    Sin(): lambda x, s: np.cos(x),
    Cos(): lambda x, s: -np.sin(x),
    Rbf(2.0): lambda x, s: 2.0 * (np.cos(2.0 * x) - np.sin(2.0 * x)),
    NormalizedExp(4.0): _turning_slope(4.0),
    LayerNorm(): lambda x, s: np.full_like(x, 1.0 / s),
    LayerNorm(eps=0.1): lambda x, s: np.full_like(x, 1.0 / math.sqrt(s * s + 0.1)),
    GELU(): lambda x, s: special.ndtr(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi),
    Elementwise("tanh"): lambda x, s: 1.0 / np.cosh(np.clip(x, -300.0, 300.0)) ** 2,
}
ONE_OF_EACH: tuple[Nonlinearity, ...] = (
    ReLU(1.3), LeakyReLU(0.2), Abs(), Erf(), Step(), Sin(), Cos(), Rbf(0.4), GELU(), NormalizedExp(1.5), LayerNorm(),
    Sign(), SquaredReLU(), Elementwise("tanh"),
)  # fmt: skip
DIFFERENTIABLE = tuple(layer for layer in ONE_OF_EACH if not isinstance(layer, Step | Sign))
