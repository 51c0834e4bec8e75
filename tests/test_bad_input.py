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
MASK = "is a masked array, whose mask would be lost; remove what it hid"


@functools.cache
def fitted(estimator: type[Any] = GPClassifier) -> Any:
    return estimator(NET, device="cpu").fit(GOOD, LABELS)


def classifier(**options: Any) -> GPClassifier:
    return GPClassifier(NET, device="cpu", **options)


def labels(X: Any) -> Any:
    return LABELS[: len(X)]


def flat(X: Any) -> Any:
    return X.reshape(len(X), -1)


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
    "a mask": (np.ma.masked_less(GOOD, 0.1), rf"\w+ {MASK}"),
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


def test_a_mask_is_refused_where_other_doors_take_images() -> None:
    images = np.ma.masked_less(GOOD, 0.1)
    for call in (
        lambda: GPClassifier(device="cpu").fit(flat(images), LABELS),
        lambda: classifier().fit(list(images), LABELS),
        lambda: reference.kernel(NET, images),
        lambda: KERNEL.as_sklearn((1, 5, 5))(flat(images)),
        lambda: shifted(images, LABELS),
    ):
        with pytest.raises(DataError, match=f"^X {MASK}"):
            call()
    with pytest.raises(DataError, match=r"^X is a sparse matrix \(csr_array\); give X.toarray\(\)"):
        Kernel(Dense(), device="cpu")(sparse.csr_array(flat(GOOD)))


# ---- matrices, targets, labels -------------------------------------------------------------------------------------

K = np.asarray(Kernel(NET, device="cpu", dtype="float64")(GOOD))
TARGETS = np.eye(3)[LABELS]


@functools.cache
def of_matrix(solver: str = "cholesky") -> GPClassifier:
    return GPClassifier(solver=solver, noise=0.1).fit(K=K, y=LABELS)  # type: ignore[arg-type]


REAL = "has type .*; expected real numbers$"
SPOILT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "complex numbers": (lambda A: A + 0j, REAL),
    "a complex tensor": (lambda A: torch.tensor(A + 0j), REAL),
    "words": (lambda A: A.astype("U32"), REAL),
    "bytes": (lambda A: A.astype("S32"), REAL),
    "a mask that hides nothing": (np.ma.array, MASK),
    "a sparse matrix": (sparse.csr_array, r"is a sparse matrix \(csr_array\); give K.toarray\(\), a den"),
    "a sparse matrix by coordinates": (sparse.coo_matrix, r"is a sparse matrix \(coo_matrix\); give K.toarray\(\)"),
}
MATRICES: dict[str, Callable[[Any], Any]] = {
    "fit": lambda A: GPClassifier(noise=0.1).fit(K=A, y=LABELS),
    "fit by conjugate gradients": lambda A: GPClassifier(solver="cg", noise=0.1).fit(K=A, y=LABELS),
    "predict": lambda A: of_matrix().predict(K=A),
    "predict by conjugate gradients": lambda A: of_matrix("cg").predict(K=A),
    "solve": lambda A: solve(A, LABELS, 0.1),
    "a process": lambda A: ExactGP(A, TARGETS),
}


@pytest.mark.parametrize("bad", SPOILT)
@pytest.mark.parametrize("door", MATRICES)
def test_matrices_that_cannot_be_used_are_refused_by_name(door: str, bad: str) -> None:
    spoil, message = SPOILT[bad]
    with pytest.raises(DataError, match=rf"^(K|the kernel matrix|K\(test, training\)) {message}"):
        MATRICES[door](spoil(K))


def test_what_a_process_is_given_is_real() -> None:
    gp = ExactGP(K, TARGETS)
    for name, call, good in (
        ("Y", lambda Y: ExactGP(K, Y), TARGETS),
        ("the diagonal", lambda d: gp.variance(K[:3], d), K.diagonal()[:3]),
        (r"K\(test, test\)", lambda A: gp.covariance(K[:3], A), K[:3, :3]),
        ("the kernel matrix", lambda A: gp.add(K[:3], A, TARGETS[:3]), K[:3, :3]),
    ):
        with pytest.raises(DataError, match=f"^{name} has type complex128; expected real numbers$"):
            call(good + 0j)


@pytest.mark.parametrize("dtype", [complex, "U9", "S9", "datetime64[s]"])
def test_regression_targets_that_are_not_real(dtype: str) -> None:
    for data in ({"X": GOOD}, {"K": K}):
        with pytest.raises(ValueError, match=r"^y has type .* expected real numbers"):
            GPRegressor(NET, device="cpu").fit(**data, y=LABELS.astype(dtype))


LABELLED: dict[str, Callable[[Any], Any]] = {
    "labels": lambda y: classifier().fit(GOOD, y),
    "targets": lambda y: GPRegressor(NET, device="cpu").fit(GOOD, y),
    "labels of flat rows": lambda y: GPClassifier(device="cpu").fit(flat(GOOD), y),
    "labels to add": lambda y: fitted().add(GOOD, y),
    "labels to score": lambda y: fitted().score(GOOD, y),
    "a right side": lambda y: solve(K, y, noise=0.1),
}


@pytest.mark.parametrize("door", LABELLED)
def test_masked_labels_are_refused(door: str) -> None:
    for y in (np.ma.masked_equal(LABELS, 2), np.ma.array(LABELS)):
        with pytest.raises(DataError, match=f"^[yY] {MASK}"):
            LABELLED[door](y)


# ---- rows and tables of any objects ---------------------------------------------------------------------------------

NOT_REAL: list[Any] = ["1", b"1", 1j, np.complex64(1)]
DATES = [np.datetime64(1, "s"), np.timedelta64(1, "s"), datetime.date(2020, 1, 1), datetime.timedelta(1)]


@pytest.mark.parametrize(
    ("door", "value"),
    [
        *((check_real_rows, value) for value in (*NOT_REAL, *DATES)),
        *((lambda given: as_real(given, "X"), value) for value in (*NOT_REAL, {}, [1, 2])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_that_are_not_real(door: Any, value: object) -> None:
    column = np.empty((2, 1), dtype=object)
    column[0, 0], column[1, 0] = 1.0, value
    with pytest.raises(DataError, match=r"^X holds Python objects that are not all real numbers; expected real"):
        door(column)


def test_rows_and_frames_of_text_and_dates() -> None:
    rows, dates = flat(GOOD), pd.date_range("2020", periods=len(GOOD))
    frame = pd.DataFrame(rows, columns=[f"p{i}" for i in range(25)])
    frames = [
        *map(frame.astype, (str, "string", complex)),
        *(frame.astype(str).astype(kind) for kind in (object, "category")),
        *(pd.DataFrame(dict.fromkeys(frame.columns, d)) for d in (dates, dates.tz_localize("UTC"), dates - dates[0])),
        *(frame.assign(p0=dates), frame.assign(p0=dates).astype({"p0": object})),
    ]
    clf, fresh = (classifier(input_shape=(1, 5, 5)) for _ in range(2))
    clf.fit(rows, LABELS)
    given = [(bad, "X has type") for bad in (rows.astype("U9"), rows * 1j)]
    for bad, what in given + [(bad, "X has a column 'p0' of type") for bad in frames]:
        for call in (functools.partial(fresh.fit, bad, LABELS), functools.partial(clf.predict, bad)):
            with pytest.raises(DataError, match=f"^{what} .*; expected real numbers"):
                call()
    with pytest.raises(DataError, match=r"^X has type complex64; expected real numbers. Complex data not supported$"):
        check_real_rows(rows * 1j)
    for bad in ([["1", "2"]], [[b"1"]], *(rows.astype(kind) for kind in ("U9", "S9", "datetime64[s]"))):
        with pytest.raises(DataError, match=r"^X has type (<U|\|S|datetime).*; expected real numbers$"):
            check_real_rows(bad)
