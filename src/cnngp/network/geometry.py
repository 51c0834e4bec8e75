"""Windows and sums along one axis, as plain integers; a convolution's patch is a product of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]


class SizeError(ValueError):
    """Error for an axis that does not fit a layer; the caller adds the layer's place in front."""


# Longer lists come from a mistaken size and would exhaust time and memory.
_MOST_READS = 2**24


def check_reads(locations: int, kernel: int) -> None:
    """Raise `SizeError` if the list of a filter's reads along an axis of `locations` would be too long."""
    if locations * kernel > _MOST_READS:
        raise SizeError(
            f"{locations:,} locations, padding included, with a filter of {kernel:,} are over {_MOST_READS:,} reads; "
            "use a smaller kernel_size, dilation or padding"
        )


@dataclass(frozen=True)
class Window:
    """One axis of a convolution: output m reads inputs m·stride − before + t·dilation for t < kernel."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    mode: PaddingMode

    @property
    def reach(self) -> int:
        """Number of input locations that one filter spans."""
        return self.dilation * (self.kernel - 1) + 1

    def output_size(self, size: int) -> int:
        padded = size + self.before + self.after
        if padded < self.reach:
            raise SizeError(
                f"the filter spans {self.reach} locations but the padded axis has only {padded}; "
                "use a smaller kernel_size or dilation, more padding, or larger images"
            )
        longest = max(self.before, self.after)
        if (self.mode == "circular" and longest > size) or (self.mode == "reflect" and longest >= size):
            limit = size if self.mode == "circular" else size - 1
            raise SizeError(
                f"padding_mode={self.mode!r} can pad an axis of {size} by at most {limit}, not {longest}; "
                "use padding_mode='zeros' or 'replicate', or less padding"
            )
        check_reads(padded, self.kernel)
        return (padded - self.reach) // self.stride + 1

    def places(self, t: int, size: int) -> tuple[int | None, ...]:
        """Input location that filter element t reads, for each output location; None in zero padding."""
        first = t * self.dilation - self.before
        return tuple(self._place(first + m * self.stride, size) for m in range(self.output_size(size)))

    def _place(self, nu: int, size: int) -> int | None:
        """Return the location whose value is at ν, inside the axis or in its padding; None for a zero."""
        match self.mode:
            case "zeros":
                return nu if 0 <= nu < size else None
            case "circular":
                return nu % size
            case "reflect":
                return abs(nu) if abs(nu) < size else 2 * (size - 1) - abs(nu)
            case "replicate":
                return min(max(nu, 0), size - 1)


@dataclass(frozen=True)
class SlidingWindow:
    """A window that slides along an axis: output m in low … high − 1 sums start + m·stride + t·dilation for t < k.

    All these locations are inside the axis. With `padding` = (left, right) the other outputs are the same window over
    an axis with that many zeros on its left and right; with None they are something else (padding that copies
    locations) and must be read from `AxisSum.sources`. Start may be positive or below −k, and low = high if the window
    is wider than the axis.
    """

    start: int
    stride: int
    dilation: int
    k: int
    low: int
    high: int
    padding: tuple[int, int] | None

    @property
    def offsets(self) -> tuple[int, ...]:
        """Locations that output 0 would read on an infinite axis."""
        return tuple(self.start + t * self.dilation for t in range(self.k))


@dataclass(frozen=True)
class AxisSum:
    """A sum along one axis: output m adds the inputs `sources[m]`, in which a location may occur twice."""

    size: int
    sources: tuple[tuple[int, ...], ...]

    @property
    def out_size(self) -> int:
        return len(self.sources)

    @staticmethod
    @lru_cache(maxsize=256)
    def identity(size: int) -> AxisSum:
        return AxisSum(size, tuple((nu,) for nu in range(size)))

    @cached_property
    def is_identity(self) -> bool:
        return self.sources == tuple((nu,) for nu in range(self.size))

    @cached_property
    def longest(self) -> int:
        """Largest number of terms of one output."""
        return max(map(len, self.sources), default=0)

    def in_blocks(self, block: int) -> tuple[AxisSum, AxisSum]:
        """Split the sums into two steps: sums of at most `block` terms each, then sums of these.

        >>> AxisSum(5, (tuple(range(5)),)).in_blocks(2)
        (AxisSum(size=5, sources=((0, 1), (2, 3), (4,))), AxisSum(size=3, sources=((0, 1, 2),)))
        """
        blocks: list[tuple[int, ...]] = []
        outputs = []
        for row in self.sources:
            first = len(blocks)
            blocks.extend(row[i : i + block] for i in range(0, len(row), block))
            outputs.append(tuple(range(first, len(blocks))))
        return AxisSum(self.size, tuple(blocks)), AxisSum(len(blocks), tuple(outputs))

    @property
    def taps(self) -> int:
        """Total number of terms of all sums along this axis."""
        return sum(map(len, self.sources))

    @cached_property
    def window(self) -> SlidingWindow | None:
        """Sliding window equal to these sums, with zeros outside the axis; else the window of the longest regular run.

        None if no two consecutive outputs share a window. If several strides describe the same sums, the smallest with
        a whole window is chosen.

        >>> AxisSum(6, ((0, 1), (1, 2, 3), (3, 4, 5))).window
        SlidingWindow(start=-1, stride=2, dilation=1, k=3, low=1, high=3, padding=(1, 0))
        """
        ends = [(row[0], row[-1]) if row else None for row in self.sources]
        moves = {b[i] - a[i] for a, b in pairwise(ends) if a is not None and b is not None for i in (0, 1)}
        found = [w for stride in sorted(moves | {1}) if (w := self.sliding(stride)) is not None]
        return next((w for w in found if w.low < w.high), found[0] if found else self._longest_run())

    def sliding(self, stride: int) -> SlidingWindow | None:
        """Window that moves by `stride` per output, with zeros outside the axis; None if the sums are not of this form.

        >>> AxisSum(3, ((0, 1, 2), (0, 1, 2), (0, 1, 2))).sliding(1)
        SlidingWindow(start=-2, stride=1, dilation=1, k=5, low=0, high=0, padding=(2, 2))
        """
        offsets = self._seen(stride)
        steps = {b - a for row in self.sources for a, b in pairwise(row)}
        if not offsets or len(steps) > 1:
            return None
        start, reach = offsets[0], offsets[-1] - offsets[0]
        dilation = steps.pop() if steps else math.gcd(*(d - start for d in offsets)) or 1
        if dilation < 1 or reach % dilation or not self._moves(range(start, start + reach + 1, dilation), stride):
            return None
        k = reach // dilation + 1
        whole = [m for m, row in enumerate(self.sources) if len(row) == k]
        low, high = (whole[0], whole[-1] + 1) if whole else (0, 0)
        firsts = (start, start + (self.out_size - 1) * stride)
        padding = max(0, -min(firsts)), max(0, max(firsts) + reach - self.size + 1)
        return SlidingWindow(start, stride, dilation, k, low, high, padding)

    def offsets(self, stride: int) -> tuple[int, ...] | None:
        """Offsets d such that output m sums m·stride + d, with zeros outside the axis; they need no regular spacing.

        None if the sums are not of this form, () if they have no terms.

        >>> AxisSum(6, ((0, 1), (1, 2, 3), (3, 4, 5))).offsets(2)
        (-1, 0, 1)
        >>> AxisSum(5, ((0, 1, 4),)).offsets(1)
        (0, 1, 4)
        """
        seen = self._seen(stride)
        return tuple(seen) if self._moves(seen, stride) else None

    def _seen(self, stride: int) -> list[int]:
        """Locations that the outputs sum, relative to m·stride, sorted."""
        return sorted({nu - m * stride for m, row in enumerate(self.sources) for nu in row})

    def _moves(self, offsets: Sequence[int], stride: int) -> bool:
        """True if every output m sums m·stride + d for these offsets d, with zeros outside the axis."""
        return all(
            row == tuple(nu for d in offsets if 0 <= (nu := m * stride + d) < self.size)
            for m, row in enumerate(self.sources)
        )

    def _longest_run(self) -> SlidingWindow | None:
        """Window of the regular outputs around the middle one of those with the most terms."""
        sources, k = self.sources, self.longest
        whole = [m for m, row in enumerate(sources) if len(row) == k and len({b - a for a, b in pairwise(row)}) <= 1]
        if k == 0 or len(whole) < 2 or (middle := whole[len(whole) // 2 - 1]) + 1 not in whole:
            return None
        stride = sources[middle + 1][0] - sources[middle][0]
        dilation = sources[middle][1] - sources[middle][0] if k > 1 else 1
        start = sources[middle][0] - middle * stride

        def regular(m: int) -> bool:
            return sources[m] == tuple(start + m * stride + t * dilation for t in range(k))

        low = high = middle
        while low > 0 and regular(low - 1):
            low -= 1
        while high < len(sources) and regular(high):
            high += 1
        return SlidingWindow(start, stride, dilation, k, low, high, None) if high - low > 1 else None
