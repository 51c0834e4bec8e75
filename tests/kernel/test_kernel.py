"""What any engine promises of a kernel matrix, whatever the network: one body over devices, types and both kernels.

K[i, j] depends on the two images alone, bit for bit; the matrix is exactly symmetric, its diagonal exact, its
eigenvalues those of a covariance.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Identity, Kernel, RangeError, Sequential, Sum, gram
from cnngp.network import reference
from cnngp.network.layers import GELU, Elementwise, Erf, LeakyReLU, NetworkError, ReLU, Step
from helpers.examples import examples
from helpers.gaussian_expectation import expectation
from helpers.kernels import SMALL, TOLERANCE, each_device, each_dtype, error, random_images
from helpers.networks import STEP, images, networks_with_shapes, relu_like, smooth
from helpers.pooled import either

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
            assert np.array_equal(both[1], theta)
            if settings["device"] == "cpu":
                assert np.array_equal(both[0], plain(*pair))
            else:  # another form of the pair kernel, which adds in another order (docs/ntk.md)
                np.testing.assert_allclose(
                    both[0], plain(*pair), rtol=0, atol=8 * np.finfo(K.dtype).eps * both[0].max()
                )


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
    for n in (1, 2, 8, 17, 33, 41):
        entries_depend_on_their_images_alone(net, X[-n:], Z, device=device, dtype=dtype, kind=kind)
    if kind == "nngp" and "kink" not in name:  # there the reference has a quadrature of eight digits
        found = Kernel(net, device=device, dtype=dtype)(X, Z)[-3:, -3:]
        assert error(found, reference.kernel(net, X[-3:], Z[-3:])) <= TOLERANCE[dtype]


any_network = either(st.one_of(relu_like, smooth), max_pixels=150, max_elements=800)


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


# ---- the tangent kernel ---------------------------------------------------------------------------------------------


def selu_slope(x):
    return 1.0507009873554805 * np.where(x > 0.0, 1.0, 1.6732632423543772 * np.exp(np.minimum(x, 0.0)))


def test_a_function_with_a_kink_has_the_slope_of_its_series():
    """Θ − K of one hidden layer is E[φ'(u) φ'(v)] · ρ. The slope of selu jumps, so its series falls like n^−1.5: what
    lies behind the last of 2^18 terms is 2e-4 at correlation one; elsewhere it is nothing.
    """
    kernel = Kernel(Sequential(Dense(), Elementwise("selu"), Dense()), device="cpu", check=False)
    for rho, bound in ((1.0, 5e-4), (0.9, 2e-6), (0.0, 2e-6), (-0.7, 2e-6)):
        X = np.array([[1.0, 0.0], [rho, math.sqrt(1.0 - rho * rho)]]) * math.sqrt(2.0)
        K, T = kernel.both(X[:1], X[1:])
        expected = rho * expectation(selu_slope, 1.0, 1.0, rho)
        assert abs(float(T[0, 0]) - float(K[0, 0]) - expected) <= bound


def test_a_step_is_refused_when_the_kernel_is_made_and_named():
    net = Sequential(Conv(3), ReLU(), Conv(3), Step(), Dense())
    for use in (lambda: Kernel(net, kind="ntk"), lambda: Kernel(net, device="cpu").both(np.ones((1, 1, 4, 4)))):
        with pytest.raises(
            NetworkError, match=r"layers\[3\]: Step\(\) has no tangent kernel: its slope is zero almost"
        ):
            use()


def test_a_tangent_kernel_that_does_not_fit_is_refused():
    """K is 1e38 and fits float32; Θ is six times that."""
    net, X = Sequential(Dense(1e8), *[Dense()] * 5), np.full((2, 1), 1e15)
    assert Kernel(net, device="cpu").diag(X)[0] == pytest.approx(1e38)
    with pytest.raises(RangeError, match=r"Θ\(x, x\) of image 0 is 6e\+38, which does not fit float32"):
        Kernel(net, device="cpu", kind="ntk")(X)
