"""`SparseGPClassifier`: variational classification with inducing points, for data too large for exact inference."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from cnngp.common import memory
from cnngp.common.arrays import DataError, as_images, to_numpy
from cnngp.common.devices import Device
from cnngp.common.progress import progress_bar
from cnngp.gp.linalg import blocks
from cnngp.kernel.kernel import Kernel, as_kernel
from cnngp.network.choice import default_network
from cnngp.network.layers import Network, NetworkError
from cnngp.network.names import network_by_name
from cnngp.torch_bridge import need_torch

from ..inputs import (
    as_float,
    as_image_shape,
    check_fits_images,
    check_real_rows,
    same_shape,
)
from . import files
from .checks import check_labels, check_parameters, choose_inducing, generators

if TYPE_CHECKING:
    from .model import SparseGP, Whitening

Array = NDArray[Any]


class SparseGPClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """GP classification with the RobustMax likelihood and m inducing points, trained by minibatches on GPyTorch.

    Takes O(N m) memory and O(N m²) time for each pass over N images, where exact inference takes O(N²) and O(N³). The
    network's kernel is computed once, N × m entries. Its scale has no effect with this likelihood: docs/sparse.md.

    Parameters
    ----------
    network : a network, its name, or a `Kernel`; None picks one for the shape of the images. "rbf" is the squared
        exponential kernel of the pixels with a learned lengthscale, and any `gpytorch.kernels.Kernel` on flat rows is
        learned too.
    inducing : how many training images are inducing points, drawn at random, or their rows; None takes 1,000, or all
        images where there are fewer.
    epochs, batch_size, learning_rate : passes over the data, images in a step, and Adam's first rate, which falls to 0.
    epsilon : the likelihood's chance that the label is not the largest function's.
    jitter : added to the diagonal of the inducing points' kernel matrix, in units of its mean.
    device, dtype, threads, input_shape : as in `GPClassifier`; `dtype` is also the precision of training. A `Kernel`
        has a device, a precision and threads of its own: others beside it are refused, but for the precision of
        training.
    random_state : of the inducing points and the minibatches; None for others at every fit.

    Attributes
    ----------
    classes_ : the labels.
    inducing_ : rows of the training images that are inducing points.
    elbo_ : the bound on the log likelihood of all labels in each pass, in nats.
    lengthscale_ : the learned one of "rbf", else None.
    kernel_ : the `Kernel`, or the GPyTorch kernel as it was learned.

    >>> from cnngp import SparseGPClassifier, datasets
    >>> data = datasets.digits().take(300, 100)
    >>> clf = SparseGPClassifier(inducing=50, epochs=5, device="cpu").fit(data.X, data.y)
    >>> clf.score(data.X_test, data.y_test) > 0.8
    True
    """

    def __init__(
        self,
        network: Network | Kernel | Any | Literal["rbf"] | None = None,
        *,
        inducing: int | Sequence[int] | Array | None = None,
        epochs: int = 50,
        batch_size: int = 1000,
        learning_rate: float = 0.03,
        epsilon: float = 1e-3,
        jitter: float = 1e-6,
        device: Device = "auto",
        dtype: str = "float32",
        input_shape: tuple[int, ...] | None = None,
        threads: int | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = 0,
    ) -> None:
        self.network = network
        self.inducing = inducing
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.epsilon = epsilon
        self.jitter = jitter
        self.device = device
        self.dtype = dtype
        self.input_shape = input_shape
        self.threads = threads
        self.random_state = random_state

    # ---- the estimator -------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Fit images X (N, C, H, W) and labels y (N,)."""
        self.__dict__.pop("model_", None)  # a fit that fails must not leave an earlier one's model to other labels
        need_torch("SparseGPClassifier")
        check_parameters(self.get_params(deep=False))
        images = self._check_images(X)
        labels = check_labels(y, len(images))
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"y holds one class only ({self.classes_[0]}); classification needs at least two classes")
        rng, seed = generators(self.random_state)
        self.inducing_ = choose_inducing(self.inducing, len(images), rng)
        self._require_memory(len(images))
        self._train(images, codes, seed)
        return self

    def predict(self, X: Any) -> Array:
        """The most probable label of each image."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """P(label) for each image, (M, classes), in the order of `classes_`."""
        check_is_fitted(self, "model_")
        import torch

        from .robustmax import RobustMax

        mean, variance = self.predict_latent(X)
        likelihood, device = RobustMax(len(self.classes_), self.epsilon), self._torch_device()
        P = []
        for rows in _chunks(len(mean)):
            moments = (torch.as_tensor(a[rows], device=device) for a in (mean, variance))
            P.append(to_numpy(likelihood.probabilities(*moments)))
        return np.concatenate(P)

    def predict_latent(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of each class's function, both (M, classes), in units of the kernel's mean variance."""
        moments = [(to_numpy(q.mean), to_numpy(q.variance)) for q in self._posterior(X)]
        mean, variance = (np.concatenate(parts).astype(np.float64) for parts in zip(*moments, strict=True))
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            raise ValueError("means or variances of these images come out as NaN or infinite: the model is not sound")
        return mean, variance

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, without pickle: networks and "rbf"; GPyTorch kernels are refused."""
        check_is_fitted(self, "model_")
        files.save(self, path)

    @classmethod
    def load(cls, path: str | Path, *, device: Device = "auto") -> Self:
        """A model that `save` wrote. Runs no code from the file; damaged files are refused."""
        return cast(Self, files.load(cls, path, device))

    # ---- checking ------------------------------------------------------------------------------------------------

    def _check_images(self, X: Any) -> Array:
        if _axes(X) <= 2:
            check_real_rows(X)
            X = validate_data(self, X, dtype=[np.float64, np.float32])
        else:
            X = as_float(to_numpy(X))
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = int(np.prod(X.shape[1:]))
        images = as_image_shape(X, self.input_shape)
        self.kernel_ = self._as_kernel(images)
        self.input_shape_ = images.shape[1:]
        return np.asarray(as_images(images, np.dtype(self.dtype)))

    def _as_kernel(self, images: Array) -> Any:
        """A `Kernel` for a network, a GPyTorch kernel for one that is learned."""
        from .robustmax import gpytorch

        if isinstance(self.network, gpytorch.kernels.Kernel):
            return copy.deepcopy(self.network)
        if self.rbf:
            return gpytorch.kernels.RBFKernel()
        network: Any = self.network
        if isinstance(network, str):
            try:
                network = network_by_name(network)
            except NetworkError as error:
                raise NetworkError(f"SparseGPClassifier: {error}, or 'rbf'") from None
        network = default_network(images.shape[1:], len(images)) if network is None else network
        dtype = network.dtype if isinstance(network, Kernel) else self.dtype
        kernel = as_kernel(network, self.device, dtype, self.threads)
        if kernel.kind != "nngp":
            raise ValueError(
                "SparseGPClassifier needs the kernel of a Gaussian process: give a Kernel of kind 'nngp', not "
                f"{kernel!r}"
            )
        check_fits_images(kernel.network, images)
        kernel.engine_for(images.shape[1:])
        return kernel

    def _require_memory(self, n: int) -> None:
        m, classes, entry = len(self.inducing_), len(self.classes_), np.dtype(self.dtype).itemsize
        features = n * (m + 1) if isinstance(self.kernel_, Kernel) else 2 * n * self.n_features_in_
        # R, its gradient, Adam's two moments and products of its size; q(f) of a step, forwards and backwards.
        training = 8 * classes * m * m + 4 * classes * min(self.batch_size, n) * m
        device = self.kernel_.device if isinstance(self.kernel_, Kernel) else "cpu"
        memory.require(entry * (features + training), f"a fit of {n:,} images with {m:,} inducing points", device)

    # ---- training and predicting ---------------------------------------------------------------------------------

    def _train(self, images: Array, codes: NDArray[np.intp], seed: int) -> None:
        import torch

        from .model import GivenFeatures, LearnedFeatures, SparseGP, start, train
        from .robustmax import RobustMax

        device = self._torch_device()
        dtype = getattr(torch, self.dtype)
        m, classes = len(self.inducing_), len(self.classes_)
        Z = images[self.inducing_]
        self.X_inducing_ = Z
        if isinstance(self.kernel_, Kernel):
            self._whitening = self._whiten(device)
            x = torch.empty(len(images), m + 1, dtype=dtype, device=device)
            for rows, features in self._feature_rows(images, self._whitening):
                x[rows] = features
            model = SparseGP(GivenFeatures(), m, classes)
        else:
            flat = torch.as_tensor(Z.reshape(m, -1)).double()
            # Distances in units of their median, so that the lengthscale starts right and learns at a fitting rate.
            self._unit = (torch.pdist(flat).median().item() or 1.0) if self.rbf and m > 1 else 1.0
            x = torch.as_tensor(images.reshape(len(images), -1), dtype=dtype, device=device)
            model = SparseGP(LearnedFeatures(self.kernel_, flat, self.jitter, self._unit), m, classes)
        model.variational_strategy.to(dtype)  # a learned kernel keeps its float64
        model.to(device)
        likelihood = RobustMax(classes, self.epsilon)
        y = torch.as_tensor(codes, device=device)
        start(model, likelihood, x, y)
        with progress_bar(self.epochs, "train", "epoch") as bar:

            def told(bound: float) -> None:
                bar.set_postfix_str(f"ELBO {bound:,.0f}", refresh=False)
                bar.update()

            trace = train(
                *(model, likelihood, x, y),
                epochs=int(self.epochs),
                batch_size=int(self.batch_size),
                learning_rate=float(self.learning_rate),
                generator=torch.Generator().manual_seed(seed),
                progress=told,
            )
        self.elbo_ = np.array(trace)
        self.model_: SparseGP = model.cpu()
        if isinstance(self.kernel_, Kernel):
            self._whitening = self._whitening.to("cpu")
        self.lengthscale_ = self._unit * self.kernel_.lengthscale.item() if self.rbf else None

    def _posterior(self, X: Any) -> Iterator[Any]:
        """q(f) for some rows of X at a time."""
        check_is_fitted(self, "model_")
        import torch

        if _axes(X) <= 2:
            check_real_rows(X)
            X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        images = as_images(same_shape(as_float(to_numpy(X)), self.input_shape_), np.dtype(self.dtype))
        device = self._torch_device()
        model = copy.deepcopy(self.model_).to(device)
        with torch.no_grad(), progress_bar(len(images), "predict", "image") as bar:
            if isinstance(self.kernel_, Kernel):
                rows_of = self._feature_rows(images, self._whitening.to(device), bar=False)
            else:
                flat = torch.as_tensor(images.reshape(len(images), -1), device=device)
                rows_of = ((rows, flat[rows]) for rows in _chunks(len(images)))
            for rows, x in rows_of:
                yield model(x)
                bar.update(rows.stop - rows.start)

    def _whiten(self, device: Any) -> Whitening:
        import torch

        from .model import Whitening

        K_mm = self.kernel_(self.X_inducing_, output=self._output(), progress=False)
        return Whitening(torch.as_tensor(K_mm, device=device).double(), self.jitter)

    def _feature_rows(self, images: Array, whitening: Whitening, bar: bool = True) -> Iterator[tuple[slice, Any]]:
        """For some images at a time, rows of a_n and k_nn − a_nᵀa_n."""
        import torch

        device, dtype = whitening.L.device, getattr(torch, self.dtype)
        pairs = len(images) * len(self.X_inducing_)
        with progress_bar(pairs, "kernel", "pair", wanted=bar) as t:
            for rows in _chunks(len(images)):
                K_nm = self.kernel_(images[rows], self.X_inducing_, output=self._output(), progress=False)
                k_n = torch.as_tensor(self.kernel_.diag(images[rows]), device=device).double()
                A, residual = whitening(torch.as_tensor(K_nm, device=device).double(), k_n)
                yield rows, torch.cat([A, residual[:, None]], 1).to(dtype)
                t.update((rows.stop - rows.start) * len(self.X_inducing_))

    @property
    def rbf(self) -> bool:
        """Whether the kernel is the squared exponential one of the pixels."""
        return isinstance(self.network, str) and self.network == "rbf"

    def _output(self) -> Literal["torch", "numpy"]:
        return "torch" if self._torch_device().type == self.kernel_.device else "numpy"

    def _torch_device(self) -> Any:
        """Where torch works: the kernel's device, the CPU where torch has no CUDA and none was demanded."""
        import torch

        asked = self.kernel_.device if isinstance(self.kernel_, Kernel) else self.device
        if asked != "cpu" and torch.cuda.is_available():
            return torch.device("cuda")
        if self.device == "cuda":
            raise RuntimeError("device='cuda', but this build of PyTorch finds no GPU; install one with CUDA")
        return torch.device("cpu")


def _axes(X: Any) -> int:
    return len(X.shape) if hasattr(X, "shape") else np.asarray(X).ndim


def _chunks(n: int) -> Iterator[slice]:
    from .model import CHUNK

    yield from blocks(n, CHUNK)
