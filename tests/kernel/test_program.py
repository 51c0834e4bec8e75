"""Lowering proved apart from any engine: programs run by an interpreter of their contract give the kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cnngp import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Erf,
    Identity,
    LeakyReLU,
    NetworkError,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
    zoo,
)
from cnngp.kernel.check import compare
from cnngp.kernel.program import lower
from cnngp.network import reference
from helpers.examples import examples
from helpers.networks import STEP, images, networks_with_shapes, relu_like, smooth
from helpers.pooled import pooled_networks
from helpers.program_oracle import error, interpret

# ---- lowering ------------------------------------------------------------------------------------------------------


@given(drawn=networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=200), seed=st.integers(0, 10**6))
@examples(120)
def test_a_program_computes_the_kernel_of_its_network(drawn, seed):
    net, shape = drawn
    X = images(shape, 4, seed)
    assert error(interpret(net, X), reference.kernel(net, X)) < 1e-12


@given(drawn=pooled_networks(st.one_of(relu_like, smooth), max_elements=1500), seed=st.integers(0, 10**6))
@examples(60)
def test_a_program_of_sheets_computes_the_kernel_of_its_network(drawn, seed):
    net, shape = drawn
    X = images(shape, 3, seed)
    assert error(interpret(net, X), reference.kernel(net, X)) < 1e-12


SPECIAL = {
    "no operation at all": Dense(2.0),
    "a change of unit only": Sequential(Conv(1, weight_var=3.0), ReLU(), Dense(0.5)),
    "weights that are all zero": Sequential(Conv(3, weight_var=0.0), ReLU(), Dense()),
    "zero weights with a bias": Sequential(Conv(3, weight_var=0.0, bias_var=2.0), ReLU(), Dense(0.0, 0.5)),
    "a skip that stands last": Sequential(Conv(3), Sum(Sequential(ReLU(), Conv(3)), Identity()), ReLU(), Dense()),
    "a skip of the input": Sequential(Sum(Identity(), Conv(3, bias_var=1.0)), Dense()),
    "only skips with weights": Sequential(Sum(Conv(1), Conv(1, weight_var=2.0), Conv(1, bias_var=3.0)), Dense()),
    "a sum of one": Sequential(Sum(Conv(3)), Sum(Sum(Identity())), ReLU(), Dense()),
    "sums within sums": Sequential(
        Conv(2),
        Sum(
            Sequential(ReLU(), Sum(Conv(3), Sequential(Conv(1), Erf(), Conv(3)))),
            Sum(Sum(Identity(), Conv(5)), Sequential(Abs(), Conv(3), Sum(Identity(), Conv(1)))),
        ),
        ReLU(),
        Dense(),
    ),
    "one nonlinearity with several readers": Sequential(
        Conv(3), ReLU(), Sum(Conv(1), Conv(3), Sequential(Conv(3), ReLU(), Conv(3))), ReLU(), Dense()
    ),
    "sums that are not Gaussian, in a row": Sequential(
        *[Sum(Identity(), Sequential(Conv(3), ReLU()), allow_non_gaussian=True)] * 3, Conv(3), ReLU(), Dense()
    ),
    "branches that are bare nonlinearities": Sequential(
        Conv(3), Sum(ReLU(), Sequential(Conv(3), LeakyReLU(0.3)), allow_non_gaussian=True), Dense()
    ),
    "growing and shrinking maps": Sequential(
        Conv(3, stride=2), ReLU(), ConvTranspose(3, stride=3), Abs(), Conv(4, padding="valid"), Cos(), Conv(2), Sin(),
        Dense(),
    ),
    "very different branches": Sequential(
        Conv(3), Sum(Conv(3, weight_var=1e-12), Conv(3, weight_var=1e12)), ReLU(), Dense(1e-12)
    ),
    "one map read twice by one operation": Sequential(Conv(3), ReLU(), Sum(Conv(1), Conv(3)), ReLU(), Dense()),
    "every nonlinearity": Sequential(
        Conv(3), ReLU(0.5), Conv(3), LeakyReLU(-0.2), Conv(3), Abs(), Conv(3), Erf(), Conv(3), GELU(), Conv(3), Sin(),
        Conv(3), Cos(), Conv(3), Step(), Dense(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_lowering_is_right_for(name):
    X = images((2, 5, 6), 4, 7)
    assert error(interpret(SPECIAL[name], X), reference.kernel(SPECIAL[name], X)) < 1e-12


# ---- the tangent kernel --------------------------------------------------------------------------------------------


def assert_both(net, X):
    """K to the last digits; Θ within four times what a unit in the last place of K after every layer moves it by: near
    correlation one the slope of a ReLU is that of a square root, and another square root may follow.
    """
    K, T = interpret(net, X, "ntk")
    assert error(K, reference.kernel(net, X)) < 1e-12
    found = compare(net, X, T, np.dtype("float64"), "ntk")
    if found is None:  # Θ is zero
        assert not T.any()
    else:
        assert found.error <= 4.0 * max(found.bound, 1e-8)  # half an ulp of a correlation of one is 2e-9 at each ReLU


@given(drawn=networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=100), seed=st.integers(0, 10**6))
@examples(40)
def test_a_program_computes_the_tangent_kernel_too(drawn, seed):
    assert_both(drawn[0], images(drawn[1], 4, seed))


@given(drawn=pooled_networks(st.one_of(relu_like, smooth), max_elements=600), seed=st.integers(0, 10**6))
@examples(30)
def test_a_program_of_sheets_computes_the_tangent_kernel_too(drawn, seed):
    assert_both(drawn[0], images(drawn[1], 3, seed))


@pytest.mark.parametrize("name", [name for name in SPECIAL if name != "every nonlinearity"])
def test_lowering_to_both_kernels_is_right_for(name):
    assert_both(SPECIAL[name], images((2, 5, 6), 4, 7))


@pytest.mark.parametrize("net", [zoo.resnet(8), zoo.residual_cnn(), zoo.convnet()], ids=["resnet", "resid", "convnet"])
def test_the_papers_networks_are_lowered_rightly_to_both_kernels(net):
    assert_both(net, images((1, 9, 8), 3, 0))


def test_a_slope_stands_right_before_its_value_and_no_map_is_copied():
    for net in (zoo.resnet(32), zoo.convnet()):
        program, without = lower(net, (1, 28, 28), "ntk"), lower(net, (1, 28, 28))
        slopes = [i for i, op in enumerate(program.ops) if op.tangent is not None]
        assert len(slopes) == len(program.activations)
        for i in slopes:
            slope, value = program.ops[i], program.ops[i + 1]
            assert (slope.src, slope.activation, slope.sums) == (value.src, value.activation, value.sums)
        # Beside K's operations: one for each slope, one for each box of T without a nonlinearity in it, and Θ = T + K.
        plain = sum(op.activation is None for op in without.ops)
        assert len(program.ops) <= len(without.ops) + len(slopes) + plain + 1
        assert len(program.buffers) <= 2 * len(without.buffers)


def test_a_step_has_no_tangent_kernel_and_says_where_it_stands():
    with pytest.raises(NetworkError, match=r"layers\[1\]: Step\(\) has no tangent kernel: its slope is zero almost"):
        lower(Sequential(Conv(3), Step(), Dense()), (1, 4, 4), "ntk")


@given(drawn=networks_with_shapes(st.just(STEP), max_pixels=100), seed=st.integers(0, 1000))
@examples(30)
def test_step_networks_are_lowered_rightly(drawn, seed):
    net, shape = drawn
    X = images(shape, 4, seed)
    # θ near 0 or π has a square-root slope: one half-ulp of the correlation moves Step by 1e-8. Each further Step takes
    # the root again: 1e-4 after two, 1e-2 after three, 1e-1 after four.
    steps = repr(net).count("Step()")
    assume(steps <= 4)  # beyond, the roots of a rounding are of order one
    assert error(interpret(net, X), reference.kernel(net, X)) < (2e-8, 2e-8, 1e-4, 3e-2, 0.2)[steps]


@pytest.mark.parametrize("net", [zoo.resnet(8), zoo.residual_cnn(), zoo.convnet()], ids=["resnet", "resid", "convnet"])
def test_the_papers_networks_are_lowered_rightly(net):
    X = images((1, 9, 8), 3, 0)
    assert error(interpret(net, X), reference.kernel(net, X)) < 1e-12


def test_a_program_does_not_depend_on_how_the_layers_are_nested():
    flat = lower(Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense()), (1, 8, 8))
    nested = lower(Sequential(Sequential(Conv(3), Identity(), ReLU()), Sequential(Conv(3), ReLU()), Dense()), (1, 8, 8))
    assert [(op.shape, op.sums, op.scale) for op in flat.ops] == [(op.shape, op.sums, op.scale) for op in nested.ops]


def test_nonlinearities_and_constants_fold_into_the_next_operation():
    program = lower(zoo.resnet(32), (1, 28, 28))
    assert len(program.activations) == 31  # 30 in the blocks and one between the dense layers
    # Left on their own: the ReLU that both branches of a projection read, thrice, and the one on a single location.
    assert sum(op.sums is None for op in program.ops) == 4
    convnet = lower(zoo.convnet(), (1, 28, 28))
    assert len(convnet.ops) == 8
    assert all(math.frexp(op.scale)[0] == 0.5 for op in convnet.ops)  # nothing but powers of two is left


def test_a_residual_network_needs_few_maps_at_a_time():
    assert len(lower(zoo.resnet(110), (1, 28, 28)).buffers) <= 4
    assert len(lower(zoo.convnet(), (1, 28, 28)).buffers) == 2


@given(drawn=networks_with_shapes())
@examples(40)
def test_an_image_keeps_one_variance_for_each_element_of_each_nonlinearity(drawn):
    program = lower(*drawn)
    offset = 0
    for i, a in enumerate(sorted(program.activations, key=lambda a: a.site)):
        assert (a.site, a.offset) == (i, offset)
        offset += a.size
    assert program.elements == offset
