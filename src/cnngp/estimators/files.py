"""Estimators in files: what of each kind of model is written, and how it comes back."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cnngp.common import files as persistence
from cnngp.common.arrays import to_numpy
from cnngp.common.devices import Device, array_module
from cnngp.common.errors import ModelFileError, one_line
from cnngp.datasets.preparation import check_preparation
from cnngp.gp.posterior import KINDS, Posterior
from cnngp.kernel.kernel import Kernel
from cnngp.network.serialize import from_json

from .certificate import FitReport
from .learning import Learned

if TYPE_CHECKING:
    from .base import GPEstimator

Array = NDArray[Any]
Estimator = TypeVar("Estimator", bound="GPEstimator")

# Parameters that belong to a machine, a place or a data set and not to the model.
_NOT_SAVED = ("network", "device", "store", "inducing", "learn", "budget", "preparation")


class OtherEstimatorError(ModelFileError):
    """A model of another kind than was asked for; `held` is its class's name."""

    def __init__(self, message: str, held: str) -> None:
        super().__init__(message)
        self.held = held


def save(model: GPEstimator, path: str | Path, header: dict[str, Any], arrays: dict[str, Array]) -> None:
    if model.X_ is None:
        raise ModelFileError("a model fitted on a kernel matrix alone has no images to save; pass X to fit as well")
    parameters = {k: v for k, v in model.get_params(deep=False).items() if k not in _NOT_SAVED}
    if not isinstance(parameters["random_state"], int | np.integer | None):
        del parameters["random_state"]  # a generator, of which the fitted model needs no more
    if model.noise is None and model.choice_ is not None:
        parameters["noise"] = "loo"  # what was meant by none goes with the chosen network
    if model.preparation_ != "plain":  # so that a program which knows no preparations refuses the file
        parameters["preparation"] = model.preparation_
    own = model.kernel_  # a Kernel that was given has its own
    parameters |= {"dtype": own.dtype, "threads": own.threads, "kind": own.kind}
    if hasattr(model, "feature_names_in_"):
        header = header | {"feature_names": [str(name) for name in model.feature_names_in_]}
    state, posterior = model.gp_.state(model.kernel_.dtype)
    header = header | {
        "estimator": type(model).__name__,
        "parameters": parameters,
        "network": model.network_.to_json(),
        "report": {k: v for k, v in model.fit_report_.as_dict().items() if k != "verdict"},
        "posterior": model.gp_.kind,
        "image_aspect": model.image_aspect_,
        "state": state,
        "learned": None if model.learned_ is None else model.learned_.as_dict(),
    }
    posterior = {name: to_numpy(array) for name, array in posterior.items()}
    known = {"y": model.y_, "names": model.names_, "inducing_rows": model.inducing_rows_}
    arrays = arrays | {name: array for name, array in known.items() if array is not None}
    persistence.write(path, header, arrays | {"X": model.originals_} | posterior)


def load(
    cls: type[Estimator],
    path: str | Path,
    device: Device,
    finish: Callable[[Estimator, dict[str, Any], dict[str, Array]], None],
) -> Estimator:
    """A model from its file; `finish` adds what its kind of estimator has beside the posterior.

    A file from somebody else can name no store, no device and nothing else that belongs to a machine: what it says of
    these is not used.
    """
    header, arrays, parameters = read_model(path, cls.__name__, _NOT_SAVED)
    with reading(path):
        check_finite(arrays)
        preparation = dict(header["parameters"]).get("preparation", "plain")
        check_preparation(preparation)
        parameters["preparation"] = preparation
        network = from_json(header["network"])
        model = cls(network, device=device, **parameters)
        Kernel(network, "cpu", model.dtype, model.threads, model.kind)  # refuses what the file says of these
        if model.threads is not None:  # those of the machine that it was made on
            model.threads = min(model.threads, os.cpu_count() or 1)
    # A wrong device is not the file's fault.
    model.kernel_ = Kernel(network, device, model.dtype, model.threads, model.kind)
    with reading(path):
        model.network_, model.choice_ = model.kernel_.network, None
        model.originals_, model.preparation_ = arrays["X"], preparation
        model.X_ = model._prepared(model.originals_)
        model.input_shape_ = model.X_.shape[1:]
        model.network_.shapes(model.input_shape_)
        if model.X_.dtype.kind != "f" or not np.isfinite(model.X_).all():
            raise ValueError("its images are not finite numbers")
        if header.get("image_aspect") is not None:
            from cnngp.datasets.images import check_aspect

            check_aspect(header["image_aspect"])
            model.image_aspect_ = header["image_aspect"]
        model.n_features_in_ = int(np.prod(model.input_shape_))
        if "feature_names" in header:
            model.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        model.gp_ = _posterior(header, arrays, array_module(model.kernel_.device))
        if model.gp_.points != len(model.X_):
            raise ValueError(f"{len(model.X_)} images for {model.gp_.points} points")
        model.inducing_rows_ = None
        if header.get("posterior") == "inducing":
            model.inducing = len(model.X_)
            model.inducing_rows_ = arrays.get("inducing_rows", np.empty(0, np.intp))
        report = dict(header["report"])
        for pair in ("smallest_eigenvalue", "guessing", "no_better"):  # lists in JSON
            report[pair] = None if report.get(pair) is None else tuple(report[pair])
        model.fit_report_ = FitReport(**report)
        held = header.get("learned")
        model.learned_ = None if held is None else Learned.from_dict(held)
        _ = model.fit_report_.verdict, model.fit_report_.rows(), str(model.learned_)  # can be shown
        model.y_, model.names_ = arrays.get("y"), arrays.get("names")  # none in files of the first version
        _check_known(model)
        finish(model, header, arrays)
    return model


def _check_known(model: GPEstimator) -> None:
    """What a file says of all training images is said of as many as there are."""
    n, rows = model.fit_report_.images, model.inducing_rows_
    for what, known in (("labels", model.y_), ("names", model.names_)):
        if known is not None and len(known) != n:
            raise ValueError(f"{len(known)} {what} for {n} images")
    if rows is not None and (rows.ndim != 1 or rows.dtype.kind not in "iu"):
        raise ValueError(f"inducing rows of shape {rows.shape} and type {rows.dtype}")
    if rows is not None and len(rows) and (len(rows) != len(model.X_) or rows.min() < 0 or rows.max() >= n):
        raise ValueError(f"{len(rows)} rows of {n} images for {len(model.X_)} inducing images")


def check_finite(arrays: dict[str, Array]) -> None:
    """`ValueError` for NaN and infinity, which no fit leaves in a model, and which would travel into predictions."""
    for name, array in arrays.items():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinity")


def read_model(
    path: str | Path, estimator: str, not_saved: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Array], dict[str, Any]]:
    """Header and arrays of a file that must hold this kind of estimator, and the parameters that it was made with."""
    header, arrays = persistence.read(path)
    if header.get("estimator") != estimator:
        held = one_line(header.get("estimator"))[:50]
        raise OtherEstimatorError(f"{path} holds a {held}; load it with {held}.load", held)
    with reading(path):
        parameters = {k: v for k, v in dict(header["parameters"]).items() if k not in not_saved}
        if parameters.get("input_shape") is not None:
            parameters["input_shape"] = tuple(parameters["input_shape"])
    return header, arrays, parameters


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Whatever a crafted file, whose checksum is right, makes of a model: one line."""
    try:
        yield
    except MemoryError as error:
        raise ModelFileError(f"{path} needs more memory than there is: {error}") from None
    except KeyError as error:
        raise ModelFileError(f"{path} is not a model that this version can read: it has no {error}") from None
    except (TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        raise ModelFileError(f"{path} is not a model that this version can read: {one_line(error)}") from None


def _posterior(header: dict[str, Any], arrays: dict[str, Array], xp: Any) -> Posterior:
    if "state" not in header:  # an exact model of the first version
        state = {"noise": header["noise"], "jitter": header["jitter"]}
        return KINDS["exact"].restored(state | {"amplitude_rule": header["parameters"]["amplitude"]}, arrays, xp)
    kind = header["posterior"]
    if kind not in KINDS:
        raise ValueError(f"a posterior of the kind {kind!r}")
    for name, value in dict(header["state"]).items():
        if isinstance(value, float) and not math.isfinite(value) and name != "residual":
            raise ValueError(f"{name} is {value}")
    return KINDS[kind].restored(header["state"], arrays, xp)
