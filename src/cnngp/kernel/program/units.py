"""The units in which maps are held: true value = unit · map.

Constants such as the ReLU's 1/2 and the filter's 1/9 become part of the unit and cost nothing, and powers of two keep
deep networks with large variances inside the range of float32. A map's level is log₂ of its size for pixels of order
one; it depends on the network alone, so the unit cannot change the bits of an entry between batches.
"""

from __future__ import annotations

import math
import sys

from cnngp.kernel.formulas.family import log2
from cnngp.network.layers import NetworkError
from cnngp.network.walk import at

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
    if not sys.float_info.min <= unit < math.inf:  # smaller ones have lost digits
        raise NetworkError(
            at(place, f"the variance here is of order 2^{level:.0f}, beyond float64; use other variances")
        )
    return unit


def log2_sum(a: float, b: float) -> float:
    """log₂(2^a + 2^b)."""
    top = max(a, b)
    return top if math.isinf(top) else top + math.log2(2.0 ** (a - top) + 2.0 ** (b - top))
