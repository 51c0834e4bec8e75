"""Which compositions are Gaussian processes: every rule of a `Sum`, with the place that breaks it.

A piece is checked when it is built, wherever it may later stand; a whole network is checked before it is used.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given

from cnngp import Abs, Conv, ConvTranspose, Dense, Erf, Identity, Kernel, LayerNorm, NetworkError, ReLU, Sequential, Sum
from cnngp.network import reference
from cnngp.network.composition import check_network
from helpers.examples import examples
from helpers.networks import networks_with_shapes
from helpers.nonlinearities import ONE_OF_EACH

NONLINEARITIES = [layer for layer in ONE_OF_EACH if not isinstance(layer, LayerNorm)]
EACH_NONLINEARITY = pytest.mark.parametrize("phi", NONLINEARITIES, ids=repr)
EACH_LINEAR = pytest.mark.parametrize("linear", [Conv(3), ConvTranspose(3), Dense()], ids=repr)
TWO_PATHS = r"2 paths without weights lead into this Sum.*x \+ x has covariance 4K.*keep one Identity\(\)"


def refused(message: str, place: str = ""):
    """The error starts with the place, if there is one."""
    return pytest.raises(NetworkError, match="^" + re.escape(f"{place}: " if place else "") + message)


def refused_wherever_it_is_used(net, message: str, place: str = ""):
    X = np.ones((2, 3))
    for use in (
        lambda: Kernel(net, device="cpu"),
        lambda: reference.kernel(net, X),
        lambda: net.shapes((3,)),
    ):
        with refused(message, place):
            use()


def kernels_add(*branches, before=(), size=(5, 5), **options):
    """The Sum is accepted, and its kernel is the sum of those of its branches."""
    X = np.random.default_rng(0).normal(size=(3, 2, *size))
    whole = reference.kernel(Sequential(*before, Sum(*branches, **options), Dense()), X)
    parts = sum(reference.kernel(Sequential(*before, branch, Dense()), X) for branch in branches)
    np.testing.assert_allclose(whole, parts, rtol=1e-13)


# ---- sums of dependent branches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("branches", "options"),
    [
        ((Identity(), Identity()), {}),
        ((Identity(), Identity()), {"allow_non_gaussian": True}),
        ((Identity(), ReLU()), {"allow_non_gaussian": True}),  # x + relu(x) is dependent, whatever is allowed
        ((Identity(), LayerNorm()), {}),
        ((Identity(), Sequential(Identity(), Identity())), {}),
        ((Sum(Conv(3), Identity()), Sum(Identity(), Conv(5))), {}),
        ((Identity(), Sum(Sum(Sequential(Sum(Identity()))))), {}),
        ((Conv(3), Identity(), Conv(3), Identity()), {}),
        ((Identity(), Sequential(Sum(Identity(), Conv(3)), Sum(Identity(), Conv(3)))), {}),
        ((Identity(), Sequential(Sum(Identity(), Sequential(ReLU(), Conv(3))), Identity())), {}),
    ],
    ids=repr,
)
def test_two_paths_without_weights_are_refused_however_they_are_nested(branches, options):
    with refused(TWO_PATHS):
        Sum(*branches, **options)
    with refused("3 paths without weights"):
        Sum(*branches, Identity(), **options)


@EACH_LINEAR
def test_weights_on_all_but_one_branch_make_them_independent(linear):
    size = () if linear == Dense() else (5, 5)  # Dense() leaves one location
    kernels_add(linear, linear, size=size)
    kernels_add(Identity(), Sequential(Sum(Identity(), linear), linear), size=size)
    kernels_add(linear, Sum(Identity(), linear), Sequential(linear, Sum(Identity(), linear), linear), size=size)


def test_blocks_that_are_gaussian():
    kernels_add(Identity(), Conv(3), before=(Conv(3), Sum(Identity(), Conv(3))))
    kernels_add(Conv(1), Sequential(Conv(3), ReLU(), Conv(3)), before=(Conv(3), ReLU()))
    kernels_add(Identity(), Sequential(LayerNorm(), ReLU(), Conv(3)), before=[Conv(3)])
    kernels_add(Conv(1), Sequential(LayerNorm(), Conv(3)), before=[Conv(3), LayerNorm()])


# ---- what is not Gaussian ------------------------------------------------------------------------------------------


@EACH_NONLINEARITY
def test_a_branch_that_ends_in_a_nonlinearity_is_refused_by_place_and_name_and_allowed_where_asked(phi):
    branch = Sequential(Conv(3), phi)
    with refused(
        re.escape(f"the branch {branch!r} gives the output of a nonlinearity") + ".*pass allow_non_gaussian=True"
    ):
        Sum(Identity(), branch)
    block = Sum(Identity(), branch, allow_non_gaussian=True)
    check_network(Sequential(Conv(3), block, block, Conv(3), phi, Dense()))
    kernels_add(Identity(), branch, before=(Conv(3), block), allow_non_gaussian=True)


@pytest.mark.parametrize(
    ("make", "message", "place"),
    [
        (
            lambda: Sequential(Sum(Identity(), Sequential(Conv(3), ReLU()), allow_non_gaussian=True), ReLU()),
            r"ReLU\(\) is applied to the output of a nonlinearity, which is not Gaussian",
            "layers[1]",
        ),
        (
            lambda: Sequential(Conv(3), ReLU(), Sum(Sum(Identity(), Conv(1)), Conv(1), allow_non_gaussian=True)),
            r"the branch Identity\(\) gives the output of a nonlinearity",
            "layers[2].branches[0]",
        ),
        (
            lambda: Sequential(Conv(3), ReLU(), Sum(Identity(), Conv(3))),
            r"the branch Identity\(\) gives the output of a nonlinearity.*add before the nonlinearity",
            "layers[2]",
        ),
        (
            lambda: Sequential(Conv(3), ReLU(), Sum(Conv(1), Sum(Identity(), Conv(3)))),
            "the branch .* gives the output of a nonlinearity",
            "layers[2].branches[1]",
        ),
        (lambda: Sequential(Conv(3), Sum(ReLU()), Abs()), r"Abs\(\) is applied to the output", "layers[2]"),
        (
            lambda: Sequential(Conv(3), ReLU(), Sum(Conv(1), Sequential(Erf(), Conv(1))), Dense()),
            r"Erf\(\) is applied to the output of a nonlinearity",
            "layers[2].branches[1].layers[0]",
        ),
        (  # wrong wherever it stands: told at once
            lambda: Sequential(Conv(3), Sum(Conv(1), Sequential(Conv(1), Erf())), Dense()),
            "the branch .* gives the output of a nonlinearity",
            "",
        ),
        (
            lambda: Sequential(Conv(3), ReLU(), LayerNorm(), Dense()),
            r"LayerNorm\(\) is applied to the output of a nonlinearity, whose mean over channels is not 0",
            "layers[2]",
        ),
        (
            lambda: reference.kernel(Sequential(LayerNorm(), Dense()), np.ones((1, 2))),
            r"LayerNorm\(\) is applied to the input itself",
            "layers[0]",
        ),
        (
            lambda: check_network(Sequential(Sum(Conv(3), Sum(Identity(), Conv(1))), Sequential(ReLU(), Dense()))),
            r"ReLU\(\) is applied to the input itself, which is not Gaussian",
            "layers[1].layers[0]",
        ),
        (lambda: check_network(Sequential(Conv(3), Sum(ReLU()))), "the network ends in a nonlinearity", ""),
        (lambda: Kernel(ReLU(), device="cpu"), r"ReLU\(\) is applied to the input itself", ""),
    ],
)
def test_what_is_not_gaussian_is_refused_by_its_place_from_the_top_of_what_is_built(make, message, place):
    with refused(message, place):
        make()


def test_a_skip_of_the_input_may_be_followed_by_weights():
    check_network(Sequential(Sum(Identity(), Conv(3)), Conv(3), ReLU(), Dense()))
    check_network(Sequential(Conv(1), Sum(Identity(), Conv(3)), ReLU(), Dense()))


@EACH_NONLINEARITY
@EACH_LINEAR
def test_a_linear_layer_between_two_nonlinearities_is_enough(phi, linear):
    check_network(Sequential(Conv(3), phi, linear, phi, linear))
    told = re.escape(f"{phi!r} is applied to the output of a nonlinearity, which is not Gaussian; put a Conv(...)")
    with refused(told, "layers[2]"):
        Sequential(Conv(3), phi, phi, linear)
    with refused(told, "layers[1].layers[1]"):
        Sequential(Sequential(Conv(3), ReLU()), Sequential(Identity(), phi))
    with refused(told, "layers[2].branches[1].layers[0]"):
        Sequential(Conv(3), ReLU(), Sum(Conv(1), Sequential(phi, Conv(1))))


@EACH_NONLINEARITY
def test_a_nonlinearity_straight_on_the_input_or_at_the_end_is_refused(phi):
    piece = Sequential(phi, Dense())  # well formed as a piece of a larger network
    told = re.escape(f"{phi!r} is applied to the input itself, which is not Gaussian; put a Conv(...) or Dense() bef")
    refused_wherever_it_is_used(piece, told, "layers[0]")
    check_network(Sequential(Dense(), piece))
    ends = r"the network ends in a nonlinearity, so its output is not Gaussian; add Dense\(\) or Conv\(...\) at the end"
    refused_wherever_it_is_used(Sequential(Sequential(Dense()), Sequential(phi, Identity())), ends)


@pytest.mark.parametrize("net", [Identity(), Sequential(), Sum(Identity(), Dense()), Sum(Identity())], ids=repr)
def test_the_images_themselves_are_not_an_output(net):
    """A finite network of it gives the pixels, of which there is no distribution."""
    told = "the images reach the output by a path without weights, so the output is not a random function of them"
    refused_wherever_it_is_used(net, told)
    check_network(Sequential(net, Dense()))


def test_a_sum_of_one_branch_is_the_branch():
    X = np.random.default_rng(0).random((3, 1, 4, 4))
    for layer in (ReLU(), Identity(), Sequential(ReLU(), Conv(3))):
        plain = Sequential(Conv(3), Sum(layer), Conv(1), Abs(), Dense())
        bare = Sequential(Conv(3), layer, Conv(1), Abs(), Dense())
        np.testing.assert_array_equal(reference.kernel(plain, X), reference.kernel(bare, X))
        np.testing.assert_allclose(Kernel(plain, device="cpu")(X), reference.kernel(bare, X), rtol=1e-6)


@given(drawn=networks_with_shapes())
@examples(50)
def test_appending_a_second_skip_or_a_nonlinearity_breaks_any_network(drawn):
    net, _ = drawn
    check_network(net)
    with refused("2 paths without weights"):
        Sum(Identity(), net, Identity())
    with refused("the network ends in a nonlinearity"):
        check_network(Sequential(net, ReLU()))
    with refused("the branch .* gives the output of a nonlinearity"):
        Sum(Sequential(net, ReLU()), Dense())
