"""Programs are short, also reversed: what is folded, what is kept, and which sums belong to which parameter."""

import math

import pytest

from cnngp import GELU, AvgPool, Conv, Cos, Dense, Erf, GlobalAvgPool, Identity, Kernel, ReLU, Sequential, Sin, Sum, zoo
from cnngp.kernel.program import lower
from cnngp.kernel.program.reverse import Pixels, reverse
from cnngp.network import Network

C, R, D = Conv(3, weight_var=2.0, bias_var=0.1), ReLU(), Dense()


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


def test_nonlinearities_and_constants_fold_into_the_next_operation():
    program = lower(zoo.resnet(32), (1, 28, 28))
    assert len(program.activations) == 31  # 30 in the blocks and one between the dense layers
    # Left on their own: the ReLU that both branches of a projection read, thrice, and the one on a single location.
    assert sum(op.sums is None for op in program.ops) == 4
    convnet = lower(zoo.convnet(), (1, 28, 28))
    assert len(convnet.ops) == 8
    assert all(math.frexp(op.scale)[0] == 0.5 for op in convnet.ops)  # nothing but powers of two is left
    assert len(convnet.buffers) == 2
    assert len(lower(zoo.resnet(110), (1, 28, 28)).buffers) <= 4


def test_a_program_does_not_depend_on_how_the_layers_are_nested():
    """Nor on pools of one location."""
    flat = lower(Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense()), (1, 8, 8))
    for net in (
        Sequential(Sequential(Conv(3), Identity(), ReLU()), Sequential(Conv(3), ReLU()), Dense()),
        Sequential(Conv(3), ReLU(), Conv(3), ReLU(), AvgPool(1), Dense()),
    ):
        other = lower(net, (1, 8, 8))
        assert [(op.shape, op.sums, op.scale) for op in flat.ops] == [(op.shape, op.sums, op.scale) for op in other.ops]


def test_sheets_of_one_chain_share_few_buffers():
    """One sheet after the other: memory does not grow with their number, only with what the pool holds."""
    few, many = (lower(Sequential(*[C, R] * 3, GlobalAvgPool(), D), (1, n, n)) for n in (8, 16))
    assert len(many.ops) > 3.5 * len(few.ops)
    assert sum(few.buffers) <= 4 * 8 * 8
    assert sum(many.buffers) <= 4 * 16 * 16


def test_stores_of_networks_whose_bits_changed_have_a_version_of_their_own():
    """The order of additions under pools changed, and the formulas of GELU, Sin and Cos; all else did not."""
    plain, pooled = Sequential(C, R, Dense()), Sequential(C, R, GlobalAvgPool(), Dense())
    others = [Sequential(C, act, Dense()) for act in (GELU(), Sin(), Cos(), Erf())]
    identities = [Kernel(net, device="cpu").engine_for((1, 5, 5)).identity for net in (plain, pooled, *others)]
    assert [identity[:6] for identity in identities] == ["cpu-3-", "cpu-6-", "cpu-4-", "cpu-4-", "cpu-4-", "cpu-3-"]


# ---- reversed --------------------------------------------------------------------------------------------------------


def kept(net: Network, shape: tuple[int, ...]) -> int:
    return sum(reverse(net, shape).program.buffers)


def test_what_is_kept_grows_with_the_depth_and_no_faster() -> None:
    block = Sum(Identity(), Sequential(R, C, R, C))
    four, eight, sixteen = (kept(Sequential(C, *[block] * n, R, D), (1, 8, 8)) for n in (4, 8, 16))
    assert sixteen - eight == 2 * (eight - four) == 2 * 4 * 2 * 64, "two maps a block"


@pytest.mark.parametrize("pool", [GlobalAvgPool(), AvgPool(3, 1)])
def test_under_a_pool_one_sheet_is_kept_at_a_time(pool: Network) -> None:
    """Five layers on 10 × 10 places: sheets of all displacements together would take more than ten times as much."""
    net = Sequential(*[Conv(3), R] * 5, pool, D)
    assert net.shapes((1, 10, 10)).elements > 10 * 5 * 100
    assert kept(net, (1, 10, 10)) <= (5 + 6) * 100 + 2 * 64 * 25


def test_only_gradients_of_images_go_on_to_the_pixels() -> None:
    net = Sequential(Conv(3), ReLU(), Dense())
    assert not any(isinstance(step, Pixels) for step in reverse(net, (1, 5, 5)).steps)
    assert sum(isinstance(step, Pixels) for step in reverse(net, (1, 5, 5), to_images=True).steps) == 1
