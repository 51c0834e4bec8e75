"""Numbers at the ends of what a precision holds: right, or one error before any pair is computed. Never NaN, never zero
by underflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cnngp import (
    AvgPool,
    Conv,
    Dense,
    Elementwise,
    Identity,
    Kernel,
    LeakyReLU,
    ReLU,
    Sequential,
    Step,
    Sum,
    gram,
)
from cnngp.common.arrays import DataError
from cnngp.kernel.check import compare, documented_bound
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.program import lower
from cnngp.network import reference
from cnngp.network.layers import NetworkError
from helpers import adjoint

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
STEPS = Sequential(Conv(3), Step(), Dense())


def faint(exponent: float, seed: int = 0) -> Any:
    """Three images whose right half is darker than the left by a power of ten."""
    X = np.random.default_rng(seed).standard_normal((3, 1, 12, 12))
    X[:, :, :, 6:] *= 10.0**exponent
    return X


def blank_patches() -> Any:
    """Two copies of an image with blank patches, and another image."""
    X = np.zeros((3, 1, 8, 8))
    X[:2, :, 1:4, 2:5] = np.random.default_rng(0).random((1, 3, 3))
    X[2, :, 3:, 3:] = np.random.default_rng(1).random((1, 5, 5))
    return X


@DTYPES
def test_two_copies_of_one_image_have_one_variance_under_step(dtype: str) -> None:
    X = blank_patches()
    for net, steps in ((STEPS, 1), (Sequential(Conv(3), Step(), Conv(3), Step(), Dense()), 2)):
        K = Kernel(net, device="cpu", dtype=dtype)(X)
        R = reference.kernel(net, X)
        # At correlation one a Step has the slope of a square root: of an ulp it leaves the root, two the fourth root.
        loss, of_reference = (float(np.finfo(kind).eps) ** 0.5**steps for kind in (dtype, "float64"))
        assert R[0, 1] == pytest.approx(R[0, 0], rel=of_reference)
        assert K[0, 1] == pytest.approx(K[0, 0], rel=loss)
        np.testing.assert_allclose(K, R, rtol=loss)
    # 25 of the 64 patches see something of the image, each with V = ½ with itself.
    assert reference.kernel(STEPS, X)[0, 0] == pytest.approx(0.5 * 25 / 64)


@pytest.mark.parametrize("exponent", [-4, -8, -12])
def test_step_makes_as_much_of_faint_locations_as_of_bright_ones(exponent: float) -> None:
    X = faint(exponent)
    for net in (STEPS, Sequential(Conv(3), ReLU(), Conv(3), Step(), Dense())):
        K = Kernel(net, device="cpu")(X)
        np.testing.assert_allclose(K, reference.kernel(net, X), atol=2e-7)


def test_step_refuses_locations_too_faint_for_float32() -> None:
    X = faint(-20)
    told = (
        r"image 0 has locations whose variances at layers\[1\] \(Step\(\)\) are .* too small beside the others, for flo"
    )
    kernel = Kernel(STEPS, device="cpu")
    for call in (lambda: kernel(X), lambda: kernel(X, X), lambda: kernel.diag(X), lambda: gram(kernel, X, tile=2)):
        with pytest.raises(RangeError, match=told):
            call()
    np.testing.assert_allclose(Kernel(STEPS, device="cpu", dtype="float64")(X), reference.kernel(STEPS, X), atol=1e-12)
    with pytest.raises(RangeError, match="too small beside the others, for float64; rescale the images"):
        Kernel(STEPS, device="cpu", dtype="float64")(faint(-150))


# ---- constants and pixels at the ends of the range -------------------------------------------------------------------


@pytest.mark.parametrize("slope", [1e8, 1e19, -1e19, 1e-30])
def test_steep_slopes(slope: float) -> None:
    X = faint(0)
    for net in (
        Sequential(Conv(3), LeakyReLU(slope), Dense()),
        Sequential(Conv(3), LeakyReLU(slope), Conv(3), ReLU(), Dense(1e-30)),
    ):
        R = reference.kernel(net, X)
        for dtype, bound in (("float32", 1e-6), ("float64", 1e-12)):
            K = Kernel(net, device="cpu", dtype=dtype)(X)
            assert np.abs(K - R).max() <= bound * np.abs(R).max()


def test_a_slope_beyond_float64() -> None:
    with pytest.raises(NetworkError, match=r"LeakyReLU: slope=1e\+160 is too large: its square is beyond float64"):
        LeakyReLU(1e160)


@DTYPES
def test_patches_that_lie_in_the_padding_alone(dtype: str) -> None:
    """On one pixel a dilated filter meets padding only, so its large factor stands before nothing."""
    first, second = Conv(1, weight_var=1e30), Conv(2, dilation=2, bias_var=1e-20)
    net = Sequential(first, ReLU(), second, ReLU(), Dense(1e20))
    for shape in ((3, 1, 1, 1), (3, 1, 1)):
        X = np.random.default_rng(0).standard_normal(shape)
        np.testing.assert_allclose(Kernel(net, device="cpu", dtype=dtype)(X), reference.kernel(net, X), rtol=1e-6)
    both = Sequential(first, ReLU(), Sum(second, second), ReLU(), Dense(1e20))
    np.testing.assert_allclose(Kernel(both, device="cpu", dtype=dtype)(X), reference.kernel(both, X), rtol=1e-6)


@pytest.mark.parametrize("net", [Dense(), Sequential(Conv(3), ReLU(), Dense())], ids=repr)
def test_pixels_that_vanish_are_refused(net: Any) -> None:
    X = np.random.default_rng(0).standard_normal((4, 1, 6, 6))
    X[2] *= 1e-170
    kernel = Kernel(net, device="cpu", dtype="float64")
    told = r"X\[2\] has no pixel above .*e-170, too small to square in float64; rescale the images"
    for call in (lambda: kernel(X), lambda: kernel.diag(X), lambda: gram(kernel, X, tile=3), lambda: kernel(X[:1], X)):
        with pytest.raises(RangeError, match=told.replace("X", "[XZ]", 1)):
            call()
    with pytest.raises(DataError, match=r"X\[2\] has pixels so small that float32 rounds all to 0; rescale the images"):
        Kernel(net, device="cpu")(X)
    X[2, 0, 0, 0] = 1.0  # beside others such pixels are as good as zero
    np.testing.assert_allclose(kernel(X), reference.kernel(net, X), rtol=1e-12)
    X[2] = 0.0
    assert kernel(X)[2, 2] == 0.0


def test_a_series_that_ends_is_blamed_and_not_what_follows_from_it() -> None:
    X = np.random.default_rng(0).integers(0, 256, (4, 1, 8, 8)).astype(np.uint8)
    tanh = Elementwise("tanh")
    told = (
        r"^layers\[1\]: Elementwise\('tanh'\) meets a variance of .*; lower the weight_var before it or scale the imag"
    )
    for net in (Sequential(Conv(3), tanh, Dense()), Sequential(Conv(3), tanh, Conv(3), tanh, Dense())):
        with pytest.raises(NetworkError, match=told):
            Kernel(net, device="cpu")(X)
    net = Sequential(Dense(), Elementwise("selu"), Dense())
    with pytest.raises(NetworkError, match=r"too long for 1e-13 at any variance.*, or dtype='float32', which needs"):
        Kernel(net, device="cpu", dtype="float64")(np.ones((2, 3)))
    assert np.isfinite(Kernel(net, device="cpu")(np.ones((2, 3)))).all()


# ---- long sums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [257, 10_000, 100_003])
def test_long_axes_are_summed_in_blocks(length: int) -> None:
    X = np.random.default_rng(0).random((3, 1, length)) + 0.1
    for net in (Dense(2.0, 0.5), Sequential(Conv(1, bias_var=0.1), ReLU(), Dense())):
        R = reference.kernel(net, X)
        for dtype, bound in (("float32", 1e-6), ("float64", 1e-12)):
            assert np.abs(Kernel(net, device="cpu", dtype=dtype)(X) - R).max() <= bound * R.max()
    ops = lower(Dense(), (1, length)).ops
    assert max(len(row) for op in ops for s in op.sums for row in s.sources) <= 256


def test_many_channels_are_summed_in_blocks() -> None:
    X = np.random.default_rng(0).random((3, 300_000)) + 0.1
    R = reference.kernel(Dense(), X)
    assert np.abs(Kernel(Dense(), device="cpu")(X) - R).max() <= 5e-7 * R.max()


@pytest.mark.parametrize("depth", [200, 400, 800])
def test_very_deep_networks_stay_within_their_bound(depth: int) -> None:
    X = np.random.default_rng(0).standard_normal((6, 10))
    for bias_var in (0.0, 0.1):
        net = Sequential(*[layer for _ in range(depth) for layer in (Dense(2.0, bias_var), ReLU())], Dense())
        R = reference.kernel(net, X)
        for dtype in ("float32", "float64"):
            K = Kernel(net, device="cpu", dtype=dtype, check=False)(X)
            assert np.abs(K - R).max() <= documented_bound(net, np.dtype(dtype)) * np.abs(R).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("slope", "weight_var"), [(0.3, 2.8255413326943017), (-0.7, 1.3), (5.0, 0.07)])
def test_a_leaky_relu_loses_nothing_at_correlation_one_however_deep(
    slope: float, weight_var: float, dtype: str
) -> None:
    """What rounding makes of its two coefficients would add up from layer to layer."""
    net = Sequential(*[Conv(6, padding_mode="circular", weight_var=weight_var), LeakyReLU(slope)] * 140, Dense())
    X = np.random.default_rng(0).standard_normal((2, 1, 8))
    R = reference.kernel(net, X)
    K = Kernel(net, device="cpu", dtype=dtype, check=False)(X, X.copy())  # the diagonal as any other pair
    assert np.abs(K - R).max() <= {"float32": 1e-6, "float64": 1e-12}[dtype] * np.abs(R).max()


def residual(weight_var: float) -> Sequential:
    return Sequential(Conv(3), Sum(Identity(), Sequential(ReLU(), Conv(3, weight_var=weight_var))), ReLU(), Dense())


@pytest.mark.parametrize(
    ("net", "scale"),
    [
        (residual(1e-36), 1.0),
        (residual(1e-12), 1e12),
        (residual(1e-40), 1.0),
        (residual(1e-32), 255.0),
        (residual(1e-300), 1.0),
        (Sequential(Conv(3), ReLU(), Conv(3, bias_var=1e36), ReLU(), Dense()), 1.0),
        (Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3, bias_var=1e36), ReLU(), Dense()), 1.0),
    ],
)
def test_a_tangent_kernel_far_smaller_or_larger_than_k(net: Sequential, scale: float) -> None:
    """Θ = T + own·K is held in a unit that suits the larger of the two."""
    X = scale * np.random.default_rng(0).standard_normal((4, 1, 6, 6))
    R = reference.kernel(net, X, kind="ntk")
    K, theta = Kernel(net, device="cpu", kind="ntk").both(X)
    found = compare(net, X, theta, np.dtype("float32"), "ntk")
    assert found is not None
    assert found.error <= found.bound
    np.testing.assert_allclose(theta, R, rtol=1e-4)
    np.testing.assert_array_equal(K, Kernel(net, device="cpu")(X))


def test_slopes_of_tiny_variances() -> None:
    """Their product is beyond float64, and they are not."""
    usual, tiny = (Sequential(Conv(3, weight_var=v), ReLU(), Dense(1.0 / v)) for v in (1.0, 1e-180))
    X = np.random.default_rng(0).standard_normal((4, 1, 6, 6))
    expected = reference.kernel(usual, X, kind="ntk")
    np.testing.assert_allclose(reference.kernel(tiny, X, kind="ntk"), expected, rtol=1e-9)
    np.testing.assert_allclose(Kernel(tiny, device="cpu", dtype="float64", kind="ntk")(X), expected, rtol=1e-9)
    assert adjoint.gradient(tiny, X, None, np.ones((4, 4)))["layers[0].weight_var"] > 1e170


@pytest.mark.parametrize(
    ("net", "kind"),
    [
        (Sequential(Conv(3), ReLU(), Dense(1e150)), "nngp"),
        (Sequential(Conv(3, weight_var=0.0), ReLU(), Dense(1e150)), "nngp"),
        (Sequential(Conv(3), ReLU(), Dense(1e-150)), "ntk"),
    ],
)
def test_variances_beyond_float32_are_refused_for_blank_images_too(net: Sequential, kind: Any) -> None:
    X = np.zeros((3, 1, 6, 6))
    with pytest.raises(RangeError, match="variances of this network are too large or too small for float32"):
        Kernel(net, device="cpu", kind=kind)(X)
    np.testing.assert_array_equal(Kernel(net, device="cpu", kind=kind, dtype="float64")(X), np.zeros((3, 3)))


def test_units_that_have_lost_digits_are_refused() -> None:
    layers = [Conv(3, weight_var=1e-20), ReLU(), Conv(3, weight_var=1e-300), ReLU(), Conv(3, weight_var=1e20), ReLU()]
    with pytest.raises(NetworkError, match=r"layers\[2\]: the variance here is of order 2\^-1064, beyond float64"):
        lower(Sequential(*layers, Dense(1e300)), (1, 6, 6))
