"""Lowering: networks with something special about them give the right kernels, and programs are short."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnngp import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Erf,
    Identity,
    Kernel,
    LeakyReLU,
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
from helpers.kernels import error
from helpers.networks import images

# ---- lowering ------------------------------------------------------------------------------------------------------


SPECIAL = {
    "resnet": zoo.resnet(8),
    "convnet": zoo.convnet(),
    "residual_cnn": zoo.residual_cnn(),
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


# ---- the tangent kernel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECIAL)
def test_lowering_is_right_for(name):
    """K to the last digits; Θ within four times what a unit in the last place of K after every layer moves it by: near
    correlation one the slope of a ReLU is that of a square root, and another square root may follow.
    """
    net, X = SPECIAL[name], images((2, 5, 6), 4, 7)
    kernel = Kernel(net, device="cpu", dtype="float64", check=False)
    assert error(kernel(X), reference.kernel(net, X)) < 1e-12
    if name != "every nonlinearity":
        T = kernel.both(X)[1]
        found = compare(net, X, T, np.dtype("float64"), "ntk")
        if found is None:  # Θ is zero
            assert not T.any()
        else:
            assert found.error <= 4.0 * max(found.bound, 1e-8)  # half an ulp of a correlation of one is 2e-9 a ReLU


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
