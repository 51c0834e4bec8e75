"""The sliding window of a sum: read from the sums alone, it must say the same as the layer that made them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from cnngp.network import shapes
from cnngp.network.geometry import AxisSum, SlidingWindow, Window


def _told(window: SlidingWindow, size: int, m: int) -> tuple[int, ...]:
    """What output m sums by the window's numbers, with zeros outside."""
    return tuple(nu for d in window.offsets if 0 <= (nu := d + m * window.stride) < size)


def _sums() -> list[tuple[Window, int]]:
    found = []
    for k, stride, dilation, before, after, size in itertools.product(
        (1, 2, 3, 5), (1, 2, 4), (1, 2, 3), (0, 1, 2, 6), (0, 1, 4), (1, 2, 3, 7)
    ):
        window = Window(k, stride, dilation, before, after, "zeros")
        if size + before + after >= window.reach:
            found.append((window, size))
    return found


def convolved(window: Window, size: int) -> AxisSum:
    return shapes.convolution(window, size).pieces(0)[0].sums


def transposed(window: Window, size: int, out_size: int) -> AxisSum:
    return shapes.transposed_convolution(window, size, out_size).pieces(0)[0].sums


def test_zero_padded_convolutions_are_windows_with_zeros_outside() -> None:
    for given, size in _sums():
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
            assert all(_told(by_sums, size, m) == sums.sources[m] for m in range(by_sums.low, by_sums.high))
            by_sums = None
        for window in filter(None, (by_stride, by_sums)):
            assert [_told(window, size, m) for m in range(sums.out_size)] == list(sums.sources)
            assert window.padding is not None
            left, right = window.padding
            reads = [d + m * window.stride for d in window.offsets for m in range(sums.out_size)]
            assert left == max(0, -min(reads))
            assert right == max(0, max(reads) - size + 1)
            whole = [m for m in range(sums.out_size) if len(_told(window, size, m)) == window.k]
            assert whole == list(range(window.low, window.high))


def test_transposed_convolutions_of_stride_one_are_windows_too() -> None:
    for given, size in _sums():
        given = replace(given, stride=1)
        out_size = size - 1 + given.reach - given.before - given.after
        if out_size < 1:
            continue
        sums = transposed(given, size, out_size)
        if sums.taps:
            window = sums.sliding(1)
            assert window is not None
            assert [_told(window, sums.size, m) for m in range(sums.out_size)] == list(sums.sources)


def test_offsets_may_be_uneven_or_none_at_all() -> None:
    """Places that move together without being evenly spaced, and sums without terms."""
    uneven = AxisSum(5, ((0, 1, 3), (1, 2, 4), (2, 3)))
    assert uneven.offsets(1) == (0, 1, 3)
    assert uneven.sliding(1) is None
    assert AxisSum(4, ((), ())).offsets(1) == ()
    assert convolved(Window(3, 1, 1, 1, 1, "circular"), 6).offsets(1) is None
    assert AxisSum(4, ((0,), (2,))).offsets(1) is None
    assert AxisSum(4, ((0,), (2,))).offsets(2) == (0,)


def test_a_window_may_start_behind_the_first_place() -> None:
    """`ConvTranspose(2, padding=2)`: output 0 sums places 1 and 2."""
    sums = transposed(Window(2, 1, 1, 2, 2, "zeros"), 6, 3)
    assert sums.window == SlidingWindow(start=1, stride=1, dilation=1, k=2, low=0, high=3, padding=(0, 0))


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
def test_with_other_padding_only_the_middle_is_a_window(mode: str) -> None:
    sums = convolved(Window(3, 1, 1, 1, 1, mode), 6)  # type: ignore[arg-type]
    assert sums.window == SlidingWindow(start=-1, stride=1, dilation=1, k=3, low=1, high=5, padding=None)
    assert sums.sliding(1) is None


def test_what_is_no_window() -> None:
    assert AxisSum(4, ((0, 1, 3),)).window is None
    assert AxisSum(4, ((), ())).window is None
    assert AxisSum(3, ((2, 0), (1,), (0, 2))).window is None
    assert transposed(Window(1, 3, 1, 0, 0, "zeros"), 3, 7).sliding(1) is None


def test_a_mean_over_an_axis_is_one_window() -> None:
    mean = AxisSum(5, (tuple(range(5)),))
    assert mean.window == SlidingWindow(start=0, stride=1, dilation=1, k=5, low=0, high=1, padding=(0, 0))
