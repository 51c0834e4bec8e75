"""Tables of a function's Hermite series, from which compiled code computes E[fn(u) fn(v)].

With u = s z and v = s' z', ρ the correlation of the standard normals z and z', h_k the normalised Hermite polynomials,

    V = Σ_k a_k(s) a_k(s') ρ^k,     a_k(s) = E[fn(s z) h_k(z)],     E[fn(s z)²] = Σ_k a_k(s)².

Each a_k depends on one image, so a pair costs a polynomial in ρ. They are stored as Chebyshev polynomials in s on fixed
dyadic panels, which depend on the function alone, never on data, so a kernel's bits cannot depend on the batch.

**Thinning.** The number of terms grows like s²: tanh needs 300 of them for 1e-8 at s = 3. But among k of one parity
a_k(s) a_k(s') ρ^k is smooth in k, so a few weighted terms represent all: k = 2n or 2n + 1 with n = 0, 1, …, 15,
16, 18, …, 30, 32, 36, …, 60, 64, 72, … (8 per octave for float32, 16 for float64). The weights are those of local
polynomial interpolation in n. They are positive, so the kernel stays positive definite, and enter the tables as
√weight. Steps in n are powers of two, so Horner's rule applies with x^(2^b) in place of x = ρ².
docs/elementwise.md has figures.

**Error**, relative to √(E[fn(u)²] E[fn(v)²]), by Cauchy–Schwarz from two different tails:

* Terms beyond the last n are never kept. Both images lack them, so the error is at most the missing *energy*
  (E[fn²] − Σ a_k²)/E[fn²]. It must be below the tolerance, which holds up to `largest_s`.
* A panel may stop early, at `terms_needed`, though the other image may have a larger s and a longer series. Here the
  error is at most √(e · e'), e and e' the energies of the dropped terms in each; e' is taken from the worst panel.
  Rows of `coefficients` from `terms_needed` on are exactly zero: an engine may run any larger number of rows and get
  the same bits.

The first may use 0.8 of the tolerance, the second 0.1 for each parity. The thinning itself is checked when the tables
are made, against a rule with twice the terms, on a grid of (s, s', ρ).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cnngp.network.functions import Function, function_name, values_at
from cnngp.network.layers import NetworkError

from .quadrature import TooRough, check_growth, hermite_rows, is_smooth, moments, parts

Array = NDArray[np.float64]

FIRST_EXPONENT = -6  # panel 0 is [0, 2^-6], panel p ≥ 1 is [2^(p-7), 2^(p-6)]
LAST_EXPONENT = 9
_COMPUTED_N = 4096  # h_2n is tabulated up to here; beyond, only a kink at 0 contributes, in a known form
_LAST_N = 2**17
_DENSE_N = 32  # for functions with kinks away from 0: there a_k is not smooth in k, so k < 64 and no thinning
_POINTS, _POINTS_DENSE = 32, 40  # Chebyshev points per panel; the tables keep only the degree that is needed


@dataclass(frozen=True)
class Precision:
    tolerance: float
    an_octave: int
    order: int  # of the interpolation that makes the weights


PRECISION = {4: Precision(1e-8, 8, 15), 8: Precision(1e-13, 16, 15)}


@dataclass(frozen=True)
class Series:
    """The tables of one function.

    Row j is the term with ρ^k, k = exponents[j]: even k first, `even` rows of them, then odd k. On panel p, with
    t ∈ [−1, 1] across it and T_i the Chebyshev polynomials,

        A_j(s)       = s^q  · Σ_i coefficients[p, j, i] T_i(t)        (√weight · a_k)
        E[fn(s z)²]  = s^2q · Σ_i second_moment[p, i] T_i(t)
        V            = Σ_j A_j(s) A_j(s') ρ^k

    with q = `first_power` on panel 0 and 0 on the others. q = 1 if fn(0) = 0: then all of these vanish at s = 0, and
    the factor preserves their relative accuracy for the smallest s.

    Horner's rule in x = ρ² over the rows of one parity, from its last row down to its first:
    total ← total · x^(2^shifts[j+1]) + A_j A'_j; the odd total is multiplied by ρ at the end. Rows of a parity from
    terms_needed[p, parity] on are exactly zero.
    """

    fn: Function
    tolerance: float
    edges: Array  # (panels + 1,)
    coefficients: Array  # (panels, rows, degree + 1)
    second_moment: Array  # (panels, its own degree + 1)
    exponents: NDArray[np.int64]  # (rows,)
    shifts: NDArray[np.int64]  # (rows,) log₂ of the step in n from the row before; 0 in the first row of a parity
    even: int
    terms_needed: NDArray[np.int64]  # (panels, 2) rows of even k, of odd k
    first_power: int
    largest_s: float


# ---- thinning ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _thinned(an_octave: int, order: int) -> tuple[NDArray[np.int64], Array]:
    """Indices n and weights w with Σ_j w_j g(n_j) ≈ Σ_n g(n) for smooth g: each left-out n is interpolated locally."""
    octaves = [np.arange(2 * an_octave)]
    while octaves[-1][-1] < 16 * _COMPUTED_N:  # further than needed, so that the end does not affect the weights used
        start = 2 * an_octave * 2 ** (len(octaves) - 1)
        octaves.append(np.arange(start, 2 * start, 2 ** len(octaves)))
    n = np.concatenate(octaves)
    left_out = np.setdiff1d(np.arange(2 * _COMPUTED_N), n)
    first = np.maximum(np.searchsorted(n, left_out) - (order + 1) // 2, 0)
    window = first[:, None] + np.arange(order + 1)
    x = n[window].astype(np.float64)
    w = np.ones(len(n))
    for i in range(order + 1):
        others = np.delete(x, i, axis=1)
        np.add.at(w, window[:, i], np.prod((left_out[:, None] - others) / (x[:, i : i + 1] - others), axis=1))
    n, w = n[n < _COMPUTED_N], w[n < _COMPUTED_N]
    while n[-1] < _LAST_N // 2:  # each octave is the one before, stretched
        n, w = np.append(n, 2 * n[-an_octave:]), np.append(w, 2.0 * w[-an_octave:])
    return n, w


@dataclass(frozen=True)
class _Rule:
    """The choice of terms that are kept, and their computation."""

    n: NDArray[np.int64]
    weights: Array
    thinned: bool
    kinked: tuple[bool, bool] = (False, False)  # at 0: the even part of fn, the odd part

    def rows(self, fn: Function, s: Array) -> tuple[Array, Array]:
        """Return √weight · a_k for even k and for odd k, (len(n), len(s)) each."""
        root = np.sqrt(self.weights)[:, None]
        if not self.thinned:
            a = moments(fn, s, 2 * len(self.n))[0]
            return a[0::2] * root, a[1::2] * root
        tabulated = hermite_rows(tuple(self.n[self.n < _COMPUTED_N].tolist()))
        even, odd = (_products(h, f) for h, f in zip(tabulated, parts(fn, s), strict=True))
        return self._extended(even, 0) * root, self._extended(odd, 1) * root

    def _extended(self, a: Array, parity: int, order: int = 2) -> Array:
        """Extend the rows beyond those computed, by the asymptotic form of a kink of fn at 0.

        |x| has a_k ∝ γ_n with γ²_{n+1}/γ²_n = (2n − 1)²/((2n + 1)(2n + 2)), k = 2n, and x|x| has γ_n/√k, k = 2n + 1;
        |x|³ and x³|x| have about 1/n of that, and so on. So a_k/γ_n is a polynomial in 1/n, fitted to the last octave.
        """
        computed, start = len(a), _COMPUTED_N // 2
        if not self.kinked[parity]:
            return np.concatenate([a, np.zeros((len(self.n) - computed, a.shape[1]))])
        i = np.arange(start, int(self.n[-1]), dtype=np.float64)
        log_gamma = np.append(0.0, np.cumsum(np.log1p((1.0 - 10.0 * i) / ((2.0 * i + 1.0) * (2.0 * i + 2.0))))) / 2.0

        def gamma(n: NDArray[np.int64]) -> Array:
            return np.asarray(np.exp(log_gamma[n - start]) / np.sqrt(2.0 * n + 1.0) ** parity)[:, None]

        first = int(np.searchsorted(self.n, start))
        rows = np.linspace(computed - 1, first, 3).astype(int)[: order + 1]
        known, beyond = self.n[rows], self.n[computed:]
        ratio = _interpolate(1.0 / known, a[rows] / gamma(known), 1.0 / beyond)
        return np.concatenate([a, gamma(beyond) * ratio])

    def doubt(self, even: Array, odd: Array) -> Array:
        """Change of the energy of `rows` if the order in 1/n is reduced by one, (len(s),)."""
        root = np.sqrt(self.weights)[:, None]
        total = np.zeros(even.shape[1])
        for parity, a in enumerate((even, odd)):
            if self.thinned and self.kinked[parity]:
                computed = int(np.count_nonzero(self.n < _COMPUTED_N))
                other = root * self._extended((a / root)[:computed], parity, order=1)
                total += np.sum(np.abs(a * a - other * other), axis=0)
        return total


def _interpolate(x: Array, y: Array, at_x: Array) -> Array:
    """Evaluate the polynomial through (x[i], y[i]), y (points, columns), at `at_x`: (len(at_x), columns)."""
    total = np.zeros((len(at_x), y.shape[1]))
    for i in range(len(x)):
        others = np.delete(x, i)
        total += np.prod((at_x[:, None] - others) / (x[i] - others), axis=1)[:, None] * y[i]
    return total


def _kinks_at_zero(fn: Function, n: NDArray[np.int64]) -> tuple[bool, bool]:
    """Test the even and the odd part of fn for a kink at 0: a_k then decays like a power of k at the smallest s."""
    h = hermite_rows(tuple(n[n < _COMPUTED_N].tolist()))
    row = int(np.searchsorted(n, _COMPUTED_N // 2))
    f = parts(fn, np.array([0.125]))
    size = math.sqrt(np.max(f[0] ** 2) + np.max(f[1] ** 2))
    even, odd = (bool(abs(np.sum(hp[row] * fp[0])) > 1e-14 * size) for hp, fp in zip(h, f, strict=True))
    return even, odd


def _products(h: Array, f: Array) -> Array:
    """Return Σ_z h[j, z] f[s, z], up to the row from which on it is negligible."""
    a = np.zeros((len(h), len(f)))
    for j in range(0, len(h), 8):
        a[j : j + 8] = np.einsum("jz,sz->js", h[j : j + 8], f)
        if j >= 16 and np.max(np.abs(a[j - 8 : j + 8])) <= 1e-17 * np.max(np.abs(a)):
            break
    return a


# ---- building ------------------------------------------------------------------------------------------------------


def build(fn: Function, precision: Precision) -> Series:
    """Build the tables of `fn`, or raise `NetworkError` with the reason why that is impossible."""
    check_growth(fn, 16.0 * 2.0**LAST_EXPONENT)
    n, weights = _thinned(precision.an_octave, precision.order)
    rules = [_Rule(n, weights, True, _kinks_at_zero(fn, n))]
    if not is_smooth(fn):  # distant kinks affect neither rule, near ones affect the second less
        rules.append(_Rule(np.arange(_DENSE_N), np.ones(_DENSE_N), False))
    built = [_build_with(fn, precision, rule) for rule in rules]
    best = max((s for s in built if s is not None), key=lambda s: s.largest_s, default=None)
    if best is None:
        raise NetworkError(
            f"Elementwise({function_name(fn)}): its Hermite series is too long for {precision.tolerance:g} at any "
            "variance, as for a jump or a sharp kink at 0; use ReLU(), LeakyReLU(), Abs() or Step() if one is meant"
            + (", or dtype='float32', which needs fewer terms" if precision.tolerance < 1e-10 else "")
        )
    return best


def _build_with(fn: Function, precision: Precision, rule: _Rule) -> Series | None:
    """Build panels from small s to large, up to the first s at which too much energy is missing."""
    first_power = int(np.max(np.abs(values_at(fn, np.array([-1e-15, 0.0, 1e-15])))) < 1e-12)
    edges, largest = [0.0], 0.0
    tables: list[Array] = []
    left: list[list[Array]] = []
    for exponent in range(FIRST_EXPONENT, LAST_EXPONENT + 1):
        low, high = edges[-1], 2.0**exponent
        s = low + (high - low) * (0.5 + 0.5 * _chebyshev_points(_POINTS if rule.thinned else _POINTS_DENSE))
        even, odd, energy, missing = _at(fn, rule, s)
        largest = min(_first_bad(fn, rule, low, s, missing, 0.8 * precision.tolerance), high)
        if largest <= low:
            break
        power = s**first_power if low == 0.0 else np.ones(len(s))
        table = _chebyshev_fit(np.concatenate([even / power, odd / power, [energy / power**2]]))
        if np.max(np.abs(table[:-1, -3:])) > 1e-12 * math.sqrt(np.max(np.abs(table[-1]))):
            largest = low  # not smooth in s: a kink away from 0 has come within reach
            break
        edges.append(high)
        tables.append(table)
        inside = s <= max(largest, float(np.min(s)))
        left.append([_energy_left(a[:, inside], energy[inside]) for a in (even, odd)])
        if largest < high:
            break
    if not tables:
        return None
    if rule.thinned:
        largest = _thinning_limit(fn, rule, precision, largest)
    needed = _terms_needed(np.array(left), 0.1 * precision.tolerance)
    return _series(fn, rule, precision, np.array(edges), np.stack(tables), needed, first_power, largest)


def _at(fn: Function, rule: _Rule, s: Array) -> tuple[Array, Array, Array, Array]:
    """Return the rows of even k, those of odd k, E[fn²], and the fraction of E[fn²] that the rows miss."""
    try:
        energy = moments(fn, s, 0)[1]
    except TooRough:
        energy = np.full(len(s), np.nan)  # counts as missing everything
    even, odd = rule.rows(fn, s)
    kept = np.sum(even * even, axis=0) + np.sum(odd * odd, axis=0)
    missing = np.abs(energy - kept) + rule.doubt(even, odd)
    return even, odd, energy, missing / np.where(energy == 0.0, 1.0, energy)


def _first_bad(fn: Function, rule: _Rule, low: float, s: Array, missing: Array, tolerance: float) -> float:
    """Smallest s at which too much energy is missing, to about a thousandth of the panel; infinite if there is none."""
    order = np.argsort(s)
    bad = ~(missing[order] <= tolerance)
    if not bad.any():
        return math.inf
    i = int(np.argmax(bad))
    start = float(s[order][i - 1]) if i else low
    fine = np.linspace(start, s[order][i], 33)[1:]
    still = np.cumprod(_at(fn, rule, fine)[3] <= tolerance).astype(bool)
    return float(np.max(fine[still], initial=start))


def _energy_left(a: Array, energy: Array) -> Array:
    """Fraction of the energy in each row and all after it, at the worst s, (rows,)."""
    left = np.cumsum((a * a)[::-1], axis=0)[::-1] / np.where(energy == 0.0, 1.0, energy)
    return np.asarray(np.max(left, axis=1))


def _terms_needed(left: Array, tolerance: float) -> NDArray[np.int64]:
    """Number of terms needed, (panels, 2), from `left` (panels, 2, rows), if the other image is on the worst panel."""
    error = np.sqrt(left * np.max(left, axis=0))
    return np.asarray(np.count_nonzero(error > tolerance, axis=2), dtype=np.int64)


def _thinning_limit(fn: Function, rule: _Rule, precision: Precision, largest: float) -> float:
    """Largest s up to which thinning agrees with a rule of twice the terms, for all s' below it and all ρ."""
    finer = _Rule(*_thinned(2 * precision.an_octave, precision.order), True, rule.kinked)
    s = np.append(largest * 2.0 ** np.arange(-8.0, 0.0, 0.5), largest)
    x = 1.0 - np.append(0.0, 2.0 ** -np.arange(1.0, 13.5, 0.75))  # ρ²
    energy = moments(fn, s, 0)[1]
    worst = np.zeros(len(s))
    for fine, coarse in zip(finer.rows(fn, s), rule.rows(fn, s), strict=True):
        for xi in x:
            f, c = fine * np.sqrt(xi**finer.n)[:, None], coarse * np.sqrt(xi**rule.n)[:, None]
            error = np.abs(np.einsum("js,jr->sr", f, f) - np.einsum("js,jr->sr", c, c))
            error /= np.sqrt(np.where(energy > 0.0, energy, 1.0)[:, None] * np.where(energy > 0.0, energy, 1.0))
            worst = np.maximum(worst, np.maximum.accumulate(np.max(np.tril(error), axis=1)))
    bad = worst > precision.tolerance
    return float(s[np.argmax(bad) - 1]) if bad.any() else largest


def _series(
    fn: Function, rule: _Rule, precision: Precision, edges: Array, tables: Array, needed: NDArray[np.int64],
    first_power: int, largest: float,
) -> Series:  # fmt: skip
    """Drop negligible rows and degrees, and set the remaining unneeded coefficients to exactly zero."""
    even, odd = needed.max(axis=0)
    rows = len(rule.n)
    second_moment = tables[:, -1]
    unit = np.sqrt(np.max(np.abs(second_moment), axis=1))
    unit = np.where(unit > 0.0, unit, 1.0)
    coefficients = np.concatenate([tables[:, :even], tables[:, rows : rows + odd]], axis=1)
    row = np.concatenate([np.arange(even), np.arange(odd)])
    parity = np.repeat([0, 1], [even, odd])
    coefficients[row >= needed[:, parity]] = 0.0
    size = np.max(np.abs(coefficients) / unit[:, None, None], axis=(0, 1), initial=0.0)
    size_of_moment = np.max(np.abs(second_moment) / unit[:, None] ** 2, axis=0)
    degree = int(np.max(np.nonzero(size > 1e-2 * precision.tolerance)[0], initial=0))
    moment_degree = int(np.max(np.nonzero(size_of_moment > 1e-15)[0], initial=0))
    steps = np.diff(rule.n, prepend=rule.n[0] - 1)
    coefficients = np.ascontiguousarray(coefficients[:, :, : degree + 1])
    second_moment = np.ascontiguousarray(second_moment[:, : moment_degree + 1])
    exponents, shifts = 2 * rule.n[row] + parity, np.log2(steps[row]).astype(np.int64)
    return Series(
        fn, precision.tolerance, edges, coefficients, second_moment, exponents, shifts, int(even), needed, first_power,
        largest,
    )  # fmt: skip


def _chebyshev_points(points: int) -> Array:
    return np.cos(math.pi * (np.arange(points) + 0.5) / points)


def _chebyshev_fit(values: Array) -> Array:
    """Convert values at the Chebyshev points, (rows, points), to Chebyshev coefficients of the same shape."""
    points = values.shape[1]
    i = np.arange(points)
    # The angle is reduced in integers, because π i (2 i' + 1)/(2 points) itself would lose digits.
    matrix = np.cos(math.pi / (2 * points) * (i[:, None] * (2 * i + 1) % (4 * points))) * (2.0 / points)
    matrix[0] *= 0.5
    return np.asarray(np.einsum("ip,rp->ri", matrix, values))
