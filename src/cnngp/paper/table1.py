"""Table 1: errors on MNIST of exact GPs with the paper's kernels, beside the published ones; and where it stopped.

Beyond the paper: both gains of the ReLU, leave-one-out errors, and training on all 60,000 images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnngp.common.figures import new_figure, save_figure
from cnngp.datasets.dataset import Dataset
from cnngp.kernel.kernel import Kernel
from cnngp.network import zoo
from cnngp.network.layers import Network

from .common import BLUE, GREY, ORANGE
from .inference import SplitImages, network_errors
from .results import Results, Row, row, tables
from .setting import Setting

TITLE = "Table 1: classification of MNIST"


@dataclass(frozen=True)
class Case:
    """A network with the errors that were published for it, in percent."""

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
    """How large the experiment is."""

    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    cases: Sequence[Case] = ()


FULL = Table1Plan()
QUICK = Table1Plan(train=1_000, validation=500, test=1_000)

# Operations of a pair of images a second, for what a piece will take: half of what was measured on one H200 and on
# two cores of an AMD EPYC.
_SPEED = {"cuda": 1.2e13, "cpu": 4.5e10}


def run(setting: Setting, plan: Table1Plan | None = None, data: Dataset | None = None) -> Results:
    """All rows; `data` needs a validation part and is MNIST unless given."""
    plan = plan or (QUICK if setting.quick else FULL)
    cases = plan.cases or paper_cases()
    images = SplitImages.of(data or setting.dataset("mnist", "paper"), plan.train, plan.validation, plan.test)
    setting.expect(expected(setting, cases, images))
    rows: list[Row] = []
    networks: dict[str, Any] = {}
    for case in cases:
        networks[case.name] = values = case_piece(setting, case, images)
        rows += rows_of(heading(images), case.name, values, case.validation, case.test, case.note)
    rows += [row(heading(images), name, "test", unit="%", published=error, note="quoted") for name, error in QUOTED]
    details = {"data": images.name, "train": images.train, "networks": networks}
    caption = (
        f"Test errors of exact GPs trained on {images.train:,} and on all {len(images.X):,} images, and the published "
        "errors, which are for 50,000."
    )
    return Results(rows=rows, details=details, captions={"table1": caption})


def expected(setting: Setting, cases: Sequence[Case], images: SplitImages) -> dict[str, float]:
    """About how many seconds each network's piece takes."""
    return {_piece(case, images): estimate(setting, case.network, images) for case in cases}


def _piece(case: Case, images: SplitImages) -> str:
    return f"table1-{images.name}-{case.label}"


def case_piece(setting: Setting, case: Case, images: SplitImages) -> dict[str, Any]:
    """One network: kernels, both fits, errors."""

    def compute() -> dict[str, Any]:
        kernel = Kernel(case.network, setting.device, threads=setting.threads)
        return network_errors(setting, kernel, images, f"{images.name}-{case.label}")

    depends = {"network": case.network.fingerprint, **images.facts}
    seconds = estimate(setting, case.network, images)
    return setting.piece(_piece(case, images), compute, depends=depends, seconds=seconds)


def heading(images: SplitImages) -> str:
    names = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
    return f"{names.get(images.name, images.name)}, error in percent, {images.train:,} training images"


def rows_of(
    table: str,
    name: str,
    values: dict[str, Any],
    validation: float | None = None,
    test: float | None = None,
    note: str = "",
) -> list[Row]:
    everything, shared = values["all"], {"unit": "%", "seconds": values["seconds"], "note": note}
    return [
        row(table, name, "validation", published=validation, ours=values["validation_error"], **shared),
        row(table, name, "test", published=test, ours=values["test_error"], **shared),
        row(table, name, "leave-one-out", ours=values["loo_error"], **shared),
        row(table, name, f"all {everything['images']:,}: test", ours=everything["test_error"], **shared),
        row(table, name, f"all {everything['images']:,}: leave-one-out", ours=everything["loo_error"], **shared),
    ]


def estimate(setting: Setting, network: Network, images: SplitImages) -> float:
    """About how many seconds a network's kernels and fits take."""
    kernels = images.pairs * network.shapes(images.X.shape[1:]).cost / _SPEED[setting.actual_device]
    solve = 1.5e-13 if setting.actual_device == "cuda" else 3e-11
    return 10.0 + kernels + solve * len(images.X) ** 3


def draw(results: Results, folder: Path) -> list[Path]:
    """Test errors of the first table, ours beside the published ones."""
    table = tables(results["rows"])[0]
    figure, axes = new_figure(7.2, 0.42 * len(table.lines) + 1.1)
    errors = []
    for i, line in enumerate(table.lines.values()):
        everything = next((r["ours"] for quantity, r in line.items() if quantity.endswith(": test")), None)
        for error, style, label in (
            (line["test"]["published"], {"marker": "D", "color": GREY, "markersize": 6}, "published"),
            (line["test"]["ours"], {"marker": "o", "color": BLUE, "markersize": 6}, "cnngp"),
            (
                everything,
                {"marker": "|", "color": ORANGE, "markersize": 13, "markeredgewidth": 2.5},
                "cnngp, all images",
            ),
        ):
            if error is not None:
                errors.append(error)
                axes.plot(error, i, linestyle="", label=label, **style)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), frameon=False, fontsize=8)
    axes.set_yticks(range(len(table.lines)), list(table.lines), fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    axes.set_xlim(0, 1.08 * max(errors))
    axes.set_xlabel("test error, %")
    return save_figure(figure, folder, "table1")
