"""Baselines of Table 1: a fully connected network, an RBF kernel on the pixels, and the networks on Fashion-MNIST.

The fully connected network is the best of a dozen by validation error; the lengthscale of the RBF kernel maximises the
marginal likelihood. Fashion-MNIST is added if it is available.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.devices import output_on
from cnngp.datasets.dataset import Dataset
from cnngp.datasets.sets import folders
from cnngp.estimators.classifier import GPClassifier
from cnngp.gp.exact import ExactGP
from cnngp.gp.linalg import JitterWarning
from cnngp.gp.objectives import minimised
from cnngp.kernel.kernel import Kernel
from cnngp.network import zoo
from cnngp.network.layers import Network
from cnngp.paper import table1
from cnngp.paper.results import Results, Row, percent
from cnngp.paper.setting import Piece, Setting
from cnngp.paper.table1 import SplitImages, network_errors

TITLE = "Baselines of Table 1"

# Fully connected networks to choose from by validation error: depth, weight variance, bias variance, nonlinearity.
DENSE = (
    *((depth, 2.0, bias, "relu") for depth in (1, 3, 5, 8) for bias in (0.0, 0.1)),
    *((depth, 4.0, 0.3, "erf") for depth in (1, 2, 3)),
    (1, 16.0, 0.0, "erf"),
)


@dataclass(frozen=True)
class BaselinesPlan:
    """Size of the experiment."""

    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    dense: Sequence[tuple[int, float, float, str]] = DENSE
    chosen_on: int = 10_000
    """Training images on which the fully connected network is chosen."""
    lengthscale_on: int = 5_000
    """Training images on which the lengthscale of the RBF kernel is chosen."""


FULL = BaselinesPlan()
QUICK = BaselinesPlan(train=1_000, validation=500, test=1_000, dense=DENSE[2:11:4], chosen_on=500, lengthscale_on=500)


def run(setting: Setting, plan: BaselinesPlan | None = None, data: Dataset | None = None) -> Results:
    """Compute all rows; `data` needs a validation part and defaults to MNIST."""
    plan = plan or (QUICK if setting.quick else FULL)

    def split(data: Dataset) -> SplitImages:
        return SplitImages.of(data, plan.train, plan.validation, plan.test)

    images = split(data or setting.dataset("mnist", "paper"))
    dense, networks = dense_pieces(setting, plan, images)
    rows = table1.rows_of(table1.heading(images), dense.name, networks, None, dense.test, dense.note)
    values = rbf_piece(setting, plan, images)
    note = f"most likely lengthscale, {values['lengthscale']:.3g}"
    rows += table1.rows_of(table1.heading(images), "RBF GP", values, note=note)
    details: dict[str, Any] = {"train": images.train, "networks": {dense.name: networks, "RBF GP": values}}
    if data is None and any(folder.is_dir() for folder in folders("fashion_mnist", setting.data)):
        cases = [case for case in table1.paper_cases() if "gain1" not in case.label]
        found, more = fashion(setting, cases, split(setting.dataset("fashion_mnist", "paper")))
        details["fashion_mnist"] = found
        rows += more
    return Results(rows=rows, details=details, captions={})


def fashion(setting: Setting, cases: Sequence[table1.Case], images: SplitImages) -> tuple[dict[str, Any], list[Row]]:
    """The networks of Table 1 on another set of images."""
    found = setting.run([table1.case_piece(setting, case, images) for case in cases])
    details = {case.name: values for case, values in zip(cases, found, strict=True)}
    table = table1.heading(images)
    return details, [row for name, values in details.items() for row in table1.rows_of(table, name, values)]


def dense_pieces(setting: Setting, plan: BaselinesPlan, images: SplitImages) -> tuple[table1.Case, dict[str, Any]]:
    """Choose the fully connected network with the best validation error on few images, and compute it at full size."""
    n = min(plan.chosen_on, images.train)
    candidates = [list(candidate) for candidate in plan.dense]

    def choose() -> dict[str, Any]:
        errors = []
        for candidate in plan.dense:
            kernel = Kernel(_dense(candidate), setting.device, threads=setting.threads)
            clf = GPClassifier(kernel, solver="cholesky").fit(images.X[:n], images.y[:n])
            K = kernel(images.X[images.train :], images.X[:n], output=output_on(kernel.device))
            errors.append(percent(clf.predict(K=K) != images.y[images.train :]))
        return {"candidates": candidates, "validation_errors": errors}

    chosen = setting.values(
        Piece(
            f"baselines-{images.name}-dense-choice",
            choose,
            depends={"candidates": candidates, "chosen_on": n, **images.facts},
            seconds=20.0 + len(plan.dense) * (3.0 if setting.actual_device == "cuda" else 3.0 + 1e-6 * n * n),
        )
    )
    best = plan.dense[int(np.argmin(chosen["validation_errors"]))]
    depth, weight_var, bias_var, nonlinearity = best
    note = (
        f"hidden layers {depth}, {nonlinearity}, weight_var {weight_var:g}, bias_var {bias_var:g}: the best of "
        f"{len(plan.dense)} on validation with {n:,} training images; published: Lee et al., 2018"
    )
    case = table1.Case("dense-nngp", "Dense NNGP", _dense(best), test=1.21, note=note)
    return case, setting.values(table1.case_piece(setting, case, images)) | {"choice": chosen}


def _dense(candidate: tuple[int, float, float, str]) -> Network:
    depth, weight_var, bias_var, nonlinearity = candidate
    return zoo.dense_nngp(depth, weight_var, bias_var, nonlinearity)  # type: ignore[arg-type]


def rbf_piece(setting: Setting, plan: BaselinesPlan, images: SplitImages) -> dict[str, Any]:
    """Compute the RBF kernel of the pixels with its most likely lengthscale, in float64."""
    n = min(plan.lengthscale_on, images.train)

    def compute() -> dict[str, Any]:
        lengthscale = most_likely_lengthscale(setting, images.X[:n], images.y[:n])
        kernel = rbf(setting, lengthscale, images.X.shape[1:])
        return {"lengthscale": lengthscale} | network_errors(setting, kernel, images, f"{images.name}-rbf")

    depends = {"kernel": "rbf", "lengthscale_on": plan.lengthscale_on, **images.facts}
    seconds = 60.0 if setting.actual_device == "cuda" else 20.0 + 1e-10 * len(images.X) ** 3
    return setting.values(Piece(f"baselines-{images.name}-rbf", compute, depends=depends, seconds=seconds))


def rbf(setting: Setting, lengthscale: float, shape: Sequence[int], check: bool = True) -> Kernel:
    """RBF kernel exp(−‖x − z‖²/2ℓ²) on all pixels."""
    gamma = math.prod(shape) / (2.0 * lengthscale**2)
    return Kernel(zoo.rbf(gamma), setting.device, "float64", setting.threads, check=check)


def most_likely_lengthscale(setting: Setting, X: NDArray[np.float32], y: NDArray[Any]) -> float:
    """The ℓ that maximises the marginal likelihood of ±1 targets, with the most likely amplitude for each ℓ.

    Values that make the matrix singular in float64 are excluded.
    """
    flat = X.reshape(len(X), -1).astype(np.float64)
    squares = (flat * flat).sum(1)
    scale = math.sqrt(np.median(np.maximum(squares[:, None] + squares - 2.0 * (flat @ flat.T), 0.0)))
    Y = 2.0 * (y[:, None] == np.unique(y)) - 1.0

    def loss(log_ratio: float) -> float:
        kernel = rbf(setting, scale * math.exp(log_ratio), X.shape[1:], check=False)
        K = kernel(X, output=output_on(kernel.device), progress=False)
        try:
            return -ExactGP(K, Y, overwrite=True).log_marginal_likelihood
        except JitterWarning:
            return 1e300

    with warnings.catch_warnings():
        warnings.simplefilter("error", JitterWarning)
        return scale * math.exp(minimised(loss, -3.0, 1.0, tolerance=0.01).at)


if __name__ == "__main__":
    from experiments.command import run as run_command

    run_command("baselines")
