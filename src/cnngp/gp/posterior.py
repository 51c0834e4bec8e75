"""What every fitted Gaussian process answers, so that whoever asks need not know which one it is.

Three kinds answer: `ExactGP` with a factor of the whole matrix, `IterativeGP` without one, and `InducingGP` through a
smaller set of points. What a kind cannot do it refuses with a `MatrixError` that says what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol, Self

from .exact import ExactGP
from .inducing import InducingGP, Part
from .iterative import IterativeGP
from .linalg import Array
from .records import LeaveOneOut, Record, Solved


class NewPoints(Protocol):
    """Points to add to a model: their targets, and kernels that are computed only when a model asks for them."""

    @property
    def Y(self) -> Array:
        """(M, outputs)."""

    @property
    def point_noise(self) -> Array | None:
        """(M,): their own noise beside that of all points."""

    @property
    def new_outputs(self) -> Sequence[int]:
        """The outputs of the model before which new ones come, for which its own points have the target −1."""

    def with_points(self) -> Array:
        """K(new, points) of the model, (M, points)."""

    def among_themselves(self) -> Array:
        """K(new, new), (M, M)."""

    def parts(self) -> Iterable[Part]:
        """K(new, points), targets and k(x, x), some rows at a time."""


class Posterior(Protocol):
    """f ~ GP(0, a·k) given targets y = f + ε, ε ~ N(0, a·noise)."""

    kind: ClassVar[str]

    @property
    def record(self) -> Record: ...
    @property
    def exact(self) -> ExactGP | None:
        """Itself where it has a factor of all points, and so answers what only that can."""

    @property
    def variances(self) -> Array:
        """k(x, x) of the points, (points,)."""

    def mean(self, K_test: Array) -> Array:
        """E[f] at M test points from K(test, points), (M, points) → (M, outputs)."""

    def votes(self, K_test: Array) -> Array:
        """What each point adds to the mean at M test points, (M, points, outputs); over the points they sum to it."""

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Var[f], shared by the outputs, from K(test, points) and k(x, x) (M,) → (M,)."""

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        """Cov[f] between test points, shared by the outputs, (M, points) and (M, M) → (M, M)."""

    def leave_one_out(self) -> LeaveOneOut: ...
    def solved(self) -> Solved: ...
    def grow(self, new: NewPoints) -> None:
        """Condition on more points. What fails leaves the model as it was."""

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of; kernels are kept in `dtype` if that is exact."""

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> Self: ...


KINDS: dict[str, type[Posterior]] = {gp.kind: gp for gp in (ExactGP, IterativeGP, InducingGP)}
"""By the name under which a file keeps them."""
