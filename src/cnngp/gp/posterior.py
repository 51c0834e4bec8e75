"""`Posterior`: the questions that every fitted Gaussian process answers, and its numbers.

There are three kinds: `ExactGP` with a factor of the whole matrix, `IterativeGP` without one, and `InducingGP` through
a smaller set of points. What a kind cannot do it refuses with a `MatrixError` that says what to do instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from .checks import check_test
from .leave_one_out import LeftOut
from .linalg import Array, namespace

if TYPE_CHECKING:
    from .exact import ExactGP

Method = Literal["auto", "cholesky", "cg"]
"""How (K + noise·I)α = Y is solved: by a factor, or by conjugate gradients over a matrix that is only multiplied."""
METHODS: tuple[Method, ...] = get_args(Method)

NEEDS_FACTOR = "{} needs a Cholesky factor, which solver='cg' does not make; use solver='cholesky'"

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


def relative_residual(product: Array, Y: Array) -> float:
    """‖product − Y‖/‖Y‖, 0 for targets that are all 0."""
    xp = namespace(Y)
    scale = float(xp.linalg.norm(Y))
    return float(xp.linalg.norm(product - Y)) / scale if scale > 0.0 else 0.0


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


class Posterior(ABC):
    """f ~ GP(0, a·k) given targets y = f + ε, ε ~ N(0, a·noise)."""

    kind: ClassVar[str]
    cheap_variances: ClassVar[bool] = True
    """Whether a variance costs no more than a product; otherwise it takes a linear solve for every point."""
    alpha: Array
    """Weights of K(test, points) in the mean, (points, outputs)."""
    noise: float
    amplitude: float
    variances: Array
    """k(x, x) of the points, (points,)."""
    largest_variance: float
    jitter: float = 0.0
    """What was added to the diagonal beside the noise, relative to the diagonal's mean."""
    left: LeftOut
    """Leave-one-out at the training points `loo_rows`, with the amplitude 1."""
    loo_rows: Any
    loo_targets: Array
    groups: Any = None
    """The number of the group of each of these points, (rows,); None without groups."""

    def mean(self, K_test: Array) -> Array:
        """E[f] at M test points from K(test, points), (M, points) → (M, outputs)."""
        return self.checked_test(K_test) @ self.alpha

    @abstractmethod
    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Var[f], shared by the outputs, from K(test, points) and k(x, x) (M,) → (M,)."""

    @abstractmethod
    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        """Cov[f] between test points, shared by the outputs, (M, points) and (M, M) → (M, M)."""

    def leave_one_out(self) -> LeaveOneOut:
        """What the other training points, without those of its group, say of the target of a point, noise included."""
        mean, variance = self.loo_targets - self.left.deviations, self.amplitude * self.left.variances
        return LeaveOneOut(mean, variance, self.loo_targets, self.loo_rows, self.groups)

    @abstractmethod
    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of; kernels are kept in `dtype` if that is exact."""

    @classmethod
    @abstractmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> Self: ...

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
