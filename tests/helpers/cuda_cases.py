"""Networks for the generated CUDA, and its kernels run by the engine, on a card or on one that is a fake."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cnngp import (
    GELU,
    Abs,
    AvgPool,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    Identity,
    LayerNorm,
    LeakyReLU,
    NormalizedExp,
    Rbf,
    ReLU,
    Sequential,
    Sign,
    Sin,
    SquaredReLU,
    Step,
    Sum,
    zoo,
)
from cnngp.kernel.check import compare
from cnngp.kernel.engines.cuda.engine import KINDS, CudaEngine
from cnngp.kernel.program import Kind, lower
from cnngp.network import Network, reference
from cnngp.network.layers import as_layer


class OnCard:
    """The kernels of a network on a card, or on one that is a fake; options as those of `CudaEngine`."""

    def __init__(
        self, net: Network, shape: tuple[int, ...], dtype: str = "float32", kind: Kind = "nngp", **options: Any
    ) -> None:
        self.engine = CudaEngine(lower(net, shape, kind), dtype, **options)
        self.source, self.dtype = self.engine.source, self.engine.dtype
        self.kinds = 1 + self.source.data.tangents

    def flat(self, X: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(X.reshape(*X.shape[:2], -1), dtype=self.dtype)

    def cross(self, X: np.ndarray, Z: np.ndarray | None) -> np.ndarray:
        x, z = self.flat(X), None if Z is None else self.flat(Z)
        if self.kinds == 2:
            return np.stack(self.engine.both(x, z))
        K: np.ndarray = self.engine.symmetric(x) if z is None else self.engine.cross(x, z)
        return K

    def symmetric(self, X: np.ndarray) -> np.ndarray:
        return self.cross(X, None)

    def diagonals(self, X: np.ndarray) -> np.ndarray:
        """K(x, x), with Θ(x, x) behind it where that is made too."""
        return np.stack(list(self.engine._diagonals(self.flat(X))[0].values()))


def agrees(run: OnCard, net: Network, shape: tuple[int, ...], tolerance: float = 0.0, one_pixel: bool = False) -> None:
    """Check K, and Θ where it is made: against the reference, in any batch, with both triangles.

    A `tolerance` of 0: of float64 1e-12, of float32 1e-6, and of Θ what rounding can do to the reference. With
    `one_pixel` locations of two images are equal up to a factor.
    """
    rng, pools = np.random.default_rng(0), reference.has_pools(as_layer(net))
    n, m = (4, 2) if pools else (5, 3)
    X, Z = images(rng, n, shape), images(rng, m + 1, shape)[:-1]
    dtype, series = str(run.dtype), any(isinstance(a.layer, Elementwise) for a in run.source.data.program.activations)
    across, S, both = run.cross(X, Z), run.symmetric(X), np.concatenate([X, Z])
    judged = run.kinds == 2 and not tolerance
    joint = run.symmetric(both).reshape(-1, n + m, n + m) if judged else S
    assert np.array_equal(across[..., 1:3, 1:], run.cross(X[1:3], Z[1:])), "depends on the batch"
    assert np.array_equal(S, S.swapaxes(-1, -2))
    assert np.array_equal(S[..., 0, 1:], run.cross(X[:1], X[1:])[..., 0, :])
    assert pools or np.array_equal(across, run.cross(Z, X).swapaxes(-1, -2)), "not symmetric in the two images"
    diagonals = run.diagonals(X)
    for k, kind in enumerate(KINDS[: run.kinds]):
        R, bound = reference.kernel(net, X, kind=kind), tolerance or (1e-6 if dtype == "float32" else 1e-12)
        found = compare(net, both, joint[k], run.dtype, kind) if judged else None
        if found is not None:
            bound = tangent_bound(net, found.bound, dtype, one_pixel and kind == "ntk" and dtype == "float64")
        assert error(S.reshape(-1, n, n)[k], R) <= bound, kind
        assert error(across.reshape(-1, n, m)[k], reference.kernel(net, X, Z, kind=kind)) <= bound, kind
        rtol = (1e-7 if dtype == "float32" else 1e-9) if series else 1e-13
        if (
            pools and kind == "ntk"
        ):  # two places of one image may be equal up to a factor, and the tables are of float64
            rtol = tangent_bound(net, rtol, "float64", True)
        assert np.allclose(diagonals[k], R.diagonal(), rtol=rtol, atol=0.0), kind


def images(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> np.ndarray:
    """Standardised images, one of them blank in one half and one blank all over."""
    x = rng.standard_normal((n, *shape)).astype(np.float32)
    x[0, ..., : (shape[-1] + 1) // 2] = 0.0
    x[-1] = 0.0
    return x


def error(K: np.ndarray, R: np.ndarray) -> float:
    """The largest error in units of the largest entry; of a kernel that is zero everywhere, the error itself."""
    largest = float(np.max(np.abs(R)))
    return float(np.max(np.abs(K - R))) / (largest if largest > 0 else 1.0)


C, R, D = Conv(3), ReLU(), Dense()
BLOCK = Sum(Identity(), Sequential(R, C, R, C))
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "no operations": (Sequential(D), (1,)),
    "resnet": (zoo.resnet(14), (2, 12, 12)),
    "residual": (zoo.residual_cnn(), (1, 7, 9)),
    "convnet": (zoo.convnet(), (1, 28, 28)),
    "wide convolutions": (Sequential(Conv(7), R, Conv(5, padding="valid"), R, D), (1, 32, 32)),
    "uneven strides": (
        Sequential(Conv(3, stride=(2, 3)), LeakyReLU(0.1), Conv(2, bias_var=0.3), Abs(), D),
        (3, 11, 13),
    ),
    "padding modes": (
        Sequential(
            *(Conv(3, padding_mode="circular"), R, Conv((3, 5), padding_mode="reflect"), ReLU(2.0)),
            *(Conv(3, dilation=2, padding_mode="replicate", stride=2), R, D),
        ),
        (1, 10, 9),
    ),
    "transposed": (
        Sequential(Conv(3, stride=2), R, ConvTranspose(3, stride=2), R, ConvTranspose(4, padding=1), Erf(), D),
        (1, 9, 8),
    ),
    "smooth": (Sequential(Conv(3, weight_var=2.0), Erf(), C, GELU(), C, Sin(), C, Cos(), C, Rbf(0.7), D), (1, 6, 6)),
    "angles": (
        Sequential(
            *(C, NormalizedExp(), Conv(3, bias_var=0.1), LayerNorm(), R),
            *(C, SquaredReLU(), C, NormalizedExp(2.5), D),
        ),
        (1, 6, 6),
    ),
    "signs": (Sequential(C, Sign(), Conv(3, bias_var=0.1), LayerNorm(eps=0.1), Sign(), D), (1, 6, 5)),
    "step": (Sequential(C, Step(), Conv(3, bias_var=0.1), Step(), D), (1, 6, 5)),
    "skips in skips": (
        Sequential(C, Sum(Sequential(R, C), Sequential(Conv(1, weight_var=0.5), BLOCK)), R, D),
        (1, 8, 8),
    ),
    "loop": (Sequential(C, *[BLOCK] * 5, R, Conv(3, bias_var=0.5), GELU(), C, GELU(), C, D), (1, 5, 5)),
    "folded, then not": (Sequential(C, R, Conv(3, stride=2), R, Conv(5), R, D), (1, 11, 12)),
    "1-D": (Sequential(Conv(5, stride=2), R, C, R, D), (2, 40)),
    "a long axis": (Sequential(C, R, D), (1, 700)),
    "many rows": (Sequential(C, R, D), (1, 300, 9)),
    "3-D": (Sequential(C, R, Conv(3, stride=2), R, D), (1, 4, 5, 6)),
    "wider than a warp": (Sequential(Conv(3, stride=2), R, C, R, D), (1, 9, 40)),
    "one location": (zoo.dense_nngp(3, nonlinearity="erf"), (37,)),
    "dense skips": (Sequential(D, Sum(Identity(), Sequential(R, Dense(bias_var=0.2))), GELU(), D), (5,)),
    "wider than the input, folded": (Sequential(Conv(3, padding=2), R, C, R, D), (1, 12, 12)),
    "lanes outside maps": (
        Sequential(Conv(2, padding=((0, 3),), padding_mode="reflect"), R, Conv(3, padding=2), R, D),
        (1, 5),
    ),
    "copies of one place": (
        Sequential(
            *(Conv((3, 1), padding_mode="replicate"), R, Conv(3, padding_mode="circular", bias_var=0.1), R),
            *(Sum(Conv(1), Conv(1, stride=3, padding=1, bias_var=0.2)), D),
        ),
        (2, 1, 1),
    ),
}
POOLED: dict[str, tuple[Network, tuple[int, ...]]] = {
    "LeNet": (Sequential(C, R, AvgPool(2), C, R, AvgPool(2), D), (1, 8, 8)),
    "a pool of wide maps": (Sequential(C, R, AvgPool(2), C, R, D), (1, 4, 18)),
    "global pool": (Sequential(*[C, R] * 3, GlobalAvgPool(), D), (2, 5, 7)),
    "two pools": (
        Sequential(
            *(*[C, R] * 2, AvgPool(2), C, R, AvgPool(2), C, R, GlobalAvgPool(), Dense(bias_var=0.1), R, D),
        ),
        (3, 8, 8),
    ),
    "any pool at the end": (
        Sequential(*[C, R] * 2, AvgPool(2), C, R, AvgPool((3, 2), (2, 1), (1, 0), False), D),
        (1, 12, 8),
    ),
    "strides": (
        Sequential(
            *(C, BLOCK, R, Sum(Conv(1, stride=2), Sequential(Conv(3, stride=2), R, C)), BLOCK, R, GlobalAvgPool(), D),
        ),
        (1, 8, 8),
    ),
    "smooth pools": (
        Sequential(Conv(3, bias_var=0.1), Erf(), AvgPool(2), Conv(5, bias_var=0.2), GELU(), GlobalAvgPool(), D),
        (1, 8, 6),
    ),
    "pooled angles": (
        Sequential(
            *(Conv(3, bias_var=0.1), NormalizedExp(), AvgPool(2)),
            *(C, LayerNorm(eps=0.1), SquaredReLU(), GlobalAvgPool(), D),
        ),
        (1, 8, 6),
    ),
    "sizes that do not halve": (
        Sequential(Conv(3, padding="valid"), R, Conv(3, dilation=2), LeakyReLU(0.2), AvgPool(3, 2, 1), D),
        (1, 9, 8),
    ),
}
VALID = Conv(3, padding="valid")
# Maps that shrink share the shifts of the largest.
SHRINKING: dict[str, tuple[Network, tuple[int, ...]]] = {
    "convolutional GP": (zoo.conv_gp(3, 2.0), (2, 7, 6)),
    "uneven patches": (zoo.conv_gp((2, 5), 2.0), (1, 6, 9)),
    "same, then smaller twice": (Sequential(C, R, VALID, R, VALID, Erf(), GlobalAvgPool(), D), (1, 8, 9)),
    "a pool of almost all": (Sequential(VALID, R, AvgPool(5, 1), D, R, D), (1, 9, 8)),
}
# Pools that no faster kernel takes.
GENERAL: dict[str, tuple[Network, tuple[int, ...]]] = {
    "1-D pool": (Sequential(C, R, AvgPool(2), C, R, GlobalAvgPool(), D), (2, 9)),
    "3-D pool": (Sequential(Conv(2, bias_var=0.1), R, AvgPool(2, 1), D), (1, 3, 4, 3)),
    "a pool wider than a warp": (Sequential(Conv(3, stride=2), R, AvgPool((1, 2)), D), (1, 3, 40)),
    "circular": (Sequential(Conv(3, padding_mode="circular"), R, GlobalAvgPool(), D), (1, 4, 5)),
    "pool in a branch": (Sequential(C, Sum(Sequential(R, C), AvgPool(3, 1, 1)), R, AvgPool(2), D), (1, 5, 4)),
    "bias alone": (
        Sequential(Conv(3, padding=2, bias_var=0.2), R, ConvTranspose(2, stride=2), AvgPool(5), D),
        (1, 3, 3),
    ),
    "one product of the images": (
        Sequential(Conv(4, stride=5, padding=9, bias_var=0.6), R, GlobalAvgPool(), D),
        (1, 3, 4),
    ),
    "a map again": (Sequential(C, R, AvgPool(4), ConvTranspose(3, padding="valid"), R, D), (1, 4, 4)),
    "a map and a pool again": (
        Sequential(C, R, AvgPool(4), ConvTranspose(3, padding="valid"), R, AvgPool(2), D),
        (1, 4, 4),
    ),
    # On three places two windows of a stride of two and their padding look like windows that move by one.
    "like one by one, global": (Sequential(Conv(3, stride=2), R, GlobalAvgPool(), D), (1, 3, 6)),
    "like one by one, 2 x 2": (Sequential(Conv(3, stride=2), R, AvgPool(2), D), (2, 3, 5)),
    "a padded sum on a smaller map": (Sequential(VALID, R, C, R, GlobalAvgPool(), D), (1, 8, 8)),
}
TANH, SOFTPLUS = Elementwise("tanh"), Elementwise("softplus")
SERIES: dict[str, tuple[Network, tuple[int, ...]]] = {
    "series": (Sequential(C, TANH, Conv(3, stride=2, bias_var=0.1), SOFTPLUS, D), (1, 5, 6)),
    "series at one location": (Sequential(Dense(2.0), TANH, D, SOFTPLUS, D, Rbf(0.5), D), (7,)),
    "series under a pool": (Sequential(C, TANH, AvgPool(2), Conv(2), TANH, GlobalAvgPool(), D), (1, 4, 4)),
}
EVERY = NETWORKS | POOLED | SHRINKING | GENERAL | SERIES
_DENSE = {"no operations", "one location", "dense skips", "copies of one place", "series at one location"}
_WALK = {"1-D", "a long axis", "many rows", "3-D", "wider than a warp", *GENERAL, *SERIES}
PATHS = {
    name: "dense" if name in _DENSE else "walk" if name in _WALK else "warp" if name in NETWORKS else "sheets"
    for name in EVERY
}
NO_SLOPE = {"step", "signs"}
# Windows that see one pixel of one channel: two images are equal there up to a factor.
ONE_PIXEL = {"uneven strides", "lanes outside maps"}


def tangent_bound(net: Network, bound: float, dtype: str, equal: bool) -> float:
    """What Θ may be off where `compare` found this bound, by one unit in the last place of K after every layer.

    An engine rounds K, two entries of tables and their product: four of them. Where locations of two images are `equal`
    up to a factor, correlation is ±1, and the slope of each ReLU may lose √(2δ)/π with δ a few units in the last place.
    """
    at_one = math.sqrt(2.0 * 4.0 * float(np.finfo(dtype).eps)) / math.pi
    return max(4.0 * bound, repr(net).count("(") * at_one if equal else 0.0)


# At correlation 1 a Step has the slope of a square root: half an ulp of K, 6e-8 in float32, moves V by its root.
TOLERANCE = {"step": 2e-4, "signs": 2e-4}
