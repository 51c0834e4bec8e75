"""What a program is made of: operations on maps, the nonlinearities where they stand, and the steps of gradients.

A map is a real number per location, for one pair of images, over three axes whatever the images have. The classes here
say what engines run; how a network becomes them is told in the other files.
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
"""The kernels of a network: of its outputs before training (the GP's), and of its gradients (the tangent kernel)."""

# Sources of operations that read no map.
PIXELS = -1  # the product of the two images' pixels, summed over channels
NOTHING = -2  # zero: dst ← keep · dst + bias


def as_shape(spatial: Spatial, front: int = 1) -> Shape:
    """A map's three axes: images of fewer have ones in front."""
    a, b, c = (*(front,) * (3 - len(spatial)), *spatial)
    return a, b, c


@dataclass(frozen=True)
class Activation:
    """A nonlinearity where it stands: the formula f, and where each image keeps its numbers for it.

    With K the map in buffer units and `unit` · K the true covariance, V = `factor` · f(K), f as in kernel/formulas.
    Where f takes a multiple of the covariance (`Formula.argument`), that is what `unit` · K is.
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
        """(α, β) of the ReLU's families: f = α·R + β·K."""
        return self.formula.alpha, self.formula.beta


@dataclass(frozen=True)
class Tangent:
    """What an operation multiplies the slope of its nonlinearity with: the map `times` + `own` · src.

    `times` may be `NOTHING`, a map of zeros.
    """

    times: int
    own: float


@dataclass(frozen=True)
class Op:
    """dst ← keep · dst + scale · box(f(src)) + bias. No activation: f(K) = K. No sums: box is the map itself.

    With a `tangent`, f'(src) · (times + own · src) stands in place of f(src), where f' = ∂f/∂K. `dst` may be `times` in
    operations without sums.

    `dst` equals `src` only in operations without sums; with `keep` = 0 the old content of `dst` is not read. `src` may
    be `PIXELS` or `NOTHING` in operations without activation and sums.

    Under a pool the map is a sheet, K(p, p + d): its first location is `first` in the one image and `second` in the
    other, and there the images' tables are read. They are equal where d = 0.

    Until it is known which buffers hold the maps, each operation makes a new one, known by the operation's number, and
    `dst` is the map that is added to, or `NOTHING`. `per_weight` and `per_bias` are the derivatives of `scale` and
    `bias` by the weight_var and bias_var of the layer at this place.
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
        """Whether both images are read at the same locations: the sheet with displacement zero."""
        return self.first == self.second

    @property
    def maps(self) -> set[int]:
        """The maps that it reads and writes."""
        times = NOTHING if self.tangent is None else self.tangent.times
        return {v for v in (self.src, self.dst, times) if v >= 0}

    def over(self, at: Mapping[int, int], dst: int | None = None) -> Op:
        """The same with its maps where `at` says."""
        tangent = self.tangent
        if tangent is not None:
            tangent = replace(tangent, times=at.get(tangent.times, tangent.times))
        return replace(self, src=at.get(self.src, self.src), dst=at[self.dst] if dst is None else dst, tangent=tangent)


@dataclass(frozen=True)
class Back(Op):
    """dst ← keep · dst + scale · f'(src) · times, where it `writes`, and the sums; no activation: f(K) = K.

    To the variances of both images goes scale · times · ∂f/∂K₁ and ∂f/∂K₂. `slot` is the first of two sums over all
    locations: of times · f(src), and of what the nonlinearity's own parameter needs. Of a RELU_LIKE they are those of
    times · R and of times · K, of an RBF those of times · f and of times · f · log f. Without writing `dst` is `src`.
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
    """sums[slot] ← sums[slot] + Σ src."""

    slot: int = 0


@dataclass(frozen=True)
class Pixels(Op):
    """What a product of the two images, where `dst` is ∂L/∂map, gives to their pixels."""


@dataclass(frozen=True)
class Program:
    """What an engine runs for one pair of images.

    `buffers[input]` starts as Σ_c x_c x'_c at every location; with pools `input` is None, and the products for the
    displacements that are needed are operations. After all `ops`, `unit` · `buffers[output]` is K. The operations on
    sheets of displacement zero come before all others at the same nonlinearity, so the same list run on (x, x) gives
    the variances that the others read.

    The program of a tangent kernel has Θ besides: `theta_unit` · `buffers[theta]`. An operation with a tangent comes
    before the one without that reads the same map with the same nonlinearity, mostly right before it, so that an engine
    may do both at once. So on (x, x) at displacement zero it finds nothing in the table yet: K₁ is what it reads.

    `buffers` are sizes in map elements. An image's variances at nonlinearity a are at [a.offset, a.offset + a.size) of
    its table, which has `elements` entries. With pools `lowered` is what the operations were made from, for an engine
    that takes a network segment by segment.
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
        """Of those that operations multiply with or add."""
        own = (op.tangent.own for op in self.ops if op.tangent is not None)
        numbers = (abs(x) for op in self.ops for x in (op.scale, op.keep, op.bias))
        return max([0.0, *numbers, *map(abs, own)])

    @cached_property
    def activations(self) -> tuple[Activation, ...]:
        """The nonlinearities, each once, by their number."""
        found = {op.activation.site: op.activation for op in self.ops if op.activation is not None}
        return tuple(found[site] for site in sorted(found))


@dataclass(frozen=True)
class Share:
    """A sum's part in the derivative by a parameter."""

    name: str
    slot: int
    factor: float


@dataclass(frozen=True)
class Reverse:
    """The program of a gradient: `buffers[seed]` starts as ∂L/∂K of the pair, `buffers[input]` as in `Program`.

    The first `forwards` of the `steps` are those of the kernel: after them K is in `buffers[value]`. After all of them
    the sums hold what the pair gives. The program's unit times their `shares` are the derivatives.
    """

    program: Program
    steps: tuple[Op, ...]
    forwards: int
    seed: int
    slots: int
    shares: tuple[Share, ...]
    value: int
    spare: int
    """Steps that the same layers may have besides, where other variances change a unit."""
