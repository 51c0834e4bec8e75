"""What cannot be used is refused by name at every door, in the same words, before any work: images, matrices, labels.

What a conversion would bend (complex numbers, text, dates, masks) is refused as well as what is not a number.
"""

import datetime
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from cnngp import Conv, DataError, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, gram
from cnngp.common.arrays import as_real
from cnngp.datasets.augmentation import shifted
from cnngp.estimators.door import check_real_rows
from cnngp.gp import solve
from cnngp.gp.exact import ExactGP
from cnngp.network import reference

NET = Sequential(Conv(3), ReLU(), Dense())
KERNEL = Kernel(NET, device="cpu")
GOOD = np.random.default_rng(0).standard_normal((12, 1, 5, 5)).astype(np.float32)
LABELS = np.arange(12) % 3
TARGETS = np.eye(3)[LABELS]
K = np.asarray(Kernel(NET, device="cpu", dtype="float64")(GOOD))
GP = ExactGP(K, TARGETS)
REAL = "has type .*; expected real numbers$"
MASK = "is a masked array, whose mask would be lost; remove what it hid"
Door = Callable[[Any], Any]


@functools.cache
def fitted(estimator: type[Any] = GPClassifier) -> Any:
    return estimator(NET, device="cpu").fit(GOOD, LABELS)


@functools.cache
def of_matrix(solver: str = "cholesky") -> GPClassifier:
    return GPClassifier(solver=solver, noise=0.1).fit(K=K, y=LABELS)  # type: ignore[arg-type]


def classifier(**options: Any) -> GPClassifier:
    return GPClassifier(NET, device="cpu", **options)


def regressor() -> GPRegressor:
    return GPRegressor(NET, device="cpu")


def labels(X: Any) -> Any:
    return LABELS[: len(X)]


def flat(X: Any) -> Any:
    return X.reshape(len(X), -1)


def spoiled(value: float) -> np.ndarray:
    X = GOOD.astype(np.float64)
    X[7, 0, 2, 2] = value
    return X


IMAGES: dict[str, Door] = {
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
    "fit a regression": lambda X: regressor().fit(X, labels(X)),
    "fit with inducing images": lambda X: classifier(inducing=4).fit(X, labels(X)),
    "inducing images": lambda Z: classifier(inducing=Z).fit(GOOD, LABELS),
    "predict": lambda X: fitted().predict(X),
    "predict a number": lambda X: fitted(GPRegressor).predict(X),
    "probabilities": lambda X: fitted().predict_proba(X),
    "add": lambda X: fitted().add(X, labels(X)),
}
BAD_IMAGES: dict[str, tuple[Any, str]] = {
    "NaN": (spoiled(np.nan), r"\w+\[7\] has NaN pixels; remove or replace them$"),
    "infinity": (spoiled(-np.inf), r"\w+\[7\] has infinite .* pixels; remove or replace them$"),
    "beyond float32": (spoiled(1e39), r"\w+\[7\] has infinite \(or beyond the range of float32\) pixels"),
    "complex numbers": (GOOD.astype(complex), rf"\w+ {REAL}"),
    "words": (np.full(GOOD.shape, "1"), rf"\w+ {REAL}"),
    "dates": (np.zeros(GOOD.shape, "datetime64[s]"), rf"\w+ {REAL}"),
    "a mask": (np.ma.masked_less(GOOD, 0.1), rf"\w+ {MASK}"),
    "objects": (np.full(GOOD.shape, "1", object), r"\w+ holds Python objects that are not all real numbers"),
    # Doors that know the shape say that it is another one.
    "too many axes": (
        GOOD[..., None, None],
        r"\w+ has shape \(\d+, 1, 5, 5, 1, 1\)|X holds images of 1 × 5 × 5 × 1 × 1",
    ),
    "no pixels": (GOOD[..., :0], r"\w+ has shape \(\d+, 1, 5, 0\)|X holds images of 1 × 5 × 0, but"),
}
MATRICES: dict[str, Door] = {
    "fit": lambda A: GPClassifier(noise=0.1).fit(K=A, y=LABELS),
    "fit by conjugate gradients": lambda A: GPClassifier(solver="cg", noise=0.1).fit(K=A, y=LABELS),
    "predict": lambda A: of_matrix().predict(K=A),
    "predict by conjugate gradients": lambda A: of_matrix("cg").predict(K=A),
    "solve": lambda A: solve(A, LABELS, 0.1),
    "a process": lambda A: ExactGP(A, TARGETS),
}
NAMED_MATRIX = r"(K|the kernel matrix|K\(test, training\))"
BAD_MATRICES: dict[str, tuple[Any, str]] = {
    "complex numbers": (K + 0j, f"{NAMED_MATRIX} {REAL}"),
    "a complex tensor": (torch.tensor(K + 0j), f"{NAMED_MATRIX} {REAL}"),
    "words": (K.astype("U32"), f"{NAMED_MATRIX} {REAL}"),
    "bytes": (K.astype("S32"), f"{NAMED_MATRIX} {REAL}"),
    "a mask that hides nothing": (np.ma.array(K), f"{NAMED_MATRIX} {MASK}"),
    "a sparse matrix": (sparse.csr_array(K), rf"{NAMED_MATRIX} is a sparse matrix \(csr_array\); give K.toarray\(\)"),
    "one by coordinates": (sparse.coo_matrix(K), rf"{NAMED_MATRIX} is a sparse matrix \(coo_matrix\); give K.toarray"),
}
LABELLED: dict[str, Door] = {
    "labels": lambda y: classifier().fit(GOOD, y),
    "targets": lambda y: regressor().fit(GOOD, y),
    "labels of flat rows": lambda y: GPClassifier(device="cpu").fit(flat(GOOD), y),
    "labels to add": lambda y: fitted().add(GOOD, y),
    "labels to score": lambda y: fitted().score(GOOD, y),
    "a right side": lambda y: solve(K, y, noise=0.1),
}
BAD_LABELS: dict[str, tuple[Any, str]] = {
    "a mask": (np.ma.masked_equal(LABELS, 2), f"[yY] {MASK}"),
    "a mask that hides nothing": (np.ma.array(LABELS), f"[yY] {MASK}"),
}
NUMBERS: dict[str, Door] = {
    "numbers of images": lambda y: regressor().fit(GOOD, y),
    "numbers of a matrix": lambda y: regressor().fit(K=K, y=y),
}
BAD_NUMBERS = {dtype: (LABELS.astype(dtype), f"y {REAL}") for dtype in ("complex", "U9", "S9", "datetime64[s]")}
MASKED_IMAGES: dict[str, Door] = {
    "rows": lambda X: GPClassifier(device="cpu").fit(flat(X), LABELS),
    "a list": lambda X: classifier().fit(list(X), LABELS),
    "the reference": lambda X: reference.kernel(NET, X),
    "scikit-learn's kernel": lambda X: KERNEL.as_sklearn((1, 5, 5))(flat(X)),
    "augmentation": lambda X: shifted(X, LABELS),
}
OF_ONE_DOOR: dict[str, tuple[Door, Any, str]] = {
    "complex targets": (lambda Y: ExactGP(K, Y), TARGETS + 0j, f"Y {REAL}"),
    "a complex diagonal": (lambda d: GP.variance(K[:3], d), K.diagonal()[:3] + 0j, f"the diagonal {REAL}"),
    "a complex block": (lambda A: GP.covariance(K[:3], A), K[:3, :3] + 0j, rf"K\(test, test\) {REAL}"),
    "complex rows": (lambda A: GP.add(K[:3], A, TARGETS[:3]), K[:3, :3] + 0j, f"the kernel matrix {REAL}"),
    "sparse rows": (
        Kernel(Dense(), device="cpu"),
        sparse.csr_array(flat(GOOD)),
        r"X is a sparse matrix \(csr_array\); give X.toarray\(\)",
    ),
}


def column_with(value: object) -> np.ndarray:
    column = np.empty((2, 1), dtype=object)
    column[0, 0], column[1, 0] = 1.0, value
    return column


ROWS, OBJECTS = flat(GOOD), r"X holds Python objects that are not all real numbers; expected real"
NOT_REAL = ["1", b"1", 1j, np.complex64(1)]
DATES = [np.datetime64(1, "s"), np.timedelta64(1, "s"), datetime.date(2020, 1, 1), datetime.timedelta(1)]
BAD_ROWS: dict[str, tuple[Any, str]] = {
    **{type(value).__name__: (column_with(value), OBJECTS) for value in (*NOT_REAL, *DATES)},
    "lists of words": ([["1", "2"]], f"X {REAL}"),
    "lists of bytes": ([[b"1"]], f"X {REAL}"),
    **{dtype: (ROWS.astype(dtype), f"X {REAL}") for dtype in ("U9", "S9", "datetime64[s]")},
    "complex": (ROWS * 1j, "X has type complex64; expected real numbers. Complex data not supported$"),
}
BAD_ARRAYS = {type(value).__name__: (column_with(value), OBJECTS) for value in (*NOT_REAL, {}, [1, 2])}
CASES = OF_ONE_DOOR | {
    f"{door}: {bad}": (call, *given)
    for doors, every in (
        (IMAGES, BAD_IMAGES),
        (MATRICES, BAD_MATRICES),
        (LABELLED, BAD_LABELS),
        (NUMBERS, BAD_NUMBERS),
        (MASKED_IMAGES, {"a mask": (np.ma.masked_less(GOOD, 0.1), f"X {MASK}")}),
        ({"rows": check_real_rows}, BAD_ROWS),
        ({"an array": lambda given: as_real(given, "X")}, BAD_ARRAYS),
    )
    for door, call in doors.items()
    for bad, given in every.items()
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_used_is_refused_by_name(case: str) -> None:
    door, given, message = CASES[case]
    with pytest.raises(DataError, match=f"^(?:{message})"):
        door(given)


def test_a_store_is_not_begun_with_bad_images(tmp_path: Path) -> None:
    for X, Z in ((spoiled(np.nan), None), (GOOD, spoiled(np.nan))):
        with pytest.raises(DataError, match="NaN"):
            gram(KERNEL, X, Z, store=tmp_path / "K.zarr")
    assert not (tmp_path / "K.zarr" / "zarr.json").exists()


def test_rows_and_frames_of_text_and_dates() -> None:
    dates = pd.date_range("2020", periods=len(GOOD))
    frame = pd.DataFrame(ROWS, columns=[f"p{i}" for i in range(25)])
    frames = [
        *map(frame.astype, (str, "string", complex)),
        *(frame.astype(str).astype(kind) for kind in (object, "category")),
        *(pd.DataFrame(dict.fromkeys(frame.columns, d)) for d in (dates, dates.tz_localize("UTC"), dates - dates[0])),
        *(frame.assign(p0=dates), frame.assign(p0=dates).astype({"p0": object})),
    ]
    clf, fresh = (classifier(input_shape=(1, 5, 5)) for _ in range(2))
    clf.fit(ROWS, LABELS)
    given = [(bad, "X has type") for bad in (ROWS.astype("U9"), ROWS * 1j)]
    for bad, what in given + [(bad, "X has a column 'p0' of type") for bad in frames]:
        for call in (functools.partial(fresh.fit, bad, LABELS), functools.partial(clf.predict, bad)):
            with pytest.raises(DataError, match=f"^{what} .*; expected real numbers"):
                call()
