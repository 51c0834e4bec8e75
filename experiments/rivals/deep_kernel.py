"""GP with a parametric deep kernel: an RBF kernel on the features of a small CNN (Bradshaw et al., 2017).

Network, kernel, inducing points and q(f) are trained together by the variational bound, with a softmax likelihood.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from cnngp.torch_bridge import need_gpytorch

from .training import sampled_softmax

gpytorch = need_gpytorch("a GP with a deep kernel")

_SAMPLES = 256
"""Samples of the functions for a prediction."""


class _Functions(gpytorch.models.ApproximateGP):  # type: ignore[misc, name-defined]
    """One function for each class, all with the same RBF kernel on the features."""

    def __init__(self, points: Any, classes: int) -> None:
        q = gpytorch.variational.CholeskyVariationalDistribution(len(points), batch_shape=torch.Size([classes]))
        each = gpytorch.variational.VariationalStrategy(self, points, q, learn_inducing_locations=True)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(each, num_tasks=classes))
        # Start from a narrow q: with the prior's width, the features get no useful gradient for many passes.
        with torch.no_grad():
            q.chol_variational_covar.mul_(0.1)
        each.variational_params_initialized.fill_(1)
        self.mean = gpytorch.means.ConstantMean(batch_shape=torch.Size([classes]))
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.kernel.base_kernel.lengthscale = math.sqrt(points.shape[-1])
        self.kernel.outputscale = 4.0

    def forward(self, x: Any) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


class DeepKernelGP(nn.Module):  # type: ignore[misc]
    """Deep kernel GP; inducing points start at the features of training images `start`, (M, channels, H, W)."""

    def __init__(self, start: Any, classes: int, width: int = 32, features: int = 16) -> None:
        super().__init__()
        _, channels, height, wide = start.shape
        self.features = nn.Sequential(
            *self._convolution(channels, width),
            *self._convolution(width, 2 * width),
            nn.Flatten(),
            nn.Linear(2 * width * (height // 4) * (wide // 4), 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, features),
            nn.BatchNorm1d(features, affine=False),
        )
        with torch.no_grad():
            points = self.features(start)  # in training mode, so batch norm uses these images
        self.functions = _Functions(points, classes)
        self.likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=classes, mixing_weights=False)

    @staticmethod
    def _convolution(before: int, after: int) -> list[Any]:
        return [nn.Conv2d(before, after, 5, padding=2), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    def loss(self, x: Any, y: Any, n: int) -> Any:
        bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.functions, num_data=n)
        return -bound(self.functions(self.features(x).float()), y)

    def probabilities(self, x: Any) -> Any:
        f = self.functions(self.features(x))
        return sampled_softmax(f.mean, f.variance, _SAMPLES).exp().mean(0)
