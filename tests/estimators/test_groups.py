"""Images that belong together: copies bring their groups, and equal images are left out together."""

from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, datasets
from cnngp.common.arrays import DataError
from cnngp.datasets import augmentation
from cnngp.estimators import Learning
from cnngp.estimators.training_images import Images, is_repeated, joined, left_out_together
from helpers.estimators import classifier

DATA = datasets.digits().take(80, 300)
X5, Y5 = augmentation.warped(DATA.X, DATA.y)


def small(**options: Any) -> GPClassifier:
    return classifier("small_cnn", **options)


def test_leave_one_out_does_not_learn_from_copies() -> None:
    honest, naive, given = (
        small(noise="loo").fit(X, Y5, groups=groups) for X, groups in ((X5, None), (X5[:], None), (X5[:], X5.groups))
    )
    error = 1.0 - honest.score(DATA.X_test, DATA.y_test)
    assert naive.loo_error_ < 0.3 * error < 0.5 * error < honest.loo_error_ < 2.0 * error
    assert given.loo_error_ == honest.loo_error_


def test_an_iterative_solver_leaves_groups_out_together() -> None:
    exact, clf = (small(noise=0.1, solver=solver).fit(X5, Y5) for solver in ("cholesky", "cg"))
    assert 200 < len(clf.loo_rows_) <= 256
    np.testing.assert_allclose(clf.gp_.leave_one_out().mean, exact.gp_.leave_one_out().mean[clf.loo_rows_], atol=1e-6)
    assert (np.bincount(clf.gp_.groups)[clf.gp_.groups] == 5).all()
    twice = np.concatenate([DATA.X, DATA.X])  # equal images are groups without being told
    repeated = small(noise=0.1, solver="cg").fit(twice, np.tile(DATA.y, 2))
    assert repeated.loo_error_ == small(noise=0.1).fit(twice, np.tile(DATA.y, 2)).loo_error_


def test_learning_sees_one_image_of_each_group() -> None:
    learning = Learning("loo", images=400, starts=1, steps=3)
    copies, once = (small(learn=learning).fit(X, y) for X, y in ((X5, Y5), (DATA.X, DATA.y)))
    assert copies.network_ == once.network_
    assert copies.learned_.after == once.learned_.after
    with pytest.raises(DataError, match="one image of each group, and 10 groups are too few to learn from"):
        small(learn=learning).fit(DATA.X, DATA.y, groups=np.arange(80) % 10)


MANY = datasets.digits().take(400, 500)


def test_inducing_images_leave_an_image_out_with_its_copies() -> None:
    copies, y = augmentation.warped(MANY.X, MANY.y, turn=6, wider=1.1)
    honest, naive = (small(inducing=100).fit(X, y) for X in (copies, copies[:]))
    assert naive.loo_error_ < 0.5 * (1.0 - honest.score(MANY.X_test, MANY.y_test)) < honest.loo_error_
    assert (np.bincount(copies.groups[honest.loo_rows_]) % 5 == 0).all()  # whole groups alone
    assert not np.isin(copies.groups[honest.inducing_rows_], copies.groups[honest.loo_rows_]).any()


def test_groups_larger_than_the_sample_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cnngp.estimators.inducing.SAMPLE", 100)
    with pytest.raises(DataError, match="smallest of the groups has 200 images, and inducing= leaves at most 100 out"):
        small(inducing=50).fit(MANY.X, MANY.y, groups=np.arange(400) % 2)


@pytest.mark.parametrize("estimator", [GPClassifier, GPRegressor])
def test_near_copies_without_groups_are_told_of(estimator: Any) -> None:
    """Pictures that somebody saved three times as lossy files: leave-one-out sees 0 % errors, new images 5 %."""
    rng = np.random.default_rng(0)
    X = np.concatenate([DATA.X + 0.02 * rng.standard_normal(DATA.X.shape).astype(np.float32) for _ in range(3)])
    y, groups = np.tile(DATA.y, 3), np.tile(np.arange(80), 3)
    model = estimator("small_cnn", noise=0.01, device="cpu")
    with pytest.warns(UserWarning, match=r"say which belong together by groups=") as told:
        model.fit(X, y)
    assert told[0].filename == __file__
    model.fit(X, y, groups=groups)  # warnings are errors here
    model.fit(DATA.X, DATA.y)


# ---- repeated images -------------------------------------------------------------------------------------------------

IMAGES = datasets.digits().take(150, 400)
ROWS = np.r_[:150, :60]


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
    together = left_out_together(groups, codes)
    np.testing.assert_array_equal(together, np.stack([groups, codes], 1))
    same(joined(together), np.array([0, 0, 0, 1, 2, 2]))
    assert left_out_together(groups, np.arange(6)) is joined(groups) is groups
    assert left_out_together(groups, groups) is groups
    assert left_out_together(None, np.arange(6)) is joined(None) is None
    same(left_out_together(None, codes), codes)
    assert left_out_together(None, np.zeros(6, int)) is None  # nothing would be left


@pytest.mark.parametrize(
    "options", [{"noise": "loo"}, {"noise": 0.01}, {"learn": Learning("loo", starts=1, steps=2)}], ids=str
)
def test_repeats_are_left_out_with_their_twins(options: dict[str, Any]) -> None:
    """Given as groups, or found."""
    found, told = small(**options), small(**options)
    found.fit(IMAGES.X[ROWS], IMAGES.y[ROWS])
    told.fit(IMAGES.X[ROWS], IMAGES.y[ROWS], groups=ROWS)
    assert found.gp_.noise == told.gp_.noise
    np.testing.assert_array_equal(found.loo_probabilities_, told.loo_probabilities_)
    once = small(**options).fit(IMAGES.X, IMAGES.y)
    assert found.loo_error_ >= 0.6 * once.loo_error_ > 0.0


def test_inducing_images_and_the_choice_of_a_recipe_leave_repeats_out_too() -> None:
    clf = small(inducing=40).fit(np.tile(IMAGES.X, (2, 1, 1, 1)), np.tile(IMAGES.y, 2))
    assert len(np.unique(clf.loo_rows_ % 150)) * 2 == len(clf.loo_rows_)
    twice, once = (
        GPClassifier(device="cpu", effort="quick").fit(np.tile(IMAGES.X[:25], (n, 1, 1, 1)), np.tile(IMAGES.y[:25], n))
        for n in (2, 1)
    )
    assert twice.choice_.compared[0].loss > 0.5 * once.choice_.compared[0].loss


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30))])
def test_leave_one_out_is_refitting(seed: int) -> None:
    """Each image without its group, and without the equal images of other groups; two targets, or two labels, and noise
    of some images beside that of all.
    """
    rng = np.random.default_rng(seed)
    images = IMAGES.X[rng.permutation(150)[:14]]
    rows = rng.integers(14, size=24)
    groups = np.r_[0, 1, rng.integers(2 if seed < 2 else 5, size=22)]
    if seed % 2:
        rows[np.unique(groups, return_index=True)[1]] = 0  # one image in every group
    X, y, own = images[rows], np.where(rng.random((24, 2)) < 0.5, 1.0, -1.0), rng.choice([0.0, 0.3], 24) * (seed % 3)
    options: dict[str, Any] = {"noise": 0.1, "amplitude": 1.0, "device": "cpu"}
    reg = GPRegressor("small_cnn", **options).fit(X, y, groups=groups, image_noise=own)
    clf = GPClassifier("small_cnn", **options).fit(X, (y > 0.0).astype(int), groups=groups, image_noise=own)
    np.testing.assert_array_equal(reg.gp_.groups, groups)
    np.testing.assert_allclose(clf.gp_.leave_one_out().mean, reg.loo_predictions_, atol=1e-9)
    for i in range(24):
        rest = (groups != groups[i]) & (rows != rows[i])
        if rest.any():
            refit = GPRegressor("small_cnn", **options).fit(X[rest], y[rest], image_noise=own[rest])
            mean, std = refit.predict(X[i : i + 1], return_std=True)
            np.testing.assert_allclose(reg.loo_predictions_[i], mean[0], atol=1e-5)
            np.testing.assert_allclose(reg.loo_std_[i], np.sqrt(std[0] ** 2 + 0.1 + own[i]), rtol=1e-4)


@pytest.mark.parametrize("groups", [None, ROWS[:150] // 3])
def test_images_that_are_added_are_left_out_with_their_twins(groups: Any) -> None:
    """As in a fit of all of them, in which each new image is a group of its own."""
    clf = small(noise=0.01).fit(IMAGES.X, IMAGES.y, groups=groups)
    clf.add(IMAGES.X[ROWS[150:]], IMAGES.y[ROWS[150:]])
    own = None if groups is None else np.r_[groups, 1000 + np.arange(60)]
    whole = small(noise=0.01).fit(IMAGES.X[ROWS], IMAGES.y[ROWS], groups=own)
    np.testing.assert_allclose(clf.gp_.leave_one_out().mean, whole.gp_.leave_one_out().mean, atol=1e-7)
    assert clf.loo_error_ == whole.loo_error_ > 0.0
    assert clf.fit_report_.repeated == whole.fit_report_.repeated == 60


def test_a_frame_that_all_films_share_does_not_undo_their_groups() -> None:
    X, groups = MANY.X.copy(), np.arange(400) // 20
    X[::20] = 0.0
    with pytest.raises(DataError, match="stand in different groups and join all of them, and inducing= leaves out"):
        small(inducing=60).fit(X, MANY.y, groups=groups)
    exact = small(noise=0.1).fit(X, MANY.y, groups=groups)
    np.testing.assert_array_equal(exact.gp_.groups, groups)
