"""The variational model on GPyTorch: features of images, q(f), its start and its training.

m of the training images, Z, are inducing points; u_c = f_c(Z) = L v_c with L Lᵀ = K_mm + jitter, and q(v_c) =
N(μ_c, S_c) ("whitened"). For image n with a_n = L⁻¹ k_mn, the functions of the classes c are

    q(f_nc) = N(a_nᵀ μ_c,  k_nn − a_nᵀa_n + |R_cᵀ a_n|²),   S_c = R_c R_cᵀ.

A fixed kernel enters through a_n and k_nn − a_nᵀa_n alone, one row of m + 1 numbers for each image, computed once. A
kernel that is learned makes them anew at every step.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch

from .robustmax import RobustMax, gpytorch

# GPyTorch's dependency, after GPyTorch: `robustmax` silences what it warns of when it is first imported.
DiagLinearOperator = importlib.import_module("linear_operator.operators").DiagLinearOperator

# Noise variances and sizes of the targets tried for the start, with the kernel's mean variance as unit.
_NOISES = (0.03, 0.1, 0.3, 1.0, 3.0)
_TARGETS = (1.0, 2.0, 4.0, 8.0)
# Rows on which they are compared, and rows of features that are made at a time.
_COMPARED = 4096
CHUNK = 4096


class NotPositiveDefinite(ValueError):
    """The inducing points' kernel matrix has no Cholesky factor at the jitter that was given."""


class Whitening:
    """L of one K_mm. The kernel is divided by its mean variance, which this likelihood cannot see."""

    def __init__(self, K_mm: Any, jitter: float) -> None:
        self.jitter = jitter
        self.scale = K_mm.diagonal().mean()
        jittered = K_mm / self.scale + jitter * torch.eye(len(K_mm), dtype=K_mm.dtype, device=K_mm.device)
        self.L, failed = torch.linalg.cholesky_ex(jittered)
        if failed.item() or not math.isfinite(self.scale.item()):
            raise NotPositiveDefinite(
                f"the kernel matrix of the {len(K_mm):,} inducing points is singular at jitter={jitter:g} of its mean "
                "variance; use fewer inducing points"
            )

    def __call__(self, K_nm: Any, k_n: Any) -> tuple[Any, Any]:
        """a_n, (N, m), and k_nn − a_nᵀa_n, (N,), which rounding does not take below the jitter."""
        A = torch.linalg.solve_triangular(self.L, K_nm.mT / self.scale, upper=False).mT
        return A, (k_n / self.scale - A.square().sum(1)).clamp_min(self.jitter)


class GivenFeatures(torch.nn.Module):  # type: ignore[misc]
    """Of rows that hold them: a_n and then k_nn − a_nᵀa_n."""

    def forward(self, x: Any) -> tuple[Any, Any]:
        return x[:, :-1], x[:, -1]


class LearnedFeatures(torch.nn.Module):  # type: ignore[misc]
    """Of flat images divided by `unit`, by a GPyTorch kernel whose parameters are learned. L is float64 in any case."""

    def __init__(self, kernel: Any, Z: Any, jitter: float, unit: float = 1.0) -> None:
        super().__init__()
        self.kernel = kernel.double()
        self.jitter = jitter
        self.unit = unit
        self.register_buffer("Z", Z.double() / unit)

    def forward(self, x: Any) -> tuple[Any, Any]:
        x64 = x.double() / self.unit
        whitening = Whitening(self.kernel(self.Z).to_dense(), self.jitter)
        A, residual = whitening(self.kernel(x64, self.Z).to_dense(), self.kernel(x64, diag=True))
        return A.to(x.dtype), residual.to(x.dtype)


class _Marginals(gpytorch.variational.VariationalStrategy):  # type: ignore[misc]
    """q(f_n) of each row by itself, which is all that the likelihood asks for."""

    def forward(
        self, x: Any, inducing_points: Any, inducing_values: Any, variational_inducing_covar: Any, **kwargs: Any
    ) -> Any:
        A, residual = self.model.features(x)
        root = variational_inducing_covar.root.to_dense()  # (C, m, m)
        variance = residual + (A @ root).square().sum(-1)  # (C, N)
        return gpytorch.distributions.MultivariateNormal(inducing_values @ A.mT, DiagLinearOperator(variance))


class SparseGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """One function for each class, all of one kernel; called with rows x it returns q(f), (N, classes)."""

    def __init__(self, features: Any, inducing: int, classes: int) -> None:
        q = gpytorch.variational.CholeskyVariationalDistribution(inducing, batch_shape=torch.Size([classes]))
        # The strategy's own inducing points are not looked at: `features` knows them.
        base = _Marginals(self, torch.zeros(inducing, 1), q, learn_inducing_locations=False)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(base, num_tasks=classes))
        self.features = features

    @property
    def q(self) -> Any:
        return self.variational_strategy.base_variational_strategy._variational_distribution

    def set_q(self, mean: Any, root: Any) -> None:
        """μ (C, m) and R, (m, m) for all classes or (C, m, m)."""
        with torch.no_grad():
            self.q.variational_mean.copy_(mean)
            self.q.chol_variational_covar.copy_(root)
        self.variational_strategy.base_variational_strategy.variational_params_initialized.fill_(1)


def start(model: SparseGP, likelihood: RobustMax, x: Any, y: Any) -> None:
    """Set q to the posterior of regression on one-hot targets, whose noise and scale are those of the best bound.

    From μ = 0 the bound has poor maxima in which some class is never the largest. Regression has a closed form:
    S = (I + AᵀA/σ²)⁻¹, μ = S AᵀY/σ².
    """
    n, classes = len(x), likelihood.num_classes
    m = model.q.num_inducing_points
    G = torch.zeros(m, m, dtype=torch.float64, device=x.device)
    AY = torch.zeros(m, classes, dtype=torch.float64, device=x.device)
    with torch.no_grad():
        for rows in torch.arange(n, device=x.device).split(CHUNK):
            A = model.features(x[rows])[0].double()
            G += A.mT @ A
            AY += A.mT @ (torch.nn.functional.one_hot(y[rows], classes) - 1.0 / classes).double()
        identity = torch.eye(m, dtype=torch.float64, device=x.device)
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=n)
        some = torch.arange(0, n, max(1, n // _COMPARED), device=x.device)  # of all classes, also in sorted data
        best = (-math.inf, 1.0, 1.0)
        for noise in _NOISES:
            mean, root = _regression(G, AY, noise, identity)
            for size in _TARGETS:
                model.set_q(size * mean, root)
                value = bound(model(x[some]), y[some]).item()
                best = max(best, (value, noise, size))
        mean, root = _regression(G, AY, best[1], identity)
        model.set_q(best[2] * mean, root)


def _regression(G: Any, AY: Any, noise: float, identity: Any) -> tuple[Any, Any]:
    S = torch.linalg.inv(identity + G / noise)
    return (S @ AY / noise).mT, torch.linalg.cholesky((S + S.mT) / 2)


def train(
    model: SparseGP,
    likelihood: RobustMax,
    x: Any,
    y: Any,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: Any,
    progress: Callable[[float], Any],
) -> list[float]:
    """Maximise the bound by Adam on minibatches, at a rate that falls to zero. The bound after each pass over the data.

    What is returned and told to `progress` is the mean over a pass of the minibatches' unbiased estimates, in nats for
    the whole training set.
    """
    n = len(x)
    steps = epochs * math.ceil(n / batch_size)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=n)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / (steps + 1))
    model.train()
    likelihood.train()
    trace = []
    for _ in range(epochs):
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for rows in torch.randperm(n, generator=generator).to(x.device).split(batch_size):
            optimizer.zero_grad(set_to_none=True)
            value = bound(model(x[rows]), y[rows])
            (-value).backward()
            optimizer.step()
            schedule.step()
            total += value.detach() * len(rows)
        trace.append(total.item())
        if not math.isfinite(trace[-1]):
            raise FloatingPointError(
                f"the bound became {trace[-1]} in pass {len(trace)}; train at a rate below {learning_rate:g} or "
                "in float64"
            )
        progress(trace[-1])
    model.eval()
    likelihood.eval()
    return trace
