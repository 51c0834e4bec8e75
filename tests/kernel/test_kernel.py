"""What any engine promises of a kernel matrix, whatever the network: one body over devices and types.

K[i, j] depends on the two images alone, bit for bit; the matrix is exactly symmetric, its diagonal exact, its
eigenvalues those of a covariance.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import Conv, Dense, Elementwise, Kernel, ReLU, Sequential, zoo
from cnngp.network import reference
from helpers.examples import examples
from helpers.kernels import DTYPES, SMALL, each_device, error, random_images
from helpers.networks import STEP, images, networks_with_shapes, relu_like, smooth

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@each_device
@each_dtype
@given(
    drawn=networks_with_shapes(st.one_of(relu_like, smooth, st.just(STEP)), max_pixels=150),
    n=st.sampled_from([1, 2, 7, 8, 9, 17, 33]),
    seed=st.integers(0, 10**6),
)
@examples(40)
def test_entries_depend_on_their_two_images_alone(device, dtype, drawn, n, seed):
    net, shape = drawn
    X = images(shape, n, seed)
    kernel = Kernel(net, device=device, dtype=dtype)
    K = kernel(X)
    off = ~np.eye(n, dtype=bool)
    assert K.shape == (n, n)
    assert K.dtype == dtype
    assert np.isfinite(K).all()
    assert np.array_equal(K, K.T)  # exactly symmetric
    assert np.array_equal(kernel.diag(X), K.diagonal())
    assert np.array_equal(kernel(X, X)[off], K[off])  # whole and in two sets
    order = np.random.default_rng(seed).permutation(n)
    assert np.array_equal(kernel(X[order]), K[np.ix_(order, order)])  # shuffled
    some = order[: n // 2 + 1]
    assert np.array_equal(kernel(X[some]), K[np.ix_(some, some)])  # a smaller batch
    Z = images(shape, 3, seed + 1)
    assert np.array_equal(kernel(X, Z), kernel(Z, X).T)  # the order of arguments
    assert np.array_equal(kernel(X, Z)[some], kernel(X[some], Z))


@each_device
@each_dtype
@pytest.mark.parametrize("fn", ["tanh", "silu", "elu", "gaussian"])
def test_series_of_elementwise_functions_do_not_depend_on_the_batch(device, dtype, fn):
    """How many terms a series needs depends on the variance, but an entry must not depend on its neighbours'."""
    net = Sequential(Conv(3, weight_var=2.0), Elementwise(fn), Conv(3), Elementwise(fn), Dense())
    X = random_images(10) * np.geomspace(0.05, 1.5, 10, dtype=np.float32)[:, None, None, None]
    kernel = Kernel(net, device=device, dtype=dtype)
    K = kernel(X)
    for n in (2, 3, 5, 9):
        assert np.array_equal(kernel(X[:n]), K[:n, :n])
        assert np.array_equal(kernel(X[:n], X[n:]), K[:n, n:])
        assert np.array_equal(Kernel(net, device=device, dtype=dtype)(X[n:], X[:n]), K[n:, :n])


@each_device
@given(drawn=networks_with_shapes(relu_like, max_pixels=150), seed=st.integers(0, 10**6))
@examples(25)
def test_kernel_matrices_are_positive_semidefinite(device, drawn, seed):
    net, shape = drawn
    X = np.random.default_rng(seed).normal(size=(12, *shape))
    for dtype, slack in (("float32", 1e-6), ("float64", 1e-13)):
        eigenvalues = np.linalg.eigvalsh(Kernel(net, device=device, dtype=dtype)(X).astype(np.float64))
        assert eigenvalues.min() >= -slack * eigenvalues.max()


@each_device
@each_dtype
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65])
def test_any_number_of_images_agrees_with_the_reference(device, dtype, n):
    X = random_images(n)
    kernel = Kernel(SMALL, device=device, dtype=dtype)
    R = reference.kernel(SMALL, X)
    assert error(kernel(X), R) < TOLERANCE[dtype]
    for m in (1, 5, 8, 16, 18):
        assert error(kernel(X, X[:m]), reference.kernel(SMALL, X, X[:m])) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_no_entry_differs_between_batches_of_any_size(device, dtype):
    X, Z = random_images(70), random_images(37, seed=1)
    kernel = Kernel(SMALL, device=device, dtype=dtype)
    K, C = kernel(X), kernel(X, Z)
    for n in (1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 69):
        assert np.array_equal(kernel(X[:n]), K[:n, :n])
        assert np.array_equal(kernel(X[-n:]), K[-n:, -n:])
        assert np.array_equal(kernel(X[:n], Z), C[:n])
        assert np.array_equal(kernel(X, Z[:n]), C[:, :n])
    for i, j in ((0, 69), (35, 3), (16, 17)):
        assert kernel(X[i : i + 1], X[j : j + 1])[0, 0] == K[i, j]


@each_dtype
def test_threads_change_no_bit(dtype):
    X, Z = random_images(50), random_images(21, seed=1)
    one, *others = (Kernel(SMALL, device="cpu", dtype=dtype, threads=t) for t in (1, 2, 3))
    for kernel in others:
        assert np.array_equal(one(X), kernel(X))
        assert np.array_equal(one(X, Z), kernel(X, Z))
        assert np.array_equal(one.diag(X), kernel.diag(X))


@each_dtype
@pytest.mark.parametrize("strip", [1, 2, 7, 8, 16, 33])
def test_strips_of_rows_change_no_bit(dtype, strip, monkeypatch):
    for n in (strip - 1, strip, strip + 1, 2 * strip, 2 * strip + 1, 40):
        if n == 0:
            continue
        X, Z = random_images(n), random_images(19, seed=1)
        kernel = Kernel(SMALL, device="cpu", dtype=dtype, threads=2)
        K, C = kernel(X), kernel(X, Z)
        monkeypatch.setattr(kernel.engine_for((2, 7, 6)).runner(None), "strip", strip)
        assert np.array_equal(kernel(X), K)
        assert np.array_equal(kernel(X, Z), C)


@each_dtype
def test_concurrent_calls_do_not_disturb_each_other(dtype):
    from concurrent.futures import ThreadPoolExecutor

    kernel = Kernel(SMALL, device="cpu", dtype=dtype, threads=2)
    batches = [random_images(n, seed=n) for n in (5, 9, 17, 20, 24, 33)]
    alone = [kernel(X) for X in batches]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(kernel, batches))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


@each_device
@each_dtype
def test_duplicate_images_correlate_fully(device, dtype):
    X = random_images(5)
    K = Kernel(SMALL, device=device, dtype=dtype)(np.concatenate([X, X]))
    assert np.array_equal(K[:5, :5], K[5:, 5:])
    # The pair formula at correlation one, against the exact variance recursion.
    np.testing.assert_allclose(np.diagonal(K[:5, 5:]), np.diagonal(K[:5, :5]), rtol=TOLERANCE[dtype])


@each_device
@each_dtype
@pytest.mark.parametrize("name", ["resnet", "convnet", "residual_cnn"])
def test_the_papers_networks_on_mnist(device, dtype, name, mnist_images):
    net = getattr(zoo, name)()
    X, Z = mnist_images[:5], mnist_images[5:16]
    kernel = Kernel(net, device=device, dtype=dtype)
    # The images are k/255 and are rounded to float32 first: the reference sees what the engine sees.
    x, z = (a.astype(dtype).astype(np.float64) for a in (X, Z))
    assert error(kernel(X), reference.kernel(net, x)) < TOLERANCE[dtype]
    assert error(kernel(X, Z), reference.kernel(net, x, z)) < TOLERANCE[dtype]


def two(first, second):
    return Sequential(first, ReLU(), second, ReLU(), Dense())


FEATURES = zoo.dense_nngp(2)
SHAPES = {
    "photographs": (
        Sequential(Conv(7, stride=4, weight_var=2.0), ReLU(), Conv(3, stride=2), ReLU(), Dense()),
        (3, 224, 224),
    ),
    "whole photographs": (Sequential(Conv(3), ReLU(), Dense()), (3, 224, 224)),
    "volumes": (
        Sequential(Conv((3, 3, 2)), ReLU(), Conv(3, (2, 1, 2), padding_mode="circular"), ReLU(), Dense()),
        (2, 6, 7, 8),
    ),
    "signals": (
        Sequential(Conv(9, stride=3), ReLU(), Conv(16, dilation=2, padding="valid"), ReLU(), Dense()),
        (1, 400),
    ),
    "thousands of features": (zoo.dense_nngp(3), (3072,)),
    "features": (FEATURES, (20,)),
    "features as one location": (FEATURES, (20, 1, 1)),
    "features as an image": (FEATURES, (1, 4, 5)),
}


@each_device
@each_dtype
@pytest.mark.parametrize("name", SHAPES)
def test_images_of_every_kind(device, dtype, name):
    net, shape = SHAPES[name]
    X = random_images(4, shape)
    assert error(Kernel(net, device=device, dtype=dtype)(X), reference.kernel(net, X)) < TOLERANCE[dtype]
