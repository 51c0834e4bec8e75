"""Records of numbers that posteriors of every kind give: what they are, how well they were solved, leave-one-out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .linalg import Array


@dataclass(frozen=True)
class Record:
    """Numbers of a posterior."""

    points: int
    """How many columns K(test, points) has."""
    noise: float
    amplitude: float
    largest_variance: float
    jitter: float = 0.0
    """What was added to the diagonal beside the noise, relative to the diagonal's mean."""
    log_marginal_likelihood: float | None = None
    """None where it is not known."""
    cheap_variances: bool = True
    """Whether a variance costs no more than a product; otherwise it takes a linear solve for every point."""


@dataclass(frozen=True)
class Solved:
    """How well the linear system of a posterior was solved."""

    residual: float
    """‖Aα − Y‖/‖Y‖."""
    smallest_eigenvalue: tuple[float, float]
    """Bounds of it."""
    spread: float | None = None
    """By how much points differ: the mean of the matrix's diagonal less the mean of all its entries, if known."""


@dataclass(frozen=True)
class LeaveOneOut:
    """What all other points say of the training points `rows`."""

    mean: Array
    """(rows, outputs)."""
    variance: Array
    """(rows,), noise included."""
    targets: Array
    rows: Any
    groups: Any = None
    """The number of each point's group, (rows,), which is left out with it; None where each goes by itself."""

    @property
    def moments(self) -> tuple[Array, Array]:
        return self.mean, self.variance
