"""What a program is made of: operations on maps, and the nonlinearities where they stand.

A map is a real number per location, for one pair of images, over three axes whatever the images have. The classes here
say what engines run; how a network becomes them is told in the other files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cnngp.network.geometry import AxisSum
from cnngp.network.layers import Abs, LeakyReLU, Network, Nonlinearity
from cnngp.network.shapes import Spatial

from .units import slope_unit

Shape = tuple[int, int, int]


def as_shape(spatial: Spatial) -> Shape:
    """A map's three axes: images of fewer have ones in front."""
    one = (1,) * (3 - len(spatial))
    a, b, c = (*one, *spatial)
    return a, b, c


@dataclass(frozen=True)
class Activation:
    """A nonlinearity where it stands: the formula f, and where each image keeps its numbers for it.

    With K the map in buffer units and `unit` · K the true covariance, V = `factor` · f(K):

    ReLU, LeakyReLU, Abs:  f = α·R + β·K with R = 2A of section "ReLU" in the docs; (α, β) = `coefficients`
    Erf:                   f = asin(2K/√((1+2K₁)(1+2K₂)))
    Step:                  f = π − θ, and 0 where either variance is 0
    Sin, Cos, GELU, Elementwise: f = V
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

    @property
    def coefficients(self) -> tuple[float, float]:
        """(α, β) of the ReLU family: V ∝ α·R + β·K."""
        match self.layer:
            case LeakyReLU():
                unit, rest = slope_unit(self.layer), 1.0 - self.layer.slope
                return rest * (rest / (2.0 * unit)), self.layer.slope / unit
            case Abs():
                return 2.0, -1.0
            case _:
                return 1.0, 0.0


@dataclass(frozen=True)
class Op:
    """dst ← keep · dst + scale · box(f(src)) + bias. No activation: f(K) = K. No sums: box is the map itself.

    `dst` equals `src` only in operations without sums; with `keep` = 0 the old content of `dst` is not read.
    """

    place: str
    src: int
    dst: int
    shape: Shape
    out_shape: Shape
    activation: Activation | None
    sums: tuple[AxisSum, AxisSum, AxisSum] | None
    keep: float
    scale: float
    bias: float


@dataclass(frozen=True)
class Program:
    """What an engine runs for one pair of images.

    `buffers[input]` starts as Σ_c x_c x'_c at every location; after all `ops`, `unit` · `buffers[output]` is K.
    `buffers` are sizes in map elements. An image's variances at nonlinearity a are at [a.offset, a.offset + a.size) of
    its table, which has `elements` entries.
    """

    network: Network
    channels: int
    spatial: Spatial
    shape: Shape
    ops: tuple[Op, ...]
    buffers: tuple[int, ...]
    input: int
    output: int
    unit: float
    elements: int

    @property
    def activations(self) -> tuple[Activation, ...]:
        return tuple(op.activation for op in self.ops if op.activation is not None)
