"""The Hermite series of `Elementwise`: its coefficients, its error bound, and what makes it deterministic."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.polynomial.chebyshev import chebval

from cnngp import Dense, Elementwise, Kernel, Sequential
from cnngp.kernel.series import packed as hermite
from cnngp.kernel.series.tables import FIRST_EXPONENT, Series
from cnngp.network.functions import FUNCTIONS, as_callable, breakpoints
from cnngp.network.layers import NetworkError
from helpers.gaussian_expectation import expectation, one_dimensional
from helpers.kernels import DTYPES, each_dtype

# ---- what an engine does with the tables, in plain NumPy: per image, and per pair ------------------------------------


def evaluate(series: Series, s: Any):
    """(rows, …) A_j(s) and (…) E[fn(s z)²]."""
    s = np.asarray(s, dtype=np.float64)
    hermite.check(series, s)
    p = np.where(s < series.edges[1], 0, np.frexp(s)[1] - FIRST_EXPONENT)
    p = np.minimum(p, len(series.edges) - 2)  # the right end of the last panel
    low, high = series.edges[p], series.edges[p + 1]
    t = (2.0 * s - low - high) / (high - low)
    power = np.where(p == 0, s**series.first_power, 1.0)
    a = chebval(t, np.moveaxis(series.coefficients[p], (-1, -2), (0, 1)), tensor=False)
    moment = chebval(t, np.moveaxis(series.second_moment[p], -1, 0), tensor=False)
    return a * power, moment * power**2


def pair(series: Series, s1: Any, s2: Any, rho: Any):
    """V = Σ_j A_j(s) A_j(s') ρ^k, by Horner's rule as an engine does it."""
    s1, s2, rho = np.broadcast_arrays(s1, s2, rho)
    products = evaluate(series, s1)[0] * evaluate(series, s2)[0]
    powers = [rho * rho]
    for _ in range(int(series.shifts.max(initial=0))):
        powers.append(powers[-1] * powers[-1])
    totals = [np.zeros(rho.shape), np.zeros(rho.shape)]
    for parity, rows in enumerate((range(series.even), range(series.even, len(products)))):
        for j in reversed(rows):
            step = series.shifts[j + 1] if j + 1 in rows else 0
            totals[parity] = totals[parity] * powers[step] + products[j]
    return np.asarray(totals[0] + rho * totals[1])


# ---- the tables ------------------------------------------------------------------------------------------------------

TOLERANCE = {"float32": 1e-8, "float64": 1e-13}

# The least variance that each must reach: the table of docs/elementwise.md, rounded down.
REACH = {
    "tanh": (280, 95), "sigmoid": (1200, 400), "silu": (3600, 560), "softplus": (11000, 940), "gelu_tanh": (1500, 410),
    "elu": (20000, 43), "selu": (3600, None), "softsign": (92, 1.0), "mish": (2100, 320), "hardtanh": (0.049, 0.023),
    "relu6": (0.25, None), "hardswish": (0.45, 0.2), "arctan": (245, 64), "gaussian": (230, 140),
}  # fmt: skip
REACHED = [(name, dtype, v) for name, both in REACH.items() for dtype, v in zip(TOLERANCE, both, strict=True) if v]


@pytest.mark.parametrize(("name", "dtype", "variance"), REACHED)
def test_no_more_energy_is_missing_than_promised_up_to_the_variance_of_the_docs(name, dtype, variance):
    assert set(REACH) == set(FUNCTIONS)
    series = hermite.series(name, dtype)
    assert variance <= series.largest_s**2 <= 1.1 * variance
    s = np.geomspace(1e-6, series.largest_s, 40)
    a, moment = evaluate(series, s)
    missing = np.abs(moment - np.sum(a * a, axis=0)) / moment
    assert missing.max() <= 1.2 * TOLERANCE[dtype]  # 0.2 for rounding, which counts in float64
    exact = one_dimensional(FUNCTIONS[name], series.largest_s, (0.0, *breakpoints(name)), power=2)
    assert float(moment[-1]) == pytest.approx(exact, rel=1e-13)


def clipped(x):
    return np.clip(x, -1.3, 0.9)


CASES = [
    *(("tanh", 0.3, 0.3), ("tanh", 1.0, 9.0), ("tanh", 9.0, 9.7), ("silu", 1.0, 20.0), ("softplus", 3.0, 25.0)),
    *(("gaussian", 2.0, 9.0), ("mish", 0.01, 12.0), ("elu", 0.5, 6.5), ("softsign", 0.9, 1.0)),
    *(("hardtanh", 0.14, 0.15), ("hardswish", 0.05, 0.44), (clipped, 0.1, 0.12)),
]
# Their kink at 0 is followed beyond the tabulated terms, which float64 does not allow.
FOLLOWED = [("selu", 1.0, 30.0), ("selu", 5.0, 5.0), ("elu", 140.0, 90.0)]


@pytest.mark.parametrize(
    ("fn", "s1", "s2", "dtypes"), [(*case, DTYPES) for case in CASES] + [(*case, ["float32"]) for case in FOLLOWED]
)
def test_pairs_are_the_expectations(fn, s1, s2, dtypes):
    kinks = (-1.3, 0.9) if fn is clipped else tuple(sorted({0.0, *breakpoints(fn)}))
    for rho in (1.0, 1.0 - 1e-5, 0.9, -0.6, -0.999, -0.999999, -1.0):
        expected = expectation(as_callable(fn), s1, s2, rho, kinks)
        for dtype in dtypes:
            series = hermite.series(fn, dtype)
            size = math.sqrt(evaluate(series, s1)[1] * evaluate(series, s2)[1])
            assert float(pair(series, s1, s2, rho)) == pytest.approx(expected, rel=0, abs=TOLERANCE[dtype] * size), rho


@each_dtype
@pytest.mark.parametrize("name", ["tanh", "elu", "mish", "hardtanh"])
def test_rows_above_terms_needed_are_exactly_zero(name, dtype):
    """So an entry does not depend on how many terms its neighbours need."""
    series = hermite.series(name, dtype)
    assert (series.terms_needed < len(series.exponents)).any()
    for coefficients, (even, odd) in zip(series.coefficients, series.terms_needed, strict=True):
        assert not coefficients[even : series.even].any()
        assert not coefficients[series.even + odd :].any()


def test_small_arguments_keep_their_digits():
    series = hermite.series("tanh", "float64")
    for s in (1e-150, 1e-12, 1e-6):
        assert float(pair(series, s, 2 * s, -0.5)) == pytest.approx(-(s**2), rel=1e-11, abs=0.0)
        assert float(evaluate(series, s)[1]) == pytest.approx(s**2, rel=1e-11, abs=0.0)
    assert float(pair(series, 0.0, 1.0, 0.5)) == 0.0
    assert float(pair(hermite.series("sigmoid", "float64"), 0.0, 0.0, 0.0)) == pytest.approx(0.25, rel=1e-15)


def test_constants_and_functions_without_a_name():
    named, bare = hermite.series("tanh"), hermite.series(lambda x: np.tanh(x))
    assert hermite.series("tanh") is named
    assert np.array_equal(named.coefficients, bare.coefficients)
    assert float(pair(hermite.series(lambda x: 0.0 * x), 1.0, 2.0, 0.5)) == 0.0
    assert float(pair(hermite.series(lambda x: 0.0 * x + 3.0), 1.0, 200.0, 0.5)) == pytest.approx(9.0, rel=1e-13)


def test_a_wave_is_not_thinned_away():
    # sin(5x) has its energy about k = 25 s²: not smooth in k, so the check against more terms must stop the series.
    series = hermite.series(lambda x: np.sin(5.0 * x))
    for s1, s2, rho in itertools.product(*[np.linspace(0.1, 1.0, 4) * series.largest_s] * 2, (-1.0, 0.7, 0.99, 1.0)):
        K, m = 25.0 * rho * s1 * s2, 25.0 * (s1**2 + s2**2) / 2.0
        exact = 0.5 * (math.exp(K - m) - math.exp(-K - m))
        assert float(pair(series, s1, s2, rho)) == pytest.approx(exact, rel=0, abs=1e-8)


@each_dtype
def test_refuses_a_variance_beyond_the_series(dtype):
    series = hermite.series("tanh", dtype)
    hermite.check(series, [0.0, series.largest_s], "layers[3]")
    told = r"^layers\[3\]: Elementwise\('tanh'\) meets a variance of 900, .* up to \d"
    with pytest.raises(NetworkError, match=told) as error:
        hermite.check(series, np.array([1.0, 30.0]), "layers[3]")
    assert ("float32" in str(error.value)) == (dtype == "float64")


@pytest.mark.parametrize(
    ("fn", "dtype", "message"),
    [
        *((fn, "float32", "grows too fast") for fn in (np.exp, np.sinh, lambda x: np.exp(0.05 * x))),
        *((fn, "float32", "too long") for fn in (lambda x: np.sign(x), lambda x: np.sqrt(np.abs(x)))),
        *((name, "float64", f"'{name}'.*too long for 1e-13") for name in ("selu", "relu6")),
    ],
)
def test_refuses_what_has_no_short_series(fn, dtype, message):
    with pytest.raises(NetworkError, match=message):
        hermite.series(fn, dtype)


def test_a_function_that_changes_gets_new_tables() -> None:
    factor = 1.0

    def scaled(x):
        return factor * np.tanh(x)

    X = np.random.default_rng(0).standard_normal((3, 4))
    net = Sequential(Dense(), Elementwise(scaled), Dense())
    kernel = Kernel(net, device="cpu", dtype="float64")
    before = kernel(X)
    factor = 2.0
    np.testing.assert_allclose(Kernel(net, device="cpu", dtype="float64")(X), 4.0 * before, rtol=1e-12)
    with pytest.raises(NetworkError, match=r"gives other values than when this Kernel was made.*make a new Kernel"):
        kernel(X)
    factor = 1.0
    np.testing.assert_array_equal(kernel(X), before)
