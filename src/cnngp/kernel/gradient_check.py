"""A gradient that checks itself: a card's against the CPU's in float64, on two images of the user's own.

An engine is off by 1e-5 in float32 and 1e-10 in float64. A derivative is judged by its own size, and a small one by a
thousandth of the largest. Some are known less well, such as those by a bias of 0 where two patches have correlation
one: how much less is measured by how far the CPU's own gradient in float32 is off. What rounding moves goes at worst
with the square root of the unit in the last place, which says what to expect of float64. An engine that is `FAR`
times further off is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.network.layers import Network, NetworkError

from .check import FAR, LOOKED_AT, WrongKernelError, two_of
from .engines.base import RangeError
from .engines.weights import Gradient, GradientEngine
from .verdicts import Verdict

Array = NDArray[np.float64]

_DOCUMENTED = {4: 1e-5, 8: 1e-10}
_SMALL = 1e-3
# ∂L/∂K of two images: all of one sign, so that little cancels, and none like another.
_WEIGHTS = np.array([[1.0, 0.75], [0.5, 1.25]])


def check_gradient(
    network: Network,
    dtype: np.dtype[Any],
    engine: GradientEngine,
    on_cpu: Callable[[str], GradientEngine],
    to_engine: Callable[[Any], Any],
    images: Any,
) -> Verdict | None:
    """The verdict on two of these images, (N, C, …); `WrongKernelError` where the two engines are far apart.

    `on_cpu` is the CPU's gradient in a precision. None where these images tell nothing: blank ones, or out of range.
    """
    pair = two_of(to_numpy(images[:LOOKED_AT]))
    names = list(network.parameters())
    try:
        found = _numbers(engine, to_engine(pair))
        expected = _numbers(on_cpu("float64"), pair.astype(np.float64))
    except (RangeError, NetworkError):
        return None
    if not all(0.0 < np.abs(numbers).max(initial=0.0) < math.inf for numbers in expected):
        return None
    # Of an error of float32 that goes with the square root of a rounding, what it is in this precision.
    times = math.sqrt(float(np.finfo(dtype).eps) / float(np.finfo(np.float32).eps))
    error, bound = 0.0, max(_DOCUMENTED[dtype.itemsize], _rounding(on_cpu, pair, expected) * times)
    for kind, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        apart = _apart(mine, theirs)
        worst = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
        if not apart[worst] <= FAR * bound:  # NaN is wrong too
            what = f"by {names[worst]}" if kind == 0 else f"by pixel {worst} of the two images"
            raise WrongKernelError(
                f"the engine {engine.identity} computes the gradient of this network wrongly on images of shape "
                f"{pair.shape[1:]}: {what} it gives {mine[worst]:.6g} where the CPU gives {theirs[worst]:.6g}, "
                f"{apart[worst]:.1g} of it apart where rounding explains {bound:.0e}. This is a bug of cnngp: please "
                f"report it with the network, {network!r}. Kernel(…, device='cpu') has the CPU's gradient; "
                "Kernel(…, check=False) turns this check off"
            )
        error = max(error, float(apart[worst]))
    return Verdict(error, bound)


def _apart(found: Array, expected: Array) -> Array:
    sizes = np.abs(expected)
    return np.asarray(np.abs(found - expected) / np.maximum(sizes, _SMALL * sizes.max()))


def _rounding(on_cpu: Callable[[str], GradientEngine], pair: Any, expected: list[Array]) -> float:
    """How far the CPU's gradient in float32 is off; 0 where float32 cannot hold these images."""
    try:
        rounded = _numbers(on_cpu("float32"), pair.astype(np.float32))
    except (RangeError, NetworkError):
        return 0.0
    off = max(float(_apart(a, b).max()) for a, b in zip(rounded, expected, strict=True))
    return off if math.isfinite(off) else 0.0


def _numbers(engine: GradientEngine, pair: Any) -> list[Array]:
    """The derivatives by parameters and, where the engine has them, by pixels."""
    found: Gradient = engine.gradient(pair.reshape(*pair.shape[:2], -1), None, _WEIGHTS)
    numbers = [np.array(list(found.parameters.values()))]
    return numbers if found.of_x is None else [*numbers, found.of_x.ravel()]
