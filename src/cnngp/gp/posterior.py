"""What every fitted Gaussian process answers, so that whoever asks need not know which one it is.

Three kinds answer: `ExactGP` with a factor of the whole matrix, `IterativeGP` without one, and `InducingGP` through a
smaller set of points. What a kind cannot do it refuses with a `MatrixError` that says what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol, Self

from .exact import ExactGP
from .inducing import InducingGP, Part
from .iterative import IterativeGP
from .linalg import Array


class NewPoints(Protocol):
    """Points to add to a model: their targets, and kernels that are computed only when a model asks for them."""

    @property
    def Y(self) -> Array:
        """(M, outputs)."""

    @property
    def point_noise(self) -> Array | None:
        """(M,): their own noise beside that of all points."""

    def with_points(self) -> Array:
        """K(new, points) of the model, (M, points)."""

    def among_themselves(self) -> Array:
        """K(new, new), (M, M)."""

    def parts(self) -> Iterable[Part]:
        """K(new, points), targets and k(x, x), some rows at a time."""


class Posterior(Protocol):
    """f ~ GP(0, a·k) given targets y = f + ε, ε ~ N(0, a·noise)."""

    kind: ClassVar[str]
    cheap_variances: ClassVar[bool]
    """Whether a variance costs no more than a product; otherwise it takes a linear solve for every point."""

    @property
    def noise(self) -> float: ...
    @property
    def jitter(self) -> float:
        """What was added to the diagonal beside the noise, relative to the diagonal's mean."""

    @property
    def amplitude(self) -> float: ...
    @property
    def largest_variance(self) -> float: ...
    @property
    def log_marginal_likelihood(self) -> float | None:
        """None where it is not known."""

    @property
    def points(self) -> int:
        """How many columns K(test, points) has."""

    @property
    def loo_rows(self) -> Any:
        """The training points that `leave_one_out` predicts."""

    @property
    def loo_targets(self) -> Array: ...

    @property
    def groups(self) -> Any:
        """The number of the group of each of these points, (points,); None where each is left out by itself."""

    @property
    def variances(self) -> Array:
        """k(x, x) of the points, (points,)."""

    def mean(self, K_test: Array) -> Array: ...
    def votes(self, K_test: Array) -> Array:
        """What each point adds to the mean at M test points, (M, points, outputs); over the points they sum to it."""

    def variance(self, K_test: Array, diagonal: Array) -> Array: ...
    def covariance(self, K_test: Array, K_test_test: Array) -> Array: ...
    def sample(self, K_test: Array, K_test_test: Array, n: int, seed: int | None = None) -> Array: ...
    def leave_one_out(self) -> tuple[Array, Array]: ...
    def insert_outputs(self, at: Any, value: float) -> None:
        """New outputs before the ones numbered `at`, of this target at every point; `grow` has to follow."""

    def grow(self, new: NewPoints) -> None:
        """Condition on more points. What fails leaves the model as it was."""

    def residual(self) -> float: ...
    def smallest_eigenvalue_bounds(self) -> tuple[float, float]: ...
    def loo_novelty(self) -> Array | None:
        """How unlike all others each point is, between 0 and 1; None where it is not known."""

    def spread(self) -> float | None:
        """By how much points differ: the mean of the matrix's diagonal less the mean of all its entries, if known."""

    def kernel_between(self, rows: Any) -> Array | None:
        """K between some of the points, where the model holds it."""

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of; kernels are kept in `dtype` if that is exact."""

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> Self: ...


KINDS: dict[str, type[Posterior]] = {gp.kind: gp for gp in (ExactGP, IterativeGP, InducingGP)}
"""By the name under which a file keeps them."""
