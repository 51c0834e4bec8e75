"""Estimators, stores, model files and commands with the tangent kernel, and that the two kernels are never mixed up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, datasets
from cnngp.common.arrays import DataError

NET = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())
DATA = datasets.digits().take(80, 40)
THETA = Kernel(NET, device="cpu", kind="ntk")


def test_a_classifier_is_regression_with_the_tangent_kernel() -> None:
    clf = GPClassifier(NET, kind="ntk", device="cpu").fit(DATA.X, DATA.y)
    T, across = THETA(DATA.X).astype(np.float64), THETA(DATA.X_test, DATA.X).astype(np.float64)
    Y = 2.0 * np.eye(10)[DATA.y] - 1.0
    np.testing.assert_allclose(clf.predict_latent(DATA.X_test)[0], across @ np.linalg.solve(T, Y), atol=1e-6)
    assert clf.score(DATA.X_test, DATA.y_test) > 0.8
    assert clf.loo_error_ < 0.3
    assert clf.kernel_.kind == "ntk"
    assert "-ntk" in clf.fit_report_.engine
    assert clf.fit_report_.kernel_error is not None  # compared with the tangent kernel's reference
    assert clf.fit_report_.kernel_error < 1e-5


def test_a_kernel_brings_its_kind_and_another_beside_it_is_refused() -> None:
    assert GPClassifier(THETA).fit(DATA.X, DATA.y).kernel_.kind == "ntk"
    with pytest.raises(ValueError, match="kind='ntk', but the Kernel that was given has kind='nngp'"):
        GPClassifier(Kernel(NET, device="cpu"), kind="ntk").fit(DATA.X, DATA.y)
    with pytest.raises(ValueError, match="kind='both' is not 'nngp'"):
        GPRegressor(NET, kind="both").fit(DATA.X, DATA.y)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="learn= follows the gradient of the Gaussian process's kernel"):
        GPClassifier(NET, kind="ntk", device="cpu", learn="loo").fit(DATA.X, DATA.y)


@pytest.mark.parametrize("options", [{}, {"inducing": 30, "noise": 0.1}], ids=["exact", "inducing"])
def test_a_model_file_keeps_the_kind(tmp_path: Path, options: dict[str, float]) -> None:
    clf = GPClassifier(NET, kind="ntk", device="cpu", **options).fit(DATA.X, DATA.y)  # type: ignore[arg-type]
    clf.save(tmp_path / "model.gp")
    again = GPClassifier.load(tmp_path / "model.gp", device="cpu")
    assert again.kernel_.kind == again.kind == "ntk"
    np.testing.assert_array_equal(again.predict_proba(DATA.X_test), clf.predict_proba(DATA.X_test))
    given = GPClassifier(THETA, **options).fit(DATA.X, DATA.y)  # type: ignore[arg-type]
    given.save(tmp_path / "given.gp")
    assert GPClassifier.load(tmp_path / "given.gp", device="cpu").kernel_.kind == "ntk"


def test_two_labels_of_one_image_make_the_report_warn() -> None:
    """Away from the diagonal Θ of equal images is off by the root of a rounding, so the matrix is not singular, and no
    jitter warns: the report looks at the two images that are most alike.
    """
    X, y = DATA.X.copy(), DATA.y.copy()
    X[40], y[40] = X[30], (y[30] + 1) % 10
    with pytest.warns(UserWarning, match="contradict each other"):
        report = GPClassifier(NET, kind="ntk", device="cpu").fit(X, y).fit_report_
    assert report.sensitivity > 1.0
    assert "leave-one-out, variances and likelihood are not reliable" in report.verdict
    plain = GPClassifier(NET, kind="ntk", device="cpu").fit(DATA.X, DATA.y).fit_report_
    assert plain.sensitivity < 1.0
