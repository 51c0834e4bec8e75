"""Variational classification with inducing points, the model of Figure 3: `fit` trains it.

The inducing points Z are m training images, drawn at random. Each class has a function f_c, all with the same kernel;
u_c = f_c(Z) = L v_c with L Lᵀ = K_mm + jitter, and q(v_c) = N(μ_c, R_c R_cᵀ). For image n with a_n = L⁻¹ k_mn

    q(f_nc) = N(a_nᵀ μ_c,  k_nn − a_nᵀa_n + |R_cᵀ a_n|²).

The likelihood is RobustMax: p(y | f) = 1 − ε if f_y is the largest, else ε/(C − 1). So only the probability P_y that
f_y is the largest of independent f_c ~ N(m_c, v_c) is needed, one integral by Gauss–Hermite quadrature:

    P_y = ∫ N(f; m_y, v_y) Π_{c≠y} Φ((f − m_c)/√v_c) df

Scaling all functions by one factor changes nothing: the kernel's amplitude has no effect with this likelihood.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import one_hot, softplus

from cnngp.common.arrays import to_numpy
from cnngp.common.devices import ActualDevice
from cnngp.common.progress import progress_bar
from cnngp.gp.linalg import blocks
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network

Array = NDArray[Any]

JITTER = 1e-6
"""Added to the diagonal of the inducing points' kernel matrix, in units of its mean."""
_CHUNK = 4096
"""Images per block of features, and about the number of images on which initial values are compared."""
_NOISES, _SIZES = (0.03, 0.1, 0.3, 1.0, 3.0), (1.0, 2.0, 4.0, 8.0)
"""Noise variances and target sizes tried for the initial values, with the kernel's mean variance as unit."""
_LOWEST = -12.0
"""log Φ(−12) is −75: anything below is negligible beside 1, and in float32 the derivative of log Φ loses its digits."""


@dataclass(frozen=True)
class Training:
    """Training options: Adam on minibatches, with a learning rate that falls to zero. The seed selects inducing points
    and minibatches; `epsilon` is the likelihood's probability that the label is not that of the largest function."""

    inducing: int = 1_000
    epochs: int = 50
    batch_size: int = 1_000
    learning_rate: float = 0.03
    epsilon: float = 1e-3
    dtype: Literal["float32", "float64"] = "float32"
    seed: int = 0


def fit(
    network: Network | Literal["rbf"],
    X: Array,
    y: Array,
    training: Training,
    device: ActualDevice,
    threads: int | None = None,
) -> SparseGP:
    """Train on images X (N, C, H, W) with labels y (N,).

    A network's kernel is computed once, N × m entries; "rbf" is the squared exponential kernel of the pixels with a
    learned lengthscale.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("device='cuda', but this build of PyTorch finds no GPU; install one with CUDA")
    classes, codes = np.unique(y, return_inverse=True)
    Z = X[np.sort(np.random.default_rng(training.seed).choice(len(X), training.inducing, replace=False))]
    dtype = getattr(torch, training.dtype)
    features: GivenFeatures | LearnedFeatures
    if isinstance(network, str):
        features = LearnedFeatures(Z, dtype, torch.device(device))
    else:
        features = GivenFeatures(Kernel(network, device, training.dtype, threads), Z, dtype)
    model = SparseGP(features, len(Z), len(classes), training.epsilon, dtype)
    model.to(device)
    x, labels = features.rows(X), torch.as_tensor(codes, device=device)
    start(model, x, labels)
    model.elbo = train(model, x, labels, training)
    return model


# ---- a_n and k_nn − a_nᵀa_n ------------------------------------------------------------------------------------------


def whitened(K_mm: Any, K_nm: Any, k_n: Any, jitter: float = JITTER) -> tuple[Any, Any]:
    """a_n, (N, m), and k_nn − a_nᵀa_n, (N,), clipped below at the jitter because of rounding.

    The kernel is divided by its mean variance, which has no effect with this likelihood.
    """
    scale = K_mm.diagonal().mean()
    jittered = K_mm / scale + jitter * torch.eye(len(K_mm), dtype=K_mm.dtype, device=K_mm.device)
    L, failed = torch.linalg.cholesky_ex(jittered)
    if failed.item() or not math.isfinite(scale.item()):
        raise ValueError(
            f"the kernel matrix of the {len(K_mm):,} inducing points is singular at jitter={jitter:g} of its mean "
            "variance; use fewer inducing points"
        )
    A = torch.linalg.solve_triangular(L, K_nm.mT / scale, upper=False).mT
    return A, (k_n / scale - A.square().sum(1)).clamp_min(jitter)


class GivenFeatures(torch.nn.Module):  # type: ignore[misc]
    """Features of a fixed kernel: one row of m + 1 numbers for each image, computed once."""

    lengthscale = None

    def __init__(self, kernel: Kernel, Z: Array, dtype: Any) -> None:
        super().__init__()
        self._kernel, self._Z, self._dtype = kernel, Z, dtype
        self._K_mm = self._entries(Z)

    def rows(self, X: Array) -> Any:
        found = []
        with progress_bar(len(X) * len(self._Z), "kernel", "pair") as bar:
            for rows in blocks(len(X), _CHUNK):
                diagonal = torch.as_tensor(self._kernel.diag(X[rows]), device=self._K_mm.device).double()
                A, residual = whitened(self._K_mm, self._entries(X[rows], self._Z), diagonal)
                found.append(torch.cat([A, residual[:, None]], 1).to(self._dtype))
                bar.update(A.numel())
        return torch.cat(found)

    def forward(self, x: Any) -> tuple[Any, Any]:
        return x[:, :-1], x[:, -1]

    def _entries(self, *images: Array) -> Any:
        output: Literal["torch", "numpy"] = "torch" if self._kernel.device == "cuda" else "numpy"
        K = self._kernel(*images, output=output, progress=False)
        return torch.as_tensor(K, device=self._kernel.device).double()


class LearnedFeatures(torch.nn.Module):  # type: ignore[misc]
    """Features of the squared exponential kernel of pixels, recomputed in float64 at every step.

    Distances are in units of their median, which gives a suitable initial lengthscale and learning rate.
    """

    def __init__(self, Z: Array, dtype: Any, device: Any) -> None:
        super().__init__()
        flat = torch.as_tensor(Z.reshape(len(Z), -1)).double()
        self._dtype, self._device = dtype, device
        self._unit = torch.pdist(flat).median().item() or 1.0
        self._Z = (flat / self._unit).to(device)
        self._raw = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    @property
    def lengthscale(self) -> float:
        return float(self._unit * softplus(self._raw).item())

    def rows(self, X: Array) -> Any:
        return torch.as_tensor(X.reshape(len(X), -1), dtype=self._dtype, device=self._device)

    def forward(self, x: Any) -> tuple[Any, Any]:
        x64 = x.double() / self._unit
        A, residual = whitened(self._kernel(self._Z), self._kernel(x64), torch.ones_like(x64[:, 0]))
        return A.to(x.dtype), residual.to(x.dtype)

    def _kernel(self, x: Any) -> Any:
        squares = x.square().sum(1)[:, None] + self._Z.square().sum(1) - 2.0 * x @ self._Z.mT
        return torch.exp(-0.5 * squares.clamp_min(0.0) / softplus(self._raw).square())


# ---- the model -------------------------------------------------------------------------------------------------------


class SparseGP(torch.nn.Module):  # type: ignore[misc]
    """Sparse variational GP: one function for each class, all with the same kernel, and the RobustMax likelihood."""

    elbo: Sequence[float] = ()
    """Evidence lower bound on the log likelihood of all labels for each pass over the data, in nats."""

    def __init__(self, features: Any, inducing: int, classes: int, epsilon: float = 1e-3, dtype: Any = None) -> None:
        super().__init__()
        self.features, self.classes, self.epsilon = features, classes, epsilon
        self.mean = torch.nn.Parameter(torch.zeros(classes, inducing, dtype=dtype))
        self.root = torch.nn.Parameter(torch.eye(inducing, dtype=dtype).repeat(classes, 1, 1))

    def set_q(self, mean: Any, root: Any) -> None:
        """Set μ, (C, m), and R, (m, m) for all classes or (C, m, m)."""
        with torch.no_grad():
            self.mean.copy_(mean)
            self.root.copy_(root)

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Means and variances of q(f), (N, classes) each."""
        A, residual = self.features(x)
        return A @ self.mean.mT, (residual + (A @ self.root.tril()).square().sum(-1)).mT

    def divergence(self) -> Any:
        """Σ_c KL(q(v_c) ‖ N(0, I))."""
        R = self.root.tril()
        logs = R.diagonal(dim1=1, dim2=2).abs().log().sum()
        return 0.5 * (R.square().sum() + self.mean.square().sum() - self.mean.numel()) - logs

    def bound(self, x: Any, y: Any, images: int) -> Any:
        """Unbiased minibatch estimate of the evidence lower bound, divided by the total number of `images`."""
        mean, variance = self(x)
        P = probability_of_largest(mean, variance, y)
        right, wrong = math.log1p(-self.epsilon), math.log(self.epsilon / (self.classes - 1))
        return (wrong + (right - wrong) * P).mean() - self.divergence() / images

    def predict_proba(self, X: Array) -> NDArray[np.float64]:
        """Class probabilities of each image, (M, classes), in the order of the sorted labels."""
        with torch.no_grad():
            parts = [self.probabilities(x) for x in self.features.rows(X).split(_CHUNK)]
        return to_numpy(torch.cat(parts)).astype(np.float64)

    def probabilities(self, x: Any) -> Any:
        """p(y) of every class, (N, classes)."""
        mean, variance = self(x)
        labels = torch.arange(self.classes, device=x.device).expand(len(x), -1).unbind(1)
        P = torch.stack([probability_of_largest(mean, variance, label, nodes=100) for label in labels], -1)
        P = P / P.sum(-1, keepdim=True)
        return P * (1.0 - self.epsilon) + (1.0 - P) * (self.epsilon / (self.classes - 1))


def probability_of_largest(mean: Any, variance: Any, labels: Any, nodes: int = 32) -> Any:
    """P(f_y is the largest) for independent f_c ~ N(mean_c, variance_c), (N,), at each row's label y.

    If all v_c are equal, 32 nodes are within 3e-7 of the integral and 100 within 2e-15; if the √v_c differ by a factor
    of 5, within 2e-3 and 2e-4.

    >>> probability_of_largest(torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([0]))
    tensor([0.3333])
    """
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    z, log_w = (torch.as_tensor(a, dtype=mean.dtype, device=mean.device) for a in (z, np.log(w / w.sum())))
    std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    y = labels.unsqueeze(-1)
    f = mean.gather(-1, y) + std.gather(-1, y) * z  # (N, nodes)
    u = (f.unsqueeze(-2) - mean.unsqueeze(-1)) / std.unsqueeze(-1)  # (N, C, nodes)
    log_below = torch.special.log_ndtr(u.clamp_min(_LOWEST))
    itself = one_hot(labels, mean.shape[1]).bool().unsqueeze(-1)
    return torch.logsumexp(log_below.masked_fill(itself, 0.0).sum(-2) + log_w, -1).exp()


def start(model: SparseGP, x: Any, y: Any) -> None:
    """Initialise q with the posterior of regression on one-hot targets, with the noise and scale of the best bound.

    Training from μ = 0 ends in poor maxima in which some class is never the largest. Regression has a closed form:
    S = (I + AᵀA/σ²)⁻¹, μ = S AᵀY/σ².
    """
    m = model.mean.shape[1]
    identity = torch.eye(m, dtype=torch.float64, device=x.device)
    G, AY = torch.zeros_like(identity), torch.zeros(m, model.classes, dtype=torch.float64, device=x.device)
    with torch.no_grad():
        for rows, labels in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            A = model.features(rows)[0].double()
            G += A.mT @ A
            AY += A.mT @ (one_hot(labels, model.classes) - 1.0 / model.classes).double()

        def set_regression(noise: float, size: float) -> None:
            S = torch.linalg.inv(identity + G / noise)
            model.set_q(size * (S @ AY / noise).mT, torch.linalg.cholesky((S + S.mT) / 2))

        def bound(noise: float, size: float) -> float:
            step = max(1, len(x) // _CHUNK)  # strided, so that sorted data still has all classes
            set_regression(noise, size)
            return float(model.bound(x[::step], y[::step], len(x)).item())

        set_regression(*max(itertools.product(_NOISES, _SIZES), key=lambda pair: bound(*pair)))


def train(model: SparseGP, x: Any, y: Any, training: Training) -> list[float]:
    """Maximise the bound by Adam on minibatches.

    Returns, for each pass over the data, the bound of all labels in nats: the mean of the unbiased minibatch estimates
    times the number of images.
    """
    n, generator = len(x), torch.Generator().manual_seed(training.seed)
    steps = training.epochs * math.ceil(n / training.batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / (steps + 1))
    trace = []
    with progress_bar(training.epochs, "train", "epoch") as bar:
        for _ in range(training.epochs):
            total = torch.zeros((), dtype=torch.float64, device=x.device)
            for rows in torch.randperm(n, generator=generator).to(x.device).split(training.batch_size):
                optimizer.zero_grad(set_to_none=True)
                value = model.bound(x[rows], y[rows], n)
                (-value).backward()
                optimizer.step()
                schedule.step()
                total += value.detach() * len(rows)
            trace.append(total.item())
            if not math.isfinite(trace[-1]):
                raise FloatingPointError(
                    f"the bound became {trace[-1]} in pass {len(trace)}; train at a rate below "
                    f"{training.learning_rate:g} or in float64"
                )
            bar.set_postfix_str(f"ELBO {trace[-1]:,.0f}", refresh=False)
            bar.update()
    return trace
