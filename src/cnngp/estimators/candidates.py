"""The recipes that a choice starts from, as a table: networks, how images are prepared for them, and what they cost.

A row is a name of a network with gaps, and the preparations that it is tried with. {h} is how often images of this size
are halved; {b} a variance for biases as large as the pixels, with which functions need not double where the light
does; "-even" makes an image and its negative alike; "-global" does not care where in an image things are. Rows that do
not fit the images are left out. The first affordable row is what is usual: kept unless another one is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.datasets.preparation import as_preparation
from cnngp.kernel.symmetry import Symmetry, check_symmetry
from cnngp.network import zoo
from cnngp.network.layers import Network, NetworkError
from cnngp.network.names import network_by_name

from .kernels import elements_of
from .recipe import Term

ALL = ("plain", "contrast", "detail", "edges")

Row = tuple[str, Sequence[Any], Sequence[Symmetry | None]]

USUAL: tuple[Row, ...] = (
    ("pooled_cnn-large{h}", ("plain",), (None,)),
    ("pooled_cnn{h}", ("plain",), (None,)),
)
"""For images, the most accurate first of what is usual."""
PHOTOGRAPHS: tuple[Row, ...] = (
    ("myrtle4", ("zca", ("contrast", "patches")), (None,)),
    ("pooled_cnn-large{h}", ("zca",), (None,)),
    ("myrtle7", ("zca",), ("flip", None)),
    ("myrtle7-exp", ("zca",), ("flip", None)),
    ("myrtle10", ("zca",), ("flip", None)),
    ("myrtle10-exp", ("zca",), ("flip", None)),
    ("myrtle4", ("zca", ("contrast", "patches")), ("flip",)),
    ("myrtle4-exp", ("zca",), (None,)),
)
"""For colour images of 16 × 16 and more, before those for all images."""
IMAGES: tuple[Row, ...] = (
    ("pooled_cnn-small{h}", ALL, (None,)),
    ("pooled_cnn-small{h}-even", ALL, (None,)),
    ("pooled_cnn-small{h}-bias{b}", ("plain", "contrast"), (None,)),
    ("pooled_cnn-small{h}-even-bias{b}", ("plain",), (None,)),
    ("pooled_cnn-small{h}-global", ("plain", "contrast", "detail"), (None,)),
    ("pooled_cnn-small{h}-global-even", ("plain", "contrast", "detail"), (None,)),
    ("pooled_cnn-small{h}-global-bias{b}", ("plain", "contrast"), (None,)),
    ("{plain}", ("plain",), (None,)),
    ("small_cnn", ("plain", "contrast"), (None,)),
    ("small_cnn-bias{b}", ("plain",), (None,)),
    ("dense_nngp", ("plain", "contrast"), (None,)),
    ("dense_nngp-bias{b}", ("plain",), (None,)),
    ("dense_even", ("plain",), (None,)),
    ("pooled_cnn{h}", ("contrast",), (None,)),
    ("pooled_cnn-large{h}", ("contrast", "detail", "edges"), (None,)),
    ("pooled_cnn-large{h}-even", ALL, (None,)),
    ("pooled_cnn-large{h}-bias{b}", ("plain", "contrast"), (None,)),
    ("pooled_cnn-large{h}-even-bias{b}", ("plain",), (None,)),
)
"""For all images: relatives of the usual networks, the cheap ones first, which are tried where there is room for few;
{plain} is the paper's ResNet for pictures of 16 × 16 and more.
"""
FEATURES: tuple[Row, ...] = (
    ("dense_nngp", ("standardised", "plain"), (None,)),
    ("dense_nngp-bias1", ("standardised",), (None,)),
    ("dense_nngp-bias{b}", ("plain",), (None,)),
    ("rbf-gamma0.3", ("standardised",), (None,)),
    ("rbf-gamma1", ("standardised",), (None,)),
    ("rbf-gamma0.1", ("standardised",), (None,)),
    ("linear", ("standardised", "plain"), (None,)),
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

    def images_for(self, input_shape: Sequence[int]) -> int:
        """How many training images its preparation has to learn from."""
        return as_preparation(self.term.preparation).images_for(input_shape)

    def __str__(self) -> str:
        return ", ".join(word for word in [self.name, self.term.said, self.term.symmetry or ""] if word)


def candidates(X: NDArray[Any], table: Sequence[Row] | None = None, preparation: Any = None) -> list[Candidate]:
    """All rows of the table that fit images such as X, a few of the training images; all with one `preparation` where
    that is given.

    >>> [str(c) for c in candidates(np.ones((2, 1, 28, 28)))[:3]]
    ['pooled_cnn-large', 'pooled_cnn', 'pooled_cnn-small']
    """
    shape = tuple(X.shape[1:])
    found: dict[str, Candidate] = {}
    if table is None:
        photographs = len(shape) == 3 and shape[0] >= 3 and min(shape[1:]) >= 16
        table = (*USUAL, *(PHOTOGRAPHS if photographs else ()), *IMAGES) if len(shape) > 1 else FEATURES
    for pattern, preparations, symmetries in table:
        for prepared in preparations if preparation is None else (preparation,):
            for name, network in _networks(pattern, X, prepared):
                for symmetry in symmetries:
                    candidate = _candidate(name, network, prepared, symmetry, shape)
                    if candidate is not None:
                        found.setdefault(str(candidate), candidate)
    return list(found.values())


def _networks(pattern: str, X: NDArray[Any], preparation: Any) -> Iterator[tuple[str, Network]]:
    """The network of a row for images X, if it fits them."""
    places = X.shape[2:]
    gaps: dict[str, Any] = {}
    if places:
        side = min(places)
        halvings = zoo.halvings_for(side)
        gaps = {"h": "" if halvings == 1 else f"-halved{halvings}"}
        gaps["plain"] = "resnet32" if len(places) == 2 and side >= 16 else "small_cnn"
        if pattern.startswith("pooled_cnn"):
            size = next((s for s in zoo.POOLED_SIZES if pattern.startswith(f"pooled_cnn-{s}")), "medium")
            if side >> halvings < zoo.pool_of(size, halvings):
                return
    if "{b}" in pattern:
        bias = bias_for(as_preparation(preparation).fit_transform(X) if preparation != "plain" else X)
        if bias is None:
            return
        gaps["b"] = f"{bias:g}"
    name = pattern.format(**gaps)
    network = network_by_name(name)
    if network is not None:
        yield name, network


def _candidate(
    name: str, network: Network, preparation: Any, symmetry: Symmetry | None, shape: tuple[int, ...]
) -> Candidate | None:
    term = Term(network, preparation, symmetry)
    try:
        check_symmetry(symmetry, shape)
        return Candidate(name, term, elements_of(term, shape))
    except (NetworkError, ValueError):  # images too small for it, or not square
        return None


def bias_for(X: NDArray[Any]) -> float | None:
    """A variance for biases that are as large as the pixels: the power of ten that is nearest to their mean square.

    None where that is no number to reckon with, as of blank images. A factor of three either way hardly matters, and a
    power of ten keeps names short.

    >>> bias_for(np.full((2, 1, 3, 3), 0.5)), bias_for(np.full((2, 1, 3, 3), 128.0)), bias_for(np.zeros((2, 1, 3, 3)))
    (0.1, 10000.0, None)
    """
    square = float(np.square(X, dtype=np.float64).mean())
    return float(f"1e{round(math.log10(square))}") if 1.0 / _LARGEST < square < _LARGEST else None


def preparations_of(term: Term, X: NDArray[Any]) -> list[Candidate]:
    """The candidates of a network that is given: prepared in each way that has no parameters."""
    terms = [replace(term, preparation=p) for p in (ALL if X.ndim > 2 else ("plain", "standardised"))]
    return [Candidate(t.name, t, elements_of(t, X.shape[1:])) for t in terms]
