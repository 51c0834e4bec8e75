"""The gradient's oracle: every partial derivative and every transpose against finite differences of the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cnngp import zoo
from cnngp.network import reference
from cnngp.network.layers import Nonlinearity
from helpers import adjoint, generator, pooled
from helpers.derivatives import by_own_variance, by_variance
from helpers.differences import by_differences
from helpers.nonlinearities import SMOOTH


@pytest.mark.parametrize("layer", SMOOTH, ids=repr)
def test_derivatives_by_variances(layer: Nonlinearity) -> None:
    """∂V/∂K₁, and dV/dK of an image with itself, by central differences of order four."""
    h = 1e-3
    for K in (0.2, 1.0, 5.0):
        V = reference.nonlinearity_diagonal(layer, K * (1.0 + h * np.array([1.0, -1.0, 2.0, -2.0])))
        expected = (8.0 * (V[0] - V[1]) - (V[2] - V[3])) / (12.0 * h * K)
        assert by_own_variance(layer, np.array([K]))[0] == pytest.approx(expected, rel=1e-8)
    for (K1, K2), rho in itertools.product([(1.0, 1.0), (0.3, 4.0), (2.0, 0.1)], (-0.6, 0.0, 0.3, 0.9)):
        K = np.full(4, rho * np.sqrt(K1 * K2))
        steps = K1 * (1.0 + h * np.array([1.0, -1.0, 2.0, -2.0]))
        V = reference.nonlinearity(layer, K, steps, np.full(4, K2))
        expected = (8.0 * (V[0] - V[1]) - (V[2] - V[3])) / (12.0 * h * K1)
        found = by_variance(layer, K[:1], np.array([K1]), np.array([K2]))[0]
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-10), (K1, K2, rho)


@pytest.mark.parametrize("seed", range(24))
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
    X = rng.normal(size=(3, *shape))
    Z = rng.normal(size=(2, *shape)) if seed % 4 == 0 else None
    G = rng.normal(size=(3, 3 if Z is None else 2))
    found, expected = adjoint.gradient(net, X, Z, G), by_differences(net, X, Z, G, names)
    assert list(found) == list(net.parameters())
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
