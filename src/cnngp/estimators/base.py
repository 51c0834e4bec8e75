"""What classification and regression share: images in, kernel matrices, the GP, predictions."""

from __future__ import annotations

import copy
import functools
import hashlib
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from cnngp.common.arrays import (
    CheckedImages,
    DataError,
    to_numpy,
)
from cnngp.common.devices import ActualDevice, array_module, output_on
from cnngp.common.progress import progress_bar
from cnngp.gp.checks import float64_buffer
from cnngp.gp.exact import ExactGP
from cnngp.gp.iterative import IterativeGP
from cnngp.gp.linalg import blocks
from cnngp.gp.novelty import novelty
from cnngp.gp.solving.matrices import SymmetricMatrix
from cnngp.matrix.gram import gram
from cnngp.matrix.store.places import child
from cnngp.matrix.store.spec import OtherMatrixError

from .added import AddedImages
from .certificate import Checked, certify, checked_sample
from .inducing_fit import fit_with_pilot
from .inducing_images import TrainingImages, asked_for
from .inputs import (
    Together,
    as_image_noise,
    as_kernel_matrix,
    as_names,
    checked_diagonal,
)
from .preparing import PreparingEstimator
from .solver import choose_solver

Array = NDArray[Any]

# Entries of K(test, training) that are held at a time.
_CHUNK = 1 << 23
# Times the largest variance: noise beyond it means that leave-one-out found nothing in the labels.
_ONLY_NOISE = 1e3
_ONLY_EXACT = "image_noise needs the exact model: fit without inducing= and with solver='cholesky'"


class GPEstimator(PreparingEstimator):
    """The base of `GPClassifier` and `GPRegressor`."""

    # ---- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, images: Any, Y: NDArray[np.float64], K: Any, image_noise: Any, together: Together) -> None:
        K = None if K is None else as_kernel_matrix(K)
        image_noise = None if image_noise is None else as_image_noise(image_noise, len(Y))
        groups = self._kept_together(images, together.checked(len(Y)))
        images = self._choose_preparation(images, Y, K is not None, groups)
        noise = self._learn(images, Y, image_noise, groups)
        if self.inducing is not None:
            if image_noise is not None:
                raise DataError(_ONLY_EXACT)
            self._fit_inducing(images, Y, groups)
            return
        device: ActualDevice = "cpu" if self.kernel_ is None else self.kernel_.device
        entry = 8 if self.kernel_ is None else np.dtype(self.kernel_.dtype).itemsize
        stored = self.store is not None
        method = choose_solver(self.solver, len(Y), K, stored, entry, noise, device)
        if self.noise is None and self.learned_ is None and self.choice_ is not None and method == "cholesky":
            noise = "loo"  # part of the choice, as the network is
            choose_solver("cholesky", len(Y), K, stored, entry, noise, device)
        if noise == "loo" and self._no_label_twice(Y, groups):
            noise = 0.0
            if self.noise == "loo":
                warnings.warn(
                    "noise='loo' judges an image by others of its class, and no class has two images; noise 0 is used",
                    UserWarning,
                    stacklevel=3,
                )
        if image_noise is not None and method != "cholesky":
            raise DataError(_ONLY_EXACT)
        given = K is not None
        # With a store there may be nothing left to compute, and so nothing to compile.
        compiling = 0.0 if given or self.store is not None else self.kernel_.prepare(CheckedImages(images))
        start = time.perf_counter()
        if K is None:
            K = self._gram(images) if self.store is None else self._stored_gram(images)
        computed = time.perf_counter()
        checked = Checked() if images is None else checked_sample(self.kernel_, images, K, given)
        self.X_ = images
        if self.preparation_ == "plain":
            self.originals_ = images
        begun = computed
        if method == "cholesky":
            rounding = float(np.finfo(np.float32 if K.dtype.itemsize <= 4 else np.float64).eps)
            A = float64_buffer(K, on_gpu=device == "cuda")
            del K
            begun = time.perf_counter()
            with warnings.catch_warnings():
                if self.noise is None:  # nobody asked for a search, so the report says it instead
                    warnings.filterwarnings("ignore", r"noise='loo' chose the most noise", UserWarning)
                self.gp_ = ExactGP(
                    A,
                    Y,
                    noise=noise,
                    amplitude=self.amplitude,
                    point_noise=image_noise,
                    overwrite=True,
                    rounding=rounding,
                    groups=groups,
                    loss=self._loo_loss,
                )
        else:
            self.gp_ = IterativeGP(
                SymmetricMatrix(K),
                Y,
                array_module(device),
                noise=noise,
                amplitude=self.amplitude,
                method=method,
                seed=self._seed(),
                groups=groups,
            )
        engine = "given matrix" if given else self._engine()
        self.fit_report_ = certify(
            self.gp_,
            len(Y),
            checked,
            engine,
            computed - start,
            begun,
            method,
            compile_seconds=compiling,
            choice=self._why(None if given or self.store is not None else computed - start),
            repeated=self._repeated,
        )
        self._after_fit()

    def _fit_inducing(self, X: Any, Y: NDArray[np.float64], groups: Array | None) -> None:
        images = TrainingImages(X, self.kernel_)
        asked = asked_for(images, self._prepared_inducing())
        compiling = 0.0 if self.store is not None else self.kernel_.prepare(images.at(slice(0, 2)))
        start = time.perf_counter()
        self.gp_, self.X_, self.inducing_rows_, pilot = fit_with_pilot(
            images,
            Y,
            asked,
            noise=0.0 if self.noise is None else self.noise,  # with inducing images 0 is by leave-one-out as well
            amplitude=self.amplitude,
            loss=self._loo_loss,
            wrong=self._wrong,
            seed=self._seed(),
            store=self.store,
            groups=groups,
        )
        begun = time.perf_counter()
        self.originals_ = self._originals_of_inducing()
        sample = self.X_[:64]
        checked = checked_sample(self.kernel_, sample, to_numpy(self._gram(sample)), given=False)
        engine = self._engine()
        self.fit_report_ = certify(
            self.gp_,
            len(Y),
            checked,
            engine,
            begun - start,
            begun,
            "inducing",
            compile_seconds=compiling,
            choice=self._why(None),
            repeated=self._repeated,
        )
        self._after_fit()
        if pilot is not None:
            rows = self.gp_.loo_rows
            excess, uncertainty = pilot.excess(
                self.loo_error_, len(rows if groups is None else np.unique(groups[rows]))
            )
            self.fit_report_ = replace(self.fit_report_, excess=excess, excess_uncertainty=uncertainty)

    def _add(
        self,
        originals: Array,
        y: Array,
        Y: NDArray[np.float64],
        names: Any,
        image_noise: Any,
        new_outputs: Sequence[int] = (),
        **attributes: Any,
    ) -> None:
        """Condition on images with labels or targets `y`, as outputs `Y`; `attributes` change with them."""
        images = self._prepared(originals)
        gp, report = copy.copy(self.gp_), self.fit_report_
        names = as_names(names, y)
        if new_outputs:
            gp.insert_outputs(new_outputs, -1.0)
        noise = None if image_noise is None else as_image_noise(image_noise, len(images))
        new = AddedImages(images, Y, self.X_, self.kernel_, noise)
        gp.grow(new)
        attributes["y_"] = None if self.y_ is None else np.concatenate([self.y_, y])
        if names is not None or self.names_ is not None:
            both = ((self.names_, report.images), (names, len(images)))
            attributes["names_"] = np.concatenate([np.full(n, "") if a is None else a for a, n in both])
        # A model through inducing images learns from others without keeping them.
        X = self.X_ if gp.points == len(self.X_) else np.concatenate([self.X_, images])
        if self.preparation_ == "plain":
            attributes["originals_"] = X
        elif len(X) > len(self.X_):
            attributes["originals_"] = np.concatenate([self.originals_, originals])
        n = report.images + len(images)
        checked = Checked(report.kernel_error, report.kernel_bound, report.pairs_checked, report.check)
        report = certify(
            gp, n, checked, report.engine, new.kernel_seconds, new.computed, report.method, choice=report.choice
        )
        before = dict(self.__dict__)
        try:
            self.gp_, self.X_, self.fit_report_ = gp, X, report
            self.__dict__.pop("loo_novelty_", None)
            self.__dict__.update(attributes)
            self._after_fit()
        except BaseException:  # stopped halfway, the model is the old one as a whole
            self.__dict__ = before
            raise

    def _why(self, seconds: float | None) -> str | None:
        """The sentence of the report about a network that was chosen."""
        if self.choice_ is None:
            return None
        only_noise = self.noise is None and self.gp_.noise > _ONLY_NOISE * self.gp_.largest_variance
        return self.choice_.text(seconds) + ("; to this network the targets look like noise" if only_noise else "")

    # What the noise of a model with inducing images is chosen by, from leave-one-out means and targets.
    _loo_loss: Any = None
    # The same with its gradient, for learning by leave-one-out; None is the density of the targets.
    _learning_loss: Any = None
    # Which images have a wrong label by their means and targets; None where there are no labels.
    _wrong: Any = None
    loo_error_: float

    def _no_label_twice(self, Y: NDArray[np.float64], groups: Array | None) -> bool:
        """Whether leave-one-out can be right about no image, because none of the others has its label."""
        return False

    def _after_fit(self) -> None:
        """What the estimator derives from `gp_`."""
        raise NotImplementedError

    # ---- kernels -------------------------------------------------------------------------------------------------

    def _gram(self, images: Any) -> Any:
        return gram(self.kernel_, CheckedImages(images), output=output_on(self.kernel_.device))

    def _stored_gram(self, images: Any) -> Any:
        try:
            return gram(self.kernel_, CheckedImages(images), store=self.store)
        except OtherMatrixError as error:
            if self.preparation_ == "plain":
                raise
            raise OtherMatrixError(
                f"{error}. (This fit prepares its images, by {self.preparation_!r}, so its matrix is not that of the "
                "plain images; preparation='plain' uses these)"
            ) from None

    def _cross(self, images: Array, others: Array) -> Any:
        output = output_on(self.kernel_.device)
        return gram(self.kernel_, CheckedImages(images), CheckedImages(others), output=output, progress=False)

    def _stored_cross(self, images: Array) -> Any:
        """K(test, training) in the store, under a name of its own for each pair of sets."""
        digest = hashlib.sha256()
        for set_ in (images, self.X_):
            digest.update(str(set_.shape).encode() + set_.data)
        path = child(self.store, f"cross-{digest.hexdigest()[:16]}")
        return gram(self.kernel_, CheckedImages(images), CheckedImages(self.X_), store=path)

    def _engine(self) -> str:
        """The engine that is used now, for people."""
        return f"{self.kernel_.device} ({self.kernel_.engine_for(self.input_shape_).identity})"

    def _of_points(self, values: Any) -> Any:
        """Of what is said of all training images, what is said of those that the model answers by."""
        if values is None or self.inducing_rows_ is None:
            return values
        return values[self.inducing_rows_] if len(self.inducing_rows_) else None

    # ---- what is unusual -----------------------------------------------------------------------------------------

    def novelty(self, X: Any = None, *, K: Any = None, diagonal: Any = None) -> NDArray[np.float64]:
        """How unlike all training images each image is, (M,): from 0, as one of them, to 1, nothing in common.

        It is 1 − the largest correlation k(x, x_i)/√(k(x, x) k(x_i, x_i)) with a training image (or an inducing one),
        whatever the scale of the kernel; 1 for an image whose k(x, x) is 0, as of a blank one without biases.
        `loo_novelty_` has the training images' own, each against the others.
        """
        images, K, diagonal = self._check_asked(X, K, diagonal)
        variances = self._variances()
        found = [novelty(to_numpy(block), diagonal[rows], variances) for rows, block in self._chunks(images, K)]
        return np.concatenate(found)

    def _variances(self) -> NDArray[np.float64]:
        """k(x, x) of the images that the model answers by."""
        return to_numpy(self.gp_.variances if self.X_ is None else self.kernel_.diag(CheckedImages(self.X_))).astype(
            np.float64
        )

    @functools.cached_property
    def loo_novelty_(self) -> NDArray[np.float64] | None:
        """`novelty` of every training image against all others; None where the model has no factor of all of them."""
        check_is_fitted(self, "gp_")
        found = self.gp_.loo_novelty()
        return None if found is None else to_numpy(found)

    # ---- predicting ----------------------------------------------------------------------------------------------

    def _chunks(self, images: Any, K: Any) -> Iterator[tuple[slice, Any]]:
        """K(test, training), some rows at a time: those of a matrix, or of images that have been checked."""
        n = self.gp_.points
        if K is not None:
            for rows in blocks(K.shape[0], max(1, _CHUNK // n)):
                yield rows, K[rows]
            return
        if self.store is not None:
            K = self._stored_cross(images)
            for rows in blocks(len(images), K.chunks[0]):
                yield rows, K[rows]
            return
        with progress_bar(len(images), "predict", "image") as bar:
            for rows in blocks(len(images), max(1, _CHUNK // n)):
                yield rows, self._cross(images[rows], self.X_)
                bar.update(rows.stop - rows.start)

    def _check_asked(self, X: Any, K: Any, diagonal: Any) -> tuple[Any, Any, NDArray[np.float64]]:
        """What is to be predicted, checked: images, or a matrix K(test, training) in their place, and k(x, x)."""
        images, K = self._check_images_or_matrix(X, K)
        if K is None:
            return images, None, self.kernel_.diag(CheckedImages(images)).astype(np.float64)
        return None, K, checked_diagonal(diagonal, K.shape[0])

    def _check_images_or_matrix(self, X: Any, K: Any) -> tuple[Any, Any]:
        check_is_fitted(self, "gp_")
        if K is not None:
            return None, as_kernel_matrix(K, self.gp_.points)
        return self._check_test(X), None

    def _mean(self, X: Any, K: Any) -> NDArray[np.float64]:
        images, K = self._check_images_or_matrix(X, K)
        return np.concatenate([to_numpy(self.gp_.mean(block)) for _, block in self._chunks(images, K)])

    def _mean_and_variance(self, X: Any, K: Any, diagonal: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        images, K, diagonal = self._check_asked(X, K, diagonal)
        means, variances = [], []
        for rows, block in self._chunks(images, K):
            means.append(to_numpy(self.gp_.mean(block)))
            variances.append(to_numpy(self.gp_.variance(block, diagonal[rows])))
        return np.concatenate(means), np.concatenate(variances)

    def _mean_and_covariance(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        images = self._check_test(X)
        K_test = self._cross(images, self.X_)
        return to_numpy(self.gp_.mean(K_test)), to_numpy(self.gp_.covariance(K_test, self._gram(images)))

    def _sample(self, X: Any, n: int, seed: int | None) -> NDArray[np.float64]:
        images = self._check_test(X)
        return to_numpy(self.gp_.sample(self._cross(images, self.X_), self._gram(images), n, seed))
