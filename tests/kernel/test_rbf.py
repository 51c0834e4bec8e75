"""RBF kernels as networks: against scikit-learn's on pixels and patches, close copies of an image included."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from cnngp import Conv, Dense, GlobalAvgPool, Kernel, Rbf, Sequential, zoo
from cnngp.network import reference
from helpers.kernels import each_dtype, error

Array = np.ndarray[Any, np.dtype[Any]]


def some_images(n: int, shape: tuple[int, ...]) -> Array:
    """Images between 0 and 1, in part blank, the last two a hair from the first."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((n, *shape)) < 0.4, 0.0, rng.random((n, *shape)))
    X[-2] = X[0]
    X[-1] = np.clip(X[0] + 1e-4 * rng.normal(size=shape), 0.0, 1.0)
    return X.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("shape", [(1, 9, 8), (3, 5, 7), (20,)], ids=str)
@pytest.mark.parametrize("lengthscale", [0.8, 4.0])
def test_the_dense_network_is_the_rbf_kernel_on_pixels(shape: tuple[int, ...], lengthscale: float) -> None:
    X = some_images(6, shape)
    d, rows = math.prod(shape), X.reshape(len(X), -1)
    net = zoo.rbf(d / (2.0 * lengthscale**2))
    expected = rbf_kernel(rows, gamma=1.0 / (2.0 * lengthscale**2))
    assert error(reference.kernel(net, X), expected) < 1e-13
    # A half-ulp of K moves the exponent 2γ(K − m) by 2γ · K₁ · 2^-24, and K is rounded four times.
    size = max(1.0, d / (2.0 * lengthscale**2) * float((rows**2).mean(axis=1).max()))
    for dtype, close in (("float32", 1.5e-6), ("float64", 1e-14)):
        assert error(Kernel(net, device="cpu", dtype=dtype)(X), expected) < close * size


@pytest.mark.parametrize(("size", "shape"), [(5, (1, 9, 8)), (3, (3, 6, 5)), (4, (1, 4, 7))], ids=str)
def test_the_convolutional_gp_is_the_mean_over_all_pairs_of_patches(size: int, shape: tuple[int, ...]) -> None:
    X = some_images(5, shape)
    net = zoo.conv_gp(size, gamma=3.0)
    assert net == Sequential(Conv(size, padding="valid"), Rbf(3.0), GlobalAvgPool(), Dense())
    d = shape[0] * size * size
    windows = np.lib.stride_tricks.sliding_window_view(X, (*shape[:1], size, size), axis=(1, 2, 3))
    patches = windows.reshape(len(X), -1, d)
    expected = np.array([[rbf_kernel(p, q, gamma=3.0 / d).mean() for q in patches] for p in patches])
    assert error(reference.kernel(net, X), expected) < 1e-14
    for dtype, close in (("float32", 1.5e-6), ("float64", 1e-14)):
        assert error(Kernel(net, device="cpu", dtype=dtype)(X), expected) < close
    both, rows = zoo.conv_gp(size, gamma=3.0, pixel_gamma=4.0, pixel_var=0.25), X.reshape(len(X), -1)
    dense = 0.25 * rbf_kernel(rows, gamma=4.0 / rows.shape[1])
    np.testing.assert_allclose(reference.kernel(both, X), expected + dense, rtol=1e-13)


@each_dtype
def test_close_copies_of_an_image_keep_their_distance(dtype: str) -> None:
    """exp(−x) near x = 0 is 1 − x: what is left of K₁ + K₂ − 2K is as exact as K itself, and V is never above 1."""
    X = np.random.default_rng(1).random((1, 1, 6, 6)).repeat(5, axis=0)
    X[:, 0, 2, 3] += (0.0, 1e-4, 1e-2, 0.1, 1.0)
    X = X.astype(np.float32).astype(np.float64)
    gamma, rows = 2.0, X.reshape(5, -1)
    K = Kernel(Sequential(Dense(), Rbf(gamma), Dense()), device="cpu", dtype=dtype)(X).astype(np.float64)
    assert (K <= 1.0).all()
    assert (K.diagonal() == 1.0).all()
    roundings = 8.0 * gamma * float((rows**2).mean(axis=1).max()) * float(np.finfo(dtype).eps)
    distances = ((rows[:, None] - rows) ** 2).mean(axis=-1)
    assert np.abs(K - np.exp(-gamma * distances)).max() < roundings
