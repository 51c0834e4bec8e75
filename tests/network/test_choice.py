"""The network that is taken when none is given: by size and number of images, the same on every machine."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cnngp import zoo
from cnngp.network.choice import AN_IMAGE, IN_ALL, biased, choose, options, unpooled
from cnngp.network.layers import NetworkError
from cnngp.network.names import biased_name, network_by_name, pooled_name, zoo_name

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
    among = options(shape)
    for option in among:
        assert math.prod(option.network.shapes(shape).output) == 1
        assert network_by_name(option.name) == option.network
        assert zoo_name(option.network) == option.name
    costs = [option.elements for option in among]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)


@pytest.mark.parametrize("shape", SHAPES)
def test_more_images_never_get_a_dearer_network(shape: tuple[int, ...]) -> None:
    chosen = [choose(shape, n).option.elements for n in (1, 2, 10, 100, 1000, 5000, 20_000, 10**6)]
    assert chosen == sorted(chosen, reverse=True)


def test_what_is_chosen_stays_within_the_limits_and_the_next_better_one_does_not() -> None:
    for n in range(50, 20_000, 350):
        choice = choose((1, 28, 28), n)
        pairs = n * (n - 1) // 2
        limit = min(AN_IMAGE * n, IN_ALL)
        if choice.quicker is not None:  # else there is nothing cheaper
            assert choice.option.elements * pairs <= limit
        if choice.better is not None:
            assert choice.better.elements * pairs > limit


@pytest.mark.parametrize(
    ("n", "name"),
    [(100, "pooled_cnn-large"), (1000, "pooled_cnn-large"), (5000, "pooled_cnn"), (10_000, "pooled_cnn-small")],
)
def test_digits_of_28_by_28_get_what_the_documentation_says(n: int, name: str) -> None:
    assert choose((1, 28, 28), n).option.name == name
    assert choose((1, 28, 28), 60_000).option.name == "resnet32"


def test_pairs_with_inducing_images_are_counted_as_they_are() -> None:
    few, many = choose((1, 28, 28), 1100, 1000 * 999 // 2 + 100_000), choose((1, 28, 28), 11_000, 10_499_500)
    assert few.option.name == "pooled_cnn-large"
    assert many.option.name == "pooled_cnn"


def test_the_sentence_names_the_network_the_reason_and_what_a_better_one_takes() -> None:
    best, next_best = choose((1, 28, 28), 500), choose((1, 28, 28), 2000)
    assert best.text() == (
        "pooled_cnn-large, chosen for 500 images of 1 × 28 × 28; no better one is known for images of this "
        "size, but `cnngp search --space pooled` can look for one"
    )
    assert "pooled_cnn-large is usually more accurate and takes about 3.8 times as long, about 38 s" in next_best.text(
        10.0
    )
    assert "its kernels took 10.0 s here" in next_best.text(10.0)


def test_halving_leaves_ten_to_nineteen_places_of_the_shorter_side() -> None:
    assert [zoo.halvings_for(side) for side in (1, 9, 10, 19, 20, 39, 40, 79, 80)] == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    for side in range(10, 400):
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


def test_relatives_without_a_pool_and_with_biases_cost_what_they_say() -> None:
    best = options((1, 8, 8))[0]
    relative = biased(best, (1, 8, 8), 0.1)
    assert (relative.name, relative.elements) == (f"{best.name}-bias0.1", best.elements)
    assert [option.name for option in unpooled((1, 8, 8))] == ["small_cnn", "dense_nngp"]
    assert max(option.elements for option in unpooled((1, 8, 8))) < options((1, 8, 8))[-2].elements
