"""Fitting through inducing images: the choice, then one pass over the training images, a block of kernels at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.arrays import DataError
from cnngp.common.progress import progress_bar
from cnngp.gp.exact import Amplitude, Noise
from cnngp.gp.groups import whole_groups
from cnngp.gp.inducing import SAMPLE, InducingGP
from cnngp.gp.linalg import blocks
from cnngp.gp.noise import Loss
from cnngp.gp.posterior import Part

from .inducing_images import Chosen, Source, choose, columns_of, rows_of
from .inducing_pilot import Pilot, Wrong, pilot
from .kernels import RecipeKernel
from .training_images import Images

Array = NDArray[Any]

# Of the training images, those kept for leave-one-out where the inducing ones are chosen: a quarter, at least so many,
# and no more than SAMPLE. Where that is over half of what is not chosen, none are kept.
_SHARE, _FEWEST = 4, 64
# How much less images count about which the inducing ones say little; leave-one-out takes the best. docs/solve.md.
_DISCOUNTS = (0.0, 30.0, 100.0, 300.0, 1000.0)


def fit_with_pilot(
    images: Source,
    Y: NDArray[np.float64],
    asked: int | Chosen,
    *,
    noise: Noise,
    wrong: Wrong | None,
    seed: int | None,
    store: Any,
    groups: NDArray[np.intp] | None,
    loss: Loss | None,
    **options: Any,
) -> tuple[InducingGP, Array, NDArray[np.intp], Pilot | None]:
    """What `fit_inducing` gives, and how it compares with the exact process on a few of the images."""

    def fit(
        images: Source, Y: NDArray[np.float64], asked: int | Chosen, groups: NDArray[np.intp] | None
    ) -> tuple[InducingGP, Array, NDArray[np.intp]]:
        return fit_inducing(images, Y, asked, noise=noise, seed=seed, store=store, groups=groups, loss=loss, **options)

    model = fit(images, Y, asked, groups)
    if wrong is None:
        return *model, None
    return *model, pilot(images, Y, asked, fit, wrong, noise=noise, seed=seed, store=store, groups=groups, loss=loss)


def fit_inducing(
    images: Source,
    Y: NDArray[np.float64],
    asked: int | Chosen,
    *,
    noise: Noise,
    amplitude: Amplitude,
    loss: Loss | None,
    seed: int | None,
    store: Any,
    groups: NDArray[np.intp] | None,
) -> tuple[InducingGP, Array, NDArray[np.intp]]:
    """The model, its inducing images, those that were `asked_for`, and their rows among the training images if they
    are some of these."""
    n = len(images)
    m = asked if isinstance(asked, int) else len(asked.Z)
    share = min(max(n // _SHARE, _FEWEST), SAMPLE)
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


def _sample(n: int, size: int, groups: NDArray[np.intp] | None, rng: np.random.Generator) -> NDArray[np.intp]:
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
    images: Images, kernel: RecipeKernel, Z: Array, Y: NDArray[np.float64], columns: Sequence[Any] = ()
) -> Iterator[Part]:
    """K(X, Z), Y and k(x, x), some rows at a time; K from `columns` of it where it has been computed."""
    source = Source(images, kernel)
    with progress_bar(len(images), "kernel", "image") as bar:
        for rows in blocks(len(images), source.block(len(Z))):
            X = images.at(rows)
            K = rows_of(source.xp, columns, rows) if columns else kernel(X, Z, output=source.output, progress=False)
            yield rows, K, Y[rows], kernel.diag(X)
            bar.update(rows.stop - rows.start)
