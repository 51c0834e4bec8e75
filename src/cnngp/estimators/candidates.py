"""Candidate recipes for the automatic choice, and the leave-one-out loss of each image under one of them.

The candidates are a table: a row is a network in several sizes, a preparation and a symmetry. Rows are compared by
their small networks, and the best one is fitted with a large one. Network names have placeholders: {h} is the number of
halvings for images of this size, {g} one more; {b} is a bias variance on the scale of the pixels, with which functions
need not double when the brightness does; "-even" makes an image and its negative equal; "-global" ignores where in an
image things are. Networks that do not fit the images are left out. The first row is the default, that of
`network.names.default_names`, and is kept unless another is clearly better.
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
"""Groups that are left out together, as numbers; None if each image is left out alone."""

WORTH = 0.01
"""Nats per image that a recipe must gain over another to be better, …"""
STANDARD_ERRORS = 2.0
"""… and number of standard errors of that gain."""
# Images in the eigendecomposition that selects the noise of a comparison; with more, a smaller noise is also tried.
_DECOMPOSED = 800


class Row(NamedTuple):
    """Networks by name, the cheapest first, with one preparation and one symmetry."""

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
"""Candidates for all images; {plain} is the paper's ResNet for images of at least 16 × 16."""
PHOTOGRAPHS: tuple[Row, ...] = (Row(WIDE, "spectral", "flip"), Row(WIDE, "spectral"), Row(EVEN, "spectral", "flip"))
"""Candidates for colour images of at least 16 × 16, before those for all images."""
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
"""Candidates for rows of features without locations; standardising is for features in different units."""

# If the mean square of the pixels is above this or below its inverse, there are no candidates with biases.
_LARGEST = 1e12


@dataclass(frozen=True)
class Candidate:
    """A term to try, the name of its network, and the number of covariances per pair of images."""

    name: str
    term: Term
    elements: int

    def __str__(self) -> str:
        return self.term.called(self.name)


Sizes = tuple[Candidate, ...]
"""Candidates of a row that fit the images, the cheapest first."""


def candidates(X: Array, table: Sequence[Row] | None = None, preparation: Any = None) -> list[Sizes]:
    """Return the rows of the table that fit X, a few of the training images; with `preparation`, all rows use that.

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
    """Return a row's network for images such as X, or None if it does not fit them."""
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
    """Bias variance on the scale of the pixels: the power of ten nearest to their mean square.

    None if that is too large or too small, as for blank images. A factor of three either way hardly matters, and a
    power of ten keeps names short.

    >>> bias_for(np.full((2, 1, 3, 3), 0.5)), bias_for(np.full((2, 1, 3, 3), 128.0)), bias_for(np.zeros((2, 1, 3, 3)))
    (0.1, 10000.0, None)
    """
    square = float(np.square(X, dtype=np.float64).mean())
    return float(f"1e{round(math.log10(square))}") if 1.0 / _LARGEST < square < _LARGEST else None


def preparations_of(term: Term, X: Array) -> list[Sizes]:
    """Return the candidates for a given network: one for each preparation that suits such images."""
    ways = ("plain", "contrast", "detail", "edges", "spectral") if X.ndim > 2 else ("plain", "standardised")
    terms = [replace(term, preparation=way) for way in ways]
    return [(Candidate(t.name, t, elements_of(t, X.shape[1:])),) for t in terms]


# ---- comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """Result for a recipe that was tried: its leave-one-out loss in nats per image, and the number of images."""

    name: str
    loss: float
    images: int

    def __str__(self) -> str:
        return f"{self.name} {self.loss:.3f}"


@dataclass(eq=False)
class Tried:
    """State of one row in the comparison: its sizes, the current one, its matrix so far, and its losses."""

    sizes: Sizes
    kernel_of: Callable[[Recipe, Images], RecipeKernel]
    dtype: np.dtype[Any]
    at: int = 0
    images: int = 0
    """Number of images in its last comparison."""
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
        """Number of covariances to compute for the matrix of so many images with that size."""
        kept = self.images if size == self.at and not self._learns else 0
        return self.sizes[size].elements * (images**2 - kept**2) / 2

    def judge(self, X: Array, targets: Targets, groups: Codes, size: int) -> None:
        """Compute the losses of all of X, extending the matrix of its first images if there is one."""
        if size != self.at:
            self.at, self.K = size, None
        begun = time.perf_counter()
        self._grow(X)
        self.computing, self.images = time.perf_counter() - begun, len(X)
        self.losses = np.full(len(X), math.inf) if self.K is None else left_out(self.K, targets, groups)

    def _grow(self, X: Array) -> None:
        """Compute or extend the matrix of X; set it to None if that is not possible."""
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
    """True if the mean gain of images is above `WORTH` and larger than chance explains.

    The images of a group may gain by the same chance, so its standard error is also computed over groups. With few
    groups that may be small by chance, so the larger of it and that over single images counts.
    """
    apart = gain - gain.mean()
    chances = [apart]
    if (names := names_of(groups)) is not None:
        chances.append(np.bincount(np.unique(names, return_inverse=True)[1], apart))
    error = math.sqrt(max(float((chance**2).sum()) for chance in chances)) / len(gain)
    return bool(gain.mean() > max(WORTH, STANDARD_ERRORS * error))


def left_out(K: Array, targets: Targets, groups: Codes = None) -> Floats:
    """Leave-one-out loss of each image, times its weight, at the best noise."""
    Y, weight = targets.Y, targets.weight
    if not float(K.diagonal().mean()) > 0.0:
        return np.full(len(Y), math.inf)
    A, step, losses = K.astype(np.float64), -(-len(Y) // _DECOMPOSED), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this recipe may not be chosen; the fit warns about the one that is
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
    """Kernel matrix in host memory; zero for blank images, whose kernel would come from biases alone."""
    if not X.any():
        return np.zeros((len(X), len(X if Z is None else Z)), kernel.dtype)
    return np.asarray(to_numpy(kernel(X, Z, progress=False)))
