"""∂/∂θ of Σ G K by finite differences of the float64 reference."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cnngp.network import Network, reference


def by_differences(
    net: Network, X: np.ndarray, Z: np.ndarray | None, G: np.ndarray, names: Iterable[str] | None = None
) -> dict[str, float]:
    """Central differences of order four; one-sided ones where a variance is 0, which cannot be less."""
    values = net.parameters()
    found = {}
    for name in values if names is None else names:
        one_sided = values[name] == 0.0
        h = 2e-3 * (abs(values[name]) or 0.1)
        steps, weights = (
            ((0, 1, 2, 3, 4), (-25 / 12, 4.0, -3.0, 4 / 3, -1 / 4))
            if one_sided
            else ((-2, -1, 1, 2), (1 / 12, -2 / 3, 2 / 3, -1 / 12))
        )
        total = 0.0
        for step, weight in zip(steps, weights, strict=True):
            other = net.with_parameters({name: values[name] + step * h})
            total += weight * float(np.sum(G * reference.kernel(other, X, Z)))
        found[name] = total / h
    return found
