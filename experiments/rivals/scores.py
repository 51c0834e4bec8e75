"""Scores of every row: error, NLL and ECE of its probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cnngp.gp.calibration import negative_log_likelihood, reliability
from cnngp.paper.results import percent


def measured(P: NDArray[np.float64], codes: NDArray[np.intp], part: str) -> dict[str, float]:
    """Error in percent, NLL in nats and ECE of probabilities (N, classes)."""
    return {
        f"{part}_error": percent(P.argmax(1) != codes),
        f"{part}_nll": negative_log_likelihood(P, codes),
        f"{part}_ece": reliability(P, codes).ece,
    }
