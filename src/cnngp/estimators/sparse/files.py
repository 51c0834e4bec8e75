"""`SparseGPClassifier` in files: the learned numbers as plain arrays, the network as JSON, no pickle."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cnngp.common import files as persistence
from cnngp.common.arrays import to_numpy
from cnngp.common.devices import Device
from cnngp.common.errors import ModelFileError
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Dense
from cnngp.network.serialize import from_json
from cnngp.torch_bridge import need_torch

from ..files import check_finite, read_model, reading
from .checks import check_parameters

if TYPE_CHECKING:
    from . import SparseGPClassifier

_NAME = "SparseGPClassifier"
# Parameters that belong to a machine or a data set and not to the model.
_NOT_SAVED = ("network", "device", "inducing", "random_state")
# Of a `SparseGP`'s state in the names of arrays.
_STATE = "model."


def save(clf: SparseGPClassifier, path: str | Path) -> None:
    if not isinstance(clf.kernel_, Kernel) and not clf.rbf:
        raise ModelFileError(
            f"a model with a {type(clf.kernel_).__name__} cannot be saved, because its code would not be in the file; "
            "only models with a network or 'rbf' can"
        )
    parameters = {k: v for k, v in clf.get_params(deep=False).items() if k not in _NOT_SAVED}
    header: dict[str, Any] = {"estimator": _NAME, "parameters": parameters, "network": None}
    arrays = {"classes": clf.classes_, "X": clf.X_inducing_, "inducing": clf.inducing_, "elbo": clf.elbo_}
    if isinstance(clf.kernel_, Kernel):
        header |= {"network": clf.kernel_.network.to_json(), "kernel_dtype": clf.kernel_.dtype}
        parameters |= {"threads": clf.kernel_.threads}
        arrays |= {"L": to_numpy(clf._whitening.L), "scale": to_numpy(clf._whitening.scale)}
    else:
        header |= {"unit": clf._unit}
    if hasattr(clf, "feature_names_in_"):
        header |= {"feature_names": [str(name) for name in clf.feature_names_in_]}
    arrays |= {_STATE + name: to_numpy(value) for name, value in clf.model_.state_dict().items()}
    persistence.write(path, header, arrays)


def load(cls: type[SparseGPClassifier], path: str | Path, device: Device) -> SparseGPClassifier:
    need_torch(_NAME)
    header, arrays, parameters = read_model(path, _NAME, _NOT_SAVED)
    with reading(path):
        check_finite({name: array for name, array in arrays.items() if "_constraint." not in name})  # bounds may be ∞
        network = "rbf" if header["network"] is None else from_json(header["network"])
        clf = cls(network, device=device, inducing=len(arrays["X"]), **parameters)
        check_parameters(clf.get_params(deep=False))
        dtype = header.get("kernel_dtype", clf.dtype)
        Kernel(Dense(), "cpu", dtype, clf.threads)  # refuses what the file says of these
        if clf.threads is not None:  # those of the machine that it was made on
            clf.threads = min(clf.threads, os.cpu_count() or 1)
    # A wrong device is not the file's fault.
    kernel = None if isinstance(network, str) else Kernel(network, device, dtype, clf.threads)
    with reading(path):
        _restore(clf, kernel, header, arrays)
    return clf


def _restore(clf: SparseGPClassifier, kernel: Kernel | None, header: dict[str, Any], arrays: dict[str, Any]) -> None:
    import torch

    from .model import GivenFeatures, LearnedFeatures, SparseGP, Whitening
    from .robustmax import gpytorch

    Z = clf.X_inducing_ = arrays["X"]
    if Z.dtype.kind != "f" or arrays["inducing"].shape != (len(Z),) or arrays["inducing"].dtype.kind not in "iu":
        raise ValueError("its inducing images are not numbers, or their rows are others")
    if arrays["classes"].ndim != 1 or len(arrays["classes"]) < 2:
        raise ValueError(f"classes of shape {arrays['classes'].shape}")
    clf.classes_, clf.inducing_, clf.elbo_ = arrays["classes"], arrays["inducing"], arrays["elbo"]
    clf.input_shape_ = Z.shape[1:]
    clf.n_features_in_ = int(np.prod(clf.input_shape_))
    if "feature_names" in header:
        clf.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    m, classes = len(Z), len(clf.classes_)
    if kernel is not None:
        kernel.network.shapes(clf.input_shape_)
        clf.kernel_ = kernel
        clf._whitening = Whitening.restored(arrays["L"], arrays["scale"], float(clf.jitter))
        L, scale = arrays["L"], arrays["scale"]
        if L.shape != (m, m) or scale.shape != () or {L.dtype, scale.dtype} != {np.dtype(np.float64)} or scale <= 0.0:
            raise ValueError(f"a factor of {L.shape} and a scale of {scale.shape} for {m} inducing images")
        model = SparseGP(GivenFeatures(), m, classes)
    else:
        clf.kernel_, clf._unit = gpytorch.kernels.RBFKernel(), float(header["unit"])
        if not 0.0 < clf._unit < math.inf:
            raise ValueError(f"distances in units of {clf._unit}")
        flat = torch.as_tensor(Z.reshape(m, -1)).double()
        model = SparseGP(LearnedFeatures(clf.kernel_, flat, clf.jitter, clf._unit), m, classes)
    state = {name.removeprefix(_STATE): a for name, a in arrays.items() if name.startswith(_STATE)}
    model.variational_strategy.to(getattr(torch, clf.dtype))
    try:
        model.load_state_dict({name: torch.as_tensor(array) for name, array in state.items()})
    except RuntimeError as error:  # of torch, for names and shapes that are not the model's
        raise ValueError(str(error)) from None
    clf.model_ = model.eval()
    strategy = model.variational_strategy.base_variational_strategy
    if not (strategy.updated_strategy.item() and strategy.variational_params_initialized.item()):
        raise ValueError("its distribution was never fitted")
    clf.lengthscale_ = clf._unit * clf.kernel_.lengthscale.item() if clf.rbf else None
