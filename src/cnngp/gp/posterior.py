"""`Posterior`: the interface of every fitted Gaussian process.

There are three kinds: `ExactGP` with a factor of the whole matrix, `IterativeGP` without one, and `InducingGP` through
a smaller set of points. A kind raises `MatrixError` for what it cannot compute and says what to do instead.
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
"""Solver of (K + noise·I)α = Y: a Cholesky factor, or conjugate gradients, which only need products with K."""
METHODS: tuple[Method, ...] = get_args(Method)

NEEDS_FACTOR = "{} needs a Cholesky factor, which solver='cg' does not make; use solver='cholesky'"

Part = tuple[slice, Array, Array, Array]
"""A block of training points: its rows, K(rows, inducing) (M, m), targets (M, outputs) and k(x, x) (M,)."""


@dataclass(frozen=True)
class Solved:
    """Accuracy of the solution of a posterior's linear system."""

    residual: float
    """‖Aα − Y‖/‖Y‖."""
    smallest_eigenvalue: tuple[float, float]
    """Lower and upper bound."""
    spread: float | None = None
    """Variation between points: the mean of the matrix's diagonal minus the mean of all its entries, if known."""


def relative_residual(product: Array, Y: Array) -> float:
    """Return ‖product − Y‖/‖Y‖, or 0 if all targets are 0."""
    xp = namespace(Y)
    scale = float(xp.linalg.norm(Y))
    return float(xp.linalg.norm(product - Y)) / scale if scale > 0.0 else 0.0


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out predictions of the training points `rows`."""

    mean: Array
    """(rows, outputs)."""
    variance: Array
    """(rows,), noise included."""
    targets: Array
    rows: Any
    groups: Any = None
    """Group number of each point, (rows,): a group is left out together. None if each point is left out alone."""

    @property
    def moments(self) -> tuple[Array, Array]:
        return self.mean, self.variance


class Posterior(ABC):
    """Posterior of f ~ GP(0, a·k) given targets y = f + ε, ε ~ N(0, a·noise)."""

    kind: ClassVar[str]
    cheap_variances: ClassVar[bool] = True
    """True if a variance is cheap; False if every test point takes an iterative solve."""
    alpha: Array
    """Weights of K(test, points) in the mean, (points, outputs)."""
    noise: float
    amplitude: float
    variances: Array
    """k(x, x) at the points, (points,)."""
    largest_variance: float
    jitter: float = 0.0
    """Amount added to the diagonal in addition to the noise, relative to the diagonal's mean."""
    left: LeftOut
    """Leave-one-out residuals at the training points `loo_rows`, for the amplitude 1."""
    loo_rows: Any
    loo_targets: Array
    groups: Any = None
    """Group number of each of these points, (rows,); None without groups."""

    def mean(self, K_test: Array) -> Array:
        """Posterior mean E[f] at M test points from K(test, points), (M, points) → (M, outputs)."""
        return self.checked_test(K_test) @ self.alpha

    @abstractmethod
    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Posterior variance Var[f], shared by the outputs, from K(test, points) and k(x, x) (M,) → (M,)."""

    @abstractmethod
    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        """Posterior covariance of f between test points, shared by the outputs, (M, points) and (M, M) → (M, M)."""

    def leave_one_out(self) -> LeaveOneOut:
        """Leave-one-out predictions of the targets, noise included: each point without itself and its group."""
        mean, variance = self.loo_targets - self.left.deviations, self.amplitude * self.left.variances
        return LeaveOneOut(mean, variance, self.loo_targets, self.loo_rows, self.groups)

    @abstractmethod
    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays from which `restored` rebuilds the model; kernels are stored in `dtype` if exact."""

    @classmethod
    @abstractmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> Self: ...

    @abstractmethod
    def solved(self) -> Solved: ...

    @property
    def exact(self) -> ExactGP | None:
        """This posterior if it is an `ExactGP`, with a Cholesky factor of all points, else None."""
        return None

    @property
    def log_marginal_likelihood(self) -> float | None:
        """Log marginal likelihood, or None if it is not known."""
        return None

    @property
    def points(self) -> int:
        """Number of columns of K(test, points)."""
        return int(self.alpha.shape[0])

    def votes(self, K_test: Array) -> Array:
        """Contribution of each point to the mean at M test points, (M, points, outputs); their sum is the mean."""
        return self.checked_test(K_test)[:, :, None] * self.alpha[None]

    def checked_test(self, K_test: Array) -> Array:
        """Return K(test, points) in float64, checked."""
        return check_test(namespace(self.alpha), K_test, self.points)
