"""What users of scikit-learn expect: its own checks, meta-estimators, weights, tags, rows of features, gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import parametrize_with_checks

from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential
from cnngp.estimators import Recipe, Term
from cnngp.estimators.choosing import left_out
from cnngp.estimators.labels import ClassTargets, Coding, RealTargets
from cnngp.gp.objectives import chosen_noise
from helpers.estimators import DATA, NET, classifier, reloaded

X, Y, NEW = DATA.X, DATA.y, DATA.X_test
WEIGHT = np.random.default_rng(0).uniform(0.2, 4.0, len(X))
CHOSEN = "the noise is chosen by leave-one-out, in which repeated images are left out together, as weights are not"


@parametrize_with_checks(
    [GPClassifier(), GPRegressor(), GPRegressor("dense_nngp", noise=0.1, dtype="float64")],
    expected_failed_checks=lambda model: (
        {"check_sample_weight_equivalence_on_dense_data": CHOSEN} if model.noise is None else {}
    ),
)
@pytest.mark.filterwarnings("ignore::cnngp.gp.linalg.JitterWarning")
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def test_pipelines_searches_and_meta_estimators_pass_rows_and_weights() -> None:
    flat, new = X.reshape(len(X), -1), NEW.reshape(len(NEW), -1)
    clf = classifier(input_shape=(1, 8, 8))
    pipeline = make_pipeline(StandardScaler(with_std=False), clf)
    assert cross_val_score(pipeline, flat, Y, cv=3).mean() > 0.8
    search = GridSearchCV(clf, {"noise": [0.1, 100.0]}, cv=3).fit(flat, Y, sample_weight=WEIGHT)
    assert search.best_params_ == {"noise": 0.1}
    bagging = BaggingClassifier(search.best_estimator_, n_estimators=3, random_state=0)
    for model in (CalibratedClassifierCV(search.best_estimator_, cv=3), bagging):
        assert model.fit(flat, Y, sample_weight=WEIGHT).score(new, DATA.y_test) > 0.8


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_a_weight_divides_the_noise_and_0_leaves_an_image_out() -> None:
    y, own = Y.astype(float), np.random.default_rng(1).uniform(0.0, 0.1, len(X))
    weight = np.where(np.arange(len(X)) % 7 == 0, 0.0, WEIGHT)
    kept = weight > 0.0
    reg = GPRegressor(NET, noise=0.1, dtype="float64", device="cpu")
    reg.fit(X, y, sample_weight=weight, image_noise=own, names=np.arange(len(X)), groups=np.arange(len(X)) // 2)
    K = reg.kernel_(X[kept]) + np.diag(0.1 / weight[kept] + own[kept])
    expected = reg.kernel_(NEW, X[kept]) @ np.linalg.solve(K, y[kept])
    np.testing.assert_allclose(reg.predict(NEW), expected, rtol=1e-8)
    assert list(reg.names_) == [str(i) for i in np.flatnonzero(kept)]
    assert len(reg.gp_.groups) == kept.sum()
    assert reg.recipe_.noise * float(reg.kernel_.diag(X[kept]).mean()) == pytest.approx(0.1)
    matrix = GPRegressor(noise=0.1).fit(K=reg.kernel_(X), y=y, sample_weight=weight, image_noise=own)
    np.testing.assert_allclose(matrix.predict(K=reg.kernel_(NEW, X[kept])), expected, rtol=1e-8)


@pytest.mark.parametrize("noise", ["ml", "loo"])
@pytest.mark.parametrize("classes", [True, False])
def test_noise_is_chosen_as_that_of_weight_1(noise: Any, classes: bool) -> None:
    """All weights doubled double the noise and change nothing else; noisy targets with small weights count less."""
    rng = np.random.default_rng(0)
    bad = np.arange(len(X)) % 3 == 0
    make: Any = GPClassifier if classes else GPRegressor
    y = np.where(bad, rng.integers(0, 10, len(X)), Y) if classes else Y + np.where(bad, 9.0, 0.3) * rng.normal(size=150)

    def fitted(weight: Any) -> Any:
        return make(NET, noise=noise, device="cpu", dtype="float64").fit(X, y, sample_weight=weight)

    plain, known, doubled = fitted(None), fitted(np.where(bad, 1e-3, 1.0)), fitted(np.where(bad, 2e-3, 2.0))
    assert doubled.gp_.noise == pytest.approx(2.0 * known.gp_.noise, rel=1e-3)
    np.testing.assert_allclose(doubled.predict(NEW), known.predict(NEW), rtol=1e-3)
    assert known.gp_.noise < plain.gp_.noise
    assert known.score(NEW, DATA.y_test) > plain.score(NEW, DATA.y_test)


def test_a_loss_of_classes_does_not_see_the_weights() -> None:
    """The noise is found on means and targets times √w, and judged by themselves."""
    targets, K = np.where(np.eye(10)[Y] > 0, 1.0, -1.0), np.asarray(Kernel(NET, dtype="float64")(X))
    seen = []

    def loss(mean: Any, given: Any) -> float:
        np.testing.assert_allclose(given, targets)
        seen.append(mean)
        return float(((mean - given) ** 2).mean())

    noise = chosen_noise(K, targets, "loo", "ml", loss=loss, weights=WEIGHT)
    C = np.linalg.inv(K + noise * np.diag(1.0 / WEIGHT))
    left_out = targets - C @ targets / C.diagonal()[:, None]
    assert min(np.abs(mean - left_out).max() for mean in seen) < 1e-6


@pytest.mark.parametrize("classes", [True, False])
def test_images_of_little_weight_count_little_where_recipes_are_compared(classes: bool) -> None:
    """Half of the labels follow one feature, half another: the kernel that is better is that of the heavy ones."""
    rng = np.random.default_rng(0)
    x, first = rng.normal(size=(120, 2)), np.arange(120) < 60
    of_first, of_second = (np.exp(-0.5 * (x[:, i, None] - x[None, :, i]) ** 2) for i in (0, 1))
    y = np.where(first, *x.T)
    for heavy in (first, ~first):
        weight = np.where(heavy, 1.0, 1e-3)
        targets = (
            ClassTargets(Coding(np.arange(2)), (y > 0) * 1, weight) if classes else RealTargets(y[:, None], weight)
        )
        losses = [left_out(K.astype(np.float32), targets).mean() for K in (of_first, of_second)]
        assert (losses[0] < losses[1] - 0.1) == heavy[0]


def test_weights_of_classes(tmp_path: Path) -> None:
    rare = np.r_[np.flatnonzero(Y == 3)[:3], np.flatnonzero(Y == 8)]

    def model(class_weight: Any, sample_weight: Any = None) -> GPClassifier:
        clf = classifier(class_weight=class_weight, noise=0.3)
        return clf.fit(X[rare], Y[rare], sample_weight=sample_weight)

    balanced, given = model("balanced"), model(None, compute_sample_weight("balanced", Y[rare]))
    np.testing.assert_array_equal(balanced.predict_proba(NEW), given.predict_proba(NEW))
    assert (balanced.predict(NEW) == 3).sum() > (model(None).predict(NEW) == 3).sum()
    weighted = model({3: 5.0})
    again = reloaded(weighted, tmp_path)
    assert again.class_weight == {3: 5.0}
    np.testing.assert_array_equal(again.predict_proba(NEW), weighted.predict_proba(NEW))


def test_weights_without_noise_are_said_to_do_nothing() -> None:
    with pytest.warns(UserWarning, match="divide the noise, which is 0 here, so all weights above 0 count") as told:
        clf = classifier().fit(X, Y, sample_weight=WEIGHT)
    assert told[0].filename == __file__
    np.testing.assert_array_equal(clf.predict_proba(NEW), classifier().fit(X, Y).predict_proba(NEW))


# ---- gradients -------------------------------------------------------------------------------------------------------

LOPSIDED = Sequential(Conv(3, stride=2, bias_var=0.1), ReLU(), Dense())  # does not commute with mirroring of even sizes
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"network": NET},
    "rows": {"network": "dense_nngp", "preparation": "standardised"},
    "inducing": {"network": NET, "inducing": 30},
    "iterative": {"network": NET, "solver": "cg"},
    "contrast": {"network": "small_cnn", "preparation": "contrast"},
    "mirrored": {"network": Recipe(Term("small_cnn", symmetry="flip"))},
    "lopsided": {"network": Recipe(Term(LOPSIDED, symmetry="d4"))},
    "sum": {"network": Recipe([Term("small_cnn", preparation="zca", symmetry="flip"), Term("dense_nngp", weight=0.3)])},
}


@pytest.mark.parametrize("name", MODELS)
def test_saliency_is_the_gradient_of_the_mean(name: str) -> None:
    images, new = (A.reshape(len(A), -1) if name == "rows" else A for A in (X[:60], NEW[:2].astype(np.float64)))
    clf = GPClassifier(**{"noise": 0.1, "dtype": "float64", "device": "cpu"} | MODELS[name]).fit(images, Y[:60])
    direction = np.random.default_rng(0).standard_normal(new.shape)
    for label in (None, 4):
        found = clf.saliency(new) if label is None else clf.saliency(new, label)
        assert found.shape == new.shape
        column = clf.predict_latent(new)[0].argmax(1) if label is None else np.full(2, 4)
        ahead, behind = (clf.predict_latent(new + h * direction)[0][[0, 1], column] for h in (1e-5, -1e-5))
        along = (found * direction).reshape(2, -1).sum(1)
        np.testing.assert_allclose(along, (ahead - behind) / 2e-5, rtol=1e-4, atol=1e-7)


def test_saliency_of_a_regressor_is_in_units_of_its_targets() -> None:
    y = np.stack([Y, 100.0 * X.mean((1, 2, 3))], 1)
    reg = GPRegressor(NET, noise=0.1, dtype="float64", normalize_y=True, device="cpu").fit(X, y)
    image, step = NEW[:1].astype(np.float64), np.zeros((1, 1, 8, 8))
    step[0, 0, 3, 4] = 1e-5
    slopes = (reg.predict(image + step) - reg.predict(image - step))[0] / 2e-5
    found = [reg.saliency(image, output)[0, 0, 3, 4] for output in (0, 1)]
    assert found == pytest.approx(list(slopes), rel=1e-5)


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_digits])
def test_the_default_for_rows_is_no_worse_than_what_else_one_would_use(load: Any) -> None:
    data = load()
    order = np.random.default_rng(0).permutation(len(data.target))
    train, test = order[: min(400, len(order) // 2)], order[-min(400, len(order) // 2) :]
    others = (LogisticRegression(max_iter=2000), KNeighborsClassifier(), SVC())
    models = [GPClassifier(device="cpu"), *(make_pipeline(StandardScaler(), other) for other in others)]
    ours, *theirs = (
        m.fit(data.data[train], data.target[train]).score(data.data[test], data.target[test]) for m in models
    )
    assert ours >= max(theirs) - 0.02
