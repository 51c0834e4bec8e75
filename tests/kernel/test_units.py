"""Units keep deep networks inside the range of float32, and images of any usual scale give the same kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    GELU,
    Conv,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    Kernel,
    LeakyReLU,
    NetworkError,
    RangeError,
    Rbf,
    ReLU,
    Sequential,
    Sum,
    zoo,
)
from cnngp.network import reference
from helpers.examples import examples
from helpers.kernels import error
from helpers.nonlinearities import ONE_OF_EACH


def search_space_network(depth, last=8.5):
    """The widest of the paper's search space: 6 × 6 filters, weight_var 8.5, the variance growing 306-fold a layer."""
    conv = Conv(6, weight_var=8.5, bias_var=7.0, fan_in="channels")
    return Sequential(*[layer for _ in range(depth) for layer in (conv, ReLU(math.sqrt(2.0)))], Dense(last))


def pixels(n=6, size=16, seed=0):
    X = np.random.default_rng(seed).random((n, 1, size, size))
    X[0, :, :8] = 0.0
    return X.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fifteen_layers_of_the_papers_search_space_reach_1e37_and_agree(dtype):
    net, X = search_space_network(15), pixels()
    R = reference.kernel(net, X)
    assert 1e36 < R.max() < 3e38
    K = Kernel(net, device="cpu", dtype=dtype)(X)
    assert error(K.astype(np.float64), R) < (1e-6 if dtype == "float32" else 1e-12)


def test_what_does_not_fit_float32_at_the_end_is_refused_and_float64_is_offered():
    net, X = search_space_network(17), pixels()
    for call in (lambda k: k(X), lambda k: k(X, X[:2]), lambda k: k.diag(X), lambda k: k(X[:1] * 1e-30, X)):
        with pytest.raises(RangeError, match=r"which does not fit float32; use dtype='float64', or rescale the images"):
            call(Kernel(net, device="cpu"))
    R = reference.kernel(net, X)
    assert R.max() > 3.4e38
    assert error(Kernel(net, device="cpu", dtype="float64")(X), R) < 1e-12


@pytest.mark.parametrize("last", [1e-30, 1e-40])
def test_what_is_large_only_inside_is_carried_in_float32(last):
    net, X = search_space_network(25, last=last), pixels()
    R = reference.kernel(net, X)
    assert R.max() / last > 1e58
    assert error(Kernel(net, device="cpu")(X).astype(np.float64), R) < 1e-6


@given(
    factors=st.lists(st.integers(-12, 12), min_size=4, max_size=12),
    skip=st.booleans(),
    bias=st.sampled_from([0.0, 1e-8, 1e8]),
)
@examples(40)
def test_any_course_of_powers_keeps_float32_exact(factors, skip, bias):
    """Weight variances of 10^−12 … 10^12 in any order; a last layer brings the result back to order one."""
    layers = []
    for f in factors:
        conv = Conv(3, weight_var=10.0**f, bias_var=bias)
        if not skip:
            layers += [conv, ReLU()]
        else:
            layers.append(Sum(Identity(), Sequential(ReLU(), conv)) if layers else conv)
    X = pixels(4, 6)
    net = Sequential(*layers, Dense())
    size = reference.kernel(net, X).max()
    net = Sequential(*layers, Dense(1.0 / size))
    R = reference.kernel(net, X)
    assert error(Kernel(net, device="cpu")(X).astype(np.float64), R) < 1e-6


def test_rescaling_by_powers_of_two_changes_no_bit():
    """The same network with weight variances split differently by powers of two: 2^20 · 2^−20 = 1."""
    X = pixels()
    plain = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())
    shifted = Sequential(Conv(3, weight_var=2.0**40), ReLU(), Conv(3, weight_var=2.0**-40), ReLU(), Dense())
    for dtype in ("float32", "float64"):
        K, S = (Kernel(net, device="cpu", dtype=dtype)(X) for net in (plain, shifted))
        assert np.array_equal(K, S)


@pytest.mark.parametrize(("weight_var", "pixel"), [(1.3, 1e-7), (1e-3, 1e12), (1e-3, 1e7)])
def test_a_unit_beyond_float32_is_no_hindrance_where_the_value_fits(weight_var, pixel):
    conv = Conv(6, weight_var=weight_var, fan_in="channels")
    net = Sequential(*[layer for _ in range(30) for layer in (conv, ReLU(math.sqrt(2.0)))], Dense())
    X = (pixels(4, 12) * pixel).astype(np.float32).astype(np.float64)
    R = reference.kernel(net, X)
    assert error(Kernel(net, device="cpu")(X).astype(np.float64), R) < 1e-6


@pytest.mark.parametrize(
    "layers",
    [
        [Conv(3, weight_var=1e200), ReLU(), Conv(3, weight_var=1e200), ReLU()],
        [Conv(3, weight_var=1e-200), ReLU(), Conv(3, weight_var=1e-200), ReLU(), Conv(3, weight_var=1e300), ReLU()],
        [Conv(1, weight_var=1e-200), ReLU(), Conv(1, weight_var=1e-200), ReLU(), Conv(1, weight_var=1e300), ReLU()],
        [Conv(3), ReLU(1e200)],
        [Conv(3), LeakyReLU(1e154), Conv(3), LeakyReLU(1e10)],
        [Conv(3, weight_var=1e8), ReLU()] * 60,
    ],
    ids=lambda layers: repr(layers[:6]),
)
def test_variances_beyond_float64_are_refused(layers):
    with pytest.raises((NetworkError, RangeError), match=r"beyond float64|does not fit|cannot carry"):
        Kernel(Sequential(*layers, Dense()), device="cpu", dtype="float64")(pixels())


# ---- scales of the images ------------------------------------------------------------------------------------------

NETS = {
    "resnet": zoo.resnet(8),
    "with bias": Sequential(Conv(3, bias_var=0.5), ReLU(), Conv(3, stride=2), LeakyReLU(0.1), Dense(1.0, 0.1)),
    "smooth": Sequential(Conv(3), Erf(), Conv(3, bias_var=0.1), GELU(), Dense()),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-3, 255.0, 65535.0])
def test_images_of_any_usual_scale_agree_with_the_reference(name, dtype, scale):
    X = (pixels(5, 8) * scale).astype(np.float32).astype(np.float64)
    R = reference.kernel(NETS[name], X)
    K = Kernel(NETS[name], device="cpu", dtype=dtype)(X)
    # Erf at variance v: a half-ulp of K moves it by √v half-ulps.
    loose = 30.0 if name == "smooth" and scale > 1.0 else 1.0
    assert error(K.astype(np.float64), R) < loose * (1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_images_of_different_scales_go_together(dtype):
    X = pixels(6, 8)
    X *= np.array([1.0, 1e-9, 255.0, 1e-5, 0.0, 1.0])[:, None, None, None]
    X = X.astype(np.float32).astype(np.float64)
    R = reference.kernel(zoo.resnet(8), X)
    K = Kernel(zoo.resnet(8), device="cpu", dtype=dtype)(X).astype(np.float64)
    d = np.sqrt(R.diagonal())
    scale = np.outer(d, d)
    assert (np.abs(K - R) <= (2e-6 if dtype == "float32" else 2e-12) * scale).all()  # each entry on its own scale
    assert not K[4].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_pixels_whose_squares_leave_the_working_precision_are_refused_or_right(dtype, scale):
    X = (pixels(3, 8) * scale).astype(np.float32).astype(np.float64)
    kernel = Kernel(zoo.resnet(8), device="cpu", dtype=dtype)
    if dtype == "float64":
        assert error(kernel(X), reference.kernel(zoo.resnet(8), X)) < 1e-12
        return
    with pytest.raises(RangeError, match=r"float32( cannot carry)?; use dtype='float64'"):
        kernel(X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "phi",
    [
        *ONE_OF_EACH,
        Elementwise("sigmoid"),
    ],
    ids=repr,
)
def test_blank_images_give_the_limit_and_never_nan(dtype, phi):
    """φ(0) = 0 gives 0, also for Step; cos(0) = 1, also of an Rbf, sigmoid(0) = ½."""
    net = Sequential(Conv(3), phi, Dense())
    X = np.zeros((5, 1, 6, 6))
    X[4] = pixels(1, 6)[0]
    kernel = Kernel(net, device="cpu", dtype=dtype)
    K = kernel(X)
    assert np.isfinite(K).all()
    constant = {Cos(): 1.0, Rbf(0.4): 1.0, Elementwise("sigmoid"): 0.25}.get(phi, 0.0)
    np.testing.assert_allclose(K[:4, :4], np.full((4, 4), constant), rtol=1e-6, atol=0.0)
    np.testing.assert_allclose(K, reference.kernel(net, X), rtol=2e-6, atol=1e-12)
    with_bias = Sequential(Conv(3), ReLU(), Dense(1.0, 0.25))
    assert (Kernel(with_bias, device="cpu", dtype=dtype)(X)[:4] == 0.25).all()
