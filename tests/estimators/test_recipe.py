"""How images are prepared, and which relative of the default network sees them: by leave-one-out, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, Kernel, datasets, zoo
from cnngp.datasets.preparation import prepare
from cnngp.estimators import recipe
from cnngp.gp.checks import MatrixError
from cnngp.network.choice import choose, options
from cnngp.network.names import network_by_name


def bars(n: int, seed: int, light: float = 1.0) -> tuple[Any, Any]:
    """Upright or level bars of 12 × 12 somewhere in the middle, lighter or darker than a ground of any brightness."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = np.empty((n, 1, 12, 12))
    for image, upright in zip(X[:, 0], y, strict=True):
        image[:] = 20.0 * rng.uniform(-light, light)
        at = rng.integers(4, 8)
        image[(slice(2, 10), at) if upright else (at, slice(2, 10))] += rng.choice([-1.0, 1.0])
    return X + 0.3 * rng.standard_normal(X.shape), y


@pytest.fixture(scope="module")
def fitted() -> GPClassifier:
    return GPClassifier(device="cpu").fit(*bars(60, 0))


def test_the_default_finds_what_the_light_hides_and_says_how(fitted: GPClassifier) -> None:
    X, y = bars(100, 1)
    plain = GPClassifier(preparation="plain", device="cpu").fit(*bars(60, 0))
    assert plain.network_ == choose((1, 12, 12), 60).option.network
    assert fitted.preparation_ != "plain"
    assert 1.0 - fitted.score(X, y) < 0.5 * (1.0 - plain.score(X, y))
    assert f"(preparation '{fitted.preparation_}'), by leave-one-out on 60 of them" in str(fitted.fit_report_)


def test_bars_that_are_lighter_or_darker_get_a_network_for_which_negatives_are_alike(fitted: GPClassifier) -> None:
    assert fitted.choice_ is not None
    assert fitted.choice_.option.name.endswith("-even")
    X, _ = bars(20, 2)
    seen = prepare(X, "contrast").astype(np.float32)
    kernel = Kernel(zoo.pooled_cnn("small", 0, even=True), device="cpu")
    np.testing.assert_allclose(kernel(seen), kernel(seen, -seen), rtol=1e-5)


def test_the_choice_is_the_same_for_bytes_copies_and_a_second_fit(fitted: GPClassifier) -> None:
    X, y = bars(60, 0)
    pixels = np.clip(X * 6.0 + 128.0, 0, 255).round().astype(np.uint8)
    of_bytes, of_floats = (GPClassifier(device="cpu").fit(a, y) for a in (pixels, pixels.astype(np.float64)))
    assert of_bytes.preparation_ == of_floats.preparation_
    assert of_bytes.network_ == of_floats.network_
    assert np.array_equal(of_bytes.predict_proba(pixels[:9]), of_floats.predict_proba(pixels[:9].astype(np.float64)))
    again = GPClassifier(device="cpu", threads=1).fit(X, y)
    assert (again.preparation_, again.network_) == (fitted.preparation_, fitted.network_)


def test_a_file_keeps_the_images_as_they_were_and_how_they_are_prepared(fitted: GPClassifier, tmp_path: Path) -> None:
    X, _ = bars(20, 3)
    fitted.save(tmp_path / "bars.gp")
    again = GPClassifier.load(tmp_path / "bars.gp", device="cpu")
    assert again.preparation_ == again.preparation == fitted.preparation_
    assert np.array_equal(again.originals_, bars(60, 0)[0].astype(np.float32))
    assert np.array_equal(again.X_, fitted.X_)
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))


def test_added_images_are_prepared_too() -> None:
    X, y = bars(60, 0)
    X_test, _ = bars(20, 1)
    whole = GPClassifier("small_cnn", preparation="contrast", noise=0.1, device="cpu").fit(X, y)
    grown = GPClassifier("small_cnn", preparation="contrast", noise=0.1, device="cpu").fit(X[:40], y[:40])
    grown.add(X[40:], y[40:])
    assert np.array_equal(grown.originals_, whole.originals_)
    np.testing.assert_allclose(grown.predict_latent(X_test)[0], whole.predict_latent(X_test)[0], atol=1e-8)


def test_a_given_preparation_is_the_same_as_prepared_images_and_none_is_plain_for_a_given_network() -> None:
    X, y = bars(40, 0)
    X_test, _ = bars(10, 1)
    inside = GPClassifier("small_cnn", preparation="edges", device="cpu").fit(X, y)
    outside = GPClassifier("small_cnn", device="cpu").fit(prepare(X, "edges"), y)
    assert outside.preparation_ == "plain"
    np.testing.assert_allclose(
        inside.decision_function(X_test), outside.decision_function(prepare(X_test, "edges")), 1e-5
    )
    assert GPClassifier("small_cnn", preparation="loo", device="cpu").fit(X, y).preparation_ != "plain"
    with pytest.raises(ValueError, match="preparation='white' is not one of None, 'loo', 'plain'"):
        GPClassifier(preparation="white").fit(X, y)  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [False, True])
def test_inducing_images_are_prepared_and_kept_as_they_were(own: bool) -> None:
    X, y = bars(120, 0)
    X_test, y_test = bars(60, 1)
    inducing = bars(30, 5)[0] if own else 30
    clf = GPClassifier(inducing=inducing, device="cpu").fit(X.astype(np.float32), y)
    assert clf.preparation_ != "plain"
    np.testing.assert_array_equal(prepare(clf.originals_, clf.preparation_), clf.X_)
    if not own:
        assert np.array_equal(clf.originals_, X.astype(np.float32)[clf.inducing_rows_])
    assert clf.score(X_test, y_test) > 0.9


def test_things_that_may_be_anywhere_get_a_network_that_does_not_ask_where() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    X = 0.1 * rng.standard_normal((80, 1, 16, 16))
    line = np.arange(4)
    for image, rising in zip(X[:, 0], y, strict=True):
        top, left = rng.integers(0, 13, 2)
        image[top + line, left + (line if rising else line[::-1])] += 1.0
    clf = GPClassifier(device="cpu").fit(X, y)
    assert clf.choice_ is not None
    assert "-global" in clf.choice_.option.name
    assert clf.choice_.better is None


def levels(n: int, seed: int) -> tuple[Any, Any]:
    """Noise of 8 × 8 in three degrees of brightness."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return 0.3 + 0.15 * y[:, None, None, None] + 0.2 * rng.standard_normal((n, 1, 8, 8)), y


@pytest.fixture(scope="module")
def of_levels() -> GPClassifier:
    return GPClassifier(device="cpu").fit(*levels(60, 0))


def test_where_the_brightness_is_the_class_the_network_has_biases(of_levels: GPClassifier) -> None:
    X, y = levels(150, 1)
    plain = GPClassifier(preparation="plain", device="cpu").fit(*levels(60, 0))
    assert 1.0 - of_levels.score(X, y) < min(0.12, 0.5 * (1.0 - plain.score(X, y)))
    assert of_levels.choice_ is not None
    name = of_levels.choice_.option.name
    assert name.endswith("-bias0.1")
    assert of_levels.network_ == network_by_name(name)
    assert f"{name}, chosen for 60 images of 1 × 8 × 8, by leave-one-out on 60 of them" in str(of_levels.fit_report_)


def test_biases_are_as_large_as_the_pixels_whatever_these_count(of_levels: GPClassifier) -> None:
    X, y = levels(60, 0)
    pixels = np.clip(255 * X, 0, 255).astype(np.uint8)
    assert of_levels.choice_ is not None
    clf = GPClassifier(device="cpu").fit(pixels, y)
    assert clf.choice_ is not None
    assert clf.choice_.option.name == of_levels.choice_.option.name.replace("-bias0.1", "-bias10000")
    assert clf.score(np.clip(255 * levels(150, 1)[0], 0, 255).astype(np.uint8), levels(150, 1)[1]) > 0.88
    assert recipe.bias_for(1e-9 * X) is None


def test_a_file_keeps_a_network_with_biases(of_levels: GPClassifier, tmp_path: Path) -> None:
    X, _ = levels(20, 2)
    of_levels.save(tmp_path / "levels.gp")
    again = GPClassifier.load(tmp_path / "levels.gp", device="cpu")
    assert again.network_ == of_levels.network_
    assert np.array_equal(again.predict_proba(X), of_levels.predict_proba(X))


def test_where_nothing_is_local_a_network_without_a_pool_is_taken() -> None:
    rng = np.random.default_rng(0)
    X, weights = rng.standard_normal((300, 1, 8, 8)), rng.standard_normal(64)
    y = (X.reshape(300, 64) @ weights > 0.0).astype(int)
    clf, plain = (GPClassifier(preparation=p, device="cpu").fit(X[:100], y[:100]) for p in (None, "plain"))
    assert clf.choice_ is not None
    assert clf.choice_.option.name.startswith(("dense_nngp", "small_cnn"))
    assert clf.score(X[100:], y[100:]) > plain.score(X[100:], y[100:]) + 0.1
    assert clf.choice_.better is None


def test_a_target_that_is_largest_at_a_middle_brightness_is_found_by_regression() -> None:
    rng = np.random.default_rng(0)
    light = rng.uniform(0.1, 0.9, 160)
    X, y = light[:, None, None, None] + 0.1 * rng.standard_normal((160, 1, 8, 8)), -((light - 0.5) ** 2)
    reg, plain = (GPRegressor(preparation=p, device="cpu").fit(X[:60], y[:60]) for p in (None, "plain"))
    assert reg.choice_ is not None
    assert "-bias" in reg.choice_.option.name
    wrong, before = (np.mean((model.predict(X[60:]) - y[60:]) ** 2) for model in (reg, plain))
    assert wrong < 0.25 * before


def test_with_a_budget_a_matrix_or_learning_the_network_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = bars(40, 0)
    usual = choose((1, 12, 12), 40).option.network
    limited = GPClassifier(budget=1e6, device="cpu").fit(X, y)
    assert (limited.network_, limited.preparation_ == "plain") == (usual, False)
    K = Kernel(usual, device="cpu")(X)
    matrix = GPClassifier(device="cpu").fit(X, y, K=K)
    assert (matrix.network_, matrix.preparation_) == (usual, "plain")


def test_regression_is_prepared_as_well() -> None:
    X, y = bars(60, 0)
    reg = GPRegressor(device="cpu").fit(X, y.astype(float))
    assert reg.preparation_ != "plain"
    assert np.sqrt(np.mean((reg.predict(bars(40, 1)[0]) - bars(40, 1)[1]) ** 2)) < 0.3


def test_the_usual_way_is_kept_where_another_is_better_by_chance_alone() -> None:
    usual, chance, clear = np.zeros(100), np.tile([1.0, -1.001], 50), np.tile([-1.0, -2.0], 50)
    assert recipe._clearly_best({"a": usual, "b": chance}, "a") == "a"
    assert recipe._clearly_best({"a": usual, "b": clear}, "a") == "b"
    assert recipe._clearly_best({"a": usual, "b": usual - 0.01}, "a") == "a"


def test_too_few_images_and_plain_features_are_left_as_they_are() -> None:
    X, y = bars(16, 0)
    few = GPClassifier(device="cpu").fit(X, y)
    assert (few.preparation_, few.choice_) == ("plain", choose((1, 12, 12), 16))
    rows = GPClassifier(device="cpu").fit(X.reshape(16, -1), y)
    assert (rows.preparation_, rows.network_) == ("plain", options((144,))[0].network)


def test_digits_are_no_worse_for_it() -> None:
    data = datasets.digits().take(150, 300)
    default, plain = (GPClassifier(preparation=p, device="cpu").fit(data.X, data.y) for p in (None, "plain"))
    assert default.score(data.X_test, data.y_test) >= plain.score(data.X_test, data.y_test) - 0.01
    assert default.network_ == plain.network_ == zoo.pooled_cnn("large", 0)


def test_blank_images_give_one_error_and_a_few_of_them_do_no_harm() -> None:
    with pytest.raises(MatrixError, match="the kernel of all 30 points is zero"):
        GPClassifier(device="cpu").fit(np.zeros((30, 1, 12, 12)), np.arange(30) % 3)
    X, y = bars(60, 0)
    X[:4] = 0.0
    assert GPClassifier(device="cpu").fit(X, y).preparation_ != "plain"
