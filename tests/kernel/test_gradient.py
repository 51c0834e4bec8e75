"""Gradients against the oracle of helpers/derivatives.py: on the CPU, as C++ on fake cards, with -m gpu on a card."""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from cnngp import AvgPool, Conv, DataError, Dense, GlobalAvgPool, Identity, Kernel, RangeError, Sequential, Sum, zoo
from cnngp.kernel.engines.cpu import gradient as cpu_gradient
from cnngp.kernel.engines.cpu.gradient import CpuGradient
from cnngp.kernel.engines.cuda.engine import CudaGradient
from cnngp.kernel.program.reverse import reverse
from cnngp.network import Network, reference
from cnngp.network.layers import GELU, Elementwise, Erf, LeakyReLU, NetworkError, ReLU, Step
from helpers import cuda_cases, derivatives
from helpers.gradients import CLOSE, agrees, flat, found_on
from helpers.kernels import DTYPES, SMALL, random_images
from helpers.networks import images
from helpers.nonlinearities import DIFFERENTIABLE
from helpers.pooled import small_network

SERIES: list[Network] = [layer for layer in DIFFERENTIABLE if isinstance(layer, Elementwise)]
CLOSED: list[Network] = [layer for layer in DIFFERENTIABLE if layer not in SERIES]
POOLED = Sequential(Conv(3, bias_var=0.1), LeakyReLU(0.3), AvgPool(2), Conv(3, bias_var=0.2), GELU(), Dense())
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def engines(names: str, cpu: Iterable[Any], quick: Iterable[Any], slow: Iterable[Any] = ()) -> pytest.MarkDecorator:
    """Cases on the CPU, and those for cards: on fakes, where some are slow, and on a real one."""
    cases = [("cpu", *case) for case in cpu]
    for given, marks in ((quick, []), (slow, [pytest.mark.slow])):
        for case in given:
            cases.append(pytest.param("fake", *case, marks=marks))
            cases.append(pytest.param("card", *case, marks=[*marks, pytest.mark.gpu]))
    return pytest.mark.parametrize(("on", *names.split()), cases, indirect=["on"])


ALONE = [([layer], dtype) for layer in (*DIFFERENTIABLE, LeakyReLU(1.0)) for dtype in DTYPES]


@engines("layers dtype", ALONE, [(CLOSED, "float64"), (SERIES, "float64")], ALONE)
def test_every_nonlinearity(on: str, layers: list[Network], dtype: str) -> None:
    """Each in a branch of its own: beside a skip, and under a pool, where an image meets itself at two places."""
    plain = [
        Sequential(Sum(Identity(), Sequential(layer, Conv(2))), layer, Dense(1.5 + 0.1 * i, 0.2))
        for i, layer in enumerate(layers)
    ]
    under = [
        Sequential(layer, AvgPool(2), Conv(1, weight_var=0.7), layer, Dense(1.5 + 0.1 * i))
        for i, layer in enumerate(layers)
    ]
    rng = np.random.default_rng(0)
    shape = (1, 2, 2) if set(layers) & set(SERIES) else (1, 3, 3)  # the oracle takes a quadrature for each number
    X, Z = random_images(3, shape), random_images(2, shape, seed=1)
    for branches in (plain, under):
        net = Sequential(Conv(2, bias_var=0.1), Sum(*branches) if len(layers) > 1 else branches[0])
        agrees(on, net, X, Z, rng.normal(size=(3, 2)), dtype)
        agrees(on, net, X, None, rng.normal(size=(3, 3)), dtype)


@functools.cache
def drawn(seed: int) -> tuple[Network, list[tuple[Any, Any, Any, dict[str, float]]]]:
    """A network, and X, Z, G with what the oracle says of them."""
    rng = np.random.default_rng(seed)
    net, shape = small_network(rng, pools=seed % 3 == 0)
    X, Z = images(shape, 5, seed), images(shape, 4, seed + 1)
    given = (X, None, rng.normal(size=(5, 5))), (X, Z, rng.normal(size=(5, 4)))
    return net, [(*case, derivatives.gradient(net, *case)) for case in given]


@engines(
    "seed dtype",
    [(seed, dtype) for seed in range(12) for dtype in DTYPES],
    [(seed, dtype) for seed in range(4) for dtype in DTYPES],
    [(seed, dtype) for seed in range(4, 40) for dtype in DTYPES],
)
def test_generated_networks(on: str, seed: int, dtype: str) -> None:
    """With blank patches and images, all kinds of layers, with and without pools."""
    net, cases = drawn(seed)
    for X, Z, G, expected in cases:
        agrees(on, net, X, Z, G, dtype, at_one=on != "cpu", expected=expected)


CHOSEN = (
    *("transposed", "3-D", "1-D", "dense skips", "copies of one place", "no operations", "maps beyond shared memory"),
    *("two pools", "any pool at the end", "sizes that do not halve", "a layer without weights"),
)
NAMES = [name for name in (*cuda_cases.NETWORKS, *cuda_cases.POOLED) if name not in cuda_cases.NO_SLOPE]


@engines("name", zip(CHOSEN), zip(CHOSEN), [(name,) for name in NAMES if name not in CHOSEN])
def test_chosen_networks(on: str, name: str) -> None:
    net, shape = cuda_cases.EVERY[name]
    X, G = images(shape, 3, 0), np.random.default_rng(0).normal(size=(3, 3))
    agrees(on, net, X, None, G, "float32" if name in cuda_cases.POOLED else "float64", at_one=True)


GLOBAL = Sequential(*POOLED.layers[:-1], GlobalAvgPool(), Dense())
SMALLER = [(SMALL, (2, 5, 4)), (GLOBAL, (2, 5, 4)), (Sequential(Dense(), Erf(), Dense()), (6,))]
LARGE = [(net, (1, 28, 28), dtype) for net in (zoo.resnet(32), zoo.convnet(), GLOBAL) for dtype in DTYPES]


@pytest.mark.parametrize(
    ("on", "net", "shape", "dtype"),
    [
        *(("fake", *case, "float64") for case in SMALLER),
        *(pytest.param("card", *case, "float64", marks=pytest.mark.gpu) for case in SMALLER),
        *(pytest.param("card", *case, marks=pytest.mark.gpu) for case in LARGE),
    ],
    indirect=["on"],
)
def test_gradients_of_cards_are_those_of_the_cpu(on: str, net: Network, shape: tuple[int, ...], dtype: str) -> None:
    """By parameters and by pixels."""
    rng = np.random.default_rng(0)
    n, m, tile, close = (3, 4, 2, 1e-12) if (net, shape) in SMALLER else (40, 70, None, CLOSE[dtype])
    X, Z = random_images(n, shape), random_images(m, shape, seed=1)
    found = reverse(net, shape, to_images=True)
    for other, G in ((Z, rng.normal(size=(n, m))), (None, rng.normal(size=(n, n)))):
        mine = CudaGradient(found, dtype, tile=tile).gradient(flat(X, dtype), flat(other, dtype), G)
        theirs = CpuGradient(found, "float64").gradient(flat(X, "float64"), flat(other, "float64"), G)
        size = max(map(abs, theirs.parameters.values()))
        assert mine.parameters == pytest.approx(theirs.parameters, rel=0, abs=close * size)
        for a, b in zip(mine[1:], theirs[1:], strict=True):
            assert (a is None) == (b is None)
            assert a is None or np.abs(a - b).max() <= close * np.abs(b).max()  # type: ignore[operator]


@each_dtype
def test_a_bias_of_zero_is_known_to_the_ratio_of_two_pixels(dtype: str) -> None:
    """With patches of one pixel ∂A/∂K₁ = sin θ √(K₂/K₁)/4π, where θ is the root of a rounding and not 0: a pixel of 1
    beside one of 10⁻³ makes that a thousand times as much. A network that was drawn once had such pixels.
    """
    net = Sequential(Conv(1), ReLU(), Dense())
    rng = np.random.default_rng(0)
    X, Z, G = rng.random((5, 1, 4, 4)), 1e-3 * rng.random((4, 1, 4, 4)), rng.normal(size=(5, 4))
    X, Z = X.astype(np.float32), Z.astype(np.float32)
    found = found_on("cpu", net, X, Z, G, dtype)
    expected = derivatives.gradient(net, X, Z, G)
    ratio = X.reshape(5, 1, 16) / Z.reshape(1, 4, 16)
    angle = np.sqrt(2 * 4 * np.finfo(dtype).eps)  # of four roundings: of K, two entries of tables and their product
    share = (angle * (ratio + 1 / ratio) / (4 * np.pi) + angle / (2 * np.pi)).mean(2)
    bias = "layers[0].bias_var"
    error = abs(found.pop(bias) - expected.pop(bias))
    assert error <= np.sum(np.abs(G) * share)
    assert error > {"float32": 1e-6, "float64": 1e-15}[dtype]  # the loss is real
    assert found == pytest.approx(expected, rel={"float32": 1e-5, "float64": 1e-12}[dtype])


@each_dtype
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


@each_dtype
@pytest.mark.parametrize("net", [SMALL, POOLED, Sequential(Dense(), Erf(), Dense())], ids=["plain", "pooled", "dense"])
def test_gradients_of_pixels_are_those_of_finite_differences(net: Sequential, dtype: str) -> None:
    """Along a random direction of all pixels, by differences of order four."""
    shape = (6,) if isinstance(net.layers[0], Dense) else (2, 5, 4)
    rng, h = np.random.default_rng(0), 1e-4
    tolerance = {"float32": 1e-5, "float64": 1e-8}[dtype]
    X, Z = (random_images(n, shape, seed=n).astype(np.float64) for n in (3, 4))
    for sets in ([X], [X, Z]):
        G = rng.normal(size=(3, len(sets[-1])))
        found = Kernel(net, device="cpu", dtype=dtype, check=False).gradient(X, *sets[1:] or [None], G, wrt="images")
        slopes = [found] if len(sets) == 1 else found
        directions = [rng.normal(size=x.shape) for x in sets]

        def value(step: float, G=G, sets=sets, directions=directions) -> float:
            moved = (x + step * d for x, d in zip(sets, directions, strict=True))
            return float(np.sum(G * reference.kernel(net, *moved)))

        along = sum(np.sum(of * d) for of, d in zip(slopes, directions, strict=True))
        size = sum(np.linalg.norm(of) * np.linalg.norm(d) for of, d in zip(slopes, directions, strict=True))
        expected = (8.0 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12.0 * h)
        assert along == pytest.approx(expected, abs=tolerance * size)


X4, STEP = random_images(4), Sequential(Dense(), Step(), Dense())
REFUSED: list[tuple[type[Exception], str, Network, tuple[Any, ...], dict[str, str]]] = [
    (DataError, r"G has shape \(3, 3\); expected \(4, 4\)", SMALL, (X4, None, np.ones((3, 3))), {}),
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
