"""What a certificate says about rounding, beside what rounding does."""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, GPClassifier, ReLU, Sequential, datasets

PLAIN = Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Dense())
POOLED = Sequential(Conv(3, weight_var=2.0), ReLU(), Conv(3, weight_var=2.0), ReLU(), AvgPool(5, stride=1), Dense())


@pytest.mark.parametrize("network", [PLAIN, POOLED], ids=["plain", "pooled"])
def test_predictions_in_float32_move_by_less_than_the_certificate_says(network: Sequential) -> None:
    """Means are compared with targets of ±1, variances with themselves; the estimate is for rounding alone."""
    data = datasets.digits().take(200, 50)
    rounded, exact = (GPClassifier(network, device="cpu", dtype=t).fit(data.X, data.y) for t in ("float32", "float64"))
    report = rounded.fit_report_
    assert report.movement is not None
    assert report.sensitivity is not None
    assert report.movement < report.sensitivity / 2.0 * (1.0 + 1e-9)  # tr K⁻¹ ≤ N/λ_min
    (mean, variance), (true_mean, true_variance) = (m.predict_latent(data.X_test) for m in (rounded, exact))
    moved = max(np.abs(mean - true_mean).max(), np.abs(variance / true_variance - 1.0).max())
    assert 0.0 < moved < report.movement
