"""Estimators, stores, model files and commands with the tangent kernel, and that the two kernels are never mixed up."""

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, Kernel, ReLU, Sequential, datasets

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
