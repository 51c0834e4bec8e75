"""Which compositions are Gaussian processes: every rule of a `Sum`, with the place that breaks it.

A piece is checked when it is built, wherever it may later stand; a whole network is checked before it is used.
"""

import re

import numpy as np
import pytest

from cnngp import AvgPool, Conv, ConvTranspose, Dense, Identity, Kernel, Sequential, Sum
from cnngp.network import reference
from cnngp.network.composition import check_network
from cnngp.network.layers import Abs, Erf, LayerNorm, NetworkError, ReLU
from helpers.nonlinearities import ONE_OF_EACH

C, R, I = Conv(3), ReLU(), Identity()  # noqa: E741
SKIP = Sum(I, Conv(1))
NOT_GAUSSIAN_SUM = {"allow_non_gaussian": True}


def refused(message: str, place: str = ""):
    """The error starts with the place, if there is one."""
    return pytest.raises(NetworkError, match="^" + re.escape(f"{place}: " if place else "") + message)


@pytest.mark.parametrize(
    ("branches", "options"),
    [
        ((I, I), {}),
        ((I, R), NOT_GAUSSIAN_SUM),  # x + relu(x) is dependent, whatever is allowed
        ((I, LayerNorm()), {}),
        ((I, AvgPool(3, 1, 1)), {}),
        ((Sum(C, I), Sum(I, Conv(5))), {}),
        ((I, Sum(Sum(Sequential(Sum(I))))), {}),
        ((C, I, C, I), {}),
        ((I, Sequential(Sum(I, C), Sum(I, C))), {}),
        ((I, Sequential(Sum(I, Sequential(R, C)), I)), {}),
    ],
    ids=repr,
)
def test_two_paths_without_weights_are_refused_however_they_are_nested(branches, options):
    with refused(r"2 paths without weights lead into this Sum.*x \+ x has covariance 4K.*keep one Identity\(\)"):
        Sum(*branches, **options)
    with refused("3 paths without weights"):
        Sum(*branches, I, **options)


@pytest.mark.parametrize(
    "layers",
    [
        # weights on all branches but one make them independent
        *([Sum(w, w, Sum(I, w), Sequential(w, Sum(I, w), w)), Dense()] for w in (C, ConvTranspose(3), Dense())),
        [Sum(I, C), C, R, Dense()],  # a skip of the input, with weights behind it
        [C, Sum(I, C), Sum(I, C), Dense()],
        [C, R, Sum(Conv(1), Sequential(C, R, C)), Dense()],
        [C, Sum(I, Sequential(LayerNorm(), R, C)), Dense()],
        [C, LayerNorm(), Sum(Conv(1), Sequential(LayerNorm(), C)), Dense()],
        [C, Sum(R), C, Sum(I), Sum(Sequential(R, C)), Dense()],  # a sum of one branch is that branch
        *([C, phi, C, phi, Dense()] for phi in ONE_OF_EACH),
    ],
    ids=repr,
)
def test_what_is_gaussian_is_accepted(layers):
    check_network(Sequential(*layers))


APPLIED = "is applied to the output of a nonlinearity, which is not Gaussian"
GIVES = "gives the output of a nonlinearity"
SKIPPED = r"the branch Identity\(\)"
ON_INPUT = "is applied to the input itself, which is not Gaussian"
REFUSED = [  # layers, the place that is told, and what is told of it
    ([Sum(I, Sequential(C, R), allow_non_gaussian=True), R], "layers[1]", rf"ReLU\(\) {APPLIED}"),
    ([C, R, AvgPool(2), Abs(), Dense()], "layers[3]", rf"Abs\(\) {APPLIED}; put a Conv"),
    ([C, Sum(R), Abs()], "layers[2]", rf"Abs\(\) {APPLIED}"),
    ([C, R, Sum(Conv(1), Sequential(Erf(), Conv(1)))], "layers[2].branches[1].layers[0]", rf"Erf\(\) {APPLIED}"),
    ([C, R, Sum(SKIP, Conv(1), allow_non_gaussian=True)], "layers[2].branches[0]", f"{SKIPPED} {GIVES}"),
    ([C, R, Sum(I, C)], "layers[2]", f"{SKIPPED} {GIVES}.*add before the nonlinearity"),
    ([C, R, Sum(Conv(1), Sum(I, C))], "layers[2].branches[1]", f"the branch .* {GIVES}"),
    (
        [C, R, LayerNorm()],
        "layers[2]",
        r"LayerNorm\(\) .*, whose mean over channels is not 0",
    ),
]


@pytest.mark.parametrize(("layers", "place", "message"), REFUSED, ids=str)
def test_what_is_not_gaussian_is_refused_by_its_place_from_the_top_of_what_is_built(layers, place, message):
    with refused(message, place):
        Sequential(*layers)


NO_OUTPUT = "the images reach the output by a path without weights, so the output is not a random function of them"
NO_NETWORKS = [
    (Sequential(R, Dense()), rf"ReLU\(\) {ON_INPUT}; put a Conv", "layers[0]"),
    (Sequential(Sum(C, SKIP), Sequential(R, Dense())), rf"ReLU\(\) {ON_INPUT}", "layers[1].layers[0]"),
    (Sequential(LayerNorm(), Dense()), r"LayerNorm\(\) is applied to the input itself", "layers[0]"),
    (R, r"ReLU\(\) is applied to the input itself", ""),
    (Sequential(Dense(), Sum(R)), r"the network ends in a nonlinearity, .*; add Dense\(\) or Conv", ""),
    *((net, NO_OUTPUT, "") for net in (I, Sequential(), Sum(I, Dense()), Sum(I))),
]


@pytest.mark.parametrize(("net", "message", "place"), NO_NETWORKS, ids=str)
def test_a_piece_that_is_no_network_alone_is_refused_wherever_it_is_used(net, message, place):
    for use in (
        lambda: Kernel(net, device="cpu"),
        lambda: reference.kernel(net, np.ones((2, 1, 3))),
        lambda: net.shapes((1, 3)),
    ):
        with refused(message, place):
            use()


@pytest.mark.parametrize("phi", [layer for layer in ONE_OF_EACH if not isinstance(layer, LayerNorm)], ids=repr)
def test_every_nonlinearity_makes_a_map_that_is_not_gaussian(phi):
    branch = Sequential(C, phi)
    told = re.escape(f"the branch {branch!r} {GIVES}") + ".*pass allow_non_gaussian=True"
    with refused(told):
        Sum(I, branch)
    block = Sum(I, branch, allow_non_gaussian=True)
    check_network(Sequential(C, block, block, C))
    with refused(re.escape(f"{phi!r} {APPLIED}"), "layers[2]"):
        Sequential(C, phi, phi, Dense())
    with refused("the network ends in a nonlinearity"):
        check_network(Sequential(C, block, block, C, phi))
