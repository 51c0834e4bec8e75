"""Devices, types and images that the tests of `Kernel` run over."""

import numpy as np
import pytest

from cnngp import Conv, Dense, Identity, ReLU, Sequential, Sum

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = ["float32", "float64"]
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
SMALL = Sequential(
    Conv(3, bias_var=0.1),
    ReLU(),
    Conv(4, stride=2),
    Sum(Identity(), Sequential(ReLU(), Conv(3))),
    ReLU(2.0**0.5),
    Dense(),
)
each_device = pytest.mark.parametrize("device", DEVICES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def random_images(n, shape=(2, 7, 6), seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)


def error(K, R):
    """max|K − R|/max|R|; where R is zero, max|K|."""
    assert np.isfinite(K).all()
    return float(np.abs(K - R).max() / (np.abs(R).max() or 1.0))
