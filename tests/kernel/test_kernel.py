"""What any engine promises of a kernel matrix, whatever the network: one body over devices, types and both kernels.

K[i, j] depends on the two images alone, bit for bit; the matrix is exactly symmetric, its diagonal exact, its
eigenvalues those of a covariance.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    GELU,
    AvgPool,
    Conv,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    Identity,
    Kernel,
    LeakyReLU,
    ReLU,
    Sequential,
    Sum,
    gram,
)
from cnngp.network import reference
from helpers.examples import examples
from helpers.kernels import DTYPES, SMALL, each_device, random_images
from helpers.networks import STEP, images, networks_with_shapes, relu_like, smooth
from helpers.pooled import pooled_networks

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_kind = pytest.mark.parametrize("kind", ["nngp", "ntk"])


def entries_depend_on_their_images_alone(net, X, Z, **settings):
    """Whatever the batch, its order, threads, tiles and, without pools, the order of the arguments."""
    n, kernel = len(X), Kernel(net, threads=2, check=False, **settings)
    K, across = kernel(X), kernel(X, Z)
    off = ~np.eye(n, dtype=bool)
    assert K.shape == (n, n)
    assert K.dtype == settings["dtype"]
    assert np.isfinite(K).all()
    assert np.array_equal(K, K.T)  # exactly symmetric
    assert np.array_equal(kernel.diag(X), K.diagonal())
    order = np.random.default_rng(n).permutation(n)
    some = np.sort(order[: n // 2 + 1])
    alone = Kernel(net, threads=1, check=False, **settings)
    assert np.array_equal(alone(X[some]), K[np.ix_(some, some)])  # a smaller batch
    assert np.array_equal(alone(X[some], Z), across[some])
    assert np.array_equal(gram(alone, X, tile=8, progress=False), K)
    if not reference.has_pools(net):
        assert np.array_equal(kernel(X, X)[off], K[off])  # whole and in two sets
        assert np.array_equal(kernel(X[order]), K[np.ix_(order, order)])
        assert np.array_equal(across, kernel(Z, X).T)
    if settings["kind"] == "ntk":  # both kernels of one pass have the bits of each alone
        plain = Kernel(net, check=False, **settings | {"kind": "nngp"})
        for pair, theta in (((X, None), K), ((X, Z), across)):
            both = kernel.both(*pair)
            assert np.array_equal(both[0], plain(*pair))
            assert np.array_equal(both[1], theta)


SAME = AvgPool(3, stride=1, padding=1)
R, C, D = ReLU(), Conv(3), Dense()
FIXED = {
    "small": (SMALL, (2, 7, 6)),
    "windows": (Sequential(Conv(5), R, Conv(3, stride=2), LeakyReLU(0.1), D), (2, 9, 6)),
    "pooled": (Sequential(C, R, AvgPool(2), C, R, GlobalAvgPool(), D), (1, 6, 6)),
    # How many terms a series needs depends on the variance, but an entry must not depend on its neighbours'.
    "series": (Sequential(Conv(3, weight_var=2.0), Elementwise("tanh"), C, GELU(), D), (1, 5, 5)),
    "series with a kink": (Sequential(Conv(3, weight_var=2.0), Elementwise("elu"), D), (1, 5, 5)),
    "linear branch": (Sequential(C, Sum(Conv(2, bias_var=0.3), Sequential(R, C)), R, D), (2, 4, 12)),
    "window in a branch": (Sequential(Conv(2), Sum(Identity(), Sequential(Erf(), Conv((4, 2)))), R, D), (1, 5, 6)),
    "pool beside a layer": (Sequential(C, Sum(Conv(1), Sequential(C, R, SAME, C), SAME), R, D), (1, 9)),
}


@each_device
@each_dtype
@each_kind
@pytest.mark.parametrize("name", FIXED)
def test_entries_depend_on_their_two_images_alone(device, dtype, kind, name):
    net, shape = FIXED[name]
    scales = np.geomspace(0.05, 1.5, 41, dtype=np.float32).reshape(41, *[1] * len(shape))
    X, Z = random_images(41, shape) * scales, random_images(19, shape, seed=1)
    for n in (1, 7, 17, 41):
        entries_depend_on_their_images_alone(net, X[-n:], Z, device=device, dtype=dtype, kind=kind)


any_network = st.one_of(
    networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=150),
    pooled_networks(st.one_of(relu_like, smooth), max_elements=800),
)


@each_device
@each_dtype
@each_kind
@given(drawn=any_network, n=st.sampled_from([2, 8, 9, 33]), seed=st.integers(0, 10**6))
@examples(40)
def test_so_do_those_of_any_network(device, dtype, kind, drawn, n, seed):
    X, Z = images(drawn[1], n, seed), images(drawn[1], 3, seed + 1)
    entries_depend_on_their_images_alone(drawn[0], X, Z, device=device, dtype=dtype, kind=kind)


@given(drawn=networks_with_shapes(st.just(STEP), max_pixels=150), seed=st.integers(0, 10**6))
@examples(20)
def test_so_do_those_of_steps(drawn, seed):
    X, Z = images(drawn[1], 9, seed), images(drawn[1], 3, seed + 1)
    entries_depend_on_their_images_alone(drawn[0], X, Z, device="cpu", dtype="float32", kind="nngp")


@each_device
@given(drawn=networks_with_shapes(relu_like, max_pixels=150), seed=st.integers(0, 10**6))
@examples(25)
def test_kernel_matrices_are_positive_semidefinite(device, drawn, seed):
    net, shape = drawn
    X = np.random.default_rng(seed).normal(size=(12, *shape))
    for dtype, slack in (("float32", 1e-6), ("float64", 1e-13)):
        eigenvalues = np.linalg.eigvalsh(Kernel(net, device=device, dtype=dtype)(X).astype(np.float64))
        assert eigenvalues.min() >= -slack * eigenvalues.max()


@each_dtype
@pytest.mark.parametrize("strip", [1, 7, 8, 33])
def test_strips_of_rows_change_no_bit(dtype, strip, monkeypatch):
    Z, kernel = random_images(19, seed=1), Kernel(SMALL, device="cpu", dtype=dtype, threads=3)
    for n in (strip, strip + 1, 2 * strip, 40):
        X = random_images(n)
        K, across = kernel(X), kernel(X, Z)
        with monkeypatch.context() as patch:
            patch.setattr(kernel.engine_for((2, 7, 6)).runner(None), "strip", strip)
            assert np.array_equal(kernel(X), K)
            assert np.array_equal(kernel(X, Z), across)


@each_dtype
def test_concurrent_calls_do_not_disturb_each_other(dtype):
    kernel = Kernel(SMALL, device="cpu", dtype=dtype, threads=2)
    batches = [random_images(n, seed=n) for n in (5, 9, 17, 20, 24, 33)]
    alone = [kernel(X) for X in batches]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(kernel, batches))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
