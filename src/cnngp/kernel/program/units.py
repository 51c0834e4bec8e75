"""The units in which maps are held: true value = unit · map.

Constants such as the ReLU's 1/2 and the filter's 1/9 become part of the unit and cost nothing, and powers of two keep
deep networks with large variances inside the range of float32. A map's level is log₂ of its size for pixels of order
one; it depends on the network alone, so the unit cannot change the bits of an entry between batches.
"""

from __future__ import annotations

import math
from typing import assert_never

from cnngp.network.composition import at
from cnngp.network.layers import (
    GELU,
    Abs,
    Cos,
    Elementwise,
    Erf,
    LeakyReLU,
    NetworkError,
    Nonlinearity,
    ReLU,
    Sin,
    Step,
)

# A buffer's typical value stays within 2^±24 for pixels of order one; float32 has 2^±126, so images of any usual scale
# (0 to 255, standardised, …) stay far from both ends.
_HEADROOM = 24.0


def within_headroom(unit: float, level: float) -> float:
    """The unit, shifted by a power of two where the typical value would leave the headroom."""
    drift = level - log2(unit)
    if abs(drift) <= _HEADROOM or not math.isfinite(drift):
        return unit
    try:
        return math.ldexp(unit, round(drift))
    except OverflowError:
        return math.inf  # for `checked` to name the place


def checked(unit: float, level: float, place: str) -> float:
    """The unit, unless it is beyond what floating-point numbers hold: then an error that names the place."""
    if not 0.0 < unit < math.inf:
        raise NetworkError(
            at(place, f"the variance here is of order 2^{level:.0f}, beyond float64; use other variances")
        )
    return unit


def factor_and_level(layer: Nonlinearity, unit: float, level: float) -> tuple[float, float]:
    """V = factor · f, and log₂ of the V to expect."""
    match layer:
        case ReLU():
            square = layer.gain * layer.gain  # infinite beyond the range, where ** would raise
            return square * unit / 2.0, level + log2(square / 2.0)
        case LeakyReLU():
            return unit * slope_unit(layer), level + log2((1.0 + layer.slope * layer.slope) / 2.0)
        case Abs():
            return unit, level
        case Erf():
            K = 2.0 ** min(level, 100.0)
            return 2.0 / math.pi, log2(2.0 / math.pi * math.asin(2.0 * K / (1.0 + 2.0 * K)))
        case Step():
            return 1.0 / (2.0 * math.pi), -1.0
        case Sin():
            return 1.0, min(level, -1.0)
        case Cos():
            return 1.0, -1.0
        case GELU():
            return 1.0, level - 1.0
        case Elementwise():
            from cnngp.network.functions import second_moment

            return 1.0, log2(second_moment(layer.fn, 2.0 ** (min(level, 200.0) / 2.0)))
        case _:
            assert_never(layer)


def slope_unit(layer: LeakyReLU) -> float:
    """What is taken out of α and β, into the unit: the power of two next to a², where that is far from one."""
    exponent = 2 * math.frexp(layer.slope)[1]
    return math.ldexp(1.0, min(exponent, 1023)) if exponent > 24 else 1.0


def log2(x: float) -> float:
    return math.log2(x) if x > 0 else -math.inf


def log2_sum(a: float, b: float) -> float:
    """log₂(2^a + 2^b)."""
    top = max(a, b)
    return top if math.isinf(top) else top + math.log2(2.0 ** (a - top) + 2.0 ** (b - top))
