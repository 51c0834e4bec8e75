"""Networks are values: they check themselves, print as code, compare, hash, copy and pickle."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnngp
from cnngp import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    LayerNorm,
    LeakyReLU,
    NetworkError,
    NormalizedExp,
    Rbf,
    ReLU,
    Sequential,
    Sign,
    Sin,
    SquaredReLU,
    Step,
    Sum,
    from_json,
    zoo,
)
from helpers.examples import examples
from helpers.networks import convolutions, networks_with_shapes, relu_like, smooth, transposed

NAMES = {name: getattr(cnngp, name) for name in cnngp.network.layers.LAYERS}
ONE_OF_EACH = [
    Conv(3),
    Conv((3, 5), stride=(1, 2), padding=(1, (0, 2)), dilation=(2, 1), weight_var=0.1, bias_var=1e-3, fan_in="channels"),
    Conv(4, padding="valid", padding_mode="reflect"),
    ConvTranspose(3, stride=2, padding=1, output_padding=1),
    ConvTranspose((3, 2, 1), padding_mode="zeros", weight_var=2.0),
    Dense(2.0, 1 / 3),
    ReLU(),
    ReLU(math.sqrt(2.0)),
    LeakyReLU(0.1),
    Erf(),
    Abs(),
    Step(),
    Sin(),
    Cos(),
    Rbf(1 / 3),
    NormalizedExp(1 / 3),
    LayerNorm(eps=1e-5),
    Sign(),
    SquaredReLU(),
    GELU(),
    Elementwise("tanh"),
    Identity(),
    Sequential(),
    Sequential(Conv(3), ReLU(), Sequential(Dense())),
    Sum(Identity(), Sequential(Conv(3), ReLU()), allow_non_gaussian=True),
    zoo.resnet(32),
    zoo.residual_cnn(),
    zoo.convnet(),
]
EACH = pytest.mark.parametrize("net", ONE_OF_EACH, ids=lambda net: repr(net)[:40])
any_network = networks_with_shapes(st.one_of(relu_like, smooth, st.just(Step()))).map(lambda drawn: drawn[0])


# ---- values --------------------------------------------------------------------------------------------------------


@EACH
def test_a_network_prints_as_the_code_that_makes_it(net):
    assert eval(repr(net), NAMES) == net


@given(net=st.one_of(any_network, convolutions(2), transposed(3)))
@examples(100)
def test_code_json_and_pickle_give_an_equal_network(net):
    for again in (eval(repr(net), NAMES), from_json(net.to_json()), pickle.loads(pickle.dumps(net))):
        assert again == net
        assert hash(again) == hash(net)
        assert repr(again) == repr(net)
        assert again.fingerprint == net.fingerprint


def test_defaults_are_left_out_of_the_code():
    assert repr(Conv(3, stride=1, padding="same", weight_var=1.0)) == "Conv(3)"
    assert repr(Conv(3, bias_var=0.5, stride=2)) == "Conv(3, stride=2, bias_var=0.5)"
    assert repr(Sum(Identity(), Conv(1))) == "Sum(Identity(), Conv(1))"


def test_networks_compare_by_value_and_work_as_keys():
    assert Conv(3) == Conv(3)
    assert Conv(3) != Conv(5)
    assert Conv(3) != ConvTranspose(3)
    assert Sequential(Conv(3)) != Conv(3)
    assert Erf() != Sin()
    assert len({Conv(3), Conv(3), Conv(3, stride=2), Sequential(Conv(3)), Sequential(Conv(3))}) == 3


def test_numbers_of_any_kind_are_stored_as_plain_ones():
    net = Conv(np.int64(3), stride=[1, 2], padding=[1, [0, 2]], weight_var=np.float32(0.5), bias_var=Fraction(1, 4))
    assert net == Conv(3, stride=(1, 2), padding=(1, (0, 2)), weight_var=0.5, bias_var=0.25)
    assert [type(getattr(net, name)) for name in ("kernel_size", "stride", "weight_var", "bias_var")] == [
        int,
        tuple,
        float,
        float,
    ]
    assert from_json(net.to_json()) == net


def test_minus_zero_is_zero():
    assert Dense(bias_var=-0.0) == Dense()
    assert Dense(bias_var=-0.0).fingerprint == Dense().fingerprint
    assert LeakyReLU(-0.0).fingerprint == LeakyReLU(0.0).fingerprint


@EACH
def test_a_network_cannot_be_changed(net):
    for field in dataclasses.fields(net):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(net, field.name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        net.note = "mine"


@EACH
def test_copies_are_equal(net):
    assert copy.copy(net) == copy.deepcopy(net) == pickle.loads(pickle.dumps(net)) == net


def test_a_layer_can_be_altered_with_dataclasses_replace_and_is_checked_again():
    assert dataclasses.replace(Conv(3), stride=2) == Conv(3, stride=2)
    with pytest.raises(NetworkError, match="stride=0 must be at least 1"):
        dataclasses.replace(Conv(3), stride=0)


# ---- arguments that cannot be: what was given, what is expected, what to do ----------------------------------------


@pytest.mark.parametrize("layer", [Conv, ConvTranspose])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": 0}, "kernel_size=0 must be at least 1"),
        ({"kernel_size": -3}, "kernel_size=-3 must be at least 1"),
        ({"kernel_size": 3.0}, "kernel_size=3.0 is not an integer or a tuple with one integer per axis"),
        ({"kernel_size": "3"}, "kernel_size='3' is not an integer"),
        ({"kernel_size": True}, "kernel_size=True is not an integer"),
        ({"kernel_size": None}, "kernel_size=None is not an integer"),
        ({"kernel_size": ()}, r"kernel_size=\(\) is empty; give one integer per axis"),
        ({"kernel_size": (3, 0)}, "kernel_size=0 must be at least 1"),
        ({"kernel_size": (3, (3, 3))}, r"kernel_size=\(3, 3\) is not an integer"),
        ({"kernel_size": (3, 3, 3, 3)}, "4 axes; 1-D, 2-D and 3-D are supported"),
        ({"stride": 0}, "stride=0 must be at least 1"),
        ({"stride": (1, -1)}, "stride=-1 must be at least 1"),
        ({"dilation": 0}, "dilation=0 must be at least 1"),
        ({"dilation": 1.5}, "dilation=1.5 is not an integer"),
        ({"padding": "full"}, "padding='full' is not 'same', 'valid', an integer or a tuple with one integer or pair"),
        ({"padding": -1}, "padding=-1 must be at least 0"),
        ({"padding": 0.5}, "padding=0.5 is not an integer"),
        ({"padding": None}, "padding=None is not an integer"),
        ({"padding": ()}, r"padding=\(\) is empty; give one integer or pair per axis"),
        ({"padding": ((1, 2, 3), 1)}, r"an axis takes one integer or a pair \(before, after\), not \(1, 2, 3\)"),
        ({"padding": ((1, -2), 1)}, "padding=-2 must be at least 0"),
        ({"padding": ("same", "same")}, "padding='same' is not an integer"),
        ({"weight_var": -1}, "weight_var=-1.0 is negative; a variance is 0 or more"),
        ({"weight_var": math.nan}, "weight_var=nan is not a finite number"),
        ({"weight_var": 10**400}, "weight_var=10000.* is not a finite number"),
        ({"weight_var": "1"}, "weight_var='1' is not a finite number"),
        ({"weight_var": True}, "weight_var=True is not a finite number"),
        ({"weight_var": 1j}, "weight_var=1j is not a finite number"),
        ({"bias_var": math.inf}, "bias_var=inf is not a finite number"),
        ({"bias_var": -0.1}, "bias_var=-0.1 is negative"),
        ({"fan_in": "filter"}, "fan_in='filter' is not one of 'patch', 'channels'"),
        ({"fan_in": None}, "fan_in=None is not one of"),
        ({"padding_mode": "edge"}, "padding_mode='edge' is not one of 'zeros', 'circular', 'reflect', 'replicate'"),
        (
            {"kernel_size": (3, 3), "stride": (1, 1, 1)},
            "the tuples disagree on the number of axes: kernel_size has 2, stride has 3",
        ),
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
        (lambda: ConvTranspose(3, padding=1, output_padding="1"), "output_padding='1' is not an integer"),
        (lambda: ConvTranspose(3, output_padding=1), "which already gives size·stride; use an integer padding"),
        (lambda: ConvTranspose(3, output_padding=(0, 1)), "output_padding=.0, 1. with padding='same'"),
        (
            lambda: ConvTranspose((3, 3), padding=1, output_padding=(1, 1, 1)),
            "kernel_size has 2, output_padding has 3",
        ),
        (lambda: Dense(weight_var=-2), "Dense: weight_var=-2.0 is negative; a variance is 0 or more"),
        (lambda: Dense(bias_var=math.nan), "Dense: bias_var=nan is not a finite number"),
        (lambda: ReLU(gain=0), "ReLU: gain=0.0 makes every output zero; use a gain farther from 0"),
        (lambda: ReLU(gain=1e-300), "ReLU: gain=1e-300 makes every output zero; use a gain farther from 0"),
        (lambda: ReLU(gain=math.inf), "ReLU: gain=inf is not a finite number"),
        (lambda: ReLU("leaky"), "ReLU: gain='leaky' is not a finite number"),
        (lambda: NormalizedExp(0.0), "NormalizedExp: gamma=0.0 is not a positive number between 1e-06 and 1000"),
        (lambda: NormalizedExp(1e4), "NormalizedExp: gamma=10000.0 is not a positive number"),
        (lambda: LayerNorm("all"), "LayerNorm: over='all' is not 'channels'; a norm over all locations is not"),
        (lambda: LayerNorm(eps=-1e-5), "LayerNorm: eps=-1e-05 is negative"),
        (lambda: LeakyReLU(None), "LeakyReLU: slope=None is not a finite number"),
        (lambda: LeakyReLU(math.nan), "LeakyReLU: slope=nan is not a finite number"),
        (lambda: Elementwise("tahn"), "Elementwise: 'tahn' is not a known function; known: tanh, sigmoid"),
        (lambda: Elementwise(3), "Elementwise: expected a name or a function of a NumPy array, got 3"),
        (lambda: Elementwise(math.tanh), "tanh fails on an array.*must take a float64 array and return"),
        (lambda: Elementwise(np.log), "log is not finite at -30"),
        (lambda: Elementwise(np.sum), "sum returned shape"),
        (lambda: Elementwise(np.cumsum), "cumsum is not elementwise"),
        (lambda: Elementwise(lambda x: x + 1j), "returned values of type complex128"),
        (lambda: Sequential(Conv(3), 3), r"Sequential: layers\[1\]: expected a layer such as Conv\(3\).*got int: 3"),
        (lambda: Sequential([Conv(3), ReLU()]), r"Sequential: layers\[0\]: expected a layer .*, got list"),
        (lambda: Sequential(Conv), r"layers\[0\]: got the class Conv; write Conv\(...\) to make a layer of it"),
        (lambda: Sequential(Conv(3), ReLU), r"layers\[1\]: got the class ReLU; write ReLU\(...\)"),
        (lambda: Sum(Identity, Conv(3)), r"Sum: branches\[0\]: got the class Identity; write Identity\(...\)"),
        (lambda: Sum(Identity(), np.tanh), r"Sum: branches\[1\]: expected a layer .*, got ufunc"),
        (lambda: Sum(), "no branches; give it at least one"),
        (lambda: Sum(Conv(1), allow_non_gaussian="yes"), "allow_non_gaussian='yes' is not True or False"),
        (lambda: cnngp.Kernel(Conv), r"Kernel: network: got the class Conv; write Conv\(...\)"),
        (lambda: cnngp.Kernel("resnet"), "Kernel: network: expected a layer .* got str: resnet"),
        (lambda: zoo.resnet(30), "depth=30 is not 6n . 2; use 8, 14, 20"),
        (lambda: zoo.resnet(2), "depth=2 is not 6n . 2"),
        (lambda: zoo.resnet("32"), "zoo.resnet: depth='32' is not an integer"),
        (lambda: zoo.resnet(32.0), "zoo.resnet: depth=32.0 is not an integer"),
        (lambda: zoo.dense_nngp("3"), "zoo.dense_nngp: depth='3' is not an integer"),
        (lambda: zoo.dense_nngp(True), "zoo.dense_nngp: depth=True is not an integer"),
        (lambda: zoo.dense_nngp(0), "depth=0; use at least one hidden layer"),
        (lambda: zoo.dense_nngp(nonlinearity="tanh"), "nonlinearity='tanh' is not one of relu, erf"),
    ],
    ids=lambda value: None if callable(value) else value[:40],
)
def test_what_cannot_be_a_layer_is_refused(make, message):
    with pytest.raises(NetworkError, match=message):
        make()


def test_a_subclass_is_not_a_layer_because_nothing_would_know_it():
    class Mine(ReLU):
        pass

    with pytest.raises(NetworkError, match=r"layers\[1\]: expected a layer .*, got Mine"):
        Sequential(Conv(3), Mine())


# ---- the paper's networks ------------------------------------------------------------------------------------------


def layers_of(net, kind):
    return (
        [net]
        if isinstance(net, kind)
        else [
            layer
            for child in (*getattr(net, "layers", ()), *getattr(net, "branches", ()))
            for layer in layers_of(child, kind)
        ]
    )


@pytest.mark.parametrize("depth", [8, 14, 20, 26, 32, 44, 56, 110])
def test_a_resnet_of_a_depth_has_that_many_layers_with_weights_on_its_main_path(depth):
    net = zoo.resnet(depth)
    convolutions = [c for c in layers_of(net, Conv) if c.kernel_size == 3]
    assert len(convolutions) == depth - 1
    assert len(layers_of(net, Dense)) == 2
    assert [c.stride for c in layers_of(net, Conv) if c.kernel_size == 1] == [1, 2, 2]
    assert net.shapes((1, 28, 28)).output == ()


def test_the_papers_table_is_spelled_out():
    convnet = zoo.convnet()
    assert layers_of(convnet, Conv) == [Conv(7, weight_var=2.79, bias_var=7.86, fan_in="channels")] * 7
    assert layers_of(convnet, Dense) == [Dense(2.79, 7.86)]
    residual = zoo.residual_cnn()
    assert layers_of(residual, Conv) == [Conv(4, weight_var=7.27, bias_var=4.69, fan_in="channels")] * 9
    assert layers_of(residual, Dense) == [Dense(7.27, 4.69)]
    for net, count in ((convnet, 7), (residual, 9)):
        assert layers_of(net, ReLU) == [ReLU(math.sqrt(2.0))] * count
    assert set(layers_of(zoo.resnet(32), ReLU)) == {ReLU()}
