"""Data types of programs: operations on maps, nonlinearities at their places, and the steps of gradients.

A map has one real number per location, for one pair of images, and always three axes. The classes here define what
engines run; the other files compile networks to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from cnngp.kernel.formulas import Formula, formula
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import Network, Nonlinearity
from cnngp.network.shapes import Spatial

if TYPE_CHECKING:
    from .lowering import Lowered

Shape = tuple[int, int, int]
Sums = tuple[AxisSum, AxisSum, AxisSum]
Kind = Literal["nngp", "ntk"]
"""Kinds of kernel: covariance of the network's outputs before training (GP), or of its gradients (tangent kernel)."""

# Sources of operations that read no map.
PIXELS = -1  # the product of the two images' pixels, summed over channels
NOTHING = -2  # zero: dst ← keep · dst + bias


def as_shape(spatial: Spatial, front: int = 1) -> Shape:
    """Shape of a map with three axes: images with fewer axes get `front` for the first ones."""
    a, b, c = (*(front,) * (3 - len(spatial)), *spatial)
    return a, b, c


@dataclass(frozen=True)
class Activation:
    """A nonlinearity at its place: the formula f, and the offset of its entries in each image's table.

    With K the map in buffer units and `unit` · K the true covariance, V = `factor` · f(K), f as in kernel/formulas.
    If f takes a multiple of the covariance (`Formula.argument`), `unit` · K is that multiple.
    """

    layer: Nonlinearity
    place: str
    site: int
    offset: int
    shape: Shape
    unit: float
    factor: float

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def formula(self) -> Formula:
        return formula(self.layer)

    @property
    def coefficients(self) -> tuple[float, float]:
        """(α, β) for the families of the ReLU: f = α·R + β·K."""
        return self.formula.alpha, self.formula.beta


@dataclass(frozen=True)
class Tangent:
    """Factor of a nonlinearity's slope in an operation: the map `times` + `own` · src.

    `times` may be `NOTHING`, a map of zeros.
    """

    times: int
    own: float


@dataclass(frozen=True)
class Op:
    """The operation dst ← keep · dst + scale · box(f(src)) + bias.

    Without an activation f(K) = K; without sums box is the identity. With a `tangent`, f(src) is replaced by f'(src) ·
    (times + own · src), where f' = ∂f/∂K. `dst` may equal `src` or `times` only in operations without sums; with `keep`
    = 0 the old content of `dst` is not read. `src` may be `PIXELS` or `NOTHING` in operations without activation and
    sums.

    With pools the map is a sheet, K(p, p + d): its first location is `first` in the first image and `second` in the
    second, where the images' tables are read. The two are equal for d = 0.

    Before buffers are assigned, each operation makes a new map, identified by the operation's number, and `dst` is the
    map that is added to, or `NOTHING`. `per_weight` and `per_bias` are the derivatives of `scale` and `bias` by the
    weight_var and bias_var of the layer at this place.
    """

    place: str
    src: int
    dst: int
    shape: Shape
    out_shape: Shape
    activation: Activation | None = None
    sums: Sums | None = None
    keep: float = 0.0
    scale: float = 1.0
    bias: float = 0.0
    first: Shape = (0, 0, 0)
    second: Shape = (0, 0, 0)
    tangent: Tangent | None = None
    per_weight: float = 0.0
    per_bias: float = 0.0

    @property
    def is_still(self) -> bool:
        """True if both images are read at the same locations: the sheet of displacement zero."""
        return self.first == self.second

    @property
    def maps(self) -> set[int]:
        """The maps that the operation reads and writes."""
        times = NOTHING if self.tangent is None else self.tangent.times
        return {v for v in (self.src, self.dst, times) if v >= 0}

    def over(self, at: Mapping[int, int], dst: int | None = None) -> Op:
        """Return the same operation with its maps renumbered by `at`."""
        tangent = self.tangent
        if tangent is not None:
            tangent = replace(tangent, times=at.get(tangent.times, tangent.times))
        return replace(self, src=at.get(self.src, self.src), dst=at[self.dst] if dst is None else dst, tangent=tangent)


@dataclass(frozen=True)
class Back(Op):
    """A backward step: dst ← keep · dst + scale · f'(src) · times, if it `writes`, and two sums.

    Without an activation f(K) = K. The variances of the two images get scale · times · ∂f/∂K₁ and ∂f/∂K₂. `slot` is the
    first of two sums over all locations: of times · f(src), and of what the nonlinearity's own parameter needs. For
    RELU_LIKE they are the sums of times · R and of times · K, for RBF those of times · f and of times · f · log f. If
    it does not write, `dst` is `src`.
    """

    times: int = NOTHING
    slot: int = 0
    writes: bool = True

    @property
    def maps(self) -> set[int]:
        return {self.src, self.dst, self.times}

    def over(self, at: Mapping[int, int], dst: int | None = None) -> Op:
        found = super().over(at, dst)
        assert isinstance(found, Back)
        return replace(found, times=at[self.times])


@dataclass(frozen=True)
class Total(Op):
    """The step sums[slot] ← sums[slot] + Σ src."""

    slot: int = 0


@dataclass(frozen=True)
class Pixels(Op):
    """The step that adds to the pixel gradients the part of a product of the two images, whose ∂L/∂map is in `dst`."""


@dataclass(frozen=True)
class Program:
    """The operations that an engine runs for one pair of images.

    `buffers[input]` starts as Σ_c x_c x'_c at every location; with pools `input` is None, and the products for the
    required displacements are operations. After all `ops`, `unit` · `buffers[output]` is K. The operations on sheets of
    displacement zero come before all others at the same nonlinearity, so running the same list on (x, x) gives the
    variances that the others read.

    The program of a tangent kernel also gives Θ: `theta_unit` · `buffers[theta]`. An operation with a tangent comes
    before the one without it that reads the same map with the same nonlinearity, mostly right before it, so that an
    engine may do both at once. On (x, x) at displacement zero the table is therefore still empty, and K₁ is the map
    that the operation reads.

    `buffers` are sizes in map elements. An image's variances at nonlinearity a are in [a.offset, a.offset + a.size) of
    its table, which has `elements` entries. With pools `lowered` is what the operations were made from, for an engine
    that runs a network segment by segment.
    """

    network: Network
    channels: int
    spatial: Spatial
    shape: Shape
    ops: tuple[Op, ...]
    buffers: tuple[int, ...]
    input: int | None
    output: int
    unit: float
    elements: int
    theta: int | None = None
    theta_unit: float = 1.0
    lowered: Lowered | None = field(default=None, compare=False, repr=False)

    @property
    def kind(self) -> Kind:
        return "nngp" if self.theta is None else "ntk"

    @cached_property
    def largest_number(self) -> float:
        """Largest absolute value of the constants in the operations."""
        own = (op.tangent.own for op in self.ops if op.tangent is not None)
        numbers = (abs(x) for op in self.ops for x in (op.scale, op.keep, op.bias))
        return max([0.0, *numbers, *map(abs, own)])

    @cached_property
    def activations(self) -> tuple[Activation, ...]:
        """The nonlinearities, each once, ordered by `site`."""
        found = {op.activation.site: op.activation for op in self.ops if op.activation is not None}
        return tuple(found[site] for site in sorted(found))


@dataclass(frozen=True)
class Share:
    """The contribution, times `factor`, of the sum at `slot` to the derivative by a parameter."""

    name: str
    slot: int
    factor: float


@dataclass(frozen=True)
class Reverse:
    """The program of a gradient: `buffers[seed]` starts as ∂L/∂K of the pair, `buffers[input]` as in `Program`.

    The first `forwards` of the `steps` compute the kernel: after them K is in `buffers[value]`. After all steps the
    sums hold the pair's contributions. The derivatives are the program's unit times the `shares` of the sums.
    """

    program: Program
    steps: tuple[Op, ...]
    forwards: int
    seed: int
    slots: int
    shares: tuple[Share, ...]
    value: int
    spare: int
    """Number of further steps that the same layers may need with other variances, where a unit changes."""
