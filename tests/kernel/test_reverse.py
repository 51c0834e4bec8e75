"""The reversed program: transposes, how much it keeps, and which sums belong to which parameter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Identity, ReLU, Sequential, Sum, zoo
from cnngp.kernel.program.reverse import Back, Pixels, Reverse, Total, reverse, transposed
from cnngp.network import Network
from cnngp.network.geometry import AxisSum


def _matrix(sums: AxisSum) -> np.ndarray:
    matrix = np.zeros((sums.out_size, sums.size))
    for m, row in enumerate(sums.sources):
        for nu in row:
            matrix[m, nu] += 1.0
    return matrix


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, n - 1)), min_size=1).map(lambda s: (n, s))))
def test_transposed_sums_are_the_transposed_matrix(drawn: tuple[int, list[list[int]]]) -> None:
    size, sources = drawn
    sums = AxisSum(size, tuple(map(tuple, sources)))
    np.testing.assert_array_equal(_matrix(transposed(sums)), _matrix(sums).T)


def _kept(found: Reverse) -> int:
    return sum(found.program.buffers)


def test_what_is_kept_grows_with_the_depth_and_no_faster() -> None:
    def deep(blocks: int) -> Network:
        return Sequential(
            Conv(3), *[Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3)))] * blocks, ReLU(), Dense()
        )

    four, eight, sixteen = (_kept(reverse(deep(n), (1, 8, 8))) for n in (4, 8, 16))
    assert sixteen - eight == 2 * (eight - four) == 2 * 4 * 2 * 64, "two maps a block"


@pytest.mark.parametrize("pool", [GlobalAvgPool(), AvgPool(3, 1)])
def test_under_a_pool_one_sheet_is_kept_at_a_time(pool: Network) -> None:
    """Five layers on 10 × 10 places: sheets of all displacements together would take more than ten times as much."""
    net = Sequential(*[Conv(3), ReLU()] * 5, pool, Dense())
    found = reverse(net, (1, 10, 10))
    assert net.shapes((1, 10, 10)).elements > 10 * 5 * 100
    assert _kept(found) <= (5 + 6) * 100 + 2 * 64 * 25


def test_every_parameter_has_its_sums() -> None:
    for net in (zoo.resnet(14), zoo.lenet(), Sequential(Conv(3), ReLU(), Conv(1), ReLU(), Dense())):
        found = reverse(net, (1, 28, 28))
        assert {share.name for share in found.shares} == set(net.parameters())
        slots = {step.slot for step in found.steps if isinstance(step, Back | Total)}
        assert {share.slot for share in found.shares} <= slots | {slot + 1 for slot in slots}


def test_only_gradients_of_images_go_on_to_the_pixels() -> None:
    net = Sequential(Conv(3), ReLU(), Dense())
    assert not any(isinstance(step, Pixels) for step in reverse(net, (1, 5, 5)).steps)
    assert sum(isinstance(step, Pixels) for step in reverse(net, (1, 5, 5), to_images=True).steps) == 1
