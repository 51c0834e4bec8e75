"""The paper's networks and a few others, each a function that returns a `Network`."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Literal

from .layers import Conv, Dense, Erf, Identity, Layer, Network, NetworkError, ReLU, Sequential, Sum


def convnet(gain: float = math.sqrt(2.0)) -> Network:
    """The paper's ConvNet GP: seven 7×7 convolutions. `gain=1.0` is the authors' later code."""
    layers: list[Network] = []
    for _ in range(7):
        layers += [Conv(7, weight_var=2.79, bias_var=7.86, fan_in="channels"), ReLU(gain)]
    return Sequential(*layers, Dense(weight_var=2.79, bias_var=7.86))


def residual_cnn(gain: float = math.sqrt(2.0)) -> Network:
    """The paper's Residual CNN GP: eight blocks that add after the ReLU, so adding their kernels is not exact."""

    def conv() -> Conv:
        return Conv(4, weight_var=7.27, bias_var=4.69, fan_in="channels")

    blocks = [Sum(Identity(), Sequential(conv(), ReLU(gain)), allow_non_gaussian=True) for _ in range(8)]
    return Sequential(*blocks, conv(), ReLU(gain), Dense(weight_var=7.27, bias_var=4.69))


def resnet(depth: int = 32) -> Network:
    """The paper's ResNet GP: a 3×3 convolution, three stages of pre-activation blocks, two dense layers.

    `depth` is 6n + 2 for n blocks a stage: 8, 14, 20, 26, 32, 44, 56, 110, …
    """
    _check_depth("resnet", depth)
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise NetworkError(f"zoo.resnet: depth={depth!r} is not 6n + 2; use 8, 14, 20, 26, 32, 44, 56 or 110")
    layers: list[Network] = [Conv(3)]
    for stage in range(3):
        stride = 1 if stage == 0 else 2
        layers += [ReLU(), Sum(Conv(1, stride=stride), Sequential(Conv(3, stride=stride), ReLU(), Conv(3)))]
        layers += [Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3))) for _ in range(blocks - 1)]
    return Sequential(*layers, Dense(), ReLU(), Dense())


def dense_nngp(
    depth: int = 3,
    weight_var: float = 2.0,
    bias_var: float = 0.1,
    nonlinearity: Literal["relu", "erf"] = "relu",
) -> Network:
    """A fully connected network with `depth` hidden layers (the NNGP of Lee et al. 2018)."""
    _check_depth("dense_nngp", depth)
    if depth < 1:
        raise NetworkError(f"zoo.dense_nngp: depth={depth!r}; use at least one hidden layer")
    kinds: dict[str, Layer] = {"relu": ReLU(), "erf": Erf()}
    if nonlinearity not in kinds:
        raise NetworkError(f"zoo.dense_nngp: nonlinearity={nonlinearity!r} is not one of {', '.join(kinds)}")
    dense = Dense(weight_var=weight_var, bias_var=bias_var)
    return Sequential(*(layer for _ in range(depth) for layer in (dense, kinds[nonlinearity])), dense)


def small_cnn() -> Network:
    """Three 3×3 convolutions with He's variances: a quick first network for small images."""
    conv = Conv(3, weight_var=2.0, bias_var=0.01)
    return Sequential(conv, ReLU(), conv, ReLU(), conv, ReLU(), Dense())


def _check_depth(name: str, depth: object) -> None:
    if isinstance(depth, bool) or not isinstance(depth, Integral):
        raise NetworkError(f"zoo.{name}: depth={depth!r} is not an integer")
