"""Exact GPs on sums of kernels, with their probabilities: the convolutional GP with all its patches.

The convolutional GP is the sum of two kernels, over pairs of patches and over whole images; their matrices are computed
separately and added. Its lengthscales and the share of the second kernel minimise the leave-one-out error on some of
the training images; ties are broken by the leave-one-out NLL.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.common.devices import output_on
from cnngp.common.progress import progress_bar
from cnngp.estimators.classifier import GPClassifier
from cnngp.gp.calibration import negative_log_likelihood
from cnngp.kernel.kernel import Kernel
from cnngp.network import zoo
from cnngp.network.layers import Network
from cnngp.paper.results import percent
from cnngp.paper.setting import Setting, release, wait
from cnngp.paper.table1 import SplitImages

from .scores import measured


@dataclass(frozen=True)
class Term:
    """A network and the factor of its kernel."""

    network: Network
    weight: float = 1.0


def exact(
    setting: Setting, terms: tuple[Term, ...], images: SplitImages, noise: float | Literal["loo"]
) -> dict[str, Any]:
    """Exact GP with a sum of kernels on the training images: errors, NLL, ECE, and the speed of the kernels."""
    n = images.train
    parts = {"validation": (images.X[n:], images.y[n:]), "test": (images.X_test, images.y_test)}
    K = _matrix(setting, terms, images.X[:n])
    wait(K)
    began = time.perf_counter()  # the rate excludes the first matrix, which includes compilation
    cross = {name: _matrix(setting, terms, X, images.X[:n]) for name, (X, _) in parts.items()}
    wait(K)
    seconds = time.perf_counter() - began
    clf = GPClassifier(noise=noise, solver="cholesky").fit(y=images.y[:n], K=K)
    del K
    values: dict[str, Any] = {}
    for name, (X, y) in parts.items():
        P = clf.predict_proba(K=cross[name], diagonal=_diagonal(setting, terms, X))
        values |= measured(P, np.searchsorted(clf.classes_, y), name)
    pairs = n * sum(len(X) for X, _ in parts.values())
    values |= {
        "loo_error": percent(clf.loo_predictions_ != images.y[:n]),
        "train": n,
        "pairs_per_second": pairs / seconds,
    }
    del clf, cross
    release(setting.actual_device)
    return values


def _matrix(setting: Setting, terms: tuple[Term, ...], X: Any, Z: Any = None) -> Any:
    output = output_on(setting.actual_device)
    total: Any = None
    for term in terms:
        kernel = Kernel(term.network, setting.device, threads=setting.threads)
        K = kernel(X, output=output) if Z is None else kernel(X, Z, output=output)
        if term.weight != 1.0:
            K *= term.weight
        total = K if total is None else total + K
    return total


def _diagonal(setting: Setting, terms: tuple[Term, ...], X: Any) -> NDArray[np.float64]:
    found = [t.weight * Kernel(t.network, setting.device, threads=setting.threads).diag(X) for t in terms]
    return np.sum(np.asarray(found, np.float64), axis=0)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Convolutional:
    """Convolutional GPs to choose from: γ of patches and of whole images, and the share of the latter."""

    patch: int = 5
    pool: Literal["global"] | int = "global"
    gammas: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0, 32.0)
    pixel_gammas: tuple[float, ...] = (8.0, 16.0, 32.0)
    shares: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0)
    """Variance of the kernel on whole images in units of the patches' mean variance."""

    def facts(self) -> list[Any]:
        return [self.patch, self.pool, list(self.gammas), list(self.pixel_gammas), list(self.shares)]


def choose(setting: Setting, among: Convolutional, images: SplitImages, count: int) -> dict[str, Any]:
    """Choose the best by leave-one-out on the first `count` training images."""
    X, y = images.X[:count], images.y[:count]
    pixels = {g: to_numpy(_matrix(setting, (Term(zoo.rbf(g)),), X)).astype(np.float64) for g in among.pixel_gammas}
    found = []
    with progress_bar(len(among.gammas), "leave-one-out", "kernel") as bar:
        for gamma in among.gammas:
            term = Term(zoo.conv_gp(among.patch, gamma, among.pool))
            K = to_numpy(_matrix(setting, (term,), X)).astype(np.float64)
            unit = float(K.diagonal().mean())
            for pixel_gamma, share in product(among.pixel_gammas, among.shares):
                if share == 0.0 and pixel_gamma != among.pixel_gammas[0]:
                    continue  # the same kernel as before
                clf = GPClassifier(noise="loo", solver="cholesky").fit(y=y, K=K + share * unit * pixels[pixel_gamma])
                P = clf.loo_probabilities_
                codes = np.searchsorted(clf.classes_, y)
                found.append(
                    {
                        "gamma": gamma,
                        "pixel_gamma": pixel_gamma,
                        "pixel_var": share * unit,
                        "loo_error": percent(P.argmax(1) != codes),
                        "loo_nll": negative_log_likelihood(P, codes),
                    }
                )
            bar.update(1)
    best = min(found, key=lambda f: (f["loo_error"], f["loo_nll"]))
    return {"best": best, "tried": found, "images": len(X)}


def terms_of(among: Convolutional, best: dict[str, float]) -> tuple[Term, ...]:
    patches = Term(zoo.conv_gp(among.patch, best["gamma"], among.pool))
    return (patches, Term(zoo.rbf(best["pixel_gamma"]), best["pixel_var"])) if best["pixel_var"] else (patches,)
