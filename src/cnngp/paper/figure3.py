"""Figure 3: error and calibration of classification with inducing points, for the ResNet kernel and an RBF kernel.

The inducing points are 1,000 random training images, and the likelihood is RobustMax with ε = 1e-3. The third curve is
the exact GP, with a temperature from leave-one-out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common.figures import new_figure, save_figure
from cnngp.common.tables import wilson
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.gp.calibration import negative_log_likelihood, reliability
from cnngp.network import zoo
from cnngp.network.layers import Network
from cnngp.torch_bridge import need_torch

from .results import BLUE, GREY, INK, ORANGE, Results, Row, percent, row, title
from .setting import Piece, Setting, digest, release

TITLE = "Figure 3: calibration with inducing points"

_BINS = 20
EPSILON = 1e-3
"""Probability, in the likelihood, that a label is not that of the largest function."""


@dataclass(frozen=True)
class Figure3Plan:
    """Size of the experiment. Images are the first of the paper's training set and of the test set; the network
    defaults to the paper's 32-layer ResNet."""

    train: int = 50_000
    test: int = 10_000
    inducing: int = 1_000
    network: Network | None = None
    epochs: int = 50
    batch_size: int = 1_000


FULL = Figure3Plan()
QUICK = Figure3Plan(train=2_000, test=1_000, inducing=250, epochs=30, batch_size=200)


@dataclass(frozen=True)
class Case:
    """One curve, with the paper's test error in percent and the seconds at full size on one H200."""

    label: Literal["resnet", "rbf", "exact"]
    name: str
    colour: str
    published: float | None
    seconds: float


CASES = (
    Case("resnet", "ResNet kernel, inducing points", BLUE, 2.4, 90.0),
    Case("rbf", "RBF kernel, inducing points", ORANGE, 3.4, 180.0),
    Case("exact", "ResNet kernel, exact GP", INK, None, 90.0),
)
_SECONDS_ON_CPU = 60.0
"""Approximate time of a curve in the quick version on two cores."""


def run(setting: Setting, plan: Figure3Plan | None = None, data: Dataset | None = None) -> Results:
    """Compute the three curves, each a piece; `data` defaults to MNIST in the paper's split."""
    plan = plan or (QUICK if setting.quick else FULL)
    need_torch("figure3")
    data = (data or setting.dataset("mnist", "paper")).take(plan.train, plan.test)
    network = plan.network or zoo.resnet(32)
    images: dict[str, Any] = {"data": data.name, "images": digest(data.X, data.y, data.X_test, data.y_test)}
    table = f"{title(data.name)}, {len(data.X):,} training images"
    on_card = setting.actual_device == "cuda"

    def piece(case: Case) -> Piece:
        kernel: Any = "rbf" if case.label == "rbf" else network
        depends = images | {"kernel": "rbf" if case.label == "rbf" else network.fingerprint}
        if case.label == "exact":
            compute = functools.partial(_exact, setting, data, network)
        else:
            compute = functools.partial(_sparse, setting, plan, data, kernel)
            depends |= {"inducing": plan.inducing, "epochs": plan.epochs, "batch_size": plan.batch_size}
        seconds = case.seconds if on_card else _SECONDS_ON_CPU
        return Piece(f"figure3-{data.name}-{case.label}", compute, depends, seconds)

    curves = dict(zip([case.label for case in CASES], setting.run(list(map(piece, CASES))), strict=True))
    rows: list[Row] = []
    for case in CASES:
        values = curves[case.label]
        note = f"learned lengthscale {values['lengthscale']:.3g}" if case.label == "rbf" else ""
        if case.label == "exact":
            note = f"no inducing points; leave-one-out error {values['loo_error']:.2f} %"
        shared: Any = {"seconds": values["seconds"], "note": note}
        rows += [
            row(table, case.name, "test error", unit="%", published=case.published, ours=values["error"], **shared),
            row(table, case.name, "ECE", ours=values["ece"], **shared),
            row(table, case.name, "NLL", ours=values["nll"], **shared),
        ]
    details = {"data": data.name, "train": len(data.X), "inducing": plan.inducing, "epsilon": EPSILON, "curves": curves}
    caption = (
        f"Reliability of the predicted class for {len(data.X_test):,} test images, with 95 % intervals, and how many "
        f"predictions each bin holds. {len(data.X):,} training images, {plan.inducing:,} inducing points; the "
        "published errors, in brackets, are for 50,000 and 1,000."
    )
    return Results(rows=rows, details=details, captions={"figure3": caption})


def _sparse(setting: Setting, plan: Figure3Plan, data: Dataset, network: Network | Literal["rbf"]) -> dict[str, Any]:
    from .sparse import Training, fit

    training = Training(plan.inducing, plan.epochs, plan.batch_size, epsilon=EPSILON, seed=setting.seed)
    model = fit(network, data.X, data.y, training, setting.actual_device, setting.threads)
    release(setting.actual_device)
    values = _measured(model.predict_proba(data.X_test), np.unique(data.y), data.y_test)
    return values | {"elbo": list(model.elbo), "lengthscale": model.features.lengthscale}


def _exact(setting: Setting, data: Dataset, network: Network) -> dict[str, Any]:
    clf = GPClassifier(network, device=setting.device, threads=setting.threads).fit(data.X, data.y)
    values = _measured(clf.predict_proba(data.X_test), clf.classes_, data.y_test)
    values |= {"loo_error": 100 * clf.loo_error_, "temperature": clf.temperature_}
    del clf
    release(setting.actual_device)
    return values


def _measured(P: NDArray[np.float64], classes: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    """Error in percent, NLL in nats, ECE, and the bins of the reliability diagram, None for the means of empty ones."""
    codes = np.searchsorted(classes, y)
    curve = reliability(P, codes, bins=_BINS)
    means = {"confidence": curve.confidence, "accuracy": curve.accuracy}
    bins: dict[str, Any] = {key: [None if np.isnan(v) else float(v) for v in mean] for key, mean in means.items()}
    return {
        "test": len(y),
        "error": percent(P.argmax(1) != codes),
        "nll": negative_log_likelihood(P, codes),
        "ece": curve.ece,
        "mean_confidence": 100 * float(P.max(1).mean()),
        "bins": bins | {"count": [int(n) for n in curve.count]},
    }


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw accuracy against confidence for the three curves, above the number of predictions in each bin."""
    figure, axes = new_figure(10.5, 4.6, 2, len(CASES), height_ratios=[3, 1], sharex=True, sharey="row")
    for (upper, lower), case in zip(axes.T, CASES, strict=True):
        values = results["details"]["curves"][case.label]
        bins = {key: np.array(of_bins, float) for key, of_bins in values["bins"].items()}  # NaN for empty bins
        filled = bins["count"] > 0
        confidence, accuracy, count = (bins[key][filled] for key in ("confidence", "accuracy", "count"))
        low, high = wilson(accuracy, count)
        upper.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
        points = (confidence, accuracy, [accuracy - low, high - accuracy])
        upper.errorbar(*points, fmt="o-", color=case.colour, markersize=4, linewidth=1)
        published = "" if case.published is None else f" [{case.published:g} %]"
        upper.set_title(f"{case.name}\nerror {values['error']:.2f} %{published}, ECE {values['ece']:.4f}", fontsize=9)
        lower.bar((np.arange(_BINS) + 0.5) / _BINS, bins["count"], 0.9 / _BINS, color=case.colour)
        lower.set_yscale("symlog", linthresh=1)
        lower.set_xlabel("probability of the predicted class", fontsize=9)
    axes[0, 0].set(xlim=(0, 1), ylim=(0, 1.02))
    axes[0, 0].set_ylabel("share that is right", fontsize=9)
    axes[1, 0].set_ylabel("images", fontsize=9)
    return save_figure(figure, folder, "figure3")
