"""Named functions for `Elementwise`, and checks and fingerprints of bare callables.

Each name is one fixed formula, so it can be written to a file. Each formula is safe for any finite argument: no
overflow, no 0·∞, and full relative accuracy where the value is tiny. The module needs only NumPy, because describing a
network must not load anything heavier.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layers.base import NetworkError

Array = NDArray[np.float64]
Function = str | Callable[[Any], Any]

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def _gelu_tanh(x: Array) -> Array:
    y = np.clip(x, -30.0, 30.0)  # keeps the cube finite; outside, the sigmoid below is 0 or 1
    return x * _sigmoid(math.sqrt(8.0 / math.pi) * (y + 0.044715 * y * y * y))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softplus": lambda x: np.logaddexp(0.0, x),
    "gelu_tanh": _gelu_tanh,
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "selu": lambda x: _SELU_SCALE * np.where(x > 0.0, x, _SELU_ALPHA * np.expm1(np.minimum(x, 0.0))),
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "hardtanh": lambda x: np.clip(x, -1.0, 1.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "hardswish": lambda x: x * (np.clip(x + 3.0, 0.0, 6.0) / 6.0),
    "arctan": np.arctan,
    "gaussian": lambda x: np.exp(-np.square(np.clip(x, -40.0, 40.0))),
}

# Points where some derivative of a named function jumps; quadrature splits there.
_BREAKPOINTS: dict[str, tuple[float, ...]] = {
    "elu": (0.0,),
    "selu": (0.0,),
    "softsign": (0.0,),
    "hardtanh": (-1.0, 1.0),
    "relu6": (0.0, 6.0),
    "hardswish": (-3.0, 3.0),
}

# NumPy's and SciPy's names for the same functions.
_UFUNCS = {"tanh": "tanh", "arctan": "arctan", "expit": "sigmoid"}

_PROBE = np.array([-30.0, -3.0, -1.0, -0.25, 0.0, 1e-3, 0.5, 2.0, 30.0])


def check_function(fn: object) -> Function:
    """Return a known name or an elementwise function of a float64 array; raise `NetworkError` for anything else.

    >>> import numpy as np
    >>> check_function(np.tanh)
    'tanh'
    """
    if isinstance(fn, str):
        if fn not in FUNCTIONS:
            raise NetworkError(f"Elementwise: {fn!r} is not a known function; known: {', '.join(FUNCTIONS)}")
        return fn
    if isinstance(fn, np.ufunc) and fn.__name__ in _UFUNCS:
        return _UFUNCS[fn.__name__]
    for name, known in FUNCTIONS.items():
        if fn is known:
            return name
    if isinstance(fn, type) or not callable(fn):
        raise NetworkError(f"Elementwise: expected a name or a function of a NumPy array, got {fn!r}")
    told = f"Elementwise: {getattr(fn, '__name__', fn)!s}"
    fix = "; it must take a float64 array and return a finite real array of the same shape"
    try:
        with np.errstate(all="ignore"):
            values = np.asarray(fn(_PROBE.copy()))
            alone = np.asarray(fn(_PROBE[2:5].copy()))
    except Exception as error:
        raise NetworkError(f"{told} fails on an array: {type(error).__name__}: {str(error)[:100]}{fix}") from None
    if values.shape != _PROBE.shape or alone.shape != (3,):
        raise NetworkError(f"{told} returned shape {values.shape} for an array of shape {_PROBE.shape}{fix}")
    if values.dtype.kind not in "biuf":
        raise NetworkError(f"{told} returned values of type {values.dtype}{fix}")
    if not np.isfinite(values).all():
        raise NetworkError(f"{told} is not finite at {_PROBE[~np.isfinite(values)][0]:g}{fix}")
    # Vectorised code may round differently at different positions, but only in the last bits.
    if not np.allclose(values[2:5].astype(np.float64), alone.astype(np.float64), rtol=1e-6, atol=1e-9):
        raise NetworkError(
            f"{told} is not elementwise: its value at an element depends on the other elements or on chance"
        )
    return fn


def as_callable(fn: Function) -> Callable[[Any], Any]:
    return FUNCTIONS[fn] if isinstance(fn, str) else fn


def breakpoints(fn: Function) -> tuple[float, ...]:
    """Known kinks of `fn`; none for a bare callable."""
    return _BREAKPOINTS.get(fn, ()) if isinstance(fn, str) else ()


def function_name(fn: Function) -> str:
    """Name of the function in messages."""
    return repr(fn) if isinstance(fn, str) else str(getattr(fn, "__name__", fn))


def values_at(fn: Function, x: Array) -> Array:
    """Return fn(x) as float64 without warnings; the caller handles values that are not finite."""
    with np.errstate(all="ignore"):
        return np.asarray(as_callable(fn)(x), dtype=np.float64)


def value_hash(fn: Function) -> str:
    """Hash of the values on a fixed grid, rounded to 9 digits so that it is the same on every platform.

    Libraries differ in the last bit. With 9 digits the chance that one of these values lies within a bit of a rounding
    boundary is 1e-4. The grid avoids short binary fractions, where simple functions take values exactly halfway between
    two rounded ones.
    """
    inner, outer = np.linspace(-8.0, 8.0, 512), np.geomspace(8.0, 1000.0, 32)
    grid = np.concatenate([-outer[::-1], inner, outer]) * 0.97341827364519
    values = values_at(fn, grid)
    rounded = (round(v, 9) + 0.0 if abs(v) < 1.0 else float(f"{v:.8e}") for v in values.tolist())
    return hashlib.sha256(" ".join(map(repr, rounded)).encode()).hexdigest()


def second_moment(fn: Function, s: float) -> float:
    """Approximate E[fn(s z)²], which sets the unit of a buffer and changes no value."""
    z = np.linspace(-6.0, 6.0, 241)
    weights = np.exp(-0.5 * z**2)
    with np.errstate(all="ignore"):
        value = float(np.sum(weights * values_at(fn, s * z) ** 2) / np.sum(weights))
    return value if math.isfinite(value) else 1.0
