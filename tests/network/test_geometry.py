"""The sliding window of a sum: read from the sums alone, it must say the same as the layer that made them."""

import itertools
from dataclasses import replace

from cnngp.network import shapes
from cnngp.network.geometry import AxisSum, SlidingWindow, Window

SIZES = itertools.product((1, 2, 3, 5), (1, 2, 4), (1, 2, 3), (0, 1, 2, 6), (0, 1, 4), (1, 2, 3, 7))
WINDOWS = [
    (window, size)
    for *numbers, size in SIZES
    if size + sum(numbers[3:]) >= (window := Window(*numbers, "zeros")).reach  # type: ignore[arg-type]
]


def told(window: SlidingWindow, size: int, m: int) -> tuple[int, ...]:
    """What output m sums by the window's numbers, with zeros outside."""
    return tuple(nu for d in window.offsets if 0 <= (nu := d + m * window.stride) < size)


def convolved(window: Window, size: int) -> AxisSum:
    return shapes.convolution(window, size).pieces(0)[0].sums


def transposed(window: Window, size: int, out_size: int) -> AxisSum:
    return shapes.transposed_convolution(window, size, out_size).pieces(0)[0].sums


def test_zero_padded_convolutions_are_windows_with_zeros_outside() -> None:
    for given, size in WINDOWS:
        sums = convolved(given, size)
        if sums.taps == 0:
            assert sums.window is None
            continue
        offsets = sums.offsets(given.stride)
        assert offsets is not None
        for m, row in enumerate(sums.sources):
            assert row == tuple(nu for d in offsets if 0 <= (nu := m * given.stride + d) < size)
        by_stride, by_sums = sums.sliding(given.stride), sums.window
        assert by_stride is not None
        if by_sums is not None and by_sums.padding is None:  # too few terms to tell the stride: a run of outputs only
            assert all(told(by_sums, size, m) == sums.sources[m] for m in range(by_sums.low, by_sums.high))
            by_sums = None
        for window in filter(None, (by_stride, by_sums)):
            assert [told(window, size, m) for m in range(sums.out_size)] == list(sums.sources)
            reads = [d + m * window.stride for d in window.offsets for m in range(sums.out_size)]
            assert window.padding == (max(0, -min(reads)), max(0, max(reads) - size + 1))
            whole = [m for m in range(sums.out_size) if len(told(window, size, m)) == window.k]
            assert whole == list(range(window.low, window.high))


def test_transposed_convolutions_of_stride_one_are_windows_too() -> None:
    for given, size in WINDOWS:
        given = replace(given, stride=1)
        out_size = size - 1 + given.reach - given.before - given.after
        if out_size >= 1 and (sums := transposed(given, size, out_size)).taps:
            assert (window := sums.sliding(1)) is not None
            assert [told(window, sums.size, m) for m in range(sums.out_size)] == list(sums.sources)


UNEVEN = AxisSum(5, ((0, 1, 3), (1, 2, 4), (2, 3)))
EMPTY = AxisSum(4, ((), ()))


def test_offsets_may_be_uneven_or_none_at_all() -> None:
    assert UNEVEN.offsets(1) == (0, 1, 3)
    assert UNEVEN.sliding(1) is None
    assert EMPTY.offsets(1) == ()
    assert convolved(Window(3, 1, 1, 1, 1, "circular"), 6).offsets(1) is None
    assert [AxisSum(4, ((0,), (2,))).offsets(stride) for stride in (1, 2)] == [None, (0,)]


def test_windows_of_other_sums() -> None:
    for mode in ("circular", "reflect", "replicate"):  # with padding that copies only the middle is a window
        window = Window(3, 1, 1, 1, 1, mode)  # type: ignore[arg-type]
        assert convolved(window, 6).window == SlidingWindow(-1, 1, 1, 3, 1, 5, None)
    half = transposed(Window(2, 1, 1, 2, 2, "zeros"), 6, 3)
    assert half.window == SlidingWindow(1, 1, 1, 2, 0, 3, (0, 0))
    assert AxisSum(5, (tuple(range(5)),)).window == SlidingWindow(0, 1, 1, 5, 0, 1, (0, 0))
    for sums in (AxisSum(4, ((0, 1, 3),)), EMPTY, AxisSum(3, ((2, 0), (1,), (0, 2)))):
        assert sums.window is None
