"""`Fit`: a posterior with its recipe, kernel and images; it makes predictions and takes more training images."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.devices import array_module, output_on
from cnngp.common.errors import ModelFileError, is_number
from cnngp.common.progress import progress_bar
from cnngp.datasets.preparation import as_preparation
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP
from cnngp.gp.leave_one_out import with_new
from cnngp.gp.linalg import blocks
from cnngp.gp.posterior import NEEDS_FACTOR, Posterior
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.store.places import child

from .certificate import FitReport, measured
from .choosing import Choice
from .door import ONLY_EXACT, Training, checked_diagonal
from .kernels import RecipeKernel, TermKernel
from .recipe import Recipe
from .training_images import Images, is_repeated, left_out_together

if TYPE_CHECKING:
    from .learning import Learned

Array = NDArray[Any]
Floats = NDArray[np.float64]

# Entries of K(test, training) that are in memory at a time.
_CHUNK = 1 << 23


@dataclass(frozen=True)
class Asked:
    """Inputs of a prediction: images, or rows of K(test, training) instead, with k(x, x) if variances are needed."""

    images: Array | None
    K: Any = None
    diagonal: Any = None

    def __len__(self) -> int:
        return int((self.K if self.images is None else self.images).shape[0])


@dataclass(frozen=True)
class Fit:
    """Result of a fit. Without images (`X`, `kernel` and `recipe` None) it was a fit to a matrix alone."""

    posterior: Posterior
    report: FitReport
    kernel: RecipeKernel | None = None
    recipe: Recipe | None = None
    X: Array | None = None
    """Training or inducing images with which K(test, …) is computed, without preparation."""
    rows: NDArray[np.intp] | None = None
    """Rows of the inducing images among the training images: None without inducing images, empty if they are others."""
    y: Array | None = None
    names: Array | None = None
    choice: Choice | None = None
    learned: Learned | None = None
    store: Any = None
    """Store of K(test, training)."""

    @property
    def only_kernel(self) -> RecipeKernel:
        """The kernel; raises `DataError` if there is none."""
        if self.kernel is None or self.X is None:
            raise DataError("the model was fitted on a kernel matrix alone; give K(test, training) as K=")
        return self.kernel

    # ---- predicting ----------------------------------------------------------------------------------------------

    def blocks(self, asked: Asked) -> Iterator[tuple[slice, Any]]:
        """Yield K(test, training), some rows at a time."""
        K, step = asked.K, max(1, _CHUNK // self.posterior.points)
        if asked.images is not None and self.store is not None:  # each pair of sets has its own name
            digest = hashlib.sha256()
            for images in (asked.images, np.asarray(self.X)):
                digest.update(str(images.shape).encode() + np.ascontiguousarray(images).data)
            K = self.only_kernel(asked.images, self.X, store=child(self.store, f"cross-{digest.hexdigest()[:16]}"))
            step = K.chunks[0]
        if K is not None or asked.images is None:
            yield from ((rows, K[rows]) for rows in blocks(len(asked), step))
            return
        with progress_bar(len(asked), "predict", "image") as bar:
            for rows in blocks(len(asked), step):
                yield rows, self.cross(asked.images[rows])
                bar.update(rows.stop - rows.start)

    def over(self, asked: Asked, of: Callable[[Any, Floats], Any]) -> Array:
        """Apply `of` to K(test, training) and k(x, x), some rows at a time, and concatenate."""
        diagonal = self.diagonal(asked)
        return np.concatenate([to_numpy(of(block, diagonal[rows])) for rows, block in self.blocks(asked)])

    def cross(self, images: Array) -> Any:
        """Return K(images, training)."""
        kernel = self.only_kernel
        return kernel(images, self.X, output=output_on(kernel.device), progress=False)

    def among(self, images: Array) -> Any:
        """Return K(images, images)."""
        kernel = self.only_kernel
        return kernel(images, output=output_on(kernel.device))

    def mean(self, asked: Asked) -> Floats:
        return np.concatenate([to_numpy(self.posterior.mean(block)) for _, block in self.blocks(asked)])

    def moments(self, asked: Asked) -> tuple[Floats, Floats]:
        """Posterior means (M, outputs) and variances (M,)."""
        diagonal, means, variances = self.diagonal(asked), [], []
        for rows, block in self.blocks(asked):
            means.append(to_numpy(self.posterior.mean(block)))
            variances.append(to_numpy(self.posterior.variance(block, diagonal[rows])))
        return np.concatenate(means), np.concatenate(variances)

    def mean_and_covariance(self, images: Array) -> tuple[Floats, Floats]:
        K = self.cross(images)
        return to_numpy(self.posterior.mean(K)), to_numpy(self.posterior.covariance(K, self.among(images)))

    def diagonal(self, asked: Asked) -> Floats:
        """Return k(x, x) of the test points."""
        if asked.images is None:
            return checked_diagonal(asked.diagonal, len(asked))
        return self.only_kernel.diag(asked.images)

    @property
    def variances(self) -> Floats:
        """k(x, x) of the training or inducing images."""
        own = self.posterior.variances if self.X is None else self.only_kernel.diag(self.X)
        return to_numpy(own).astype(np.float64)

    def of_points(self, values: Any) -> Any:
        """Select from values of all training images those of the posterior's points; None if these are other images."""
        if values is None or self.rows is None:
            return values
        return values[self.rows] if len(self.rows) else None

    def saliency(self, images: Array, outputs: NDArray[np.intp]) -> Floats:
        """Gradient by the pixels of the mean of one output for each image, in the shape of the images."""
        from .explanation import slopes

        return slopes(self.only_kernel, images, np.asarray(self.X), to_numpy(self.posterior.alpha)[:, outputs].T)

    # ---- growing -------------------------------------------------------------------------------------------------

    def grown(self, added: Training, Y: Floats, new_outputs: Sequence[int] = ()) -> Fit:
        """Return the fit to more images, with outputs `Y`; `new_outputs` as in `ExactGP.add`."""
        from cnngp.gp.inducing import InducingGP

        from .inducing import Source

        kernel, X, n = self.only_kernel, np.asarray(self.X), len(Y)
        images = added.images
        assert images is not None
        posterior, began, repeated, noise = copy.copy(self.posterior), time.perf_counter(), 0, added.image_noise
        if added.weight is not None:
            less = posterior.noise / added.weight - posterior.noise
            noise = less if noise is None else noise + less
        if isinstance(posterior, ExactGP):
            together = len(X) + n
            memory.require(8 * together * together, f"{together:,} images together", kernel.device)
            K_new_old, K_new = self.cross(images.pixels), self.among(images.pixels)
            X = np.concatenate([X, images.pixels])
            codes = Images(X, X.dtype).codes()
            repeated, computed = int(is_repeated(codes).sum()), time.perf_counter()
            # Each new image is its own group, unless it equals another.
            groups = left_out_together(with_new(posterior.groups, n), codes)
            errors = None if added.y_std is None else added.y_std**2
            posterior.add(K_new_old, K_new, Y, noise, groups, new_outputs, errors)
        elif isinstance(posterior, InducingGP):  # does not keep images that are not inducing ones
            if len(new_outputs):
                raise MatrixError(
                    "a model through inducing images does not keep the other images, so it cannot take a new class; "
                    "fit again"
                )
            if (name := added.noise_of_single_images) is not None:
                raise DataError(ONLY_EXACT.format(name))
            posterior.add(Source(images, kernel, Y).parts(X))
            computed = time.perf_counter()
        else:
            raise MatrixError(NEEDS_FACTOR.format("adding a class" if len(new_outputs) else "adding images"))
        names = added.names
        if names is not None or self.names is not None:
            both = ((self.names, self.report.images), (names, n))
            names = np.concatenate([np.full(count, "") if of is None else of for of, count in both])
        report = replace(
            self.report,
            images=self.report.images + n,
            repeated=repeated,
            kernel_seconds=computed - began,
            solve_seconds=time.perf_counter() - computed,
            compile_seconds=0.0,
            **measured(posterior) | dict.fromkeys(("excess", "excess_uncertainty", "guessing", "no_better")),
        )
        y = None if self.y is None else np.concatenate([self.y, added.y])
        return replace(self, posterior=posterior, report=report, X=X, y=y, names=names)

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays for a file, from which `restored` rebuilds the fit."""
        kernel, recipe = self.kernel, self.recipe
        if self.X is None or kernel is None or recipe is None:
            raise ModelFileError("a model fitted on a kernel matrix alone has no images to save; pass X to fit as well")
        numbers, arrays = self.posterior.state(kernel.dtype)
        header = {
            "recipe": recipe.to_json(),
            "factors": [t.factor for t in kernel.terms],
            "report": {k: v for k, v in self.report.as_dict().items() if k != "verdict"},
            "posterior": self.posterior.kind,
            "state": numbers,
            "learned": None if self.learned is None else self.learned.as_dict(),
        }
        known = {"X": self.X, "y": self.y, "names": self.names, "inducing_rows": self.rows}
        known |= {f"term {i} {k}": a for i, t in enumerate(kernel.terms) for k, a in t.preparation.state().items()}
        return header, {name: to_numpy(array) for name, array in (known | arrays).items() if array is not None}

    @classmethod
    def restored(cls, header: dict[str, Any], arrays: dict[str, Array], make: Callable[..., Kernel]) -> Fit:
        """Rebuild the fit of a file, with kernels from `make(network, symmetry)`; raises `ValueError`, `KeyError` or
        similar if the file contradicts itself.
        """
        from cnngp.gp.inducing import InducingGP
        from cnngp.gp.iterative import IterativeGP

        recipe, X = Recipe.from_json(header["recipe"]), np.ascontiguousarray(arrays["X"])
        said: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in dict(header["report"]).items()
        }
        report, terms = FitReport(**said), []
        for i, (term, factor) in enumerate(zip(recipe.terms, header["factors"], strict=True)):
            if not is_number(factor, least=0.0) or factor == 0:
                raise ValueError(f"a factor of {factor!r}")
            state = {n.removeprefix(f"term {i} "): a for n, a in arrays.items() if n.startswith(f"term {i} ")}
            preparation = as_preparation(term.preparation).restored(state, X.shape[1:])
            term.network.shapes(preparation.output_shape(X.shape[1:]))
            terms.append(TermKernel(term, make(term.network, term.symmetry), preparation, float(factor)))
        kernel = RecipeKernel(terms)
        if X.dtype != kernel.dtype or not 2 <= X.ndim <= 5 or 0 in X.shape:
            raise ValueError(f"images of shape {X.shape} and type {X.dtype}")
        kinds: dict[str, type[Posterior]] = {gp.kind: gp for gp in (ExactGP, IterativeGP, InducingGP)}
        xp = array_module(kernel.device)
        posterior = kinds[header["posterior"]].restored(dict(header["state"]), arrays, xp)
        rows, images = None, posterior.points
        if posterior.kind == "inducing":
            rows, images = arrays.get("inducing_rows", np.empty(0, np.intp)), report.images
            some = len(rows) == len(X) and 0 <= rows.min() <= rows.max() < images if len(rows) else True
            if rows.ndim != 1 or rows.dtype.kind not in "iu" or not some:
                raise ValueError(f"rows of shape {rows.shape} of {images} images for {len(X)} inducing images")
        if posterior.points != len(X) or not images == report.images == len(arrays.get("y", X)):
            raise ValueError(f"{len(X)} images for {posterior.points} points of {report.images} images")
        if not np.isfinite(to_numpy(posterior.leave_one_out().mean)).all():
            raise ValueError("its predictions are not finite")
        learned = None
        if header.get("learned") is not None:
            from .learning import Learned

            learned = Learned.from_dict(header["learned"])
        fit = cls(posterior, report, kernel, recipe, X, rows, arrays.get("y"), arrays.get("names"), learned=learned)
        _ = report.verdict, report.rows(), str(learned)  # raise here if the file's values cannot be displayed
        return fit
