"""Inducing images: which are chosen, what is kept of them, and the estimators that use them."""

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.ndimage import gaussian_filter
from sklearn.base import clone

from cnngp import Conv, Dense, GPRegressor, Kernel, ReLU, Sequential, datasets
from cnngp.datasets.augmentation import shifted
from cnngp.estimators.inducing import Source, choose, excess
from cnngp.estimators.kernels import kernel_of
from cnngp.estimators.recipe import Recipe, Term
from cnngp.estimators.training_images import Images
from cnngp.matrix import gram as tiled
from helpers.estimators import NET, classifier

RNG = np.random.default_rng(0)
DATA = datasets.digits().take(400, 150)


def source(X: np.ndarray, Y: np.ndarray, network: Sequential = NET, store: Any = None) -> Source:
    images = Images(X.astype(np.float32), np.dtype(np.float32))
    kernel = kernel_of(Recipe([Term(network)]), images, lambda net, symmetry: Kernel(net, device="cpu"))
    return Source(images, kernel, Y, store=store)


def test_the_images_that_the_others_explain_least_are_chosen(tmp_path: Path) -> None:
    """Against the rule written out in float64, with an exact GP of the images so far in every round."""
    X = DATA.X[:200]
    targets = 2.0 * np.eye(10)[DATA.y[:200]] - 1.0
    images = source(X, targets)
    reserved = np.arange(50, 100)
    choice = choose(images, 30, reserved, np.random.default_rng(3))
    assert not set(choice.rows) & set(reserved)
    assert len(np.unique(choice.rows)) == 30
    np.testing.assert_array_equal(choice.Z, X[choice.rows].astype(np.float32))
    K = Kernel(NET, device="cpu", dtype="float64")(X)
    for start, stop in pairwise((4, 8, 12, 16, 20, 24, 27, 30)):
        so_far = choice.rows[:start]
        A = K[np.ix_(so_far, so_far)]
        noise = 0.01 * A.diagonal().mean() * np.eye(start)
        errors = ((K[:, so_far] @ np.linalg.solve(A + noise, targets[so_far]) - targets) ** 2).sum(1)
        errors[so_far] = errors[reserved] = 0.0
        worst = np.argsort(-errors)[: stop - start]
        assert set(worst) == set(choice.rows[start:stop])
    # All images were candidates, so all their kernels are there; they are the same from a store, and computed once.
    whole = np.concatenate(choice.columns, axis=1)
    np.testing.assert_array_equal(whole, images.kernel(images.images.pixels, choice.Z))
    kept = choose(source(X, targets, store=tmp_path), 30, reserved, np.random.default_rng(3))
    np.testing.assert_array_equal(kept.rows, choice.rows)
    np.testing.assert_array_equal(np.concatenate([c[:] for c in kept.columns], axis=1), whole)


def test_of_many_images_some_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    images = source(DATA.X, 2.0 * np.eye(10)[DATA.y] - 1.0)

    def chosen_of(m: int, reserved: Any = (), room: int | None = None, seed: int = 0) -> Any:
        return choose(images, m, np.asarray(reserved, np.intp), np.random.default_rng(seed), room)

    few = chosen_of(20, range(50))  # 180 of 400
    assert len(np.unique(few.rows)) == 20
    assert few.rows.min() >= 50
    assert not few.columns
    # What would not fit in memory is not looked at; too little memory for the model itself is refused elsewhere.
    pools: list[int] = []

    def errors(source: Any, columns: Any, at: Any, y: np.ndarray) -> np.ndarray:
        pools.append(len(y))
        return np.ones(len(y))

    monkeypatch.setattr("cnngp.estimators.inducing._errors", errors)
    for room in (None, 10**9, 4 * (20 + 64) * 100, 0):
        chosen_of(20, range(50), room)
    assert sorted(set(pools)) == [40, 100, 180]
    assert set(chosen_of(390, range(50)).rows) > set(range(50, 400))  # the reserved ones last
    np.testing.assert_array_equal(chosen_of(400).rows, np.arange(400))
    monkeypatch.undo()
    images = source(DATA.X[:60], np.eye(10)[DATA.y[:60]])
    a, b = (chosen_of(8, range(60), seed=seed).rows for seed in (0, 1))
    assert set(a) != set(b) != set(range(8))  # rows that come last are no less random
    # Repeats come after all others: 40 images, each of them three times.
    images = source(np.tile(DATA.X[:40], (3, 1, 1, 1)), np.tile(np.eye(10)[DATA.y[:40]], (3, 1)))
    assert len(set(chosen_of(40, range(20)).rows % 40)) == 40


def test_candidates_are_not_the_reserved_images() -> None:
    """Of more than 10,000 images NumPy draws small sets inside larger ones, if it starts from the same seed."""
    X = RNG.random((20_000, 1, 1, 2)).astype(np.float32)
    pool = source(X, X.mean((1, 2)) - 0.5, Sequential(Dense(), ReLU(), Dense()))
    reserved = np.sort(np.random.default_rng(0).choice(20_000, 4096, replace=False))
    choice = choose(pool, 40, reserved, np.random.default_rng(0))
    assert len(choice.rows) == 40
    assert not np.isin(choice.rows, reserved).any()


def test_memory_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less free than the model and two candidates an inducing image need, the fit is refused before any kernel."""
    asked: list[int] = []
    monkeypatch.setattr("cnngp.common.memory.require", lambda need, *_: asked.append(need))
    classifier(inducing=150).fit(DATA.X, DATA.y)
    matrices, columns = 8 * 4 * 150 * 150, 4 * 150 * 300
    assert max(asked) > matrices + columns


class Watched:
    """Images that are only there while they are read, as those of a generator or a store are."""

    def __init__(self, X: np.ndarray) -> None:
        self.X, self.shape, self.dtype = X, X.shape, X.dtype
        self.largest = 0

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, key: Any) -> np.ndarray:
        part = self.X[key]
        if isinstance(key, slice):
            self.largest = max(self.largest, len(part))
        return part


def test_images_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = classifier(inducing=20)
    held = clone(few).fit(DATA.X, DATA.y)
    monkeypatch.setitem(sys.modules["cnngp.estimators.inducing"]._ENTRIES, "cpu", 800)  # 40 images at a time
    monkeypatch.setattr(sys.modules["cnngp.estimators.training_images"], "_BYTES", 40 * 8 * 64)
    store = zarr.create_array(str(tmp_path / "X.zarr"), data=DATA.X, chunks=(64, 1, 8, 8))
    watched = Watched(DATA.X)
    for source in (store, watched):
        clf = clone(few).fit(source, DATA.y)
        np.testing.assert_allclose(clf.predict_proba(DATA.X_test), held.predict_proba(DATA.X_test), atol=1e-6)
    assert 0 < watched.largest <= 40


@pytest.mark.parametrize(("inducing", "parts"), [(40, 18), (np.arange(0, 400, 20), 4)])
def test_a_fit_with_a_store_computes_no_kernel_twice(
    inducing: Any, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight parts of K(candidates, inducing), which are all images or all but the last part and then the whole.

    As many again of the small fit that is compared with the exact process, whose own kernels are two more. Fits of
    other sizes, networks and methods have parts of their own in the same store.
    """
    model = classifier(inducing=inducing, store=tmp_path / "K.zarr")
    clf = model.fit(DATA.X, DATA.y)
    assert len(list((tmp_path / "K.zarr").glob("inducing-*"))) == parts
    plain = classifier(inducing=inducing).fit(DATA.X, DATA.y)
    np.testing.assert_array_equal(clf.predict_proba(DATA.X_test), plain.predict_proba(DATA.X_test))
    for network, m in ((NET, 3), (NET, 8), (Sequential(Conv(5), ReLU(), Dense()), 8), (NET, None)):
        few = DATA.X[:100], DATA.y[:100]
        kept, plain = (classifier(network, store=s, inducing=m).fit(*few) for s in (tmp_path / "K.zarr", None))
        np.testing.assert_array_equal(kept.predict(DATA.X_test[:5]), plain.predict(DATA.X_test[:5]))
    monkeypatch.setattr(tiled, "_compute", None)  # would be called for a tile that is missing
    again = clone(model).fit(DATA.X, DATA.y)
    np.testing.assert_array_equal(again.predict_latent(DATA.X_test)[0], clf.predict_latent(DATA.X_test)[0])


def test_shifted_images() -> None:
    X5, y5 = shifted(DATA.X[:20], DATA.y[:20])
    assert len(X5) == len(y5) == 100
    padded = np.pad(DATA.X[:20], ((0, 0), (0, 0), (1, 1), (1, 1)))
    moves = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
    expected = np.concatenate([padded[:, :, 1 - a : 9 - a, 1 - b : 9 - b] for a, b in moves])
    for rows in (slice(None), slice(15, 47), np.array([3, 99, 50]), -1):
        np.testing.assert_array_equal(X5[rows], expected[rows])
    with pytest.raises(IndexError):
        X5[100]


def test_given_rows_and_images() -> None:
    rows = np.arange(0, 400, 4)
    means = []
    for inducing, shape in ((rows, (1, 8, 8)), (DATA.X[rows], (1, 8, 8)), (rows, (64,))):
        clf = classifier(inducing=inducing, noise=1e-3, input_shape=(1, 8, 8))
        means.append(clf.fit(DATA.X.reshape(-1, *shape), DATA.y).predict_latent(DATA.X_test.reshape(-1, *shape))[0])
    np.testing.assert_allclose(means[1], means[0], atol=1e-9)
    np.testing.assert_array_equal(means[2], means[0])


def test_more_images_and_copies_that_are_made_when_they_are_read() -> None:
    more = DATA.X_test[:70], DATA.y_test[:70]
    grown = classifier(inducing=150).fit(DATA.X, DATA.y)
    score = grown.score(*more)
    assert grown.add(*more).score(*more) >= score
    assert grown.fit_report_.images == 470
    copies, labels = shifted(DATA.X[:20], DATA.y[:20])
    lazy = classifier(inducing=50).fit(copies, labels)
    held = classifier(inducing=50).fit(copies[:], labels, groups=copies.groups)
    np.testing.assert_array_equal(lazy.predict_proba(DATA.X_test), held.predict_proba(DATA.X_test))


# ---- how far the exact process is ------------------------------------------------------------------------------------

DEEP = Sequential(Conv(3, bias_var=0.1), ReLU(), Conv(3, bias_var=0.1), ReLU(), Dense())
TRAIN, INDUCING = 1000, 200


def drawn(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """1,797 digits in a random order: as they are, with labels that are wrong, or moved and laid over a texture."""
    rng = np.random.default_rng(seed)
    digits = datasets.digits()
    X, y = np.concatenate([digits.X, digits.X_test]), np.concatenate([digits.y, digits.y_test])
    order = rng.permutation(len(X))
    X, y = X[order], y[order]
    if kind == "wrong":
        y = np.where(rng.random(len(y)) < 0.15, (y + rng.integers(1, 10, len(y))) % 10, y)
    if kind == "textured":
        texture = np.stack([gaussian_filter(rng.standard_normal((8, 8)), 0.8) for _ in X])[:, None]
        texture -= texture.min((2, 3), keepdims=True)
        texture /= texture.max((2, 3), keepdims=True)
        X = np.stack([np.roll(x, rng.integers(-1, 2, 2), (1, 2)) for x in X])
        X = np.maximum(X, 0.7 * texture * (1.0 - X))
    return X, y


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


@pytest.mark.parametrize("kind", ["plain", "wrong", "textured"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_report_says_how_far_the_exact_process_is(kind: str, seed: int) -> None:
    X, y = drawn(kind, seed)
    exact = classifier(DEEP, noise="loo").fit(X[:TRAIN], y[:TRAIN])
    clf = classifier(DEEP, inducing=INDUCING, random_state=seed).fit(X[:TRAIN], y[:TRAIN])
    wrong, wrong_exact = (np.asarray(model.predict(X[TRAIN:]) != y[TRAIN:], float) for model in (clf, exact))
    error, unseen = wrong.mean(), len(wrong)
    above = (wrong - wrong_exact).mean()
    uncertainty = (wrong - wrong_exact).std() / np.sqrt(unseen)
    report = clf.fit_report_
    assert abs(report.excess - above) < 3.0 * np.hypot(report.excess_uncertainty, uncertainty)
    # The sentence gives the upper end, in points, and it holds.
    said = re.search(r"Warning: its error may be up to ([\d.]+) points above", report.verdict)
    assert said
    assert float(said[1]) / 100 > above - 2.0 * uncertainty
    if kind == "textured":
        assert above > 0.05
        assert report.excess > 0.03
    # Leave-one-out of images that could not be chosen is honest: 0.3 points and two standard errors.
    errors = np.hypot(*(np.sqrt(error * (1 - error) / n) for n in (unseen, len(clf.loo_rows_))))
    assert abs(clf.loo_error_ - error) < 0.003 + 2.0 * errors
    assert not np.isin(clf.loo_rows_, clf.inducing_rows_).any()
    # Variances are of the size of the exact ones.
    variances = [model.predict_latent(X[TRAIN:])[1] for model in (clf, exact)]
    assert 0.5 < np.median(variances[0] / variances[1]) < 3.0
    if kind == "plain":
        assert abs(clf.predict_proba(X[TRAIN:]).max(1).mean() - (1.0 - error)) < 0.06


def test_a_share_of_the_error_with_what_chance_adds() -> None:
    small, exact, right = np.arange(100) < 20, np.arange(100) < 15, np.zeros(100)
    above, uncertainty = excess(1.0 * small, 1.0 * exact, 0.04, of=1000)
    assert above == pytest.approx(0.01)  # a quarter of the error
    likely, own = (40 + 1) / 1002, np.sqrt(0.05 * 0.95) / 10
    assert uncertainty == pytest.approx(np.hypot(own * likely / 0.2, 0.25 * np.sqrt(likely * (1 - likely) / 1000)))
    # No image wrong of a hundred is not an error of 0, and better than the exact process is chance.
    assert excess(1.0 * small, 1.0 * exact, 0.0, of=100)[1] > 0.0
    assert excess(1.0 * exact, 1.0 * small, 0.05, of=100)[0] == 0.0
    assert excess(right, right, 0.05, of=100) == (0.0, 0.0)


def test_where_it_is_measured_and_where_not() -> None:
    X, y = drawn("plain", 1)
    rows = np.arange(0, 400, 8)
    given = classifier(DEEP, inducing=rows).fit(X[:400], y[:400])
    assert given.fit_report_.excess is not None
    assert len(given.loo_rows_) == 400  # of given rows, leave-one-out is of all images
    given.add(X[400:420], y[400:420])
    assert given.fit_report_.excess is None  # of other images than those it was measured on
    own = classifier(DEEP, inducing=X[1000:1050]).fit(X[:400], y[:400])
    few = classifier(DEEP, inducing=30).fit(X[:100], y[:100])
    every = classifier(DEEP, inducing=300).fit(X[:300], y[:300])
    numbers = GPRegressor(DEEP, inducing=50, device="cpu").fit(X[:400], y[:400])
    for model in (own, few, every, numbers):
        assert model.fit_report_.excess is None
        assert "exact process of all" not in model.fit_report_.verdict
