"""The float64 reference against matrices of all covariances, random finite networks and a rival's numbers; its formulas
stand in test_nonlinearities.py.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Kernel,
    Sequential,
    Sum,
    sample_network,
    zoo,
)
from cnngp.network import Network, reference
from cnngp.network.layers import GELU, Abs, Erf, LayerNorm, LeakyReLU, NetworkError, ReLU, Sin, Step
from cnngp.torch import empirical_kernel
from helpers import derivatives
from helpers.examples import examples
from helpers.matrix_oracle import oracle
from helpers.networks import Case, images, networks_with_shapes, of, relu_like, smooth
from helpers.pooled import pooled_networks, small_network

R, D, UP = ReLU(), Dense(), {"stride": 2, "padding": 1, "weight_var": 2.0}
acts = st.one_of(relu_like, smooth)
any_network = st.one_of(networks_with_shapes(acts, max_pixels=40), pooled_networks(acts, max_elements=1500))


@given(drawn=any_network, seed=st.integers(0, 10**6))
@examples(150)
def test_generated_networks_agree_with_matrices(drawn: tuple[Network, tuple[int, ...]], seed: int) -> None:
    net, shape = drawn
    X = images(shape, 4, seed)  # the first is blank
    R, diagonal = reference.kernel(net, X), reference.diagonal(net, X)
    scale = max(np.abs(R).max(), 1e-300)
    for i, j in ((0, 1), (1, 2)):
        K, variance = oracle(net, X[i], X[j])
        # math.acos loses half the digits near correlation 1 where images nearly agree; elsewhere this is rounding.
        assert R[i, j] == pytest.approx(K, rel=1e-9, abs=1e-9 * scale)
        assert R[i, i] == pytest.approx(variance, rel=1e-11, abs=1e-11 * scale)
    assert diagonal == pytest.approx(R.diagonal(), rel=1e-14)
    rounding = 1e-12 if reference.has_pools(net) else 0.0  # sums over many more covariances
    np.testing.assert_allclose(reference.kernel(net, X[:2], X[2:]), R[:2, 2:], rtol=rounding, atol=rounding * scale)
    # An engine, which plans sums along axes and displacements under pools instead, comes to the same.
    K = Kernel(net, device="cpu", dtype="float64", check=False)(X)
    np.testing.assert_allclose(K, R, rtol=0, atol=1e-12 * scale)


KNOWN = {
    "resnet": zoo.resnet(8),
    "residual cnn": zoo.residual_cnn(),
    "convnet": zoo.convnet(),
    "steps": Sequential(Conv(3, weight_var=2.0), Step(), Conv(2, bias_var=0.1), Step(), Dense()),
    "norms": Sequential(Conv(3), LayerNorm("all", 0.1), ReLU(), Conv(2), LayerNorm("all"), ReLU(), Dense()),
    "copied padding behind a pool": Sequential(
        Conv(3), ReLU(), AvgPool(2), Conv(3, padding_mode="reflect"), ReLU(), Conv(2, padding_mode="replicate"), Dense()
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_networks_agree_with_matrices(name: str) -> None:
    X = images((1, 6, 5), 2, 3)
    K, variance = oracle(KNOWN[name], X[0], X[1])
    R = reference.kernel(KNOWN[name], X)
    assert R[0, 1] == pytest.approx(K, rel=1e-10)
    assert R[0, 0] == pytest.approx(variance, rel=1e-12)


# ---- the tangent kernel of random finite networks in PyTorch ---------------------------------------------------------

UNEVEN = Conv((2, 3), padding=((0, 1), 1), dilation=(2, 1), weight_var=1.5, fan_in="channels")
BRANCH = Sequential(LeakyReLU(0.2), Conv(3, bias_var=0.2), R, Conv(3, padding_mode="replicate"))
NETWORKS: dict[str, Case] = {
    "dense": of((5,), Dense(1.5, 0.1), Erf(), Dense(1.2, 0.3), GELU(), D),
    "convolutions": of((2, 6, 5), Conv(3, stride=2, weight_var=1.8, bias_var=0.1), R, UNEVEN, Sin(), Dense(1.2, 0.3)),
    "residual": of((1, 4, 4), Conv(3, weight_var=1.5), Sum(Identity(), BRANCH), Abs(), Dense(bias_var=0.1)),
    "transposed": of((1, 4, 4), Conv(3, **UP), R, ConvTranspose(3, **UP, output_padding=1, bias_var=0.05), R, D),
    "norms": of((1, 4, 4), Conv(3, bias_var=0.1), LayerNorm("all", 0.1), R, Conv(3), LayerNorm("all"), R, D),
    "pools": of((1, 4, 4), Conv(3), R, AvgPool(2), Conv(3, bias_var=0.1), R, GlobalAvgPool(), D),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("one_torch_thread")
def test_finite_networks_approach_the_tangent_kernel(name: str) -> None:
    """Averages over draws: within their spread and a bias of 1/channels."""
    net, shape = NETWORKS[name]
    channels, draws = {"dense": (400, 12), "pools": (100, 100)}.get(name, (200, 8))
    X = np.random.default_rng(1).normal(size=(3, *shape))
    modules = (sample_network(net, channels, shape, seed, outputs=1).double() for seed in range(draws))
    drawn = [empirical_kernel(module, X, kind="ntk", parametrization="ntk") for module in modules]
    expected, mean = reference.kernel(net, X, kind="ntk"), np.mean(drawn, axis=0)
    spread = np.std(drawn, axis=0, ddof=1) / math.sqrt(draws)
    assert spread.max() <= 0.06 * expected.max(), "too few draws to tell anything"
    assert (np.abs(mean - expected) <= 5.0 * spread + 3.0 / channels * expected.max()).all()


# ---- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [Conv(5, padding="valid"), ConvTranspose(1, padding=3), AvgPool(5), AvgPool((1, 5))])
def test_layers_that_do_not_fit_the_images_are_refused(layer: Network) -> None:
    with pytest.raises(NetworkError, match=r"does not fit .* locations; use larger images"):
        reference.kernel(Sequential(Conv(1), ReLU(), layer, Dense()), np.ones((2, 1, 4, 3)))


@pytest.mark.parametrize("size", [1, 7])
def test_branches_that_numpy_would_broadcast_are_refused(size: int) -> None:
    with pytest.raises(NetworkError, match="the branches of a Sum must have one shape"):
        reference.kernel(Sequential(Sum(Conv(3), Dense()), Dense()), np.ones((2, 1, size, size)))


# ---- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_gradients_of_generated_networks(seed: int) -> None:
    """Biases of variance 0 get some, or are left out: patches that lie in the padding have infinite derivatives."""
    rng = np.random.default_rng(seed)
    net, shape = small_network(rng, pools=seed % 3 == 0)
    if seed % 2:
        net = net.with_parameters({name: 0.05 for name, value in net.parameters().items() if value == 0.0})
    names = [name for name, value in net.parameters().items() if value != 0.0]
    X = rng.normal(size=(3, *shape))
    Z = rng.normal(size=(2, *shape)) if seed % 4 == 0 else None
    G = rng.normal(size=(3, 3 if Z is None else 2))
    found, expected = derivatives.gradient(net, X, Z, G), derivatives.by_differences(net, X, Z, G, names)
    assert list(found) == list(net.parameters())
    size = max(map(abs, expected.values()))
    assert {name: found[name] for name in names} == pytest.approx(expected, rel=1e-6, abs=1e-7 * size)


# ---- neural-tangents 0.6.5 (Novak et al. 2020), which carries all covariances ---------------------------------------


# Written by tools/pooled_by_neural_tangents.py, in float64, with jax 0.10.2 (whose moved names were put back where
# neural-tangents looks for them): the upper triangles of the tangent kernel of three images, row by row. It grows from
# K at every layer, so these numbers tell of both.
# fmt: off
BY_NEURAL_TANGENTS = {
    "lenet": [0.949209226254534, 0.8230453878783014, 0.7575922131528736,
        0.9399456812006223, 0.817548073915344, 0.9077601665575328],
    "overlapping": [1.5292332297783937, 1.1535619670727688, 1.0243368405827042,
        1.5371430735748972, 1.1810994871662035, 1.5255692553696476],
    "strided": [1.3045475043915917, 1.0388088726737434, 0.9864300059536739,
        1.4070348935476846, 1.05149244857534, 1.3303410129045525],
    "global": [0.8554728695308382, 0.8129828805498811, 0.7878114989560827,
        0.8418236209477199, 0.8186638628438473, 0.8512680130263365],
    "residual": [2.0981425124679047, 1.9201980262954956, 1.8183345795503025,
        2.0725331979813744, 1.904374077945354, 2.0376367988995017],
}
# fmt: on


def conv(size: int, stride: int = 1, padding: str = "same") -> Conv:
    return Conv(size, stride, padding, weight_var=2.0, bias_var=0.1)  # type: ignore[arg-type]


G, HEAD = GlobalAvgPool(), Dense(weight_var=2.0, bias_var=0.1)
BLOCK = Sum(Identity(), Sequential(R, conv(3)))
RIVALS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "lenet": (Sequential(conv(3), R, AvgPool(2), conv(3), R, AvgPool(2), HEAD), (1, 8, 8)),
    "overlapping": (Sequential(conv(3), R, AvgPool(3, 2), conv(2, 1, "valid"), R, HEAD), (2, 9, 7)),
    "strided": (Sequential(conv(3, 3, "valid"), R, conv(3), R, AvgPool(2, 1), HEAD), (1, 12, 12)),
    "global": (Sequential(conv(3), R, conv(3), Erf(), G, HEAD), (2, 6, 5)),
    "residual": (Sequential(conv(3), BLOCK, R, AvgPool(2), conv(3), BLOCK, R, G, HEAD), (1, 6, 6)),
}


def waves(channels: int, height: int, width: int) -> np.ndarray:
    n, c, i, j = np.ogrid[:3, :channels, :height, :width]
    return np.sin(1.0 + n + (0.7 + 0.3 * n) * i + (1.1 - 0.2 * n) * j * (c + 1))


@pytest.mark.parametrize("name", RIVALS)
def test_the_rivals_numbers(name: str) -> None:
    net, shape = RIVALS[name]
    expected, X, upper = np.array(BY_NEURAL_TANGENTS[name]), waves(*shape), np.triu_indices(3)
    # Two float64 programs that round in different places; a slip in the mathematics would be far larger.
    np.testing.assert_allclose(reference.kernel(net, X, kind="ntk")[upper], expected, rtol=1e-11)
    double, single = (Kernel(net, device="cpu", dtype=dtype, kind="ntk")(X)[upper] for dtype in ("float64", "float32"))
    np.testing.assert_allclose(double, expected, rtol=1e-11)
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-6 * expected.max())
