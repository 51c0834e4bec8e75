"""The recipes that a choice starts from, and the leave-one-out loss of every image under one of them.

They are a table: a row is a network in several sizes, a preparation and a symmetry. The sizes of a row, the cheap ones
first, are relatives: a row is compared with others by the small ones, and fitted with a large one. Names have gaps: {h}
is how often images of this size are halved, {g} once more than that; {b} a variance for biases as large as the pixels,
with which functions need not double where the light does; "-even" makes an image and its negative alike; "-global" does
not care where in an image things are. What does not fit the images is left out. The first row is what is usual, as
`network.names.default_names` says it: kept unless another is clearly better.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.datasets.preparation import as_preparation
from cnngp.gp.exact import ExactGP
from cnngp.gp.leave_one_out import names_of
from cnngp.gp.objectives import chosen_noise
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.symmetry import Symmetry, check_symmetry, maps_of
from cnngp.network import zoo
from cnngp.network.layers import NetworkError
from cnngp.network.names import network_by_name

from .kernels import RecipeKernel, elements_of
from .labels import Targets
from .recipe import Recipe, Term
from .training_images import Images

Array = NDArray[Any]
Floats = NDArray[np.float64]
Codes = NDArray[np.intp] | None
"""What is left out together with each image, as numbers; None where that is nothing."""

WORTH = 0.01
"""Nats an image that a recipe has to gain over another to be better than it, …"""
STANDARD_ERRORS = 2.0
"""… and standard errors of that."""
# Images from whose eigenvalues the noise of a comparison is found; with more it is looked for beside that.
_DECOMPOSED = 800


class Row(NamedTuple):
    """Networks by name, the cheap ones first, all prepared in one way."""

    networks: Sequence[str]
    preparation: Any = "plain"
    symmetry: Symmetry | None = None


EXP = ("pooled_cnn-small{h}-exp", "pooled_cnn{h}-exp", "pooled_cnn-large{h}-exp")
WIDE = (
    "pooled_cnn-small{h}-exp",
    "pooled_cnn{h}-pool7-exp",
    "pooled_cnn-large{h}-exp",
    "pooled_cnn-large{h}-pool7-exp",
)
TURNED = (
    "pooled_cnn-small{h}-exp",
    "pooled_cnn-small{g}-pool7-exp",
    "pooled_cnn-small{h}-pool7-exp",
    "pooled_cnn-large{g}-pool7-exp",
)
EVEN = ("pooled_cnn-small{h}-even-exp", "pooled_cnn{h}-even-exp", "pooled_cnn-large{h}-even-exp")
GLOBAL = ("pooled_cnn-small{g}-global-exp", "pooled_cnn-small{h}-global-exp")

IMAGES: tuple[Row, ...] = (
    Row(EXP),
    Row(EXP, "contrast"),
    Row(EXP, "contrast", "flip"),
    Row(WIDE, "spectral", "flip"),
    Row(TURNED, "spectral", "d4"),
    Row(EVEN, "contrast"),
    Row(EVEN, "detail"),
    Row(GLOBAL, "contrast"),
    Row(("pooled_cnn-small{g}-global-bias{b}", "pooled_cnn-small{h}-global-bias{b}")),
    Row(("small_cnn", "{plain}")),
    Row(("dense_nngp",), "standardised"),
    Row(("dense_even",)),
)
"""For all images; {plain} is the paper's ResNet for pictures of 16 × 16 and more."""
PHOTOGRAPHS: tuple[Row, ...] = (Row(WIDE, "spectral", "flip"), Row(WIDE, "spectral"), Row(EVEN, "spectral", "flip"))
"""For colour images of 16 × 16 and more, before those for all images."""
FEATURES: tuple[Row, ...] = (
    Row(("dense_nngp",), "standardised"),
    Row(("dense_nngp",)),
    Row(("dense_nngp-bias1",), "standardised"),
    Row(("dense_nngp-bias{b}",)),
    Row(("rbf-gamma0.3",), "standardised"),
    Row(("rbf-gamma1",), "standardised"),
    Row(("rbf-gamma0.1",), "standardised"),
    Row(("linear",), "standardised"),
    Row(("linear",)),
)
"""For rows of numbers without places; features in units of their own are standardised."""

# Mean squares of pixels beyond this, or below its inverse, get no biases.
_LARGEST = 1e12


@dataclass(frozen=True)
class Candidate:
    """A term to try, the name of its network, and the covariances that a pair of images takes."""

    name: str
    term: Term
    elements: int

    def __str__(self) -> str:
        return self.term.called(self.name)


Sizes = tuple[Candidate, ...]
"""A row of the table as it fits the images at hand, the cheapest first."""


def candidates(X: Array, table: Sequence[Row] | None = None, preparation: Any = None) -> list[Sizes]:
    """The rows of the table that fit images such as X, a few of the training images; all with one `preparation` where
    that is given.

    >>> [str(c) for c in candidates(np.ones((2, 1, 28, 28)))[1]]
    ['pooled_cnn-small-exp, contrast', 'pooled_cnn-exp, contrast', 'pooled_cnn-large-exp, contrast']
    """
    shape = tuple(X.shape[1:])
    if table is None:
        photographs = len(shape) == 3 and shape[0] >= 3 and min(shape[1:]) >= 16
        table = (*(PHOTOGRAPHS if photographs else ()), *IMAGES) if len(shape) > 1 else FEATURES
    found: dict[str, Sizes] = {}
    for row in table:
        row = row if preparation is None else row._replace(preparation=preparation)
        sizes = {c.elements: c for name in row.networks if (c := _candidate(name, row, X)) is not None}
        if sizes:
            ordered = tuple(sizes[elements] for elements in sorted(sizes))
            found.setdefault(str(ordered[0]), ordered)
    return list(found.values())


def _candidate(pattern: str, row: Row, X: Array) -> Candidate | None:
    """A network of a row for images such as X, if it fits them."""
    shape, gaps = tuple(X.shape[1:]), {}
    places, evenly = shape[1:], True
    if places:
        side = min(places)
        halvings = zoo.halvings_for(side)
        evenly = all(place % 2**halvings == 0 for place in places)
        for gap, times in (("h", halvings), ("g", halvings + 1)):
            gaps[gap] = "" if times == 1 else f"-halved{times}"
        gaps["plain"] = "resnet32" if len(places) == 2 and side >= 16 else "small_cnn"
        if pattern.startswith("pooled_cnn"):  # the pool at the end must fit the halved images
            times = halvings + ("{g}" in pattern and "-global" not in pattern)
            size = next((s for s in zoo.POOLED_SIZES if pattern.startswith(f"pooled_cnn-{s}")), "medium")
            if side >> times < (7 if "-pool7" in pattern else zoo.pool_of(size, times)):
                return None
    if "{b}" in pattern:
        prepared = X if row.preparation == "plain" else as_preparation(row.preparation).fit_transform(X)
        if (bias := bias_for(prepared)) is None:
            return None
        gaps["b"] = f"{bias:g}"
    name = pattern.format(**gaps)
    network = network_by_name(name)
    assert network is not None
    term = Term(network, row.preparation, row.symmetry)
    try:
        check_symmetry(row.symmetry, shape)
        elements = elements_of(term, shape)
    except (NetworkError, ValueError):  # images too small for it, or not square
        return None
    if row.symmetry is not None and not evenly:
        elements *= len(maps_of(row.symmetry))  # a network that does not commute with it takes the double sum
    return Candidate(name, term, elements)


def bias_for(X: Array) -> float | None:
    """A variance for biases that are as large as the pixels: the power of ten that is nearest to their mean square.

    None where that is no number to reckon with, as of blank images. A factor of three either way hardly matters, and a
    power of ten keeps names short.

    >>> bias_for(np.full((2, 1, 3, 3), 0.5)), bias_for(np.full((2, 1, 3, 3), 128.0)), bias_for(np.zeros((2, 1, 3, 3)))
    (0.1, 10000.0, None)
    """
    square = float(np.square(X, dtype=np.float64).mean())
    return float(f"1e{round(math.log10(square))}") if 1.0 / _LARGEST < square < _LARGEST else None


def preparations_of(term: Term, X: Array) -> list[Sizes]:
    """The candidates of a network that is given: prepared in each of the ways that suit such images."""
    ways = ("plain", "contrast", "detail", "edges", "spectral") if X.ndim > 2 else ("plain", "standardised")
    terms = [replace(term, preparation=way) for way in ways]
    return [(Candidate(t.name, t, elements_of(t, X.shape[1:])),) for t in terms]


# ---- compared --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A recipe that was tried: its leave-one-out loss in nats an image, on so many images."""

    name: str
    loss: float
    images: int

    def __str__(self) -> str:
        return f"{self.name} {self.loss:.3f}"


@dataclass(eq=False)
class Tried:
    """A row of the table: its sizes, which of them is compared, its matrix so far, and the losses by it."""

    sizes: Sizes
    kernel_of: Callable[[Recipe, Images], RecipeKernel]
    dtype: np.dtype[Any]
    at: int = 0
    images: int = 0
    """How many images it was compared on at last."""
    K: Array | None = None
    losses: Floats = field(default_factory=lambda: np.empty(0))
    computing: float = 0.0
    """Seconds that the last part of the matrix took."""

    @property
    def candidate(self) -> Candidate:
        return self.sizes[self.at]

    @property
    def loss(self) -> float:
        return float(self.losses.mean()) if len(self.losses) else math.inf

    @property
    def _learns(self) -> bool:
        return as_preparation(self.candidate.term.preparation).learns

    def said(self) -> Compared:
        return Compared(str(self.candidate), self.loss, self.images)

    def cost(self, images: int, size: int) -> float:
        """Covariances of the matrix of so many images with that size, less those that are there already."""
        kept = self.images if size == self.at and not self._learns else 0
        return self.sizes[size].elements * (images**2 - kept**2) / 2

    def judge(self, X: Array, targets: Targets, groups: Codes, size: int) -> None:
        """Losses of all of X, with the matrix grown from that of its first ones where that is there."""
        if size != self.at:
            self.at, self.K = size, None
        begun = time.perf_counter()
        self._grow(X)
        self.computing, self.images = time.perf_counter() - begun, len(X)
        self.losses = np.full(len(X), math.inf) if self.K is None else left_out(self.K, targets, groups)

    def _grow(self, X: Array) -> None:
        """The matrix of X; None where it cannot be computed."""
        kernel = self.kernel_of(Recipe((self.candidate.term,)), Images(X, self.dtype))
        try:
            if self.K is None or self._learns:
                self.K = _matrix(kernel, X)
            else:
                old, new = X[: len(self.K)], X[len(self.K) :]
                cross = _matrix(kernel, new, old)
                self.K = np.block([[self.K, cross.T], [cross, _matrix(kernel, new)]])
        except (RangeError, NetworkError):
            self.K = None


def clear(gain: Floats, groups: Codes = None) -> bool:
    """Whether images gain so much on average, beyond what may be chance.

    All of a group may gain by one chance; of few groups it can be small by chance too, so that of single images counts
    where it is larger.
    """
    apart = gain - gain.mean()
    chances = [apart]
    if (names := names_of(groups)) is not None:
        chances.append(np.bincount(np.unique(names, return_inverse=True)[1], apart))
    error = math.sqrt(max(float((chance**2).sum()) for chance in chances)) / len(gain)
    return bool(gain.mean() > max(WORTH, STANDARD_ERRORS * error))


def left_out(K: Array, targets: Targets, groups: Codes = None) -> Floats:
    """The loss of every image by leave-one-out, times its weight, at the noise that suits best."""
    Y, weight = targets.Y, targets.weight
    if not float(K.diagonal().mean()) > 0.0:
        return np.full(len(Y), math.inf)
    A, step, losses = K.astype(np.float64), -(-len(Y) // _DECOMPOSED), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a choice that may not be taken; the fit warns of the one that is
        together, some = None if groups is None else groups[::step], None if weight is None else weight[::step]
        rounding = float(np.finfo(K.dtype).eps)
        noise = chosen_noise(A[::step, ::step], Y[::step], "loo", "loo", rounding, groups=together, weights=some)
        for factor in (1.0,) if step == 1 else (1.0, 0.3):  # more images need less
            gp = ExactGP(A, Y, noise=noise * factor, amplitude="loo", groups=groups, weights=weight)
            mean, variance = (to_numpy(a) for a in gp.leave_one_out().moments)
            each = targets.each(mean, variance, Y)
            losses.append(each if weight is None else weight / weight.mean() * each)
    return min(losses, key=lambda each: float(each.mean()))


def summed(matrices: Sequence[Array], weights: Sequence[int]) -> Array:
    scaled = (w / float(K.diagonal().mean()) * K.astype(np.float64) for w, K in zip(weights, matrices, strict=True))
    return np.asarray(sum(scaled), np.float32)


def _matrix(kernel: Any, X: Array, Z: Array | None = None) -> Array:
    """In host memory; zero for blank images, of which biases alone would make a kernel."""
    if not X.any():
        return np.zeros((len(X), len(X if Z is None else Z)), kernel.dtype)
    return np.asarray(to_numpy(kernel(X, Z, progress=False)))
