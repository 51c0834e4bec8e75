"""Average pools: the layers, what they ask of the layers before them, and the reference with all covariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    AvgPool,
    Conv,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    NetworkError,
    ReLU,
    Sequential,
    Sum,
)
from cnngp.network import reference
from cnngp.network.geometry import AxisSum, Window
from cnngp.network.placed import placed
from cnngp.network.shapes import convolution, pool, transposed_convolution
from helpers.examples import examples
from helpers.matrix_oracle import oracle
from helpers.networks import images, relu_like, smooth
from helpers.pooled import pooled_networks

C, R = Conv(3), ReLU()
LENET = Sequential(C, R, AvgPool(2), C, R, AvgPool(2), Dense())


def wanted(net, spatial):
    """The number of sheets of each layer's output, and of the input."""
    root = placed(net, spatial)
    return [len(here.wanted) for here in root.walk()][:-1], len(root.asked)


def test_a_pool_keeps_what_it_is_given() -> None:
    """What was not Gaussian stays so, and a path without weights stays one."""
    for make, says in (
        (lambda: Sequential(C, R, AvgPool(2), R, Dense()), r"layers\[3\].*not Gaussian"),
        (lambda: Sum(Identity(), AvgPool(3, 1, 1)), "2 paths without weights"),
        (lambda: Sum(C, Sequential(C, R, AvgPool(2))), "gives the output of a nonlinearity"),
    ):
        with pytest.raises(NetworkError, match=says):
            make()


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding_that_moves_locations_is_refused_before_a_pool_and_allowed_behind_it(mode):
    with pytest.raises(NetworkError, match=rf"layers\[0\].*padding_mode='{mode}' does not keep their displacement"):
        Sequential(Conv(3, padding_mode=mode), R, AvgPool(2), Dense()).shapes((1, 8, 8))
    behind = Sequential(C, R, AvgPool(2), Conv(3, padding_mode=mode), R, Dense())
    X = images((1, 6, 6), 2, 0)
    assert reference.kernel(behind, X)[0, 1] == pytest.approx(oracle(behind, X[0], X[1])[0], rel=1e-12)


def test_each_layer_gives_the_displacements_that_are_asked_of_it():
    assert wanted(LENET, (28, 28)) == ([49, 49, 9, 9, 9, 1, 1], 49)
    assert wanted(Sequential(C, R, C, R, Dense()), (28, 28)) == ([1] * 5, 1)
    strided = Sequential(C, R, Conv(3, stride=2), R, GlobalAvgPool(), Dense())
    assert wanted(strided, (8, 8)) == ([49, 49, 49, 49, 1, 1], 49)
    assert {d[0] for d in placed(strided, (8, 8)).asked} == {-6, -4, -2, 0, 2, 4, 6}


def test_elements_are_those_of_the_sheets():
    """The counts of the design page, per pair of images."""

    def elements(net, spatial):
        return sum(here.elements for here in placed(net, spatial).walk() if isinstance(here.layer, ReLU))

    assert elements(LENET, (28, 28)) == 35_456
    two = Sequential(C, R, C, R, AvgPool(2), C, R, C, R, AvgPool(2), C, R, Dense())
    assert elements(two, (28, 28)) == 70_961
    strided = Sequential(C, R, C, R, *[Conv(3, stride=2), R, C, R] * 2, GlobalAvgPool(), Dense())
    assert elements(strided, (28, 28)) == 100_842


def test_the_table_shows_the_cost_of_the_sheets():
    table = LENET.shapes((1, 28, 28))
    assert "sheets" in str(table)
    assert "sheets" not in str(Sequential(C, R, Dense()).shapes((1, 28, 28)))
    assert [row.sheets for row in table] == [49, 49, 49, 9, 9, 9, 1, 1]
    pooled = next(row.cost for row in table if row.place == "layers[1]")
    assert pooled == 15 * sum(28 - abs(d) for d in range(-3, 4)) ** 2


def test_sheets_with_no_common_weight_hold_the_bias_alone():
    wide = convolution(Window(2, 3, 1, 4, 4, "zeros"), 3)
    assert wide.out_size == 4
    assert wide.pieces(3) == ()
    halves = transposed_convolution(Window(2, 2, 1, 0, 0, "zeros"), 3, 6)
    assert halves.pieces(1) == ()
    assert [piece.d for piece in halves.pieces(2)] == [1]


def test_a_pool_divides_by_what_is_inside_where_padding_does_not_count():
    weights = {piece.weight for piece in pool(Window(2, 2, 1, 1, 1, "zeros"), 4, count_include_pad=False).pieces(0)}
    assert weights == {1.0, 4.0}


def test_circular_sheets_meet_across_the_border():
    around = convolution(Window(3, 1, 1, 1, 1, "circular"), 5)
    pieces = {piece.d: piece.sums for piece in around.pieces(1)}
    assert set(pieces) == {1, -4}
    assert pieces[-4] == AxisSum(1, ((0,), (), (), (0,)))


@given(drawn=pooled_networks(st.one_of(relu_like, smooth), max_elements=1500), seed=st.integers(0, 10**6))
@examples(60)
def test_the_reference_agrees_with_matrices_of_all_covariances(drawn, seed):
    net, shape = drawn
    X = images(shape, 2, seed)
    R_ = reference.kernel(net, X)
    xz, xx = oracle(net, X[0], X[1])
    scale = max(np.abs(R_).max(), 1e-300)
    assert abs(R_[0, 1] - xz) <= 1e-11 * scale
    assert abs(R_[0, 0] - xx) <= 1e-11 * scale
    assert reference.diagonal(net, X) == pytest.approx(np.diag(R_), rel=1e-14)


def test_a_global_pool_forgets_where_things_are():
    """With circular padding, a shifted image has the same covariance with every other one."""
    net = Sequential(*[Conv(3, padding_mode="circular", weight_var=2.0, bias_var=0.1), Erf()] * 2, GlobalAvgPool())
    net = Sequential(*net.layers, Dense())
    X = images((1, 5, 5), 2, 1)
    moved = np.roll(X, (2, -1), axis=(2, 3))
    assert reference.kernel(net, X[:1], moved) == pytest.approx(reference.kernel(net, X[:1], X), rel=1e-12)
    still = Sequential(*net.layers[:-2], Dense())
    assert abs(reference.kernel(still, X[:1], moved) / reference.kernel(still, X[:1], X) - 1).max() > 1e-3
