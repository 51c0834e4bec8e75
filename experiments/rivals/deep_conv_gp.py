"""Convolutional GPs with inducing patches, with one or several layers, trained by the variational bound.

One layer is van der Wilk et al. (2017) with weighted patches, f(x) = Σ_p w_p g(patch_p). Further layers below it map
every patch to new channels: with one of them, this is the deep convolutional GP of Kumar et al. (2018), whose bound is
estimated by samples of the lower layer (doubly stochastic). q is whitened: u = L v with L Lᵀ = K_ZZ, v ~ N(m, R Rᵀ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .training import sampled_softmax

_JITTER = 1e-4
"""Jitter on the diagonal of K_ZZ, in units of the kernel's variance."""
_SAMPLES = 4
"""Samples of the lower layers for a prediction; each has `_OF_FUNCTIONS` samples of the last functions."""
_OF_FUNCTIONS = 32


class _PatchGP(nn.Module):  # type: ignore[misc]
    """Sparse GP on patches: functions with one RBF kernel and inducing patches Z, (M, numbers in a patch)."""

    def __init__(self, Z: Any, outputs: int, spread: float) -> None:
        super().__init__()
        m = len(Z)
        self.Z = nn.Parameter(Z.clone())
        typical = torch.pdist(Z).median().clamp_min(1e-3)
        self.log_lengthscale = nn.Parameter(typical.log())
        self.log_variance = nn.Parameter(torch.zeros(()))
        self.mean = nn.Parameter(torch.zeros(m, outputs))
        rows, columns = torch.tril_indices(m, m)
        self.register_buffer("lower", torch.stack([rows, columns]))
        self.packed = nn.Parameter((spread * (rows == columns)).expand(outputs, -1).clone())

    def kernel(self, a: Any, b: Any) -> Any:
        """RBF kernel between the patches of a and of b, which are the last two axes of the result."""
        squares = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :] - 2.0 * (a @ b.mT)
        return (self.log_variance - squares.clamp_min(0.0) / (2.0 * (2.0 * self.log_lengthscale).exp())).exp()

    def root(self) -> Any:
        """R, (outputs, M, M), lower triangular."""
        m = len(self.Z)
        R = torch.zeros(len(self.packed), m, m, device=self.Z.device)
        R[:, self.lower[0], self.lower[1]] = self.packed
        return R

    def whitening(self) -> Any:
        """L⁻¹, from a Cholesky factor in float64."""
        m = len(self.Z)
        eye = torch.eye(m, dtype=torch.float64, device=self.Z.device)
        K = self.kernel(self.Z, self.Z).double()
        L = torch.linalg.cholesky(K + _JITTER * self.log_variance.exp().double() * eye)
        return torch.linalg.solve_triangular(L, eye, upper=False).float()

    def marginals(self, K_zf: Any, variance: Any) -> tuple[Any, Any]:
        """Mean and variance of q(f), each (N, outputs), from covariances with u, (M, N), and prior variances, (N,)."""
        A = self.whitening() @ K_zf
        explained = (self.root().mT @ A).square().sum(1)  # (outputs, N)
        rest = (variance - A.square().sum(0)).clamp_min(1e-6)
        return A.mT @ self.mean, (rest + explained).mT

    def divergence(self) -> Any:
        """KL(q(v) ‖ N(0, I)), summed over outputs."""
        R = self.root()
        log_det = R.diagonal(dim1=-2, dim2=-1).square().clamp_min(1e-20).log().sum()
        return 0.5 * (self.packed.square().sum() + self.mean.square().sum() - log_det - self.mean.numel())


class _Layer(_PatchGP):
    """Maps every patch to new channels. The prior mean is the principal components, so that images pass through."""

    def __init__(self, patches: Any, Z: Any, channels: int, size: int, stride: int) -> None:
        super().__init__(Z, channels, spread=0.05)
        self.size, self.stride = size, stride
        centre = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        first = vectors[:, -channels:] / values[-channels:].clamp_min(1e-6).sqrt()
        self.register_buffer("centre", centre)
        self.register_buffer("components", first)

    def forward(self, x: Any, sampled: bool = True) -> Any:
        rows, (height, width) = patches_of(x, self.size, self.stride)
        flat = rows.reshape(-1, rows.shape[-1])
        mean, variance = self.marginals(self.kernel(self.Z, flat), self.log_variance.exp())
        f = mean + (flat - self.centre) @ self.components
        if sampled:
            f = f + variance.sqrt() * torch.randn_like(f)
        return f.reshape(len(x), height, width, -1).permute(0, 3, 1, 2)


class DeepConvGP(nn.Module):  # type: ignore[misc]
    """Deep convolutional GP; the inducing patches of all layers come from training images `start` (n, channels, H, W).

    `below` has (channels, patch size, stride) for each layer below the last.
    """

    def __init__(
        self,
        start: Any,
        classes: int,
        inducing: int = 256,
        below: Sequence[tuple[int, int, int]] = ((10, 5, 2),),
        size: int = 5,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.size, self.stride = size, stride
        self.below = nn.ModuleList()
        x = start
        with torch.no_grad():
            for channels, k, step in below:
                rows = _shown(patches_of(x, k, step)[0])
                self.below.append(_Layer(rows, _some(rows, inducing), channels, k, step))
                x = self.below[-1](x, sampled=False)
            rows, places = patches_of(x, size, stride)
            self.last = _PatchGP(_some(_shown(rows), inducing), classes, spread=0.3)
            self.weights = nn.Parameter(torch.full((math.prod(places),), 1.0 / math.sqrt(math.prod(places))))
            self.last.log_variance += math.log(4.0)

    def functions(self, x: Any) -> tuple[Any, Any]:
        """Mean and variance of the functions of all classes, each (batch, classes), for one sample of lower layers."""
        for layer in self.below:
            x = layer(x)
        rows, _ = patches_of(x, self.size, self.stride)  # (batch, P, numbers)
        w = self.weights
        K_zf = torch.einsum(
            "mbp,p->mb", self.last.kernel(self.last.Z, rows.flatten(0, 1)).unflatten(1, rows.shape[:2]), w
        )
        variance = torch.einsum("bpq,p,q->b", self.last.kernel(rows, rows), w, w)
        return self.last.marginals(K_zf, variance)

    def loss(self, x: Any, y: Any, n: int) -> Any:
        log_p = sampled_softmax(*self.functions(x), 8).mean(0)
        divergence = self.last.divergence() + sum(layer.divergence() for layer in self.below)
        return F.nll_loss(log_p, y) + divergence / n

    def probabilities(self, x: Any) -> Any:
        samples = _SAMPLES if len(self.below) else 1
        return sum(sampled_softmax(*self.functions(x), _OF_FUNCTIONS).exp().mean(0) for _ in range(samples)) / samples


def patches_of(x: Any, size: int, stride: int) -> tuple[Any, tuple[int, int]]:
    """All patches of images, (batch, locations, numbers), and the number of locations along each axis."""
    rows = F.unfold(x, size, stride=stride).mT
    return rows, ((x.shape[2] - size) // stride + 1, (x.shape[3] - size) // stride + 1)


def _shown(rows: Any) -> Any:
    """Patches that are not blank; most patches of a digit are."""
    flat = rows.reshape(-1, rows.shape[-1])
    found = flat[flat.std(1) > 1e-3]
    return found if len(found) else flat


def _some(rows: Any, count: int) -> Any:
    """`count` patches spread evenly over the rows; a little noise makes equal ones different."""
    picked = rows[torch.linspace(0, len(rows) - 1, count).long()]
    generator = torch.Generator().manual_seed(0)
    return picked + 1e-3 * torch.randn(picked.shape, generator=generator)
