"""The networks of the zoo: what they are made of, their names, and the one that is taken where none is given."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Kernel, NetworkError, ReLU, Sequential, zoo
from cnngp.network import Network
from cnngp.network.names import NETWORKS, default_names, default_network, network_by_name, zoo_name
from cnngp.network.placed import elements_of, placed
from cnngp.network.walk import leaves

C, R = Conv(3, weight_var=2.0), ReLU()


def layers_of(net: Any, kind: type[Network]) -> list[Any]:
    return [layer for _, layer in leaves(net) if isinstance(layer, kind)]


@pytest.mark.parametrize("depth", [8, 14, 32, 110])
def test_a_resnet_of_a_depth_has_that_many_layers_with_weights_on_its_main_path(depth: int) -> None:
    net = zoo.resnet(depth)
    assert len([c for c in layers_of(net, Conv) if c.kernel_size == 3]) == depth - 1
    assert len(layers_of(net, Dense)) == 2
    assert [c.stride for c in layers_of(net, Conv) if c.kernel_size == 1] == [1, 2, 2]
    sizes = [row.output for row in net.shapes((1, 28, 28))]
    assert [size for size, before in zip(sizes[1:], sizes, strict=False) if size != before] == [(14, 14), (7, 7), ()]


def test_the_papers_table_is_spelled_out() -> None:
    convnet, residual = zoo.convnet(), zoo.residual_cnn()
    assert layers_of(convnet, Conv) == [Conv(7, weight_var=2.79, bias_var=7.86, fan_in="channels")] * 7
    assert layers_of(convnet, Dense) == [Dense(2.79, 7.86)]
    assert layers_of(residual, Conv) == [Conv(4, weight_var=7.27, bias_var=4.69, fan_in="channels")] * 9
    assert layers_of(residual, Dense) == [Dense(7.27, 4.69)]
    for net, count in ((convnet, 7), (residual, 9)):
        assert layers_of(net, ReLU) == [ReLU(math.sqrt(2.0))] * count
        assert {row.output for row in net.shapes((1, 28, 28))} == {(28, 28), ()}
    assert set(layers_of(zoo.resnet(32), ReLU)) == {ReLU()}


def test_myrtle_is_the_published_one() -> None:
    """Its last 2 × 2 pools are the mean over all that is left."""
    two = AvgPool(2)
    assert zoo.myrtle(5) == Sequential(C, R, C, R, two, C, R, two, C, R, GlobalAvgPool(), Dense())
    for depth in (5, 7, 10):
        assert len(layers_of(zoo.myrtle(depth), Conv)) + len(layers_of(zoo.myrtle(depth), Dense)) == depth


def test_resnet_keeps_all_but_its_end() -> None:
    plain, whole, small = (zoo.resnet(8, pool=p).layers for p in (None, "global", 3))  # type: ignore[attr-defined]
    assert plain[:-3] == whole[:-3] == small[:-3]
    assert whole[-3:] == (R, GlobalAvgPool(), Dense())
    assert small[-3:] == (R, AvgPool(3, stride=1), Dense())


@pytest.mark.parametrize(("size", "elements"), [("small", 32_768), ("medium", 112_360), ("large", 424_436)])
def test_pooled_networks_cost_what_they_say(size: Any, elements: int) -> None:
    walk = placed(zoo.pooled_cnn(size), (28, 28)).walk()  # type: ignore[arg-type]
    assert sum(here.elements for here in walk if isinstance(here.layer, ReLU)) == elements


# ---- names ---------------------------------------------------------------------------------------------------------


def biased(net: Network, bias_var: float) -> Network:
    return net.with_parameters({place: bias_var for place in net.parameters() if place.endswith("bias_var")})


VARIANTS: dict[str, Network] = {
    "resnet20-pool5": zoo.resnet(20, pool=5),
    "pooled_cnn-large-halved2": zoo.pooled_cnn("large", 2),
    "pooled_cnn-small-halved0-even": zoo.pooled_cnn("small", 0, even=True),
    "pooled_cnn-global-even": zoo.pooled_cnn(pool="global", even=True),
    "pooled_cnn-large-halved2-pool7-exp": zoo.pooled_cnn("large", 2, pool=7, nonlinearity="exp"),
    "myrtle7-exp": zoo.myrtle(7, "exp"),
    "rbf-gamma0.3": zoo.rbf(0.3),
    "pooled_cnn-small-halved0-global-even-bias1": biased(zoo.pooled_cnn("small", 0, pool="global", even=True), 1.0),
    "dense_nngp-bias10000": biased(zoo.dense_nngp(), 1e4),
    "resnet32-bias1e-05": biased(zoo.resnet(32), 1e-5),
}


def test_names_lead_back_to_their_networks() -> None:
    plain = {name: make() for name, (make, _) in NETWORKS.items()}
    for name, network in (plain | VARIANTS).items():
        assert network_by_name(name) == network
        assert zoo_name(network) == (repr(network) if name == "resnet20-pool5" else name)


A_POOL = "'global' or a positive integer"
WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (network_by_name, {"name": "resnet8-pool0"}, f"zoo.resnet: pool=0 is not None, {A_POOL}"),
    *(
        (network_by_name, {"name": name}, "no network")
        for name in ("myrtle5-global", "pooled_cnn-bias", "pooled_cnn-bias-1", "auto-bias1", "nothing-bias1")
    ),
    (zoo.resnet, {"depth": 30}, "depth=30 is not 6n . 2; use 8, 14, 20"),
    (zoo.resnet, {"depth": 2}, "depth=2 is not 6n"),
    (zoo.resnet, {"depth": "32"}, "zoo.resnet: depth='32' is not an integer"),
    (zoo.myrtle, {"depth": 6}, "depth=6 is not one of 4, 5, 7, 10"),
    (zoo.dense_nngp, {"depth": True}, "zoo.dense_nngp: depth=True is not an integer"),
    (zoo.dense_nngp, {"depth": 0}, "depth=0; use at least one hidden layer"),
    (zoo.dense_nngp, {"nonlinearity": "tanh"}, "nonlinearity='tanh' is not one of relu, erf"),
    (zoo.pooled_cnn, {"size": "huge"}, r"size='huge' is not one of 'small', 'medium', 'large'"),
    (zoo.pooled_cnn, {"halvings": -1}, "halvings=-1 is not an integer of 0 or more"),
    (zoo.pooled_cnn, {"halvings": 1.5}, "halvings=1.5 is not an integer of 0 or more"),
    (zoo.pooled_cnn, {"pool": "local"}, f"pool='local' is not None, {A_POOL}"),
    (zoo.pooled_cnn, {"nonlinearity": "erf"}, "nonlinearity='erf' is not 'relu' or 'exp'"),
    (zoo.conv_gp, {"pool": 0}, f"zoo.conv_gp: pool=0 is not {A_POOL}"),
    (zoo.conv_gp, {"pixel_var": 0.5}, "pixel_var=0.5 needs pixel_gamma"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), WRONG)
def test_wrong_names_and_arguments_are_refused(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        *((f"myrtle{depth}", 8) for depth in (5, 7, 10)),
        *((f"pooled_cnn{size}", 28) for size in ("", "-small", "-large")),
        *(("pooled_cnn-large-halved2-exp", 32), ("pooled_cnn-halved0-global", 9), ("pooled_cnn-small-pool7-even", 28)),
    ],
)
def test_networks_for_pictures_do_the_same_to_mirror_images(name: str, side: int) -> None:
    network: Any = network_by_name(name)
    assert Kernel(network, device="cpu", symmetry="flip").engine_for((1, side, side)).commutes  # type: ignore[attr-defined]


# ---- the network that is taken where none is given -----------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [(1, 8, 8), (1, 28, 28), (3, 48, 64), (1, 1, 1), (1, 4, 4), (1, 3, 40), (2, 5), (1, 100), (1, 6, 6, 6), (10,)],
)
def test_every_shape_has_networks_that_fit_it_and_cost_less_one_after_the_other(shape: tuple[int, ...]) -> None:
    costs = []
    for name in default_names(shape):
        network: Any = network_by_name(name)
        assert math.prod(network.shapes(shape).output) == 1
        assert zoo_name(network) == name
        costs.append(elements_of(network, shape))
        assert costs[-1] == network.shapes(shape).elements
    assert costs == sorted(set(costs), reverse=True)


@pytest.mark.parametrize(
    ("n", "name"),
    [(1000, "pooled_cnn-large-exp"), (5000, "pooled_cnn-exp"), (10_000, "pooled_cnn-small-exp"), (60_000, "resnet32")],
)
def test_more_images_get_a_cheaper_network(n: int, name: str) -> None:
    network = default_network((1, 28, 28), n)
    assert zoo_name(network) == name


def test_halving_leaves_ten_to_nineteen_places_of_the_shorter_side() -> None:
    assert [zoo.halvings_for(side) for side in (1, 9, 10, 19, 20, 39, 40, 79, 80)] == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    for side in (10, 19, 20, 31, 39, 40, 79, 80, 159, 160):
        left = zoo.pooled_cnn("small", zoo.halvings_for(side)).shapes((1, side, side)).rows[-3].output
        assert 10 <= left[0] <= 20
