"""Numbers at the ends of what a precision holds: right, or one error before any pair is computed. Never NaN, never zero
by underflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, GPRegressor, Kernel, ReLU, Sequential, Step, gram
from cnngp.kernel.engines.base import RangeError
from cnngp.network import reference
from cnngp.torch_bridge import sample_outputs

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
        # At correlation one a Step has the slope of a square root: of an ulp it leaves the root, two of them the fourth.
        loss, of_reference = (float(np.finfo(kind).eps) ** 0.5**steps for kind in (dtype, "float64"))
        assert R[0, 1] == pytest.approx(R[0, 0], rel=of_reference)
        assert K[0, 1] == pytest.approx(K[0, 0], rel=loss)
        np.testing.assert_allclose(K, R, rtol=loss)
    # 25 of the 64 patches see something of the image, each with V = ½ with itself.
    assert reference.kernel(STEPS, X)[0, 0] == pytest.approx(0.5 * 25 / 64)


def test_finite_networks_have_that_variance_on_blank_patches() -> None:
    pytest.importorskip("torch")
    X = blank_patches()
    drawn = sample_outputs(STEPS, X, channels=64, samples=4000, seed=0)
    R = reference.kernel(STEPS, X)
    np.testing.assert_allclose(drawn.T @ drawn / len(drawn), R, atol=6.0 * R.max() * np.sqrt(2.0 / len(drawn)))


def test_a_noise_free_process_meets_its_targets_on_blank_patches() -> None:
    X = np.random.default_rng(0).standard_normal((20, 1, 8, 8))
    X[:, :, 4:] = 0.0
    y = np.random.default_rng(1).standard_normal(20)
    reg = GPRegressor(STEPS, device="cpu", dtype="float64").fit(X, y)
    np.testing.assert_allclose(reg.predict(X), y, atol=1e-6)


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
