"""Image preprocessing before the kernel: scikit-learn transformers, fitted without labels.

`Contrast`, `Detail` and `Edges` change each image by itself; `Normalised` followed by `Zca` is the usual preprocessing
of published kernels on CIFAR-10; `Standardised` is for features in different units; `PatchWhitening` removes the
correlation of neighbouring pixels, `SpectralWhitening` the different strength of frequencies and colours. `NAMED` lists
the names that stand for them in a `Term`, a command and a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from cnngp.common.arrays import DataError

from .image_transforms import (
    Array,
    Contrast,
    Detail,
    Edges,
    Map,
    Normalised,
    PatchWhitening,
    Plain,
    Preparation,
    SpectralWhitening,
    Standardised,
    Zca,
)

__all__ = [
    "NAMED", "Chain", "Contrast", "Detail", "Edges", "Normalised", "PatchWhitening", "Plain", "Preparation",
    "SpectralWhitening", "Standardised", "Zca",
    "as_preparation", "preparation_from_json", "preparation_to_json",
]  # fmt: skip


class Chain(Preparation):
    """Several preparations in sequence; in a `Term`, a tuple of them.

    >>> Chain(("normalised", Zca(1e-3)))
    Chain(steps=('normalised', Zca(regularisation=0.001)))
    """

    def __init__(self, steps: tuple[Any, ...] = ()) -> None:
        self.steps = steps

    @property
    def _unfitted_steps(self) -> list[Preparation]:
        return [as_preparation(step) for step in self.steps]

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return any(step.learns for step in self._unfitted_steps)

    def fit(self, X: Any, y: Any = None, *, maps: Sequence[Map] = ()) -> Self:
        images = self._checked(X)
        self.input_shape_, self.fitted_ = images.shape[1:], self._unfitted_steps
        for step in self.fitted_:
            images = step.fit(images, maps=maps).transform(images)
        return self

    def transform(self, X: Any) -> Array:
        for step in getattr(self, "fitted_", self._unfitted_steps):
            X = step.transform(X)
        return np.asarray(X)

    def _shapes(self, input_shape: Sequence[int]) -> list[tuple[int, ...]]:
        """Input shape of each step, and output shape of the last."""
        shapes = [tuple(input_shape)]
        for step in self._unfitted_steps:
            shapes.append(step.output_shape(shapes[-1]))
        return shapes

    def output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        return self._shapes(input_shape)[-1]

    def state(self) -> dict[str, Array]:
        return {f"{i}.{name}": array for i, step in enumerate(self.fitted_) for name, array in step.state().items()}

    def restored(self, state: dict[str, Array], input_shape: Sequence[int]) -> Self:
        self.input_shape_, self.fitted_ = tuple(input_shape), self._unfitted_steps
        for i, (step, shape) in enumerate(zip(self.fitted_, self._shapes(input_shape), strict=False)):
            step.restored({n.removeprefix(f"{i}."): a for n, a in state.items() if n.startswith(f"{i}.")}, shape)
        return self


_KINDS: dict[str, type[Preparation]] = {
    kind.__name__: kind
    for kind in (Plain, Contrast, Detail, Edges, Normalised, Standardised, Zca, PatchWhitening, SpectralWhitening)
}
NAMED: dict[str, Callable[[], Preparation]] = {
    "plain": Plain,
    "contrast": Contrast,
    "detail": Detail,
    "edges": Edges,
    "normalised": Normalised,
    "standardised": Standardised,
    "zca": lambda: Chain(("normalised", Zca())),
    "patches": lambda: Chain(("normalised", PatchWhitening())),
    "spectral": lambda: Chain(("normalised", SpectralWhitening())),
}
"""Preparations by name."""


def as_preparation(given: Any) -> Preparation:
    """Return an unfitted preparation, from its name, an object, or a tuple of several.

    >>> as_preparation("contrast"), as_preparation(("normalised", Zca()))
    (Contrast(), Chain(steps=('normalised', Zca())))
    """
    if isinstance(given, Preparation):
        return given.unfitted()
    if isinstance(given, tuple | list) and all(map(as_preparation, given)) and given:
        return Chain(tuple(given))
    if not isinstance(given, str) or given not in NAMED:
        raise DataError(
            f"preparation={given!r} is not one of {', '.join(map(repr, NAMED))}, a Preparation or a tuple of these"
        )
    return NAMED[given]()


def preparation_to_json(given: Any) -> Any:
    """Return the JSON form: a name, a list of several, or arguments; raise `DataError` for any other class."""
    if isinstance(given, str):
        return given
    if isinstance(given, Chain | tuple | list):
        return [preparation_to_json(step) for step in (given.steps if isinstance(given, Chain) else given)]
    if _KINDS.get(type(given).__name__) is not type(given):
        raise DataError(
            f"{given!r} cannot be written to a file, from which no code is run; only {', '.join(_KINDS)} can"
        )
    values = given.get_params(deep=False).items()
    return {"kind": type(given).__name__} | {k: v.item() if isinstance(v, np.generic) else v for k, v in values}


def preparation_from_json(data: Any) -> Any:
    """Read the result of `preparation_to_json`; raise `ValueError` for anything else."""
    if isinstance(data, list):
        return tuple(preparation_from_json(step) for step in data)
    if isinstance(data, dict):
        arguments = dict(data)
        name = arguments.pop("kind", None)
        if name not in _KINDS or set(arguments) - set(_KINDS[name]().get_params()):
            raise ValueError(f"no preparation {data!r}")
        return _KINDS[name](**arguments)
    as_preparation(data)
    return data
