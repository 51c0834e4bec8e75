"""Table 1: errors on MNIST of exact GPs with the paper's kernels, beside the published ones.

One matrix gives all errors. The paper's training and validation images are together the 60,000, so their matrix
contains K(training) and K(validation, training) as blocks. It has about as many pairs as the paper's split alone, and
allows two fits, the second on all images. That fit, the leave-one-out errors and both gains of the ReLU go beyond the
paper.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.devices import output_on
from cnngp.common.figures import new_figure, save_figure
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.gram import gram
from cnngp.network import zoo
from cnngp.network.layers import Network

from .results import BLUE, GREY, ORANGE, Results, Row, percent, row, tables, title
from .setting import Piece, Setting, digest, release, wait

TITLE = "Table 1: classification of MNIST"


@dataclass(frozen=True)
class Case:
    """A network with its published errors in percent."""

    label: str
    name: str
    network: Network
    validation: float | None = None
    test: float | None = None
    note: str = ""


def paper_cases() -> tuple[Case, ...]:
    """The paper's three networks, the first two with both gains of the ReLU."""
    later = "ReLU gain 1, as in the authors' later code"
    return (
        Case("convnet", "ConvNet GP", zoo.convnet(), 0.71, 1.03),
        Case("convnet-gain1", "ConvNet GP, gain 1", zoo.convnet(1.0), note=later),
        Case("residual-cnn", "Residual CNN GP", zoo.residual_cnn(), 0.71, 0.93),
        Case("residual-cnn-gain1", "Residual CNN GP, gain 1", zoo.residual_cnn(1.0), 0.72, 0.96, later),
        Case("resnet", "ResNet GP", zoo.resnet(32), 0.68, 0.84),
    )


QUOTED = (
    ("Convolutional GP (van der Wilk et al., 2017)", 1.17),
    ("Deep Conv. GP (Kumar et al., 2018)", 1.34),
    ("GP + deep kernel (Bradshaw et al., 2017)", 0.60),
    ("ResNet, trained (Chen et al., 2018)", 0.41),
    ("Dense NNGP (Lee et al., 2018)", 1.21),
)


@dataclass(frozen=True)
class Table1Plan:
    """Size of the experiment."""

    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    cases: Sequence[Case] = ()


FULL = Table1Plan()
QUICK = Table1Plan(train=1_000, validation=500, test=1_000)


@dataclass(frozen=True)
class SplitImages:
    """Training images followed by validation images, `X` (N, C, H, W), and the test images."""

    name: str
    X: NDArray[np.float32]
    y: NDArray[Any]
    train: int
    X_test: NDArray[np.float32]
    y_test: NDArray[Any]

    @classmethod
    def of(cls, data: Dataset, train: int, validation: int, test: int) -> SplitImages:
        """Take the first images of each part of a data set that has a validation part."""
        if data.X_validation is None or data.y_validation is None:
            raise ValueError(f"{data.name} has no validation images; load it with split='paper'")
        X = np.concatenate([data.X[:train], data.X_validation[:validation]])
        y = np.concatenate([data.y[:train], data.y_validation[:validation]])
        return cls(data.name, X, y, min(train, len(data.X)), data.X_test[:test], data.y_test[:test])

    @property
    def pairs(self) -> int:
        """Number of pairs in K(all, all), each once and without the diagonal, and in K(test, all)."""
        n = len(self.X)
        return n * (n - 1) // 2 + len(self.X_test) * n

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Dependencies of a piece that uses these images."""
        images = digest(self.X, self.y, self.X_test, self.y_test)
        return {"data": self.name, "images": images, "train": self.train}


def run(setting: Setting, plan: Table1Plan | None = None, data: Dataset | None = None) -> Results:
    """Compute all rows; `data` needs a validation part and defaults to MNIST."""
    plan = plan or (QUICK if setting.quick else FULL)
    cases = plan.cases or paper_cases()
    images = SplitImages.of(data or setting.dataset("mnist", "paper"), plan.train, plan.validation, plan.test)
    found = setting.run([case_piece(setting, case, images) for case in cases])
    rows: list[Row] = []
    for case, values in zip(cases, found, strict=True):
        rows += rows_of(heading(images), case.name, values, case.validation, case.test, case.note)
    rows += [row(heading(images), name, "test", unit="%", published=error, note="quoted") for name, error in QUOTED]
    networks = {case.name: values for case, values in zip(cases, found, strict=True)}
    details = {"data": images.name, "train": images.train, "networks": networks}
    caption = (
        f"Test errors of exact GPs trained on {images.train:,} and on all {len(images.X):,} images, and the published "
        "errors, which are for 50,000."
    )
    return Results(rows=rows, details=details, captions={"table1": caption})


def estimate(setting: Setting, network: Network, images: SplitImages) -> float:
    """Approximate seconds for a network's kernels and fits, at half of the speed measured on one H200 and on two cores
    of an AMD EPYC."""
    on_card = setting.actual_device == "cuda"
    kernels = images.pairs * network.shapes(images.X.shape[1:]).cost / (1.2e13 if on_card else 4.5e10)
    return 10.0 + kernels + (1.5e-13 if on_card else 3e-11) * len(images.X) ** 3


def case_piece(setting: Setting, case: Case, images: SplitImages) -> Piece:
    """Piece for one network: kernels, both fits, errors."""

    def compute() -> dict[str, Any]:
        kernel = Kernel(case.network, setting.device, threads=setting.threads)
        return network_errors(setting, kernel, images, f"{images.name}-{case.label}")

    depends = {"network": case.network.fingerprint, **images.facts}
    return Piece(f"table1-{images.name}-{case.label}", compute, depends, estimate(setting, case.network, images))


def heading(images: SplitImages) -> str:
    return f"{title(images.name)}, error in percent, {images.train:,} training images"


def rows_of(
    table: str,
    name: str,
    values: dict[str, Any],
    validation: float | None = None,
    test: float | None = None,
    note: str = "",
) -> list[Row]:
    whole, shared = values["all"], {"unit": "%", "seconds": values["seconds"], "note": note}
    return [
        row(table, name, "validation", published=validation, ours=values["validation_error"], **shared),
        row(table, name, "test", published=test, ours=values["test_error"], **shared),
        row(table, name, "leave-one-out", ours=values["loo_error"], **shared),
        row(table, name, f"all {whole['images']:,}: test", ours=whole["test_error"], **shared),
        row(table, name, f"all {whole['images']:,}: leave-one-out", ours=whole["loo_error"], **shared),
    ]


def network_errors(
    setting: Setting, kernel: Kernel, images: SplitImages, label: str, *, keep: bool = False
) -> dict[str, Any]:
    """Errors in percent and times in seconds of a network's GP; `label` names its matrices if they go through a store.

    With `keep` they do, so that a run continued after a kill computes no tile twice.
    """
    n = len(images.X)
    memory.require((np.dtype(kernel.dtype).itemsize + 8) * n * n, f"an exact fit of {n:,} images", kernel.device)
    began = time.perf_counter()
    K, K_test = _matrices(setting, kernel, images, label, keep)
    wait(K)
    seconds = time.perf_counter() - began
    values = fits(images, K, K_test, kernel)
    del K, K_test
    release(kernel.device)
    speed = {"pairs": images.pairs, "kernel_seconds": seconds, "pairs_per_second": images.pairs / seconds}
    return {**speed, "engine": kernel.engine_for(images.X.shape[1:]).identity, **values}


def _matrices(setting: Setting, kernel: Kernel, images: SplitImages, label: str, keep: bool) -> tuple[Any, Any]:
    """K(all, all) and K(test, all), computed on the device, or through a store that a cluster may fill."""
    X, T, output = images.X, images.X_test, output_on(kernel.device)
    if setting.scheduler is None and not keep:
        return kernel(X, output=output), kernel(T, X, output=output)
    client: Any = contextlib.nullcontext()
    if setting.scheduler is not None:
        from cnngp.cluster import connect

        client = connect(setting.scheduler)
    folder = (setting.out / "stores").resolve()  # workers may have another working directory
    with client as at:
        K = gram(kernel, X, store=folder / f"{label}.zarr", client=at)[:]
        return K, gram(kernel, T, X, store=folder / f"{label}-test.zarr", client=at)[:]


def fits(images: SplitImages, K: Any, K_test: Any, kernel: Kernel) -> dict[str, Any]:
    """Results of both fits: on the training images, and on all images."""
    n = images.train

    def fitted(K: Any, K_test: Any) -> tuple[GPClassifier, dict[str, Any]]:
        X, y = images.X[: len(K)], images.y[: len(K)]
        clf = GPClassifier(kernel, solver="cholesky").fit(X, y, K=K)
        report = ("solve_seconds", "jitter", "residual", "kernel_error", "verdict")
        return clf, {
            "test_error": percent(clf.predict(K=K_test) != images.y_test),
            "loo_error": percent(clf.loo_predictions_ != y),
            "log_marginal_likelihood": clf.log_marginal_likelihood_,
            **{name: getattr(clf.fit_report_, name) for name in report},
        }

    clf, values = fitted(K[:n, :n], K_test[:, :n])
    values = {"validation_error": percent(clf.predict(K=K[n:, :n]) != images.y[n:]), **values}
    del clf  # frees its buffer before the next fit
    return values | {"all": {"images": len(images.X), **fitted(K, K_test)[1]}}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the test errors of the first table, ours beside the published ones."""
    table = tables(results["rows"])[0]
    whole = next((quantity for quantity in table.quantities if quantity.endswith(": test")), "")
    figure, axes = new_figure(7.2, 0.42 * len(table.lines) + 1.1)
    large = {"color": ORANGE, "markersize": 13, "markeredgewidth": 2.5}
    for label, quantity, key, style in (
        ("published", "test", "published", {"marker": "D", "color": GREY, "markersize": 6}),
        ("cnngp", "test", "ours", {"marker": "o", "color": BLUE, "markersize": 6}),
        ("cnngp, all images", whole, "ours", {"marker": "|", **large}),
    ):
        errors = [line[quantity][key] if quantity in line else None for line in table.lines.values()]
        axes.plot([np.nan if e is None else e for e in errors], range(len(errors)), linestyle="", label=label, **style)
    axes.legend(frameon=False, fontsize=8)
    axes.set_yticks(range(len(table.lines)), list(table.lines), fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    axes.set_xlim(0, 1.08 * axes.dataLim.x1)
    axes.set_xlabel("test error, %")
    return save_figure(figure, folder, "table1")
