"""Base class of `GPClassifier` and `GPRegressor`: fitting, novelty, choosing images to label, and model files."""

from __future__ import annotations

import copy
import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from cnngp.common import files as persistence
from cnngp.common.arrays import DataError, known_array, to_numpy
from cnngp.common.devices import Device, actual_device, check_device
from cnngp.common.errors import ModelFileError, is_whole, one_line
from cnngp.gp.exact import ExactGP
from cnngp.gp.near_copies import novelty
from cnngp.gp.posterior import Posterior

from . import fitting
from .certificate import FitReport
from .choosing import Choice, Tell
from .door import ImagesLike, Training, as_kernel_matrix, check_length, described, read_test, read_training
from .fit import Asked, Fit
from .kernels import kernel_of
from .labels import Targets
from .recipe import Recipe
from .request import Parameters, Request
from .training_images import Images

if TYPE_CHECKING:
    from cnngp.datasets.images import Aspect

    from .learning import Learned

Array = NDArray[Any]
Floats = NDArray[np.float64]
Numbers = NDArray[np.intp]


# Parameters that belong to a machine, a place or a data set instead of the model, or are replaced by the recipe.
_NOT_SAVED = ("network", "device", "store", "inducing", "learn", "effort", "preparation", "noise")
_LONGEST = 300  # characters of a message about a file's content


class OtherEstimatorError(ModelFileError):
    """Error for a file with a model of another class; `held` is the name of that class."""

    def __init__(self, message: str, held: str) -> None:
        super().__init__(message)
        self.held = held


def _part(path: str, says: str | None = None) -> Any:
    """Property that returns a part of the fit."""
    return property(operator.attrgetter(f"fit_.{path}"), doc=says)


class GPEstimator(Parameters, BaseEstimator):  # type: ignore[misc]
    """Base class of `GPClassifier` and `GPRegressor`."""

    fit_: Fit
    """Result of the fit; the attributes below are parts of it, None if they need images and there was only a matrix."""
    gp_: Posterior = _part("posterior")
    fit_report_: FitReport = _part("report", "Measured accuracy of the fit, and a verdict on what can be trusted.")
    recipe_: Any = _part("recipe", "Recipe of the fit; `GPClassifier(clf.recipe_)` fits it again.")
    choice_: Choice | None = _part("choice", "Why this recipe was chosen, if none was given.")
    learned_: Learned | None = _part("learned", "Result of learning; None without `learn`.")
    kernel_: Any = property(lambda self: self.fit_.kernel and self.fit_.kernel.main)
    """Kernel of the recipe's term with the largest weight."""
    network_: Any = property(lambda self: self.recipe_ and self.recipe_.main.network)
    """Network of that term: given, chosen or learned."""
    X_: Any = _part("X", "Training or inducing images, as given.")
    input_shape_: Any = property(lambda self: None if self.X_ is None else self.X_.shape[1:])
    y_: Any = _part("y")
    names_: Any = _part("names")
    inducing_rows_: Numbers | None = _part("rows", "Rows of the inducing images among the training images.")
    loo_rows_: Numbers = _part("posterior.loo_rows", "Training images with leave-one-out predictions.")
    log_marginal_likelihood_: float | None = _part("posterior.log_marginal_likelihood")
    image_aspect_: Aspect | None = None
    """How image files were brought to one size, which files to predict must repeat; set by the code that read them."""
    pictures_: Array | None = None
    """Pictures (N, C, H, W) of the training rows if these are features, for reports and the viewer."""
    loo_error_: float

    # ---- fitting -------------------------------------------------------------------------------------------------

    def _read(self, X: Any, y: Any, K: Any, read: Callable[[Any], Array], **more: Any) -> tuple[Request, Training]:
        # A fit that fails must not leave the results of an earlier one.
        for derived in ("fit_", "loo_novelty_", "image_aspect_", "pictures_"):
            self.__dict__.pop(derived, None)
        request = self._request()
        return request, read_training(self, request, X, y, K, read, **more)

    def _request(self) -> Request:
        return Request(**{field.name: getattr(self, field.name) for field in fields(Parameters)})

    def _fit(self, request: Request, training: Training, targets: Targets, tell: Tell) -> None:
        self.fit_ = fitting.fit(request, training, targets, tell)
        self._after_fit()

    def _added(self, X: Any, y: Any, read: Callable[[Any], Array], **said: Any) -> Training:
        """Check additional images with labels or targets, and drop those of weight 0."""
        check_is_fitted(self, "fit_")
        if self.X_ is None:
            raise DataError("the model was fitted on a kernel matrix alone; fit again with images X to add to it")
        images = self._check_test(X)
        check_length(len(images), y, "images")
        return described(Images(images, images.dtype), read(y), **said)

    def _add(self, added: Training, Y: Floats, new: Sequence[int] = (), **attributes: Any) -> None:
        """Condition on more images, with outputs `Y`; `attributes` change with them."""
        grown = copy.copy(self)
        grown.__dict__.pop("loo_novelty_", None)
        grown.__dict__.update(attributes, fit_=self.fit_.grown(added, Y, new))
        grown._after_fit()
        self.__dict__ = grown.__dict__  # until here, an interrupt leaves the old model unchanged

    def _after_fit(self) -> None:
        """Compute the attributes that the estimator derives from `gp_`."""
        raise NotImplementedError

    def _say(self, **measured: Any) -> None:
        """Add `measured` to the report of the fit."""
        self.fit_ = replace(self.fit_, report=replace(self.fit_.report, **measured))

    # ---- queries -------------------------------------------------------------------------------------------------

    def _check_test(self, X: Any) -> Array:
        """Check images to predict."""
        check_is_fitted(self, "fit_")
        kernel = self.fit_.only_kernel
        return read_test(self, X, self.X_, np.dtype(kernel.dtype))

    def _asked(self, X: Any, K: Any, diagonal: Any = None) -> Asked:
        """Check the inputs of a prediction: images, or K(test, training) instead, with k(x, x) for variances."""
        check_is_fitted(self, "fit_")
        if K is not None:
            if X is not None:
                raise DataError("X and K were both given; give images X, or K(test, training) as K= without them")
            return Asked(None, as_kernel_matrix(K, self.gp_.points), diagonal)
        return Asked(self._check_test(X))

    def _check_how_many(self, n: Any, fitted: bool = True) -> None:
        if fitted:
            check_is_fitted(self, "fit_")
        if not is_whole(n, least=0):
            raise ValueError(f"n={n!r}: expected how many images, 0 or more")

    def novelty(self, X: ImagesLike | None = None, *, K: Any = None, diagonal: Any = None) -> Floats:
        """Novelty of each image relative to the training images, (M,): from 0, equal to one of them, to 1, unrelated.

        It is 1 − the largest correlation k(x, x_i)/√(k(x, x) k(x_i, x_i)) with a training image (or an inducing one),
        independent of the kernel's scale; 1 for an image with k(x, x) = 0, such as a blank one without biases.
        `loo_novelty_` is the novelty of each training image relative to the others.
        """
        asked, variances = self._asked(X, K, diagonal), self.fit_.variances
        return self.fit_.over(asked, lambda block, own: novelty(to_numpy(block), own, variances))

    def score_samples(self, X: ImagesLike | None = None, *, K: Any = None, diagonal: Any = None) -> Floats:
        """Outlier score of each image, (M,): −`novelty`, from −1, unrelated to the training images, to 0.

        As in scikit-learn's density and outlier models, lower is more unusual. Up to a factor and a constant it is the
        log density of a narrow Gaussian around the nearest training image, if images are vectors of length 1 whose
        products are the kernel's correlations. For a threshold, compare it with −`loo_novelty_`.
        """
        return -self.novelty(X, K=K, diagonal=diagonal)

    @functools.cached_property
    def loo_novelty_(self) -> Floats | None:
        """Novelty of each training image relative to all others; None if the model has no factor of all of them."""
        check_is_fitted(self, "fit_")
        exact = self.gp_.exact
        return None if exact is None else to_numpy(exact.novelty())

    def choose(self, n: int, X: ImagesLike) -> Numbers:
        """Choose the `n` images of the pool X to label next (active learning); returns their rows, best first.

        They are chosen to leave the pool the least variance, relative to each image's own. Labels are not used, so with
        a given network the first images can be chosen before any fit.

        >>> from cnngp import GPClassifier, datasets
        >>> pool = datasets.digits().take(100).X
        >>> len(GPClassifier("small_cnn", device="cpu").choose(5, pool))
        5
        """
        from cnngp.gp.selection import chosen

        self._check_how_many(n, fitted=False)
        if not hasattr(self, "fit_"):  # use K(X, X) of the given network
            request = replace(self._request(), inducing=None)
            if (recipe := request.recipe) is None:
                raise DataError(
                    "without labels no recipe can be chosen; name a network, such as 'small_cnn', to choose by"
                )
            _, read = clone(self)._read(X, np.zeros(len(known_array(X, "X"))), None, np.asarray)
            assert read.images is not None
            return chosen(n, kernel_of(recipe, read.images, request.make)(read.images.pixels)).rows
        images = self._check_test(X)
        return chosen(n, self.fit_.among(images), self._exact("choosing images"), self.fit_.cross(images)).rows

    def _exact(self, what: str) -> ExactGP:
        check_is_fitted(self, "fit_")
        if (exact := self.gp_.exact) is None:
            raise DataError(f"{what} needs a factor of all images; fit without inducing= and with solver='cholesky'")
        return exact

    def _first(self, n: int, score: Floats, X: Any) -> Numbers:
        """Return the rows of the `n` images with the highest score, of X or of the training images."""
        order = np.argsort(-score, kind="stable")[:n]
        return np.asarray(self.loo_rows_[order] if X is None else order)

    def _suspects(self, n: int, score: Floats, given: Array, proposed: Array) -> dict[str, Array]:
        """Return the `n` training images with the highest score, as columns of a table."""
        order = np.argsort(-score, kind="stable")[:n]
        at = self.loo_rows_[order]
        name = np.array([f"image {i}" for i in at], dtype=str) if self.names_ is None else self.names_[at]
        return {"row": at, "score": score[order], "given": given[order], "proposed": proposed[order], "name": name}

    # ---- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, without pickle."""
        check_is_fitted(self, "fit_")
        header, arrays = self.fit_.state()
        own, more = self._state()
        kernel = self.kernel_  # a given Kernel has its own settings
        parameters = {k: v for k, v in self.get_params(deep=False).items() if k not in _NOT_SAVED}
        parameters |= {"dtype": kernel.dtype, "threads": kernel.threads, "kind": kernel.kind}
        if not isinstance(parameters["random_state"], int | np.integer | None):
            del parameters["random_state"]  # a generator, which the fitted model no longer needs
        if isinstance(weights := parameters.get("class_weight"), Mapping):  # JSON keys are text
            parameters["class_weight"] = [[np.asarray(label).item(), float(w)] for label, w in weights.items()]
        # The noise for a new fit of the same recipe: the rule that chose it, else its number.
        noise = self.network.noise if isinstance(self.network, Recipe) and self.noise is None else self.noise
        if not isinstance(noise, str):
            noise = "loo" if self.fit_.choice is not None and noise is None else self.recipe_.noise
        names = getattr(self, "feature_names_in_", None)
        header |= {"estimator": type(self).__name__, "parameters": parameters, "noise": noise}
        header |= {"image_aspect": self.image_aspect_, "feature_names": None if names is None else [*map(str, names)]}
        more |= {} if self.pictures_ is None else {"pictures": self.pictures_}
        persistence.write(path, header | own, arrays | more)

    @classmethod
    def load(cls, path: str | Path, *, device: Device = "auto") -> Self:
        """Load a model that `save` wrote. Runs no code from the file; raises `ModelFileError` for damaged files."""
        header, arrays = persistence.read(path)
        if header.get("estimator") != cls.__name__:
            held = one_line(header.get("estimator"))[:50]
            raise OtherEstimatorError(f"{path} holds a {held}; load it with {held}.load", held)
        check_device(device)
        actual_device(device)  # checked first, so that a wrong device is not blamed on the file
        try:
            return cls._of_file(header, arrays, device)
        except MemoryError as error:
            raise ModelFileError(f"{path} needs more memory than there is: {error}") from None
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else one_line(error)
            said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
            raise ModelFileError(f"{path} is not a model that this version can read: {said}") from None

    @classmethod
    def _of_file(cls, header: dict[str, Any], arrays: dict[str, Array], device: Device) -> Self:
        """Build the model of an untrusted file, which cannot set a store, a device or other machine parameters."""
        for name, array in arrays.items():  # no fit produces such numbers, and predictions would contain them
            if array.dtype.kind in "fc" and not np.isfinite(array).all():
                raise ValueError(f"{name[:50]} holds NaN or infinity")
        parameters = {k: v for k, v in dict(header["parameters"]).items() if k not in _NOT_SAVED}
        if isinstance(parameters.get("class_weight"), list):
            parameters["class_weight"] = {label: float(weight) for label, weight in parameters["class_weight"]}
        if parameters.get("input_shape") is not None:
            parameters["input_shape"] = tuple(parameters["input_shape"])
        recipe = replace(Recipe.from_json(header["recipe"]), noise=None)
        model = cls(recipe, noise=header["noise"], device=device, **parameters)
        if is_whole(model.threads, least=1):  # set on the machine that saved the model
            model.threads = min(model.threads, os.cpu_count() or 1)
        request = model._request()  # raises for invalid parameters in the file
        model.fit_ = Fit.restored(header, arrays, request.make)
        if header.get("image_aspect") is not None:
            from cnngp.datasets.images import check_aspect

            check_aspect(header["image_aspect"])
            model.image_aspect_ = header["image_aspect"]
        if (pictures := arrays.get("pictures")) is not None:
            if pictures.ndim < 3 or len(pictures) != model.fit_.report.images:
                raise ValueError(f"pictures of shape {pictures.shape} for {model.fit_.report.images:,} images")
            model.pictures_ = pictures
        if model.fit_.rows is not None:
            model.inducing = len(model.X_)
        model.n_features_in_ = int(np.prod(model.X_.shape[1:]))
        if header.get("feature_names") is not None:
            model.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        model._restore(header, arrays)
        return model

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays of the estimator that are not in the fit, for a file."""
        raise NotImplementedError

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore the result of `_state` and everything derived; raise `ValueError` if it contradicts the fit."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True  # rows, and images of three axes and more
        return tags
