"""`trained_ensemble`: infinitely wide networks after gradient descent, from their NNGP and tangent kernels.

At initialisation the outputs are a Gaussian process with the NNGP kernel K; training moves each network by the tangent
kernel Θ, which is constant (Lee et al., NeurIPS 2019):

    df/dt = −η Θ(·, training) (f(training) − y)
    A     = Θ(test, training) Θ⁻¹ (I − e^{−ηΘt})
    mean  = A y
    cov   = K(test, test) + A K Aᵀ − A K(training, test) − K(test, training) Aᵀ

With one decomposition Θ = QΛQᵀ for all times and test points, A = Θ(test, training) Q diag(w(t)) Qᵀ, where
w(t) = (1 − e^{−ηλt})/λ is computed without cancellation and has the limit ηt at λ = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cnngp.common.errors import is_number

from .checks import MatrixError, as_float64, check_targets, check_test, checked_numbers, float64_buffer
from .linalg import JITTERS, Array, namespace, warn_of_jitter

Times = float | Sequence[float | None] | None


@dataclass(frozen=True)
class EnsemblePrediction:
    """Distribution of the outputs of trained networks at M test points: independent Gaussians with one covariance.

    Predictions for several times t have an additional first axis.
    """

    mean: Array
    """(M,) for targets (N,), (M, outputs) for targets (N, outputs)."""
    variance: Array | None
    """Variance between the networks, (M,); None if K(test, test) was not given."""
    covariance: Array | None
    """(M, M), exactly symmetric; None if K(test, test) was not given in full."""


class TrainedEnsemble:
    """Mean and covariance of infinitely wide networks after gradient descent, from kernel matrices.

    Each network of the ensemble starts from its own random weights and is trained by full-batch gradient flow on
    ½ Σ (f(x) − y)². One eigendecomposition of `Theta` serves all times and test points.

    Parameters
    ----------
    K : (N, N), NNGP kernel matrix (kind="nngp") of the training points; NumPy, CuPy or PyTorch.
    Theta : (N, N), tangent kernel matrix (kind="ntk").
    y : targets (N,) or (N, outputs).
    learning_rate : only its product with the time t matters. For a loss that is the mean over points and outputs
        instead of the sum, divide it by their number.
    ridge : adds ½ ridge · ‖θ − θ₀‖² to the loss, which pulls the weights back to their start. Needed if points repeat.

    >>> import numpy as np
    >>> from cnngp.gp import trained_ensemble
    >>> K, Theta = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> ensemble = trained_ensemble(K, Theta, [1.0, -1.0])
    >>> found = ensemble.predict(K[:1], Theta[:1], K[:1, :1], t=[0.0, 1.0, 100.0])
    >>> found.mean[:, 0].round(3), found.variance[:, 0].round(3)
    (array([0.   , 0.632, 1.   ]), array([1.   , 0.036, 0.   ]))
    """

    def __init__(self, K: Array, Theta: Array, y: Array, *, learning_rate: float = 1.0, ridge: float = 0.0) -> None:
        if not is_number(learning_rate, least=0.0) or learning_rate == 0.0:
            raise ValueError(f"learning_rate={learning_rate!r}: expected a positive number")
        if not is_number(ridge, least=0.0):
            raise ValueError(f"ridge={ridge!r}: expected a number of 0 or more, in the units of Theta")
        found: dict[str, Array] = {}
        for name, matrix in (("Theta", Theta), ("K", K)):
            try:
                found[name] = float64_buffer(matrix if hasattr(matrix, "shape") else np.asarray(matrix))
            except MatrixError as error:
                raise MatrixError(f"{name}: {error}") from None
        theta, self._K = found["Theta"], found["K"]
        xp = namespace(theta)
        if namespace(self._K) is not xp:
            raise MatrixError("K and Theta are on different devices; move one of them")
        n = len(theta)
        if len(self._K) != n:
            raise MatrixError(f"K has {len(self._K)} points and Theta {n}; both are of the training points")
        if float(self._K.diagonal().min()) < 0.0:
            raise MatrixError("K has a negative number on its diagonal, where variances stand: it is no kernel matrix")
        Y = as_float64(xp, y, "y")
        self._flat = Y.ndim == 1
        Y = check_targets(xp, Y[:, None] if self._flat else Y, n)
        self.points, self.learning_rate, self.ridge = n, float(learning_rate), float(ridge)
        values, self._Q = xp.linalg.eigh(theta)
        self.jitter = _needed_jitter(values, self.ridge, theta.diagonal())
        """Amount added to the diagonal of Theta in addition to the ridge, relative to the diagonal's mean."""
        self._rates = values + (self.ridge + self.jitter * float(theta.diagonal().mean()))
        self._targets = self._Q.T @ Y

    def predict(
        self, K_test: Array, Theta_test: Array, K_test_test: Array | None = None, t: Times = None
    ) -> EnsemblePrediction:
        """Predict at M test points after training for one time `t` or several; None, like infinity, is convergence.

        `K_test` and `Theta_test` (M, N) are the two kernels between the test points and the training points.
        `K_test_test` is k(x, x) (M,) for variances, or (M, M) for covariances; without it, only means are computed.
        """
        xp, m = namespace(self._K), len(K_test)
        K_test, P = check_test(xp, K_test, self.points), check_test(xp, Theta_test, self.points, "Theta")
        if m != len(P):
            raise MatrixError(f"K(test, training) has {m} rows, Theta(test, training) {len(P)}")
        prior = None
        if K_test_test is not None:
            prior = as_float64(xp, K_test_test, "K(test, test)")
            shape, least = ((m,), 0.0) if prior.ndim == 1 else ((m, m), -math.inf)
            prior = checked_numbers(xp, prior, "K(test, test)", shape, f"({m},) or ({m}, {m})", least)
            prior = prior if prior.ndim == 1 else 0.5 * (float64_buffer(prior) + prior.T)
        P, R = P @ self._Q, K_test @ self._Q  # in the eigenvectors of Θ
        times, one = _times(t)
        found: list[tuple[Array, Array, Array]] = []  # mean, variance, covariance for each time
        for time in times:
            A = P * (-xp.expm1(-self.learning_rate * time * self._rates) / self._rates)  # Θ(test, training) Q diag(w)
            mean, variance, covariance = A @ self._targets, None, None
            if prior is not None and prior.ndim == 1:
                variance = xp.maximum(prior + ((A @ self._K_rotated - 2.0 * R) * A).sum(1), 0.0)
            elif prior is not None:
                both = (0.5 * A @ self._K_rotated - R) @ A.T  # half of the change; its transpose is the other half
                covariance = prior + (both + both.T)
                variance = xp.maximum(covariance.diagonal(), 0.0)
            found.append((mean[:, 0] if self._flat else mean, variance, covariance))
        if one:
            return EnsemblePrediction(*found[0])
        return EnsemblePrediction(*(None if of[0] is None else xp.stack(of) for of in zip(*found, strict=True)))

    @cached_property
    def _K_rotated(self) -> Array:
        """QᵀKQ, (N, N)."""
        return self._Q.T @ self._K @ self._Q


trained_ensemble = TrainedEnsemble


def _needed_jitter(values: Array, ridge: float, diagonal: Array) -> float:
    """Return 0 if no eigenvalue is rounding, else the power of ten that lifts them to a thousand times rounding.

    Lifting them just above rounding would not be enough: they divide products that are also subject to rounding.
    """
    least, largest, n, mean = float(values.min()), float(abs(values).max()), len(values), float(diagonal.mean())
    rounding = n * float(np.finfo(np.float64).eps) * largest
    if least + ridge > rounding:
        return 0.0
    jitter = next((j for j in JITTERS if least + ridge + j * mean > 1e3 * rounding), None)
    if jitter is None:
        raise MatrixError(
            f"Theta of {n} points has the eigenvalue {least:.3g}, too low beside its mean diagonal ({mean:.3g}) for "
            "the matrix of a kernel"
        )
    warn_of_jitter(n, jitter, diagonal, stacklevel=4, name="Theta", knob="ridge")
    return jitter


def _times(t: Any) -> tuple[list[float], bool]:
    """Return the times, and True if a single time was given."""
    if np.ndim(t) > 1 or (np.ndim(t) == 1 and len(t) == 0):
        raise ValueError(f"t has shape {np.shape(t)}; expected one time, or a list of at least one")
    one = np.ndim(t) == 0
    times = [math.inf if time is None else time for time in ([t] if one else t)]
    for time in times:
        if time != math.inf and not is_number(time, least=0.0):
            raise ValueError(f"t={time!r}: expected a time of 0 or more, several of them, or None for convergence")
    return [float(time) for time in times], one
