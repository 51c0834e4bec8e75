"""The float64 reference against matrices of all covariances; test_finite_networks.py has random networks beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Erf,
    GlobalAvgPool,
    LayerNorm,
    NetworkError,
    ReLU,
    Sequential,
    Step,
    zoo,
)
from cnngp.network import Network, reference
from helpers.examples import examples
from helpers.matrix_oracle import oracle
from helpers.networks import images, networks_with_shapes, relu_like, smooth
from helpers.pooled import pooled_networks

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


@pytest.mark.parametrize("layer", [Conv(5, padding="valid"), ConvTranspose(1, padding=3), AvgPool(5), AvgPool((1, 5))])
def test_layers_that_do_not_fit_the_images_are_refused(layer: Network) -> None:
    with pytest.raises(NetworkError, match=r"does not fit .* locations; use larger images"):
        reference.kernel(Sequential(Conv(1), ReLU(), layer, Dense()), np.ones((2, 1, 4, 3)))


def test_a_global_pool_forgets_where_things_are() -> None:
    """With circular padding, a shifted image has the same covariance with every other one."""
    layers = [Conv(3, padding_mode="circular", weight_var=2.0, bias_var=0.1), Erf()] * 2
    X = images((1, 5, 5), 2, 1)
    moved = np.roll(X, (2, -1), axis=(2, 3))
    pooled, still = Sequential(*layers, GlobalAvgPool(), Dense()), Sequential(*layers, Dense())
    assert reference.kernel(pooled, X[:1], moved) == pytest.approx(reference.kernel(pooled, X[:1], X), rel=1e-12)
    assert abs(reference.kernel(still, X[:1], moved) / reference.kernel(still, X[:1], X) - 1).max() > 1e-3
