"""The kernel inside scikit-learn."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

from cnngp import Conv, DataError, Dense, Erf, Kernel, ReLU, Sequential


def digits_like(n=40, seed=0):
    """Two kinds of 5 × 5 images, flat: a bright upper and a bright lower half, with noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = rng.random((n, 1, 5, 5)) * 0.5
    X[y == 0, :, :2] += 1.0
    X[y == 1, :, 3:] += 1.0
    return X.reshape(n, -1), y


NET = Sequential(Conv(3, weight_var=2.0, bias_var=0.1), ReLU(), Dense())


def as_sklearn(**arguments):
    return Kernel(NET, device="cpu", **arguments).as_sklearn((1, 5, 5))


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_the_sklearn_kernel_is_the_kernel_on_flat_rows(kind):
    X, _ = digits_like(8)
    kernel, plain, images = as_sklearn(kind=kind), Kernel(NET, device="cpu", kind=kind), X.reshape(-1, 1, 5, 5)
    K = plain(images)
    assert np.array_equal(kernel(X), K)
    assert np.array_equal(kernel(X, X[:3]), plain(images, images[:3]))
    assert np.array_equal(kernel.diag(X), K.diagonal())
    assert kernel(X).dtype == np.float64
    assert ("ntk of" in repr(kernel)) == (kind == "ntk")
    assert not kernel.is_stationary()
    value, gradient = kernel(X, eval_gradient=True)
    assert np.array_equal(value, K)
    assert gradient.shape == (8, 8, 0)
    with pytest.raises(ValueError, match="gradient"):
        kernel(X, X, eval_gradient=True)
    with pytest.raises(
        DataError, match=r"X has shape \(8, 24\); expected rows of 25 pixels, one image \(1, 5, 5\) each"
    ):
        kernel(X[:, :24])


def test_it_is_cloned_compared_and_pickled_by_its_parameters_and_takes_others():
    X, _ = digits_like(6)
    kernel = as_sklearn(dtype="float64", threads=1)
    before = pickle.dumps(kernel)
    K = kernel(X)
    for again in (clone(kernel), pickle.loads(pickle.dumps(kernel)), pickle.loads(before), clone(clone(kernel))):
        assert again == kernel
        assert again.get_params() == kernel.get_params()
        assert np.array_equal(again(X), K)
    assert kernel != as_sklearn(dtype="float32", threads=1)
    assert kernel != Kernel(Dense(), device="cpu", dtype="float64", threads=1).as_sklearn((1, 5, 5))
    assert kernel.n_dims == 0
    other = Sequential(Conv(5), Erf(), Dense())
    kernel.set_params(network=other, dtype="float32")
    assert np.array_equal(kernel(X), Kernel(other, device="cpu")(X.reshape(-1, 1, 5, 5)))


def test_gaussian_process_regressor_uses_it():
    X, y = digits_like()
    K = as_sklearn(dtype="float64")
    model = GaussianProcessRegressor(K, alpha=1e-6).fit(X[:30], y[:30])
    mean, std = model.predict(X[30:], return_std=True)
    by_hand = K(X[30:], X[:30]) @ np.linalg.solve(K(X[:30]) + 1e-6 * np.eye(30), y[:30])
    np.testing.assert_allclose(mean, by_hand, rtol=1e-6, atol=1e-8)
    assert (std >= 0).all()
    assert ((mean > 0.5) == y[30:]).all()
    # Together with kernels that do have hyperparameters, which are then fitted.
    fitted = GaussianProcessRegressor(ConstantKernel() * K + WhiteKernel(0.1, (1e-4, 10.0)), random_state=0)
    assert fitted.fit(X[:30], y[:30]).kernel_.theta.shape == (2,)
    assert ((fitted.predict(X[30:]) > 0.5) == y[30:]).all()
