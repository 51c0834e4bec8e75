"""Estimators in files: their parameters beside the `Fit`, and how they come back from a file that may say anything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cnngp.common import files as persistence
from cnngp.common.devices import Device, actual_device, check_device
from cnngp.common.errors import ModelFileError, is_whole, one_line

from .fit import Fit
from .recipe import Recipe

if TYPE_CHECKING:
    from .base import GPEstimator

Estimator = TypeVar("Estimator", bound="GPEstimator")

# Parameters that belong to a machine, a place or a data set and not to the model, and those that the recipe replaces.
_NOT_SAVED = ("network", "device", "store", "inducing", "learn", "effort", "preparation", "noise")
_LONGEST = 300  # letters of a message about a file's content


class OtherEstimatorError(ModelFileError):
    """A model of another kind than was asked for; `held` is its class's name."""

    def __init__(self, message: str, held: str) -> None:
        super().__init__(message)
        self.held = held


def save(model: GPEstimator, path: str | Path) -> None:
    fit = model.fit_
    header, arrays = fit.state()
    own, more = model._state()
    kernel = model.kernel_  # a Kernel that was given has settings of its own
    parameters = {k: v for k, v in model.get_params(deep=False).items() if k not in _NOT_SAVED}
    parameters |= {"dtype": kernel.dtype, "threads": kernel.threads, "kind": kernel.kind}
    if not isinstance(parameters["random_state"], int | np.integer | None):
        del parameters["random_state"]  # a generator, of which the fitted model needs no more
    if isinstance(weights := parameters.get("class_weight"), Mapping):  # keys of JSON are text
        parameters["class_weight"] = [[np.asarray(label).item(), float(w)] for label, w in weights.items()]
    # The noise of a new fit by the same recipe: the word by which it was chosen, else its number.
    noise = model.network.noise if isinstance(model.network, Recipe) and model.noise is None else model.noise
    if not isinstance(noise, str):
        noise = "loo" if fit.choice is not None and noise is None else model.recipe_.noise
    header |= {"estimator": type(model).__name__, "parameters": parameters, "noise": noise}
    header |= {"image_aspect": model.image_aspect_, "feature_names": getattr(model, "feature_names_in_", None)}
    if header["feature_names"] is not None:
        header["feature_names"] = [str(name) for name in header["feature_names"]]
    persistence.write(path, header | own, arrays | more)


def load(cls: type[Estimator], path: str | Path, device: Device) -> Estimator:
    """A model from its file.

    A file from somebody else can name no store, no device and nothing else that belongs to a machine: what it says of
    these is not used.
    """
    header, arrays = persistence.read(path)
    if header.get("estimator") != cls.__name__:
        held = one_line(header.get("estimator"))[:50]
        raise OtherEstimatorError(f"{path} holds a {held}; load it with {held}.load", held)
    check_device(device)
    actual_device(device)  # a wrong device is not the file's fault
    with _reading(path):
        for name, array in arrays.items():  # no fit leaves such numbers in a model, and they would get into predictions
            if array.dtype.kind in "fc" and not np.isfinite(array).all():
                raise ValueError(f"{name[:50]} holds NaN or infinity")
        parameters = {k: v for k, v in dict(header["parameters"]).items() if k not in _NOT_SAVED}
        if isinstance(parameters.get("class_weight"), list):
            parameters["class_weight"] = {label: float(weight) for label, weight in parameters["class_weight"]}
        if parameters.get("input_shape") is not None:
            parameters["input_shape"] = tuple(parameters["input_shape"])
        recipe = replace(Recipe.from_json(header["recipe"]), noise=None)
        model = cls(recipe, noise=header["noise"], device=device, **parameters)
        if is_whole(model.threads, least=1):  # those of the machine that it was made on
            model.threads = min(model.threads, os.cpu_count() or 1)
        request = model._request()  # refuses what the file says of the parameters
        model.fit_ = Fit.restored(header, arrays, request.make)
        if header.get("image_aspect") is not None:
            from cnngp.datasets.images import check_aspect

            check_aspect(header["image_aspect"])
            model.image_aspect_ = header["image_aspect"]
        if model.fit_.rows is not None:
            model.inducing = len(model.X_)
        model.n_features_in_ = int(np.prod(model.X_.shape[1:]))
        if header.get("feature_names") is not None:
            model.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        model._restore(header, arrays)
    return model


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
