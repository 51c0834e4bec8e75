"""Labels that the other images contradict, as columns of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def suspects(
    n: int, rows: NDArray[np.intp], score: NDArray[np.float64], given: Array, proposed: Array, names: Array | None
) -> dict[str, Array]:
    """The `n` rows with the highest score as a dict of arrays; `names` are those of all training images."""
    order = np.argsort(-score, kind="stable")[:n]
    at = rows[order]
    name = np.array([f"image {i}" for i in at], dtype=str) if names is None else names[at]
    return {"row": at, "score": score[order], "given": given[order], "proposed": proposed[order], "name": name}
