"""A network's kernel as a scikit-learn kernel on flat rows; see `Kernel.as_sklearn`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import kernels

from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.devices import Device
from cnngp.network.layers import Network

from .kernel import Kernel
from .program import Kind


class NetworkKernel(kernels.Kernel):  # type: ignore[misc]
    """A scikit-learn kernel without hyperparameters to optimise; cloned, compared and pickled by its parameters."""

    def __init__(
        self,
        network: Network,
        input_shape: tuple[int, ...],
        device: Device = "auto",
        dtype: str = "float32",
        threads: int | None = None,
        kind: Kind = "nngp",
        check: bool = True,
    ) -> None:
        self.network = network
        self.input_shape = input_shape
        self.device = device
        self.dtype = dtype
        self.threads = threads
        self.kind = kind
        self.check = check

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        if eval_gradient and Y is not None:
            raise ValueError("the gradient is with respect to hyperparameters at Y=None; this kernel has none of them")
        other = None if Y is None or Y is X else self._images(Y)
        K = self._kernel()(self._images(X), other, progress=False).astype(np.float64)
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X: Any) -> NDArray[np.float64]:
        return self._kernel().diag(self._images(X)).astype(np.float64)

    def is_stationary(self) -> bool:
        return False

    def __repr__(self) -> str:
        kind = "" if self.kind == "nngp" else f"{self.kind} of "
        return f"{kind}{self.network!r} on {self.input_shape}"

    def _kernel(self) -> Kernel:
        asked = self.network, self.device, self.dtype, self.threads, self.kind, self.check  # set_params may change them
        if self.__dict__.get("_made_for") != asked:
            self._made, self._made_for = Kernel(*asked), asked
        return self._made

    def _images(self, X: Any) -> NDArray[Any]:
        rows = to_numpy(X)
        size = int(np.prod(self.input_shape))
        if rows.ndim != 2 or rows.shape[1] != size:
            raise DataError(
                f"X has shape {rows.shape}; expected rows of {size} pixels, one image {self.input_shape} each"
            )
        return rows.reshape(-1, *self.input_shape)
