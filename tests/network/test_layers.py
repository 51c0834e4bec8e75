"""Networks are values: they check themselves, print as code, compare, hash, copy and pickle; their parameters."""

import copy
import dataclasses
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

import cnngp
from cnngp import AvgPool, Conv, ConvTranspose, Dense, Identity, Sequential, Sum, from_json, zoo
from cnngp.network.layers import LayerNorm, LeakyReLU, NetworkError, NormalizedExp, Rbf, ReLU
from helpers.nonlinearities import ONE_OF_EACH

NAMES = {name: getattr(cnngp, name) for name in cnngp.network.layers.LAYERS}
NETWORKS = [
    *ONE_OF_EACH,
    Conv((3, 5), stride=(1, 2), padding=(1, (0, 2)), dilation=(2, 1), weight_var=0.1, bias_var=1e-3, fan_in="channels"),
    Conv(4, padding="valid", padding_mode="reflect"),
    ConvTranspose(3, stride=2, padding=1, output_padding=1),
    Dense(2.0, 1 / 3),
    AvgPool((2, 3), stride=1, padding=(1, 0), count_include_pad=False),
    Sequential(),
    Sequential(Conv(3), ReLU(), Sequential(Dense())),
    Sum(Identity(), Sequential(Conv(3), ReLU()), allow_non_gaussian=True),
    zoo.resnet(32),
]


def is_a_value(net):
    """Each way to write it down or copy it gives an equal network."""
    copies = [eval(repr(net), NAMES), from_json(net.to_json()), pickle.loads(pickle.dumps(net)), copy.copy(net)]
    for again in (*copies, copy.deepcopy(net)):
        assert again == net
        assert (hash(again), repr(again), again.fingerprint) == (hash(net), repr(net), net.fingerprint)


@pytest.mark.parametrize("net", NETWORKS, ids=lambda net: repr(net)[:40])
def test_a_network_is_a_value_that_cannot_be_changed(net):
    is_a_value(net)
    for name in (*(field.name for field in dataclasses.fields(net)), "note"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(net, name, None)


def test_defaults_are_part_of_the_contract():
    convolution = (3, 1, "same", 1, 1.0, 0.0, "patch", "zeros")
    assert Conv(3) == Conv(*convolution)
    assert ConvTranspose(3) == ConvTranspose(*convolution, 0)
    assert (Dense(), AvgPool(2), ReLU()) == (Dense(1.0, 0.0), AvgPool(2, None, 0, True), ReLU(1.0))


def test_numbers_of_any_kind_are_stored_as_plain_ones():
    net = Conv(np.int64(3), stride=[1, 2], padding=[1, [0, 2]], weight_var=np.float32(0.5), bias_var=Fraction(1, 4))
    assert net == Conv(3, stride=(1, 2), padding=(1, (0, 2)), weight_var=0.5, bias_var=0.25)
    kinds = [type(getattr(net, name)) for name in ("kernel_size", "stride", "weight_var", "bias_var")]
    assert kinds == [int, tuple, float, float]
    is_a_value(net)
    assert LeakyReLU(-0.0).fingerprint == LeakyReLU(0.0).fingerprint


# ---- arguments that cannot be: what was given, what is expected, what to do ----------------------------------------


@pytest.mark.parametrize("layer", [Conv, ConvTranspose])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": 0}, "kernel_size=0 must be at least 1"),
        ({"kernel_size": 3.0}, "kernel_size=3.0 is not an integer or a tuple with one integer per axis"),
        ({"kernel_size": True}, "kernel_size=True is not an integer"),
        ({"kernel_size": ()}, r"kernel_size=\(\) is empty; give one integer per axis"),
        ({"kernel_size": (3, 3, 3, 3)}, "4 axes; 1-D, 2-D and 3-D are supported"),
        ({"stride": (1, -1)}, "stride=-1 must be at least 1"),
        ({"dilation": 0}, "dilation=0 must be at least 1"),
        ({"padding": "full"}, "padding='full' is not 'same', 'valid', an integer or a tuple with one integer or pair"),
        ({"padding": -1}, "padding=-1 must be at least 0"),
        ({"padding": ()}, r"padding=\(\) is empty; give one integer or pair per axis"),
        ({"padding": ((1, 2, 3), 1)}, r"an axis takes one integer or a pair \(before, after\), not \(1, 2, 3\)"),
        ({"padding": ((1, -2), 1)}, "padding=-2 must be at least 0"),
        ({"padding": ("same", "same")}, "padding='same' is not an integer"),
        ({"weight_var": -1}, "weight_var=-1.0 is negative; a variance is 0 or more"),
        ({"weight_var": math.nan}, "weight_var=nan is not a finite number"),
        ({"weight_var": 10**400}, "weight_var=10000.* is not a finite number"),
        ({"weight_var": "1"}, "weight_var='1' is not a finite number"),
        ({"weight_var": True}, "weight_var=True is not a finite number"),
        ({"bias_var": math.inf}, "bias_var=inf is not a finite number"),
        ({"fan_in": "filter"}, "fan_in='filter' is not one of 'patch', 'channels'"),
        ({"padding_mode": "edge"}, "padding_mode='edge' is not one of 'zeros', 'circular', 'reflect', 'replicate'"),
        ({"padding": (1, 1), "dilation": (1,)}, "disagree on the number of axes: dilation has 1, padding has 2"),
    ],
    ids=str,
)
def test_convolutions_refuse_arguments_that_cannot_be(layer, arguments, message):
    with pytest.raises(NetworkError, match=f"^{layer.__name__}: .*{message}"):
        layer(**{"kernel_size": 3} | arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvTranspose(3, padding=1, output_padding=-1), "output_padding=-1 must be at least 0"),
        (lambda: ConvTranspose(3, padding_mode="reflect"), "padding_mode='reflect' has no exact kernel"),
        (lambda: ConvTranspose(3, output_padding=(0, 1)), "output_padding=.0, 1. with padding='same', which already"),
        (lambda: ConvTranspose((3, 3), padding=1, output_padding=(1,) * 3), "kernel_size has 2, output_padding has 3"),
        (lambda: AvgPool(0), "AvgPool: size=0 must be at least 1"),
        (lambda: AvgPool(2, stride=0), "stride=0 must be at least 1"),
        (lambda: AvgPool(2, padding=-1), "padding=-1 must be at least 0"),
        (lambda: AvgPool((4, 2), padding=(2, 2)), r"padding=\(2, 2\) is more than half of size=\(4, 2\)"),
        (lambda: AvgPool(2, count_include_pad=1), "count_include_pad=1 is not True or False"),
        (lambda: AvgPool((2, 2), stride=(1, 1, 1)), "disagree on the number of axes"),
        (lambda: Dense(weight_var=-2), "Dense: weight_var=-2.0 is negative; a variance is 0 or more"),
        (lambda: ReLU(gain=1e-300), "ReLU: gain=1e-300 makes every output zero; use a gain farther from 0"),
        *(
            (lambda gamma=gamma: Rbf(gamma), "Rbf: gamma=.* is not a (positive number between 1e-30 and 1e.30|finite)")
            for gamma in (0.0, -1.0, math.nan, 1e40, "one", True)
        ),
        (lambda: ReLU("leaky"), "ReLU: gain='leaky' is not a finite number"),
        (lambda: NormalizedExp(1e4), "NormalizedExp: gamma=10000.0 is not a positive number between 1e-06 and 1000"),
        (lambda: LayerNorm("places"), "LayerNorm: over='places' is not 'channels' or 'all'"),
        (lambda: LayerNorm(eps=-1e-5), "LayerNorm: eps=-1e-05 is negative"),
        (lambda: LeakyReLU(1e200), "LeakyReLU: slope=.* is too large"),
        (lambda: Sequential(Conv(3), 3), r"Sequential: layers\[1\]: expected a layer such as Conv\(3\).*got int: 3"),
        (lambda: Sequential([Conv(3), ReLU()]), r"Sequential: layers\[0\]: expected a layer .*, got list"),
        (lambda: Sequential(Conv), r"layers\[0\]: got the class Conv; write Conv\(...\) to make a layer of it"),
        (lambda: Sequential(Conv(3), type("Mine", (ReLU,), {})()), r"layers\[1\]: expected a layer .*, got Mine"),
        (lambda: Sum(Identity(), np.tanh), r"Sum: branches\[1\]: expected a layer .*, got ufunc"),
        (lambda: Sum(), "no branches; give it at least one"),
        (lambda: dataclasses.replace(Conv(3), stride=0), "stride=0 must be at least 1"),
        (lambda: Sum(Conv(1), allow_non_gaussian="yes"), "allow_non_gaussian='yes' is not True or False"),
        (lambda: cnngp.Kernel("resnet"), "Kernel: network: expected a layer .* got str: resnet"),
    ],
    ids=lambda value: None if callable(value) else value[:40],
)
def test_what_cannot_be_a_layer_is_refused(make, message):
    with pytest.raises(NetworkError, match=message):
        make()


# ---- parameters ----------------------------------------------------------------------------------------------------

NET = Sequential(Conv(3), Sum(Identity(), Sequential(LeakyReLU(0.1), Conv(3, bias_var=0.2))), ReLU(2.0), Dense(3.0))


def test_parameters_are_named_by_their_places_and_may_have_other_values():
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
    assert NET.with_parameters({}) == NET == NET.with_parameters(NET.parameters())
    changed = NET.with_parameters({"layers[1].branches[1].layers[1].bias_var": 0.5, "layers[2].gain": 1.0})
    assert changed == Sequential(
        Conv(3), Sum(Identity(), Sequential(LeakyReLU(0.1), Conv(3, bias_var=0.5))), ReLU(), Dense(3.0)
    )
    assert zoo.residual_cnn().with_parameters({"layers[8].weight_var": 2.0}).parameters()["layers[8].weight_var"] == 2.0
    with pytest.raises(NetworkError, match=r"no parameter is named 'layers\[7\]\.gain'; this network has 8: layers"):
        NET.with_parameters({"layers[7].gain": 1.0})
    with pytest.raises(NetworkError, match=r"bias_var=-1\.0 is negative"):
        NET.with_parameters({"layers[0].bias_var": -1.0})
