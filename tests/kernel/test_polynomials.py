"""Each polynomial of the engines against its definition, within the error that stands beside it in the file."""

import inspect
import math
import re

import numpy as np
import pytest

from cnngp.kernel.engines import polynomials

mp = pytest.importorskip("mpmath")


def relu_g(u):
    """2A/p = max(c, 0) + u^1.5 g(u), u = 1 − |c|, from the formula of the ReLU at c = 1 − u ≥ 0."""
    if u == 0:
        return 2 * mp.sqrt(2) / (3 * mp.pi)
    c = 1 - u
    theta = mp.acos(c)
    return ((mp.sin(theta) + (mp.pi - theta) * c) / mp.pi - c) / u ** mp.mpf("1.5")


DEFINITIONS = {
    "RELU_G": (relu_g, 0.0, 1.0),
    "ACOS_H": (lambda v: mp.acos(1 - v) / mp.sqrt(v) if v else mp.sqrt(2), 0.0, 1.0),
    "ASIN_S": (lambda w: mp.asin(mp.sqrt(w)) / mp.sqrt(w) if w else mp.mpf(1), 0.0, 0.25),
    "EXP_R": (mp.exp, -math.log(2.0) / 2.0, math.log(2.0) / 2.0),
    "EXPM1_Y": (lambda y: (1 - mp.exp(-y)) / y if y else mp.mpf(1), 0.0, 0.7),
}
DEFINITIONS["RELU_H"] = (lambda u: DEFINITIONS["ACOS_H"][0](u) / mp.pi, 0.0, 1.0)
DEFINITIONS |= {"CUDA_G": DEFINITIONS["RELU_G"], "CUDA_H": DEFINITIONS["ACOS_H"]}
# Either the polynomial's own relative error, or the error of R/p = 2A/p, where g counts only u^1.5 times, or that of an
# angle, √u h(u).
WEIGHT = {"error of R/p": "1.5", "error of θ": "0.5", "error of θ/π": "0.5"}
STATED = {
    name: (int(degree), kind, float(bound))
    for degree, kind, bound, name in re.findall(
        r"# degree (\d+), (relative error|error of R/p|error of θ|error of θ/π) (\S+)\n(\w+) = ",
        inspect.getsource(polynomials),
    )
}


def worst_error(name, values, x):
    """The largest error of the values (mpmath or float) of a polynomial at x, in the sense that the file states."""
    f, kind = DEFINITIONS[name[:-3]][0], STATED[name][1]
    with mp.workdps(40):
        exact = [(mp.mpf(v), mp.mpf(t), f(mp.mpf(t))) for v, t in zip(values, map(float, x), strict=True)]
        if kind == "relative error":
            return max(abs(v / y - 1) for v, t, y in exact)
        return max(abs(v - y) * t ** mp.mpf(WEIGHT[kind]) for v, t, y in exact)


def points(a: float, b: float, n: int = 400) -> np.ndarray:
    """Chebyshev points and both ends, where the error of an interpolant is largest."""
    return np.concatenate([(a + b) / 2 + (b - a) / 2 * np.cos(np.pi * np.arange(n + 1) / n), [a, b]])


def test_every_polynomial_states_its_error_and_has_a_definition_here():
    tables = [name for name in vars(polynomials) if re.fullmatch(r"[A-Z0-9_]+_(32|64)", name)]
    assert sorted(tables) == sorted(STATED) == sorted(f"{d}_{bits}" for d in DEFINITIONS for bits in (32, 64))


@pytest.mark.parametrize("name", sorted(STATED))
def test_the_polynomial_is_within_its_stated_error(name):
    """Exactly, and by Horner's rule in the working precision, which adds a few roundings."""
    _, a, b = DEFINITIONS[name[:-3]]
    degree, _, stated = STATED[name]
    coefficients = getattr(polynomials, name)
    assert len(coefficients) == degree + 1
    x = points(a, b)
    with mp.workdps(40):
        values = [mp.polyval([mp.mpf(c) for c in reversed(coefficients)], mp.mpf(float(t))) for t in x]
    worst = worst_error(name, values, x)
    # The coefficients are rounded to float64: half an ulp of the largest is added to what is stated.
    assert stated / 20 <= worst <= stated * 1.05 + 2.0**-53 * max(map(abs, coefficients))  # and it is not idle
    dtype = np.float32 if name.endswith("32") else np.float64
    x = points(a, b, 100).astype(dtype)
    value = np.zeros_like(x)
    for c in reversed(coefficients):
        value = value * x + dtype(c)
    assert worst_error(name, map(float, value), x) <= 1.05 * stated + 2.0 * np.finfo(dtype).eps
