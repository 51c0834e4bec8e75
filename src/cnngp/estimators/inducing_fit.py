"""Fitting through inducing images: the choice, one pass over the training images, and how far off the result is.

The exact process of all images is what inducing images are there to avoid, so it cannot be compared with. That of m of
them can (the pilot): both are fitted to these, the approximation through the same share of them as the large one, and
both are asked for images that neither has seen. How much of the error is the approximation's doing depends on the data
(on clean digits a fifth, on textured ones as much again); that share, applied to the error of the large fit, is what is
reported. It tends to be too large, because the share falls slowly as sets grow, and is seldom too small.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.progress import progress_bar
from cnngp.gp.exact import Amplitude, ExactGP, Noise
from cnngp.gp.groups import Codes, one_of_each, whole_groups
from cnngp.gp.inducing import SAMPLE, InducingGP
from cnngp.gp.linalg import blocks
from cnngp.gp.noise import Loss, chosen_noise
from cnngp.gp.posterior import Part

from .inducing_images import Chosen, Source, choose, columns_of, rows_of
from .kernels import RecipeKernel
from .training_images import Images

Array = NDArray[Any]
Floats = NDArray[np.float64]
Wrong = Callable[[Floats, Floats], NDArray[np.bool_]]
"""Means and targets (M, outputs) → which of the M images are classified wrongly."""

# Of the training images, those kept for leave-one-out where the inducing ones are chosen: a quarter, at least so many,
# and no more than SAMPLE. Where that is over half of what is not chosen, none are kept.
_SHARE, _FEWEST_KEPT = 4, 64
# How much less images count about which the inducing ones say little; leave-one-out takes the best. docs/solve.md.
_DISCOUNTS = (0.0, 30.0, 100.0, 300.0, 1000.0)
# The pilot's images: m to fit, but between so many and never more than half of all; and 15 % to predict, but between so
# many and never more than 30 %. Fewer than the last number say nothing.
_FITTED, _TRIED, _FEWEST = (2_000, 10_000), (1_024, 4_096), 64
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
        measured = self.uncertainty * likely / self.error if self.error > 0.0 else 0.0
        return share * error, math.hypot(measured, share * math.sqrt(likely * (1.0 - likely) / of))


def fit_with_pilot(
    images: Source, Y: Floats, asked: int | Chosen, *, wrong: Wrong | None, **options: Any
) -> tuple[InducingGP, Array, Codes, Pilot | None]:
    """What `fit_inducing` gives, and how it compares with the exact process on a few of the images."""
    model = fit_inducing(images, Y, asked, **options)
    return *model, None if wrong is None else pilot(images, Y, asked, wrong, **options)


def fit_inducing(
    images: Source,
    Y: Floats,
    asked: int | Chosen,
    *,
    noise: Noise,
    seed: int | None,
    store: Any,
    groups: Codes | None,
    loss: Loss | None,
    amplitude: Amplitude = "ml",
) -> tuple[InducingGP, Array, Codes]:
    """The model, its inducing images, those that were `asked_for`, and their rows among the training images if they
    are some of these."""
    n = len(images)
    m = asked if isinstance(asked, int) else len(asked.Z)
    share = min(max(n // _SHARE, _FEWEST_KEPT), SAMPLE)
    reserves = isinstance(asked, int) and 2 * share <= n - m
    sample = _sample(n, share if reserves else min(n, SAMPLE), groups, np.random.default_rng(seed))
    reserves = reserves and 2 * len(sample) <= n - m
    need = 8 * m * ((1 + len(_DISCOUNTS)) * m + 4 * min(images.block(m), n) + 4 * len(sample))
    need += images.images.dtype.itemsize * m * m
    least = images.bytes_of_candidate(m) * min(2 * m, n) if isinstance(asked, int) else 0
    memory.require(need + least, f"regression through {m:,} inducing images", images.kernel.device)
    choice = asked
    if isinstance(choice, int):
        free = memory.available(images.kernel.device)
        reserved = sample if reserves else np.empty(0, np.intp)
        rng = np.random.default_rng(seed)  # so that what is chosen does not depend on how many are reserved
        choice = choose(images, Y, choice, reserved, rng, None if free is None else free - need, store)
    columns = choice.columns
    if store is not None and not columns:
        columns = [columns_of(images, images.images, choice.Z, store)]
    gp = InducingGP(
        images.kernel(choice.Z, output=images.output),
        kernel_parts(images.images, images.kernel, choice.Z, Y, columns),
        sample,
        noise=noise,
        amplitude=amplitude,
        discounts=_DISCOUNTS,
        own=choice.numbers(sample),
        groups=None if groups is None else groups[sample],
        loss=loss,
    )
    return gp, choice.Z, choice.rows


def _sample(n: int, size: int, groups: Codes | None, rng: np.random.Generator) -> Codes:
    """Rows of the images that leave-one-out predicts, sorted; of a group all or none."""
    if groups is None:
        return np.sort(rng.choice(n, size, replace=False))
    rows = whole_groups(groups, size, rng)
    if len(rows) > SAMPLE:
        raise DataError(
            f"the smallest of the groups has {len(rows):,} images, and inducing= leaves at most {SAMPLE:,} out "
            "together; give smaller groups, or fit the exact model without inducing="
        )
    return rows


def kernel_parts(
    images: Images, kernel: RecipeKernel, Z: Array, Y: Floats, columns: Sequence[Any] = ()
) -> Iterator[Part]:
    """K(X, Z), Y and k(x, x), some rows at a time; K from `columns` of it where it has been computed."""
    source = Source(images, kernel)
    with progress_bar(len(images), "kernel", "image") as bar:
        for rows in blocks(len(images), source.block(len(Z))):
            X = images.at(rows)
            K = rows_of(source.xp, columns, rows) if columns else kernel(X, Z, output=source.output, progress=False)
            yield rows, K, Y[rows], kernel.diag(X)
            bar.update(rows.stop - rows.start)


def pilot(
    images: Source,
    Y: Floats,
    asked: int | Chosen,
    wrong: Wrong,
    *,
    noise: Noise,
    seed: int | None,
    store: Any,
    groups: Codes | None,
    loss: Loss | None,
    **_: Any,
) -> Pilot | None:
    """Both models on some of the images; None where there are too few, or the inducing images are not some of them.

    Images of one of the `groups` are not divided: those that are predicted belong to others than those that are fitted.
    """
    n, xp = len(images), images.xp
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
    X_few = images.at(few)
    part = Source(Images(X_few, X_few.dtype), images.kernel)
    few_inducing = max(round(size * m / n), 1)
    # Given rows are no better than any others, for all that is known.
    same = few_inducing if isinstance(asked, int) else Chosen(np.arange(few_inducing), X_few[:few_inducing])
    K, K_unseen = (
        rows_of(xp, [columns_of(part, images.at(at), X_few, store, at)], slice(None)) for at in (few, unseen)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the small fits, whose matrices are shown to no one
        made = fit_inducing(part, Y[few], same, noise=noise, seed=seed, store=store, groups=together, loss=loss)
        K = K.astype(xp.float64)
        K[xp.arange(size), xp.arange(size)] = xp.asarray(images.kernel.diag(X_few))
        step = slice(None, None, -(-size // _NOISE_FROM))
        rule, some = "loo" if noise == 0.0 else noise, None if together is None else together[step]
        chosen = chosen_noise(K[step, step], xp.asarray(Y[few][step]), rule, "ml", groups=some, loss=loss)
        exact = ExactGP(K, Y[few], noise=chosen, overwrite=True)
    means = made[0].mean(K_unseen[:, xp.asarray(made[2])]), exact.mean(K_unseen)
    a, b = (wrong(to_numpy(mean), Y[unseen]).astype(np.float64) for mean in means)
    return Pilot(size, few_inducing, float(a.mean()), float(b.mean()), float((a - b).std()) / math.sqrt(tried))


def _divided(n: int, size: int, tried: int, groups: Codes | None, rng: np.random.Generator) -> tuple[Codes, Codes]:
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
