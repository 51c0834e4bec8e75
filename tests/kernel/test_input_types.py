"""Numbers of every real type and arrays of every library are taken; what is refused: tests/test_bad_input.py."""

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cnngp import Conv, DataError, Dense, GPClassifier, Kernel, ReLU, Sequential, datasets, gram
from cnngp.common.arrays import as_real
from cnngp.estimators.door import check_real_rows
from cnngp.gp import solve
from helpers.kernels import SMALL, each_device, random_images

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DIGITS = datasets.digits().take(40, 10)
X, Y = DIGITS.X, DIGITS.y


@each_device
@pytest.mark.parametrize(
    "given_as", ["uint8", "int64", "bool", "float16", "float32", "float64", "longdouble", ">f4", "<i2"]
)
def test_images_of_any_real_type(device, given_as):
    X = np.random.default_rng(0).integers(0, 2 if given_as == "bool" else 100, size=(6, 2, 7, 6)).astype(given_as)
    kernel = Kernel(SMALL, device=device)
    assert np.array_equal(kernel(X), kernel(X.astype(np.float64)))
    assert np.array_equal(kernel(X, X[:3]), kernel(X.astype(np.float32), X[:3].astype(np.float32)))


@each_device
def test_images_in_any_layout(device):
    X = random_images(6)
    kernel = Kernel(SMALL, device=device)
    K = kernel(X)
    wide = np.zeros((6, 2, 14, 12), np.float32)
    wide[:, :, ::2, ::2] = X
    frozen = X.copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(X[::-1, :, ::-1, ::-1])
    channels_last = np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 1, -1)), -1, 1)
    views = [wide[:, :, ::2, ::2], backwards[::-1, :, ::-1, ::-1], channels_last, np.asfortranarray(X), frozen]
    for same in (*views, X.tolist(), list(X), X.astype(">f8")):
        assert np.array_equal(kernel(same), K)
    assert np.array_equal(frozen, X)


@each_device
def test_torch_tensors_go_in_and_come_out(device):
    X = random_images(6)
    kernel = Kernel(SMALL, device=device)
    K, T = kernel(X), torch.from_numpy(X)
    channels_last = T.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for tensor in (T, T.clone().requires_grad_(True), T.double(), channels_last):
        result = kernel(tensor)
        assert isinstance(result, np.ndarray)
        assert np.array_equal(result, K)
    assert np.array_equal(kernel(T, X), kernel(X, T))
    half = T.to(torch.bfloat16)
    assert np.array_equal(kernel(half), kernel(half.float()))
    out = kernel(T, output="torch")
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch.float32
    assert np.array_equal(out.cpu().numpy(), K)
    with pytest.raises(DataError, match="X: this tensor cannot become an array"):
        kernel(T.to_sparse())


def test_objects_that_are_numbers() -> None:
    given = np.array([[1], [2.5], [True], [Decimal("0.5")], [np.float32(3)], [None]], dtype=object)
    np.testing.assert_array_equal(as_real(given, "X").ravel(), [1.0, 2.5, 1.0, 0.5, 3.0, np.nan])
    check_real_rows(given)
    assert as_real(np.ones(2, dtype=object), "X").dtype == np.float64


def test_rows_and_frames_of_any_real_type() -> None:
    rows = (X.reshape(len(X), -1) * 16).round()
    for good in (rows, rows > 0, rows.astype(object), rows.tolist(), torch.tensor(rows)):
        check_real_rows(good)
    frame = pd.DataFrame(rows)
    model = GPClassifier(NET, device="cpu", input_shape=(1, 8, 8))
    expected = model.fit(rows, Y).predict_proba(rows)
    for good in map(frame.astype, ("f4", "f8", "u1", "Float64", "Int64", "category", object)):
        np.testing.assert_array_equal(model.fit(good, Y).predict_proba(good), expected)
    for good in (frame > 8, (frame > 8).astype("boolean")):
        model.fit(good, Y).predict(good)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_matrices_of_objects_tensors_and_frames(solver: Any) -> None:
    K = np.asarray(Kernel(NET, device="cpu", dtype="float64")(X))

    def results(A: Any) -> Any:
        model = GPClassifier(solver=solver, noise=0.1).fit(K=A, y=Y)
        return *model.predict_latent(K=A[:3], diagonal=np.diag(K)[:3]), solve(A, Y, 0.1).weights

    expected = results(K)
    for same in (K.astype(object), torch.tensor(K)):
        for a, b in zip(results(same), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    # A frame keeps columns together, so the sums of a solve are rounded in another order.
    for a, b in zip(results(pd.DataFrame(K)), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


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
