"""Numbers of every real type are taken; what a conversion would bend (complex numbers, text, dates) is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, datasets, gram
from cnngp.common.arrays import DataError, as_real
from cnngp.datasets.augmentation import shifted
from cnngp.estimators.door import check_real_rows
from cnngp.gp import solve
from cnngp.gp.exact import ExactGP
from cnngp.network import reference

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DIGITS = datasets.digits().take(40, 10)
X, Y = DIGITS.X, DIGITS.y
TEXT = [(X.astype("U9"), "<U9"), (X.astype("S9"), r"\|S9"), (X.astype("datetime64[s]"), r"datetime64\[s\]")]


def classifier(**options: Any) -> GPClassifier:
    return GPClassifier(NET, device="cpu", **options)


@pytest.mark.parametrize("kind", ["?", "u1", "i8", "f2", "f4", "f8", "g", "O"])
def test_every_real_type_is_taken(kind: str) -> None:
    whole = (X * 16).round()
    if kind == "?":
        whole = (whole > 8).astype(np.float32)
    expected = classifier().fit(whole, Y).predict_latent(whole[:5])
    found = classifier().fit(whole.astype(kind), Y).predict_latent(whole[:5].astype(kind))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_objects_that_are_numbers() -> None:
    given = np.array([[1], [2.5], [True], [Decimal("0.5")], [np.float32(3)], [None]], dtype=object)
    np.testing.assert_array_equal(as_real(given, "X").ravel(), [1.0, 2.5, 1.0, 0.5, 3.0, np.nan])
    check_real_rows(given)
    assert as_real(np.ones(2, dtype=object), "X").dtype == np.float64


def test_flat_rows_of_text() -> None:
    rows = X.reshape(len(X), -1)
    for good in (rows, rows > 0, rows.astype(object), rows.tolist(), torch.tensor(rows)):
        check_real_rows(good)
    with pytest.raises(DataError, match=r"^X has type complex64; expected real numbers. Complex data not supported$"):
        check_real_rows(rows * 1j)
    for bad in (rows.astype("U9"), rows * 1j):
        with pytest.raises(DataError, match=r"^X has type .*; expected real numbers"):
            classifier(input_shape=(1, 8, 8)).fit(bad, Y)
        with pytest.raises(DataError, match=r"^X has type .*; expected real numbers"):
            classifier(input_shape=(1, 8, 8)).fit(rows, Y).predict(bad)
    for bad in ([["1", "2"]], [[b"1"]], *(text.reshape(len(X), -1) for text, _ in TEXT)):
        with pytest.raises(DataError, match=r"^X has type (<U|\|S|datetime).*; expected real numbers$"):
            check_real_rows(bad)


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


def test_frames_of_pandas() -> None:
    rows = (X.reshape(len(X), -1) * 16).round()
    frame = pd.DataFrame(rows, columns=[f"p{i}" for i in range(64)])
    model = classifier(input_shape=(1, 8, 8))
    expected = model.fit(rows, Y).predict_proba(rows)
    for good in map(frame.astype, ("f4", "f8", "u1", "Float64", "Int64", "category", object)):
        np.testing.assert_array_equal(model.fit(good, Y).predict_proba(good), expected)
    for good in (frame > 8, (frame > 8).astype("boolean")):
        model.fit(good, Y).predict(good)
    dates = pd.date_range("2020", periods=len(X))
    wrong = [
        *map(frame.astype, (str, "string", complex)),
        frame.astype(str).astype(object),
        frame.astype(str).astype("category"),
        pd.DataFrame(dict.fromkeys(frame.columns, dates)),
        pd.DataFrame({name: dates.tz_localize("UTC") for name in frame.columns}),
        pd.DataFrame(dict.fromkeys(frame.columns, dates - dates[0])),
        frame.assign(p0=dates).astype({"p0": object}),
        frame.assign(p0=dates),
    ]
    for bad in wrong:
        with pytest.raises(DataError, match=r"^X has a column 'p0' of type .*; expected real numbers"):
            model.fit(bad, Y)
        with pytest.raises(DataError, match=r"^X has a column 'p0' of type .*; expected real numbers"):
            model.fit(frame, Y).predict(bad)


# ---- matrices and targets --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def K() -> np.ndarray:
    return np.asarray(Kernel(NET, device="cpu", dtype="float64")(X))


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_matrices_that_are_not_real(K: np.ndarray, solver: Any) -> None:
    for bad in (K + 0j, K.astype("U32"), K.astype("S32"), torch.tensor(K + 0j)):
        with pytest.raises(DataError, match=r"^the kernel matrix has type .*; expected real numbers$"):
            classifier(solver=solver, noise=0.1).fit(K=bad, y=Y)
    model = classifier(solver=solver, noise=0.1).fit(K=K, y=Y)
    for bad in (K[:3] + 0j, K[:3].astype(str)):
        with pytest.raises(DataError, match=r"^K\(test, training\) has type .*; expected real numbers$"):
            model.predict(K=bad)
    expected = model.predict_latent(K=K[:3], diagonal=K.diagonal()[:3])
    for same in (K.astype(object), torch.tensor(K)):
        found = (
            classifier(solver=solver, noise=0.1).fit(K=same, y=Y).predict_latent(K=same[:3], diagonal=np.diag(K)[:3])
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_the_posterior_is_given_is_real(K: np.ndarray) -> None:
    targets = np.eye(10)[Y]
    with pytest.raises(DataError, match=r"^Y has type complex128; expected real numbers$"):
        ExactGP(K, targets + 0j)
    gp = ExactGP(K, targets)
    with pytest.raises(DataError, match=r"^the diagonal has type complex128; expected real numbers$"):
        gp.variance(K[:3], K.diagonal()[:3] + 0j)
    with pytest.raises(DataError, match=r"^K\(test, test\) has type complex128; expected real numbers$"):
        gp.covariance(K[:3], K[:3, :3] + 0j)
    with pytest.raises(DataError, match=r"^the kernel matrix has type complex128; expected real numbers$"):
        gp.add(K[:3], K[:3, :3] + 0j, targets[:3])


@pytest.mark.parametrize("dtype", [complex, "U9", "S9", "datetime64[s]"])
def test_regression_targets_that_are_not_real(K: np.ndarray, dtype: str) -> None:
    for data in ({"X": X}, {"K": K}):
        with pytest.raises(ValueError, match=r"^y has type .* expected real numbers"):
            GPRegressor(NET, device="cpu").fit(**data, y=Y.astype(dtype))


# ---- masks, sparse matrices, frames ----------------------------------------------------------------------------------

MASKED = np.ma.masked_less(X, 0.1)
ROWS = X.reshape(len(X), -1)


MASKS: dict[str, tuple[Any, str]] = {
    "labels": (lambda: classifier().fit(X, np.ma.masked_equal(Y, 3)), "y"),
    "labels with nothing hidden": (lambda: classifier().fit(X, np.ma.array(Y)), "y"),
    "targets": (lambda: GPRegressor(NET, device="cpu").fit(X, np.ma.array(Y)), "y"),
    "labels of flat rows": (lambda: GPClassifier(device="cpu").fit(ROWS, np.ma.array(Y)), "y"),
    "flat rows": (lambda: GPClassifier(device="cpu").fit(MASKED.reshape(len(X), -1), Y), "X"),
    "a list of images": (lambda: classifier().fit(list(MASKED), Y), "X"),
    "labels to add": (lambda: classifier().fit(X, Y).add(X, np.ma.array(Y)), "y"),
    "labels to score": (lambda: classifier().fit(X, Y).score(X, np.ma.array(Y)), "y"),
    "a matrix": (lambda: classifier().fit(K=np.ma.array(np.eye(len(X))), y=Y), "K"),
    "a matrix to predict from": (lambda: classifier().fit(X, Y).predict(K=np.ma.array(np.eye(len(X)))), "K"),
    "a matrix to solve": (lambda: solve(np.ma.array(np.eye(len(X))), Y, noise=0.1), "K"),
    "a right side": (lambda: solve(np.eye(len(X)), np.ma.array(Y, float), noise=0.1), "Y"),
    "a matrix of a process": (lambda: ExactGP(np.ma.array(np.eye(len(X))), Y[:, None].astype(float)), "K"),
    "the reference": (lambda: reference.kernel(NET, MASKED), "X"),
    "scikit-learn's kernel": (lambda: Kernel(NET, device="cpu").as_sklearn((1, 8, 8))(MASKED.reshape(len(X), -1)), "X"),
    "shifted images": (lambda: shifted(MASKED, Y), "X"),
}


@pytest.mark.parametrize("what", MASKS)
def test_masked_arrays_are_refused(what: str) -> None:
    """NumPy drops the mask and keeps what it hides. Images at every door: tests/test_bad_input.py."""
    call, name = MASKS[what]
    with pytest.raises(DataError, match=rf"^{name} is a masked array, whose mask would be lost; remove what it hid"):
        call()


def test_a_matrix_in_a_data_frame_is_its_values() -> None:
    """A frame keeps columns together, so the sums of a solve are rounded in another order."""
    kernel = Kernel(NET, device="cpu", dtype="float64")
    K, K_test, diagonal = kernel(X), kernel(X[:5], X), kernel.diag(X[:5])
    expected = classifier().fit(K=K, y=Y).predict_latent(K=K_test, diagonal=diagonal)
    found = classifier().fit(K=pd.DataFrame(K), y=Y).predict_latent(K=pd.DataFrame(K_test), diagonal=diagonal)
    expected += (solve(K, Y, 0.1).weights,)
    for a, b in zip((*found, solve(pd.DataFrame(K), Y, 0.1).weights), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_sparse_matrices_are_refused() -> None:
    K = Kernel(NET, device="cpu")(X)
    for make in (sparse.csr_array, sparse.coo_matrix):
        for call in (
            lambda make=make: classifier().fit(K=make(K), y=Y),
            lambda make=make: classifier().fit(X, Y).predict(K=make(K)),
            lambda make=make: solve(make(K), Y, 0.1),
        ):
            with pytest.raises(
                DataError, match=rf"^K is a sparse matrix \({make.__name__}\); give K.toarray\(\), a den"
            ):
                call()
    with pytest.raises(DataError, match=r"^X is a sparse matrix \(csr_array\); give X.toarray\(\)"):
        Kernel(Dense(), device="cpu")(sparse.csr_array(ROWS))


class OfAnotherLibrary:
    """An array that only DLPack gives access to."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_what_has_dlpack_is_taken_wherever_an_array_is() -> None:
    net = Sequential(Dense(), ReLU(), Dense())
    X, y = np.random.default_rng(0).random((6, 1, 3, 3)), np.arange(6) % 2
    kernel, theirs = Kernel(net, device="cpu"), OfAnotherLibrary
    K = kernel(X)
    np.testing.assert_array_equal(kernel(theirs(X)), K)
    np.testing.assert_array_equal(gram(kernel, theirs(X)), K)
    clf = GPClassifier(net, device="cpu").fit(theirs(X), theirs(y))
    np.testing.assert_array_equal(clf.predict(theirs(X)), y)
    assert GPClassifier().fit(K=theirs(K), y=y).loo_error_ == clf.loo_error_

    class Broken(OfAnotherLibrary):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no such type")

    with pytest.raises(DataError, match=r"^X: Broken cannot be read through DLPack \(no such type\)$"):
        kernel(Broken(X))
