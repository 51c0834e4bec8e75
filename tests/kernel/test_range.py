"""Numbers at the ends of what a precision holds, and images of any scale: right, or one error before any pair is
computed. Never NaN, never zero by underflow.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import AvgPool, Conv, Dense, Identity, Kernel, Sequential, Sum, gram, zoo
from cnngp.common.arrays import DataError
from cnngp.kernel.check import compare, documented_bound
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.formulas import formula
from cnngp.kernel.program import Kind, lower
from cnngp.network import Network, reference
from cnngp.network.layers import Cos, Elementwise, LeakyReLU, NetworkError, Rbf, ReLU, Sin, Step
from helpers import derivatives
from helpers.examples import examples
from helpers.kernels import DTYPES, TOLERANCE, each_dtype, error
from helpers.nonlinearities import ONE_OF_EACH

C, R, D = Conv(3), ReLU(), Dense()
STEPS = Sequential(C, Step(), D)


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape)


def single(X: Any) -> Any:
    """The numbers that float32 has of these."""
    return X.astype(np.float32).astype(np.float64)


def pixels(n: int = 6, size: int = 16) -> Any:
    """Images between 0 and 1, the first in part blank."""
    X = np.random.default_rng(0).random((n, 1, size, size))
    X[0, :, : size // 2] = 0.0
    return single(X)


def cpu(net: Network, dtype: str = "float32", **options: Any) -> Kernel:
    return Kernel(net, device="cpu", dtype=dtype, **options)


def agrees(net: Network, X: Any, *dtypes: str, loose: float = 1.0, kind: Kind = "nngp") -> None:
    expected = reference.kernel(net, X, kind=kind)
    for dtype in dtypes or DTYPES:
        K = cpu(net, dtype, kind=kind, check=False)(X).astype(np.float64)
        assert error(K, expected) <= loose * TOLERANCE[dtype]


# ---- Step, which makes as much of a tiny variance as of a large one ------------------------------------------------


@each_dtype
def test_two_copies_of_one_image_have_one_variance_under_step(dtype: str) -> None:
    X = np.zeros((3, 1, 8, 8))
    X[:2, :, 1:4, 2:5] = np.random.default_rng(0).random((1, 3, 3))
    X[2, :, 3:, 3:] = np.random.default_rng(1).random((1, 5, 5))
    for net, steps in ((STEPS, 1), (Sequential(C, Step(), C, Step(), D), 2)):
        K, expected = cpu(net, dtype)(X), reference.kernel(net, X)
        # At correlation one a Step has the slope of a square root: of an ulp it leaves the root, two the fourth root.
        loss, of_reference = (float(np.finfo(kind).eps) ** 0.5**steps for kind in (dtype, "float64"))
        assert expected[0, 1] == pytest.approx(expected[0, 0], rel=of_reference)
        assert K[0, 1] == pytest.approx(K[0, 0], rel=loss)
        np.testing.assert_allclose(K, expected, rtol=loss)


def faint(exponent: float) -> Any:
    """Three images whose right half is darker than the left by a power of ten."""
    X = normal(3, 1, 12, 12)
    X[:, :, :, 6:] *= 10.0**exponent
    return X


def test_step_makes_as_much_of_faint_locations_as_of_bright_ones_or_refuses_them() -> None:
    for X in map(faint, (-4, -8, -12)):
        for net in (STEPS, Sequential(C, R, C, Step(), D)):
            np.testing.assert_allclose(cpu(net)(X), reference.kernel(net, X), atol=2e-7)
    X, kernel, double = faint(-20), cpu(STEPS), cpu(STEPS, "float64")
    told = r"image 0 has locations whose variances at layers\[1\] \(Step\(\)\) are .* too small beside the others, for"
    for call in (lambda: kernel(X), lambda: kernel(X, X), lambda: kernel.diag(X), lambda: gram(kernel, X, tile=2)):
        with pytest.raises(RangeError, match=told):
            call()
    np.testing.assert_allclose(double(X), reference.kernel(STEPS, X), atol=1e-12)
    with pytest.raises(RangeError, match="too small beside the others, for float64; rescale the images"):
        double(faint(-150))


# ---- constants and pixels at the ends of the range -----------------------------------------------------------------


def search_space_network(depth: int, last: float = 8.5) -> Network:
    """The widest of the paper's search space: 6 × 6 filters, weight_var 8.5, the variance growing 306-fold a layer."""
    conv = Conv(6, weight_var=8.5, bias_var=7.0, fan_in="channels")
    return Sequential(*[conv, ReLU(math.sqrt(2.0))] * depth, Dense(last))


def deep(weight_var: float) -> Network:
    return Sequential(*[Conv(6, weight_var=weight_var, fan_in="channels"), ReLU(math.sqrt(2.0))] * 30, D)


DILATED = Conv(2, dilation=2, bias_var=1e-20)
EXTREMES: list[tuple[Network, Any, list[str]]] = [
    *(
        (Sequential(C, LeakyReLU(slope), *end), faint(0), DTYPES)
        for slope in (1e8, 1e19, -1e19, 1e-30)
        for end in ([D], [C, R, Dense(1e-30)])
    ),
    # On one pixel a dilated filter meets padding only, so its large factor stands before nothing.
    *(
        (Sequential(Conv(1, weight_var=1e30), R, middle, R, Dense(1e20)), normal(3, 1, 1, 1), DTYPES)
        for middle in (DILATED, Sum(DILATED, DILATED))
    ),
    (search_space_network(15), pixels(), DTYPES),  # up to 1e37
    *((search_space_network(25, last), pixels(), ["float32"]) for last in (1e-30, 1e-40)),  # large only inside
    # A unit beyond float32 is no hindrance where the value fits.
    *((deep(v), single(pixels(4, 12) * x), ["float32"]) for v, x in ((1.3, 1e-7), (1e-3, 1e12), (1e-3, 1e7))),
]


@pytest.mark.parametrize(("net", "X", "dtypes"), EXTREMES, ids=lambda x: repr(x)[:60])
def test_constants_and_values_at_the_ends_of_the_range(net: Network, X: Any, dtypes: list[str]) -> None:
    agrees(net, X, *dtypes)


@pytest.mark.parametrize("net", [D, Sequential(C, R, D)], ids=repr)
def test_pixels_that_vanish_are_refused(net: Any) -> None:
    X = normal(4, 1, 6, 6)
    X[2] *= 1e-170
    kernel = cpu(net, "float64")
    told = r"[XZ]\[2\] has no pixel above .*e-170, too small to square in float64; rescale the images"
    for call in (lambda: kernel(X), lambda: kernel.diag(X), lambda: gram(kernel, X, tile=3), lambda: kernel(X[:1], X)):
        with pytest.raises(RangeError, match=told):
            call()
    with pytest.raises(DataError, match=r"X\[2\] has pixels so small that float32 rounds all to 0; rescale the images"):
        cpu(net)(X)
    X[2, 0, 0, 0] = 1.0  # beside others such pixels are as good as zero
    np.testing.assert_allclose(kernel(X), reference.kernel(net, X), rtol=1e-12)
    X[2] = 0.0
    assert kernel(X)[2, 2] == 0.0


def test_a_series_that_ends_is_blamed_and_not_what_follows_from_it() -> None:
    X = np.random.default_rng(0).integers(0, 256, (4, 1, 8, 8)).astype(np.uint8)
    tanh, selu = Elementwise("tanh"), Sequential(D, Elementwise("selu"), D)
    told = r"^layers\[1\]: Elementwise\('tanh'\) meets a variance of .*; lower the weight_var before it or scale the im"
    for net in (Sequential(C, tanh, D), Sequential(C, tanh, C, tanh, D)):
        with pytest.raises(NetworkError, match=told):
            cpu(net)(X)
    with pytest.raises(NetworkError, match=r"too long for 1e-13 at any variance.*, or dtype='float32', which needs"):
        cpu(selu, "float64")(np.ones((2, 3)))
    assert np.isfinite(cpu(selu)(np.ones((2, 3)))).all()


# ---- long sums, deep networks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [257, 10_000, 100_003])
def test_long_axes_are_summed_in_blocks(length: int) -> None:
    X = np.random.default_rng(0).random((3, 1, length)) + 0.1
    agrees(Dense(2.0, 0.5), X)
    agrees(Sequential(Conv(1, bias_var=0.1), R, D), X)
    assert max(len(row) for op in lower(D, (1, length)).ops for s in op.sums for row in s.sources) <= 256
    agrees(D, np.random.default_rng(0).random((3, 3 * length)) + 0.1, "float32", loose=0.5)  # and channels


@pytest.mark.parametrize("depth", [200, 800])
def test_very_deep_networks_stay_within_their_bound(depth: int) -> None:
    for bias_var in (0.0, 0.1):
        net = Sequential(*[Dense(2.0, bias_var), R] * depth, D)
        for dtype in DTYPES:
            agrees(net, normal(6, 10), dtype, loose=documented_bound(net, np.dtype(dtype)) / TOLERANCE[dtype])


@each_dtype
@pytest.mark.parametrize(("slope", "weight_var"), [(0.3, 2.8255413326943017), (-0.7, 1.3), (5.0, 0.07)])
def test_a_leaky_relu_loses_nothing_at_correlation_one_however_deep(
    slope: float, weight_var: float, dtype: str
) -> None:
    """What rounding makes of its two coefficients would add up from layer to layer."""
    net = Sequential(*[Conv(6, padding_mode="circular", weight_var=weight_var), LeakyReLU(slope)] * 140, D)
    X = normal(2, 1, 8)
    K = cpu(net, dtype, check=False)(X, X.copy())  # the diagonal as any other pair
    assert error(K, reference.kernel(net, X)) <= TOLERANCE[dtype]


@given(
    factors=st.lists(st.integers(-12, 12), min_size=4, max_size=12),
    skip=st.booleans(),
    bias=st.sampled_from([0.0, 1e-8, 1e8]),
)
@examples(40)
def test_any_course_of_powers_keeps_float32_exact(factors: list[int], skip: bool, bias: float) -> None:
    """Weight variances of 10^−12 … 10^12 in any order; a last layer brings the result back to order one."""
    layers: list[Network] = []
    for f in factors:
        conv = Conv(3, weight_var=10.0**f, bias_var=bias)
        if not skip:
            layers += [conv, R]
        else:
            layers.append(Sum(Identity(), Sequential(R, conv)) if layers else conv)
    X = pixels(4, 6)
    size = reference.kernel(Sequential(*layers, D), X).max()
    agrees(Sequential(*layers, Dense(1.0 / size)), X, "float32")


NETWORK_FITS_NOT = "variances of this network are too large or too small for float32"
USE_FLOAT64 = r"float32( cannot carry)?; use dtype='float64'"
BLANK = np.zeros((3, 1, 6, 6))
TOO_FAR_FOR_FLOAT32: list[tuple[Network, Any, Kind, str]] = [
    (Dense(1e-10), np.full((2, 4), 1e20), "nngp", r"has pixels of 1e\+20, too large to multiply in float32"),
    *((zoo.resnet(8), single(pixels(3, 8) * far), "nngp", USE_FLOAT64) for far in (1e-25, 1e25)),
    (search_space_network(17), pixels(), "nngp", f"which does not fit {USE_FLOAT64}, or rescale the images"),
    (Sequential(C, R, Dense(1e150)), BLANK, "nngp", NETWORK_FITS_NOT),
    (Sequential(Conv(3, weight_var=0.0), R, Dense(1e150)), BLANK, "nngp", NETWORK_FITS_NOT),
    (Sequential(C, R, Dense(1e-150)), BLANK, "ntk", NETWORK_FITS_NOT),
]


@pytest.mark.parametrize(("net", "X", "kind", "message"), TOO_FAR_FOR_FLOAT32, ids=lambda x: repr(x)[:40])
def test_what_float32_cannot_hold_is_refused_and_right_in_float64(net: Any, X: Any, kind: Kind, message: str) -> None:
    kernel = cpu(net, kind=kind)
    for call in (lambda: kernel(X), lambda: kernel(X, X[:2]), lambda: kernel.diag(X)):
        with pytest.raises(RangeError, match=message):
            call()
    agrees(net, X, "float64", kind=kind)


def of_variances(size: int, *variances: float) -> list[Network]:
    return [layer for v in variances for layer in (Conv(size, weight_var=v), R)]


@pytest.mark.parametrize(
    "layers",
    [
        of_variances(3, 1e200, 1e200),
        *(of_variances(size, 1e-200, 1e-200, 1e300) for size in (3, 1)),
        [C, ReLU(1e200)],
        [C, LeakyReLU(1e154), C, LeakyReLU(1e10)],
        of_variances(3, *[1e8] * 60),
    ],
    ids=lambda layers: repr(layers[:6]),
)
def test_variances_beyond_float64_are_refused(layers: list[Network]) -> None:
    with pytest.raises((NetworkError, RangeError), match=r"beyond float64|does not fit|cannot carry"):
        cpu(Sequential(*layers, D), "float64")(pixels())


def test_pixels_and_units_beyond_float64_are_refused_by_their_place() -> None:
    with pytest.raises(RangeError, match=r"has pixels of 1e\+200, too large to multiply in float64"):
        cpu(Dense(1e-10), "float64")(np.full((2, 4), 1e200))  # and no warning beside it
    with pytest.raises(NetworkError, match=r"layers\[2\]: the variance here is of order 2\^-1064, beyond float64"):
        lower(Sequential(*of_variances(3, 1e-20, 1e-300, 1e20), Dense(1e300)), (1, 6, 6))


# ---- the tangent kernel --------------------------------------------------------------------------------------------

LARGE = Conv(3, bias_var=1e36)


@pytest.mark.parametrize(
    ("layers", "scale"),
    [
        *(
            ([C, Sum(Identity(), Sequential(R, Conv(3, weight_var=v))), R, D], scale)
            for v, scale in ((1e-36, 1.0), (1e-12, 1e12), (1e-40, 1.0), (1e-32, 255.0), (1e-300, 1.0))
        ),
        *(([C, R, *pool, LARGE, R, D], 1.0) for pool in ([], [AvgPool(2)])),
    ],
)
def test_a_tangent_kernel_far_smaller_or_larger_than_k(layers: list[Network], scale: float) -> None:
    """Θ = T + own·K is held in a unit that suits the larger of the two."""
    net, X = Sequential(*layers), scale * normal(4, 1, 6, 6)
    K, theta = cpu(net, kind="ntk").both(X)
    found = compare(net, X, theta, np.dtype("float32"), "ntk")
    assert found is not None
    assert found.error <= found.bound
    np.testing.assert_allclose(theta, reference.kernel(net, X, kind="ntk"), rtol=1e-4)
    np.testing.assert_array_equal(K, cpu(net)(X))


def test_slopes_of_tiny_variances() -> None:
    """Their product is beyond float64, and they are not."""
    usual, tiny = (Sequential(Conv(3, weight_var=v), R, Dense(1.0 / v)) for v in (1.0, 1e-180))
    X = normal(4, 1, 6, 6)
    expected = reference.kernel(usual, X, kind="ntk")
    np.testing.assert_allclose(reference.kernel(tiny, X, kind="ntk"), expected, rtol=1e-9)
    np.testing.assert_allclose(cpu(tiny, "float64", kind="ntk")(X), expected, rtol=1e-9)
    assert derivatives.gradient(tiny, X, None, np.ones((4, 4)))["layers[0].weight_var"] > 1e170


# ---- scales of the images ------------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("act", [x for x in ONE_OF_EACH if not isinstance(x, Elementwise)], ids=repr)
def test_any_scale_gives_the_kernel_or_one_clear_refusal(act: Any, dtype: str) -> None:
    """Variances from 1e-50 to 1e50 inside, brought back to order one at the end: right, or refused, and never NaN."""
    X, row = normal(3, 1, 4, 4).astype(np.float32), formula(act)
    for power in (-50, -45, -30, -10, 10, 30, 45, 50):
        first = Conv(3, weight_var=10.0**power)
        scale = float(reference.diagonal(Sequential(first, act, D), X).max())
        net = Sequential(first, act, Dense(weight_var=1.0 / scale))
        homogeneous = row.homogeneous or row.any_scale  # no scale is out of reach
        homogeneous |= isinstance(act, Rbf) and power < 0  # V is 1
        narrow = dtype == "float32"
        lost = isinstance(act, (Sin, Cos, Rbf)) and power >= (10 if narrow else 30)  # no digit of e^(K − m) is left
        if not homogeneous and (lost or (narrow and abs(power) >= 30)):
            with pytest.raises(RangeError, match=f"which {dtype} cannot carry"):
                cpu(net, dtype)(X)
            continue
        K = cpu(net, dtype)(X)
        found = compare(net, X, K, np.dtype(dtype), "nngp")
        assert found is not None
        assert found.error <= 4 * found.bound
        assert K.diagonal() == pytest.approx(reference.diagonal(net, X), rel=1e-5)


@each_dtype
def test_images_of_different_scales_go_together(dtype: str) -> None:
    X = single(pixels(6, 8) * np.array([1.0, 1e-9, 255.0, 1e-5, 0.0, 1.0])[:, None, None, None])
    expected, K = reference.kernel(zoo.resnet(8), X), cpu(zoo.resnet(8), dtype)(X).astype(np.float64)
    d = np.sqrt(expected.diagonal())
    assert (np.abs(K - expected) <= 2 * TOLERANCE[dtype] * np.outer(d, d)).all()  # each entry on its own scale
    assert not K[4].any()


# ---- blank images --------------------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("phi", [*ONE_OF_EACH, Elementwise("sigmoid")], ids=repr)
def test_blank_images_give_the_limit_and_never_nan(dtype: str, phi: Any) -> None:
    """φ(0) = 0 gives 0, also for Step; cos(0) = 1, also of an Rbf, sigmoid(0) = ½."""
    net = Sequential(C, phi, D)
    X = np.zeros((5, 1, 6, 6))
    X[4] = pixels(1, 6)[0]
    K = cpu(net, dtype)(X)
    assert np.isfinite(K).all()
    constant = {Cos(): 1.0, Rbf(0.4): 1.0, Elementwise("sigmoid"): 0.25}.get(phi, 0.0)
    np.testing.assert_allclose(K[:4, :4], np.full((4, 4), constant), rtol=1e-6, atol=0.0)
    np.testing.assert_allclose(K, reference.kernel(net, X), rtol=2e-6, atol=1e-12)
    assert (cpu(Sequential(C, R, Dense(1.0, 0.25)), dtype)(X)[:4] == 0.25).all()
