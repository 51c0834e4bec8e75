"""The networks of the zoo with pools: what they are made of, their names, and the kernel of each."""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Kernel, Network, NetworkError, ReLU, Sequential, zoo
from cnngp.network import reference
from cnngp.network.names import NETWORKS, network_by_name, zoo_name
from cnngp.network.placed import elements_of, placed

C, R = Conv(3, weight_var=2.0), ReLU()


def test_myrtle_is_the_published_one_on_its_own_images() -> None:
    """Its last 2 × 2 pools are the mean over all that is left; here at half the size, with two pools of three."""
    two = AvgPool(2)
    published = Sequential(C, R, C, R, two, C, R, two, C, R, two, two, Dense())
    assert zoo.myrtle(5) == Sequential(C, R, C, R, two, C, R, two, C, R, GlobalAvgPool(), Dense())
    X = np.random.default_rng(0).normal(size=(2, 1, 16, 16))
    ours, theirs = (Kernel(net, "cpu", "float64", check=False)(X) for net in (zoo.myrtle(5), published))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("depth", [5, 7, 10])
def test_myrtle_has_its_number_of_layers(depth: int) -> None:
    assert sum(isinstance(layer, Conv | Dense) for layer in zoo.myrtle(depth).layers) == depth
    assert network_by_name(f"myrtle{depth}") == zoo.myrtle(depth)


def test_resnet_keeps_all_but_its_end() -> None:
    plain, whole, small = (zoo.resnet(8, pool=p).layers for p in (None, "global", 3))
    assert plain[:-3] == whole[:-3] == small[:-3]
    assert whole[-3:] == (R, GlobalAvgPool(), Dense())
    assert small[-3:] == (R, AvgPool(3, stride=1), Dense())
    assert zoo.resnet(8) == zoo.resnet(8, pool=None)


@pytest.mark.parametrize("name", ["lenet", "resnet8-pool2", "resnet14-global"])
def test_named_networks_are_their_kernels(name: str) -> None:
    net = network_by_name(name)
    assert net is not None
    X = np.random.default_rng(1).normal(size=(2, 1, 14, 14)).astype(np.float32)
    K = reference.kernel(net, X)
    np.testing.assert_allclose(Kernel(net, device="cpu")(X), K, rtol=0, atol=1e-6 * np.abs(K).max())


def test_names() -> None:
    for name, (make, _) in NETWORKS.items():
        assert network_by_name(name) == make()
        assert zoo_name(make()) == name
    assert network_by_name("resnet20-pool5") == zoo.resnet(20, pool=5)
    for wrong, says in {
        "myrtle6": "depth=6 is not one of 4, 5, 7, 10",
        "resnet8-pool0": "pool=0 is not None, 'global' or a positive integer",
        "myrtle5-global": "no network 'myrtle5-global'",
        "resnet9-global": "depth=9 is not 6n",
    }.items():
        with pytest.raises(NetworkError, match=says):
            network_by_name(wrong)
    with pytest.raises(NetworkError, match="pool='all' is not None"):
        zoo.resnet(8, pool="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "elements"), [("small", 32_768), ("medium", 112_360), ("large", 424_436)])
def test_pooled_networks_cost_what_they_say(size: str, elements: int) -> None:
    walk = placed(zoo.pooled_cnn(size), (28, 28)).walk()  # type: ignore[arg-type]
    assert sum(here.elements for here in walk if isinstance(here.layer, ReLU)) == elements
    assert zoo_name(zoo.pooled_cnn(size)).startswith("pooled_cnn")  # type: ignore[arg-type]


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(NetworkError, match=r"size='huge' is not one of 'small', 'medium', 'large'"):
        zoo.pooled_cnn("huge")  # type: ignore[arg-type]


def test_elements_count_every_sheet() -> None:
    net = Sequential(C, R, AvgPool(2), C, R, AvgPool(2), Dense())
    before, between = (28 + 2 * (27 + 26 + 25)) ** 2, (14 + 2 * 13) ** 2  # 7 and 3 displacements an axis
    assert net.shapes((1, 28, 28)).elements == before + between
    plain = zoo.convnet()
    assert plain.shapes((1, 9, 9)).elements == Kernel(plain, device="cpu").engine_for((1, 9, 9)).program.elements


@pytest.mark.parametrize("net", [zoo.small_cnn(), zoo.resnet(8), zoo.pooled_cnn(), zoo.pooled_cnn(pool="global")])
def test_covariances_are_counted_without_the_table_of_costs(net: Network) -> None:
    assert elements_of(net, (3, 20, 17)) == net.shapes((3, 20, 17)).elements
