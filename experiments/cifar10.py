"""CIFAR-10 with the published recipe for infinite networks: Myrtle kernels on whitened images, with and without flips.

The mean of each image is removed, the image is divided by its norm, and ZCA, fitted to the training images, whitens it.
The kernel is that of a Myrtle network (3 × 3 convolutions, 2 × 2 average pools); with flips it is averaged over mirror
images. The GP is exact, its noise chosen by leave-one-out. Published: V. Shankar et al., *Neural Kernels Without
Tangents*, ICML 2020, whose Myrtle-10 kernel with ReLUs is right for 87.5 % of the test images. Their 89.8 % belong to
another nonlinearity (`NormalizedExp`), with mirror images added to the training set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnngp.common import memory
from cnngp.common.arrays import to_cupy, to_numpy
from cnngp.common.progress import duration
from cnngp.datasets.dataset import Dataset
from cnngp.datasets.preparation import as_preparation
from cnngp.estimators.classifier import GPClassifier
from cnngp.kernel.kernel import Kernel
from cnngp.kernel.symmetry import Symmetry
from cnngp.matrix.gram import gram
from cnngp.network.zoo import myrtle
from cnngp.paper.results import Results, percent, row
from cnngp.paper.setting import Piece, Setting, digest, release

TITLE = "CIFAR-10: Myrtle kernels"
DATA = "cifar10"
LONG = 60.0
"""Seconds from which kernels are stored on disk tile by tile, so that a killed run loses little."""
PUBLISHED = {"plain": 12.5}
"""Test error in percent of Myrtle-10 with ReLUs and 50,000 training images; none is published with flips."""
_NAMES = {"plain": "Myrtle-{} GP", "flips": "Myrtle-{} GP, flips"}
# Covariances per second, to estimate times: of Myrtle-10 on one H200 (docs/gpu.md), and of two busy CPU cores.
_SPEED = {"cuda": 9.6e11, "cpu": 2e9}


@dataclass(frozen=True)
class CifarPlan:
    """Size of the experiment."""

    depth: int = 10
    train: int = 50_000
    test: int = 10_000

    def pairs(self, flips: bool) -> int:
        """Number of pairs in K(training) and K(test, training), doubled for mirror images."""
        n = self.train
        return (self.test * n + n * (n - 1) // 2) * (2 if flips else 1)


FULL = CifarPlan()
QUICK = CifarPlan(depth=5, train=60, test=30)


def run(setting: Setting, plan: CifarPlan | None = None, data: Dataset | None = None) -> Results:
    """Compute the errors without and with flips; `data` defaults to CIFAR-10."""
    plan = plan or (QUICK if setting.quick else FULL)
    data = data or setting.dataset(DATA)
    plan = CifarPlan(plan.depth, min(plan.train, len(data.X)), min(plan.test, len(data.X_test)))
    _tell_plan(setting, plan, data)
    white = as_preparation("zca").fit(data.X[: plan.train])
    X, X_test = (white.transform(images) for images in (data.X[: plan.train], data.X_test[: plan.test]))
    y, y_test = data.y[: plan.train], data.y_test[: plan.test]
    network = myrtle(plan.depth)
    depends = {"network": network.fingerprint, "data": data.name, "images": digest(X, y, X_test, y_test)}
    whole = plan == FULL
    rows, details = [], {}
    table = f"CIFAR-10, error in percent, {plan.train:,} training images"
    for kind in ("plain", "flips"):
        seconds = _seconds(setting, plan, data, kind == "flips")

        def compute(kind: str = kind, keep: bool = seconds > LONG) -> dict[str, Any]:
            symmetry: Symmetry | None = "flip" if kind == "flips" else None
            kernel = Kernel(network, setting.device, threads=setting.threads, symmetry=symmetry)
            folder = setting.out / "stores" / f"{data.name}-{plan.depth}-{depends['images'][:12]}" if keep else None
            K, K_test = _matrices(kernel, X, X_test, None if folder is None else folder / kind)
            return _errors(kernel, K, K_test, y, y_test)

        values = setting.values(Piece(f"{data.name}-{kind}", compute, depends=depends, seconds=seconds))
        details[kind] = values
        name = _NAMES[kind].format(plan.depth)
        published = PUBLISHED.get(kind) if whole else None
        rows.append(
            row(
                table, name, "test", unit="%", ours=values["test_error"], published=published, seconds=values["seconds"]
            )
        )
        rows.append(row(table, name, "leave-one-out", unit="%", ours=values["loo_error"]))
    return Results(rows=rows, details={"depth": plan.depth, "train": plan.train, **details}, captions={})


def _matrices(kernel: Kernel, X: Any, X_test: Any, folder: Path | None) -> tuple[Any, Any]:
    """Compute K(training) and K(test, training)."""
    train, test = (None, None) if folder is None else (folder / "train", folder / "test")
    return gram(kernel, X, store=train)[:], gram(kernel, X_test, X, store=test)[:]


def _errors(kernel: Kernel, K: Any, K_test: Any, y: Any, y_test: Any) -> dict[str, Any]:
    on_card = kernel.device == "cuda"
    clf = GPClassifier(noise="loo", solver="cholesky").fit(y=y, K=to_cupy(K) if on_card else K)
    wrong = to_numpy(clf.predict(K=to_cupy(K_test) if on_card else K_test)) != y_test
    values = {
        "test_error": percent(wrong),
        "loo_error": percent(clf.loo_predictions_ != y),
        "noise": clf.gp_.noise / float(K.diagonal().mean()),
        "jitter": clf.fit_report_.jitter,
        "verdict": clf.fit_report_.verdict,
    }
    del clf
    release(kernel.device)
    return values


def _seconds(setting: Setting, plan: CifarPlan, data: Dataset, flips: bool) -> float:
    return plan.pairs(flips) * myrtle(plan.depth).shapes(data.image_shape).elements / _SPEED[setting.actual_device]


def _tell_plan(setting: Setting, plan: CifarPlan, data: Dataset) -> None:
    """Print pairs, time, memory and disk before anything is computed; raise if the memory is not available."""
    pairs = plan.pairs(False) + plan.pairs(True)
    seconds = _seconds(setting, plan, data, False) + _seconds(setting, plan, data, True)
    need = 12 * plan.train**2  # the matrix in float32, and a copy in float64 that becomes the factor
    kept = 4 * pairs if seconds > LONG else 0
    setting.say(
        "plan",
        f"{pairs:,} pairs of Myrtle-{plan.depth}, about {duration(seconds)} here, {need / 1e9:.1f} GB of memory"
        + (f" and {kept / 1e9:.1f} GB of disk" if kept else ""),
    )
    memory.require(need, f"an exact fit of {plan.train:,} images", setting.actual_device)


if __name__ == "__main__":
    from experiments.command import run as run_command

    run_command("cifar10", images=("cifar10",))
