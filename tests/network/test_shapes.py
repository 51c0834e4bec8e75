"""Sizes: the table a person reads, PyTorch's output sizes, and what is refused once the input shape is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cnngp import AvgPool, Conv, ConvTranspose, Dense, Identity, Kernel, NetworkError, ReLU, Sequential, Sum
from cnngp.network import reference, shapes
from cnngp.network.geometry import AxisSum, Window
from helpers.examples import examples
from helpers.networks import convolutions, networks_with_shapes, transposed


def output(layer, *size: int) -> tuple[int, ...]:
    return layer.shapes((1, *size)).output


def refused(message: str):
    return pytest.raises(NetworkError, match=message)


# ---- the table -----------------------------------------------------------------------------------------------------


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


# ---- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 28])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding_gives_the_size_divided_by_the_stride_rounded_up(size, stride):
    for kernel, dilation in ((1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (3, 2), (4, 3)):
        assert output(Conv(kernel, stride=stride, dilation=dilation), size) == (-(-size // stride),)
        assert output(ConvTranspose(kernel, stride=stride, dilation=dilation), size) == (size * stride,)


def torch_size(layer, size: tuple[int, ...]) -> tuple[int, ...]:
    """What PyTorch makes of an explicit padding; a pair is padded beforehand."""
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    axes = len(size)

    def each(value):
        return value if isinstance(value, tuple) else (value,) * axes

    x, w = torch.zeros(1, 1, *size), torch.zeros(1, 1, *each(layer.kernel_size))
    arguments = {"stride": each(layer.stride), "dilation": each(layer.dilation)}
    if isinstance(layer, ConvTranspose):
        f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
        padding = (0,) * axes if layer.padding == "valid" else each(layer.padding)
        return tuple(f(x, w, padding=padding, output_padding=each(layer.output_padding), **arguments).shape[2:])
    entries = each(0) if layer.padding == "valid" else each(layer.padding)
    pads = [(p, p) if isinstance(p, int) else p for p in entries]
    x = F.pad(x, [p for pair in reversed(pads) for p in pair])
    return tuple((F.conv1d, F.conv2d, F.conv3d)[axes - 1](x, w, **arguments).shape[2:])


@given(data=st.data(), axes=st.integers(1, 3))
@examples(120)
def test_convolutions_have_the_sizes_of_pytorch(data, axes):
    layer = data.draw(st.one_of(convolutions(axes), transposed(axes)))
    if isinstance(layer, ConvTranspose):  # PyTorch pads both sides alike, or neither
        padding, extra = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 3))
        layer = ConvTranspose(layer.kernel_size, layer.stride, padding, layer.dilation, output_padding=extra)
    assume(layer.padding != "same")
    size = tuple(data.draw(st.integers(1, 12)) for _ in range(axes))
    try:
        ours = output(layer, *size)
    except NetworkError as error:
        if "can pad an axis" in str(error):
            return  # a limit of the padding mode, not of the size
        with pytest.raises(RuntimeError):
            torch_size(layer, size)
        return
    assert ours == torch_size(layer, size)


@given(drawn=networks_with_shapes())
@examples(30)
def test_the_table_agrees_with_the_maps_of_the_reference(drawn):
    net, shape = drawn
    layers = net.layers
    for stop in range(1, len(layers) + 1):
        piece = Sequential(*layers[:stop])
        x = np.ones((1, *shape))
        maps = reference.propagate(piece, reference.Maps(reference.inputs(x, x))).K
        row = {row.place: row for row in net.shapes(shape)}[f"layers[{stop - 1}]"]
        assert maps.xz.shape[2:] == row.output


# ---- one axis ------------------------------------------------------------------------------------------------------


@given(
    st.builds(
        Window,
        kernel=st.integers(1, 5),
        stride=st.integers(1, 3),
        dilation=st.integers(1, 3),
        before=st.integers(0, 4),
        after=st.integers(0, 4),
        mode=st.sampled_from(["zeros", "circular", "reflect", "replicate"]),
    ),
    st.integers(1, 12),
)
@example(Window(2, 1, 1, 0, 1, "circular"), 1)
@examples(150)
def test_the_transposed_sum_is_the_adjoint_of_the_convolved_one(window, size):
    try:
        forward = shapes.convolution(window, size).pieces(0)[0].sums
    except ValueError:
        assume(False)
    assert forward.taps == matrix(forward).sum()
    if window.mode == "zeros":  # the only padding of transposed convolutions
        back = shapes.transposed_convolution(window, forward.out_size, size).pieces(0)[0].sums
        assert np.array_equal(matrix(back), matrix(forward).T)
    else:
        assert {len(row) for row in forward.sources} == {window.kernel}  # nothing is left out


def matrix(s: AxisSum) -> np.ndarray:
    M = np.zeros((s.out_size, s.size), int)
    for m, row in enumerate(s.sources):
        for nu in row:
            M[m, nu] += 1
    return M


# ---- what is refused once sizes are known --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (1, 2, 3, 4, 5), (0, 4, 4), (1, -4), (1.0, 4), "28", 28, None, (1, None), (1, "4")]
)
def test_an_input_shape_is_one_to_four_positive_integers(shape):
    message = r"input_shape=.*: expected positive integers \(channels, height, width\)"
    with refused(message):
        Dense().shapes(shape)
    assert Dense().shapes(np.array([1, 4, 4])) == Dense().shapes([np.int64(1), 4, 4]) == Dense().shapes((1, 4, 4))


def test_an_image_smaller_than_the_filter_is_refused():
    spans = (
        r"^layers\[1\]: Conv\(5, padding='valid', dilation=2\) on 8 × 9: axis 0: the filter spans 9 locations but the "
        "padded axis has only 8; use a smaller kernel_size or dilation, more padding, or larger images$"
    )
    net = Sequential(Conv(3), Conv(5, padding="valid", dilation=2), Dense())
    with refused(spans):
        net.shapes((1, 8, 9))
    assert net.shapes((1, 9, 9)).output == ()
    with refused("axis 1: the filter spans 9 locations but the padded axis has only 8"):
        Kernel(net, device="cpu")(np.ones((2, 1, 9, 8)))


@pytest.mark.parametrize(
    ("layer", "size", "message"),
    [
        (Conv(7, padding_mode="reflect"), 3, "'reflect' can pad an axis of 3 by at most 2, not 3"),
        (Conv(3, padding_mode="reflect"), 1, "'reflect' can pad an axis of 1 by at most 0, not 1"),
        (Conv(7, padding_mode="circular"), 2, "'circular' can pad an axis of 2 by at most 2, not 3"),
        (Conv(4, padding=((0, 5),), padding_mode="reflect"), 5, "'reflect' can pad an axis of 5 by at most 4, not 5"),
    ],
    ids=repr,
)
def test_padding_that_needs_more_than_the_image_has_is_refused(layer, size, message):
    with refused(f"axis 0: padding_mode={message}; use padding_mode='zeros' or 'replicate', or less padding"):
        layer.shapes((1, size))
    assert layer.shapes((1, 2 * size + 3)).output  # a larger image will do


def test_branches_of_different_shapes_are_refused():
    net = Sequential(Conv(3), Sum(Identity(), Sequential(ReLU(), Conv(3, stride=2))), Dense())
    message = (
        r"^layers\[1\]: the branches of a Sum must have one shape, but branches\[0\] gives 8 × 8, branches\[1\] gives "
        r"4 × 4; give the skip a Conv\(1, stride=…\)$"
    )
    with refused(message):
        net.shapes((1, 8, 8))
    with refused(message):
        Kernel(net, device="cpu")(np.ones((2, 1, 8, 8)))
    with refused("must have one shape, but branches.0. gives 7 × 7, branches.1. gives 1"):
        Sum(Conv(3), Dense()).shapes((1, 7, 7))
    for size in (1, 7):  # which NumPy would broadcast: the reference shares no code with the engines' check
        with refused("the branches of a Sum must have one shape"):
            reference.kernel(Sequential(Sum(Conv(3), Dense()), Dense()), np.ones((2, 1, size, size)))


def test_a_kernel_needs_one_output_location():
    message = (
        r"the network has 4 × 4 output locations for input \(1, 4, 4\), but a kernel needs one; end it with Dense\(\)"
    )
    with refused(message):
        Kernel(Sequential(Sequential(), Identity(), Conv(3)), device="cpu")(np.ones((2, 1, 4, 4)))
    assert Kernel(Conv(4, padding="valid"), device="cpu")(np.ones((2, 1, 4, 4))).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (Conv((3, 3)), (1, 8), r"has kernel_size=\(3, 3\) for 2 axes, but its input has 1"),
        (Conv(3, stride=(1, 2)), (1, 8), r"has stride=\(1, 2\) for 2 axes, but its input has 1"),
        (Conv(3, dilation=(1, 2, 1)), (1, 8, 8), r"has dilation=\(1, 2, 1\) for 3 axes, but its input has 2"),
        (Conv(3, padding=(1, 1)), (1, 8), "has padding for 2 axes, but its input has 1"),
        (ConvTranspose(3, 2, 1, output_padding=(1, 1)), (1, 8), r"output_padding=\(1, 1\) for 2 axes, but"),
        (Conv(3), (8,), r"Conv\(3\) needs spatial axes, but its input has one location; use Dense\(\)"),
        (Sequential(AvgPool(3), Dense()), (8,), r"needs spatial axes, but its input has one location; leave it out"),
        (
            Sequential(AvgPool(9), Dense()),
            (1, 8, 8),
            "axis 0: the filter spans 9 locations but the padded axis has only 8",
        ),
        (Sequential(Dense(), ReLU(), Conv(1)), (1, 8, 8), r"^layers\[2\]: Conv\(1\) needs spatial axes"),
    ],
    ids=repr,
)
def test_layers_for_another_number_of_axes_are_refused(layer, shape, message):
    with refused(message):
        layer.shapes(shape)


TOO_MANY = ".* locations, padding included, with a filter of .* are over 16,777,216 reads"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ConvTranspose(3, stride=2, padding=1, output_padding=2), r"output_padding=2 must be smaller than .* \(2\)"),
        (ConvTranspose(1, padding=3), "the output would have -2 locations; use less padding or larger images"),
        *((layer, TOO_MANY) for layer in (Conv(10**9), Conv(3, padding=10**9), Conv(3, dilation=10**9))),
        *((layer, TOO_MANY) for layer in (ConvTranspose(3, stride=10**9), ConvTranspose(10**9))),
    ],
    ids=repr,
)
def test_sizes_that_cannot_be_are_refused(layer, message):
    with refused(f"^layers.1.: Conv.* on 4: axis 0: {message}"):
        Sequential(Conv(3), layer).shapes((1, 4))
