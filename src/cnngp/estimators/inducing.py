"""Fitting with inducing images: their choice, one pass over the training images, and the error of the approximation.

By default the images are chosen whose targets the others explain least; docs/solve.md has figures. The exact GP of all
images is too expensive to compare with, so the comparison uses a part of the images (the pilot): both models are fitted
to it, the approximation with the same share of inducing images as the large fit, and both predict images that neither
has seen. The share of the pilot's error that is due to the approximation, applied to the error of the large fit, is
reported. It tends to be too large, because the share falls slowly as sets grow, and is seldom too small.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.arrays import DataError, as_images, to_numpy
from cnngp.common.devices import array_module, output_on
from cnngp.common.progress import progress_bar
from cnngp.gp.checks import float64_buffer
from cnngp.gp.exact import Amplitude, ExactGP, Noise
from cnngp.gp.inducing import SAMPLE, InducingGP
from cnngp.gp.leave_one_out import Codes, one_of_each, whole_groups
from cnngp.gp.linalg import blocks, factorised
from cnngp.gp.objectives import Loss, chosen_noise
from cnngp.gp.posterior import Part
from cnngp.matrix.store.places import child

from .kernels import RecipeKernel
from .training_images import Images, is_repeated

Array = NDArray[Any]
Floats = NDArray[np.float64]
Wrong = Callable[[Floats, Floats], NDArray[np.bool_]]
"""Means and targets (M, outputs) → mask of the M images that are classified wrongly."""

# Entries of K(images, inducing) that are in memory at a time.
_ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 26}
# Candidates per inducing image, and rounds in which these are chosen. One round (half at random, half the worst of the
# rest) leaves resnet(32) on MNIST a third further from the exact GP than eight, and sixteen gain 2 %.
_CANDIDATES, _ROUNDS = 9, 8
# Noise of the model that chooses, relative to the mean diagonal: with less it would choose wrong labels.
_NOISE = 1e-2
# Training images reserved for leave-one-out if the inducing images are chosen: a quarter, at least the second number
# and at most SAMPLE. If that is over half of the images that are not chosen, none are reserved.
_SHARE, _FEWEST_KEPT = 4, 64
# Discounts of images that the inducing images explain badly; leave-one-out chooses the best. See docs/solve.md.
_DISCOUNTS = (0.0, 30.0, 100.0, 300.0, 1000.0)
# Images of the pilot: m to fit, within the first bounds and at most half of all; 15 % to predict, within the second
# bounds and at most 30 %. Fewer than the last number are not informative.
_FITTED, _TRIED, _FEWEST = (2_000, 10_000), (1_024, 4_096), 64
# Images from which the noise of the exact GP is selected, because an eigendecomposition is slow.
_NOISE_FROM = 1500


@dataclass(frozen=True)
class Source:
    """Training images with their targets `Y` (N, outputs), and their kernel.

    `store` keeps computed kernels; `noise`, `loss` and `groups` are those of `InducingGP`.
    """

    images: Images
    kernel: RecipeKernel
    Y: Floats
    groups: Codes | None = None
    noise: Noise = 0.0
    loss: Loss | None = None
    seed: int | None = 0
    store: Any = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def xp(self) -> Any:
        """Array module of the kernel's device, `numpy` or `cupy`."""
        return array_module(self.kernel.device)

    def at(self, rows: Codes) -> Source:
        """Select some of the images."""
        X, groups = self.images.at(rows), None if self.groups is None else self.groups[rows]
        return replace(self, images=Images(X, X.dtype), Y=self.Y[rows], groups=groups)

    def bytes_of_candidate(self, m: int) -> int:
        """Memory of one candidate: its pixels and its kernel entries with the m chosen images."""
        return int(self.images.dtype.itemsize * (m + np.prod(self.images.shape[1:])))

    def block(self, m: int) -> int:
        """Number of images whose kernel entries with m inducing images are in memory at a time."""
        return max(1, _ENTRIES[self.kernel.device] // m)

    def columns(self, X: Any, Z: Array, rows: Codes | None = None) -> Any:
        """Compute K(X, Z) on the kernel's device, or in a part of `store`, so that a killed fit can continue.

        X are all images, or those in `rows`; many fits may share a store, each with its own parts.
        """
        if self.store is None:
            return self.kernel(X, Z, output=output_on(self.kernel.device))
        digest = hashlib.sha256(f"{self.kernel.fingerprint} {self.images.shape} {Z.shape}".encode())
        for array in (np.arange(0) if rows is None else rows, Z):
            digest.update(np.ascontiguousarray(array).data)
        return self.kernel(X, Z, store=child(self.store, f"inducing-{digest.hexdigest()[:16]}"))

    def rows_of(self, columns: Sequence[Any], rows: slice | Codes) -> Any:
        """Return K(X[rows], Z) from the `columns` of K(X, Z), arrays of `xp` or of Zarr."""
        xp = self.xp
        at = rows if isinstance(rows, slice) else xp.asarray(rows)
        return xp.concatenate([xp.asarray(c.oindex[rows]) if hasattr(c, "oindex") else c[at] for c in columns], axis=1)

    def parts(self, Z: Array, columns: Sequence[Any] = ()) -> Iterator[Part]:
        """Yield K(X, Z), Y and k(x, x), some rows at a time; K from its `columns` if these have been computed."""
        output = output_on(self.kernel.device)
        with progress_bar(len(self), "kernel", "image") as bar:
            for rows in blocks(len(self), self.block(len(Z))):
                X = self.images.at(rows)
                K = self.rows_of(columns, rows) if columns else self.kernel(X, Z, output=output, progress=False)
                yield rows, K, self.Y[rows], self.kernel.diag(X)
                bar.update(rows.stop - rows.start)


@dataclass(frozen=True)
class Chosen:
    """Inducing images `Z`, their `rows` among the training images (empty for other images), and the `columns` of
    K(training images, Z) if the choice had to compute all of it.
    """

    rows: Codes
    Z: Array
    columns: Sequence[Any] = ()


def asked_for(images: Images, inducing: Any) -> int | Chosen:
    """Read `inducing=`: the number of images to choose, or the caller's choice, by row numbers or as images."""
    n, shape = len(images), images.shape[1:]
    if isinstance(inducing, Integral):
        if not 1 <= int(inducing) <= n or inducing is True:
            raise DataError(f"inducing={inducing!r}: expected between 1 and the {n:,} training images")
        return int(inducing)
    given = to_numpy(inducing, "inducing")
    if given.ndim == 1 and given.dtype.kind in "iu" and len(given):
        rows = np.unique(given.astype(np.intp))
        if rows[0] < 0 or rows[-1] >= n:
            raise DataError(f"inducing holds row numbers {rows[0]} to {rows[-1]}; expected 0 to {n - 1:,}")
        return Chosen(rows, images.at(rows))
    if given.ndim < 2 or tuple(given.shape[1:]) != shape:
        raise DataError(
            f"inducing has shape {given.shape} and type {given.dtype}; expected how many, row numbers of X, or images "
            f"of shape {shape}"
        )
    return Chosen(np.empty(0, np.intp), np.asarray(as_images(given, images.dtype, "inducing")))


# ---- choice of the images --------------------------------------------------------------------------------------------


def choose(source: Source, m: int, reserved: Codes, rng: np.random.Generator, room: int | None = None) -> Chosen:
    """Choose some rows at random, then in rounds those with the largest error of the exact GP of the rows so far.

    The `reserved` rows are chosen only if no others are left: predictions of images that were passed over because the
    model was right about them, or chosen because it was wrong, are not representative. Repeated images come last.
    Without a store, kernels and images take at most `room` bytes, or the memory of 2·m candidates if that is more.
    """
    images, n, size = source.images, len(source), _CANDIDATES * m
    if m == n:
        return Chosen(np.arange(n), images.at(slice(0, n)))
    if room is not None and source.store is None:
        size = max(2 * m, min(size, room // source.bytes_of_candidate(m)))
    pool = np.arange(n)
    if size < n:
        drawn = rng.choice(n, min(n, size + len(reserved)), replace=False)
        pool = np.sort(drawn[~np.isin(drawn, reserved)][:size])
    all_of_them = len(pool) == n
    X, targets = images.at(slice(0, n) if all_of_them else pool), source.Y[pool]
    # Two equal images in one round would make the kernel matrix of the chosen images singular.
    group = np.where(is_repeated(Images(X, X.dtype).codes()), 2, np.isin(pool, reserved))
    at, columns, errors = np.empty(0, np.intp), [], rng.random(len(pool))
    for part in np.array_split(np.arange(m), min(_ROUNDS, m)):
        group[at] = 3
        new = np.sort(np.lexsort((-errors, group))[: len(part)])
        at = np.concatenate([at, new])
        if len(at) < m or all_of_them:
            columns.append(source.columns(X, X[new], pool))
        if len(at) < m:
            errors = _errors(source, columns, at, targets)
    return Chosen(pool[at], X[at], columns if all_of_them else ())


def _errors(source: Source, columns: Sequence[Any], at: Codes, targets: Floats) -> Floats:
    """Squared errors on all candidates of the exact GP of the images `at`."""
    xp = source.xp
    K = float64_buffer(source.rows_of(columns, at), overwrite=True)
    factor, _ = factorised(K, _NOISE * float(K.diagonal().mean()))
    alpha, found = factor.solve(xp.asarray(targets[at])), []
    for rows in blocks(len(targets), source.block(len(at))):
        mean = to_numpy(source.rows_of(columns, rows).astype(xp.float64) @ alpha)
        found.append(((mean - targets[rows]) ** 2).sum(1))
    return np.concatenate(found)


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit_inducing(source: Source, asked: int | Chosen, amplitude: Amplitude = "ml") -> tuple[InducingGP, Chosen]:
    """Fit the model with the inducing images of `asked_for`; return both."""
    n, device, groups = len(source), source.kernel.device, source.groups
    m = asked if isinstance(asked, int) else len(asked.Z)
    share = min(max(n // _SHARE, _FEWEST_KEPT), SAMPLE)
    reserves = isinstance(asked, int) and 2 * share <= n - m
    size, rng = share if reserves else min(n, SAMPLE), np.random.default_rng(source.seed)
    if groups is None:
        sample = np.sort(rng.choice(n, size, replace=False))
    elif len(sample := whole_groups(groups, size, rng)) > SAMPLE:
        raise DataError(
            f"the smallest of the groups has {len(sample):,} images, and inducing= leaves at most {SAMPLE:,} out "
            "together; give smaller groups, or fit the exact model without inducing="
        )
    reserves = reserves and 2 * len(sample) <= n - m
    need = 8 * m * ((1 + len(_DISCOUNTS)) * m + 4 * min(source.block(m), n) + 4 * len(sample))
    need += source.images.dtype.itemsize * m * m
    least = source.bytes_of_candidate(m) * min(2 * m, n) if isinstance(asked, int) else 0
    memory.require(need + least, f"regression through {m:,} inducing images", device)
    chosen = asked
    if isinstance(chosen, int):
        free = memory.available(device)
        reserved = sample if reserves else np.empty(0, np.intp)
        rng = np.random.default_rng(source.seed)  # so that the choice does not depend on the number of reserved images
        chosen = choose(source, chosen, reserved, rng, None if free is None else free - need)
    columns = chosen.columns
    if source.store is not None and not columns:
        columns = [source.columns(source.images, chosen.Z)]
    number = {row: k for k, row in enumerate(chosen.rows.tolist())}
    gp = InducingGP(
        source.kernel(chosen.Z, output=output_on(device)),
        source.parts(chosen.Z, columns),
        sample,
        noise=source.noise,
        amplitude=amplitude,
        discounts=_DISCOUNTS,
        own=np.array([number.get(row, -1) for row in sample.tolist()], np.intp),
        groups=None if groups is None else groups[sample],
        loss=source.loss,
    )
    return gp, chosen


# ---- error of the approximation --------------------------------------------------------------------------------------


def excess(small: Floats, exact: Floats, error: float, of: int) -> tuple[float, float]:
    """Estimate by how much the error rate `error`, found on `of` images, exceeds that of the exact GP, with a standard
    error, from the errors of both models on the pilot's images, (M,) of 0 and 1.
    """
    mistakes, uncertainty = float(small.mean()), float((small - exact).std()) / math.sqrt(len(small))
    if not mistakes > 0.0:
        return 0.0, 0.0
    likely = (error * of + 1.0) / (of + 2.0)  # no errors on a few images do not mean an error of 0
    share = max(mistakes - float(exact.mean()), 0.0) / mistakes
    return share * error, math.hypot(uncertainty * likely / mistakes, share * math.sqrt(likely * (1.0 - likely) / of))


def pilot(source: Source, asked: int | Chosen, wrong: Wrong) -> tuple[Floats, Floats] | None:
    """Errors on unseen images of the approximation and of the exact GP, fitted to some others, (M,) of 0 and 1 each.

    None if there are too few images, or the inducing images are not training images. Groups are not divided between
    the images that are fitted and those that are predicted.
    """
    n, xp, groups = len(source), source.xp, source.groups
    m = asked if isinstance(asked, int) else len(asked.rows)
    size = min(int(np.clip(m, *_FITTED)), n // 2)
    tried = min(int(np.clip(int(0.15 * n), *_TRIED)), int(0.3 * n))
    if not 0 < m < n or min(size, tried) < _FEWEST:
        return None
    rng = np.random.default_rng(None if source.seed is None else [source.seed, n, m])
    if groups is None:
        few, unseen = (np.sort(rows) for rows in np.split(rng.choice(n, size + tried, replace=False), [size]))
    else:  # one image of each group that is not fitted
        few, others = whole_groups(groups, size, rng), one_of_each(groups, n)
        unseen = np.sort(rng.permutation(others[~np.isin(groups[others], groups[few])])[:tried])
    size = len(few)
    if min(size, len(unseen)) < _FEWEST:
        return None
    part = source.at(few)
    X, Y, m = part.images.pixels, part.Y, max(round(size * m / n), 1)
    # Rows given by the caller are replaced by arbitrary ones, assumed to be as good.
    same = m if isinstance(asked, int) else Chosen(np.arange(m), X[:m])
    K, K_unseen = (part.rows_of([part.columns(source.images.at(at), X, at)], slice(None)) for at in (few, unseen))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the small fits, which the user does not see
        model, chosen = fit_inducing(part, same)
        K = K.astype(xp.float64)
        K[xp.arange(size), xp.arange(size)] = xp.asarray(source.kernel.diag(X))
        step = slice(None, None, -(-size // _NOISE_FROM))
        rule, some = "loo" if part.noise == 0.0 else part.noise, None if part.groups is None else part.groups[step]
        best = chosen_noise(K[step, step], xp.asarray(Y[step]), rule, "ml", groups=some, loss=part.loss)
        exact = ExactGP(K, Y, noise=best, overwrite=True)
    means = model.mean(K_unseen[:, xp.asarray(chosen.rows)]), exact.mean(K_unseen)
    a, b = (wrong(to_numpy(mean), source.Y[unseen]).astype(np.float64) for mean in means)
    return a, b
