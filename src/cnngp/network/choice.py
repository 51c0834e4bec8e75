"""Which network is taken when none is given: by the size and the number of images, never by the machine.

There are a few networks for images of a size, the most accurate first. The first one that is not too expensive is
taken. Its cost is counted in covariances (`ShapeTable.elements`), which are the same everywhere, so the same images get
the same network on a laptop and on a GPU, today and with a faster engine. docs/classification.md shows the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import zoo
from .layers import Network
from .names import biased_name, network_by_name, pooled_name

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


def even(option: Option, input_shape: Sequence[int]) -> Option:
    """The option's network with images and their negatives alike."""
    return _option(f"{option.name}-even", input_shape)


def biased(option: Option, input_shape: Sequence[int], bias_var: float) -> Option:
    """The option's network with biases in all layers, so that its functions need not double where the light does."""
    return _option(biased_name(option.name, bias_var), input_shape)


def unpooled(input_shape: Sequence[int]) -> list[Option]:
    """Networks without a pool, for which every location counts by itself; the second one knows of no neighbours."""
    return [_option(name, input_shape) for name in ("small_cnn", "dense_nngp")]


def anywhere(input_shape: Sequence[int], even: bool) -> Option:
    """A network that does not care where in an image things are: with a global pool at its end."""
    halvings = zoo.halvings_for(min(tuple(input_shape)[1:]))
    return _option(pooled_name("small", halvings, "global", even), input_shape)


def affordable(option: Option, images: int, pairs: int) -> bool:
    """Whether a first try may take an option for so many images, of which so many pairs are compared."""
    return option.elements * pairs <= min(AN_IMAGE * max(1, images), IN_ALL)


@dataclass(frozen=True)
class Choice:
    """What was chosen, from which options, and why, for people."""

    option: Option
    among: tuple[Option, ...] = field(repr=False)
    reason: str

    def __str__(self) -> str:
        return self.text()

    @property
    def better(self) -> Option | None:
        """The next more accurate one, None where the best was taken."""
        at = self.among.index(self.option)
        return self.among[at - 1] if at else None

    @property
    def quicker(self) -> Option | None:
        at = self.among.index(self.option)
        return self.among[at + 1] if at + 1 < len(self.among) else None

    def text(self, seconds: float | None = None) -> str:
        """One sentence; `seconds` is how long the kernels took, if they were computed."""
        took = "" if seconds is None else f"; its kernels took {seconds:.1f} s here"
        return f"{self.option.name}, {self.reason}{took}; {self._better(seconds)}"

    def _better(self, seconds: float | None) -> str:
        if self.better is None:
            return "no better one is known for images of this size, but `cnngp search --space pooled` can look for one"
        times = self.better.elements / max(1, self.option.elements)
        here = "" if seconds is None else f", about {seconds * times:.0f} s"
        return f"{self.better.name} is usually more accurate and takes about {times:.1f} times as long{here}"


def choose(input_shape: Sequence[int], images: int, pairs: int | None = None) -> Choice:
    """The network for training `images` of a shape of which `pairs` are compared, by default each with each other.

    Images that are only predicted play no part: how many there are to come is nothing that a model should depend on.

    >>> choose((1, 28, 28), 500).option.name, choose((1, 28, 28), 20_000).option.name
    ('pooled_cnn-large', 'resnet32')
    """
    compared = images * (images - 1) // 2 if pairs is None else pairs
    among = options(input_shape)
    option = next((option for option in among if affordable(option, images, compared)), among[-1])
    size = " × ".join(map(str, input_shape))
    return Choice(option, tuple(among), f"chosen for {images:,} images of {size}")


def default_network(input_shape: Sequence[int], images: int) -> Network:
    """The network that estimators and commands take when none is given."""
    return choose(input_shape, images).option.network
