"""Random small problems of inference, and an oracle that solves the equations of a Gaussian process and nothing else.

Points stand alone, in groups, or in groups that share images; they have noise of their own or not, and one or several
outputs.
"""

from typing import Any

import numpy as np

from cnngp.gp.exact import ExactGP

M = 4  # new points


def rbf(a: np.ndarray, b: np.ndarray | None = None, length: float = 1.5) -> np.ndarray:
    return np.exp(-((a[:, None] - (a if b is None else b)) ** 2).sum(-1) / (2.0 * length**2))


class Problem:
    def __init__(self, seed: int, agree: bool = False, ties: bool = False) -> None:
        """`agree`: points of a group have equal errors; `ties`: many points are equal, also to new ones."""
        rng = self.rng = np.random.default_rng(seed)
        self.kind = ("alone", "groups", "shared images")[seed % 3]
        n = self.n = int(rng.integers(9, 20))
        self.group = np.arange(n) if self.kind == "alone" else np.r_[np.arange(7), rng.integers(7, size=n - 7)]
        self.image = np.arange(n)
        if self.kind == "shared images":
            self.image[rng.permutation(n)[: rng.integers(2, 7)]] = 3
        points = rng.standard_normal((n + M, 2))
        near = rng.choice([0.0, 1e-4, 0.3, 1.0])
        points[:n] = points[self.group] + near * rng.standard_normal((n, 2)) if seed % 2 else points[:n]
        points[:n] = points[self.image]
        points = np.round(points) if ties else points
        size = np.exp((not ties) * 0.3 * rng.standard_normal(n + M))  # k(x, x) differs from point to point
        size[:n] = size[self.image]
        self.K = np.exp(-0.4 * ((points[:, None] - points) ** 2).sum(-1)) * size[:, None] * size
        self.noise = float(rng.choice([0.02, 0.1, 0.5]))
        self.own = rng.choice([0.0, 0.2], n) * (seed % 4 > 1)
        errors = rng.standard_normal((n, 1 + seed % 3))
        self.Y = np.sin(2.0 * points[:n, :1]) + rng.choice([0.1, 0.4]) * (errors[self.group] if agree else errors)
        self.labels = (points[:n, 0] > 0).astype(int) + (points[:n, 1] > 0.4 * rng.standard_normal(n))

    @property
    def groups(self) -> Any:
        return {"alone": None, "groups": self.group}.get(self.kind, np.stack([self.group, self.image], 1))

    @property
    def new(self) -> tuple[Any, Any, Any]:
        """K(new, training), K(new, new) and its diagonal."""
        K = self.K[self.n :, self.n :]
        return self.K[self.n :, : self.n], K, K.diagonal()

    def exact(self, Y: Any = None, **options: Any) -> ExactGP:
        n, Y = self.n, self.Y if Y is None else Y
        given = {"noise": self.noise, "amplitude": 1.7, "groups": self.groups, "point_noise": self.own} | options
        return ExactGP(self.K[:n, :n], Y, **given)

    def predicted(self, test: Any, train: Any, Y: Any, noise: float | None = None) -> tuple[Any, Any]:
        """The oracle: mean and covariance of f at `test` given the targets at `train`, for the amplitude 1."""
        own = np.r_[self.own, np.zeros(M)][train]
        A = self.K[np.ix_(train, train)] + np.diag(own + (self.noise if noise is None else noise))
        k = self.K[np.ix_(test, train)]
        return k @ np.linalg.solve(A, Y), self.K[np.ix_(test, test)] - k @ np.linalg.solve(A, k.T)

    def left_out(self, x: int | None = None, Y: Any = None, noise: float | None = None) -> tuple[Any, Any, Any]:
        """Each point, and the new point x among them, without what is left out with it: mean and variance of y, and
        Σ d_gᵀS_g⁻¹d_g where every set has its share of points.
        """
        Y = self.Y if Y is None else Y
        rows = np.arange(self.n) if x is None else np.r_[np.arange(self.n), self.n + x]
        group, image = (np.r_[a, [1000] * (x is not None)] for a in (self.group, self.image))
        own, noise = np.r_[self.own, np.zeros(len(rows) - self.n)], self.noise if noise is None else noise
        means, variances, jointly = np.empty_like(Y), np.empty(len(rows)), 0.0
        for i in range(len(rows)):
            out = (group == group[i]) | ((image == image[i]) & (self.kind == "shared images"))
            mean, covariance = self.predicted(rows[out], rows[~out], Y[~out], noise)
            S, d, at = covariance + np.diag(own[out] + noise), Y[out] - mean, int(out[:i].sum())
            means[i], variances[i] = mean[at], S[at, at]
            jointly += float((d * np.linalg.solve(S, d)).sum()) / out.sum()
        return means, variances, jointly
