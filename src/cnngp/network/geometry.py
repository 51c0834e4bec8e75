"""Where a convolution looks: per-axis windows, padding and output sizes, for any number of axes.

A convolution's patch is a box, so it is the product of one window per axis. Everything that depends on sizes alone is
worked out here, once, as plain integers; the layers say what they want and the engines read what they got.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]


class SizeError(ValueError):
    """An axis does not fit a layer; the layer's place is put in front by whoever knows it."""


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
        """How many input locations one filter spans."""
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
        return (padded - self.reach) // self.stride + 1

    def sources(self, size: int) -> tuple[tuple[int, ...], ...]:
        """For each output location the input locations it sums, in order; those in zero padding are left out."""
        place = _PLACES[self.mode]
        rows = []
        for m in range(self.output_size(size)):
            start = m * self.stride - self.before
            seen = (place(start + t * self.dilation, size) for t in range(self.kernel))
            rows.append(tuple(nu for nu in seen if nu is not None))
        return tuple(rows)


def _zeros(nu: int, size: int) -> int | None:
    return nu if 0 <= nu < size else None


def _circular(nu: int, size: int) -> int:
    return nu % size


def _reflect(nu: int, size: int) -> int:
    nu = abs(nu)
    return nu if nu < size else 2 * (size - 1) - nu


def _replicate(nu: int, size: int) -> int:
    return min(max(nu, 0), size - 1)


_PLACES: dict[PaddingMode, Callable[[int, int], int | None]] = {
    "zeros": _zeros,
    "circular": _circular,
    "reflect": _reflect,
    "replicate": _replicate,
}


@dataclass(frozen=True)
class AxisSum:
    """A sum along one axis: output m adds up the inputs `sources[m]` (a location may stand there twice).

    Convolutions, transposed convolutions and the mean over an axis are all of this form.
    """

    size: int
    sources: tuple[tuple[int, ...], ...]

    @property
    def out_size(self) -> int:
        return len(self.sources)

    @property
    def is_identity(self) -> bool:
        return self.sources == tuple((nu,) for nu in range(self.size))

    @property
    def taps(self) -> int:
        """How many terms all the sums along this axis have together."""
        return sum(map(len, self.sources))


def convolved(window: Window, size: int) -> AxisSum:
    return AxisSum(size, window.sources(size))


def transposed(window: Window, size: int, out_size: int) -> AxisSum:
    """The adjoint of `convolved(window, out_size)`: output μ adds the inputs m whose window reads μ."""
    reached: list[list[int]] = [[] for _ in range(out_size)]
    for m, row in enumerate(window.sources(out_size)[:size]):
        for mu in row:
            reached[mu].append(m)
    return AxisSum(size, tuple(map(tuple, reached)))


def total(size: int) -> AxisSum:
    return AxisSum(size, (tuple(range(size)),))
