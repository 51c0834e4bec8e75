"""By how much the error through inducing images is above the exact process's: measured on a part of the images.

The exact process of all images is what inducing images are there to avoid, so it cannot be compared with. That of m of
them can: both are fitted to these, the approximation through the same share of them as the large one, and both are
asked for images that neither has seen. How much of the error is the approximation's doing depends on the data (on clean
digits a fifth, on textured ones as much again); that share, applied to the error of the large fit, is what is reported.
It tends to be too large, because the share falls slowly as sets grow, and is seldom too small.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.gp.exact import ExactGP, Noise
from cnngp.gp.groups import one_of_each, whole_groups
from cnngp.gp.inducing import InducingGP
from cnngp.gp.noise import Loss, chosen_noise

from .inducing_images import Chosen, Source, columns_of, rows_of
from .training_images import Images

Wrong = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]
"""Means and targets (M, outputs) → which of the M images are classified wrongly."""
Groups = NDArray[np.intp] | None
Fit = Callable[[Source, NDArray[np.float64], "int | Chosen", Groups], tuple[InducingGP, Any, NDArray[np.intp]]]

# The images of the small fits: m, but between so many, and never more than half of all.
_FITTED = (2_000, 10_000)
# The images that both are asked for: 15 %, but between so many, and never more than 30 %. Fewer than the last number
# say nothing.
_TRIED = (1_024, 4_096)
_FEWEST = 64
# Images from which the noise of the exact process is chosen: an eigendecomposition takes long.
_NOISE_FROM = 1500


@dataclass(frozen=True)
class Pilot:
    """Errors of both models on the same unseen images, as fractions, and the standard error of their difference."""

    images: int
    inducing: int
    error: float
    exact: float
    uncertainty: float

    def excess(self, error: float, of: int) -> tuple[float, float]:
        """Of a larger fit that errs in this share `of` so many images: by how much it is above the exact one's, and the
        standard error of that."""
        # Of few images none may be wrong; that does not make the error 0.
        likely = (error * of + 1.0) / (of + 2.0)
        share = max(self.error - self.exact, 0.0) / self.error if self.error > 0.0 else 0.0
        parts = (
            self.uncertainty * likely / self.error if self.error > 0.0 else 0.0,
            share * math.sqrt(likely * (1.0 - likely) / of),
        )
        return share * error, math.hypot(*parts)


def pilot(
    images: Source,
    Y: NDArray[np.float64],
    asked: int | Chosen,
    fit: Fit,
    wrong: Wrong,
    *,
    noise: Noise,
    seed: int | None,
    store: Any,
    groups: Groups = None,
    loss: Loss | None = None,
) -> Pilot | None:
    """Both models on some of the images; None where there are too few, or the inducing images are not some of them.

    Images of one of the `groups` are not divided: those that are predicted belong to others than those that are fitted.
    """
    n = len(images)
    m = asked if isinstance(asked, int) else len(asked.rows)
    size = min(_between(m, _FITTED), n // 2)
    tried = min(_between(int(0.15 * n), _TRIED), int(0.3 * n))
    if not 0 < m < n or min(size, tried) < _FEWEST:
        return None
    few, unseen = _divided(n, size, tried, groups, np.random.default_rng(None if seed is None else [seed, n, m]))
    size, tried = len(few), len(unseen)
    if min(size, tried) < _FEWEST:
        return None
    together = None if groups is None else groups[few]
    X_few, X = images.at(few), images.at(unseen)
    part = Source(Images(X_few, X_few.dtype), images.kernel)
    few_inducing = max(round(size * m / n), 1)
    # Given rows are no better than any others, for all that is known.
    same = few_inducing if isinstance(asked, int) else Chosen(np.arange(few_inducing), X_few[:few_inducing])
    K_few, K_unseen = (columns_of(part, Z, X_few, store, rows) for Z, rows in ((X_few, few), (X, unseen)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the small fits, whose matrices nobody sees
        gp, _, rows = fit(part, Y[few], same, together)
        K = rows_of(images.xp, [K_few], slice(0, size)).astype(images.xp.float64)
        diagonal = images.xp.arange(size)
        K[diagonal, diagonal] = images.xp.asarray(images.kernel.diag(X_few))
        step = -(-size // _NOISE_FROM)
        rule = "loo" if noise == 0.0 else noise
        few_groups = None if together is None else together[::step]
        chosen = chosen_noise(
            K[::step, ::step], images.xp.asarray(Y[few][::step]), rule, "ml", groups=few_groups, loss=loss
        )
        exact = ExactGP(K, Y[few], noise=chosen, overwrite=True)
    block = rows_of(images.xp, [K_unseen], slice(0, tried))
    a, b = (
        wrong(to_numpy(mean), Y[unseen]).astype(np.float64)
        for mean in (gp.mean(block[:, images.xp.asarray(rows)]), exact.mean(block))
    )
    uncertainty = float((a - b).std()) / math.sqrt(tried)
    return Pilot(size, few_inducing, float(a.mean()), float(b.mean()), uncertainty)


def _divided(
    n: int, size: int, tried: int, groups: Groups, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to fit and rows to predict, sorted; with groups, one of each group that was not fitted."""
    if groups is None:
        drawn = rng.choice(n, size + tried, replace=False)
        return np.sort(drawn[:size]), np.sort(drawn[size:])
    few = whole_groups(groups, size, rng)
    others = one_of_each(groups, n)
    others = rng.permutation(others[~np.isin(groups[others], groups[few])])
    return few, np.sort(others[:tried])


def _between(number: int, bounds: tuple[int, int]) -> int:
    return min(max(number, bounds[0]), bounds[1])
