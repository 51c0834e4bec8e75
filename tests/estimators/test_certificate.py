"""What a certificate says about rounding, beside what rounding does, and of models that learned nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, GPClassifier, ReLU, Sequential, datasets
from cnngp.estimators.certificate import errors_if_guessing
from helpers.estimators import classifier, fitted

PLAIN = Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Dense())
POOLED = Sequential(Conv(3, weight_var=2.0), ReLU(), Conv(3, weight_var=2.0), ReLU(), AvgPool(5, stride=1), Dense())


@pytest.mark.parametrize("network", [PLAIN, POOLED], ids=["plain", "pooled"])
def test_predictions_in_float32_move_by_less_than_the_certificate_says(network: Sequential) -> None:
    """Means are compared with targets of ±1, variances with themselves; the estimate is for rounding alone."""
    data = datasets.digits().take(200, 50)
    rounded, exact = (GPClassifier(network, device="cpu", dtype=t).fit(data.X, data.y) for t in ("float32", "float64"))
    report = rounded.fit_report_
    assert report.movement < report.sensitivity / 2.0 * (1.0 + 1e-9)  # tr K⁻¹ ≤ N/λ_min
    (mean, variance), (true_mean, true_variance) = (m.predict_latent(data.X_test) for m in (rounded, exact))
    moved = max(np.abs(mean - true_mean).max(), np.abs(variance / true_variance - 1.0).max())
    assert 0.0 < moved < report.movement


@pytest.mark.parametrize(
    ("worrying", "changes", "sentence"),
    [
        (True, {"kernel_error": 0.2}, "not this network's kernel on these images"),
        (True, {"residual": 1e-3}, "solved to 1e-03 only"),
        (True, {"kernel_error": 1e-4}, "larger than the smallest eigenvalue"),
        (True, {"kernel_error": 2e-6}, "off by 2e-06 of the largest, where rounding explains 1e-06"),
        (True, {"spread": 1e-9}, "hardly tells these images apart: they differ by 1e-09 on average"),
        (True, {"guessing": (0.35, 0.5)}, "Not clearly better than guessing: leave-one-out is wrong on 35 % of the"),
        (True, {"guessing": (0.6, 0.5), "residual": 1e-3}, "No better than guessing: leave-one-out is wrong on 60 %"),
        (True, {"no_better": (2.0, 1.5)}, "No better than the mean of all targets: leave-one-out is off by 2, root"),
        (True, {"no_better": (1.4, 1.5)}, "Not clearly better than the mean of all targets: leave-one-out is off by"),
        (False, {"jitter": 1e-7}, "1e-07 of its mean variance added as noise"),
        (False, {"kernel_error": None}, "how exact the matrix is was not measured"),
        (False, {"kernel_error": 9e-7}, "exact kernel: its rounding moves the solution by about 3 %"),
        (False, {"kernel_error": 1e-8, "images": 10**6}, "moves the solution by less than 0.1 %"),
        (False, {"kernel_error": 4e-6, "kernel_bound": 1e-5}, "may move variances and the likelihood by up to 13 %"),
        (False, {"method": "inducing"}, "How far its error is from that of the exact process was not measured."),
        (False, {"method": "inducing", "excess": 1e-3, "excess_uncertainty": 5e-4}, "Its error is within 0.20 points"),
        (False, {"method": "inducing", "excess": 1e-3, "excess_uncertainty": 2e-3}, "may be up to 0.5 points above"),
    ],
)
def test_what_the_certificate_says(worrying: bool, changes: dict[str, Any], sentence: str) -> None:
    sound = {"images": 100, "largest_variance": 1.0, "smallest_eigenvalue": (1e-5, 1e-4), "kernel_bound": 1e-6}
    report = replace(fitted().fit_report_, **sound | changes)
    assert sentence in report.verdict
    assert report.worrying is worrying
    assert ("solved to 1e-03 only" in report.verdict) == ("residual" in changes)


# ---- models that learned nothing -------------------------------------------------------------------------------------

DIGITS = datasets.digits()


def noise(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((n, 1, 8, 8))


def by_loo(X: Any, y: Any, **options: Any) -> GPClassifier:
    return classifier("small_cnn", noise="loo", **options).fit(X, y)


@pytest.mark.filterwarnings("ignore:noise='loo' chose the most noise")
@pytest.mark.parametrize("shares", [(1 / 3, 1 / 3, 1 / 3), (0.8, 0.2), (0.05, 0.95)])
@pytest.mark.parametrize("seed", range(2))
def test_labels_without_a_rule_are_no_better_than_guessing(shares: tuple[float, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(shares)), np.round(90 * np.array(shares)).astype(int)))
    report = by_loo(noise(len(y), seed), y).fit_report_
    assert report.guessing[1] == pytest.approx(1 - max(shares), abs=0.01)
    assert "better than guessing: leave-one-out is wrong on " in report.verdict
    assert f"always naming the commonest class would be on {100 * report.guessing[1]:.0f} %" in report.verdict
    assert "can be trusted" not in report.verdict


SEVERAL = np.stack([DIGITS.y[:120] < 5, DIGITS.y[:120] % 2 == 0], 1).astype(int)
# Of 190 ones and threes and 10 zeros, guessing is wrong on 5 %.
RARE = np.r_[np.flatnonzero(np.isin(DIGITS.y, (1, 3)))[:190], np.flatnonzero(DIGITS.y == 0)[:10]]
LEARNED = {
    "thirty digits": (DIGITS.X[:30], DIGITS.y[:30]),
    "a hundred digits": (DIGITS.X[:100], DIGITS.y[:100]),
    "a rare class": (DIGITS.X[RARE], DIGITS.y[RARE] == 0),
    "several labels": (DIGITS.X[:120], SEVERAL),
}


@pytest.mark.parametrize("of", LEARNED)
def test_what_is_recognised_is_better_than_guessing(of: str) -> None:
    for inducing in (None, 25) if "digits" in of else (None,):
        assert by_loo(*LEARNED[of], inducing=inducing).fit_report_.guessing is None


@pytest.mark.filterwarnings("ignore:noise='loo' chose the most noise")
def test_several_labels_are_judged_by_each_of_them_and_one_image_of_each_class_not_at_all() -> None:
    wrong, guess_wrong = by_loo(noise(120), SEVERAL).fit_report_.guessing or (0, 0)
    assert wrong >= guess_wrong - 0.1
    assert guess_wrong > 0.5
    assert classifier("small_cnn").fit(DIGITS.X[:10], np.arange(10)).fit_report_.guessing is None


def test_many_images_of_few_groups_are_no_proof() -> None:
    """Two films of 50 frames: what one of them is found right about is chance."""
    yes = np.eye(2, dtype=bool)[np.repeat([0, 1], 50)]
    P = np.where(yes, 0.6, 0.4)
    P[:50] = 1.0 - P[:50]  # the first film is taken for the second one
    P[50:] = np.where(yes[50:], 0.9, 0.1)
    wrong = np.repeat([True, False], 50)
    assert errors_if_guessing(P, wrong, yes, False) is None
    assert errors_if_guessing(P, wrong, yes, False, np.repeat([0, 1], 50)) == (0.5, 0.5)
