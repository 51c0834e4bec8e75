"""Regression through inducing images: against its equations written out, against the exact GP, and as a user has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.base import clone

import fake_cupy
from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, datasets
from cnngp.arrays import DataError
from cnngp.augmentation import shifted
from cnngp.gp import ExactGP, MatrixError
from cnngp.inducing import InducingGP
from cnngp.inducing_images import Images, choose
from cnngp.linalg import Factor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Z = RNG.normal(size=(9, 3))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], 1) + 0.1 * RNG.normal(size=(60, 2))
M = np.arange(0, 60, 4)  # 15 inducing points
NOISE, AMPLITUDE = 0.03, 1.7

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DATA = datasets.digits().take(400, 150)


def rbf(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 4.0)


def model(rows: Any = None, size: int = 7, on: Any = np.asarray, **options: Any) -> InducingGP:
    """The model of the points above, or of some of them, in blocks of `size`."""
    rows = np.arange(60) if rows is None else rows
    K, T = rbf(X[rows], X[M]), Y[rows]
    parts = [
        (slice(a, a + size), on(K[a : a + size]), on(T[a : a + size]), on(np.ones(len(K[a : a + size]))))
        for a in range(0, len(rows), size)
    ]
    return InducingGP(on(rbf(X[M], X[M])), parts, np.arange(len(rows)), **options)


@pytest.mark.parametrize(("size", "discount"), [(60, 0.0), (7, 0.0), (7, 8.0), (7, 1.0 / NOISE)])
def test_it_is_its_equations_written_out(size: int, discount: float) -> None:
    """With Q = K_nm K_mm⁻¹ K_mn: y ~ N(0, a(Q + Λ)), and Q stands for K everywhere but in k(x, x); Λ is diagonal,
    noise·(1 + discount·(K − Q)_ii), the last of the cases FITC.
    """
    gp = model(size=size, noise=NOISE, amplitude=AMPLITUDE, discounts=(discount,))
    inverse = np.linalg.inv(rbf(X[M], X[M]))
    Q = rbf(X, X[M]) @ inverse @ rbf(X[M], X)
    Q_test = rbf(Z, X[M]) @ inverse @ rbf(X[M], X)
    noises = NOISE * (1.0 + discount * (1.0 - np.diag(Q)))
    if discount == 1.0 / NOISE:
        np.testing.assert_allclose(noises, NOISE + 1.0 - np.diag(Q))
    A = np.linalg.inv(Q + np.diag(noises))
    np.testing.assert_allclose(gp.mean(rbf(Z, X[M])), Q_test @ A @ Y, atol=1e-8)
    covariance = AMPLITUDE * (rbf(Z, Z) - Q_test @ A @ Q_test.T)
    np.testing.assert_allclose(gp.covariance(rbf(Z, X[M]), rbf(Z, Z)), covariance, atol=1e-8)
    np.testing.assert_allclose(gp.variance(rbf(Z, X[M]), np.ones(9)), np.diag(covariance), atol=1e-8)
    density = multivariate_normal(np.zeros(60), AMPLITUDE * (Q + np.diag(noises)))
    assert gp.log_marginal_likelihood == pytest.approx(sum(density.logpdf(y) for y in Y.T), rel=1e-9)
    assert gp.residual() < 1e-12
    assert gp.sample(rbf(Z, X[M]), rbf(Z, Z), 3, seed=0).shape == (3, 9, 2)


def test_all_points_inducing_is_the_exact_process(monkeypatch: pytest.MonkeyPatch) -> None:
    K = rbf(X, X) + 1e-3 * np.eye(60)
    gp = InducingGP(K, [(slice(0, 60), K, Y, np.full(60, 1.001))], np.arange(60), noise=NOISE, amplitude=AMPLITUDE)
    exact = ExactGP(K, Y, noise=NOISE, amplitude=AMPLITUDE)
    K_test = rbf(Z, X)
    np.testing.assert_allclose(gp.mean(K_test), exact.mean(K_test), atol=1e-8)
    np.testing.assert_allclose(gp.variance(K_test, np.ones(9)), exact.variance(K_test, np.ones(9)), atol=1e-8)
    assert gp.log_marginal_likelihood == pytest.approx(exact.log_marginal_likelihood, rel=1e-9)
    for ours, theirs in zip(gp.leave_one_out(), exact.leave_one_out(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)


@pytest.mark.parametrize("discount", [0.0, 8.0])
def test_leave_one_out_is_refitting(discount: float) -> None:
    options = {"noise": NOISE, "amplitude": AMPLITUDE, "discounts": (discount,)}
    mean, variance = model(**options).leave_one_out()
    for i in (0, 13, 59):  # the first is an inducing point: its place stays, its target goes
        rest = model(np.delete(np.arange(60), i), **options)
        k = rbf(X[i : i + 1], X[M])
        np.testing.assert_allclose(mean[i], rest.mean(k)[0], atol=1e-9)
        np.testing.assert_allclose(variance[i], rest.variance(k, np.ones(1))[0] + AMPLITUDE * NOISE, rtol=1e-8)


def test_leaving_out_an_inducing_point_leaves_out_its_function() -> None:
    own = np.where(np.isin(np.arange(60), M), np.searchsorted(M, np.arange(60)), -1)
    mean, variance = model(noise=NOISE, amplitude=AMPLITUDE, own=own).leave_one_out()
    plain = model(noise=NOISE, amplitude=AMPLITUDE).leave_one_out()[0]
    for i in (0, 28, 56):
        rest, others = np.delete(np.arange(60), i), M[i != M]
        K = rbf(X[rest], X[others])
        parts = [(slice(0, 59), K, Y[rest], np.ones(59))]
        options = {"noise": NOISE, "amplitude": AMPLITUDE}
        gp = InducingGP(rbf(X[others], X[others]), parts, np.arange(2), **options)
        k = rbf(X[i : i + 1], X[others])
        np.testing.assert_allclose(mean[i], gp.mean(k)[0], atol=1e-8)
        np.testing.assert_allclose(variance[i], gp.variance(k, np.ones(1))[0] + AMPLITUDE * NOISE, rtol=1e-7)
        assert np.abs(mean[i] - plain[i]).max() > 1e-4
    np.testing.assert_allclose(mean[1], plain[1], atol=1e-12)


def test_small_eigenvalues_survive() -> None:
    """K_mm with a condition number near 10¹⁰: what is summed is L⁻¹K_mn, so the solution is that of least squares on
    (Φ, √noise·I); the normal equations K_mn K_nm + noise·K_mm lose it.
    """
    x = np.linspace(0.0, 1.0, 300)[:, None]
    z = np.linspace(0.0, 1.0, 14)[:, None]
    K_mm, K_nm = np.exp(-((z - z.T) ** 2) / 0.6) + 1e-10 * np.eye(14), np.exp(-((x - z.T) ** 2) / 0.6)
    assert np.linalg.cond(K_mm) > 1e10
    y, noise = np.sin(20.0 * x), 1e-12
    gp = InducingGP(K_mm, [(slice(0, 300), K_nm, y, np.ones(300))], np.arange(300), noise=noise)
    Phi = np.linalg.solve(np.linalg.cholesky(K_mm), K_nm.T).T
    w = np.linalg.lstsq(np.r_[Phi, np.sqrt(noise) * np.eye(14)], np.r_[y, np.zeros((14, 1))], rcond=None)[0]
    assert np.abs(gp.mean(K_nm) - Phi @ w).max() < 1e-4
    normal = K_nm @ np.linalg.lstsq(K_nm.T @ K_nm + noise * K_mm, K_nm.T @ y, rcond=None)[0]
    assert np.abs(normal - Phi @ w).max() > 1e-3


def test_noise_is_chosen_where_its_criterion_is_best() -> None:
    likely = model(noise="ml", amplitude=AMPLITUDE)
    for factor in (0.5, 2.0):
        other = model(noise=likely.noise * factor, amplitude=AMPLITUDE)
        assert other.log_marginal_likelihood < likely.log_marginal_likelihood
    best = model()

    def error(gp: InducingGP) -> float:
        return float(((gp.leave_one_out()[0] - Y) ** 2).mean())

    assert error(best) < min(error(model(noise=best.noise * factor)) for factor in (0.4, 2.5))
    # The amplitude makes the leave-one-out predictions as spread as their errors are.
    mean, variance = best.leave_one_out()
    assert float(((mean - Y) ** 2 / variance[:, None]).mean()) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("noise", ["ml", 0.0, NOISE])
def test_the_best_discount_is_taken(noise: Any) -> None:
    """By likelihood or by leave-one-out: much where wrong targets are those of points about which little is known, none
    where they are those of inducing points.
    """
    several = (0.0, 5.0, 50.0)

    def loss(gp: InducingGP) -> float:
        mean, _ = gp.leave_one_out()
        return -gp.log_marginal_likelihood if noise == "ml" else float(((mean - gp.loo_targets) ** 2).mean())

    taken = []
    K = rbf(X, X[M])
    unknown = 1.0 - (K @ np.linalg.inv(rbf(X[M], X[M])) * K).sum(1)
    for wrong in (unknown > 0.15, unknown < 0.02):
        T = Y + 3.0 * np.outer(np.where(wrong, np.random.default_rng(1).normal(size=60), 0.0), [1.0, -1.0])
        parts = [(slice(0, 60), K, T, np.ones(60))]
        gp = InducingGP(rbf(X[M], X[M]), parts, np.arange(60), noise=noise, discounts=several)
        each = [InducingGP(rbf(X[M], X[M]), parts, np.arange(60), noise=noise, discounts=(d,)) for d in several]
        assert gp.discount == min(each, key=loss).discount
        taken.append(gp.discount)
    assert taken[0] > taken[1] == 0.0


def test_more_points_are_as_if_they_had_been_there() -> None:
    gp = model(np.arange(40), noise=NOISE, amplitude=AMPLITUDE)
    gp.add([(slice(a, a + 9), rbf(X[a : a + 9], X[M]), Y[a : a + 9], np.ones(9)) for a in range(40, 58, 9)])
    gp.add([(slice(0, 2), rbf(X[58:], X[M]), Y[58:], np.ones(2))])
    whole = model(noise=NOISE, amplitude=AMPLITUDE)
    np.testing.assert_allclose(gp.mean(rbf(Z, X[M])), whole.mean(rbf(Z, X[M])), atol=1e-9)
    assert gp.log_marginal_likelihood == pytest.approx(whole.log_marginal_likelihood, rel=1e-9)


def test_discounts_survive_files_and_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    """And blocks of B that are smaller than it."""
    monkeypatch.setattr("cnngp.inducing_sums._PANEL", 4)
    options: dict[str, Any] = {"noise": NOISE, "amplitude": AMPLITUDE, "discounts": (8.0,)}
    own = np.where(np.isin(np.arange(40), M), np.searchsorted(M, np.arange(40)), -1)
    gp = model(np.arange(40), own=own, **options)
    numbers, arrays = gp.state()
    B = Factor(gp.factor.A.copy(), gp.factor.diagonal, gp.factor.shift).restore()
    again = InducingGP.restored(numbers, arrays, np, rbf(X[M], X[M]), B)
    for one in (gp, again):
        one.add([(slice(0, 20), rbf(X[40:], X[M]), Y[40:], np.ones(20))])
        assert one.discount == 8.0
    whole = model(own=np.r_[own, np.full(20, -1)], **options)
    for one in (gp, again):
        np.testing.assert_allclose(one.mean(rbf(Z, X[M])), whole.mean(rbf(Z, X[M])), atol=1e-9)
        assert one.log_marginal_likelihood == pytest.approx(whole.log_marginal_likelihood, rel=1e-9)
        for ours, theirs in zip(one.leave_one_out(), whole.leave_one_out(), strict=True):
            np.testing.assert_allclose(ours, theirs[:40], atol=1e-8)


def test_noise_that_rounding_swallows_is_named() -> None:
    with pytest.raises(MatrixError, match=r"noise=1e-300 is lost in float64 here; use .* or more"):
        model(np.arange(5), noise=1e-300)


def test_an_add_that_fails_leaves_the_model_as_it_was() -> None:
    gp = model(np.arange(40), noise=NOISE, amplitude=AMPLITUDE)
    before = gp.mean(rbf(Z, X[M])), gp.variance(rbf(Z, X[M]), np.ones(9)), gp.log_marginal_likelihood

    def parts(error: BaseException | None, outputs: int) -> Any:
        yield slice(0, 10), rbf(X[40:50], X[M]), Y[40:50], np.ones(10)
        if error is not None:
            raise error
        yield slice(10, 20), rbf(X[50:], X[M]), Y[50:, :outputs], np.ones(10)

    with pytest.raises(KeyboardInterrupt):
        gp.add(parts(KeyboardInterrupt(), 2))
    with pytest.raises(MatrixError, match="the targets have 1 outputs; the model has 2"):
        gp.add(parts(None, 1))
    after = gp.mean(rbf(Z, X[M])), gp.variance(rbf(Z, X[M]), np.ones(9)), gp.log_marginal_likelihood
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    gp.add(parts(None, 2))
    whole = model(noise=NOISE, amplitude=AMPLITUDE)
    np.testing.assert_allclose(gp.mean(rbf(Z, X[M])), whole.mean(rbf(Z, X[M])), atol=1e-9)


@pytest.mark.parametrize("noise", [NOISE, 0.0, "ml"])
def test_arrays_on_a_card_take_the_same_path(monkeypatch: pytest.MonkeyPatch, noise: Any) -> None:
    for name, module in fake_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    _compare(fake_cupy.ndarray, noise)


@pytest.mark.gpu
@pytest.mark.parametrize("noise", [NOISE, 0.0, "ml"])
def test_arrays_on_a_real_card(noise: Any) -> None:
    cupy = pytest.importorskip("cupy")
    _compare(cupy.asarray, noise)


def _compare(on_card: Any, noise: Any) -> None:
    here, there = model(noise=noise), model(noise=noise, on=on_card)
    assert there.noise == pytest.approx(here.noise, rel=1e-5)
    K = rbf(Z, X[M])
    np.testing.assert_allclose(there.mean(on_card(K)).get(), here.mean(K), rtol=1e-6, atol=1e-8)
    found = there.variance(on_card(K), on_card(np.ones(9))).get()
    np.testing.assert_allclose(found, here.variance(K, np.ones(9)), rtol=1e-5, atol=1e-8)
    for ours, theirs in zip(there.leave_one_out(), here.leave_one_out(), strict=True):
        np.testing.assert_allclose(ours.get(), theirs, rtol=1e-5, atol=1e-7)


# ---- estimators ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted() -> GPClassifier:
    return GPClassifier(NET, inducing=150, device="cpu").fit(DATA.X, DATA.y)


def test_a_classifier_through_inducing_images(fitted: GPClassifier) -> None:
    exact = GPClassifier(NET, device="cpu").fit(DATA.X, DATA.y)
    subset = GPClassifier(NET, device="cpu").fit(DATA.X[:150], DATA.y[:150])
    score = fitted.score(DATA.X_test, DATA.y_test)
    assert score >= exact.score(DATA.X_test, DATA.y_test) - 0.04
    assert score > subset.score(DATA.X_test, DATA.y_test)
    assert fitted.X_.shape == (150, 1, 8, 8)
    assert fitted.fit_report_.images == 400
    assert fitted.fit_report_.method == "inducing"
    assert "approximation through inducing images" in fitted.fit_report_.verdict
    P = fitted.predict_proba(DATA.X_test)
    right = P.argmax(1) == DATA.y_test
    assert abs(P.max(1).mean() - right.mean()) < 0.06
    # Variances are of the size of the exact ones, and larger where nothing like the image was seen.
    mean, variance = fitted.predict_latent(DATA.X_test)
    ratio = np.median(variance / exact.predict_latent(DATA.X_test)[1])
    assert 0.5 < ratio < 3.0
    assert mean.shape == (150, 10)
    strange = fitted.predict_latent(RNG.random((5, 1, 8, 8)))[1]
    assert strange.min() > np.median(variance)
    # Leave-one-out is of images that could not be chosen, and tells the error on others: 64 of them, so ± 3 %.
    assert len(fitted.loo_rows_) == 64
    chosen = {image.tobytes() for image in fitted.X_}
    assert not any(image.tobytes() in chosen for image in DATA.X[fitted.loo_rows_].astype(np.float32))
    assert abs(fitted.loo_error_ - (1.0 - score)) < 0.05
    # Of given rows it is of all images, inducing ones too.
    given = GPClassifier(NET, inducing=np.arange(0, 400, 3), device="cpu").fit(DATA.X, DATA.y)
    assert len(given.loo_rows_) == 400
    assert abs(given.loo_error_ - (1.0 - given.score(DATA.X_test, DATA.y_test))) < 0.03


def test_the_images_that_the_others_explain_least_are_chosen(tmp_path: Path) -> None:
    """Against the rule written out in float64, with an exact GP of the images so far in every round."""
    images = Images(DATA.X, Kernel(NET, device="cpu"))
    targets = 2.0 * np.eye(10)[DATA.y] - 1.0
    reserved = np.arange(100, 200)
    choice = choose(images, targets, 60, reserved, np.random.default_rng(3))
    assert not set(choice.rows) & set(reserved)
    assert len(np.unique(choice.rows)) == 60
    np.testing.assert_array_equal(choice.Z, DATA.X[choice.rows].astype(np.float32))
    K = Kernel(NET, device="cpu", dtype="float64")(DATA.X)
    for start, stop in zip((8, 16, 24, 32, 39, 46, 53), (16, 24, 32, 39, 46, 53, 60), strict=True):
        so_far = choice.rows[:start]
        A = K[np.ix_(so_far, so_far)]
        noise = 0.01 * A.diagonal().mean() * np.eye(start)
        errors = ((K[:, so_far] @ np.linalg.solve(A + noise, targets[so_far]) - targets) ** 2).sum(1)
        errors[so_far] = errors[reserved] = 0.0
        worst = np.argsort(-errors)[: stop - start]
        assert set(worst) == set(choice.rows[start:stop])
    # All images were candidates, so all their kernels are there; they are the same from a store, and computed once.
    whole = np.concatenate(choice.columns, axis=1)
    np.testing.assert_array_equal(whole, images.kernel(DATA.X, choice.Z))
    kept = choose(images, targets, 60, reserved, np.random.default_rng(3), store=tmp_path)
    np.testing.assert_array_equal(kept.rows, choice.rows)
    np.testing.assert_array_equal(np.concatenate([c[:] for c in kept.columns], axis=1), whole)
    np.testing.assert_array_equal(choice.numbers(np.arange(400)) >= 0, np.isin(np.arange(400), choice.rows))
    own = choice.numbers(np.sort(choice.rows))
    np.testing.assert_array_equal(choice.rows[own], np.sort(choice.rows))


def chosen_of(images: Images, m: int, reserved: Any = (), **options: Any) -> Any:
    targets = 2.0 * np.eye(10)[DATA.y] - 1.0
    return choose(images, targets, m, np.asarray(reserved, np.intp), np.random.default_rng(0), **options)


def test_of_many_images_some_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(DATA.X, Kernel(NET, device="cpu"))
    few = chosen_of(images, 20, range(50))  # 180 of 400
    assert len(np.unique(few.rows)) == 20
    assert few.rows.min() >= 50
    assert not few.columns
    # What would not fit in memory is not looked at; too little memory for the model itself is refused elsewhere.
    pools: list[int] = []

    def errors(xp: Any, columns: Any, at: Any, y: np.ndarray, block: int) -> np.ndarray:
        pools.append(len(y))
        return np.ones(len(y))

    monkeypatch.setattr("cnngp.inducing_images._errors", errors)
    for room in (None, 10**9, 4 * (20 + 64) * 100, 0):
        chosen_of(images, 20, range(50), room=room)
    assert sorted(set(pools)) == [40, 100, 180]
    assert set(chosen_of(images, 390, range(50)).rows) > set(range(50, 400))  # the reserved ones last
    np.testing.assert_array_equal(chosen_of(images, 400).rows, np.arange(400))


def test_rows_that_come_last_are_no_less_random() -> None:
    images = Images(DATA.X[:60], Kernel(NET, device="cpu"))
    a, b = (choose(images, np.eye(10)[DATA.y[:60]], 8, np.arange(60), np.random.default_rng(s)).rows for s in (0, 1))
    assert set(a) != set(b) != set(range(8))
    # Repeats come after all others: 40 images, each of them three times.
    thrice = Images(np.tile(DATA.X[:40], (3, 1, 1, 1)), Kernel(NET, device="cpu"))
    rows = choose(thrice, np.tile(np.eye(10)[DATA.y[:40]], (3, 1)), 40, np.arange(20), np.random.default_rng(0)).rows
    assert len(set(rows % 40)) == 40


def test_candidates_are_not_the_reserved_images() -> None:
    """Of more than 10,000 images NumPy draws small sets inside larger ones, if it starts from the same seed."""
    X = RNG.random((20_000, 1, 2, 2)).astype(np.float32)
    y = (X.mean((1, 2, 3)) > 0.5).astype(int)
    order = np.argsort(y, kind="stable")
    clf = GPClassifier(Sequential(Dense(), ReLU(), Dense()), inducing=100, device="cpu").fit(X[order], y[order])
    taken = {image.tobytes() for image in clf.X_}
    assert len(clf.loo_rows_) == 2048
    assert not any(image.tobytes() in taken for image in X[order][clf.loo_rows_])
    near = (np.abs(clf.X_.mean((1, 2, 3)) - 0.5) < 0.05).mean()
    assert near > 0.4  # where the classes meet, though only a third of all images are there


def test_the_kernels_of_the_choice_are_in_the_memory_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less free than the model and two candidates an inducing image need, the fit is refused before any kernel."""
    asked: list[int] = []
    monkeypatch.setattr("cnngp.memory.require", lambda need, *_: asked.append(need))
    GPClassifier(NET, inducing=150, device="cpu").fit(DATA.X, DATA.y)
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
    import zarr

    few = GPClassifier(NET, inducing=20, device="cpu")
    held = clone(few).fit(DATA.X, DATA.y)
    monkeypatch.setitem(sys.modules["cnngp.inducing_images"]._ENTRIES, "cpu", 800)  # 40 images at a time
    np.save(tmp_path / "X.npy", DATA.X)
    on_disk = np.load(tmp_path / "X.npy", mmap_mode="r")
    store = zarr.create_array(str(tmp_path / "X.zarr"), data=DATA.X, chunks=(64, 1, 8, 8))
    watched = Watched(DATA.X)
    for source in (on_disk, store, watched):
        clf = clone(few).fit(source, DATA.y)
        np.testing.assert_allclose(clf.predict_proba(DATA.X_test), held.predict_proba(DATA.X_test), atol=1e-6)
    assert 0 < watched.largest <= 40


def test_fits_of_all_sizes_share_a_store(tmp_path: Path) -> None:
    place = tmp_path / "K.zarr"
    for m in (2, 3, 4, 5, 8):
        for state in (0, 1):
            options: dict[str, Any] = {"inducing": m, "random_state": state, "device": "cpu"}
            kept = GPClassifier(NET, store=place, **options).fit(DATA.X[:100], DATA.y[:100])
            plain = GPClassifier(NET, **options).fit(DATA.X[:100], DATA.y[:100])
            np.testing.assert_array_equal(kept.X_, plain.X_)
    other = Sequential(Conv(5), ReLU(), Dense())
    GPClassifier(other, inducing=5, store=place, device="cpu").fit(DATA.X[:100], DATA.y[:100])
    exact = GPClassifier(NET, store=place, device="cpu").fit(DATA.X[:100], DATA.y[:100])
    assert exact.fit_report_.method == "cholesky"


@pytest.mark.parametrize(("inducing", "parts"), [(150, 8), (20, 8), (np.arange(0, 400, 20), 1)])
def test_a_fit_with_a_store_computes_no_kernel_twice(
    inducing: Any, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight parts of K(candidates, inducing), which are all images or all but the last part and then the whole."""
    model = GPClassifier(NET, inducing=inducing, device="cpu", store=tmp_path / "K.zarr")
    clf = model.fit(DATA.X, DATA.y)
    plain = GPClassifier(NET, inducing=inducing, device="cpu").fit(DATA.X, DATA.y)
    np.testing.assert_array_equal(clf.predict_proba(DATA.X_test), plain.predict_proba(DATA.X_test))
    assert len([p for p in (tmp_path / "K.zarr").iterdir() if p.name.startswith("inducing-")]) == parts
    from cnngp import tiled

    monkeypatch.setattr(tiled, "_compute", None)  # would be called for a tile that is missing
    again = clone(model).fit(DATA.X, DATA.y)
    np.testing.assert_array_equal(again.predict_latent(DATA.X_test)[0], clf.predict_latent(DATA.X_test)[0])


def test_shifted_images() -> None:
    X5, y5 = shifted(DATA.X[:20], DATA.y[:20])
    assert len(X5) == len(y5) == 100
    padded = np.pad(DATA.X[:20], ((0, 0), (0, 0), (1, 1), (1, 1)))
    moves = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
    expected = np.concatenate([padded[:, :, 1 - a : 9 - a, 1 - b : 9 - b] for a, b in moves])
    np.testing.assert_array_equal(X5[:], expected)
    np.testing.assert_array_equal(X5[15:47], expected[15:47])
    np.testing.assert_array_equal(X5[np.array([3, 99, 50])], expected[[3, 99, 50]])
    np.testing.assert_array_equal(X5[-1], expected[-1])
    with pytest.raises(IndexError):
        X5[100]
    with pytest.raises(DataError, match="20 images but 19 labels"):
        shifted(DATA.X[:20], DATA.y[:19])
    with pytest.raises(DataError, match=r"expected images \(N, channels, height, width\)"):
        shifted(DATA.X[:20, 0], DATA.y[:20])
    lazy = GPClassifier(NET, inducing=50, device="cpu").fit(X5, y5)
    held = GPClassifier(NET, inducing=50, device="cpu").fit(expected, y5)
    np.testing.assert_array_equal(lazy.predict_proba(DATA.X_test), held.predict_proba(DATA.X_test))


def test_given_rows_and_images() -> None:
    rows = np.arange(0, 400, 4)
    by_row = GPClassifier(NET, inducing=rows, noise=1e-3, device="cpu").fit(DATA.X, DATA.y)
    by_image = GPClassifier(NET, inducing=DATA.X[rows], noise=1e-3, device="cpu").fit(DATA.X, DATA.y)
    np.testing.assert_allclose(
        by_row.predict_latent(DATA.X_test)[0], by_image.predict_latent(DATA.X_test)[0], atol=1e-9
    )
    flat = GPClassifier(NET, inducing=rows, noise=1e-3, input_shape=(1, 8, 8), device="cpu")
    flat.fit(DATA.X.reshape(400, -1), DATA.y)
    np.testing.assert_array_equal(flat.predict(DATA.X_test.reshape(150, -1)), by_row.predict(DATA.X_test))


@pytest.mark.parametrize(
    ("inducing", "message"),
    [
        (0, "inducing=0: expected between 1 and the 400 training images"),
        (401, "inducing=401: expected between 1 and the 400"),
        (True, "inducing=True: expected"),
        ([3, 400], "row numbers 3 to 400; expected 0 to 399"),
        (
            np.zeros((5, 1, 7, 7)),
            r"shape \(5, 1, 7, 7\).*expected how many, row numbers of X, or images of shape \(1, 8, 8\)",
        ),
        ("many", "expected how many, row numbers"),
        (np.full((5, 1, 8, 8), np.nan), r"inducing\[0\] has NaN pixels"),
    ],
)
def test_bad_inducing(inducing: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPClassifier(NET, inducing=inducing, device="cpu").fit(DATA.X, DATA.y)


def test_a_matrix_has_no_inducing_images() -> None:
    with pytest.raises(DataError, match="inducing= computes the kernels that it needs from images"):
        GPClassifier(inducing=5, device="cpu").fit(K=np.eye(10), y=np.arange(10) % 2)
    X = DATA.X.copy()
    X[321, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"X\[\d+\] has NaN pixels"):
        GPClassifier(NET, inducing=50, device="cpu").fit(X, DATA.y)


def test_files_copies_and_more_images(fitted: GPClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(DATA.X_test), fitted.predict_proba(DATA.X_test))
    assert again.loo_error_ == fitted.loo_error_
    assert again.fit_report_ == fitted.fit_report_
    assert again.log_marginal_likelihood_ == pytest.approx(fitted.log_marginal_likelihood_, rel=1e-9)
    again.add(DATA.X_test[:70], DATA.y_test[:70])
    assert again.fit_report_.images == 470
    assert again.score(DATA.X_test[:70], DATA.y_test[:70]) >= fitted.score(DATA.X_test[:70], DATA.y_test[:70])
    copy = clone(GPClassifier(NET, inducing=20, solver="cg", random_state=4))
    assert {k: copy.get_params()[k] for k in ("inducing", "solver", "random_state")} == {
        "inducing": 20,
        "solver": "cg",
        "random_state": 4,
    }


def test_a_regressor_through_inducing_images() -> None:
    y = DATA.X.sum((1, 2, 3))
    reg = GPRegressor(NET, inducing=120, device="cpu", normalize_y=True).fit(DATA.X, y)
    assert reg.score(DATA.X_test, DATA.X_test.sum((1, 2, 3))) > 0.98
    mean, std = reg.predict(DATA.X_test, return_std=True)
    errors = np.abs(mean - DATA.X_test.sum((1, 2, 3)))
    assert 0.5 < (errors < std).mean() < 0.95
    assert reg.sample_y(DATA.X_test[:4], 3).shape == (4, 3)


@pytest.mark.gpu
def test_estimators_on_a_real_card() -> None:
    pytest.importorskip("cupy")
    X5, y5 = shifted(DATA.X, DATA.y)
    card = GPClassifier(NET, inducing=150, noise=1e-3, device="cuda").fit(X5, y5)
    here = GPClassifier(NET, inducing=150, noise=1e-3, device="cpu").fit(X5, y5)
    assert type(card.gp_.beta).__module__.startswith("cupy")
    np.testing.assert_allclose(card.predict_proba(DATA.X_test), here.predict_proba(DATA.X_test), atol=0.05)
    assert card.score(DATA.X_test, DATA.y_test) == pytest.approx(here.score(DATA.X_test, DATA.y_test), abs=0.02)
