"""The gradient's oracle: every partial derivative and every transpose against finite differences of the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cnngp import (
    GELU,
    Abs,
    AvgPool,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    LeakyReLU,
    Network,
    NetworkError,
    Rbf,
    ReLU,
    Sequential,
    Step,
    Sum,
    zoo,
)
from cnngp.network import reference
from cnngp.network.layers import Nonlinearity
from helpers import adjoint, generator, pooled
from helpers.derivatives import by_own_variance, by_variance
from helpers.differences import by_differences
from helpers.nonlinearities import SMOOTH


@pytest.mark.parametrize("layer", SMOOTH, ids=repr)
def test_the_derivative_by_a_variance_is_that_of_the_covariance(layer: Nonlinearity) -> None:
    """∂V/∂K₁ by central differences of order four."""
    h = 1e-3
    for (K1, K2), rho in itertools.product([(1.0, 1.0), (0.3, 4.0), (2.0, 0.1)], (-0.6, 0.0, 0.3, 0.9)):
        K = np.full(4, rho * np.sqrt(K1 * K2))
        steps = K1 * (1.0 + h * np.array([1.0, -1.0, 2.0, -2.0]))
        V = reference.nonlinearity(layer, K, steps, np.full(4, K2))
        expected = (8.0 * (V[0] - V[1]) - (V[2] - V[3])) / (12.0 * h * K1)
        found = by_variance(layer, K[:1], np.array([K1]), np.array([K2]))[0]
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-10), (K1, K2, rho)


@pytest.mark.parametrize("layer", SMOOTH, ids=repr)
def test_the_derivative_of_a_variance_is_that_of_the_diagonal(layer: Nonlinearity) -> None:
    h = 1e-3
    for K in (0.2, 1.0, 5.0):
        V = reference.nonlinearity_diagonal(layer, K * (1.0 + h * np.array([1.0, -1.0, 2.0, -2.0])))
        expected = (8.0 * (V[0] - V[1]) - (V[2] - V[3])) / (12.0 * h * K)
        assert by_own_variance(layer, np.array([K]))[0] == pytest.approx(expected, rel=1e-8)


LAYERS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "dense": (Sequential(Dense(1.5, 0.1), Erf(), Dense(1.2, 0.3), GELU(), Dense()), (5,)),
    "one layer": (Dense(1.5, 0.1), (5,)),
    "residual": (
        Sequential(
            Conv(3, weight_var=1.5, bias_var=0.1),
            Sum(Identity(), Sequential(LeakyReLU(0.2), Conv(3, bias_var=0.2), ReLU(0.9), Conv(3))),
            Abs(),
            Dense(bias_var=0.1),
        ),
        (1, 4, 4),
    ),
    "transposed": (Sequential(Conv(3), Rbf(0.3), ConvTranspose(3, stride=2, bias_var=0.1), Cos(), Dense()), (2, 6)),
    "padding": (
        Sequential(
            Conv(3, padding_mode="reflect"), ReLU(), Conv(4, padding_mode="replicate"), ReLU(),
            Conv(5, padding_mode="circular", fan_in="channels"), ReLU(), Dense(),
        ),
        (1, 5, 6),
    ),
    "pools": (
        Sequential(Conv(3, bias_var=0.2), ReLU(), AvgPool(2), Conv(3, bias_var=0.1), GELU(), GlobalAvgPool(), Dense()),
        (1, 4, 4),
    ),
    "padded pools": (
        Sequential(
            Conv(3, stride=2, padding_mode="circular", bias_var=0.1), LeakyReLU(0.3), AvgPool(3, 2, 1, False), Conv(2),
            Sum(Identity(), Sequential(Erf(), ConvTranspose(3))), AvgPool(2, 1), Dense(1.0, 0.3),
        ),
        (2, 8, 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    net, shape = LAYERS[name]
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(3, *shape)), rng.normal(size=(4, *shape))
    for other, G in ((Z, rng.normal(size=(3, 4))), (None, rng.normal(size=(3, 3)))):
        found = adjoint.gradient(net, X, other, G)
        expected = by_differences(net, X, other, G)
        size = max(map(abs, expected.values()))
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-8 * size)
        assert list(found) == list(net.parameters())


@pytest.mark.parametrize("seed", range(20))
def test_generated_networks(seed: int) -> None:
    """Biases of variance 0 get some, or are left out: patches that lie in the padding have infinite derivatives."""
    rng = np.random.default_rng(seed)
    acts = (*generator.RELU_LIKE, *generator.SMOOTH)
    if seed % 3:
        net, shape = generator.random_network(rng, acts, max_pixels=60)
    else:
        pick = generator.Random(rng)
        net, shape = pooled.network(pick, lambda: pick.among(acts), 400)
    if seed % 2:
        net = net.with_parameters({name: 0.05 for name, value in net.parameters().items() if value == 0.0})
    names = [name for name, value in net.parameters().items() if value != 0.0]
    X, G = rng.normal(size=(3, *shape)), rng.normal(size=(3, 3))
    found, expected = adjoint.gradient(net, X, None, G), by_differences(net, X, None, G, names)
    size = max(map(abs, expected.values()))
    assert {name: found[name] for name in names} == pytest.approx(expected, rel=1e-6, abs=1e-7 * size)


def test_blank_patches_give_finite_numbers() -> None:
    """A patch without variance takes no part in the weights' gradients, as in finite differences."""
    net = zoo.resnet(8)
    X = np.random.default_rng(0).normal(size=(3, 1, 8, 8))
    X[:, :, :5] = 0.0
    X[2] = 0.0
    G = np.random.default_rng(1).normal(size=(3, 3))
    weights = {name for name in net.parameters() if not name.endswith("bias_var")}
    found, expected = adjoint.gradient(net, X, None, G), by_differences(net, X, None, G, weights)
    assert np.isfinite(list(found.values())).all()
    assert {name: found[name] for name in weights} == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_step_is_refused_with_the_reason() -> None:
    with pytest.raises(NetworkError, match=r"layers\[1\]: Step\(\) has no gradient: .* use Erf\(\)"):
        adjoint.gradient(Sequential(Dense(), Step(), Dense()), np.eye(2), None, np.eye(2))
