"""Estimators where something is wrong: with arguments, labels, matrices, a second fit, an addition that is stopped."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, zoo
from cnngp.common import memory
from cnngp.gp import calibration
from cnngp.gp.linalg import JitterWarning
from helpers.estimators import DATA, NET, classifier, fitted, reloaded

X, Y, NEW = DATA.X, DATA.y, DATA.X_test
ROWS = X.reshape(len(X), -1)
THREE = int(np.flatnonzero(Y == 3)[0])
RNG = np.random.default_rng(0)
WEIGHT = RNG.uniform(0.2, 4.0, len(X))
MATRIX = Kernel(NET, device="cpu")(X)

# ---- arguments -------------------------------------------------------------------------------------------------------

PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"noise": -1}, "noise=-1: expected a variance of 0 or more, 'ml' to choose it"),
    ({"amplitude": 0}, "amplitude=0: expected 'ml', 'loo' or a positive number"),
    ({"input_shape": (1, 9, 9)}, r"does not hold images of input_shape=\(1, 9, 9\)"),
    ({"device": "tpu"}, "device='tpu' is not 'auto', 'cpu' or 'cuda'"),
    ({"solver": "lu"}, "solver='lu' is not one of"),
    ({"effort": "some"}, "effort='some' is not one of"),
    ({"solver": "cg", "noise": "ml"}, "noise='ml' needs an eigendecomposition"),
    ({"learn": "mean"}, "learn='mean': expected None, 'loo', 'likelihood' or a Learning"),
    ({"kind": "both"}, "kind='both' is not 'nngp'"),
    ({"kind": "ntk", "learn": "loo"}, "learn= follows the gradient of the Gaussian process's kernel"),
    ({"network": Kernel(NET, device="cpu"), "kind": "ntk"}, "'ntk', but the Kernel that was given has kind='nngp'"),
    *(({"random_state": s}, "random_state=.*expected None, a generator of NumPy") for s in ("a", -1, 2.5, True)),
    ({"inducing": 0}, "inducing=0: expected between 1 and the 150 training images"),
    ({"inducing": 151}, "inducing=151: expected between 1 and the 150"),
    ({"inducing": True}, "inducing=True: expected"),
    ({"inducing": [3, 150]}, "row numbers 3 to 150; expected 0 to 149"),
    ({"inducing": np.zeros((5, 1, 7, 7))}, r"\(5, 1, 7, 7\).*expected how many, row numbers of X, or images of shape"),
    ({"inducing": "many"}, "expected how many, row numbers"),
    ({"class_weight": [1, 2, 3]}, r"class_weight=\[1, 2, 3\]: expected None, 'balanced' or a dict"),
    ({"class_weight": "balance"}, "class_weight='balance': expected None, 'balanced' or a dict"),
    ({"class_weight": {3: "a"}}, "class_weight holds 'a'; expected a weight of 0 or more"),
]
ARGUMENTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"y": Y[:-1]}, "150 images but 149 labels in y; give one label per image"),
    ({}, {"X": ROWS, "y": Y[:-1]}, "150 images but 149 labels in y"),
    ({}, {"y": np.zeros(150)}, "y holds one class only .*at least two classes"),
    ({}, {"y": X.sum((1, 2, 3))}, "Unknown label type"),
    ({}, {"y": np.stack([Y, Y], 1)}, "holds more than 0 and 1"),
    ({}, {"y": None}, "requires y to be passed"),
    ({}, {"y": np.where(Y == 3, np.nan, Y)}, rf"y\[{THREE}\] is nan; every image needs a label"),
    ({}, {"y": np.where(Y == 3, None, Y.astype(str))}, rf"y\[{THREE}\] is None; every image needs a label"),
    ({}, {"y": np.where(Y == 3, float("nan"), Y.astype(object))}, rf"y\[{THREE}\] is nan; every image needs a label"),
    ({}, {"X": ROWS}, r"rows of 64 numbers, but Conv.*input_shape=\(1, height, width\)"),
    ({}, {"X": X[:, 0]}, r"could be \(N, height, width\) or \(N, channels, length\)"),
    ({}, {"X": None}, "fit needs images X or a kernel matrix K"),
    ({}, {"X": X[:0], "y": Y[:0]}, r"X .*(0, 1, 8, 8)"),
    ({"inducing": 20}, {"X": X[:0], "y": Y[:0]}, r"X .*(0, 1, 8, 8)"),
    ({"inducing": 20}, {"K": MATRIX}, "inducing= computes the kernels that it needs from images"),
    ({"learn": "loo"}, {"K": MATRIX}, "learn= computes the kernels of changed networks from images"),
    *(({}, {"X": None, "K": K}, r"K has shape .* expected \(N, N\)") for K in (MATRIX[1:], MATRIX[0], 3.0)),
    ({}, {"X": None, "K": "K.zarr"}, r"K='K.zarr' is a path; give the array in it"),
    *(
        (options, {said: WEIGHT}, f"{said}.* needs the exact model")
        for options in ({"inducing": 20}, {"solver": "cg", "noise": 0.1})
        for said in ("sample_weight", "image_noise")
    ),
    *(({"learn": "likelihood"}, {said: WEIGHT}, "learn= finds one noise") for said in ("sample_weight", "image_noise")),
    ({}, {"sample_weight": -WEIGHT}, "among its 150 weights; expected numbers of 0 or more"),
    ({}, {"sample_weight": WEIGHT[1:]}, r"sample_weight has shape \(149,\)"),
    ({}, {"sample_weight": 0.0 * WEIGHT}, "all weights are zero"),
    ({}, {"sample_weight": Y == 3}, "one class only"),
    ({"noise": 0.1}, {"sample_weight": np.where(Y == 3, 1e-320, 1.0)}, "too small to divide noise by; give 0 instead"),
    ({}, {"image_noise": np.ones(3)}, "expected 150 variances of 0 or more"),
    *(({}, {"image_noise": bad}, "among its 150 variances") for bad in (-WEIGHT, np.full(150, np.nan))),
    ({}, {"names": ["a", "b", "c"]}, "3 names for 150 images"),
    ({}, {"groups": [1, 2, 3]}, r"groups has shape \(3,\); expected 150 names or numbers"),
]


@pytest.mark.parametrize(
    ("options", "given", "message"), [*((options, {}, message) for options, message in PARAMETERS), *ARGUMENTS]
)
def test_what_is_refused_before_a_kernel(
    options: dict[str, Any], given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cnngp.estimators.kernels.gram", None)
    clf = GPClassifier(**{"network": NET, "device": "auto" if "network" in options else "cpu"} | options)
    with pytest.raises(ValueError, match=message):
        clf.fit(**{"X": X, "y": Y} | given)
    with pytest.raises(NotFittedError):
        clf.predict(NEW)


def test_what_is_refused_of_a_fitted_model(tmp_path: Path) -> None:
    model, of_matrix = fitted(), GPClassifier().fit(K=MATRIX, y=Y)
    kernel = Kernel(NET, device="cpu")
    K, diagonal = kernel(NEW, X), kernel.diag(NEW)
    reg = GPRegressor(NET, noise=0.1, device="cpu").fit(X, np.stack([Y, -Y], 1))
    by_matrix: Any = GPRegressor(noise=0.1).fit(K=MATRIX, y=Y)
    inducing, iterative = classifier(inducing=20).fit(X, Y), classifier(solver="cg", noise=0.1).fit(X, Y)
    by_iteration = GPRegressor(NET, noise=0.1, solver="cg", device="cpu").fit(X, Y)
    words = classifier().fit(X, Y.astype(str))
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
        (model.predict, (NEW[:, :, 1:-1, 1:-1],), {}, "images of 1 × 6 × 6, but the model was fitted on 1 × 8 × 8"),
        (model.predict, (), {}, "give images X, or K"),
        *((ask, (NEW,), {"K": K}, "X and K were both given") for ask in (model.predict, model.novelty)),
        (model.add, (NEW[:2], [1]), {}, "2 images but 1 labels"),
        (model.add, (NEW[:2], ["3", "5"]), {}, "labels of type <U1; expected those of fit, int64"),
        (words.add, (NEW[:2], [3, 5]), {}, "labels of type int64; expected those of fit"),
        (inducing.add, (NEW[:2], [3, 10]), {}, "so it cannot take a new class; fit again"),
        (iterative.add, (NEW[:2], [3, 10]), {}, "adding a class needs a Cholesky factor"),
        (iterative.add, (NEW[:2], [3, 3]), {}, "adding images needs a Cholesky factor.*use solver='cholesky'"),
        (by_iteration.predict, (NEW,), {"return_cov": True}, "covariance between test points needs"),
        (by_iteration.sample_y, (NEW,), {}, "covariance between test points needs"),
        (reloaded(iterative, tmp_path).predict_latent, (NEW,), {}, "no kernel matrix, so it gives means and no varia"),
        (model.add, (NEW[:2], Y[:2]), {"sample_weight": [1.0, -1.0]}, "sample_weight has -1 among its 2 weights"),
        (model.saliency, (NEW, "x"), {}, "'x' is not a class of the model"),
        *((m.most_uncertain, (n,), {}, "expected how many images") for n in (-1, 2.5, "all") for m in (model, reg)),
        (model.suspect_labels, (-1,), {}, "expected how many images"),
        (model.choose, (-1, NEW), {}, "n=-1: expected how many"),
        (model.predict_set, (NEW,), {"coverage": 90}, "coverage=90: expected"),
        (model.predict_set, (NEW,), {"coverage": "a"}, "coverage='a': expected"),
        (model.predict_set, (NEW,), {"by": "x"}, "by='x': expected"),
        (inducing.predict_set, (NEW,), {}, "a set with a guarantee needs a factor of all images; fit without inducing"),
        (inducing.add, (NEW[:2], Y[:2]), {"sample_weight": [1, 2]}, "class_weight needs the exact model"),
        (GPClassifier(device="cpu").choose, (2, X), {}, "without labels no recipe can be chosen; name a network"),
        *((reg.sample_y, (NEW, n), {}, "n_samples=.*: expected how many functions, 0 or more") for n in (-1, 1.5, "3")),
        (reg.saliency, (NEW, 2), {}, "output=2: expected the number of one of the 2 outputs"),
        *((reg.add, (NEW, np.ones(s)), {}, r"unlike the targets of fit, \(N, 2\)") for s in ((80, 1), (80,), (80, 4))),
        *(
            (of_matrix.predict, (), {"K": wrong}, r"K has shape .* expected \(test images, 150\)")
            for wrong in (K[:0], K[:, 1:], K[0], 3.0)
        ),
        (of_matrix.add, (NEW, DATA.y_test), {}, "fit again with images X to add to it"),
        (of_matrix.predict, (NEW,), {}, r"fitted on a kernel matrix alone; give K\(test, training\) as K="),
        (of_matrix.predict_proba, (), {"K": K}, "also need diagonal="),
        *(
            (of_matrix.predict_proba, (), {"K": K, "diagonal": wrong}, message)
            for wrong, message in (
                (kernel.diag(X), r"diagonal has shape \(150,\).*expected 80 numbers, one for each row of K"),
                ([1.0], r"diagonal has shape \(1,\)"),
                (1.0, r"diagonal has shape \(\)"),
                (-diagonal, "negative numbers"),
                (np.full(80, np.nan), "NaN"),
            )
        ),
        (by_matrix.predict, (), {"K": K, "return_cov": True}, "give X instead of K"),
    ]
    for ask, arguments, named, message in calls:
        with pytest.raises(ValueError, match=message):
            ask(*arguments, **named)
    expected = of_matrix.predict_proba(K=K, diagonal=diagonal)
    listed = GPClassifier().fit(K=MATRIX.tolist(), y=Y)
    np.testing.assert_array_equal(listed.predict_proba(K=K.tolist(), diagonal=diagonal.tolist()), expected)


@pytest.mark.parametrize("flat", [True, False])
def test_targets_that_are_objects(flat: bool) -> None:
    model, images = GPRegressor("dense_nngp", noise=0.1, device="cpu"), ROWS if flat else X
    numbers = model.fit(images, Y.astype(object)).predict(images)
    np.testing.assert_array_equal(numbers, model.fit(images, Y).predict(images))
    for wrong in (np.array(["3"] * 150, dtype=object), Y * 1j):
        with pytest.raises(ValueError, match=r"real numbers|[Cc]omplex"):
            model.fit(images, wrong)


def test_memory_is_refused_before_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": 200_000)
    with pytest.raises(MemoryError, match=r"fit of 150 images needs 270 kB of memory, but 200 kB are free.*use fewer"):
        GPClassifier(NET).fit(X, Y)
    GPClassifier(NET, noise=0.1).fit(X[:100], Y[:100])


# ---- warnings --------------------------------------------------------------------------------------------------------


def test_images_of_another_layout_or_scale_give_a_warning() -> None:
    model = fitted()
    last = X.transpose(0, 2, 3, 1)
    with pytest.warns(UserWarning, match=r"read as 8 channels of 8 × 1; if the channels come last.*transpose") as told:
        classifier().fit(last, Y)
    classifier(input_shape=(8, 8, 1)).fit(last, Y)  # warnings are errors in tests
    of_bytes = classifier().fit((X * 255).round(), Y)
    with pytest.warns(UserWarning, match=r"pixels up to 255, but the model was fitted on pixels up to 1; .* / 255"):
        model.predict((NEW * 255).round())
    with pytest.warns(UserWarning, match=r"fitted on pixels up to 255; .* \* 255") as told_too:
        of_bytes.predict(NEW)
    assert told[0].filename == told_too[0].filename == __file__
    of_bytes.predict(np.zeros_like(NEW))  # black images are black on any scale
    model.predict(NEW)


def test_repeated_inducing_images_give_a_warning() -> None:
    rows = np.r_[np.arange(60), np.arange(60)]
    with pytest.warns(JitterWarning, match="not positive definite") as told:
        report = GPClassifier(NET, inducing=X[rows], device="cpu").fit(X, Y).fit_report_
    assert told[0].filename == __file__
    assert report.jitter > 0
    assert f"with {report.jitter:.0e} of its mean variance added as noise" in report.verdict
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of images that are there three times, one is chosen
        clf = GPClassifier(NET, inducing=60, device="cpu").fit(np.concatenate([X] * 3), np.concatenate([Y] * 3))
    assert len(np.unique(clf.X_.reshape(60, -1), axis=0)) == 60


def test_images_that_the_kernel_cannot_tell_apart() -> None:
    """Nearly the same image 100 times: in float32 nothing is left of the differences, and the verdict says so."""
    with pytest.warns(JitterWarning):
        clf = classifier().fit(X[:1] + 1e-6 * RNG.normal(size=(100, 1, 8, 8)), np.arange(100) % 2)
    assert "hardly tells these images apart" in clf.fit_report_.verdict
    assert "apart" not in fitted().fit_report_.verdict


def test_two_labels_of_one_image_leave_the_others_their_probabilities() -> None:
    twice, y = np.concatenate([X, X[:1]]), np.append(Y, (Y[0] + 1) % 10)
    with pytest.warns(UserWarning, match="contradict each other"), pytest.warns(JitterWarning) as told:
        clf = GPClassifier(zoo.small_cnn(), dtype="float64", device="cpu").fit(twice, y)
    assert {warning.filename for warning in told} == {__file__}
    assert clf.gp_.amplitude > 1e3  # the reason: no other explains the two
    whole = classifier(zoo.small_cnn()).fit(X, Y)
    loss = [calibration.scores(m.predict_proba(NEW), DATA.y_test.astype(np.intp)).nll for m in (clf, whole)]
    assert loss[0] < 1.5 * loss[1]
    np.testing.assert_allclose(clf.loo_probabilities_.sum(1), 1.0)


def test_two_labels_of_one_image_make_the_report_of_a_tangent_kernel_warn() -> None:
    """Away from the diagonal Θ of equal images is off by the root of a rounding, so the matrix is not singular, and no
    jitter warns: the report looks at the two images that are most alike.
    """
    net = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())
    twice, y = X[:80].copy(), Y[:80].copy()
    twice[40], y[40] = X[30], (Y[30] + 1) % 10
    with pytest.warns(UserWarning, match="contradict each other"):
        report = classifier(net, kind="ntk").fit(twice, y).fit_report_
    assert report.sensitivity > 1.0
    assert "leave-one-out, variances and likelihood are not reliable" in report.verdict
    assert classifier(net, kind="ntk").fit(X[:80], Y[:80]).fit_report_.sensitivity < 1.0


# ---- a second fit, an addition, a caller who writes over the images --------------------------------------------------


@pytest.mark.parametrize("labels", [Y + 0.5, np.zeros(150), Y[:-1]])
def test_a_fit_that_fails_leaves_no_model(labels: np.ndarray) -> None:
    clf = classifier().fit(X, Y)
    clf.set_params(network=Sequential(Conv(3, weight_var=8.0), ReLU(), Dense()))
    with pytest.raises(ValueError, match=r"class|label|Unknown"):
        clf.fit(X, labels)
    for method in (clf.predict, clf.predict_proba, clf.predict_latent, clf.most_uncertain):
        with pytest.raises(NotFittedError):
            method(NEW)


@pytest.mark.parametrize("stop", ["cnngp.estimators.fit.measured", "cnngp.gp.calibration.fit_temperature"])
def test_an_addition_that_is_stopped_leaves_the_model_as_it_was(stop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clf = classifier().fit(X, Y)
    P, loo, T = clf.predict_proba(NEW), clf.loo_probabilities_, clf.temperature_

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stop, stopped)
        with pytest.raises(KeyboardInterrupt):
            clf.add(NEW[:50], DATA.y_test[:50])
    assert len(clf.X_) == clf.fit_report_.images == 150
    np.testing.assert_array_equal(clf.predict_proba(NEW), P)
    assert clf.loo_probabilities_ is loo
    assert clf.temperature_ == T
    assert len(clf.add(NEW[:50], DATA.y_test[:50]).X_) == 200


@pytest.mark.parametrize("shape", [(150, 1, 8, 8), (150, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_caller_who_overwrites_the_images_of_a_fit_changes_no_prediction(dtype: str, shape: tuple[int, ...]) -> None:
    images, new = X.astype(dtype).reshape(shape), NEW.reshape(80, *shape[1:])
    reg = GPRegressor("dense_nngp", noise=0.1, dtype=dtype, device="cpu").fit(images, Y.astype(float))
    before = reg.predict(new)
    images[:] = 0.0
    np.testing.assert_array_equal(reg.predict(new), before)
