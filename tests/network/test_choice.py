"""The network that is taken when none is given: by size and number of images, the same on every machine."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cnngp import zoo
from cnngp.network.layers import NetworkError
from cnngp.network.names import (
    AN_IMAGE,
    IN_ALL,
    biased_name,
    default_names,
    default_network,
    network_by_name,
    pooled_name,
    zoo_name,
)

SHAPES = [
    (1, 8, 8),
    (1, 14, 14),
    (3, 16, 16),
    (1, 28, 28),
    (3, 32, 32),
    (3, 48, 64),
    (3, 64, 64),
    (1, 1, 1),
    (1, 2, 2),
    (1, 4, 4),
    (1, 5, 5),
    (1, 3, 40),
    (1, 20, 7),
    (2, 5),
    (1, 100),
    (1, 1000),
    (1, 6, 6, 6),
    (1, 24, 24, 24),
    (10,),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_networks_that_fit_it_and_cost_less_one_after_the_other(shape: tuple[int, ...]) -> None:
    costs = []
    for name in default_names(shape):
        network = network_by_name(name)
        assert network is not None
        assert math.prod(network.shapes(shape).output) == 1
        assert zoo_name(network) == name
        costs.append(network.shapes(shape).elements)
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)


@pytest.mark.parametrize(
    ("n", "name"),
    [(100, "pooled_cnn-large"), (1000, "pooled_cnn-large"), (5000, "pooled_cnn"), (10_000, "pooled_cnn-small")],
)
def test_more_images_get_a_cheaper_network(n: int, name: str) -> None:
    assert zoo_name(default_network((1, 28, 28), n)) == name
    assert zoo_name(default_network((1, 28, 28), 60_000)) == "resnet32"
    limit = min(AN_IMAGE * n, IN_ALL)
    assert default_network((1, 28, 28), n).shapes((1, 28, 28)).elements * n * (n - 1) // 2 <= limit


def test_halving_leaves_ten_to_nineteen_places_of_the_shorter_side() -> None:
    assert [zoo.halvings_for(side) for side in (1, 9, 10, 19, 20, 39, 40, 79, 80)] == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    turns = {at << power for at in (10, 19, 20) for power in range(5)}
    for side in {*range(10, 45), *turns, *(turn - 1 for turn in turns - {10}), 390}:
        left = zoo.pooled_cnn("small", zoo.halvings_for(side)).shapes((1, side, side)).rows[-3].output
        assert 10 <= left[0] <= 20


def test_pooled_networks_have_names_that_lead_back_to_them() -> None:
    assert network_by_name("pooled_cnn-large-halved2") == zoo.pooled_cnn("large", 2)
    assert pooled_name("medium", 1) == "pooled_cnn"
    assert zoo_name(zoo.pooled_cnn("small", 0)) == "pooled_cnn-small-halved0"
    for halvings in (-1, 1.5, True):
        with pytest.raises(NetworkError, match="is not an integer of 0 or more"):
            zoo.pooled_cnn("small", halvings)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", list(zoo.POOLED_SIZES))
@pytest.mark.parametrize("halvings", [0, 1, 2])
def test_relatives_of_pooled_networks_have_names_too(size: Any, halvings: int) -> None:
    for pool, even in ((None, True), ("global", False), ("global", True)):
        network = zoo.pooled_cnn(size, halvings, pool=pool, even=even)  # type: ignore[arg-type]
        assert network_by_name(zoo_name(network)) == network
        assert network != zoo.pooled_cnn(size, halvings)
    with pytest.raises(NetworkError, match="pool='local' is not None or 'global'"):
        zoo.pooled_cnn(size, halvings, pool="local")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["pooled_cnn-large-bias0.1", "pooled_cnn-small-halved0-global-even-bias1", "dense_nngp-bias10000"]
)
def test_networks_with_biases_have_names_that_lead_back_to_them(name: str) -> None:
    network = network_by_name(name)
    assert network is not None
    biases = {value for place, value in network.parameters().items() if place.endswith("bias_var")}
    assert biases == {float(name.rpartition("-bias")[2])}
    assert zoo_name(network) == name
    plain = network_by_name(name.rpartition("-bias")[0])
    assert [type(layer) for layer in network.layers] == [type(layer) for layer in plain.layers]  # type: ignore[union-attr]


def test_biases_of_any_size_and_of_networks_with_branches_have_names_and_wrong_ones_are_refused() -> None:
    for bias in (1e-12, 3e-5, 0.25, 1e6, 1e12):
        name = biased_name("resnet8", bias)
        network = network_by_name(name)
        assert network is not None
        assert {v for place, v in network.parameters().items() if place.endswith("bias_var")} == {bias}
    assert zoo_name(network_by_name("resnet32-bias1e-05")) == "resnet32-bias1e-05"  # type: ignore[arg-type]
    for wrong in ("pooled_cnn-bias", "pooled_cnn-bias-1", "auto-bias1", "pooled_cnn-bias1-even", "nothing-bias1"):
        with pytest.raises(NetworkError, match="no network"):
            network_by_name(wrong)
