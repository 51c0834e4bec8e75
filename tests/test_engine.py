"""Every engine against the float64 reference on generated networks, and the promises that hold for any kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnngp import Kernel, reference
from networks import images, networks_with_shapes, relu_like, smooth

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def error(K: np.ndarray, R: np.ndarray) -> float:
    return float(np.abs(K - R).max() / np.abs(R).max()) if np.abs(R).max() > 0 else float(np.abs(K).max())


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
@settings(max_examples=300)
def test_relu_like_networks_agree_with_the_reference(dtype, drawn, seed):
    check(*drawn, dtype, seed, TOLERANCE[dtype])


# Erf, Sin, Cos and GELU are not homogeneous: a half-ulp of a covariance K moves the exponent of Sin and Cos by K/2^24,
# and 1 − x² of Erf and GELU likewise, so the bound is the ReLU's times the largest variance they see (below 30 here).
SMOOTH_TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(drawn=networks_with_shapes(smooth), seed=st.integers(0, 10**6))
@settings(max_examples=200)
def test_smooth_networks_agree_with_the_reference(dtype, drawn, seed):
    check(*drawn, dtype, seed, SMOOTH_TOLERANCE[dtype])
