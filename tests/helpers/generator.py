"""Networks that compose, with every legal argument of every layer: the one description that all tests draw from.

It is written against `Choices`, so that Hypothesis (helpers/networks.py) and a plain random generator (`Random`, for
sweeps and long campaigns) draw from the same set. A layer is drawn for the shape that it will meet: paddings from none
to several times "same", uneven pairs, filters wider than the image, strides beyond the filter, axes of one place.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from cnngp import Conv, ConvTranspose, Dense, Identity, Sequential, Sum
from cnngp.network import Network
from cnngp.network.layers import GELU, Abs, Cos, Erf, LayerNorm, LeakyReLU, NetworkError, NormalizedExp, Rbf, ReLU, Sin
from cnngp.network.shapes import axis_maps, filter_size

T = TypeVar("T")
Spatial = tuple[int, ...]
Act = Callable[[], Network]

MODES = ("zeros", "circular", "reflect", "replicate")
RELU_LIKE = (ReLU(), ReLU(0.5), ReLU(2.0**0.5), LeakyReLU(-0.5), LeakyReLU(0.1), LeakyReLU(0.3), Abs())
MOST_WORK = 5_000  # steps of the reference's loops in one layer
# A gamma above 1 multiplies what rounding has moved at correlation one, by gamma at each layer: 1.5 keeps it within the
# bound of the others, also where residual blocks repeat it.
SMOOTH = (Erf(), Sin(), Cos(), Rbf(0.05), Rbf(0.4), GELU(), NormalizedExp(), NormalizedExp(1.5), LayerNorm(eps=0.1))


class Choices(Protocol):
    """Where the draws come from."""

    def integer(self, low: int, high: int) -> int: ...

    def among(self, options: Sequence[T]) -> T: ...


@dataclass(frozen=True)
class Random:
    """Draws from NumPy's generator."""

    rng: np.random.Generator

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def among(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]


def variance(pick: Choices) -> float:
    return pick.integer(100, 3000) / 1000


def bias(pick: Choices) -> float:
    return pick.among([0.0, 0.0, pick.integer(1, 2000) / 1000])


def _per_axis(pick: Choices, axes: int, one: Callable[[], T]) -> T | tuple[T, ...]:
    """One value for all axes, or one for each."""
    return one() if pick.among([True, False]) else tuple(one() for _ in range(axes))


def _spread(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * axes


def _kernel(pick: Choices, size: int) -> int:
    return pick.among([1, 2, 3, 3, 4, 5, pick.integer(1, 7), size, size + pick.integer(1, 2)])


def _padding(pick: Choices, reaches: Sequence[int]) -> object:
    """None, "same", less than that, more, far more; the same on all sides or not. A reach is dilation · (k − 1)."""

    def one(reach: int) -> int:
        return pick.among(
            [0, 1, reach // 2, reach, reach + 1, pick.integer(0, reach + 2), pick.integer(0, 2 * reach + 5)]
        )

    kind = pick.among(["same", "same", "valid", "beyond", "one", "axes", "sides"])
    if kind == "beyond":  # the first output of a transposed convolution starts behind the first place of its input
        return max(reaches) + pick.integer(1, 2)
    if kind == "one":
        return one(pick.among(reaches))
    if kind == "axes":
        return tuple(one(r) for r in reaches)
    if kind == "sides":
        return tuple(pick.among([one(r), (one(r), one(r))]) for r in reaches)
    return kind


def _arguments(pick: Choices, spatial: Spatial) -> dict[str, object]:
    axes = len(spatial)
    kernel = _per_axis(pick, axes, lambda: _kernel(pick, pick.among(spatial)))
    plain = pick.among(
        [True, False]
    )  # engines have fast ways for what moves by one place, and must be seen to take them
    dilation = 1 if plain else _per_axis(pick, axes, lambda: pick.among([1, 1, 2, 3]))
    reaches = [d * (k - 1) for k, d in zip(_spread(kernel, axes), _spread(dilation, axes), strict=True)]
    beyond = max(_spread(kernel, axes)) + 1
    return {
        "kernel_size": kernel,
        "stride": 1 if plain else _per_axis(pick, axes, lambda: pick.among([1, 2, 2, 3, beyond])),
        "dilation": dilation,
        "padding": _padding(pick, reaches),
        "weight_var": variance(pick),
        "bias_var": bias(pick),
        "fan_in": pick.among(["patch", "patch", "channels"]),
    }


def convolution(pick: Choices, spatial: Spatial) -> Conv:
    """Any `Conv`, with sizes that have to do with `spatial`; it may not fit."""
    return Conv(**_arguments(pick, spatial), padding_mode=pick.among(["zeros", *MODES]))  # type: ignore[arg-type]


def transposed(pick: Choices, spatial: Spatial) -> ConvTranspose:
    """Any `ConvTranspose`; it may not fit."""
    axes = len(spatial)
    given = _arguments(pick, spatial)
    if given["padding"] == "same":
        return ConvTranspose(**given)  # type: ignore[arg-type]
    stride, dilation = (_spread(given[name], axes) for name in ("stride", "dilation"))  # type: ignore[arg-type]
    room = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
    extra = pick.among([0, pick.integer(0, min(room)), tuple(pick.integer(0, r) for r in room)])
    return ConvTranspose(**given, output_padding=extra)  # type: ignore[arg-type]


def keeping(pick: Choices, spatial: Spatial) -> Conv | ConvTranspose:
    """A convolution that keeps the shape, so that it fits beside a skip."""
    axes = len(spatial)
    kernel = _per_axis(pick, axes, lambda: _kernel(pick, pick.among(spatial)))
    numbers = {"weight_var": variance(pick), "bias_var": bias(pick)}
    if pick.among([False, False, True]) and math.prod(_spread(kernel, axes)) * math.prod(spatial) <= MOST_WORK:
        return ConvTranspose(kernel, **numbers)  # type: ignore[arg-type]
    layer = Conv(kernel, padding_mode=pick.among(["zeros", *MODES]), **numbers)  # type: ignore[arg-type]
    return layer if output(layer, spatial) is not None else replace(layer, padding_mode="zeros")


def output(layer: Conv | ConvTranspose, spatial: Spatial) -> Spatial | None:
    """The output's shape, None where the layer does not fit."""
    try:
        return tuple(s.out_size for s in axis_maps(layer, spatial, ""))
    except NetworkError:
        return None


@dataclass
class Growing:
    """A network as it grows: `layers` so far, and the shape of what comes out of them."""

    pick: Choices
    act: Act
    spatial: Spatial
    max_pixels: int
    layers: list[Network]

    def layer(self) -> Conv | ConvTranspose:
        """A convolution of any kind that fits here; its shape is the next one."""
        for _ in range(8):
            layer = self.pick.among([convolution, convolution, transposed])(self.pick, self.spatial)
            out = output(layer, self.spatial)
            taps = filter_size(layer, len(self.spatial))
            work = taps * math.prod(self.spatial) if isinstance(layer, ConvTranspose) else taps
            if out is not None and math.prod(out) <= self.max_pixels and work <= MOST_WORK:
                self.spatial = out
                return layer
        return Conv(1, weight_var=variance(self.pick))

    def keep(self) -> Conv | ConvTranspose:
        return keeping(self.pick, self.spatial)

    def like(self, layer: Conv | ConvTranspose) -> Network:
        """Another layer of the same geometry."""
        return replace(layer, weight_var=variance(self.pick), bias_var=bias(self.pick))

    def grow(self) -> None:
        """Add a piece that starts from a Gaussian map and ends in one."""
        sums = [self._residual, self._regular, self._projection, self._nested, self._wide, self._non_gaussian]
        self.pick.among([self._plain, self._plain, self._plain, *sums])()

    def _plain(self) -> None:
        self.layers += [self.act(), self.layer()]

    def _residual(self) -> None:
        block = Sum(Identity(), Sequential(self.act(), self.keep(), self.act(), self.keep()))
        self.layers += [block] * self.pick.among([1, 1, 2, 5])

    def _regular(self) -> None:
        """Blocks of one geometry and one nonlinearity, which an engine may run as a loop."""
        f, layer = self.act(), self.keep()
        others = [self.like(layer), layer]
        for _ in range(self.pick.integer(2, 4)):
            self.layers.append(Sum(Identity(), Sequential(f, layer, f, self.pick.among(others))))

    def _projection(self) -> None:
        """Branches that change the shape in the same way."""
        f = self.act()
        head = self.layer()
        self.layers += [f, Sum(self.like(head), Sequential(head, self.act(), self.keep()), self.like(head))]

    def _nested(self) -> None:
        inner: Network = Identity()
        for _ in range(self.pick.integer(1, 3)):
            inner = Sum(Sequential(inner, Identity()), Sequential(self.act(), self.keep()))
        branches = [Sequential(self.act(), self.keep()), Sequential(inner, self.act(), self.keep()), Identity()]
        self.layers.append(Sum(*branches))

    def _wide(self) -> None:
        count = self.pick.integer(2, 6)
        branches: list[Network] = [Sequential(self.act(), self.keep(), self.act(), self.keep()) for _ in range(count)]
        branches[self.pick.integer(0, count - 1)] = self.pick.among([Identity(), self.keep()])
        self.layers.append(Sum(*branches))

    def _non_gaussian(self) -> None:
        self.layers.append(Sum(Identity(), Sequential(self.keep(), self.act()), allow_non_gaussian=True))
        self.layers.append(self.keep())

    def begin(self) -> None:
        first = self.layer()
        self.layers.append(self.pick.among([first, first, Sum(first, self.like(first))]))

    def end(self) -> None:
        """One output location: a dense layer, or a filter as large as the map; then perhaps dense layers."""
        dense = Dense(variance(self.pick), bias(self.pick))
        whole = Conv(self.spatial, padding="valid", weight_var=variance(self.pick))
        last = dense if math.prod(self.spatial) > 200 else self.pick.among([dense, dense, whole])
        self.layers += [self.act(), last]
        for _ in range(self.pick.among([0, 0, 1]) if last is dense else 0):
            self.layers.append(self.pick.among([Identity(), Sum(Identity(), Sequential(self.act(), Dense()))]))
            self.layers += [self.act(), Dense()]


def dense_network(pick: Choices, act: Act) -> Network:
    """A network on inputs with one location."""
    layers: list[Network] = []
    for _ in range(pick.integer(0, 3)):
        layers.append(Dense(variance(pick), bias(pick)))
        if pick.among([False, False, True]):
            layers.append(Sum(Identity(), *[Sequential(act(), Dense(variance(pick)))] * pick.integer(1, 3)))
        layers.append(act())
    return Sequential(*layers, Dense(variance(pick), bias(pick)))


def shape(pick: Choices, axes: int, longest: int) -> Spatial:
    return tuple(pick.among([1, pick.integer(1, longest), pick.integer(2, longest)]) for _ in range(axes))


LONGEST = {1: 40, 2: 12, 3: 6}


def network(
    pick: Choices, act: Act, max_pixels: int = 400, axes: Sequence[int] = (0, 1, 2, 2, 2, 2, 3), scale: float = 1.0
) -> tuple[Network, tuple[int, ...]]:
    """A network and the shape of an image it takes; `scale` makes the axes longer."""
    n = pick.among(axes)
    channels = pick.integer(1, 70 if n == 0 else 3)
    if n == 0:
        return dense_network(pick, act), (channels,)
    spatial = shape(pick, n, max(2, round(scale * LONGEST[n])))
    while math.prod(spatial) > max_pixels:
        spatial = tuple(max(1, s // 2) for s in spatial)
    growing = Growing(pick, act, spatial, max_pixels, [])
    growing.begin()
    for _ in range(pick.integer(0, 3)):
        growing.grow()
    growing.end()
    return Sequential(*growing.layers), (channels, *spatial)


def random_network(
    rng: np.random.Generator, acts: Sequence[Network] = RELU_LIKE, **limits: object
) -> tuple[Network, tuple[int, ...]]:
    """`network` from a plain random generator."""
    pick = Random(rng)
    return network(pick, lambda: pick.among(acts), **limits)  # type: ignore[arg-type]
