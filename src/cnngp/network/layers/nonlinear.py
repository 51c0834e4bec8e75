"""Nonlinearities: functions of one number that act at every location.

Their covariances are in reference/formulas.py and, for the engines, in the files of kernel/formulas.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .base import Network, set_field, set_real, wrong

_GAMMAS = (1e-30, 1e30)
"""Outside these bounds all images are alike or all are unrelated, and float32 could not hold the product with K."""
_NORMALIZED_GAMMAS = (1e-6, 1e3)
"""Below these bounds V hardly depends on the angle; above them float32 cannot hold the differences that matter."""

__all__ = [
    "GELU", "Abs", "Cos", "Elementwise", "Erf", "LayerNorm", "LeakyReLU", "Nonlinearity", "NormalizedExp", "Rbf",
    "ReLU", "Sign", "Sin", "SquaredReLU", "Step",
]  # fmt: skip


@dataclass(frozen=True, repr=False)
class Nonlinearity(Network):
    """Base class of the nonlinearities, which act on the Gaussian activation at each location.

    `operations`: rough cost per location of a pair of images. `learned`: the fields that are learnable parameters.
    """

    operations: ClassVar[int] = 15
    learned: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, repr=False)
class ReLU(Nonlinearity):
    """gain · max(z, 0). The paper's factor 1/π is gain=√2; He's initialisation is weight_var=2 in the layers instead.

    >>> from cnngp.network import Dense, ReLU, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), ReLU(gain=2.0**0.5), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[1.0, 0.0], [0.0, 4.0]]
    """

    learned = ("gain",)

    gain: float = 1.0

    def __post_init__(self) -> None:
        set_real(self, "gain")
        if self.gain * self.gain < sys.float_info.min:
            raise wrong(self, f"gain={self.gain!r} makes every output zero; use a gain farther from 0")


@dataclass(frozen=True, repr=False)
class LeakyReLU(Nonlinearity):
    """max(z, 0) + slope · min(z, 0).

    >>> from cnngp.network import Dense, LeakyReLU, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), LeakyReLU(0.1), Dense()), [[1.0], [-2.0]]).round(4)
    array([[ 0.505, -0.2  ],
           [-0.2  ,  2.02 ]])
    """

    learned = ("slope",)

    slope: float

    def __post_init__(self) -> None:
        set_real(self, "slope")
        if math.isinf(self.slope * self.slope):
            raise wrong(self, f"slope={self.slope!r} is too large: its square is beyond float64")


@dataclass(frozen=True, repr=False)
class Erf(Nonlinearity):
    """erf(z).

    >>> from cnngp.network import Dense, Erf, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), Erf(), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[0.4646, -0.5593], [-0.5593, 0.697]]
    """

    operations = 25


@dataclass(frozen=True, repr=False)
class Abs(Nonlinearity):
    """|z|.

    >>> from cnngp.network import Abs, Dense, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), Abs(), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """


@dataclass(frozen=True, repr=False)
class Step(Nonlinearity):
    """1 where z > 0, else 0; hence 0 on a blank patch, where z is exactly 0.

    >>> from cnngp.network import Dense, Sequential, Step, reference
    >>> reference.kernel(Sequential(Dense(), Step(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[0.5, 0. ],
           [0. , 0.5]])
    """


@dataclass(frozen=True, repr=False)
class Sign(Nonlinearity):
    """1 where z > 0 and −1 where z < 0; 0 on a blank patch, where z is exactly 0.

    >>> from cnngp.network import Dense, Sequential, Sign, reference
    >>> reference.kernel(Sequential(Dense(), Sign(), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """


@dataclass(frozen=True, repr=False)
class SquaredReLU(Nonlinearity):
    """max(z, 0)²: the arc-cosine kernel of order 2.

    >>> from cnngp.network import Dense, Sequential, SquaredReLU, reference
    >>> reference.kernel(Sequential(Dense(), SquaredReLU(), Dense()), [[1.0], [2.0]]).round(4)
    array([[ 1.5,  6. ],
           [ 6. , 24. ]])
    """


@dataclass(frozen=True, repr=False)
class Sin(Nonlinearity):
    """sin(z).

    >>> from cnngp.network import Dense, Sequential, Sin, reference
    >>> reference.kernel(Sequential(Dense(), Sin(), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[0.4323, -0.2977], [-0.2977, 0.4998]]
    """

    operations = 25


@dataclass(frozen=True, repr=False)
class Cos(Nonlinearity):
    """cos(z).

    >>> from cnngp.network import Cos, Dense, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), Cos(), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[0.5677, 0.3088], [0.3088, 0.5002]]
    """

    operations = 25


@dataclass(frozen=True, repr=False)
class Rbf(Nonlinearity):
    """sin(az) + cos(az) with a = √(2·gamma): its covariance is the RBF kernel exp(−gamma·E[(u − v)²]).

    On images K is a mean of products, so `Sequential(Dense(), Rbf(gamma), Dense())` is exp(−gamma·D) with D the mean
    squared difference of the pixels, and `Sequential(Conv(5, padding="valid"), Rbf(gamma), …)` is the same on patches.
    A lengthscale ℓ over d numbers, exp(−Σ(x − x')²/2ℓ²), corresponds to gamma = d/(2ℓ²).

    >>> from cnngp.network import Dense, Rbf, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), Rbf(0.5), Dense()), [[1.0], [-2.0]]).round(4)
    array([[1.    , 0.0111],
           [0.0111, 1.    ]])
    """

    learned = ("gamma",)

    gamma: float

    def __post_init__(self) -> None:
        set_real(self, "gamma")
        if not _GAMMAS[0] <= self.gamma <= _GAMMAS[1]:
            raise wrong(
                self,
                f"gamma={self.gamma!r} is not a positive number between {_GAMMAS[0]:g} and {_GAMMAS[1]:g}; for a "
                "lengthscale ℓ over d numbers it is d/(2ℓ²)",
            )


@dataclass(frozen=True, repr=False)
class NormalizedExp(Nonlinearity):
    """s · (sin(az/s) + cos(az/s)), a = √gamma, s² the variance of z: its covariance is s·s' · exp(gamma(cos θ − 1)).

    θ is the angle between two patches: contrast passes through as with a ReLU, and gamma sets the dependence on the
    angle. With gamma = 1 it is the "normalized Gaussian" dual activation of published kernels for photographs.

    >>> from cnngp.network import Dense, NormalizedExp, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), NormalizedExp(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[1.    , 0.2707],
           [0.2707, 4.    ]])
    """

    learned = ("gamma",)
    operations = 25

    gamma: float = 1.0

    def __post_init__(self) -> None:
        set_real(self, "gamma")
        least, most = _NORMALIZED_GAMMAS
        if not least <= self.gamma <= most:
            raise wrong(self, f"gamma={self.gamma!r} is not a positive number between {least:g} and {most:g}")


@dataclass(frozen=True, repr=False)
class LayerNorm(Nonlinearity):
    """z/√(s² + eps) with s² the mean of z² over the channels of a location: unit variance at every location.

    With over="all" the mean runs over the locations too, so that each image is divided by one number; CPU only.

    With infinitely many channels s² is a variance, so Gaussian activations stay Gaussian, and a blank location stays 0.
    It must follow a convolution or dense layer, not a nonlinearity: after one the channels have a nonzero mean, which
    a layer norm would subtract.

    >>> from cnngp.network import Dense, LayerNorm, ReLU, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), LayerNorm(), ReLU(), Dense()), [[1.0], [2.0]]).round(4).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    operations = 5

    over: Literal["channels", "all"] = "channels"
    eps: float = 0.0

    def __post_init__(self) -> None:
        if self.over not in ("channels", "all"):
            raise wrong(self, f"over={self.over!r} is not 'channels' or 'all'")
        set_real(self, "eps")
        if self.eps < 0.0:
            raise wrong(self, f"eps={self.eps!r} is negative")


@dataclass(frozen=True, repr=False)
class GELU(Nonlinearity):
    """z · Φ(z), the exact form with erf.

    >>> from cnngp.network import GELU, Dense, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), GELU(), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[0.4252, -0.1001], [-0.1001, 1.9299]]
    """

    operations = 40


@dataclass(frozen=True, repr=False)
class Elementwise(Nonlinearity):
    """Any function of one number, as a Hermite series: a name (`"tanh"`, `"silu"`, …) or a NumPy callable.

    A name can be serialised; a callable cannot, and its fingerprint hashes its values on a fixed grid.

    >>> from cnngp.network import Dense, Elementwise, Sequential, reference
    >>> reference.kernel(Sequential(Dense(), Elementwise("tanh"), Dense()), [[1.0], [-2.0]]).round(4).tolist()
    [[0.3943, -0.4931], [-0.4931, 0.6353]]
    """

    operations = 100

    fn: str | Callable[[Any], Any]

    def __post_init__(self) -> None:
        from ..functions import check_function  # needs NumPy

        set_field(self, "fn", check_function(self.fn))
