"""`Fit`: a posterior with the recipe, the kernel and the images that it was made of; it predicts and grows."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.devices import output_on
from cnngp.common.progress import progress_bar
from cnngp.gp.exact import posterior_samples
from cnngp.gp.linalg import blocks
from cnngp.gp.novelty import novelty
from cnngp.gp.posterior import Posterior
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.store.places import child
from cnngp.network.layers import Network

from .certificate import Checked, FitReport, certify
from .choosing import Choice
from .door import checked_diagonal
from .kernels import RecipeKernel
from .learning import Learned
from .recipe import Recipe

Array = NDArray[Any]
Floats = NDArray[np.float64]

# Entries of K(test, training) that are held at a time.
_CHUNK = 1 << 23


@dataclass(frozen=True)
class Asked:
    """What is to be predicted: images, or rows of K(test, training) in their place, and k(x, x) where it is needed."""

    images: Array | None
    K: Any = None
    diagonal: Any = None

    def __len__(self) -> int:
        return int((self.K if self.images is None else self.images).shape[0])


@dataclass(frozen=True)
class Fit:
    """What a fit leaves. Without images (`X`, `kernel` and `recipe` None) it was made of a matrix alone."""

    posterior: Posterior
    report: FitReport
    kernel: RecipeKernel | None = None
    recipe: Recipe | None = None
    X: Array | None = None
    """The images that K(test, …) is computed with, training or inducing ones, as they were given."""
    rows: NDArray[np.intp] | None = None
    """Which training images the inducing ones are: None without inducing images, empty for others."""
    y: Array | None = None
    names: Array | None = None
    choice: Choice | None = None
    learned: Learned | None = None
    store: Any = None
    """Where K(test, training) is kept."""

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        return None if self.X is None else tuple(self.X.shape[1:])

    @property
    def main_kernel(self) -> Kernel | None:
        """The kernel of the term of the largest weight."""
        return None if self.kernel is None else self.kernel.main

    @property
    def network(self) -> Network | None:
        """The network of that term."""
        return None if self.recipe is None else self.recipe.main.network

    @property
    def loo_rows(self) -> NDArray[np.intp]:
        """Rows of the training images that have leave-one-out predictions."""
        return np.asarray(self.posterior.leave_one_out().rows)

    @property
    def only_kernel(self) -> RecipeKernel:
        """The kernel; a `DataError` where there is none."""
        if self.kernel is None or self.X is None:
            raise DataError("the model was fitted on a kernel matrix alone; give K(test, training) as K=")
        return self.kernel

    # ---- predicting ----------------------------------------------------------------------------------------------

    def blocks(self, asked: Asked) -> Iterator[tuple[slice, Any]]:
        """K(test, training), some rows at a time."""
        n = self.posterior.points
        if asked.images is None:
            for rows in blocks(len(asked), max(1, _CHUNK // n)):
                yield rows, asked.K[rows]
            return
        if self.store is not None:
            K = self._stored_cross(asked.images)
            for rows in blocks(len(asked), K.chunks[0]):
                yield rows, K[rows]
            return
        with progress_bar(len(asked), "predict", "image") as bar:
            for rows in blocks(len(asked), max(1, _CHUNK // n)):
                yield rows, self.cross(asked.images[rows])
                bar.update(rows.stop - rows.start)

    def cross(self, images: Array) -> Any:
        """K(images, training)."""
        kernel = self.only_kernel
        return kernel.gram(images, self.X, output=output_on(kernel.device), progress=False)

    def among(self, images: Array) -> Any:
        """K(images, images)."""
        kernel = self.only_kernel
        return kernel.gram(images, output=output_on(kernel.device))

    def _stored_cross(self, images: Array) -> Any:
        """K(test, training) in the store, under a name of its own for each pair of sets."""
        digest = hashlib.sha256()
        for set_ in (images, self.X):
            assert set_ is not None
            digest.update(str(set_.shape).encode() + np.ascontiguousarray(set_).data)
        place = child(self.store, f"cross-{digest.hexdigest()[:16]}")
        return self.only_kernel.gram(images, self.X, store=place)

    def mean(self, asked: Asked) -> Floats:
        return np.concatenate([to_numpy(self.posterior.mean(block)) for _, block in self.blocks(asked)])

    def moments(self, asked: Asked) -> tuple[Floats, Floats]:
        """Means (M, outputs) and variances (M,)."""
        diagonal = self.diagonal(asked)
        means, variances = [], []
        for rows, block in self.blocks(asked):
            means.append(to_numpy(self.posterior.mean(block)))
            variances.append(to_numpy(self.posterior.variance(block, diagonal[rows])))
        return np.concatenate(means), np.concatenate(variances)

    def mean_and_covariance(self, images: Array) -> tuple[Floats, Floats]:
        K = self.cross(images)
        return to_numpy(self.posterior.mean(K)), to_numpy(self.posterior.covariance(K, self.among(images)))

    def sample(self, images: Array, n: int, seed: int | None) -> Floats:
        """Functions from the posterior, (n, M, outputs)."""
        mean, covariance = self.mean_and_covariance(images)
        return to_numpy(posterior_samples(mean, covariance, n, seed))

    def diagonal(self, asked: Asked) -> Floats:
        """k(x, x) of what is to be predicted."""
        if asked.images is None:
            return checked_diagonal(asked.diagonal, len(asked))
        return self.only_kernel.diag(asked.images)

    @property
    def variances(self) -> Floats:
        """k(x, x) of the images that the posterior answers by."""
        own = self.posterior.variances if self.X is None else self.only_kernel.diag(self.X)
        return to_numpy(own).astype(np.float64)

    def novelty(self, asked: Asked) -> Floats:
        """How unlike all images that it answers by each image is, (M,)."""
        variances, diagonal = self.variances, self.diagonal(asked)
        found = [novelty(to_numpy(block), diagonal[rows], variances) for rows, block in self.blocks(asked)]
        return np.concatenate(found)

    def of_points(self, values: Any) -> Any:
        """Of what is said of all training images, what is said of those that the posterior answers by."""
        if values is None or self.rows is None:
            return values
        return values[self.rows] if len(self.rows) else None

    def saliency(self, images: Array, outputs: NDArray[np.intp]) -> Floats:
        """∂/∂pixel of the mean of one of the outputs for each image, in the shape of the images."""
        from .saliency import slopes

        assert self.X is not None
        return slopes(self.only_kernel, images, self.X, to_numpy(self.posterior.alpha)[:, outputs].T)

    # ---- growing -------------------------------------------------------------------------------------------------

    def grown(
        self, images: Array, y: Array, Y: Floats, names: Array | None, noise: Array | None, new_outputs: Sequence[int]
    ) -> Fit:
        """The fit to more images, with labels or targets `y` as outputs `Y`; `new_outputs` were not there before."""
        from .added import AddedImages

        kernel, X, report = self.only_kernel, self.X, self.report
        assert X is not None
        posterior = copy.copy(self.posterior)
        new = AddedImages(images, Y, X, kernel, noise, new_outputs)
        posterior.grow(new)
        if names is not None or self.names is not None:
            both = ((self.names, report.images), (names, len(images)))
            names = np.concatenate([np.full(n, "") if a is None else a for a, n in both])
        checked = Checked(report.kernel_error, report.kernel_bound, report.pairs_checked, report.check)
        n = report.images + len(images)
        report = certify(
            posterior, n, checked, report.engine, new.kernel_seconds, new.computed, report.method, choice=report.choice
        )
        report = replace(report, repeated=new.repeated)
        return replace(
            self,
            posterior=posterior,
            report=report,
            # A model through inducing images learns from others without keeping them.
            X=X if posterior.points == len(X) else np.concatenate([X, images]),
            y=None if self.y is None else np.concatenate([self.y, y]),
            names=names,
        )
