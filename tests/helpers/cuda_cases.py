"""Networks for the generated CUDA, and its kernels run as C++ on a CPU with the launches of a card."""

from __future__ import annotations

import ctypes
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
    Erf,
    GlobalAvgPool,
    Identity,
    LayerNorm,
    LeakyReLU,
    Network,
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
from cnngp.kernel.engines.cuda.cuda_source import CudaSource
from helpers.cuda_on_cpu import compiled


class OnCpu:
    """The kernels of a program compiled for the CPU, with the launches that cuda/card.py makes on a card."""

    def __init__(self, source: CudaSource, panels: np.ndarray | None = None) -> None:
        self.source = source
        self.dtype = np.dtype({"float": np.float32, "double": np.float64}[source.dtype])
        panels = np.zeros(1) if panels is None else panels
        self._kept = [panels, source.data.ints, source.data.reals]
        self.kinds = 1 + source.data.tangents
        shared = max(source.launches["tables"].shared, source.pairs.shared)
        self.library = compiled(source.body, source.dtype, shared)

    def tables(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows one after the other, peaks, and K(x, x), with Θ(x, x) behind them where that is made too."""
        x = np.ascontiguousarray(X, dtype=self.dtype)
        rows = _aligned(len(x) * self.source.data.layout.row, self.dtype)
        peaks = np.zeros((len(x), self.source.data.sites))
        diagonal = np.full(len(x) * self.kinds, np.nan)
        scratch = np.empty(3 * self.source.launches["tables"].scratch + 8, dtype=np.uint8)
        places = map(_at, (x, rows, peaks, diagonal))
        self.library.run_tables(
            *places, len(x), _at(scratch), *map(_at, self._kept), 3, self.source.launches["tables"].threads
        )
        return rows, peaks, diagonal

    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """K; of a program for both kernels K and Θ, one after the other."""
        return self.pairs(self.tables(X)[0], self.tables(Z)[0], len(X), len(Z))

    def symmetric(self, X: np.ndarray) -> np.ndarray:
        rows, _, diagonal = self.tables(X)
        K = self.pairs(rows, rows, len(X), len(X), mirror=True)
        for k, values in zip(K.reshape(-1, len(X), len(X)), diagonal.reshape(-1, len(X)), strict=True):
            np.fill_diagonal(k, values)
        return K

    def pairs(self, first: np.ndarray, second: np.ndarray, n: int, m: int, mirror: bool = False) -> np.ndarray:
        s = self.source
        both = np.full((self.kinds, n, m), np.nan, dtype=self.dtype)
        out, theta = both[0], both[-1]
        blocks = 3 if s.path == "walk" or s.pairs.scratch else s.pairs.blocks(n, m)
        scratch = np.empty(3 * s.pairs.scratch + 8, dtype=np.uint8)
        below = ctypes.c_longlong(0 if mirror else -(2**40))
        places = [_at(out), _at(out) if mirror else None]
        more = [] if self.kinds == 1 else [_at(theta), _at(theta) if mirror else None]
        more += [_at(scratch)] * (s.path in ("sheets", "walk"))
        more += [_at(a) for a in self._kept[1:]] * (s.path == "walk")
        self.library.run_pairs(
            _at(first), _at(second), *places, n, m, ctypes.c_longlong(m), below, *more, blocks, s.pairs.threads
        )
        return both if self.kinds == 2 else out


def _at(a: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(a.ctypes.data)


def _aligned(size: int, dtype: np.dtype[Any]) -> np.ndarray:
    raw = np.full(size + 16, np.nan, dtype=dtype)
    skip = (-raw.ctypes.data % 16) // dtype.itemsize
    return raw[skip : skip + size]


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


BLOCK = Sum(Identity(), Sequential(ReLU(), Conv(3), ReLU(), Conv(3)))
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "no operations": (Sequential(Dense()), (1,)),
    "resnet": (zoo.resnet(14), (2, 12, 12)),
    "residual": (zoo.residual_cnn(), (1, 7, 9)),
    "convnet": (zoo.convnet(), (1, 28, 28)),
    "wide convolutions": (Sequential(Conv(7), ReLU(), Conv(5, padding="valid"), ReLU(), Dense()), (1, 32, 32)),
    "uneven strides": (
        Sequential(Conv(3, stride=(2, 3)), LeakyReLU(0.1), Conv(2, bias_var=0.3), Abs(), Dense()),
        (3, 11, 13),
    ),
    "padding modes": (
        Sequential(
            Conv(3, padding_mode="circular"),
            ReLU(),
            Conv((3, 5), padding_mode="reflect"),
            ReLU(2.0),
            Conv(3, dilation=2, padding_mode="replicate", stride=2),
            ReLU(),
            Dense(),
        ),
        (1, 10, 9),
    ),
    "transposed": (
        Sequential(
            Conv(3, stride=2), ReLU(), ConvTranspose(3, stride=2), ReLU(), ConvTranspose(4, padding=1), Erf(), Dense()
        ),
        (1, 9, 8),
    ),
    "smooth": (
        Sequential(
            Conv(3, weight_var=2.0), Erf(), Conv(3), GELU(), Conv(3), Sin(), Conv(3), Cos(), Conv(3), Rbf(0.7), Dense()
        ),
        (1, 6, 6),
    ),
    "angles": (
        Sequential(
            Conv(3),
            NormalizedExp(),
            Conv(3, bias_var=0.1),
            LayerNorm(),
            ReLU(),
            Conv(3),
            SquaredReLU(),
            Conv(3),
            NormalizedExp(2.5),
            Dense(),
        ),
        (1, 6, 6),
    ),
    "signs": (Sequential(Conv(3), Sign(), Conv(3, bias_var=0.1), LayerNorm(eps=0.1), Sign(), Dense()), (1, 6, 5)),
    "step": (Sequential(Conv(3), Step(), Conv(3, bias_var=0.1), Step(), Dense()), (1, 6, 5)),
    "skips in skips": (
        Sequential(
            Conv(3), Sum(Sequential(ReLU(), Conv(3)), Sequential(Conv(1, weight_var=0.5), BLOCK)), ReLU(), Dense()
        ),
        (1, 8, 8),
    ),
    "loop": (
        Sequential(Conv(3), *[BLOCK] * 5, ReLU(), Conv(3, bias_var=0.5), GELU(), Conv(3), GELU(), Conv(3), Dense()),
        (1, 5, 5),
    ),
    "folded, then not": (Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Conv(5), ReLU(), Dense()), (1, 11, 12)),
    "1-D": (Sequential(Conv(5, stride=2), ReLU(), Conv(3), ReLU(), Dense()), (2, 40)),
    "a long axis": (Sequential(Conv(3), ReLU(), Dense()), (1, 700)),
    "many rows": (Sequential(Conv(3), ReLU(), Dense()), (1, 300, 9)),
    "3-D": (Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Dense()), (1, 4, 5, 6)),
    "wider than a warp": (Sequential(Conv(3, stride=2), ReLU(), Conv(3), ReLU(), Dense()), (1, 9, 40)),
    "one location": (zoo.dense_nngp(3, nonlinearity="erf"), (37,)),
    "dense skips": (
        Sequential(Dense(), Sum(Identity(), Sequential(ReLU(), Dense(bias_var=0.2))), GELU(), Dense()),
        (5,),
    ),
    "linear": (Dense(2.0, 0.5), (2, 3, 3)),
    "wider than the input": (
        Sequential(Conv(3, padding=2), ReLU(), Conv(5, padding=3), ReLU(), Conv(2, padding=1), ReLU(), Dense()),
        (1, 7, 9),
    ),
    "wider than the input, folded": (Sequential(Conv(3, padding=2), ReLU(), Conv(3), ReLU(), Dense()), (1, 12, 12)),
    "wider than the input, side by side": (
        Sequential(Conv(7, padding=((3, 7), (3, 7))), ReLU(), Conv(3), ReLU(), Dense()),
        (1, 4, 4),
    ),
    "wider and circular": (Sequential(Conv(1, padding=((0, 1),), padding_mode="circular"), Abs(), Dense()), (2, 9)),
    "lanes outside maps": (
        Sequential(Conv(2, padding=((0, 3),), padding_mode="reflect"), ReLU(), Conv(3, padding=2), ReLU(), Dense()),
        (1, 5),
    ),
    "copies of one place": (
        Sequential(
            Conv((3, 1), padding_mode="replicate"),
            ReLU(),
            Conv(3, padding_mode="circular", bias_var=0.1),
            ReLU(),
            Sum(Conv(1), Conv(1, stride=3, padding=1, bias_var=0.2)),
            Dense(),
        ),
        (2, 1, 1),
    ),
    "copies of one plane": (
        Sequential(Conv(3, padding_mode="circular"), ReLU(), Conv(3, padding_mode="replicate"), ReLU(), Dense()),
        (1, 1, 5, 6),
    ),
}
PATHS = {
    "no operations": "dense",
    "1-D": "walk",
    "a long axis": "walk",
    "many rows": "walk",
    "3-D": "walk",
    "wider than a warp": "walk",
    "one location": "dense",
    "dense skips": "dense",
    "copies of one place": "dense",
}
POOLED: dict[str, tuple[Network, tuple[int, ...]]] = {
    "LeNet": (Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3), ReLU(), AvgPool(2), Dense()), (1, 8, 8)),
    "global pool": (Sequential(*[Conv(3), ReLU()] * 3, GlobalAvgPool(), Dense()), (2, 5, 7)),
    "two pools": (
        Sequential(
            *[Conv(3), ReLU()] * 2,
            AvgPool(2),
            Conv(3),
            ReLU(),
            AvgPool(2),
            Conv(3),
            ReLU(),
            GlobalAvgPool(),
            Dense(bias_var=0.1),
            ReLU(),
            Dense(),
        ),
        (3, 8, 8),
    ),
    "any pool at the end": (
        Sequential(
            *[Conv(3), ReLU()] * 2, AvgPool(2), Conv(3), ReLU(), AvgPool((3, 2), (2, 1), (1, 0), False), Dense()
        ),
        (1, 12, 8),
    ),
    "strides": (
        Sequential(
            Conv(3),
            BLOCK,
            ReLU(),
            Sum(Conv(1, stride=2), Sequential(Conv(3, stride=2), ReLU(), Conv(3))),
            BLOCK,
            ReLU(),
            GlobalAvgPool(),
            Dense(),
        ),
        (1, 8, 8),
    ),
    "smooth": (
        Sequential(Conv(3, bias_var=0.1), Erf(), AvgPool(2), Conv(5, bias_var=0.2), GELU(), GlobalAvgPool(), Dense()),
        (1, 8, 6),
    ),
    "angles": (
        Sequential(
            Conv(3, bias_var=0.1),
            NormalizedExp(),
            AvgPool(2),
            Conv(3),
            LayerNorm(eps=0.1),
            SquaredReLU(),
            GlobalAvgPool(),
            Dense(),
        ),
        (1, 8, 6),
    ),
    "sizes that do not halve": (
        Sequential(Conv(3, padding="valid"), ReLU(), Conv(3, dilation=2), LeakyReLU(0.2), AvgPool(3, 2, 1), Dense()),
        (1, 9, 8),
    ),
}
# Windows that see one pixel of one channel: two images are equal there up to a factor.
ONE_PIXEL = {"uneven strides", "wider than the input", "wider than the input, side by side", "lanes outside maps"}


def tangent_bound(net: Network, bound: float, dtype: str, equal: bool) -> float:
    """What Θ may be off where `compare` found this bound, by one unit in the last place of K after every layer.

    An engine rounds K, two entries of tables and their product: four of them. Where locations of two images are `equal`
    up to a factor, correlation is ±1, and the slope of each ReLU may lose √(2δ)/π with δ a few units in the last place.
    """
    at_one = math.sqrt(2.0 * 4.0 * float(np.finfo(dtype).eps)) / math.pi
    return max(4.0 * bound, repr(net).count("(") * at_one if equal else 0.0)


# At correlation 1 a Step has the slope of a square root: half an ulp of K, 6e-8 in float32, moves V by its root.
TOLERANCE = {"step": 2e-4, "signs": 2e-4}
