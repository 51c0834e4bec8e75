"""The density of targets under a Gaussian whose scale, the amplitude a, may be free: C outputs share aΣ.

−2 log N(Y; 0, aΣ) = Σ_c y_cᵀΣ⁻¹y_c/a + C (n log a + log|Σ|) + C n log 2π,    greatest at a = Σ_c y_cᵀΣ⁻¹y_c/(n C)
"""

from __future__ import annotations

import math
from typing import Any

LOG_2PI = math.log(2.0 * math.pi)


def amplitude_of(fit: float, targets: int, rule: Any) -> float:
    """The amplitude that is given as a number, or the best one for Σ yᵀΣ⁻¹y = `fit` of so many `targets`."""
    if not isinstance(rule, str):
        return float(rule)
    return fit / targets if fit > 0.0 else 1.0  # targets that are all zero say nothing of scale


def twice_negative_log(fit: float, log_determinant: float, n: int, outputs: int, rule: Any) -> float:
    """−2 log N without its constant, C n log 2π, at the amplitude of `amplitude_of`."""
    a = amplitude_of(fit, n * outputs, rule)
    return fit / a + outputs * (n * math.log(a) + log_determinant)
