"""What a search draws from: a `Space` turns the numbers of one draw, which Optuna gives, into a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast

from cnngp.network.layers import (
    GELU,
    AvgPool,
    Conv,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    LeakyReLU,
    Network,
    NetworkError,
    ReLU,
    Sequential,
    Sum,
)

Value: TypeAlias = float | int | str | bool
T = TypeVar("T", bound=Value)


class SpaceError(ValueError):
    """A mistake in a space: no other draw of it would do better."""


class Draw:
    """Numbers for one network, each under a name of its own, from a trial of Optuna.

    >>> from optuna.trial import FixedTrial
    >>> Draw(FixedTrial({"layers": 3})).integer("layers", 2, 8)
    3
    """

    def __init__(self, trial: Any) -> None:
        self._trial = trial
        self._names: set[str] = set()

    def real(self, name: str, low: float, high: float, log: bool = False) -> float:
        """Uniform, or uniform in the logarithm."""
        self._check(name, low, high, 0.0 if log else -math.inf)
        return float(self._trial.suggest_float(name, low, high, log=log))

    def integer(self, name: str, low: int, high: int) -> int:
        """Uniform, both ends included."""
        self._check(name, low, high)
        return int(self._trial.suggest_int(name, low, high))

    def choice(self, name: str, options: Sequence[T]) -> T:
        """One of the options, all alike."""
        if len(options) == 0:
            raise SpaceError(f"the space draws {name!r} from no options; give at least one")
        self._check(name, 0, 0)
        return cast(T, self._trial.suggest_categorical(name, list(options)))

    def _check(self, name: str, low: float, high: float, above: float = -math.inf) -> None:
        if not above < low <= high < math.inf:
            wanted = "the lower end first" if above < 0 else "0 < the lower end first, for a logarithm"
            raise SpaceError(f"the space draws {name!r} from {low!r} to {high!r}; expected {wanted}, both finite")
        if name in self._names:
            raise SpaceError(f"the space draws {name!r} twice; give each hyperparameter a name of its own")
        self._names.add(name)


@dataclass(frozen=True)
class Space:
    """A family of networks: `build` draws what it needs and returns one of them.

    `version` goes up when `build` changes, so that a study is never continued with other networks. Networks that cost
    more than `most_operations` a pair of images are drawn again.
    """

    name: str
    version: int
    build: Callable[[Draw], Network]
    description: str
    most_operations: int | None = None

    def network(self, draw: Draw, image_shape: Sequence[int]) -> Network:
        """The network of a draw. `SpaceError` where `build` makes none, `NetworkError` where it does not fit the images
        or costs too much.
        """
        built = self.build(draw)
        if not isinstance(built, Network):
            raise SpaceError(
                f"build of the space {self.name} returned {built!r:.60} ({type(built).__name__}); expected a network "
                "such as Sequential(Conv(3), ReLU(), Dense())"
            )
        operations = built.shapes(image_shape).cost
        if self.most_operations is not None and operations > self.most_operations:
            raise NetworkError(
                f"it costs {operations:,} operations a pair of images, and {self.name} draws networks of at most "
                f"{self.most_operations:,}"
            )
        return built


def find_space(name: str | Space) -> Space:
    """A space by its name; one of your own as it is."""
    if isinstance(name, Space):
        return name
    if name not in SPACES:
        raise NetworkError(f"no space {name!r}: expected one of {', '.join(SPACES)}")
    return SPACES[name]


# ---- the paper's ----------------------------------------------------------------------------------------------------


def _paper_layers(draw: Draw, filters: tuple[int, int]) -> tuple[Callable[..., Conv], Network, Dense]:
    """What both spaces draw: one variance of weights and one of biases for all layers, filter size, nonlinearity.

    The recursion is the paper's: no division by the filter size, and a ReLU of gain √2.
    """
    weight_var = draw.real("weight_var", 0.5, 8.5)
    bias_var = draw.real("bias_var", 0.2, 8.2)
    size = draw.integer("filter_size", *filters)
    phi: Network = ReLU(math.sqrt(2.0)) if draw.choice("nonlinearity", ("relu", "erf")) == "relu" else Erf()

    def conv(stride: int = 1, padding: Literal["same", "valid"] = "same") -> Conv:
        return Conv(size, stride, padding, weight_var=weight_var, bias_var=bias_var, fan_in="channels")

    return conv, phi, Dense(weight_var=weight_var, bias_var=bias_var)


def _paper_cnn(draw: Draw) -> Network:
    layers = draw.integer("layers", 2, 8)
    stride = draw.integer("stride", 1, 3)
    padding = draw.choice("padding", ("same", "valid"))
    conv, phi, dense = _paper_layers(draw, (3, 7))
    hidden = [layer for _ in range(layers) for layer in (conv(stride, cast(Literal["same", "valid"], padding)), phi)]
    return Sequential(*hidden, dense)


def _paper_residual(draw: Draw) -> Network:
    """Skips over one or two layers that add after the nonlinearity, as the paper does; the last layers have none."""
    layers = draw.integer("layers", 4, 15)
    skip = draw.integer("skip", 1, 2)
    conv, phi, dense = _paper_layers(draw, (3, 6))
    blocks, rest = divmod(layers - 1, skip)
    block = Sum(Identity(), Sequential(*[conv(), phi] * skip), allow_non_gaussian=True)
    return Sequential(*[block] * blocks, *[conv(), phi] * (rest + 1), dense)


# ---- the wide one ---------------------------------------------------------------------------------------------------


def _wide(draw: Draw) -> Network:
    """Stages of convolutions with or without skips, every one an exact Gaussian process.

    Weights keep the variance from layer to layer (He's scaling for the nonlinearity at hand), because deep networks
    away from that send all correlations to one value. What is left to draw is what shapes a kernel: the nonlinearity,
    how much each block adds to its skip (`branch`), filter sizes, where the image shrinks, biases against the signal,
    and what follows the last convolution.
    """
    phi, keep, stem_var = _wide_nonlinearity(draw)
    bias_var = draw.real("bias_var", 1e-5, 0.1, log=True) if draw.choice("biased", (False, True)) else 0.0
    residual = draw.choice("residual", (False, True))
    skip = draw.choice("skip", ("strided", "pooled")) if residual else "none"
    branch = draw.real("branch", 0.2, 5.0, log=True) if residual else 1.0
    depth = draw.integer("block_layers", 1, 2)
    layers: list[Network] = [Conv(draw.choice("stem_size", _SIZES), weight_var=stem_var, bias_var=bias_var)]
    for stage in range(draw.integer("stages", 2, 4)):
        size = draw.choice(f"filter_size_{stage}", _SIZES)
        stride = draw.integer(f"stride_{stage}", 1, 2) if stage > 0 else 1
        for block in range(draw.integer(f"blocks_{stage}", 1, 5 if residual else 3)):
            s = stride if block == 0 else 1
            layers += _wide_block(phi, size, s, depth, keep, branch, bias_var, skip)
    if draw.choice("last_nonlinearity", (False, True)):
        layers.append(phi)
    dense = Dense(weight_var=keep, bias_var=bias_var)
    for _ in range(draw.integer("dense_hidden", 0, 3)):
        layers += [dense, phi]
    return Sequential(*layers, dense)


_SIZES = (3, 5, 7)


def _wide_nonlinearity(draw: Draw) -> tuple[Network, float, float]:
    """φ, the variance of weights that keeps its variance, and that of the first layer.

    LeakyReLU with slopes from −1 to 0.2 runs from |z| to a little beyond the ReLU; these are homogeneous, so only the
    biases know the scale, and the first layer brings images in [0, 1] to about one. GELU changes its shape with the
    scale, which is drawn. Erf is left out: at its best it was far behind (docs/search.md).
    """
    match draw.choice("nonlinearity", ("relu", "leaky", "gelu")):
        case "relu":
            return ReLU(), 2.0, 10.0
        case "leaky":
            slope = draw.real("slope", -1.0, 0.2)
            return LeakyReLU(slope), 2.0 / (1.0 + slope**2), 10.0
        case _:  # E[gelu²] is between a quarter and a half of the variance
            return GELU(), draw.real("weight_var", 1.8, 4.0, log=True), draw.real("stem_var", 10.0, 1000.0, log=True)


def _wide_block(
    phi: Network, size: int, stride: int, depth: int, keep: float, branch: float, bias_var: float, skip: str
) -> list[Network]:
    """One block as layers of a sequence. `branch` is the variance that it adds, relative to the skip's."""

    def conv(stride: int, last: bool) -> Conv:
        return Conv(size, stride, weight_var=keep * (branch if last else 1.0), bias_var=bias_var)

    first, inner = conv(stride, last=depth == 1), [phi, conv(1, last=True)] * (depth - 1)
    if skip == "none":
        return [phi, first, *inner]
    if stride == 1:
        return [Sum(Identity(), Sequential(phi, first, *inner))]
    # The skip shrinks with the image: it takes every second location, or the mean of each square.
    width = 1 if skip == "strided" else stride
    return [phi, Sum(Conv(width, stride, weight_var=keep), Sequential(first, *inner))]


# ---- with pools ------------------------------------------------------------------------------------------------------


def _pooled(draw: Draw) -> Network:
    """Up to three stages of convolutions that shrink by pools or strides, and a pool before the dense layer.

    Variances as in the wide space; `bias_ratio` is the variance of biases against that of the signal.
    """
    phi, keep, stem_var = _wide_nonlinearity(draw)
    bias_var = draw.real("bias_ratio", 1e-4, 1.0, log=True) if draw.choice("biased", (False, True)) else 0.0
    residual = draw.choice("residual", (False, True))
    size = draw.choice("filter_size", (3, 5))
    conv = Conv(size, weight_var=keep, bias_var=bias_var)
    layers: list[Network] = [Conv(size, weight_var=stem_var, bias_var=bias_var)]
    stages = draw.integer("stages", 1, 3)
    for stage in range(stages):
        block = [Sum(Identity(), Sequential(phi, conv))] if residual else [phi, conv]
        layers += block * draw.integer(f"layers_{stage}", 1, 3)
        if stage + 1 < stages:
            match draw.choice(f"shrink_{stage}", ("pool", "stride")):
                case "pool":
                    layers += [phi, AvgPool(2), conv]
                case _:
                    layers += [phi, Conv(size, 2, weight_var=keep, bias_var=bias_var)]
    layers.append(phi)
    match draw.choice("end_pool", ("none", "2", "3", "5", "global")):
        case "none":
            pass
        case "global":
            layers.append(GlobalAvgPool())
        case width:
            layers.append(AvgPool(int(width), stride=1))
    return Sequential(*layers, Dense(weight_var=keep, bias_var=bias_var))


SPACES: dict[str, Space] = {
    s.name: s
    for s in (
        Space("paper-cnn", 1, _paper_cnn, "the paper's ConvNets: 2 to 8 layers of filters from 3 to 7"),
        Space("paper-residual", 1, _paper_residual, "the paper's residual CNNs: 4 to 15 layers, filters from 3 to 6"),
        Space("wide", 1, _wide, "plain and residual networks in stages, from ReLU to |z| and GELU, all exact"),
        Space(
            "pooled", 1, _pooled, "stages that shrink by pools or strides, with or without a pool at the end", 3_000_000
        ),
    )
}
