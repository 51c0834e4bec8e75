"""The loss of a network on some images, as a function of its variances and the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.gp.checks import check_targets
from cnngp.gp.groups import one_of_each
from cnngp.gp.line_search import minimised
from cnngp.gp.objectives import Judged, MeansLoss, Rule, judged
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network

from .groups import Group

Array = NDArray[Any]

BOUNDS = (math.log(1e-6), math.log(1e6))
"""The logarithms of noise that are tried, over the mean k(x, x). Below the least, it does nothing in float32; the most
is that of `noise="ml"`, beside which targets are nothing but noise."""


def balanced(
    Y: NDArray[np.float64], n: int, seed: int | None, groups: NDArray[np.intp] | None = None, shuffled: bool = False
) -> NDArray[np.intp]:
    """Rows of `n` images, drawn at random, as many of each class as can be, and one at most of each group; sorted, or
    `shuffled`, so that the first ones of them are such rows too.

    Targets that are hardly ever the same, as those of a regression, have no classes.
    """
    if groups is not None:  # of several, one would say what another is
        apart = one_of_each(groups, len(Y))
        found = apart[balanced(Y[apart], n, seed, shuffled=True)]
        return found if shuffled else np.sort(found)
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(Y))
    _, codes = np.unique(Y[drawn], axis=0, return_inverse=True)
    if 2 * (codes.max() + 1) <= len(Y):
        turn = np.empty(len(Y), np.intp)  # which image of its class each one is
        for code in range(codes.max() + 1):
            turn[codes == code] = np.arange((codes == code).sum())
        drawn = drawn[np.argsort(turn, kind="stable")]
    return drawn[:n] if shuffled else np.sort(drawn[:n])


class Problem:
    """Images and targets, and what a network's variances are judged by; `kernel` runs on the CPU.

    The noise is counted in units of the mean k(x, x), so that a factor of the kernel changes nothing; one that the
    caller gave as a positive number stands in the kernel's units, and stays as it is.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Array,
        Y: NDArray[np.float64],
        rule: Rule,
        noise: Any,
        amplitude: Any,
        means_loss: MeansLoss | None,
    ) -> None:
        # K and its copy, the factor, the inverse, the gradient and a product.
        memory.require(6 * 8 * len(X) ** 2, f"learning on {len(X):,} images")
        self.kernel, self.X, self.rule, self.amplitude = kernel, X, rule, amplitude
        self.Y, self.means_loss = check_targets(np, Y, len(X)), means_loss
        # A search turns back where a gradient fails; where there is none anywhere, it is said here.
        kernel.gradient(X[:1], None, np.zeros((1, 1)), progress=False)
        self.given_noise = None if isinstance(noise, str) or noise == 0 else float(noise)

    @property
    def scale_counts(self) -> bool:
        """Whether a factor of the kernel changes the loss."""
        return self.given_noise is not None or not isinstance(self.amplitude, str)

    def of(self, network: Network, dtype: str | None = None) -> Kernel:
        """The kernel of another network with the same settings; the search asks for too many to check each."""
        return self.kernel.with_network(network, dtype=dtype, check=False)

    def matrix(self, kernel: Kernel) -> Array:
        return np.asarray(kernel(self.X, progress=False), dtype=np.float64)

    def judge(self, K: Array, log_noise: float) -> Judged:
        """The loss, by a matrix whose diagonal the noise depends on, and by log noise."""
        n, mean = len(K), float(K.diagonal().mean())
        noise = math.exp(log_noise) * mean if self.given_noise is None else self.given_noise
        found = judged(self.rule, K, self.Y, noise, self.amplitude, self.means_loss)
        if self.given_noise is not None:
            return found._replace(by_noise=0.0)
        by_matrix = found.by_matrix
        by_matrix[np.arange(n), np.arange(n)] += found.by_noise * noise / (mean * n)
        return Judged(found.loss, by_matrix, found.by_noise * noise)

    def slopes(self, kernel: Kernel, groups: Sequence[Group], by_matrix: Array) -> Array:
        """Σ_ij by_matrix_ij ∂K_ij/∂log θ for the common factor of each group."""
        values, slopes = kernel.network.parameters(), kernel.gradient(self.X, None, by_matrix, progress=False)
        return np.array([sum(values[member] * slopes[member] for member in group.members) for group in groups])

    def best_noise(self, K: Array) -> tuple[float, float]:
        """The log noise that suits a matrix best, and the loss there."""
        if self.given_noise is not None:
            return 0.0, self.judge(K, 0.0).loss
        found = minimised(lambda g: self.judge(K, g).loss, *BOUNDS, points=13, tolerance=0.05, inside=True)
        return found.at, found.loss
