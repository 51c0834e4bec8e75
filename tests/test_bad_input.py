"""Images that cannot be used are refused by name at every door, in the same words, before any work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, DataError, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, gram

NET = Sequential(Conv(3), ReLU(), Dense())
KERNEL = Kernel(NET, device="cpu")
GOOD = np.random.default_rng(0).standard_normal((12, 1, 5, 5)).astype(np.float32)
LABELS = np.arange(12) % 3


@functools.cache
def fitted(estimator: type[Any] = GPClassifier) -> Any:
    return estimator(NET, device="cpu").fit(GOOD, LABELS)


def classifier(**options: Any) -> GPClassifier:
    return GPClassifier(NET, device="cpu", **options)


def labels(X: Any) -> Any:
    return LABELS[: len(X)]


DOORS: dict[str, Callable[[Any], Any]] = {
    "kernel": KERNEL,
    "kernel of two sets": lambda Z: KERNEL(GOOD, Z),
    "tangent kernel": Kernel(NET, device="cpu", kind="ntk"),
    "diagonal": KERNEL.diag,
    "prepare": KERNEL.prepare,
    "verify": KERNEL.verify,
    "gradient": lambda X: KERNEL.gradient(X, None, np.ones((len(X), len(X)))),
    "gram": lambda X: gram(KERNEL, X),
    "gram of two sets": lambda Z: gram(KERNEL, GOOD, Z),
    "fit": lambda X: classifier().fit(X, labels(X)),
    "fit a regression": lambda X: GPRegressor(NET, device="cpu").fit(X, labels(X)),
    "fit with inducing images": lambda X: classifier(inducing=4).fit(X, labels(X)),
    "inducing images": lambda Z: classifier(inducing=Z).fit(GOOD, LABELS),
    "predict": lambda X: fitted().predict(X),
    "predict a number": lambda X: fitted(GPRegressor).predict(X),
    "probabilities": lambda X: fitted().predict_proba(X),
    "add": lambda X: fitted().add(X, labels(X)),
}


def spoiled(value: float) -> np.ndarray:
    X = GOOD.astype(np.float64)
    X[7, 0, 2, 2] = value
    return X


BAD: dict[str, tuple[Any, str]] = {
    "NaN": (spoiled(np.nan), r"\w+\[7\] has NaN pixels; remove or replace them$"),
    "infinity": (spoiled(-np.inf), r"\w+\[7\] has infinite .* pixels; remove or replace them$"),
    "beyond float32": (spoiled(1e39), r"\w+\[7\] has infinite \(or beyond the range of float32\) pixels"),
    "complex numbers": (GOOD.astype(complex), r"\w+ has type complex128; expected real numbers$"),
    "words": (np.full(GOOD.shape, "1"), r"\w+ has type <U1; expected real numbers$"),
    "dates": (np.zeros(GOOD.shape, "datetime64[s]"), r"\w+ has type datetime64\[s\]; expected real numbers$"),
    "a mask": (np.ma.masked_less(GOOD, 0.1), r"\w+ is a masked array, whose mask would be lost; remove what it hid"),
    "objects": (np.full(GOOD.shape, "1", object), r"\w+ holds Python objects that are not all real numbers"),
    # Doors that know the shape say that it is another one.
    "too many axes": (
        GOOD[..., None, None],
        r"\w+ has shape \(\d+, 1, 5, 5, 1, 1\)|X holds images of 1 × 5 × 5 × 1 × 1",
    ),
    "no pixels": (GOOD[..., :0], r"\w+ has shape \(\d+, 1, 5, 0\)|X holds images of 1 × 5 × 0, but"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("door", DOORS)
def test_images_that_cannot_be_used_are_refused_by_name(door: str, bad: str) -> None:
    images, message = BAD[bad]
    with pytest.raises(DataError, match=f"^(?:{message})"):
        DOORS[door](images)


def test_a_store_is_not_begun_with_bad_images(tmp_path: Path) -> None:
    for X, Z in ((BAD["NaN"][0], None), (GOOD, BAD["NaN"][0])):
        with pytest.raises(DataError, match="NaN"):
            gram(KERNEL, X, Z, store=tmp_path / "K.zarr")
    assert not (tmp_path / "K.zarr" / "zarr.json").exists()
