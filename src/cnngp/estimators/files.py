"""Estimators in files: what of a `Fit` is written, and how it comes back from a file that may say anything."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cnngp.common import files as persistence
from cnngp.common.arrays import to_numpy
from cnngp.common.devices import Device, array_module
from cnngp.common.errors import ModelFileError, one_line
from cnngp.datasets.preparation import as_preparation
from cnngp.gp.posterior import Posterior
from cnngp.kernel.kernel import Kernel

from .certificate import FitReport
from .fit import Fit
from .kernels import RecipeKernel, TermKernel
from .learning import Learned
from .recipe import Recipe

if TYPE_CHECKING:
    from .base import GPEstimator

Array = NDArray[Any]
Estimator = TypeVar("Estimator", bound="GPEstimator")

# Parameters that belong to a machine, a place or a data set and not to the model, and those that the recipe replaces.
_NOT_SAVED = ("network", "device", "store", "inducing", "learn", "effort", "preparation", "noise")
_LONGEST = 300  # letters of a message about a file's content

# The axes of every array, by letters that mean one size each: I training images, N points, C outputs, S points with
# leave-one-out predictions, T entries of the triangle of an N × N matrix. "?" may be missing; "*" is one more axis.
_SHAPES: dict[str, dict[str, str]] = {
    "any": {"y?": "I*", "names?": "I"},
    "exact": {"Y": "NC", "K": "T", "point_noise": "N", "groups?": "N*"},
    "iterative": {
        "alpha": "NC",
        "inverse_diagonal": "S",
        "loo_rows": "S",
        "loo_targets": "SC",
        "deviations": "SC",
        "left_out_variances": "S",
        "loo_groups?": "S",
    },
    "inducing": {
        "rhs": "NC",
        "kept": "NS",
        "kept_diagonal": "S",
        "loo_rows": "S",
        "loo_targets": "SC",
        "own": "S",
        "seen": "SC",
        "copies": "S",
        "loo_groups?": "S",
        "K": "T",
        "B": "T",
    },
}


class OtherEstimatorError(ModelFileError):
    """A model of another kind than was asked for; `held` is its class's name."""

    def __init__(self, message: str, held: str) -> None:
        super().__init__(message)
        self.held = held


def save(model: GPEstimator, path: str | Path, header: dict[str, Any], arrays: dict[str, Array]) -> None:
    fit = model.fit_
    kernel, recipe = fit.kernel, fit.recipe
    if fit.X is None or kernel is None or recipe is None:
        raise ModelFileError("a model fitted on a kernel matrix alone has no images to save; pass X to fit as well")
    parameters = {k: v for k, v in model.get_params(deep=False).items() if k not in _NOT_SAVED}
    if not isinstance(parameters["random_state"], int | np.integer | None):
        del parameters["random_state"]  # a generator, of which the fitted model needs no more
    if isinstance(weights := parameters.get("class_weight"), Mapping):  # keys of JSON are text
        parameters["class_weight"] = [[np.asarray(label).item(), float(w)] for label, w in weights.items()]
    own = kernel.main  # a Kernel that was given has its own
    parameters |= {"dtype": own.dtype, "threads": own.threads, "kind": own.kind}
    if hasattr(model, "feature_names_in_"):
        header = header | {"feature_names": [str(name) for name in model.feature_names_in_]}
    state, posterior = fit.posterior.state(kernel.dtype)
    header = header | {
        "estimator": type(model).__name__,
        "parameters": parameters,
        "recipe": recipe.to_json(),
        "noise": _rule(model, recipe),
        "factors": [t.factor for t in kernel.terms],
        "report": {k: v for k, v in fit.report.as_dict().items() if k != "verdict"},
        "posterior": fit.posterior.kind,
        "image_aspect": model.image_aspect_,
        "state": state,
        "learned": None if fit.learned is None else fit.learned.as_dict(),
    }
    for i, t in enumerate(kernel.terms):
        arrays = arrays | {f"term {i} {name}": array for name, array in t.preparation.state().items()}
    known = {"y": fit.y, "names": fit.names, "inducing_rows": fit.rows}
    arrays = arrays | {name: array for name, array in known.items() if array is not None}
    posterior = {name: to_numpy(array) for name, array in posterior.items()}
    persistence.write(path, header, arrays | {"X": fit.X} | posterior)


def load(cls: type[Estimator], path: str | Path, device: Device) -> Estimator:
    """A model from its file.

    A file from somebody else can name no store, no device and nothing else that belongs to a machine: what it says of
    these is not used.
    """
    header, arrays = persistence.read(path)
    if header.get("estimator") != cls.__name__:
        held = one_line(header.get("estimator"))[:50]
        raise OtherEstimatorError(f"{path} holds a {held}; load it with {held}.load", held)
    with _reading(path):
        for name, array in arrays.items():  # no fit leaves such numbers in a model, and they would get into predictions
            if array.dtype.kind in "fc" and not np.isfinite(array).all():
                raise ValueError(f"{name[:50]} holds NaN or infinity")
        recipe = Recipe.from_json(header["recipe"])
        again = replace(recipe, noise=None)
        model = cls(again, noise=header["noise"], device=device, **_parameters(header["parameters"]))
        model._request()  # refuses what the file says of the parameters
        Kernel(recipe.main.network, "cpu", model.dtype, model.threads, model.kind)  # what it says of these
        if model.threads is not None:  # those of the machine that it was made on
            model.threads = min(model.threads, os.cpu_count() or 1)
        if header.get("image_aspect") is not None:
            from cnngp.datasets.images import check_aspect

            check_aspect(header["image_aspect"])
    # A wrong device is not the file's fault.
    kernels = [
        Kernel(term.network, device, model.dtype, model.threads, model.kind, symmetry=term.symmetry)
        for term in recipe.terms
    ]
    with _reading(path):
        X = np.ascontiguousarray(arrays["X"])
        if X.dtype != kernels[0].dtype or not 2 <= X.ndim <= 5 or 0 in X.shape:
            raise ValueError(f"images of shape {X.shape} and type {X.dtype}")
        said: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in dict(header["report"]).items()}
        report = FitReport(**said)
        kernel = _kernel(recipe, kernels, header["factors"], arrays, X.shape[1:])
        posterior = _posterior(header, arrays, report.images, len(X), array_module(kernel.device))
        rows = None
        if posterior.kind == "inducing":
            model.inducing, rows = len(X), arrays.get("inducing_rows", np.empty(0, np.intp))
            _check_rows(rows, len(X), report.images)
        learned = None if header.get("learned") is None else Learned.from_dict(header["learned"])
        fit = Fit(posterior, report, kernel, recipe, X, rows, arrays.get("y"), arrays.get("names"), learned=learned)
        _ = report.verdict, report.rows(), str(learned)  # can be shown
        model.fit_ = fit
        model.image_aspect_ = header.get("image_aspect")
        model.n_features_in_ = int(np.prod(X.shape[1:]))
        if "feature_names" in header:
            model.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        model._restore(header, arrays)
        if not np.isfinite(to_numpy(posterior.leave_one_out().mean)).all():
            raise ValueError("its predictions are not finite")
    return model


def _rule(model: GPEstimator, recipe: Recipe) -> Any:
    """The noise of a new fit by the same recipe: the word by which it was chosen, else its number."""
    asked = model.network.noise if isinstance(model.network, Recipe) and model.noise is None else model.noise
    if isinstance(asked, str):
        return asked
    return "loo" if model.choice_ is not None and asked is None else recipe.noise


def _parameters(held: Any) -> dict[str, Any]:
    found = {k: v for k, v in dict(held).items() if k not in _NOT_SAVED}
    if isinstance(found.get("class_weight"), list):
        found["class_weight"] = {label: float(weight) for label, weight in found["class_weight"]}
    if found.get("input_shape") is not None:
        found["input_shape"] = tuple(found["input_shape"])
    return found


def _kernel(
    recipe: Recipe, kernels: list[Kernel], factors: Any, arrays: dict[str, Array], input_shape: tuple[int, ...]
) -> RecipeKernel:
    terms = []
    for i, (term, kernel, factor) in enumerate(zip(recipe.terms, kernels, factors, strict=True)):
        if not isinstance(factor, float | int) or not 0.0 < factor < math.inf:
            raise ValueError(f"a factor of {factor!r}")
        state = {n.removeprefix(f"term {i} "): a for n, a in arrays.items() if n.startswith(f"term {i} ")}
        preparation = as_preparation(term.preparation).restored(state, input_shape)
        kernel.network.shapes(preparation.output_shape(input_shape))
        terms.append(TermKernel(term, kernel, preparation, float(factor)))
    return RecipeKernel(terms)


def _posterior(header: dict[str, Any], arrays: dict[str, Array], images: int, points: int, xp: Any) -> Posterior:
    from cnngp.gp.exact import ExactGP
    from cnngp.gp.inducing import InducingGP
    from cnngp.gp.iterative import IterativeGP

    kind = header["posterior"]
    kinds: dict[str, type[Posterior]] = {gp.kind: gp for gp in (ExactGP, IterativeGP, InducingGP)}
    if kind not in kinds:
        raise ValueError(f"a posterior of the kind {one_line(kind)[:50]!r}")
    if kind != "inducing" and points != images:
        raise ValueError(f"{images} images for {points} points")
    for name, value in dict(header["state"]).items():
        if isinstance(value, float) and not math.isfinite(value) and name != "residual":
            raise ValueError(f"{name} is {value}")
    _check_shapes(kind, arrays, images, points)
    return kinds[kind].restored(header["state"], arrays, xp)


def _check_shapes(kind: str, arrays: dict[str, Array], images: int, points: int) -> None:
    """Every array has the shape that follows from the others, before memory is taken for any."""
    sizes = {"I": images, "N": points, "T": points * (points + 1) // 2}
    for name, axes in (_SHAPES["any"] | _SHAPES[kind]).items():
        key, fixed = name.rstrip("?"), axes.rstrip("*")
        if key != name and key not in arrays:
            continue
        shape = arrays[key].shape
        expected = tuple(sizes.setdefault(axis, size) for axis, size in zip(fixed, shape, strict=False))
        if shape[: len(fixed)] != expected or not len(fixed) <= len(shape) <= len(axes):
            raise ValueError(f"{key} of shape {shape}, where ({', '.join(axes)}) are {expected}")
    if not sizes["C"]:
        raise ValueError("no outputs")


def _check_rows(rows: Array, points: int, images: int) -> None:
    """Rows of inducing images are among the training images, or there are none."""
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"inducing rows of shape {rows.shape} and type {rows.dtype}")
    if len(rows) and (len(rows) != points or rows.min() < 0 or rows.max() >= images):
        raise ValueError(f"{len(rows)} rows of {images} images for {points} inducing images")


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Whatever a crafted file, whose checksum is right, makes of a model: one line."""
    try:
        yield
    except MemoryError as error:
        raise ModelFileError(f"{path} needs more memory than there is: {error}") from None
    except KeyError as error:
        raise ModelFileError(f"{path} is not a model that this version can read: it has no {error}") from None
    except (TypeError, AttributeError, ValueError, IndexError, ArithmeticError, RecursionError) as error:
        said = one_line(error)
        said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
        raise ModelFileError(f"{path} is not a model that this version can read: {said}") from None
