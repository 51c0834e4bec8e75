"""Quadrature of E[fn(s z) h_k(z)] and E[fn(s z)²], z standard normal, h_k the normalised Hermite polynomials.

There are two methods. If fn is smooth except perhaps at 0, one fixed mesh in z serves all s, so the h_k are tabulated
once, up to k in the thousands. If fn has other kinks, they move in z with s, so each s has panels of its own, and k
stays small. All sums are plain additions in a fixed order: the bits of a BLAS product may depend on the number of
threads, and these numbers determine the bits of a kernel.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cnngp.network.functions import Function, breakpoints, function_name, values_at
from cnngp.network.layers import NetworkError

Array = NDArray[np.float64]

REACH = 13.0  # |h_k(z)| φ(z) ≤ exp(−z²/4) < 1e-18 beyond, for every k

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
# Legendre coefficients 13, 14, 15 from values at the nodes: three of them cover both parities.
_LAST = np.ascontiguousarray(
    (np.polynomial.legendre.legvander(_NODES, 15) * _WEIGHTS[:, None] * (np.arange(16) + 0.5)).T[-3:]
)
_MAX_PIECES = 3000


class TooRough(NetworkError):
    """Error for a function that no reasonable number of pieces resolves."""


# ---- one mesh for all s --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def half_line() -> tuple[Array, Array]:
    """Nodes z > 0 and weights of 2 φ(z) dz on [0, 13].

    Steps of 1/8 resolve h_8192, whose wavelength is 2π/90; towards 0 they shrink with z, for fn(s z) at large s.
    """
    fine = [2.0**-j * (1.0 + i / 4.0) for j in range(16, 3, -1) for i in range(4)]
    cuts = np.array([0.0, *fine, *np.arange(1 / 8, REACH + 1 / 16, 1 / 8)])
    z, weights = _gauss_legendre(cuts[:-1], cuts[1:])
    return z.ravel(), (2.0 * weights).ravel()


@lru_cache(maxsize=4)
def hermite_rows(indices: tuple[int, ...]) -> tuple[Array, Array]:
    """Return h_2n and h_2n+1 on `half_line`, times its weights, for n in `indices`: (len(indices), nodes) each."""
    z, weights = half_line()
    even, odd = np.empty((len(indices), len(z))), np.empty((len(indices), len(z)))
    rows = {n: i for i, n in enumerate(indices)}
    before, h, spare = np.zeros_like(z), weights.copy(), np.empty_like(z)
    for k in range(2 * max(indices) + 2):
        if k // 2 in rows:
            (odd if k % 2 else even)[rows[k // 2]] = h
        # h_{k+1} = (z h_k − √k h_{k−1})/√(k+1)
        np.multiply(z, h, out=spare)
        before *= math.sqrt(k)
        spare -= before
        spare /= math.sqrt(k + 1.0)
        before, h, spare = h, spare, before
    return even, odd


def parts(fn: Function, s: Array) -> tuple[Array, Array]:
    """Return the even and the odd part of z ↦ fn(s z) on `half_line`, (len(s), nodes) each."""
    x = s[:, None] * half_line()[0]
    plus, minus = values_at(fn, x), values_at(fn, -x)
    return 0.5 * (plus + minus), 0.5 * (plus - minus)


# ---- separate panels for each s ------------------------------------------------------------------------------------


def moments(fn: Function, s: Array, terms: int) -> tuple[Array, Array]:
    """Return E[fn(s z) h_k(z)], (terms, len(s)) with terms ≤ 64, and E[fn(s z)²], (len(s),).

    Panels are cut at a fixed grid in z and at the boundaries of the pieces of fn, x = s z, so that each panel resolves
    h_64 and has no kink of fn inside it.
    """
    cuts_in_x = pieces(fn, REACH * float(np.max(s)))
    grid = np.arange(-REACH, REACH + 0.25, 0.5)
    cuts = [np.union1d(grid, (cuts_in_x / si)[np.abs(cuts_in_x / si) < REACH]) for si in s]
    counts = np.array([len(c) - 1 for c in cuts])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    z, weights = _gauss_legendre(np.concatenate([c[:-1] for c in cuts]), np.concatenate([c[1:] for c in cuts]))
    values = values_at(fn, np.repeat(s, counts)[:, None] * z)

    def integral(f: Array) -> Array:
        return np.add.reduceat(np.sum(f, axis=1), starts)

    a = np.empty((terms, len(s)))
    before, h = np.zeros_like(z), values * weights
    for k in range(terms):
        a[k] = integral(h)
        before, h = h, (z * h - math.sqrt(k) * before) / math.sqrt(k + 1.0)
    return a, integral(values * values * weights)


def is_smooth(fn: Function) -> bool:
    """True if fn has no kink except at 0, as far as its pieces within |x| < 64 show."""
    if any(x != 0.0 for x in breakpoints(fn)):
        return False
    cuts = pieces(fn, 64.0)
    return bool(np.all(np.diff(cuts) > 1e-3 * np.maximum(np.abs(cuts[1:]), np.abs(cuts[:-1]))))


def pieces(fn: Function, reach: float) -> Array:
    """Cuts of [−reach, reach] between which fn is a polynomial of degree 15, up to rounding.

    They are dyadic about 0 and then bisected while the last Legendre coefficients are not negligible; around a kink
    this continues until the weight of the piece that contains it is negligible.
    """
    powers: Array = 2.0 ** np.arange(-4.0, max(math.ceil(math.log2(reach)), -3) + 1)
    known = [x for x in breakpoints(fn) if abs(x) < powers[-1]]
    cuts = np.unique(np.concatenate([-powers, [0.0], powers, known]))
    low, high = cuts[:-1], cuts[1:]
    done = [cuts]
    total = 0
    while len(low):
        total += len(low)
        if total > _MAX_PIECES:
            raise TooRough(f"Elementwise({function_name(fn)}): it is too rough to integrate within |x| < {reach:.3g}")
        width = high - low
        outer = np.maximum(np.abs(low), np.abs(high))
        values = values_at(fn, 0.5 * (low + high)[:, None] + 0.5 * width[:, None] * _NODES)
        last = np.max(np.abs(np.einsum("jn,pn->pj", _LAST, values)), axis=1)
        scale = np.maximum(np.max(np.abs(values), axis=1), np.interp(outer, *_envelope(fn, powers)))
        # A piece of width w at distance x from 0 has a Gaussian weight of at most about w/x, for any s.
        rough = last * width > 4e-15 * scale * outer
        middle = 0.5 * (low + high)[rough]
        done.append(middle)
        low, high = np.append(low[rough], middle), np.append(middle, high[rough])
    return np.unique(np.concatenate(done))


def check_growth(fn: Function, reach: float) -> None:
    """Raise `NetworkError` if fn is not finite or grows faster than a power: no second moment exists for large s."""
    x: Array = reach * 2.0 ** np.arange(-8.0, 1.0)
    size = np.maximum(np.abs(values_at(fn, x)), np.abs(values_at(fn, -x)))
    if not np.isfinite(size).all() or (size[1:] > 256.0 * np.maximum.accumulate(size)[:-1] + 1.0).any():
        raise NetworkError(
            f"Elementwise({function_name(fn)}): it grows too fast or is not finite for |x| up to {reach:g}; "
            "E[fn²] must exist at any variance, as it does for functions that grow like a power of x"
        )


def _envelope(fn: Function, powers: Array) -> tuple[Array, Array]:
    """Largest |fn| within |x| ≤ each power of two."""
    x = powers * np.linspace(-1.0, 1.0, 9)[:, None]
    return powers, np.maximum.accumulate(np.max(np.abs(values_at(fn, x)), axis=0))


def _gauss_legendre(low: Array, high: Array) -> tuple[Array, Array]:
    """Nodes and weights of φ(z) dz, (panels, 16) each."""
    low, high = low[:, None], high[:, None]
    z = 0.5 * (low + high) + 0.5 * (high - low) * _NODES
    return z, 0.5 * (high - low) * _WEIGHTS * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
