"""Kernels of kind "ntk": the engine against the float64 reference, its bits, and what a user may ask of it."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    GELU,
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    Identity,
    Kernel,
    LayerNorm,
    LeakyReLU,
    NetworkError,
    RangeError,
    ReLU,
    Sequential,
    Step,
    Sum,
    zoo,
)
from cnngp.kernel.check import compare, documented_bound
from cnngp.network import reference
from helpers.examples import examples
from helpers.gaussian_expectation import expectation
from helpers.networks import images, networks_with_shapes, relu_like, smooth
from helpers.nonlinearities import DIFFERENTIABLE
from helpers.pooled import pooled_networks
from helpers.rounding import moved_by_rounding

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
# `compare` moves the reference by one unit in the last place of K after every layer. An engine rounds K, two entries of
# tables and their product besides: four of them, and what is a square root of them is twice as much.
ROUNDINGS = 4.0
# Over 600 drawn networks no entry was further off than 0.9 of what `moved_by_rounding` and the documented bound allow.
MARGIN = 2.0


def assert_close(net, X, dtype):
    """Both kernels against the reference, each entry by what rounding does to that entry: of one set of images, and of
    two that are the same, where every image meets itself at correlation one.
    """
    kernel = Kernel(net, device="cpu", dtype=dtype, check=False)
    own, across = kernel.both(X), kernel.both(X, X)
    for found, other, kind in zip(own, across, ("nngp", "ntk"), strict=True):
        R = reference.kernel(net, X, X, kind)
        most = documented_bound(net, np.dtype(dtype), kind) * np.abs(R).max()
        moved = moved_by_rounding(net, X, X, dtype, kind)
        assert (np.abs(other - R) <= MARGIN * (most + moved)).all(), kind
        # The diagonal has a recursion of its own, in float64.
        np.fill_diagonal(moved, moved_by_rounding(net, X, X, "float64", kind).diagonal())
        assert (np.abs(found - reference.kernel(net, X, kind=kind)) <= MARGIN * (most + moved)).all(), kind


def assert_close_at_once(net, X, dtype):
    """The same by the largest entry alone, where the reference takes a quadrature for each number."""
    kernel = Kernel(net, device="cpu", dtype=dtype, check=False)
    own, across = kernel.both(X), kernel.both(X, X)
    plain = reference.kernel(net, X, X), reference.kernel(net, X, X, kind="ntk")
    for found, other, R, kind in zip(own, across, plain, ("nngp", "ntk"), strict=True):
        result = compare(net, X, found, np.dtype(dtype), kind)
        assert result is not None
        bound = result.bound if kind == "nngp" else max(result.bound, at_correlation_one(net, dtype))
        assert result.error <= ROUNDINGS * result.bound, kind
        assert np.abs(other - R).max() <= ROUNDINGS * bound * np.abs(R).max(), kind


def at_correlation_one(net, dtype):
    """The bound of docs/ntk.md: each ReLU may lose √(2δ)/π of the slope, δ a few roundings of the correlation."""
    return repr(net).count("(") * math.sqrt(2.0 * 4.0 * np.finfo(dtype).eps) / math.pi


@given(drawn=networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=120), seed=st.integers(0, 10**6))
@examples(25)
@DTYPES
def test_generated_networks(dtype, drawn, seed):
    assert_close(drawn[0], images(drawn[1], 5, seed), dtype)


@given(drawn=pooled_networks(st.one_of(relu_like, smooth), max_elements=800), seed=st.integers(0, 10**6))
@examples(15)
@DTYPES
def test_generated_networks_with_pools(dtype, drawn, seed):
    assert_close(drawn[0], images(drawn[1], 4, seed), dtype)


EVERY = [*DIFFERENTIABLE, LeakyReLU(-0.5), LayerNorm(eps=0.1), Elementwise("softplus")]


@DTYPES
@pytest.mark.parametrize("act", EVERY, ids=repr)
def test_every_nonlinearity_in_every_kind_of_operation(act, dtype):
    """Alone, before a window, a strided box and a dense layer, and under a pool."""
    conv = Conv(3, weight_var=1.5, bias_var=0.2)
    net = Sequential(conv, Sum(Identity(), Sequential(act, Conv(3))), act, Conv(2, stride=2), act, Dense())
    slow = isinstance(act, Elementwise)
    size, close = (2, assert_close_at_once) if slow else (4, assert_close)
    close(net, images((2, size + 1, size), 3 if slow else 5, 1), dtype)
    close(
        Sequential(conv, act, AvgPool(2), Conv(3), act, GlobalAvgPool(), Dense()), images((1, size, size), 3, 2), dtype
    )


@DTYPES
@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (zoo.resnet(8), (1, 9, 8)),
        (Sequential(Conv(3), ReLU(), Conv(4, dilation=2), ReLU(), Dense()), (2, 17)),
        (Sequential(Conv(2), ReLU(), Conv(3, bias_var=0.1), ReLU(), GlobalAvgPool(), Dense()), (1, 4, 3, 4)),
        (Sequential(Conv(3), GELU(), ConvTranspose(3, stride=2), ReLU(), Dense()), (1, 5, 4)),
        (Sequential(Conv(3, bias_var=0.1), Conv(3, bias_var=0.2), ReLU(), Dense(), Dense(1.0, 0.3)), (1, 5, 5)),
        (Sequential(Conv(7), ReLU(), Conv(5), ReLU(), Conv((3, 5)), ReLU(), Conv(9), Dense()), (1, 12, 11)),
        (Sequential(Dense(2.0, 0.1), ReLU(), Dense(), Erf(), Dense()), (6,)),
        (Dense(), (3,)),
    ],
    ids=["resnet", "1-D", "3-D", "transposed", "linear", "windows", "dense", "one layer"],
)
def test_networks_of_all_shapes(net, shape, dtype):
    assert_close(net, images(shape, 5, 3), dtype)


def test_what_float32_loses_near_correlation_one_is_what_its_rounding_forces():
    """Pairs from far apart to equal: the error stays below √(2δ)/π for each ReLU, with δ a few units in the last place,
    and away from correlation one below what all kernels have.
    """
    rng = np.random.default_rng(0)
    x = rng.random((1, 1, 8, 8))
    Z = np.concatenate([x + 2.0**-k * rng.normal(size=x.shape) for k in range(40)]).astype(np.float32)
    x = x.astype(np.float32)
    net = Sequential(*[Conv(3), ReLU()] * 4, Dense())
    found = Kernel(net, device="cpu").both(x, Z)[1][0]
    R = reference.kernel(net, x, Z, kind="ntk")[0]
    correlation = reference.kernel(net, x, Z)[0] / np.sqrt(
        reference.kernel(net, x)[0, 0] * reference.kernel(net, Z).diagonal()
    )
    error = np.abs(found - R) / R
    eps = np.finfo(np.float32).eps
    assert (error <= 4 * math.sqrt(2.0 * 4.0 * eps) / math.pi).all()
    # Where 1 − ρ = Δ is large beside rounding, √ has the slope 1/√(2Δ): δ/(π√(2Δ)) for each ReLU.
    away = 1.0 - correlation > 1e-3
    assert away.sum() >= 4
    assert (error[away] <= 1e-6 + 4 * 4 * eps / (math.pi * np.sqrt(2.0 * (1.0 - correlation[away])))).all()
    assert error[-1] > 1e-6  # the loss is real


# ---- asking --------------------------------------------------------------------------------------------------------

NET = Sequential(Conv(3), ReLU(), Dense())


def test_a_step_is_refused_when_the_kernel_is_made_and_named():
    with pytest.raises(NetworkError, match=r"layers\[3\]: Step\(\) has no tangent kernel: its slope is zero almost"):
        Kernel(Sequential(Conv(3), ReLU(), Conv(3), Step(), Dense()), kind="ntk")
    with pytest.raises(NetworkError, match=r"Step\(\) has no tangent kernel"):
        Kernel(Sequential(Conv(3), Step(), Dense()), device="cpu").both(np.ones((1, 1, 4, 4)))


def test_the_kind_goes_where_the_kernel_goes():
    kernel = Kernel(NET, device="cpu", kind="ntk")
    assert "kind='ntk'" in repr(kernel)
    X = images((1, 4, 4), 3, 0)
    T = kernel(X)
    assert np.array_equal(pickle.loads(pickle.dumps(kernel))(X), T)
    rows = kernel.as_sklearn((1, 4, 4))
    assert np.array_equal(rows(X.reshape(3, -1)), T.astype(np.float64))
    assert "ntk of" in repr(rows)
    assert not np.allclose(T, Kernel(NET, device="cpu")(X))


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


def test_a_tangent_kernel_that_does_not_fit_is_refused():
    """K is 1e38 and fits float32; Θ is six times that."""
    net, X = Sequential(Dense(1e8), *[Dense()] * 5), np.full((2, 1), 1e15)
    assert Kernel(net, device="cpu").diag(X)[0] == pytest.approx(1e38)
    with pytest.raises(RangeError, match=r"Θ\(x, x\) of image 0 is 6e\+38, which does not fit float32"):
        Kernel(net, device="cpu", kind="ntk")(X)
