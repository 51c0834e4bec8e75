"""The named functions of `Elementwise`, and how a bare callable is checked and fingerprinted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "softplus": _softplus,
}


def check_function(fn: object) -> str | Callable[[Any], Any]:
    from .network import NetworkError

    if isinstance(fn, str):
        if fn not in FUNCTIONS:
            raise NetworkError(f"Elementwise: {fn!r} is not a known function; known: {', '.join(FUNCTIONS)}")
        return fn
    if not callable(fn):
        raise NetworkError(f"Elementwise: expected a name or a function of a NumPy array, got {fn!r}")
    for name, known in FUNCTIONS.items():
        if fn is known:
            return name
    return fn


def as_callable(fn: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    return FUNCTIONS[fn] if isinstance(fn, str) else fn


def value_hash(fn: Callable[[Any], Any]) -> str:
    grid = np.linspace(-8.0, 8.0, 1025)
    return hashlib.sha256(np.asarray(fn(grid), dtype="<f8").tobytes()).hexdigest()


def second_moment(fn: str | Callable[[Any], Any], s: float) -> float:
    """E[fn(s z)²], roughly: it sets the unit of a buffer, not a value."""
    f = as_callable(fn)
    z = np.linspace(-6.0, 6.0, 241)
    weights = np.exp(-0.5 * z**2)
    value = float(np.sum(weights * np.asarray(f(s * z), dtype=np.float64) ** 2) / np.sum(weights))
    return value if np.isfinite(value) else 1.0
