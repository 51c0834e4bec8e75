"""The recipes that a choice starts from, as a table: a row is a network in several sizes, a preparation and a symmetry.

The sizes of a row, the cheap ones first, are relatives: a row is compared with others by the small ones, and fitted
with a large one. Names have gaps: {h} is how often images of this size are halved, {g} once more than that; {b} a
variance for biases as large as the pixels, with which functions need not double where the light does; "-even" makes an
image and its negative alike; "-global" does not care where in an image things are. What does not fit the images is left
out. The first row is what is usual, as `network.names.default_names` says it: kept unless another is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.datasets.preparation import as_preparation
from cnngp.kernel.symmetry import Symmetry, check_symmetry, maps_of
from cnngp.network import zoo
from cnngp.network.layers import NetworkError
from cnngp.network.names import network_by_name

from .kernels import elements_of
from .recipe import Term


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
        return ", ".join(word for word in [self.name, self.term.said, self.term.symmetry or ""] if word)


Sizes = tuple[Candidate, ...]
"""A row of the table as it fits the images at hand, the cheapest first."""


def candidates(X: NDArray[Any], table: Sequence[Row] | None = None, preparation: Any = None) -> list[Sizes]:
    """The rows of the table that fit images such as X, a few of the training images; all with one `preparation` where
    that is given.

    >>> [str(c) for c in candidates(np.ones((2, 1, 28, 28)))[1]]
    ['pooled_cnn-small-exp, contrast', 'pooled_cnn-exp, contrast', 'pooled_cnn-large-exp, contrast']
    """
    shape = tuple(X.shape[1:])
    if table is None:
        photographs = len(shape) == 3 and shape[0] >= 3 and min(shape[1:]) >= 16
        table = (*(PHOTOGRAPHS if photographs else ()), *IMAGES) if len(shape) > 1 else FEATURES
    rows = table if preparation is None else [row._replace(preparation=preparation) for row in table]
    found: dict[str, Sizes] = {}
    for row in rows:
        sizes = {c.elements: c for name in row.networks if (c := _candidate(name, row, X)) is not None}
        if sizes:
            ordered = tuple(sizes[elements] for elements in sorted(sizes))
            found.setdefault(str(ordered[0]), ordered)
    return list(found.values())


def _candidate(pattern: str, row: Row, X: NDArray[Any]) -> Candidate | None:
    """A network of a row for images such as X, if it fits them."""
    shape = tuple(X.shape[1:])
    gaps = _gaps(pattern, row.preparation, X)
    if gaps is None:
        return None
    name = pattern.format(**gaps)
    network = network_by_name(name)
    assert network is not None
    term = Term(network, row.preparation, row.symmetry)
    try:
        check_symmetry(row.symmetry, shape)
        elements = elements_of(term, shape)
        if row.symmetry is not None and not _halves_evenly(shape[1:]):
            elements *= len(maps_of(row.symmetry))  # a network that does not commute with it takes the double sum
        return Candidate(name, term, elements)
    except (NetworkError, ValueError):  # images too small for it, or not square
        return None


def _gaps(pattern: str, preparation: Any, X: NDArray[Any]) -> dict[str, str] | None:
    """What stands in the gaps of a name for images X; None where the network is not for them."""
    places, gaps = X.shape[2:], {}
    if places:
        halvings = zoo.halvings_for(min(places))
        gaps = {"h": _halved(halvings), "g": _halved(halvings + 1)}
        gaps["plain"] = "resnet32" if len(places) == 2 and min(places) >= 16 else "small_cnn"
        if pattern.startswith("pooled_cnn") and not _fits(pattern, min(places), halvings):
            return None
    if "{b}" in pattern:
        bias = bias_for(as_preparation(preparation).fit_transform(X) if preparation != "plain" else X)
        if bias is None:
            return None
        gaps["b"] = f"{bias:g}"
    return gaps


def _halves_evenly(places: Sequence[int]) -> bool:
    """Whether no place is left over when images are halved."""
    return all(side % 2 ** zoo.halvings_for(min(places)) == 0 for side in places)


def _halved(times: int) -> str:
    return "" if times == 1 else f"-halved{times}"


def _fits(pattern: str, side: int, halvings: int) -> bool:
    """Whether images of a side that is halved so often are as large as the pool at the end."""
    if "-global" in pattern:
        return side >> halvings >= zoo.pool_of("small", halvings)
    times = halvings + ("{g}" in pattern)
    size = next((s for s in zoo.POOLED_SIZES if pattern.startswith(f"pooled_cnn-{s}")), "medium")
    return side >> times >= (7 if "-pool7" in pattern else zoo.pool_of(size, times))


def bias_for(X: NDArray[Any]) -> float | None:
    """A variance for biases that are as large as the pixels: the power of ten that is nearest to their mean square.

    None where that is no number to reckon with, as of blank images. A factor of three either way hardly matters, and a
    power of ten keeps names short.

    >>> bias_for(np.full((2, 1, 3, 3), 0.5)), bias_for(np.full((2, 1, 3, 3), 128.0)), bias_for(np.zeros((2, 1, 3, 3)))
    (0.1, 10000.0, None)
    """
    square = float(np.square(X, dtype=np.float64).mean())
    return float(f"1e{round(math.log10(square))}") if 1.0 / _LARGEST < square < _LARGEST else None


def preparations_of(term: Term, X: NDArray[Any]) -> list[Sizes]:
    """The candidates of a network that is given: prepared in each of the ways that suit such images."""
    ways = ("plain", "contrast", "detail", "edges", "spectral") if X.ndim > 2 else ("plain", "standardised")
    terms = [replace(term, preparation=way) for way in ways]
    return [(Candidate(t.name, t, elements_of(t, X.shape[1:])),) for t in terms]
