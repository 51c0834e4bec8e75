"""A network's parameters by their place, and networks with other ones."""

from __future__ import annotations

import pytest

from cnngp import Conv, Dense, Identity, LeakyReLU, NetworkError, ReLU, Sequential, Sum, zoo

NET = Sequential(Conv(3), Sum(Identity(), Sequential(LeakyReLU(0.1), Conv(3, bias_var=0.2))), ReLU(2.0), Dense(3.0))


def test_names_are_places() -> None:
    assert NET.parameters() == {
        "layers[0].weight_var": 1.0,
        "layers[0].bias_var": 0.0,
        "layers[1].branches[1].layers[0].slope": 0.1,
        "layers[1].branches[1].layers[1].weight_var": 1.0,
        "layers[1].branches[1].layers[1].bias_var": 0.2,
        "layers[2].gain": 2.0,
        "layers[3].weight_var": 3.0,
        "layers[3].bias_var": 0.0,
    }
    assert Dense(2.0).parameters() == {"weight_var": 2.0, "bias_var": 0.0}


def test_places_are_those_of_the_shapes() -> None:
    net = zoo.resnet(14)
    places = {row.place for row in net.shapes((1, 28, 28)).rows}
    assert {name.rpartition(".")[0] for name in net.parameters()} <= places


def test_a_network_with_other_parameters() -> None:
    assert NET.with_parameters({}) == NET == NET.with_parameters(NET.parameters())
    changed = NET.with_parameters({"layers[1].branches[1].layers[1].bias_var": 0.5, "layers[2].gain": 1.0})
    assert changed == Sequential(
        Conv(3), Sum(Identity(), Sequential(LeakyReLU(0.1), Conv(3, bias_var=0.5))), ReLU(), Dense(3.0)
    )
    assert zoo.residual_cnn().with_parameters({"layers[8].weight_var": 2.0}).parameters()["layers[8].weight_var"] == 2.0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(NetworkError, match=r"no parameter is named 'layers\[7\]\.gain'; this network has 8: layers"):
        NET.with_parameters({"layers[7].gain": 1.0})
    with pytest.raises(NetworkError, match=r"bias_var=-1\.0 is negative"):
        NET.with_parameters({"layers[0].bias_var": -1.0})
