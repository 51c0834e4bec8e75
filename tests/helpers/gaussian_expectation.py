"""E[f(u) g(v)] for jointly Gaussian u and v by brute two-dimensional quadrature: the oracle of closed forms and series.

u = s z, v = s' (ρ z + √(1 − ρ²) t) with z, t independent standard normals. Both integrals run over Gauss–Legendre
panels that are cut at the kinks of the functions, wherever these fall, and shrink towards them, so that neither a kink
nor the narrow turn of the conditional mean at |ρ| near 1 lies inside a panel that cannot resolve it.
"""

import math

import numpy as np

_X, _W = np.polynomial.legendre.leggauss(20)
_END = 12.0  # φ(12) < 1e-31: room for the Hermite polynomials, too
_GRID = np.linspace(-_END, _END, 19)
_FINE = 0.125


def expectation(f, s1, s2, rho, kinks=(0.0,), g=None):
    """E[f(u) g(v)]; `kinks` are the x about which panels shrink, down to a width of 1/8 in x."""
    g = f if g is None else g
    c = math.sqrt((1.0 - rho) * (1.0 + rho))
    if s1 == 0.0:
        return float(f(np.zeros(1))[0]) * one_dimensional(g, s2, kinks)
    widths = [_FINE / s1, _FINE / s2 if s2 > 0.0 else math.inf]
    # The conditional mean of g turns over a width of c/|ρ| about each kink.
    turns = [c / 8.0] if c > 0.0 else []
    cuts = _cuts(
        [k / s1 for k in kinks] + ([k / (s2 * rho) for k in kinks] if s2 * rho != 0.0 else []), min(widths + turns)
    )
    z, w = _panels(cuts[None])
    z, w = z[0], w[0]
    if c == 0.0:
        inner = g(s2 * rho * z)
    elif s2 == 0.0:
        inner = np.full(z.shape, float(g(np.zeros(1))[0]))
    else:
        inner = _inner(g, s2 * rho * z, s2 * c, kinks)
    return float(np.sum(w * f(s1 * z) * inner))


def one_dimensional(f, s, kinks=(0.0,), power=1):
    """E[f(s z)^power]."""
    if s == 0.0:
        return float(f(np.zeros(1))[0] ** power)
    z, w = _panels(_cuts([k / s for k in kinks], _FINE / s)[None])
    return float(np.sum(w * f(s * z) ** power))


def _cuts(centres, width):
    steps = _ladder(width)
    every = [c + sign * steps for c in centres for sign in (-1.0, 1.0)]
    cuts = np.unique(np.concatenate([_GRID, centres, *every]))
    return cuts[np.abs(cuts) <= _END]


def _ladder(width):
    """Distances from a kink: width, 2 width, 4 width, … up to 1."""
    if width >= 1.0:
        return np.zeros(0)
    return 2.0 ** -np.arange(0, math.ceil(-math.log2(width)) + 1)


def _inner(g, mean, tau, kinks):
    """(len(mean),) E[g(mean + tau t)], each with cuts of its own."""
    total = np.empty(len(mean))
    steps = _ladder(_FINE / tau)
    for block in np.array_split(np.arange(len(mean)), max(len(mean) // 200, 1)):
        centres = [(k - mean[block]) / tau for k in kinks]
        moving = [c[:, None] + sign * steps for c in centres for sign in (-1.0, 1.0)] + [c[:, None] for c in centres]
        cuts = np.concatenate([np.broadcast_to(_GRID, (len(block), len(_GRID))), *moving], axis=1)
        t, w = _panels(np.sort(np.clip(cuts, -_END, _END), axis=1))
        total[block] = np.sum(w * g(mean[block, None] + tau * t), axis=1)
    return total


def _panels(cuts):
    """(rows, cuts) -> nodes and weights of φ(t) dt, (rows, 20 · panels)."""
    low, high = cuts[:, :-1, None], cuts[:, 1:, None]
    t = 0.5 * (low + high) + 0.5 * (high - low) * _X
    w = 0.5 * (high - low) * _W * np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    return t.reshape(len(cuts), -1), w.reshape(len(cuts), -1)
