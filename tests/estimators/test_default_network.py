"""Estimators without a network: what they choose, what they say about it, and the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from cnngp import GPClassifier, GPRegressor, Kernel, datasets, gram, zoo
from cnngp.common.arrays import DataError
from cnngp.common.errors import StoreError
from cnngp.estimators import budget as budgets
from cnngp.gp.checks import MatrixError
from cnngp.network.choice import choose

DATA = datasets.digits().take(60, 40)


@pytest.fixture(scope="module")
def chosen() -> GPClassifier:
    return GPClassifier(device="cpu").fit(DATA.X, DATA.y)


def test_none_takes_the_network_of_the_rule_and_its_noise_by_leave_one_out(chosen: GPClassifier) -> None:
    best = zoo.pooled_cnn("large", 0)
    assert chosen.network_ == best
    same = GPClassifier(best, noise="loo", preparation=chosen.preparation_, device="cpu").fit(DATA.X, DATA.y)
    assert chosen.gp_.noise == same.gp_.noise > 0.0
    assert np.array_equal(chosen.predict_proba(DATA.X_test), same.predict_proba(DATA.X_test))
    assert GPClassifier("auto", device="cpu").fit(DATA.X, DATA.y).network_ == best


def test_noise_stays_0_for_a_network_or_a_matrix_of_ones_own_and_any_other_is_taken() -> None:
    assert GPClassifier("small_cnn", device="cpu").fit(DATA.X, DATA.y).gp_.noise == 0.0
    K = Kernel(zoo.small_cnn(), device="cpu")(DATA.X)
    assert GPClassifier().fit(K=K, y=DATA.y).gp_.noise == 0.0
    assert GPClassifier(noise=0.0, device="cpu").fit(DATA.X, DATA.y).gp_.noise == 0.0
    assert GPClassifier(noise=0.1, device="cpu").fit(DATA.X, DATA.y).gp_.noise == 0.1


def test_a_solver_without_an_eigendecomposition_does_without_noise() -> None:
    clf = GPClassifier(device="cpu", solver="mixed").fit(DATA.X[:30], DATA.y[:30])
    assert clf.network_ == zoo.pooled_cnn("large", 0)
    assert clf.gp_.noise == 0.0


def test_the_report_says_what_was_chosen_and_nothing_of_a_given_network(chosen: GPClassifier) -> None:
    seen = "prepared without the mean of each channel (preparation 'contrast'), by leave-one-out on 60 of them"
    said = f"pooled_cnn-large-halved0, chosen for 60 images of 1 × 8 × 8, {seen}; its kernels took"
    assert said in str(chosen.fit_report_)
    assert chosen.choice_ is not None
    assert chosen.choice_.among == choose((1, 8, 8), 60).among
    given = GPClassifier("small_cnn", device="cpu").fit(DATA.X, DATA.y)
    assert given.choice_ is None
    assert given.fit_report_.choice is None
    assert "chosen" not in str(given.fit_report_)


def test_a_model_file_keeps_the_choice_and_a_new_fit_of_it_the_noise(chosen: GPClassifier, tmp_path: Path) -> None:
    chosen.save(tmp_path / "model.gp")
    again = GPClassifier.load(tmp_path / "model.gp", device="cpu")
    assert again.network_ == chosen.network_
    assert again.fit_report_ == chosen.fit_report_
    assert np.array_equal(again.predict_proba(DATA.X_test), chosen.predict_proba(DATA.X_test))
    assert again.fit(DATA.X, DATA.y).gp_.noise == chosen.gp_.noise


def test_regression_chooses_in_the_same_way() -> None:
    targets = DATA.X.mean((1, 2, 3))
    reg = GPRegressor(device="cpu").fit(DATA.X, targets)
    assert reg.network_ == zoo.pooled_cnn("small", 0, pool="global")  # a mean does not depend on where light is
    assert reg.preparation_ == "plain"
    assert reg.gp_.noise > 0.0
    assert reg.loo_error_ < 0.5 * targets.std()


def test_labels_and_targets_that_are_noise_are_named_in_the_report_without_a_warning() -> None:
    X = np.random.default_rng(0).random((40, 1, 8, 8))
    clf = GPClassifier(device="cpu").fit(X, np.arange(40) % 2)
    assert "better than guessing" in clf.fit_report_.verdict
    reg = GPRegressor(device="cpu").fit(X, np.random.default_rng(1).normal(size=40))
    assert reg.fit_report_.verdict.find("better than the mean of all targets: leave-one-out is off by") > 0


def _seconds(monkeypatch: pytest.MonkeyPatch, per_element: float) -> list[Any]:
    """Make every covariance take so many seconds; gives the networks that are timed."""
    timed: list[Any] = []

    def expected(kernel: Kernel, X: Any, pairs: int) -> float:
        timed.append(kernel.network)
        return per_element * pairs * kernel.network.shapes(X.shape[1:]).elements

    monkeypatch.setattr(budgets, "expected_seconds", expected)
    return timed


@pytest.mark.parametrize(
    ("budget", "network"),
    [
        (1e9, zoo.pooled_cnn("large", 0)),
        (6000.0, zoo.pooled_cnn("medium", 0)),
        (4000.0, zoo.pooled_cnn("small", 0)),
        (200.0, zoo.small_cnn()),
    ],
)
def test_a_budget_takes_the_best_that_fits(budget: float, network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _seconds(monkeypatch, 1.0 / (60 * 59 // 2))  # so the networks take 8112, 5808, 3468 and 192 s
    clf = GPClassifier(budget=budget, device="cpu").fit(DATA.X, DATA.y)
    assert clf.network_ == network
    assert f"the best whose kernels take at most {budget:g} s on this machine" in clf.fit_report_.choice


def test_where_nothing_fits_the_quickest_is_taken_with_a_warning_and_dear_ones_are_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = _seconds(monkeypatch, 1.0 / (60 * 59 // 2))
    with pytest.warns(UserWarning, match=r"budget=10: even the quickest network, small_cnn, takes about 192 s here"):
        clf = GPClassifier(budget=10, device="cpu").fit(DATA.X, DATA.y)
    assert clf.network_ == zoo.small_cnn()
    assert timed == [zoo.small_cnn()]
    assert "small_cnn, the quickest, whose kernels take more than 10 s here" in clf.fit_report_.choice


def test_a_budget_is_really_measured() -> None:
    clf = GPClassifier(budget=1000, device="cpu").fit(DATA.X[:20], DATA.y[:20])
    assert clf.network_ == zoo.pooled_cnn("large", 0)


def test_wrong_budgets_are_refused_before_any_work() -> None:
    for wrong in (0, -1, True, "soon", float("nan")):
        with pytest.raises(ValueError, match="expected the seconds that kernels may take"):
            GPClassifier(budget=wrong).fit(DATA.X, DATA.y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="budget= chooses a network, and one was given"):
        GPClassifier("small_cnn", budget=10).fit(DATA.X, DATA.y)
    with pytest.raises(DataError, match="budget= chooses a network for images"):
        GPClassifier(budget=10).fit(K=np.eye(4), y=[0, 1, 0, 1])


def test_parameters_are_those_of_scikit_learn() -> None:
    clf = GPClassifier(budget=10.0)
    assert clone(clf).get_params()["budget"] == 10.0
    assert GPClassifier().get_params()["noise"] is None


def test_signals_that_are_moved_are_known_better_than_without_a_pool() -> None:
    rng = np.random.default_rng(0)
    kinds, at = np.arange(80) % 2, np.arange(64)
    away = (at - rng.uniform(16, 48, 80)[:, None]) * np.where(kinds == 0, 1.0, -1.0)[:, None]
    X = np.exp(-away / 5.0) * (away > 0.0) + 0.3 * rng.standard_normal((80, 64))  # pulses, and the same from behind
    pooled = GPClassifier(input_shape=(1, 64), device="cpu").fit(X, kinds)
    plain = GPClassifier("small_cnn", noise="loo", input_shape=(1, 64), device="cpu").fit(X, kinds)
    assert pooled.network_ == zoo.pooled_cnn("large", 2)
    assert pooled.loo_error_ < plain.loo_error_


@pytest.mark.parametrize("shape", [(1, 6, 6, 6), (2, 3, 30), (1, 1, 1), (3, 20, 24)])
def test_other_shapes_are_fitted_too(shape: tuple[int, ...]) -> None:
    X = np.random.default_rng(0).random((12, *shape))
    clf = GPClassifier(device="cpu").fit(X, np.arange(12) % 3)
    assert clf.network_ == choose(shape, 12).option.network
    assert clf.predict_proba(X[:2]).shape == (2, 3)


@pytest.mark.slow
def test_the_demo_has_the_error_that_the_readme_says() -> None:
    data = datasets.digits()
    clf = GPClassifier(device="cpu").fit(data.X, data.y)
    assert 1.0 - clf.score(data.X_test, data.y_test) == pytest.approx(0.002)


# ---- too little for leave-one-out ------------------------------------------------------------------------------------


def one_of_each() -> tuple[np.ndarray, np.ndarray]:
    data = datasets.digits()
    rows = np.array([np.flatnonzero(data.y == digit)[3] for digit in range(10)])
    return data.X[rows], data.y[rows]


def test_one_image_of_each_class_is_no_proof_of_noise() -> None:
    """Without an image nothing is left of its class: leave-one-out is wrong about all of them, whatever the noise, and
    would ask for as much of it as there can be.
    """
    X, y = one_of_each()
    clf = GPClassifier(device="cpu").fit(X, y)
    assert clf.gp_.noise == 0.0
    assert clf.score(X, y) == 1.0
    assert clf.score(datasets.digits().X_test[:200], datasets.digits().y_test[:200]) > 0.5
    with pytest.warns(UserWarning, match="no class has two images; noise 0 is used"):
        assert GPClassifier(zoo.small_cnn(), noise="loo", device="cpu").fit(X, y).gp_.noise == 0.0
    with pytest.raises(DataError, match=r"learn='loo' judges an image by others of its class.* use 'likelihood'"):
        GPClassifier(zoo.small_cnn(), learn="loo", device="cpu").fit(X, y)


@pytest.mark.parametrize("options", [{}, {"noise": "ml"}, {"noise": 0.0}], ids=str)
def test_a_kernel_that_is_zero_is_a_clear_error(options: dict[str, Any]) -> None:
    with pytest.raises(MatrixError, match="the kernel of all 6 points is zero: blank images give zero"):
        GPClassifier(zoo.pooled_cnn("small", 0), device="cpu", **({"noise": "loo"} | options)).fit(
            np.zeros((6, 1, 8, 8)), np.arange(6) % 2
        )


def test_a_store_of_plain_images_is_refused_with_the_reason_where_the_fit_prepares_them(tmp_path: Path) -> None:
    gram(Kernel(zoo.small_cnn(), device="cpu"), DATA.X, store=tmp_path / "K.zarr")
    options = {"device": "cpu", "store": tmp_path / "K.zarr"}
    with pytest.raises(
        StoreError, match=r"the pixels of its 60 images.*prepares its images, by 'edges'.*='plain' uses"
    ):
        GPClassifier("small_cnn", preparation="edges", **options).fit(DATA.X, DATA.y)
    with pytest.raises(StoreError, match=r"the network \(.*Give another store$"):
        GPClassifier("dense_nngp", **options).fit(DATA.X, DATA.y)


def test_a_choice_prints_as_a_sentence() -> None:
    clf = GPClassifier(budget=1000, device="cpu").fit(DATA.X[:20], DATA.y[:20])
    assert str(clf.choice_).startswith("pooled_cnn-large-halved0, the best whose kernels take at most 1000 s")
    assert len(repr(clf.choice_)) < 200


def test_targets_far_from_zero_are_warned_of() -> None:
    """Where the process of mean zero fails, and nowhere else."""
    y = DATA.X[:, 0, 2:5, 2:5].mean((1, 2))
    plain, shifted = GPRegressor("small_cnn", device="cpu"), GPRegressor("small_cnn", device="cpu")
    assert plain.fit(DATA.X, y).fit_report_.no_better is None
    with pytest.warns(UserWarning, match=r"targets lie around 1e\+06, far from the 0 .* with normalize_y=True"):
        shifted.fit(DATA.X, y + 1e6)
    assert shifted.fit_report_.verdict.startswith("No better than the mean of all targets")
    normal = GPRegressor("small_cnn", normalize_y=True, device="cpu").fit(DATA.X, y + 1e6)
    assert normal.fit_report_.no_better is None
    assert normal.loo_error_ < 0.5 * y.std()
