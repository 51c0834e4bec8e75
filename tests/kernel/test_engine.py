"""Every engine against the float64 reference on generated networks, and the promises that hold for any kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    Conv,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    Kernel,
    Rbf,
    ReLU,
    Sequential,
    Sign,
    Sin,
    Step,
    Sum,
)
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.formulas import formula
from cnngp.network import reference
from helpers.examples import examples
from helpers.kernels import error
from helpers.networks import images, networks_with_shapes, relu_like, smooth
from helpers.nonlinearities import ONE_OF_EACH

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def check(net, shape, dtype, seed, tolerance):
    X, Z = images(shape, 5, seed), images(shape, 19, seed + 1)
    kernel = Kernel(net, device="cpu", dtype=dtype)
    assert error(kernel(X, Z), reference.kernel(net, X, Z)) <= tolerance
    K = kernel(X)
    assert error(K, reference.kernel(net, X)) <= tolerance
    assert (K == K.T).all()
    assert (kernel.diag(X) == K.diagonal()).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(drawn=networks_with_shapes(relu_like), seed=st.integers(0, 10**6))
@examples(300)
def test_relu_like_networks_agree_with_the_reference(dtype, drawn, seed):
    check(*drawn, dtype, seed, TOLERANCE[dtype])


# Every height and width that has a compiled function of its own, and one beyond them.
@pytest.mark.parametrize("window", [(2, 2), (3, 5), (4, 4), (5, 9), (6, 3), (7, 7), (8, 6), (9, 8), (11, 11)], ids=str)
@pytest.mark.parametrize("padding", ["same", "valid", (1, 3)], ids=str)
def test_windows_of_every_size(window, padding):
    """Behind a ReLU, behind another nonlinearity, behind none; written, added to a skip; odd and even sizes."""
    tail = [ReLU(), Conv(window, bias_var=0.1), Erf(), Conv(window, padding=padding, weight_var=1.5), ReLU(), Dense()]
    block = Sum(Identity(), Sequential(ReLU(), Conv(window, bias_var=0.2)))
    for shape in ((1, 25, 26), (2, 24, 23)):
        check(Sequential(Conv(window, padding=padding), block, *tail), shape, "float32", 3, TOLERANCE["float32"])


# Erf, Sin, Cos, Rbf and GELU are not homogeneous: a half-ulp of a covariance K moves the exponent of Sin and Cos by
# K/2^24, that of Rbf by 2γK/2^24, and 1 − x² of Erf and GELU likewise, so the bound is the ReLU's times the largest
# variance they see (below 30 here).
SMOOTH_TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(drawn=networks_with_shapes(smooth), seed=st.integers(0, 10**6))
@examples(200)
def test_smooth_networks_agree_with_the_reference(dtype, drawn, seed):
    check(*drawn, dtype, seed, SMOOTH_TOLERANCE[dtype])


# Step has a square-root slope at correlation one: a rounding of 2^-24 moves θ by √(2·2^-24) = 3.5e-4 and V by 5.5e-5 of
# ½. A second Step takes the root of that again: √(2·1.1e-4)/2π = 2.4e-3. In float64 2^-53 gives 2.4e-9 and 1.5e-5. Sign
# moves by (2/π)θ of 1, twice as much, and the second time √2 · 4 times Step's V.
@pytest.mark.parametrize(
    ("act", "dtype", "steps", "tolerance"),
    [
        *((Step(), "float32", 1, 1.2e-4), (Step(), "float32", 2, 5e-3)),
        *((Step(), "float64", 1, 5e-9), (Step(), "float64", 2, 3e-5)),
        *((Sign(), "float32", 1, 2.4e-4), (Sign(), "float32", 2, 1.4e-2)),
        *((Sign(), "float64", 1, 1e-8), (Sign(), "float64", 2, 9e-5)),
    ],
)
@given(seed=st.integers(0, 10**6))
@examples(30)
def test_step_networks_agree_with_the_reference(act, dtype, steps, tolerance, seed):
    blocks = [layer for _ in range(steps) for layer in (Conv(3, bias_var=0.1), act)]
    check(Sequential(*blocks, Dense()), (2, 5, 4), dtype, seed, tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", ["tanh", "silu", "softplus", "sigmoid", "gelu_tanh"])
def test_elementwise_networks_agree_with_the_reference(dtype, fn):
    net = Sequential(
        Conv(3, weight_var=2.0),
        Elementwise(fn),
        Conv(2, stride=2, bias_var=0.1),
        Sum(Identity(), Sequential(Elementwise(fn), Conv(3))),
        Elementwise(fn),
        Dense(),
    )
    check(net, (1, 5, 4), dtype, 0, {"float32": 1e-6, "float64": 1e-12}[dtype])


EVERY = [layer for layer in ONE_OF_EACH if not isinstance(layer, Elementwise)]


@pytest.mark.parametrize("act", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("power", [-50, -45, -30, -10, 10, 30, 45, 50])
def test_any_scale_gives_the_kernel_or_one_clear_refusal(act, dtype, power):
    """Variances from 1e-50 to 1e50 inside, brought back to order one at the end: right, or refused, and never NaN."""
    X = np.random.default_rng(0).normal(size=(3, 1, 4, 4)).astype(np.float32)
    inside = Sequential(Conv(3, weight_var=10.0**power), act, Dense())
    scale = float(reference.diagonal(inside, X).max())
    net = Sequential(Conv(3, weight_var=10.0**power), act, Dense(weight_var=1.0 / scale))
    row = formula(act)
    homogeneous = row.homogeneous or row.any_scale  # no scale is out of reach
    homogeneous |= isinstance(act, Rbf) and power < 0  # V is 1
    single = dtype == "float32"
    lost = isinstance(act, (Sin, Cos, Rbf)) and power >= (10 if single else 30)  # no digit of e^(K − m) is left
    if not homogeneous and (lost or (single and abs(power) >= 30)):
        with pytest.raises(RangeError, match=f"which {dtype} cannot carry"):
            Kernel(net, device="cpu", dtype=dtype)(X)
        return
    K = Kernel(net, device="cpu", dtype=dtype)(X)
    assert np.isfinite(K).all()
    assert (np.abs(K) <= 1.00001 * np.sqrt(np.outer(K.diagonal(), K.diagonal()))).all()
    assert K.diagonal() == pytest.approx(reference.diagonal(net, X), rel=1e-5)


def test_pixels_too_large_to_square_are_refused():
    with pytest.raises(RangeError, match=r"X\[0\] has pixels of 1e\+20, too large to multiply in float32"):
        Kernel(Dense(1e-10), device="cpu")(np.full((2, 4), 1e20))
    with pytest.raises(RangeError, match=r"X\[0\] has pixels of 1e\+200, too large to multiply in float64"):
        Kernel(Dense(1e-10), device="cpu", dtype="float64")(np.full((2, 4), 1e200))  # and no warning beside it
