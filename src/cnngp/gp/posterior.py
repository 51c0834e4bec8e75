"""`Posterior`: the six questions that every fitted Gaussian process answers, and its numbers.

There are three kinds: `ExactGP` with a factor of the whole matrix, `IterativeGP` without one, and `InducingGP` through
a smaller set of points. What a kind cannot do it refuses with a `MatrixError` that says what to do instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from .checks import check_test
from .linalg import Array, namespace

if TYPE_CHECKING:
    from .exact import ExactGP

Part = tuple[slice, Array, Array, Array]
"""Rows of the training points, K(rows, inducing) (M, m), targets (M, outputs) and k(x, x) (M,)."""


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


class NewPoints(Protocol):
    """Points to add to a model: their targets, and kernels that are computed only when a model asks for them."""

    Y: Array
    """(M, outputs)."""
    point_noise: Array | None
    """(M,): their own noise beside that of all points."""
    new_outputs: Sequence[int]
    """The outputs of the model before which new ones come, for which its own points have the target −1."""

    def with_points(self) -> Array:
        """K(new, points) of the model, (M, points)."""

    def among_themselves(self) -> Array:
        """K(new, new), (M, M)."""

    def parts(self) -> Iterable[Part]:
        """K(new, points), targets and k(x, x), some rows at a time."""

    def left_out(self, groups: Any) -> Any:
        """What is left out with each of all points, from the same of the model's own; see `groups.py`."""


class Posterior(ABC):
    """f ~ GP(0, a·k) given targets y = f + ε, ε ~ N(0, a·noise)."""

    kind: ClassVar[str]
    cheap_variances: ClassVar[bool] = True
    """Whether a variance costs no more than a product; otherwise it takes a linear solve for every point."""
    alpha: Array
    """Weights of K(test, points) in the mean, (points, outputs)."""
    noise: float
    amplitude: float
    largest_variance: float
    jitter: float = 0.0
    """What was added to the diagonal beside the noise, relative to the diagonal's mean."""

    def mean(self, K_test: Array) -> Array:
        """E[f] at M test points from K(test, points), (M, points) → (M, outputs)."""
        return self.checked_test(K_test) @ self.alpha

    @abstractmethod
    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Var[f], shared by the outputs, from K(test, points) and k(x, x) (M,) → (M,)."""

    @abstractmethod
    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        """Cov[f] between test points, shared by the outputs, (M, points) and (M, M) → (M, M)."""

    @abstractmethod
    def leave_one_out(self) -> LeaveOneOut:
        """What the others predict for the targets of single points, noise included."""

    @abstractmethod
    def grow(self, new: NewPoints) -> None:
        """Condition on more points. What fails leaves the model as it was."""

    @abstractmethod
    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of; kernels are kept in `dtype` if that is exact."""

    @classmethod
    @abstractmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> Self: ...

    # ---- numbers, and what follows -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def variances(self) -> Array:
        """k(x, x) of the points, (points,)."""

    @abstractmethod
    def solved(self) -> Solved: ...

    @property
    def exact(self) -> ExactGP | None:
        """Itself where it has a factor of all points, and so answers what only that can."""
        return None

    @property
    def log_marginal_likelihood(self) -> float | None:
        """None where it is not known."""
        return None

    @property
    def points(self) -> int:
        """How many columns K(test, points) has."""
        return int(self.alpha.shape[0])

    def votes(self, K_test: Array) -> Array:
        """What each point adds to the mean at M test points, (M, points, outputs); over the points they sum to it."""
        return self.checked_test(K_test)[:, :, None] * self.alpha[None]

    def checked_test(self, K_test: Array) -> Array:
        """K(test, points) in float64, checked."""
        return check_test(namespace(self.alpha), K_test, self.points)
