"""Images that are there more than once: leave-one-out, and all that is chosen by it, is as honest as without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, GPRegressor, ReLU, Sequential, datasets
from cnngp.estimators import Learning
from cnngp.estimators.training_images import Images, is_repeated, left_out_together

DATA = datasets.digits().take(150, 400)
ROWS = np.r_[:150, :60]


def discs(n: int, seed: int, size: int = 12) -> tuple[Any, Any]:
    """Discs of four sizes, anywhere, in any two greys."""
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=n)
    radius = 2.0 + 0.7 * y + rng.uniform(-0.3, 0.3, n)
    rows, columns = np.mgrid[:size, :size][..., None] + 0.5
    centre = radius + rng.random((2, n)) * (size - 2.0 * radius)
    a, b = rng.random((2, n))
    X = a + (b - a) / (1.0 + np.exp(3.0 * (np.hypot(rows - centre[0], columns - centre[1]) - radius)))
    return (X + rng.normal(0.0, 0.03, X.shape)).transpose(2, 0, 1)[:, None].astype(np.float32), y


def test_equal_images_are_found() -> None:
    X = np.random.default_rng(0).random((5, 1, 3, 3))
    codes = Images(X[[0, 1, 0, 2, 1, 3, 0]], X.dtype).codes()
    np.testing.assert_array_equal(codes, [0, 1, 0, 2, 1, 3, 0])
    np.testing.assert_array_equal(is_repeated(codes), [False, False, True, False, True, False, True])
    np.testing.assert_array_equal(Images(X[[2, 2, 1, 0, 2]], X.dtype, streamed=True).codes(), [0, 0, 1, 2, 0])


def test_groups_and_equal_images_are_joined() -> None:
    def same(a: Any, b: Any) -> None:
        assert len(np.unique(np.stack([a, b]), axis=1).T) == len(np.unique(a)) == len(np.unique(b))

    groups, codes = np.array([0, 0, 1, 2, 3, 4]), np.array([0, 1, 1, 2, 3, 3])
    same(left_out_together(groups, codes), np.array([0, 0, 0, 1, 2, 2]))
    assert left_out_together(groups, np.arange(6)) is groups
    assert left_out_together(groups, groups) is groups
    assert left_out_together(groups, np.array([0, 1, 1, 1, 3, 3])) is groups  # more than half would be joined
    assert left_out_together(None, np.arange(6)) is None
    same(left_out_together(None, codes), codes)
    assert left_out_together(None, np.zeros(6, int)) is None  # nothing would be left


@pytest.mark.parametrize(
    "options", [{"noise": "loo"}, {"noise": 0.01}, {"learn": Learning("loo", starts=1, steps=2)}], ids=str
)
def test_repeats_are_left_out_with_their_twins(options: dict[str, Any]) -> None:
    """Given as groups, or found."""
    found, told = GPClassifier("small_cnn", device="cpu", **options), GPClassifier("small_cnn", device="cpu", **options)
    found.fit(DATA.X[ROWS], DATA.y[ROWS])
    told.fit(DATA.X[ROWS], DATA.y[ROWS], groups=ROWS)
    assert found.gp_.noise == told.gp_.noise
    np.testing.assert_array_equal(found.loo_probabilities_, told.loo_probabilities_)
    once = GPClassifier("small_cnn", device="cpu", **options).fit(DATA.X, DATA.y)
    assert found.loo_error_ >= 0.6 * once.loo_error_ > 0.0


def test_a_few_repeats_do_not_change_what_the_default_chooses() -> None:
    X, y = discs(100, 0)
    once = GPClassifier(device="cpu", effort="quick").fit(X, y)
    again = GPClassifier(device="cpu", effort="quick").fit(X[np.r_[:100, :10]], y[np.r_[:100, :10]])
    assert again.recipe_.terms == once.recipe_.terms
    assert again.gp_.noise == pytest.approx(once.gp_.noise, rel=1.0)


def test_inducing_images_and_a_regressor_leave_repeats_out_too() -> None:
    rows = np.r_[:150, :150]
    clf = GPClassifier("small_cnn", inducing=40, device="cpu").fit(DATA.X[rows], DATA.y[rows])
    left_out = np.isin(np.arange(150), clf.loo_rows_ % 150)
    assert left_out.sum() * 2 == len(clf.loo_rows_)
    reg = GPRegressor("small_cnn", noise=1e-3, device="cpu").fit(DATA.X[rows], DATA.y[rows].astype(float))
    once = GPRegressor("small_cnn", noise=1e-3, device="cpu").fit(DATA.X, DATA.y.astype(float))
    assert reg.loo_error_ == pytest.approx(once.loo_error_, rel=0.05)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30))])
def test_leave_one_out_is_refitting(seed: int) -> None:
    """Each image without what is left out with it; two targets, or two labels, and noise of some images beside that of
    all.
    """
    rng = np.random.default_rng(seed)
    images = DATA.X[rng.permutation(150)[:14]]
    rows = rng.integers(14, size=24)
    groups = np.r_[0, 1, rng.integers(2 if seed < 2 else 12, size=22)]
    if seed % 2:
        rows[np.unique(groups, return_index=True)[1]] = 0  # one image in every group
    X, y, own = images[rows], np.where(rng.random((24, 2)) < 0.5, 1.0, -1.0), rng.choice([0.0, 0.3], 24) * (seed % 3)
    options: dict[str, Any] = {"noise": 0.1, "amplitude": 1.0, "device": "cpu"}
    reg = GPRegressor("small_cnn", **options).fit(X, y, groups=groups, image_noise=own)
    clf = GPClassifier("small_cnn", **options).fit(X, (y > 0.0).astype(int), groups=groups, image_noise=own)
    together = reg.gp_.groups
    assert seed % 2 == 0 or (together == np.unique(groups, return_inverse=True)[1]).all()
    np.testing.assert_allclose(clf.gp_.leave_one_out().mean, reg.loo_predictions_, atol=1e-9)
    for i in range(24):
        assert (together[groups == groups[i]] == together[i]).all()
        rest = together != together[i]
        if rest.any():
            refit = GPRegressor("small_cnn", **options).fit(X[rest], y[rest], image_noise=own[rest])
            mean, std = refit.predict(X[i : i + 1], return_std=True)
            np.testing.assert_allclose(reg.loo_predictions_[i], mean[0], atol=1e-5)
            np.testing.assert_allclose(reg.loo_std_[i], np.sqrt(std[0] ** 2 + 0.1 + own[i]), rtol=1e-4)


@pytest.mark.parametrize("groups", [None, ROWS[:150] // 3])
def test_images_that_are_added_are_left_out_with_their_twins(groups: Any) -> None:
    """As in a fit of all of them, in which each new image is a group of its own."""
    clf = GPClassifier("small_cnn", noise=0.01, device="cpu").fit(DATA.X, DATA.y, groups=groups)
    clf.add(DATA.X[ROWS[150:]], DATA.y[ROWS[150:]])
    own = None if groups is None else np.r_[groups, 1000 + np.arange(60)]
    whole = GPClassifier("small_cnn", noise=0.01, device="cpu").fit(DATA.X[ROWS], DATA.y[ROWS], groups=own)
    np.testing.assert_allclose(clf.gp_.leave_one_out().mean, whole.gp_.leave_one_out().mean, atol=1e-7)
    assert clf.loo_error_ == whole.loo_error_ > 0.0
    assert clf.fit_report_.repeated == whole.fit_report_.repeated == 60


def films(seed: int = 0) -> tuple[Any, Any, Any]:
    """Films of twenty frames that differ little, the first one of each black, and labels that no film foretells."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(10), 20)
    X = np.repeat(rng.standard_normal((10, 1, 8, 8)), 20, 0) + 0.3 * rng.standard_normal((200, 1, 8, 8))
    X[::20] = 0.0
    return X, groups % 2, groups


def test_a_frame_that_all_films_share_does_not_undo_their_groups() -> None:
    X, y, groups = films()
    clf = GPClassifier("small_cnn", noise="loo", device="cpu")
    assert clf.fit(X, y, groups=groups).loo_error_ > 0.4
    assert clf.fit(X, y, groups=np.arange(200)).loo_error_ < 0.1
    few = GPClassifier("small_cnn", inducing=60, device="cpu").fit(X, y, groups=groups)
    assert (np.bincount(groups[few.loo_rows_]) % 20 == 0).all()  # whole films


def test_one_shared_image_does_not_join_two_groups(tmp_path: Path) -> None:
    X, y, _ = films(1)
    X, y, groups = X[:40], np.arange(40) % 3, np.repeat([0, 1], 20)
    clf = GPClassifier("small_cnn", noise=0.1, device="cpu").fit(X, y, groups=groups)
    np.testing.assert_array_equal(clf.gp_.groups, groups)
    clf.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp", device="cpu")
    np.testing.assert_array_equal(again.loo_probabilities_, clf.loo_probabilities_)
    assert len(clf.add(X[:2] + 1.0, y[:2]).gp_.groups) == 42


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_measurements_repeated_at_one_image_give_the_noise(dtype):
    """Predicted standard deviations of 79 and 615 came of a noise that did not see them contradict each other."""
    rng = np.random.default_rng(0)
    X, new = np.repeat(rng.standard_normal((40, 1, 6, 6)), 2, 0), rng.standard_normal((50, 1, 6, 6))
    weights = rng.standard_normal(36)
    f, f_new = (np.tanh(x.reshape(len(x), -1) @ weights / 6) for x in (X, new))
    net = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense(bias_var=0.1))
    reg = GPRegressor(net, noise="loo", dtype=dtype, device="cpu").fit(X, f + 0.3 * rng.standard_normal(80))
    mean, std = reg.predict(new, return_std=True)
    assert 0.5 < std.mean() / np.sqrt(((mean - f_new) ** 2).mean()) < 2.0
    assert 0.2 < np.sqrt(reg.gp_.amplitude * reg.gp_.noise) < 0.4
