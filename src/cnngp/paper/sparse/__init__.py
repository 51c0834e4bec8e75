"""Variational classification with inducing points, the model of Figure 3: `fit` trains it, on GPyTorch.

m training images drawn at random are inducing points, the likelihood is RobustMax. The kernel of a network is computed
once, N × m entries; "rbf" is the squared exponential kernel of the pixels with a learned lengthscale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.common.devices import ActualDevice
from cnngp.common.progress import progress_bar
from cnngp.gp.linalg import blocks
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network

from .model import CHUNK, GivenFeatures, LearnedFeatures, SparseGP, Whitening, start, train
from .robustmax import RobustMax, gpytorch

JITTER = 1e-6
"""Added to the diagonal of the inducing points' kernel matrix, in units of its mean."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Training:
    """How a model is trained: Adam on minibatches, at a rate that falls to zero."""

    inducing: int = 1_000
    epochs: int = 50
    batch_size: int = 1_000
    learning_rate: float = 0.03
    epsilon: float = 1e-3
    """The likelihood's chance that the label is not the largest function's."""
    dtype: Literal["float32", "float64"] = "float32"
    seed: int = 0
    """Of the inducing points and the minibatches."""


@dataclass(frozen=True)
class SparseFit:
    """A trained model, which answers with the probabilities of labels."""

    classes: Array
    elbo: NDArray[np.float64]
    """The bound on the log likelihood of all labels after each pass over the data, in nats."""
    lengthscale: float | None
    """The learned one of "rbf"."""
    features: Features
    model: SparseGP = field(repr=False)
    likelihood: RobustMax = field(repr=False)

    def predict_proba(self, X: Array) -> NDArray[np.float64]:
        """P(label) of each image, (M, classes), in the order of `classes`."""
        found = []
        with torch.no_grad():
            for _, x in self.features.rows(X):
                q = self.model(x)
                found.append(to_numpy(self.likelihood.probabilities(q.mean, q.variance)).astype(np.float64))
        return np.concatenate(found)


def fit(
    network: Network | Literal["rbf"],
    X: Array,
    y: Array,
    training: Training,
    device: ActualDevice,
    threads: int | None = None,
) -> SparseFit:
    """Train on images X (N, C, H, W) with labels y (N,)."""
    classes, codes = np.unique(y, return_inverse=True)
    rows = np.sort(np.random.default_rng(training.seed).choice(len(X), training.inducing, replace=False))
    features: Features
    if isinstance(network, str):
        features = PixelFeatures(X[rows], training, device)
        model = SparseGP(features.learned, len(rows), len(classes))
    else:
        features = NetworkFeatures(Kernel(network, device, training.dtype, threads), X[rows], training)
        model = SparseGP(GivenFeatures(), len(rows), len(classes))
    model.variational_strategy.to(features.dtype)  # a learned kernel keeps its float64
    model.to(features.device)
    x = torch.cat([part for _, part in features.rows(X)])
    labels = torch.as_tensor(codes, device=features.device)
    likelihood = RobustMax(len(classes), training.epsilon)
    start(model, likelihood, x, labels)
    with progress_bar(training.epochs, "train", "epoch") as bar:

        def show(bound: float) -> None:
            bar.set_postfix_str(f"ELBO {bound:,.0f}", refresh=False)
            bar.update()

        trace = train(
            *(model, likelihood, x, labels),
            epochs=training.epochs,
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            generator=torch.Generator().manual_seed(training.seed),
            progress=show,
        )
    return SparseFit(classes, np.array(trace), features.lengthscale, features, model, likelihood)


class Features:
    """Rows that a `SparseGP` is called with, computed from images some at a time."""

    def __init__(self, training: Training, device: ActualDevice) -> None:
        self.dtype = getattr(torch, training.dtype)
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("device='cuda', but this build of PyTorch finds no GPU; install one with CUDA")
        self.device = torch.device(device)

    @property
    def lengthscale(self) -> float | None:
        return None

    def rows(self, X: Array) -> Iterator[tuple[slice, Any]]:
        """Slices of the images, each with its rows of numbers."""
        raise NotImplementedError


class NetworkFeatures(Features):
    """a_n and k_nn − a_nᵀa_n (see `model`) of a fixed kernel."""

    def __init__(self, kernel: Kernel, Z: Array, training: Training) -> None:
        super().__init__(training, kernel.device)
        self._kernel, self._Z = kernel, Z
        self._output: Literal["torch", "numpy"] = "torch" if self.device.type == "cuda" else "numpy"
        self._whitening = Whitening(self._double(kernel(Z, output=self._output, progress=False)), JITTER)

    def rows(self, X: Array) -> Iterator[tuple[slice, Any]]:
        with progress_bar(len(X) * len(self._Z), "kernel", "pair") as bar:
            for rows in blocks(len(X), CHUNK):
                K_nm = self._double(self._kernel(X[rows], self._Z, output=self._output, progress=False))
                A, residual = self._whitening(K_nm, self._double(self._kernel.diag(X[rows])))
                yield rows, torch.cat([A, residual[:, None]], 1).to(self.dtype)
                bar.update(K_nm.numel())

    def _double(self, values: Any) -> Any:
        return torch.as_tensor(values, device=self.device).double()


class PixelFeatures(Features):
    """Flat images, for the squared exponential kernel with a learned lengthscale."""

    def __init__(self, Z: Array, training: Training, device: ActualDevice) -> None:
        super().__init__(training, device)
        flat = torch.as_tensor(Z.reshape(len(Z), -1)).double()
        # Distances in units of their median, so that the lengthscale starts right and learns at a fitting rate.
        self._unit = torch.pdist(flat).median().item() or 1.0
        self._kernel = gpytorch.kernels.RBFKernel()
        self.learned = LearnedFeatures(self._kernel, flat, JITTER, self._unit)

    @property
    def lengthscale(self) -> float | None:
        return float(self._unit * self._kernel.lengthscale.item())

    def rows(self, X: Array) -> Iterator[tuple[slice, Any]]:
        flat = torch.as_tensor(X.reshape(len(X), -1), dtype=self.dtype, device=self.device)
        for rows in blocks(len(X), CHUNK):
            yield rows, flat[rows]
