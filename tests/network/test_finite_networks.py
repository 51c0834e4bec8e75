"""The tangent kernel of the reference against random finite networks in PyTorch."""

import math

import numpy as np
import pytest

from cnngp import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, Identity, Sequential, Sum, sample_network
from cnngp.network import reference
from cnngp.network.layers import GELU, Abs, Erf, LayerNorm, LeakyReLU, ReLU, Sin
from cnngp.torch import empirical_kernel
from helpers.networks import Case, of

pytest.importorskip("torch")

R, D, UP = ReLU(), Dense(), {"stride": 2, "padding": 1, "weight_var": 2.0}
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
