"""What a gradient is told of the matrix: G, a number for each of its entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, as_real, in_place, to_numpy


def checked_weights(G: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    """G as float64, if it is a matrix of finite numbers, one for each entry of K."""
    weights: NDArray[np.float64] = as_real(to_numpy(in_place(G, "G"), "G"), "G").astype(np.float64)
    if weights.shape != shape:
        raise DataError(f"G has shape {weights.shape}; expected {shape}, a number for each entry of the kernel matrix")
    if not np.isfinite(weights).all():
        i, j = np.argwhere(~np.isfinite(weights))[0]
        raise DataError(f"G[{i}, {j}] is {weights[i, j]}; expected finite numbers")
    return weights
