"""Hypothesis strategies for networks that compose, with images that fit them; what is drawn stands in generator.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from hypothesis import strategies as st

from cnngp import Sequential, Step
from cnngp.network import Network
from helpers import generator
from helpers.generator import RELU_LIKE, SMOOTH

T = TypeVar("T")

relu_like = st.sampled_from(RELU_LIKE)
smooth = st.sampled_from(SMOOTH)


@dataclass(frozen=True)
class Drawn:
    """The generator's choices, made by Hypothesis."""

    draw: st.DrawFn

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def among(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(list(options)))


@st.composite
def networks_with_shapes(
    draw: st.DrawFn, act: st.SearchStrategy[Network] = relu_like, max_pixels: int = 400
) -> tuple[Network, tuple[int, ...]]:
    """A network and the shape of an image it takes."""
    return generator.network(Drawn(draw), lambda: draw(act), max_pixels)


def images(shape: tuple[int, ...], n: int, seed: int) -> np.ndarray:
    """Random images with blank regions, so that zero variances occur."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, *shape))
    blank = rng.random((n, 1, *shape[1:])) < 0.4
    X = np.where(blank, 0.0, X)
    X[0] = 0.0 if n > 3 else X[0]
    return X.astype(np.float32).astype(np.float64)


STEP = Step()
Case: TypeAlias = tuple[Network, tuple[int, ...]]
"""A network and the shape of an image that it takes."""


def of(shape: tuple[int, ...], *layers: Network) -> Case:
    return Sequential(*layers), shape
