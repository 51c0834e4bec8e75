"""Calls as users write them, for the type checker: what is taken, and what comes back. Read by mypy, never run."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from cnngp import Dense, GPClassifier, GPRegressor, Kernel, gram

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


def classification(X: NDArray[np.uint8], rows: list[list[float]], y: list[str], w: NDArray[np.float32]) -> None:
    clf = GPClassifier("small_cnn", noise="loo", class_weight="balanced", input_shape=(1, 8, 8))
    assert_type(clf.fit(X, y, sample_weight=w).add(X, y, image_noise=w), GPClassifier)
    assert_type(clf.fit(rows, y).predict(rows), NDArray[Any])
    assert_type(clf.predict_proba(X), Floats)
    assert_type(clf.predict_latent(X), tuple[Floats, Floats])
    assert_type(clf.score(X, y, sample_weight=w), float)
    assert_type(clf.choose(3, X), Rows)
    assert_type(clf.log_marginal_likelihood_, float | None)
    assert_type(GPClassifier.load("model.gp", device="cpu"), GPClassifier)
    GPClassifier(noise="most")  # type: ignore[arg-type]
    clf.fit(X, y, image_noise="much", shape=3)  # type: ignore[call-arg]


def regression(X: NDArray[np.float32], y: Floats) -> None:
    reg = GPRegressor(noise=1e-2, normalize_y=True).fit(X, y)
    assert_type(reg.predict(X), Floats)
    assert_type(reg.predict(X, return_std=True, noise=True), tuple[Floats, Floats])
    assert_type(reg.predict(X, True), tuple[Floats, Floats])
    assert_type(reg.predict(X, return_cov=True), tuple[Floats, Floats])
    assert_type(reg.predict(K=y, return_std=True, diagonal=y), tuple[Floats, Floats])


def matrices(X: NDArray[np.float32]) -> None:
    kernel = Kernel(Dense(), device="cpu")
    assert_type(kernel(X), NDArray[Any])
    assert_type(kernel(X, X, output="numpy"), NDArray[Any])
    assert_type(kernel.gradient(X, None, X), dict[str, float])
    assert_type(gram(kernel, X), NDArray[Any])
    assert_type(gram(kernel, X, output="numpy", tile=10), NDArray[Any])
    kernel(X, output="jax")  # type: ignore[call-overload]
    gram(kernel, X, output="jax")  # type: ignore[call-overload]
