"""Images that are hard on rounding: nearly equal ones of large variance, and ones whose patches are multiples."""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import GELU, Abs, Conv, Cos, Dense, Kernel, LeakyReLU, Rbf, ReLU, Sequential, Sin, Step
from cnngp.kernel.check import compare
from cnngp.kernel.program import Kind
from cnngp.network import Network, reference


@pytest.mark.parametrize("act", [Sin(), Cos(), Rbf(0.5)], ids=repr)
def test_no_covariance_is_larger_than_the_variances(act: Network) -> None:
    """Of variances near 10^5 float32 keeps 2⁻⁸, so K is above √(K₁K₂) as often as below; no exponent is above 0."""
    X = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32) * 300
    kernel = Kernel(Sequential(Dense(), act, Dense()), device="cpu", check=False)
    assert np.abs(kernel(X, X)).max() <= kernel.diag(X).max() * (1 + 1e-6)
    theta = kernel.both(X, X)[1]
    assert np.abs(theta).max() <= kernel.both(X)[1].diagonal().max() * (1 + 1e-6)


@pytest.mark.parametrize("act", [ReLU(), LeakyReLU(-2.0), Abs(), Step()], ids=repr)
def test_a_kernel_is_not_called_wrong_where_the_reference_rounds_as_well(act: Network) -> None:
    """Two numbers have correlation one. There an angle is the root of a rounding, in float64 also that of the reference
    itself, and what a unit in the last place does is not all that rounding explains.
    """
    kind: Kind = "nngp" if isinstance(act, Step) else "ntk"  # a step's own kernel is that angle
    net = Sequential(Conv(1, weight_var=2.345), act, Dense(weight_var=0.481))
    kernel = Kernel(net, device="cpu", dtype="float64", kind=kind, check=False)
    for seed in range(200):
        x = np.random.default_rng(seed).normal(size=(1, 1, 1)).astype(np.float32)
        X = np.concatenate([x, x])
        found = compare(net, X, kernel(X), np.dtype("float64"), kind)
        assert found is not None
        assert found.error <= 4 * found.bound


@pytest.mark.parametrize("size", [30.0, 1e3, 3e4, 1e6])
def test_gelu_is_as_exact_for_large_variances_as_a_relu(size: float) -> None:
    """Images on a scale of 0 to 255 have variances of 10⁴, and each meets itself at correlation one."""
    X = (np.random.default_rng(0).normal(size=(60, 7)) * size).astype(np.float32)
    net = Sequential(Dense(), GELU(), Dense())
    R = reference.kernel(net, X, X)
    found = Kernel(net, device="cpu", check=False)(X, X)
    assert (np.abs(found - R) <= 1e-6 * np.sqrt(np.outer(R.diagonal(), R.diagonal()))).all()
