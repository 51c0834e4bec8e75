"""The kernel inside scikit-learn."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

from cnngp import Conv, DataError, Dense, Erf, Kernel, ReLU, Sequential

NET = Sequential(Conv(3, weight_var=2.0, bias_var=0.1), ReLU(), Dense())
ROWS = np.random.default_rng(0).random((40, 25))
IMAGES = ROWS.reshape(-1, 1, 5, 5)


def as_sklearn(**arguments):
    return Kernel(NET, device="cpu", **arguments).as_sklearn((1, 5, 5))


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_the_sklearn_kernel_is_the_kernel_on_flat_rows(kind):
    kernel, K = as_sklearn(kind=kind), Kernel(NET, device="cpu", kind=kind)(IMAGES)
    assert np.array_equal(kernel(ROWS), K)
    assert np.array_equal(kernel(ROWS[:8], ROWS[8:]), K[:8, 8:])
    assert np.array_equal(kernel.diag(ROWS), K.diagonal())
    assert kernel(ROWS).dtype == np.float64
    assert ("ntk of" in repr(kernel)) == (kind == "ntk")
    assert not kernel.is_stationary()
    value, gradient = kernel(ROWS, eval_gradient=True)
    assert np.array_equal(value, K)
    assert gradient.shape == (40, 40, 0)
    with pytest.raises(ValueError, match="gradient"):
        kernel(ROWS, ROWS, eval_gradient=True)
    told = r"X has shape \(40, 24\); expected rows of 25 pixels, one image \(1, 5, 5\) each"
    with pytest.raises(DataError, match=told):
        kernel(ROWS[:, :24])


def test_it_is_cloned_compared_and_pickled_by_its_parameters_and_takes_others():
    kernel = as_sklearn(dtype="float64", threads=1)
    before = pickle.dumps(kernel)
    K = kernel(ROWS)
    for again in (clone(kernel), pickle.loads(pickle.dumps(kernel)), pickle.loads(before), clone(clone(kernel))):
        assert again == kernel
        assert again.get_params() == kernel.get_params()
        assert np.array_equal(again(ROWS), K)
    assert kernel != as_sklearn(dtype="float32", threads=1)
    assert kernel != Kernel(Dense(), device="cpu", dtype="float64", threads=1).as_sklearn((1, 5, 5))
    assert kernel.n_dims == 0
    other = Sequential(Conv(5), Erf(), Dense())
    kernel.set_params(network=other, dtype="float32")
    assert np.array_equal(kernel(ROWS), Kernel(other, device="cpu")(IMAGES))


def test_gaussian_process_regressor_uses_it():
    K, y = as_sklearn(dtype="float64"), np.sin(ROWS.sum(axis=1))
    train, test = ROWS[:30], ROWS[30:]
    model = GaussianProcessRegressor(K, alpha=1e-6).fit(train, y[:30])
    mean, std = model.predict(test, return_std=True)
    by_hand = K(test, train) @ np.linalg.solve(K(train) + 1e-6 * np.eye(30), y[:30])
    np.testing.assert_allclose(mean, by_hand, rtol=1e-6, atol=1e-8)
    assert (std >= 0).all()
    # Together with kernels that do have hyperparameters, which are then fitted.
    fitted = GaussianProcessRegressor(ConstantKernel() * K + WhiteKernel(0.1, (1e-6, 10.0)), random_state=0)
    assert fitted.fit(train, y[:30]).kernel_.theta.shape == (2,)
    assert fitted.log_marginal_likelihood_value_ > fitted.log_marginal_likelihood([0.0, np.log(0.1)])
