"""The named functions, and what `Elementwise` takes and refuses."""

import math

import numpy as np
import pytest
import torch
from scipy import special

from cnngp.network import functions
from cnngp.network.functions import FUNCTIONS, as_callable, breakpoints, check_function, value_hash
from cnngp.network.layers import Elementwise, NetworkError
from cnngp.torch_bridge.parts import NAMED

X = np.concatenate([-np.geomspace(40.0, 1e-8, 200), [0.0], np.geomspace(1e-8, 40.0, 200)])

# PyTorch's, but for two that lose digits there: beyond 20, and far below 0.
EXPECTED = NAMED | {
    "softplus": lambda x: -torch.nn.functional.logsigmoid(-x),
    "gelu_tanh": lambda x: x * torch.sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x**3)),
}


def expected(name, x):
    return EXPECTED[name](torch.as_tensor(x)).numpy()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_named_function_has_its_values(name):
    assert np.allclose(FUNCTIONS[name](X), expected(name, X), rtol=1e-12, atol=1e-15)
    if name in ("sigmoid", "silu", "softplus", "gelu_tanh", "mish"):
        tail = np.array([-6.0, -8.0])
        assert np.allclose(FUNCTIONS[name](tail), expected(name, tail), rtol=1e-13, atol=0.0)
    huge = np.array([-1e300, -1e160, -800.0, 800.0, 1e160, 1e300])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        values = FUNCTIONS[name](huge)
    assert np.isfinite(values).all()
    assert np.all(np.abs(values) <= 1.1 * np.abs(huge) + 1.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_breakpoints_are_where_the_function_is_not_smooth(name):
    """A divided difference across a kink does not settle as its step shrinks; elsewhere it does."""

    def jump(x, order):
        sides = []
        for sign in (-1.0, 1.0):
            grid = x + sign * np.arange(order + 2) * 1e-3
            sides.append(np.diff(FUNCTIONS[name](grid), order)[0] / (sign * 1e-3) ** order)
        return abs(sides[0] - sides[1])

    for x in np.arange(-7.0, 7.5, 0.5):
        assert (max(jump(x, 1), jump(x, 2)) > 0.2) == (x in breakpoints(name)), x


def test_known_functions_become_names_and_others_stay_themselves():
    for fn, name in ((np.tanh, "tanh"), (np.arctan, "arctan"), (special.expit, "sigmoid"), (FUNCTIONS["silu"], "silu")):
        assert check_function(fn) == check_function(name) == name
        assert Elementwise(fn) == Elementwise(name)

    def in_place(x):
        x *= 2.0
        return x

    before = functions._PROBE.copy()
    for fn in (in_place, lambda x: x > 0, lambda x: np.sign(x).astype(np.int8), lambda x: x.astype(np.float32)):
        assert check_function(fn) is as_callable(fn) is fn
        assert breakpoints(fn) == ()
    assert np.array_equal(functions._PROBE, before)


class Noise:
    def __call__(self, x):
        return x + np.random.default_rng().normal(size=x.shape)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        ("tahn", "'tahn' is not a known function; known: tanh"),
        (3.0, "expected a name or a function"),
        (float, "expected a name or a function"),
        (lambda x: x.sum(), r"returned shape \(\)"),
        (lambda x: x[:-1], "returned shape"),
        (lambda x: np.log(x), "is not finite at -30"),
        (lambda x: x + 1j, "complex"),
        (lambda x: 1.0 if x > 0 else 0.0, "fails on an array: ValueError"),
        (lambda x: x - x.mean(), "is not elementwise"),
        (np.cumsum, "is not elementwise"),
        (Noise(), "is not elementwise"),
    ],
)
def test_refuses_what_is_not_a_function_of_one_number(fn, message):
    with pytest.raises(NetworkError, match=message) as error:
        Elementwise(fn)
    assert "\n" not in str(error.value)


def test_value_hash_sees_values_and_not_rounding():
    hashes = {name: value_hash(name) for name in FUNCTIONS}
    assert value_hash(np.tanh) == hashes["tanh"]
    for name, f in FUNCTIONS.items():
        assert value_hash(lambda x, f=f: f(x) * (1.0 + 3e-16) - 1e-17) == hashes[name], name
        assert value_hash(lambda x, f=f: f(x) * (1.0 + 1e-7) + 1e-8) != hashes[name], name
    # Stores are keyed by it, so it may not change from version to version.
    assert hashes["tanh"].startswith("5298c63b841b970d")
    # Beyond ±8, too: a cap at 100 is another function.
    assert value_hash(lambda x: np.minimum(x, 100.0)) != value_hash(lambda x: x)
    assert value_hash(lambda x: 0.0 * x) == value_hash(lambda x: -0.0 * np.abs(x))
