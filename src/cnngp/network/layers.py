"""Layers and how they compose: a network is described here as plain values, with no arrays anywhere.

Every layer is a frozen dataclass that checks itself when it is built, prints as the code that makes it and compares by
value. `Layer` is a closed set: each consumer is one `match` over it that ends in `assert_never`. What is particular to
a nonlinearity stands in reference.py and, for the engines, in one table (kernel/program/formulas.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from .arguments import FanIn as FanIn
from .arguments import NetworkError as NetworkError
from .arguments import Padding as Padding
from .arguments import PerAxis as PerAxis
from .arguments import axes_of, check_axes_agree, check_convolution, check_variances, per_axis, real, set_field
from .geometry import PaddingMode

if TYPE_CHECKING:
    from .table import ShapeTable

_GAMMAS = (1e-30, 1e30)
"""Beyond these every two different images are alike, or none, and float32 could not hold the product with K."""


@dataclass(frozen=True, repr=False)
class Network:
    """What all layers share. A single layer is a network too.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> net = Sequential(Conv(3), ReLU(), Dense())
    >>> net
    Sequential(Conv(3), ReLU(), Dense())
    """

    def __repr__(self) -> str:
        parts = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.default is MISSING:
                parts.append(repr(value))
            elif value != f.default:
                parts.append(f"{f.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def to_json(self) -> str:
        """The network as JSON text, read back by `cnngp.from_json`."""
        from .serialize import to_json

        return to_json(self)

    @property
    def fingerprint(self) -> str:
        """A hash of the network's canonical form: equal for networks that compute the same kernel by the same steps."""
        from .serialize import fingerprint

        return fingerprint(self)

    def shapes(self, input_shape: Sequence[int]) -> ShapeTable:
        """Every layer with its output shape and its cost per pair of images; refuses what does not fit.

        >>> print(Sequential(Conv(3, stride=2), ReLU(), Dense()).shapes((1, 28, 28)))
        place      layer               output  operations per pair
        (input)    1 channel          28 × 28                  784
        layers[0]  Conv(3, stride=2)  14 × 14                1,918
        layers[1]  ReLU()             14 × 14                2,940
        layers[2]  Dense()                  1                  211
        all                                                  5,853
        """
        from .table import shape_table

        return shape_table(self, input_shape)

    def parameters(self) -> dict[str, float]:
        """The numbers that may be learned, by their place: variances, gains of ReLUs and slopes of LeakyReLUs.

        >>> Sequential(Conv(3), ReLU(), Dense(2.0, 0.1)).parameters()  # doctest: +NORMALIZE_WHITESPACE
        {'layers[0].weight_var': 1.0, 'layers[0].bias_var': 0.0, 'layers[1].gain': 1.0,
         'layers[2].weight_var': 2.0, 'layers[2].bias_var': 0.1}
        """
        from .parameters import parameters

        return parameters(self)

    def with_parameters(self, values: Mapping[str, float]) -> Layer:
        """The same network with other values for some of its `parameters`.

        >>> Sequential(Conv(3), ReLU(), Dense()).with_parameters({"layers[0].bias_var": 0.5})
        Sequential(Conv(3, bias_var=0.5), ReLU(), Dense())
        """
        from .parameters import with_parameters

        return with_parameters(self, values)


@dataclass(frozen=True, repr=False)
class Conv(Network):
    """A convolution with infinitely many filters: K_μ = bias_var + weight_var · s · Σ_{ν ∈ patch(μ)} V_ν.

    `fan_in="patch"` divides by the number of filter elements (s = 1/k²), `"channels"` does not (s = 1, the paper).

    >>> print(Sequential(Conv((3, 5), stride=2, weight_var=2.0), Dense()).shapes((3, 32, 32)))
    place      layer                                    output  operations per pair
    (input)    3 channels                              32 × 32                3,072
    layers[0]  Conv((3, 5), stride=2, weight_var=2.0)  16 × 16                2,992
    layers[1]  Dense()                                       1                  273
    all                                                                       6,337
    """

    kernel_size: PerAxis
    stride: PerAxis = 1
    padding: Padding = "same"
    dilation: PerAxis = 1
    weight_var: float = 1.0
    bias_var: float = 0.0
    fan_in: FanIn = "patch"
    padding_mode: PaddingMode = "zeros"

    def __post_init__(self) -> None:
        check_convolution(self)


@dataclass(frozen=True, repr=False)
class ConvTranspose(Network):
    """The adjoint of the `Conv` with the same arguments: μ gets the sum over the locations whose patch reaches it.

    >>> Sequential(Conv(3, stride=2), ReLU(), ConvTranspose(3, stride=2)).shapes((1, 8, 8)).output
    (8, 8)
    """

    kernel_size: PerAxis
    stride: PerAxis = 1
    padding: Padding = "same"
    dilation: PerAxis = 1
    weight_var: float = 1.0
    bias_var: float = 0.0
    fan_in: FanIn = "patch"
    padding_mode: PaddingMode = "zeros"
    output_padding: PerAxis = 0

    def __post_init__(self) -> None:
        check_convolution(self)
        if self.padding_mode != "zeros":
            raise NetworkError(
                f"ConvTranspose: padding_mode={self.padding_mode!r} has no exact kernel: one filter element then "
                "reaches an output from two inputs; use 'zeros'"
            )
        set_field(self, "output_padding", per_axis(self, "output_padding", self.output_padding, least=0))
        if self.padding == "same" and self.output_padding not in (0, (0,) * axes_of(self.output_padding)):
            raise NetworkError(
                f"ConvTranspose: output_padding={self.output_padding!r} with padding='same', which already gives "
                "size·stride; use an integer padding to choose the size"
            )
        check_axes_agree(self, "kernel_size", "stride", "dilation", "padding", "output_padding")


@dataclass(frozen=True, repr=False)
class Dense(Network):
    """A fully connected layer: K = bias_var + weight_var · mean of V over all locations. One output location.

    >>> Sequential(Conv(3), ReLU(), Dense(weight_var=2.0, bias_var=0.1))
    Sequential(Conv(3), ReLU(), Dense(weight_var=2.0, bias_var=0.1))
    """

    weight_var: float = 1.0
    bias_var: float = 0.0

    def __post_init__(self) -> None:
        check_variances(self)


@dataclass(frozen=True, repr=False)
class Nonlinearity(Network):
    """What all nonlinearities share. `operations`: roughly how many a pair of images takes at a location."""

    operations: ClassVar[int] = 15


@dataclass(frozen=True, repr=False)
class ReLU(Nonlinearity):
    """gain · max(z, 0). The paper's 1/π is gain=√2; He's variance is weight_var=2 in the layers instead.

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), ReLU(gain=2.0**0.5), Dense()), [[1.0], [-2.0]]).round(4)
    array([[1., 0.],
           [0., 4.]])
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        set_field(self, "gain", real(self, "gain", self.gain))
        if self.gain == 0:
            raise NetworkError("ReLU: gain=0.0 makes every output zero; use a gain other than 0")


@dataclass(frozen=True, repr=False)
class LeakyReLU(Nonlinearity):
    """max(z, 0) + slope · min(z, 0).

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), LeakyReLU(0.1), Dense()), [[1.0], [-2.0]]).round(4)
    array([[ 0.505, -0.2  ],
           [-0.2  ,  2.02 ]])
    """

    slope: float

    def __post_init__(self) -> None:
        set_field(self, "slope", real(self, "slope", self.slope))
        if math.isinf(self.slope * self.slope):
            raise NetworkError(f"LeakyReLU: slope={self.slope!r} is too large: its square is beyond float64")


@dataclass(frozen=True, repr=False)
class Erf(Nonlinearity):
    """erf(z).

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), Erf(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[ 0.4646, -0.5593],
           [-0.5593,  0.697 ]])
    """

    operations = 25


@dataclass(frozen=True, repr=False)
class Abs(Nonlinearity):
    """|z|.

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), Abs(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[1., 2.],
           [2., 4.]])
    """


@dataclass(frozen=True, repr=False)
class Step(Nonlinearity):
    """1 where z > 0, else 0; so 0 on a blank patch, where z is exactly 0.

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), Step(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[0.5, 0. ],
           [0. , 0.5]])
    """


@dataclass(frozen=True, repr=False)
class Sin(Nonlinearity):
    """sin(z).

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), Sin(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[ 0.4323, -0.2977],
           [-0.2977,  0.4998]])
    """

    operations = 25


@dataclass(frozen=True, repr=False)
class Cos(Nonlinearity):
    """cos(z).

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), Cos(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[0.5677, 0.3088],
           [0.3088, 0.5002]])
    """

    operations = 25


@dataclass(frozen=True, repr=False)
class Rbf(Nonlinearity):
    """sin(az) + cos(az) with a = √(2·gamma): its covariance is the RBF kernel exp(−gamma·E[(u − v)²]).

    On images K is a mean of products, so `Sequential(Dense(), Rbf(gamma), Dense())` is exp(−gamma·D) with D the mean
    squared difference of the pixels, and `Sequential(Conv(5, padding="valid"), Rbf(gamma), …)` has the same of patches.
    A lengthscale ℓ over d numbers, exp(−Σ(x − x')²/2ℓ²), is gamma = d/(2ℓ²).

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), Rbf(0.5), Dense()), [[1.0], [-2.0]]).round(4)
    array([[1.    , 0.0111],
           [0.0111, 1.    ]])
    """

    gamma: float

    def __post_init__(self) -> None:
        set_field(self, "gamma", real(self, "gamma", self.gamma))
        if not _GAMMAS[0] <= self.gamma <= _GAMMAS[1]:
            raise NetworkError(
                f"Rbf: gamma={self.gamma!r} is not a positive number between {_GAMMAS[0]:g} and {_GAMMAS[1]:g}; "
                "for a lengthscale ℓ over d numbers it is d/(2ℓ²)"
            )


@dataclass(frozen=True, repr=False)
class GELU(Nonlinearity):
    """z · Φ(z), the form with erf.

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), GELU(), Dense()), [[1.0], [-2.0]]).round(4)
    array([[ 0.4252, -0.1001],
           [-0.1001,  1.9299]])
    """

    operations = 40


@dataclass(frozen=True, repr=False)
class Elementwise(Nonlinearity):
    """Any function of one number, by its Hermite series: a name (`"tanh"`, `"silu"`, …) or a NumPy callable.

    Names serialise; a callable does not, and is fingerprinted by its values on a fixed grid.

    >>> from cnngp import reference
    >>> reference.kernel(Sequential(Dense(), Elementwise("tanh"), Dense()), [[1.0], [-2.0]]).round(4)
    array([[ 0.3943, -0.4931],
           [-0.4931,  0.6353]])
    """

    operations = 100

    fn: str | Callable[[Any], Any]

    def __post_init__(self) -> None:
        from .functions import check_function

        set_field(self, "fn", check_function(self.fn))


@dataclass(frozen=True, repr=False)
class AvgPool(Network):
    """The mean over windows: K'(P, Q) = 1/(n_P n_Q) Σ_{p ∈ P} Σ_{q ∈ Q} V(p, q). A linear map without weights.

    `stride=None` is the window's size. Zeros that pad the map count as members of a window, as in PyTorch;
    `count_include_pad=False` divides by the number of its locations inside the map instead.

    >>> Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3), ReLU(), Dense()).shapes((1, 28, 28)).rows[3].output
    (14, 14)
    """

    size: PerAxis
    stride: PerAxis | None = None
    padding: PerAxis = 0
    count_include_pad: bool = True

    def __post_init__(self) -> None:
        set_field(self, "size", per_axis(self, "size", self.size, least=1))
        if self.stride is not None:
            set_field(self, "stride", per_axis(self, "stride", self.stride, least=1))
        set_field(self, "padding", per_axis(self, "padding", self.padding, least=0))
        if not isinstance(self.count_include_pad, bool):
            raise NetworkError(f"AvgPool: count_include_pad={self.count_include_pad!r} is not True or False")
        check_axes_agree(self, "size", "stride", "padding")
        axes = max(axes_of(self.size), axes_of(self.padding), 1)
        sizes, pads = (v if isinstance(v, tuple) else (v,) * axes for v in (self.size, self.padding))
        if any(2 * pad > size for size, pad in zip(sizes, pads, strict=True)):
            raise NetworkError(
                f"AvgPool: padding={self.padding!r} is more than half of size={self.size!r}; a window would hold "
                "nothing but padding: use a padding of at most half the size"
            )


@dataclass(frozen=True, repr=False)
class GlobalAvgPool(Network):
    """The mean over all locations, of every pair of them: one output location, whatever the size of the image.

    >>> Sequential(Conv(3), ReLU(), GlobalAvgPool(), Dense()).shapes((1, 28, 28)).output
    ()
    """


@dataclass(frozen=True, repr=False)
class Identity(Network):
    """z itself: the skip of a residual block.

    >>> Sum(Identity(), Sequential(ReLU(), Conv(3)))
    Sum(Identity(), Sequential(ReLU(), Conv(3)))
    """


@dataclass(frozen=True, repr=False, init=False)
class Sequential(Network):
    """Layers one after the other.

    >>> net = Sequential(Conv(3), ReLU(), Dense())
    >>> net.layers[1]
    ReLU()
    >>> net == Sequential(Conv(3), ReLU(), Dense())
    True
    """

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Network) -> None:
        set_field(self, "layers", _children("Sequential", "layers", layers))
        _check_composition(self)

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"


@dataclass(frozen=True, repr=False, init=False)
class Sum(Network):
    """Branches that all see the same input, added. Kernels add because the branches are independent.

    A branch that ends in a nonlinearity is refused: its activations are not zero-mean Gaussians. With
    `allow_non_gaussian=True` kernels are added although that is not exact, as in the paper's residual CNN.

    >>> block = Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3)))
    >>> Sequential(Conv(3, stride=2), block).shapes((1, 28, 28)).output
    (14, 14)
    """

    branches: tuple[Layer, ...]
    allow_non_gaussian: bool = False

    def __init__(self, *branches: Network, allow_non_gaussian: bool = False) -> None:
        set_field(self, "branches", _children("Sum", "branches", branches))
        if len(self.branches) == 0:
            raise NetworkError("Sum() has no branches; give it at least one")
        if not isinstance(allow_non_gaussian, bool):
            raise NetworkError(f"Sum: allow_non_gaussian={allow_non_gaussian!r} is not True or False")
        set_field(self, "allow_non_gaussian", allow_non_gaussian)
        _check_composition(self)

    def __repr__(self) -> str:
        parts = [repr(b) for b in self.branches]
        if self.allow_non_gaussian:
            parts.append("allow_non_gaussian=True")
        return f"Sum({', '.join(parts)})"


Convolution: TypeAlias = Conv | ConvTranspose
Pool: TypeAlias = AvgPool | GlobalAvgPool
Layer: TypeAlias = Conv | ConvTranspose | Dense | Nonlinearity | AvgPool | GlobalAvgPool | Identity | Sequential | Sum
LAYERS: dict[str, type[Network]] = {
    cls.__name__: cls
    for cls in (
        *(Conv, ConvTranspose, Dense, ReLU, LeakyReLU, Erf, Abs, Step, Sin, Cos, Rbf, GELU, Elementwise),
        *(AvgPool, GlobalAvgPool, Identity, Sequential, Sum),
    )
}


def as_layer(net: object, what: str = "network") -> Layer:
    """The one place where any object becomes a layer of the closed set, or a clear error."""
    if isinstance(net, Network) and type(net) in LAYERS.values():
        return cast(Layer, net)
    if isinstance(net, type) and net in LAYERS.values():
        raise NetworkError(f"{what}: got the class {net.__name__}; write {net.__name__}(...) to make a layer of it")
    raise NetworkError(
        f"{what}: expected a layer such as Conv(3) or Sequential(...), got {type(net).__name__}: {str(net)[:60]}"
    )


def _children(owner: str, field: str, nets: tuple[object, ...]) -> tuple[Layer, ...]:
    return tuple(as_layer(net, f"{owner}: {field}[{i}]") for i, net in enumerate(nets))


def _check_composition(net: Sequential | Sum) -> None:
    from .composition import check_fragment

    check_fragment(net)
