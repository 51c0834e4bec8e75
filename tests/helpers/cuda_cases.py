"""Networks for the generated CUDA, and its kernels run by the engine, on a card or on one that is a fake."""

import math
from typing import Any

import numpy as np

from cnngp import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, Identity, Sequential, Sum, zoo
from cnngp.kernel.check import compare
from cnngp.kernel.engines.cuda.engine import KINDS, CudaEngine
from cnngp.kernel.program import Kind, lower
from cnngp.network import Network, NormalizedExp, Rbf, Sign, Sin, SquaredReLU, Step, reference
from cnngp.network.layers import GELU, Abs, Cos, Elementwise, Erf, LayerNorm, LeakyReLU, ReLU, as_layer
from helpers.kernels import error
from helpers.networks import Case, of


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
    if run.kinds == 2:
        assert np.array_equal(run.engine.symmetric(run.flat(X)), S[1]), "Θ alone is not Θ beside K"
        assert np.array_equal(run.engine.diagonal(run.flat(X)), diagonals[1])
    for k, kind in enumerate(KINDS[: run.kinds]):
        R, bound = reference.kernel(net, X, kind=kind), tolerance or (1e-6 if dtype == "float32" else 1e-12)
        found = compare(net, both, joint[k], run.dtype, kind) if judged else None
        if found is not None:
            bound = tangent_bound(net, found.bound, dtype, one_pixel and kind == "ntk" and dtype == "float64")
        assert error(S.reshape(-1, n, n)[k], R) <= bound, kind
        assert error(across.reshape(-1, n, m)[k], reference.kernel(net, X, Z, kind=kind)) <= bound, kind
        rtol = (1e-7 if dtype == "float32" else 1e-9) if series else 1e-13
        if pools and kind == "ntk":  # places of one image may be equal up to a factor; tables are of float64
            rtol = tangent_bound(net, rtol, "float64", True)
        assert np.allclose(diagonals[k], R.diagonal(), rtol=rtol, atol=0.0), kind


def images(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> np.ndarray:
    """Standardised images, one of them blank in one half and one blank all over."""
    x = rng.standard_normal((n, *shape)).astype(np.float32)
    x[0, ..., : (shape[-1] + 1) // 2] = 0.0
    x[-1] = 0.0
    return x


C, R, D, ERF, GLOBAL, CB = Conv(3), ReLU(), Dense(), Erf(), GlobalAvgPool(), Conv(3, bias_var=0.1)
BLOCK = Sum(Identity(), Sequential(R, C, R, C))
HALF, TWO = Conv(3, stride=2), AvgPool(2)
NETWORKS: dict[str, Case] = {
    "no operations": of((1,), D),
    "resnet": (zoo.resnet(14), (2, 12, 12)),
    "residual": (zoo.residual_cnn(), (1, 7, 9)),
    "convnet": (zoo.convnet(), (1, 28, 28)),
    "wide convolutions": of((1, 32, 32), Conv(7), R, Conv(5, padding="valid"), R, D),
    "uneven strides": of((3, 11, 13), Conv(3, stride=(2, 3)), LeakyReLU(0.1), Conv(2, bias_var=0.3), Abs(), D),
    "padding modes": of(
        *((1, 10, 9), Conv(3, padding_mode="circular"), R, Conv((3, 5), padding_mode="reflect"), ReLU(2.0)),
        *(Conv(3, dilation=2, padding_mode="replicate", stride=2), R, D),
    ),
    "transposed": of((1, 9, 8), HALF, R, ConvTranspose(3, stride=2), R, ConvTranspose(4, padding=1), ERF, D),
    "smooth": of((1, 6, 6), Conv(3, weight_var=2.0), ERF, C, GELU(), C, Sin(), C, Cos(), C, Rbf(0.7), D),
    "angles": of((1, 6, 6), C, NormalizedExp(), CB, LayerNorm(), R, C, SquaredReLU(), C, NormalizedExp(2.5), D),
    "signs": of((1, 6, 5), C, Sign(), CB, LayerNorm(eps=0.1), Sign(), D),
    "step": of((1, 6, 5), C, Step(), CB, Step(), D),
    "skips in skips": of((1, 8, 8), C, Sum(Sequential(R, C), Sequential(Conv(1, weight_var=0.5), BLOCK)), R, D),
    "loop": of((1, 5, 5), C, *[BLOCK] * 5, R, Conv(3, bias_var=0.5), GELU(), C, GELU(), C, D),
    # ∂K/∂weight_var does not vanish where weight_var does.
    "a layer without weights": of(
        (2, 7, 6), C, Sum(Identity(), Sequential(R, Conv(1, weight_var=0.0))), R, Conv(1), R, D
    ),
    "folded, then not": of((1, 11, 12), C, R, HALF, R, Conv(5), R, D),
    "1-D": of((2, 40), Conv(5, stride=2), R, C, R, D),
    "a long axis": of((1, 700), C, R, D),
    "many rows": of((1, 300, 9), C, R, D),
    "maps beyond shared memory": of((1, 90, 90), C, R, D),
    "3-D": of((1, 4, 5, 6), C, R, HALF, R, D),
    "wider than a warp": of((1, 9, 40), HALF, R, C, R, D),
    "one location": (zoo.dense_nngp(3, nonlinearity="erf"), (37,)),
    "dense skips": of((5,), D, Sum(Identity(), Sequential(R, Dense(bias_var=0.2))), GELU(), D),
    "wider than the input, folded": of((1, 12, 12), Conv(3, padding=2), R, C, R, D),
    "lanes outside maps": of((1, 5), Conv(2, padding=((0, 3),), padding_mode="reflect"), R, Conv(3, padding=2), R, D),
    "copies of one place": of(
        *((2, 1, 1), Conv((3, 1), padding_mode="replicate"), R, Conv(3, padding_mode="circular", bias_var=0.1), R),
        *(Sum(Conv(1), Conv(1, stride=3, padding=1, bias_var=0.2)), D),
    ),
}
STRIDED = Sum(Conv(1, stride=2), Sequential(HALF, R, C))
POOLED: dict[str, Case] = {
    "LeNet": of((1, 8, 8), C, R, TWO, C, R, TWO, D),
    "a pool of wide maps": of((1, 4, 18), C, R, TWO, C, R, D),
    "global pool": of((2, 5, 7), *[C, R] * 3, GLOBAL, D),
    "two pools": of((3, 8, 8), *[C, R] * 2, TWO, C, R, TWO, C, R, GLOBAL, Dense(bias_var=0.1), R, D),
    "any pool at the end": of((1, 12, 8), *[C, R] * 2, TWO, C, R, AvgPool((3, 2), (2, 1), (1, 0), False), D),
    "strides": of((1, 8, 8), C, BLOCK, R, STRIDED, BLOCK, R, GLOBAL, D),
    "smooth pools": of((1, 8, 6), CB, ERF, TWO, Conv(5, bias_var=0.2), GELU(), GLOBAL, D),
    "pooled angles": of((1, 8, 6), CB, NormalizedExp(), TWO, C, LayerNorm(eps=0.1), SquaredReLU(), GLOBAL, D),
    "sizes that do not halve": of(
        *((1, 9, 8), Conv(3, padding="valid"), R, Conv(3, dilation=2), LeakyReLU(0.2), AvgPool(3, 2, 1), D)
    ),
}
VALID = Conv(3, padding="valid")
# Maps that shrink share the shifts of the largest.
SHRINKING: dict[str, Case] = {
    "convolutional GP": (zoo.conv_gp(3, 2.0), (2, 7, 6)),
    "uneven patches": (zoo.conv_gp((2, 5), 2.0), (1, 6, 9)),
    "same, then smaller twice": of((1, 8, 9), C, R, VALID, R, VALID, ERF, GLOBAL, D),
    "a pool of almost all": of((1, 9, 8), VALID, R, AvgPool(5, 1), D, R, D),
}
AGAIN = C, R, AvgPool(4), ConvTranspose(3, padding="valid"), R
# Pools that no faster kernel takes.
GENERAL: dict[str, Case] = {
    "1-D pool": of((2, 9), C, R, TWO, C, R, GLOBAL, D),
    "3-D pool": of((1, 3, 4, 3), Conv(2, bias_var=0.1), R, AvgPool(2, 1), D),
    "a pool wider than a warp": of((1, 3, 40), HALF, R, AvgPool((1, 2)), D),
    "circular": of((1, 4, 5), Conv(3, padding_mode="circular"), R, GLOBAL, D),
    "pool in a branch": of((1, 5, 4), C, Sum(Sequential(R, C), AvgPool(3, 1, 1)), R, TWO, D),
    "bias alone": of((1, 3, 3), Conv(3, padding=2, bias_var=0.2), R, ConvTranspose(2, stride=2), AvgPool(5), D),
    "one product of the images": of((1, 3, 4), Conv(4, stride=5, padding=9, bias_var=0.6), R, GLOBAL, D),
    "a map again": of((1, 4, 4), *AGAIN, D),
    "a map and a pool again": of((1, 4, 4), *AGAIN, TWO, D),
    # On three places two windows of a stride of two and their padding look like windows that move by one.
    "like one by one, global": of((1, 3, 6), HALF, R, GLOBAL, D),
    "like one by one, 2 x 2": of((2, 3, 5), HALF, R, TWO, D),
    "a padded sum on a smaller map": of((1, 8, 8), VALID, R, C, R, GLOBAL, D),
}
TANH, SOFTPLUS = Elementwise("tanh"), Elementwise("softplus")
SERIES: dict[str, Case] = {
    "series": of((1, 5, 6), C, TANH, Conv(3, stride=2, bias_var=0.1), SOFTPLUS, D),
    "series at one location": of((7,), Dense(2.0), TANH, D, SOFTPLUS, D, Rbf(0.5), D),
    "series under a pool": of((1, 4, 4), C, TANH, TWO, Conv(2), TANH, GLOBAL, D),
}
EVERY = NETWORKS | POOLED | SHRINKING | GENERAL | SERIES
_DENSE = {"no operations", "one location", "dense skips", "copies of one place", "series at one location"}
_WALK = {"1-D", "a long axis", "many rows", "maps beyond shared memory", "3-D", "wider than a warp", *GENERAL, *SERIES}
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
