"""The paper's networks and a few others, each a function that returns a `Network`."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Literal

from cnngp.common.errors import is_whole

from .layers import (
    Abs,
    AvgPool,
    Conv,
    Dense,
    Erf,
    GlobalAvgPool,
    Identity,
    Layer,
    Network,
    NetworkError,
    NormalizedExp,
    Rbf,
    ReLU,
    Sequential,
    Sum,
)


def convnet(gain: float = math.sqrt(2.0)) -> Network:
    """The paper's ConvNet GP: seven 7×7 convolutions. The authors' later code has `gain=1.0`."""
    layers: list[Network] = []
    for _ in range(7):
        layers += [Conv(7, weight_var=2.79, bias_var=7.86, fan_in="channels"), ReLU(gain)]
    return Sequential(*layers, Dense(weight_var=2.79, bias_var=7.86))


def residual_cnn(gain: float = math.sqrt(2.0)) -> Network:
    """The paper's Residual CNN GP: eight blocks that add after the ReLU, which makes the sum of kernels inexact."""

    def conv() -> Conv:
        return Conv(4, weight_var=7.27, bias_var=4.69, fan_in="channels")

    blocks = [Sum(Identity(), Sequential(conv(), ReLU(gain)), allow_non_gaussian=True) for _ in range(8)]
    return Sequential(*blocks, conv(), ReLU(gain), Dense(weight_var=7.27, bias_var=4.69))


def resnet(depth: int = 32, pool: Literal["global"] | int | None = None) -> Network:
    """The paper's ResNet GP: a 3×3 convolution, three stages of pre-activation blocks, two dense layers.

    `depth` is 6n + 2 for n blocks per stage: 8, 14, 20, 26, 32, 44, 56, 110, … `pool="global"` ends the network as in
    He et al.: the mean over all locations after the last nonlinearity, then one dense layer. An integer replaces this
    by a pool of that size and stride 1, which costs less.
    """
    if not (pool in (None, "global") or is_whole(pool, least=1)):
        raise NetworkError(f"zoo.resnet: pool={pool!r} is not None, 'global' or a positive integer")
    _check_depth("resnet", depth)
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise NetworkError(f"zoo.resnet: depth={depth!r} is not 6n + 2; use 8, 14, 20, 26, 32, 44, 56 or 110")
    layers: list[Network] = [Conv(3)]
    for stage in range(3):
        stride = 1 if stage == 0 else 2
        layers += [ReLU(), Sum(Conv(1, stride=stride), Sequential(Conv(3, stride=stride), ReLU(), Conv(3)))]
        layers += [Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3))) for _ in range(blocks - 1)]
    if pool is None:
        return Sequential(*layers, Dense(), ReLU(), Dense())
    return Sequential(*layers, ReLU(), GlobalAvgPool() if pool == "global" else AvgPool(pool, stride=1), Dense())


def lenet(weight_var: float = 2.0, bias_var: float = 0.1) -> Network:
    """LeCun et al. 1998 with ReLUs: two 5×5 convolutions, each with a 2×2 average pool, and three dense layers.

    The first convolution is padded, so that 28×28 images give maps of the same size as the original's 32×32 images.
    """
    first = Conv(5, weight_var=weight_var, bias_var=bias_var)
    second = Conv(5, padding="valid", weight_var=weight_var, bias_var=bias_var)
    dense = Dense(weight_var=weight_var, bias_var=bias_var)
    pool = AvgPool(2)
    return Sequential(first, ReLU(), pool, second, ReLU(), pool, dense, ReLU(), dense, ReLU(), dense)


_MYRTLE = {4: (1, 1, 1), 5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
"""Number of convolutions before each of the three pools, by depth; the dense layer counts as one more."""


def myrtle(depth: int = 5, nonlinearity: Literal["relu", "exp"] = "relu") -> Network:
    """The Myrtle networks of Shankar et al. 2020, `depth` 5, 7 or 10, or 4: 3×3 convolutions and 2×2 average pools.

    The published ones end in three 2×2 pools, which average all that is left of a 32×32 image; the global pool here is
    the same on those images and defined on all others. "exp" is their normalised Gaussian, `NormalizedExp(1)`.
    """
    _check_depth("myrtle", depth)
    if depth not in _MYRTLE:
        raise NetworkError(f"zoo.myrtle: depth={depth!r} is not one of {', '.join(map(str, _MYRTLE))}")
    acts, weight_var = _nonlinearity("myrtle", nonlinearity)
    layers: list[Network] = []
    conv: list[Network] = [Conv(3, weight_var=weight_var), acts]
    for convolutions, pool in zip(_MYRTLE[depth], (AvgPool(2), AvgPool(2), GlobalAvgPool()), strict=True):
        layers += [*conv * convolutions, pool]
    return Sequential(*layers, Dense())


def pooled_cnn(
    size: Literal["small", "medium", "large"] = "medium",
    halvings: int = 1,
    *,
    pool: Literal["global"] | int | None = None,
    even: bool = False,
    nonlinearity: Literal["relu", "exp"] = "relu",
) -> Network:
    """3×3 convolutions that end in an average pool of stride 1: the most accurate networks at their cost on digits.

    A pool of stride 1 tolerates small shifts and still preserves positions. `halvings` is the number of times that the
    image is halved before it (`halvings_for`). Per pair of 28×28 images `"small"` has 33 thousand covariances,
    `"medium"` 112 and `"large"` 424 (`python -m benchmarks.recipes`). `pool="global"` averages over all locations
    instead, for textures; an integer averages over windows of that side. `even=True` replaces the first nonlinearity
    by `Abs`, so that an image and its negative are equivalent. "exp" is `NormalizedExp(1)`, for photographs. The kernel
    does not change when both images are mirrored, provided that the sides are even at each halving.
    """
    if size not in POOLED_SIZES:
        raise NetworkError(f"zoo.pooled_cnn: size={size!r} is not one of {', '.join(map(repr, POOLED_SIZES))}")
    if not is_whole(halvings, least=0):
        raise NetworkError(f"zoo.pooled_cnn: halvings={halvings!r} is not an integer of 0 or more")
    if not (pool in (None, "global") or is_whole(pool, least=1)):
        raise NetworkError(f"zoo.pooled_cnn: pool={pool!r} is not None, 'global' or a positive integer")
    acts, weight_var = _nonlinearity("pooled_cnn", nonlinearity)
    conv, half = Conv(3, weight_var=weight_var), Conv(4, stride=2, weight_var=weight_var)
    strided, pooled = [conv, acts, half, acts], [conv, acts, conv, acts, AvgPool(2)]
    halved = strided * (halvings - 1) + (pooled if size == "large" else strided) if halvings else []
    convolutions = 5 if halvings and size == "medium" else 3
    _, _, *rest = halved + [conv, acts] * convolutions
    side = pool_of(size, halvings) if pool is None else pool
    last = GlobalAvgPool() if side == "global" else AvgPool(side, stride=1)
    return Sequential(conv, Abs() if even else acts, *rest, last, Dense())


def _nonlinearity(name: str, given: object) -> tuple[Layer, float]:
    """Return the layer and the weight variance with which it preserves the scale of its input."""
    if given not in ("relu", "exp"):
        raise NetworkError(f"zoo.{name}: nonlinearity={given!r} is not 'relu' or 'exp'")
    return (ReLU(), 2.0) if given == "relu" else (NormalizedExp(), 1.0)


POOLED_SIZES: dict[str, tuple[int, int]] = {"small": (3, 3), "medium": (4, 5), "large": (5, 5)}
"""Side of the last pool of each `pooled_cnn`: for images that are not halved before it, and for those that are."""


def pool_of(size: str, halvings: int) -> int:
    """Side of a `pooled_cnn`'s last pool, which has to fit into the halved image."""
    return POOLED_SIZES[size][halvings > 0]


def halvings_for(side: int) -> int:
    """Number of halvings for images whose shorter side is `side`; from 10 locations on it leaves 10 to 19.

    Chosen by leave-one-out and by held-out training images, for digits of 8×8, 14×14, 28×28 and 56×56 and for drawn
    shapes of 8×8 and 16×16; see docs/pooling.md.

    >>> [halvings_for(side) for side in (8, 16, 28, 32, 64)]
    [0, 0, 1, 1, 2]
    """
    return max(0, (side // 10).bit_length() - 1)


def dense_nngp(
    depth: int = 3, weight_var: float = 2.0, bias_var: float = 0.1, nonlinearity: Literal["relu", "erf"] = "relu"
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


def dense_even() -> Network:
    """One fully connected hidden layer of `Abs`: an input and its negative are equivalent."""
    return Sequential(Dense(), Abs(), Dense())


def rbf(gamma: float = 16.0) -> Network:
    """The RBF kernel on the pixels, exp(−gamma·D) with D the mean squared difference of two images.

    A lengthscale ℓ, exp(−Σ(x − x')²/2ℓ²), corresponds to gamma = d/(2ℓ²) with d = pixels · channels.
    """
    return Sequential(Dense(), Rbf(gamma), Dense())


def conv_gp(
    patch: int | tuple[int, ...] = 5,
    gamma: float = 16.0,
    pool: Literal["global"] | int = "global",
    pixel_gamma: float | None = None,
    pixel_var: float = 1.0,
) -> Network:
    """The convolutional GP of van der Wilk et al. 2017, exact: an RBF kernel summed over all pairs of patches.

    The mean of exp(−gamma·D) over all pairs of a patch of one image and a patch of the other, D their mean squared
    difference. An integer `pool` compares only patches within the same window of that size, and each window has weights
    of its own: the positions of patches then matter, and a pair of images costs far less. `pixel_gamma` adds the RBF
    kernel on whole images, with variance `pixel_var`.
    """
    if pool != "global" and not is_whole(pool, least=1):
        raise NetworkError(f"zoo.conv_gp: pool={pool!r} is not 'global' or a positive integer")
    average = GlobalAvgPool() if pool == "global" else AvgPool(pool, stride=1)
    patches = Sequential(Conv(patch, padding="valid"), Rbf(gamma), average, Dense())
    if pixel_gamma is None:
        if pixel_var != 1.0:
            raise NetworkError(f"zoo.conv_gp: pixel_var={pixel_var!r} needs pixel_gamma, the kernel on whole images")
        return patches
    return Sum(patches, Sequential(Dense(), Rbf(pixel_gamma), Dense(weight_var=pixel_var)))


def small_cnn() -> Network:
    """Three 3×3 convolutions with He's variances: a quick first network for small images."""
    conv = Conv(3, weight_var=2.0, bias_var=0.01)
    return Sequential(conv, ReLU(), conv, ReLU(), conv, ReLU(), Dense())


def _check_depth(name: str, depth: object) -> None:
    if isinstance(depth, bool) or not isinstance(depth, Integral):
        raise NetworkError(f"zoo.{name}: depth={depth!r} is not an integer")
