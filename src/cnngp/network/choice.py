"""The network that is taken where none is given and there are no labels to choose one by.

There are a few networks for images of a size, the most accurate first. The first one that is not too expensive is
taken. Its cost is counted in covariances (`ShapeTable.elements`), which are the same everywhere, so the same images get
the same network on a laptop and on a GPU. Where there are labels, estimators choose among more by leave-one-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import zoo
from .layers import Network
from .names import network_by_name, pooled_name

AN_IMAGE = 3 * 10**8
"""Covariances that a first try may take for each image, about a tenth of a second on two CPU cores, …"""
IN_ALL = 21 * 10**11
"""… and in all, about a quarter of an hour."""


@dataclass(frozen=True)
class Option:
    """A network for images of one shape, by its name in the zoo."""

    name: str
    network: Network = field(repr=False)  # its name says as much, in one word
    elements: int
    """Covariances for a pair of images."""


def options(input_shape: Sequence[int]) -> list[Option]:
    """The networks to choose from for images of a shape (channels, …), the most accurate first.

    Pooled networks that fit the image, then the paper's ResNet for pictures of 16 × 16 and more, or three convolutions
    for smaller ones and other dimensions; a fully connected network for plain features.

    >>> [option.name for option in options((1, 28, 28))]
    ['pooled_cnn-large', 'pooled_cnn', 'pooled_cnn-small', 'resnet32']
    """
    spatial = tuple(input_shape)[1:]
    if not spatial:
        return [_option("dense_nngp", input_shape)]
    side = min(spatial)
    halvings = zoo.halvings_for(side)
    names = [
        pooled_name(size, halvings)
        for size in reversed(zoo.POOLED_SIZES)
        if side >> halvings >= zoo.pool_of(size, halvings)
    ]
    plain = "resnet32" if len(spatial) == 2 and side >= 16 else "small_cnn"
    return [_option(name, input_shape) for name in (*names, plain)]


def _option(name: str, input_shape: Sequence[int]) -> Option:
    network = network_by_name(name)
    assert network is not None
    return Option(name, network, network.shapes(tuple(input_shape)).elements)


def default_network(input_shape: Sequence[int], images: int) -> Network:
    """The network for so many images of a shape, all compared with each other.

    >>> default_network((1, 28, 28), 500) == network_by_name("pooled_cnn-large")
    True
    >>> default_network((1, 28, 28), 20_000) == network_by_name("resnet32")
    True
    """
    among, pairs = options(input_shape), images * (images - 1) // 2
    limit = min(AN_IMAGE * max(1, images), IN_ALL)
    return next((option for option in among if option.elements * pairs <= limit), among[-1]).network
