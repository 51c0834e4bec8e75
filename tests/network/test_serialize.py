"""Networks as JSON and by fingerprint: plain, strict, and the same in every version."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import Conv, ConvTranspose, Dense, Identity, Sequential, Sum, from_json
from cnngp.network.layers import Elementwise, LayerNorm, LeakyReLU, NetworkError, Rbf, ReLU
from helpers.examples import examples
from helpers.nonlinearities import ONE_OF_EACH


def test_json_writes_defaults_so_that_a_new_default_cannot_change_an_old_file():
    net = Sequential(Conv(3), ReLU(), Dense())
    layers = [{"layer": type(layer).__name__} | dataclasses.asdict(layer) for layer in net.layers]
    assert json.loads(net.to_json()) == {"cnngp_network": 1, "network": {"layer": "Sequential", "layers": layers}}


def wrapped(network: str) -> str:
    return f'{{"cnngp_network": 1, "network": {network}}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the JSON of a network"),
        (None, "not the JSON of a network"),
        ("[" * 100_000, "not the JSON of a network"),
        ('{"network": {"layer": "ReLU"}}', "expected {"),
        ('{"cnngp_network": 1, "network": {"layer": "ReLU"}, "more": 0}', "expected {"),
        ('{"cnngp_network": 2, "network": {"layer": "ReLU"}}', "it has format 2, and this version reads format 1"),
        (wrapped('{"layer": "MaxPool"}'), "unknown layer.*MaxPool.*known: Conv, "),
        (wrapped('{"layer": []}'), "unknown layer"),
        (wrapped('{"layer": "Network"}'), "unknown layer"),
        (wrapped('{"layer": "Conv"}'), r"Conv in network JSON has fields \[\]; it takes .* needs \['kernel_size'\]"),
        (wrapped('{"layer": "ReLU", "slope": 1}'), r"ReLU in network JSON has fields \['slope'\]"),
        (wrapped('{"layer": "Sequential", "layers": {"layer": "ReLU"}}'), "layers is not a list"),
        (wrapped('{"layer": "Conv", "kernel_size": 3, "weight_var": NaN}'), "weight_var=nan is not a finite number"),
        (wrapped('{"layer": "Elementwise", "fn": "os.system"}'), "'os.system' is not a known function; known: tanh"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_json_that_is_no_network_is_refused(text, message):
    with pytest.raises(NetworkError, match=message):
        from_json(text)
    assert from_json(wrapped('{"layer": "Conv", "kernel_size": 3}').encode()) == Conv(3)  # without the defaults


@given(text=st.text(max_size=30), value=st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists))
@examples(50)
def test_any_damage_to_json_is_a_network_error(text, value):
    for damaged in (text, json.dumps(value), wrapped(json.dumps(value)), wrapped(json.dumps({"layer": value}))):
        with pytest.raises(NetworkError):
            from_json(damaged)


def test_nesting_that_could_not_be_read_back_is_not_written():
    net = Conv(3)
    for _ in range(200):
        net = Sequential(net)
    assert from_json(net.to_json()) == net
    deeper = Sequential(net)
    with pytest.raises(NetworkError, match="nested more than 200 deep; put its layers into one Sequential"):
        deeper.to_json()
    assert deeper.fingerprint == Conv(3).fingerprint
    with pytest.raises(NetworkError, match="nested more than 200 deep"):
        from_json(wrapped('{"layer": "Sequential", "layers": [' * 250 + "]}" * 250))


def test_a_bare_callable_is_not_written_to_a_file():
    with pytest.raises(NetworkError, match=r"Python function.*use a named function such as Elementwise\('tanh'\)"):
        Sequential(Conv(3), Elementwise(lambda x: x**2), Dense()).to_json()


# ---- fingerprint ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Sequential(Conv(3), ReLU(), Dense()), Sequential(Sequential(Conv(3)), Sequential(ReLU(), Dense()))),
        (Sequential(Conv(3), ReLU(), Dense()), Sequential(Identity(), Conv(3), Identity(), ReLU(), Dense())),
        (Identity(), Sequential()),
        (Sum(Identity(), Conv(3)), Sum(Sequential(), Sequential(Sequential(Conv(3), Identity())))),
        (Elementwise("tanh"), Elementwise(np.tanh)),
        (Elementwise(lambda x: x * x), Elementwise(lambda x: x**2)),
    ],
)
def test_networks_that_take_the_same_steps_have_one_fingerprint(one, other):
    assert one.fingerprint == other.fingerprint


CHANGES = {
    "kernel_size": [5, (3, 3), (3, 1)],
    "stride": [2, (1, 2)],
    "padding": ["valid", 1, (1, 1), ((1, 1), (0, 1))],
    "dilation": [2, (1, 2)],
    "weight_var": [1.0000000000000002, 2.0],
    "bias_var": [5e-324, 1.0],
    "fan_in": ["channels"],
    "padding_mode": ["circular", "reflect", "replicate"],
}


def test_networks_that_differ_have_different_fingerprints_which_never_change():
    conv, other = Conv(3), Conv(5)
    nets = [
        *(dataclasses.replace(conv, **{name: value}) for name, values in CHANGES.items() for value in values),
        *(conv, ConvTranspose(3), ConvTranspose(3, padding=1), ConvTranspose(3, padding=1, output_padding=1), Dense()),
        *(*ONE_OF_EACH, ReLU(-1.0), LeakyReLU(0.5), Identity(), Elementwise("silu"), Rbf(2.0), LayerNorm("all")),
        *(Elementwise(lambda x: x**2), Elementwise(lambda x: x**3), LayerNorm(eps=1e-5)),
        *(Sequential(conv, conv), Sequential(conv, other), Sequential(other, conv), Sum(conv, conv), Sum(conv)),
        *(Sum(conv, conv, allow_non_gaussian=True), Sum(conv, conv, conv)),
        *(Sequential(conv, ReLU(), Sum(conv, other)), Sequential(conv, Sum(conv, other), ReLU())),
    ]
    assert len({net.fingerprint for net in nets}) == len(nets)
    published = "3ce4e828cb4fc402b49cd12844eb77c059e3528c0bc1d964c2b5e372cc8de66d"
    assert Sequential(Conv(3), ReLU(), Dense()).fingerprint == published
