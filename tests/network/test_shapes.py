"""Sizes and sheets: the table a person reads, what it counts, and what is refused once the shape is known."""

import numpy as np
import pytest

from cnngp import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, Identity, Kernel, Sequential, Sum
from cnngp.network import Network
from cnngp.network.layers import NetworkError, ReLU

C, R = Conv(3), ReLU()
LENET = Sequential(C, R, AvgPool(2), C, R, AvgPool(2), Dense())


def test_the_table_names_every_layer_its_output_and_its_cost():
    net = Sequential(Conv(3, stride=2), Sum(Identity(), Sequential(ReLU(), Conv((3, 1)))), ReLU(), Dense())
    table = net.shapes((3, 9, 6))
    assert str(table).splitlines() == [
        "place                            layer              output  operations per pair",
        "(input)                          3 channels          9 × 6                  162",
        "layers[0]                        Conv(3, stride=2)   5 × 3                  133",
        "layers[1].branches[0]            Identity()          5 × 3                    0",
        "layers[1].branches[1].layers[0]  ReLU()              5 × 3                  225",
        "layers[1].branches[1].layers[1]  Conv((3, 1))        5 × 3                   69",
        "layers[1]                        Sum of 2            5 × 3                   15",
        "layers[2]                        ReLU()              5 × 3                  225",
        "layers[3]                        Dense()                 1                   19",
        "all                                                                         848",
    ]
    assert len(table) == 8
    assert table.output == ()
    assert table.cost == sum(row.cost for row in table) == 848
    assert str(Dense().shapes((5,))).splitlines()[2] == "(network)  Dense()          1                    1"
    pooled = LENET.shapes((1, 28, 28))
    assert "sheets" in str(pooled)
    assert pooled.rows[2].place == "layers[1]"
    assert pooled.rows[2].cost == 15 * sum(28 - abs(d) for d in range(-3, 4)) ** 2


TWICE = C, R, C, R
STRIDED = Sequential(*TWICE, *[Conv(3, stride=2), R, C, R] * 2, GlobalAvgPool(), Dense())


@pytest.mark.parametrize(
    ("net", "elements", "sheets"),
    [
        (LENET, 35_456, [49, 49, 49, 9, 9, 9, 1, 1]),
        (Sequential(*TWICE, AvgPool(2), *TWICE, AvgPool(2), C, R, Dense()), 70_961, [49] * 5 + [9] * 5 + [1] * 4),
        (STRIDED, 100_842, [169] * 13 + [1, 1]),
        (Sequential(*TWICE, Dense()), 2 * 28 * 28, [1] * 6),
    ],
)
def test_elements_are_those_of_the_sheets(net, elements, sheets):
    """Covariances of a pair of images, and how many displacements between locations each layer has them for."""
    table = net.shapes((1, 28, 28))
    assert (table.elements, [row.sheets for row in table]) == (elements, sheets)


# ---- what is refused once sizes are known --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (1, 2, 3, 4, 5), (0, 4, 4), (1, -4), (1.0, 4), "28", 28, None, (1, None), (1, "4")]
)
def test_an_input_shape_is_one_to_four_positive_integers(shape):
    with pytest.raises(NetworkError, match=r"input_shape=.*: expected positive integers \(channels, height, width\)"):
        Dense().shapes(shape)
    assert Dense().shapes(np.array([1, 4, 4])) == Dense().shapes([np.int64(1), 4, 4]) == Dense().shapes((1, 4, 4))


WIDE = Sequential(Conv(3), Conv(5, padding="valid", dilation=2), Dense())
STRIDED_BRANCH = Sequential(Conv(3), Sum(Identity(), Sequential(ReLU(), Conv(3, stride=2))), Dense())
TOO_MANY = "axis 0: .* locations, padding included, with a filter of .* are over 16,777,216 reads"
TOO_LARGE = Conv(10**9), Conv(3, padding=10**9), Conv(3, dilation=10**9), ConvTranspose(3, stride=10**9)
PADS = "; use padding_mode='zeros' or 'replicate', or less padding"
POOLS = Sequential(C, R, AvgPool(5, 1, 2, count_include_pad=False), C, R, GlobalAvgPool(), Dense())
ONE_SHAPE = r"the branches of a Sum must have one shape, but branches\[0\] gives"
SPANS = "the filter spans 9 locations but the padded axis has only 8"
POOLED = R, AvgPool(2), Dense()
LOST = "does not keep their displacement"
REFUSED: list[tuple[Network, tuple[int, ...], str]] = [
    (WIDE, (8, 9), rf"^layers\[1\]: Conv\(5, padding='valid', dilation=2\) on 8 × 9: axis 0: {SPANS}; use a smaller"),
    (WIDE, (9, 8), f"axis 1: {SPANS}"),
    (Conv(7, padding_mode="reflect"), (3,), f"'reflect' can pad an axis of 3 by at most 2, not 3{PADS}"),
    (Conv(7, padding_mode="circular"), (2,), f"'circular' can pad an axis of 2 by at most 2, not 3{PADS}"),
    (Conv(4, padding=((0, 5),), padding_mode="reflect"), (5,), "can pad an axis of 5 by at most 4, not 5"),
    (STRIDED_BRANCH, (8, 8), rf"^layers\[1\]: {ONE_SHAPE} 8 × 8, branches\[1\] gives 4 × 4; give the skip a Conv"),
    (Conv((3, 3)), (8,), r"has kernel_size=\(3, 3\) for 2 axes, but its input has 1"),
    (Conv(3, stride=(1, 2)), (8,), r"has stride=\(1, 2\) for 2 axes, but its input has 1"),
    (Conv(3, dilation=(1, 2, 1)), (8, 8), r"has dilation=\(1, 2, 1\) for 3 axes, but its input has 2"),
    (Conv(3, padding=(1, 1)), (8,), "has padding for 2 axes, but its input has 1"),
    (ConvTranspose(3, 2, 1, output_padding=(1, 1)), (8,), r"output_padding=\(1, 1\) for 2 axes, but"),
    (Conv(3), (), r"Conv\(3\) needs spatial axes, but its input has one location; use Dense\(\)"),
    (Sequential(AvgPool(3), Dense()), (), "needs spatial axes, but its input has one location; leave it out"),
    (Sequential(Dense(), ReLU(), Conv(1)), (8, 8), r"^layers\[2\]: Conv\(1\) needs spatial axes"),
    (ConvTranspose(3, 2, 1, output_padding=2), (4,), r"output_padding=2 must be smaller than .* \(2\)"),
    (ConvTranspose(1, padding=3), (4,), "the output would have -2 locations; use less padding or larger images"),
    *((layer, (4,), TOO_MANY) for layer in TOO_LARGE),
    (Sequential(C, R, C, R, GlobalAvgPool(), Dense()), (400, 400), r"layers\[4\]: .* on 400 × 400 needs"),
    # windows of many sizes make a part each of every two of them
    (POOLS, (9, 6, 7), r"layers\[2\]: AvgPool.* on 9 × 6 × 7 adds up .* count_include_pad=True"),
    (Sequential(Conv(3, padding_mode="reflect"), *POOLED), (8, 8), rf"layers\[0\].*padding_mode='reflect' {LOST}"),
    (Sequential(Conv(3, padding_mode="replicate"), *POOLED), (8, 8), rf"layers\[0\].*padding_mode='replicate' {LOST}"),
]


@pytest.mark.parametrize(("net", "size", "message"), REFUSED, ids=lambda v: str(v)[:60])
def test_layers_that_do_not_fit_are_refused_by_their_place(net, size, message):
    with pytest.raises(NetworkError, match=message) as told:
        net.shapes((1, *size))
    with pytest.raises(NetworkError) as of_kernel:
        Kernel(Sequential(net, Dense()), device="cpu").engine_for((1, *size))
    assert of_kernel.value.message == told.value.message


@pytest.mark.parametrize(
    ("layer", "size", "output"),
    [
        (Conv(9, padding="valid"), 9, 1),
        (Conv(5, padding_mode="circular"), 2, 2),
        (Conv(5, padding_mode="reflect"), 3, 3),
        (ConvTranspose(2, padding=1), 2, 1),
        (ConvTranspose(3, 2, 1, output_padding=1), 4, 8),
    ],
    ids=repr,
)
def test_layers_that_just_fit(layer, size, output):
    assert layer.shapes((1, size)).output == (output,)


def test_a_kernel_needs_one_output_location():
    message = r"the network has 4 × 4 output locations for input \(1, 4, 4\), but a kernel needs one; end it with Dense"
    with pytest.raises(NetworkError, match=message):
        Kernel(Sequential(Sequential(), Identity(), Conv(3)), device="cpu")(np.ones((2, 1, 4, 4)))
