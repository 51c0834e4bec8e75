"""`RobustMax`: the label is the largest of several functions, but for a small chance; a likelihood for GPyTorch.

p(y | f) = 1 − ε where f_y is the largest, ε/(C − 1) elsewhere. For independent f_c ~ N(m_c, v_c) all that is needed is
the probability P_y that f_y is the largest, one integral over one Gaussian, done by Gauss–Hermite quadrature:

    P_y = ∫ N(f; m_y, v_y) Π_{c≠y} Φ((f − m_c)/√v_c) df
    E log p(y | f) = P_y log(1 − ε) + (1 − P_y) log(ε/(C − 1))
    E p(y | f)     = P_y (1 − ε) + (1 − P_y) ε/(C − 1)

Scaling all the functions by one factor changes nothing: an amplitude of the kernel has no effect with this likelihood.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from cnngp.torch_bridge import need_gpytorch

gpytorch: Any = need_gpytorch("figure3")

# log Φ(−12) is −75: below it nothing can be seen beside 1, and in float32 the derivative of log Φ loses its digits.
_LOWEST = -12.0


class RobustMax(gpytorch.likelihoods.Likelihood):  # type: ignore[misc]
    """The likelihood of one label of `num_classes`, of functions (N, num_classes); `epsilon` is the chance of another.

    `nodes` of the quadrature while training, `predictive_nodes` for probabilities. Where all v_c are equal 32 nodes are
    within 3e-7 of the integral and 100 within 2e-15; where the √v_c differ by a factor of 5, within 2e-3 and 2e-4.

    >>> likelihood = RobustMax(3)
    >>> same = torch.zeros(1, 3)
    >>> likelihood.probabilities(same, same + 1.0)
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    def __init__(self, num_classes: int, epsilon: float = 1e-3, nodes: int = 32, predictive_nodes: int = 100) -> None:
        if num_classes < 2:
            raise ValueError(f"RobustMax: num_classes={num_classes!r}; expected at least 2")
        if not 0.0 < epsilon < 1.0:
            raise ValueError(f"RobustMax: epsilon={epsilon!r}; expected a probability above 0 and below 1")
        super().__init__()
        self.num_classes = num_classes
        self.epsilon = epsilon
        self._rules = {True: _gauss_hermite(nodes), False: _gauss_hermite(predictive_nodes)}

    def forward(self, function_samples: Any, *args: Any, **kwargs: Any) -> Any:
        """p(y | f) of functions (…, num_classes)."""
        largest = torch.nn.functional.one_hot(function_samples.argmax(-1), self.num_classes)
        return torch.distributions.Categorical(probs=self._soften(largest.to(function_samples.dtype)))

    def expected_log_prob(self, observations: Any, function_dist: Any, *args: Any, **kwargs: Any) -> Any:
        """E log p(y_n | f_n) for each n, (N,)."""
        P = self.probability_of_largest(function_dist.mean, function_dist.variance, observations)
        right, wrong = math.log1p(-self.epsilon), math.log(self.epsilon / (self.num_classes - 1))
        return wrong + (right - wrong) * P

    def marginal(self, function_dist: Any, *args: Any, **kwargs: Any) -> Any:
        """p(y_n) as a categorical distribution."""
        return torch.distributions.Categorical(probs=self.probabilities(function_dist.mean, function_dist.variance))

    def log_marginal(self, observations: Any, function_dist: Any, *args: Any, **kwargs: Any) -> Any:
        return self.marginal(function_dist).log_prob(observations)

    def probabilities(self, mean: Any, variance: Any) -> Any:
        """p(y) of every class, (N, num_classes), from moments of that shape."""
        labels = torch.arange(self.num_classes, device=mean.device)
        P = torch.stack([self._largest(mean, variance, c.expand(len(mean)), training=False) for c in labels], -1)
        return self._soften(P / P.sum(-1, keepdim=True))

    def probability_of_largest(self, mean: Any, variance: Any, labels: Any) -> Any:
        """P(f_y is the largest) for independent f_c ~ N(mean_c, variance_c), (N,), at each row's label y."""
        return self._largest(mean, variance, labels, training=self.training)

    def _largest(self, mean: Any, variance: Any, labels: Any, training: bool) -> Any:
        z, log_w = (torch.as_tensor(a, dtype=mean.dtype, device=mean.device) for a in self._rules[training])
        std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        y = labels.unsqueeze(-1)
        f = mean.gather(-1, y) + std.gather(-1, y) * z  # (N, nodes)
        u = (f.unsqueeze(-2) - mean.unsqueeze(-1)) / std.unsqueeze(-1)  # (N, C, nodes)
        log_below = torch.special.log_ndtr(u.clamp_min(_LOWEST))
        itself = torch.nn.functional.one_hot(labels, self.num_classes).bool().unsqueeze(-1)
        log_product = log_below.masked_fill(itself, 0.0).sum(-2)
        return torch.logsumexp(log_product + log_w, -1).exp()

    def _soften(self, P: Any) -> Any:
        return P * (1.0 - self.epsilon) + (1.0 - P) * (self.epsilon / (self.num_classes - 1))


def _gauss_hermite(nodes: int) -> tuple[Any, Any]:
    """Nodes and log weights for the standard normal distribution."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    return z, np.log(w / w.sum())
