"""`Kernel.gradient`: the same numbers as the oracle's, symmetric matrices, and what is refused.

Errors are those of the largest derivative: in float64 1e-10 of it, in float32 1e-5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cnngp import (
    GELU,
    AvgPool,
    Conv,
    DataError,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    Kernel,
    LeakyReLU,
    NetworkError,
    RangeError,
    ReLU,
    Sequential,
    Step,
    Sum,
)
from cnngp.kernel.engines.cpu import gradient as cpu_gradient
from cnngp.network import Network, reference
from helpers import adjoint, generator, pooled
from helpers.gradients import CLOSE, EVERY, check_nonlinearities
from helpers.kernels import SMALL, random_images
from helpers.networks import images


def agrees(net: Network, X: np.ndarray, Z: np.ndarray | None, G: np.ndarray, dtype: str) -> None:
    found = Kernel(net, device="cpu", dtype=dtype, check=False).gradient(X, Z, G)
    expected = adjoint.gradient(net, X, Z, G)
    size = max(map(abs, expected.values()))
    assert found == pytest.approx(expected, rel=0, abs=CLOSE[dtype] * size)
    assert list(found) == list(net.parameters())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layer", [*EVERY, LeakyReLU(1.0)], ids=repr)
def test_every_nonlinearity(layer: Network, dtype: str) -> None:
    check_nonlinearities([layer], dtype, agrees)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(12))
def test_generated_networks(seed: int, dtype: str) -> None:
    """With blank patches and images, all kinds of layers, with and without pools."""
    rng = np.random.default_rng(seed)
    acts = (*generator.RELU_LIKE, *generator.SMOOTH)
    if seed % 3:
        net, shape = generator.random_network(rng, acts, max_pixels=60)
    else:
        pick = generator.Random(rng)
        net, shape = pooled.network(pick, lambda: pick.among(acts), 400)
    agrees(net, images(shape, 5, seed), None, rng.normal(size=(5, 5)), dtype)
    agrees(net, images(shape, 5, seed), images(shape, 4, seed + 1), rng.normal(size=(5, 4)), dtype)


def test_layers_without_weights_have_derivatives_too() -> None:
    """∂K/∂weight_var does not vanish where weight_var does; a 1 × 1 convolution, elsewhere a mere unit, has one."""
    branch = Sequential(ReLU(), Conv(1, weight_var=0.0))
    net = Sequential(Conv(3), Sum(Identity(), branch), ReLU(), Conv(1, weight_var=3.0), ReLU(), Dense())
    agrees(net, random_images(3), None, np.random.default_rng(0).normal(size=(3, 3)), "float64")
    G = np.ones((3, 3))
    assert adjoint.gradient(net, random_images(3), None, G)["layers[1].branches[1].layers[1].weight_var"] > 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_patches_that_are_multiples_of_each_other(dtype: str) -> None:
    """Correlations are exactly one: θ, and with it the derivative by a bias of 0, moves with the root of a rounding."""
    net = Sequential(Conv(1, weight_var=0.8), LeakyReLU(-0.5), GlobalAvgPool(), Dense(2.0))
    X, G = random_images(5, (1, 3, 3)), np.random.default_rng(0).normal(size=(5, 5))
    found = Kernel(net, device="cpu", dtype=dtype, check=False).gradient(X, None, G)
    expected = adjoint.gradient(net, X, None, G)
    size = max(map(abs, expected.values()))
    bias = "layers[0].bias_var"
    assert found.pop(bias) == pytest.approx(expected.pop(bias), abs={"float32": 1e-2, "float64": 1e-6}[dtype] * size)
    assert found == pytest.approx(expected, rel=0, abs={"float32": 1e-6, "float64": 1e-13}[dtype] * size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bias_of_zero_is_known_to_the_ratio_of_two_pixels(dtype: str) -> None:
    """With patches of one pixel ∂A/∂K₁ = sin θ √(K₂/K₁)/4π, where θ is the root of a rounding and not 0: a pixel of 1
    beside one of 10⁻³ makes that a thousand times as much. A network that was drawn once had such pixels.
    """
    net = Sequential(Conv(1), ReLU(), Dense())
    rng = np.random.default_rng(0)
    X, Z, G = rng.random((5, 1, 4, 4)), 1e-3 * rng.random((4, 1, 4, 4)), rng.normal(size=(5, 4))
    X, Z = X.astype(np.float32), Z.astype(np.float32)
    found = Kernel(net, device="cpu", dtype=dtype, check=False).gradient(X, Z, G)
    expected = adjoint.gradient(net, X, Z, G)
    ratio = X.reshape(5, 1, 16) / Z.reshape(1, 4, 16)
    angle = np.sqrt(2 * 4 * np.finfo(dtype).eps)  # of four roundings: of K, two entries of tables and their product
    share = (angle * (ratio + 1 / ratio) / (4 * np.pi) + angle / (2 * np.pi)).mean(2)
    bias = "layers[0].bias_var"
    error = abs(found.pop(bias) - expected.pop(bias))
    assert error <= np.sum(np.abs(G) * share)
    assert error > {"float32": 1e-6, "float64": 1e-15}[dtype]  # the loss is real
    assert found == pytest.approx(expected, rel={"float32": 1e-5, "float64": 1e-12}[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_strips_streams_and_threads_change_no_bit(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Z = random_images(37), random_images(41, seed=1)
    G = np.random.default_rng(0).normal(size=(37, 41))
    whole = [Kernel(SMALL, device="cpu", dtype=dtype, threads=t, check=False).gradient(X, Z, G) for t in (1, 2, 5)]
    assert whole[0] == whole[1] == whole[2]
    monkeypatch.setattr(cpu_gradient, "STRIP_BYTES", 1)  # strips of 16 rows
    monkeypatch.setattr(cpu_gradient, "STREAMS", 2)
    parts = Kernel(SMALL, device="cpu", dtype=dtype, check=False).gradient(X, Z, G)
    size = max(map(abs, parts.values()))
    assert parts == pytest.approx(whole[0], rel=0, abs={"float32": 1e-6, "float64": 1e-13}[dtype] * size)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_any_scale_of_the_weights_will_do(scale: float) -> None:
    X, G = random_images(4), np.random.default_rng(0).normal(size=(4, 4))
    kernel = Kernel(SMALL, device="cpu", check=False)
    plain = kernel.gradient(X, None, G)
    scaled = kernel.gradient(X, None, scale * G)
    assert {name: value / scale for name, value in scaled.items()} == pytest.approx(plain, rel=1e-5)
    assert set(kernel.gradient(X, None, 0.0 * G).values()) == {0.0}


def test_a_matrix_of_one_set_counts_both_triangles_and_the_diagonal() -> None:
    X = random_images(4)
    kernel = Kernel(SMALL, device="cpu", dtype="float64", check=False)
    G = np.random.default_rng(0).normal(size=(4, 4))
    one = kernel.gradient(X, None, G)
    assert kernel.gradient(X, None, G.T) == pytest.approx(one, rel=1e-12)
    off = G - np.diag(G.diagonal())
    of_pairs, of_diagonal = kernel.gradient(X, X, off), kernel.gradient(X, None, np.diag(G.diagonal()))
    assert one == pytest.approx({name: of_pairs[name] + of_diagonal[name] for name in one}, rel=1e-10)


POOLED = Sequential(Conv(3, bias_var=0.1), LeakyReLU(0.3), AvgPool(2), Conv(3, bias_var=0.2), GELU(), Dense())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("net", [SMALL, POOLED, Sequential(Dense(), Erf(), Dense())], ids=["plain", "pooled", "dense"])
def test_gradients_of_pixels_are_those_of_finite_differences(net: Network, dtype: str) -> None:
    """Along a random direction of all pixels, by differences of order four."""
    shape = (6,) if isinstance(net.layers[0], Dense) else (2, 5, 4)  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    X, Z = random_images(3, shape).astype(np.float64), random_images(4, shape, seed=1).astype(np.float64)
    kernel = Kernel(net, device="cpu", dtype=dtype, check=False)

    def along(value, direction: np.ndarray) -> float:
        h = 1e-4
        a, b, c, d = (float(np.sum(value(t * h * direction))) for t in (1, -1, 2, -2))
        return (8.0 * (a - b) - (c - d)) / (12.0 * h)

    G = rng.normal(size=(3, 4))
    of_x, of_z = kernel.gradient(X, Z, G, wrt="images")
    dx, dz = rng.normal(size=X.shape), rng.normal(size=Z.shape)
    tolerance = {"float32": 1e-5, "float64": 1e-8}[dtype]
    found, expected = np.sum(of_x * dx), along(lambda step: G * reference.kernel(net, X + step, Z), dx)
    assert found == pytest.approx(expected, abs=tolerance * np.linalg.norm(of_x) * np.linalg.norm(dx))
    found, expected = np.sum(of_z * dz), along(lambda step: G * reference.kernel(net, X, Z + step), dz)
    assert found == pytest.approx(expected, abs=tolerance * np.linalg.norm(of_z) * np.linalg.norm(dz))
    G = rng.normal(size=(3, 3))
    of_x = kernel.gradient(X, None, G, wrt="images")
    found, expected = np.sum(of_x * dx), along(lambda step: G * reference.kernel(net, X + step), dx)
    assert found == pytest.approx(expected, abs=tolerance * np.linalg.norm(of_x) * np.linalg.norm(dx))


X4, STEP = random_images(4), Sequential(Dense(), Step(), Dense())
REFUSED: list[tuple[type[Exception], str, Network, tuple[Any, ...], dict[str, str]]] = [
    (DataError, r"G has shape \(3, 3\); expected \(4, 4\)", SMALL, (X4, None, np.ones((3, 3))), {}),
    (DataError, r"G has shape \(4,\); expected \(4, 4\)", SMALL, (X4, None, np.ones(4)), {}),
    (DataError, r"G\[0, 0\] is nan; expected finite", SMALL, (X4, None, np.full((4, 4), np.nan)), {}),
    (DataError, "G has type complex128; expected real numbers", SMALL, (X4, None, np.ones((4, 4), complex)), {}),
    (DataError, "G has type .*; expected real numbers", SMALL, (X4, None, [["a"] * 4] * 4), {}),
    (DataError, r"G has shape \(\); expected", SMALL, (X4, None, None), {}),
    (DataError, "they must agree", SMALL, (X4, random_images(4, (2, 6, 6)), np.ones((4, 4))), {}),
    (ValueError, "wrt='pixels' is not 'parameters' or", SMALL, (X4, None, np.ones((4, 4))), {"wrt": "pixels"}),
    (RangeError, "beyond float64; use a smaller G", SMALL, (1e6 * X4[:2], None, np.full((2, 2), 1e308)), {}),
    (NetworkError, r"layers\[1\]: Step\(\) has no gradient", STEP, (np.eye(2), None, np.eye(2)), {}),
    (NetworkError, "output locations .* a kernel needs one", Conv(3), (X4, None, np.ones((4, 4))), {}),
]


@pytest.mark.parametrize(("error", "message", "net", "given", "options"), REFUSED)
def test_nonsense_is_refused(error: Any, message: str, net: Network, given: tuple[Any, ...], options: Any) -> None:
    with pytest.raises(error, match=message):
        Kernel(net, device="cpu", check=False).gradient(*given, **options)
