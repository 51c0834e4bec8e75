"""What classification and regression share: images in, kernel matrices, the exact GP, saving and loading."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from . import memory, persistence
from .arrays import DataError, as_images, to_numpy
from .certificate import FitReport, sampled_kernel_error, smallest_eigenvalue
from .errors import ModelFileError
from .gp import Amplitude, ExactGP, Noise, check_amplitude, check_noise, float64_buffer
from .inputs import as_float, as_image_shape, check_fits_images, default_network, same_shape
from .kernel import Device, Kernel, as_kernel
from .linalg import blocks
from .network import Network
from .serialize import from_json
from .store_places import child
from .tiled import gram

Array = NDArray[Any]

# Entries of K(test, training) that are held at a time.
_CHUNK = 1 << 23


class GPEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of `GPClassifier` and `GPRegressor`."""

    # None where the model was fitted on a matrix alone: the kernel, its network, the training images and their shape.
    kernel_: Any
    network_: Any
    X_: Any
    input_shape_: Any
    gp_: ExactGP
    fit_report_: FitReport

    def __init__(
        self,
        network: Network | Kernel | None = None,
        *,
        noise: Noise = 0.0,
        amplitude: Amplitude = "ml",
        device: Device = "auto",
        dtype: str = "float32",
        store: Any = None,
        input_shape: tuple[int, ...] | None = None,
        threads: int | None = None,
    ) -> None:
        self.network = network
        self.noise = noise
        self.amplitude = amplitude
        self.device = device
        self.dtype = dtype
        self.store = store
        self.input_shape = input_shape
        self.threads = threads

    # ---- checking ------------------------------------------------------------------------------------------------

    def _check_fit(self, X: Any, y: Any, K: Any, regression: bool = False) -> tuple[Array | None, Any]:
        """Training images as (N, C, …), or None where only a matrix is given; and y, both of one length."""
        check_noise(self.noise)
        check_amplitude(self.amplitude)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if X is None and K is None:
            raise DataError("fit needs images X or a kernel matrix K")
        if K is not None:
            _check_length(K.shape[0] if hasattr(K, "shape") else len(K), y, "rows of K")
        if X is None:
            self.network_ = self.kernel_ = self.X_ = self.input_shape_ = None
            return None, y
        if _axes(X) <= 2:
            if _axes(X) == 2 and hasattr(X, "shape"):
                _check_length(X.shape[0], y, "images")
            X, y = validate_data(
                self, X, y, dtype=[np.float64, np.float32], multi_output=regression, y_numeric=regression
            )
        else:
            X = as_float(to_numpy(X))
            _check_length(len(X), y, "images")
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = int(np.prod(X.shape[1:]))
        images = as_image_shape(X, self.input_shape)
        network = default_network(images.shape[1:]) if self.network is None else self.network
        self.kernel_ = as_kernel(network, self.device, self.dtype, self.threads)
        self.network_ = self.kernel_.network
        check_fits_images(self.network_, images)
        self.input_shape_ = images.shape[1:]
        return as_images(images, np.dtype(self.kernel_.dtype)), y

    def _check_test(self, X: Any) -> Array:
        check_is_fitted(self, "gp_")
        if self.X_ is None:
            raise DataError("the model was fitted on a kernel matrix alone; give K(test, training) as K=")
        if _axes(X) <= 2:
            X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        images = same_shape(as_float(to_numpy(X)), self.input_shape_)
        return np.asarray(as_images(images, np.dtype(self.kernel_.dtype)))

    def _check_added(self, X: Any, y: Any) -> Array:
        images = self._check_test(X)
        _check_length(len(images), y, "images")
        return images

    # ---- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, images: Array | None, Y: NDArray[np.float64], K: Any) -> None:
        n = len(Y)
        self.__dict__.pop("gp_", None)  # an earlier fit's buffer would stay in memory beside the new one
        device: Literal["cpu", "cuda"] = "cpu" if self.kernel_ is None else self.kernel_.device
        entry = 8 if self.kernel_ is None else np.dtype(self.kernel_.dtype).itemsize
        # The matrix as it comes (from a store it comes by tiles), the float64 buffer, the eigenvectors and workspace.
        per_pair = (0 if K is not None or self.store is not None else entry) + 8 + (24 if self.noise == "ml" else 0)
        memory.require(per_pair * n * n, f"an exact fit of {n:,} images", device)
        start = time.perf_counter()
        given = K is not None
        if K is None:
            K = self._gram(images) if self.store is None else gram(self.kernel_, images, store=self.store)
        computed = time.perf_counter()
        error, pairs = (None, 0) if images is None else sampled_kernel_error(self.network_, images, K)
        A = float64_buffer(K, on_gpu=device == "cuda")
        del K
        begun = time.perf_counter()
        self.X_ = images
        self.gp_ = ExactGP(A, Y, noise=self.noise, amplitude=self.amplitude, overwrite=True)
        self._certify(error, pairs, "given matrix" if given else self._engine(), computed - start, begun)
        self._after_fit()

    def _add(self, images: Array, Y: NDArray[np.float64]) -> None:
        n = len(self.X_) + len(images)
        memory.require(8 * n * n, f"{n:,} images together", self.kernel_.device)
        start = time.perf_counter()
        K_new_old, K_new = self._cross(images, self.X_), self._gram(images)
        begun = time.perf_counter()
        self.gp_.add(K_new_old, K_new, Y)
        self.X_ = np.concatenate([self.X_, images])
        report = self.fit_report_
        self._certify(report.kernel_error, report.pairs_checked, report.engine, begun - start, begun)
        self._after_fit()

    def _certify(self, error: float | None, pairs: int, engine: str, kernel_seconds: float, begun: float) -> None:
        gp = self.gp_
        self.fit_report_ = FitReport(
            images=int(gp.Y.shape[0]),
            engine=engine,
            kernel_error=error,
            pairs_checked=pairs,
            residual=gp.residual(),
            smallest_eigenvalue=smallest_eigenvalue(gp),
            largest_variance=float(gp.factor.diagonal.max()),
            noise=gp.noise,
            jitter=gp.jitter,
            amplitude=gp.amplitude,
            kernel_seconds=kernel_seconds,
            solve_seconds=time.perf_counter() - begun,
        )

    def _after_fit(self) -> None:
        """What the estimator derives from `gp_`."""
        raise NotImplementedError

    # ---- kernels -------------------------------------------------------------------------------------------------

    def _gram(self, images: Any) -> Any:
        return self.kernel_(images, output="cupy" if self.kernel_.device == "cuda" else "numpy")

    def _cross(self, images: Array, others: Array) -> Any:
        return self.kernel_(images, others, output="cupy" if self.kernel_.device == "cuda" else "numpy", progress=False)

    def _stored_cross(self, images: Array) -> Any:
        """K(test, training) in the store, under a name of its own for each pair of sets."""
        digest = hashlib.sha256()
        for set_ in (images, self.X_):
            digest.update(str(set_.shape).encode() + set_.data)
        return gram(self.kernel_, images, self.X_, store=child(self.store, f"cross-{digest.hexdigest()[:16]}"))

    def _engine(self) -> str:
        """The engine that is used now, for people."""
        return f"{self.kernel_.device} ({self.kernel_.engine_for(self.input_shape_).identity})"

    # ---- predicting ----------------------------------------------------------------------------------------------

    def _chunks(self, X: Any, K: Any) -> Iterator[tuple[slice, Any]]:
        """K(test, training), some rows at a time, with a progress bar on a terminal when it takes long."""
        check_is_fitted(self, "gp_")
        n = int(self.gp_.Y.shape[0])
        if K is not None:
            for rows in blocks(len(K), max(1, _CHUNK // n)):
                yield rows, K[rows]
            return
        from tqdm.auto import tqdm

        images = self._check_test(X)
        if self.store is not None:
            K = self._stored_cross(images)
            for rows in blocks(len(images), K.chunks[0]):
                yield rows, K[rows]
            return
        with tqdm(total=len(images), delay=2.0, disable=None, unit="image", leave=False) as bar:
            for rows in blocks(len(images), max(1, _CHUNK // n)):
                yield rows, self._cross(images[rows], self.X_)
                bar.update(rows.stop - rows.start)

    def _mean(self, X: Any, K: Any) -> NDArray[np.float64]:
        return np.concatenate([to_numpy(self.gp_.mean(block)) for _, block in self._chunks(X, K)])

    def _mean_and_variance(self, X: Any, K: Any, diagonal: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        check_is_fitted(self, "gp_")
        if K is not None and diagonal is None:
            raise DataError("variances at the rows of K also need diagonal=, the k(x, x) of each test image")
        if K is None:
            X = self._check_test(X)
            diagonal = self.kernel_.diag(X)
        means, variances = [], []
        for rows, block in self._chunks(X, K):
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

    # ---- saving --------------------------------------------------------------------------------------------------

    def _save(self, path: str | Path, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        if self.X_ is None:
            raise ModelFileError("a model fitted on a kernel matrix alone has no images to save; pass X to fit as well")
        parameters = {k: v for k, v in self.get_params(deep=False).items() if k not in ("network", "device", "store")}
        parameters |= {"dtype": self.kernel_.dtype, "threads": self.kernel_.threads}  # a given Kernel's own
        gp = self.gp_
        K = persistence.packed(to_numpy(gp.factor.A), to_numpy(gp.factor.diagonal), self.kernel_.dtype)
        persistence.write(
            path,
            header
            | {
                "estimator": type(self).__name__,
                "parameters": parameters,
                "network": self.network_.to_json(),
                "noise": gp.noise,
                "jitter": gp.jitter,
                "report": {k: v for k, v in self.fit_report_.as_dict().items() if k != "verdict"},
            },
            arrays | {"X": self.X_, "Y": to_numpy(gp.Y), "K": K},
        )

    @classmethod
    def _load(cls, path: str | Path, device: Device) -> tuple[Self, dict[str, Any], dict[str, Array]]:
        header, arrays = persistence.read(path)
        if header.get("estimator") != cls.__name__:
            held = header.get("estimator")
            raise ModelFileError(f"{path} holds a {held}; load it with {held}.load")
        try:
            parameters = dict(header["parameters"])
            if parameters.get("input_shape") is not None:
                parameters["input_shape"] = tuple(parameters["input_shape"])
            network = from_json(header["network"])
            model = cls(network, device=device, **parameters)
            model.kernel_ = Kernel(network, device, model.dtype, model.threads)
            model.network_ = model.kernel_.network
            model.X_ = arrays["X"]
            model.input_shape_ = model.X_.shape[1:]
            model.n_features_in_ = int(np.prod(model.input_shape_))
            A = persistence.unpacked(arrays["K"], len(model.X_))
            if model.kernel_.device == "cuda":
                from .arrays import to_cupy

                A = to_cupy(A)
            model.gp_ = ExactGP(
                A,
                arrays["Y"],
                noise=header["noise"],
                amplitude=model.amplitude,
                jitter=header["jitter"],
                overwrite=True,
            )
            report = header["report"] | {"smallest_eigenvalue": tuple(header["report"]["smallest_eigenvalue"])}
            model.fit_report_ = FitReport(**report)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ModelFileError(f"{path} is not a model that this version can read: {error}") from None
        return model, header, arrays


def _axes(X: Any) -> int:
    return len(X.shape) if hasattr(X, "shape") else np.asarray(X).ndim


def _check_length(n: int, y: Any, what: str) -> None:
    if hasattr(y, "__len__") and not (hasattr(y, "ndim") and y.ndim == 0) and len(y) != n:
        raise DataError(f"{n} {what} but {len(y)} labels in y; give one label per image")
