"""Table 1: errors on MNIST of exact GPs with the paper's kernels, beside the published ones; and where it stopped.

Beyond the paper: both gains of the ReLU, leave-one-out errors, training on all 60,000 images, and Fashion-MNIST where
it is at hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnngp.common.arrays import to_cupy
from cnngp.common.devices import output_on
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.kernel.kernel import Kernel
from cnngp.network import zoo
from cnngp.network.layers import Network

from .common import percent, release, wait
from .figures import BLUE, GREY, ORANGE, new_figure, save_figure
from .inference import SplitImages, fits, most_likely_lengthscale, network_errors, rbf
from .results import Results, Row, row
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


# Depth, weight and bias variance and nonlinearity of the fully connected networks to choose from on validation.
DENSE = (
    *((depth, 2.0, bias, "relu") for depth in (1, 3, 5, 8) for bias in (0.0, 0.1)),
    *((depth, 4.0, 0.3, "erf") for depth in (1, 2, 3)),
    (1, 16.0, 0.0, "erf"),
)
QUOTED = (
    ("Convolutional GP (van der Wilk et al., 2017)", 1.17),
    ("Deep Conv. GP (Kumar et al., 2018)", 1.34),
    ("GP + deep kernel (Bradshaw et al., 2017)", 0.60),
    ("ResNet, trained (Chen et al., 2018)", 0.41),
)


@dataclass(frozen=True)
class Table1Plan:
    """How large the experiment is."""

    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    cases: Sequence[Case] = ()
    dense: Sequence[tuple[int, float, float, str]] = DENSE
    chosen_on: int = 10_000
    """Training images on which the fully connected network is chosen."""
    lengthscale_on: int = 5_000
    """Training images on which the lengthscale of the RBF kernel is chosen."""


FULL = Table1Plan()
QUICK = Table1Plan(train=1_000, validation=500, test=1_000, dense=DENSE[2:11:4], chosen_on=500, lengthscale_on=500)

# Operations of a pair of images a second, for what a piece will take: half of what was measured on one H200 and on
# two cores of an AMD EPYC.
_SPEED = {"cuda": 1.2e13, "cpu": 4.5e10}


def run(setting: Setting, plan: Table1Plan | None = None, data: Dataset | None = None) -> Results:
    """All rows; `data` needs a validation part and is MNIST unless given."""
    plan = plan or (QUICK if setting.quick else FULL)
    cases = plan.cases or paper_cases()
    given = data is not None
    data = data or setting.dataset("mnist", "paper")
    images = SplitImages.of(data, plan.train, plan.validation, plan.test)
    table = heading(images)
    setting.expect(_expected(setting, plan, cases, images, None if given else _fashion_images(setting, plan)))
    rows: list[Row] = []
    networks: dict[str, Any] = {}
    for case in cases:
        networks[case.name] = values = case_piece(setting, case, images)
        rows += rows_of(table, case.name, values, case.validation, case.test, case.note)
    dense, values = dense_pieces(setting, plan, images)
    networks[dense.name] = values
    rows += rows_of(table, dense.name, values, None, dense.test, dense.note)
    networks["RBF GP"] = values = rbf_piece(setting, plan, images)
    rows += rows_of(table, "RBF GP", values, note=f"most likely lengthscale, {values['lengthscale']:.3g}")
    rows += [row(table, name, "test", unit="%", published=error, note="quoted") for name, error in QUOTED]
    details = {"data": data.name, "train": images.train, "networks": networks}
    if not given:
        details["fashion_mnist"], more = _fashion(setting, plan, cases)
        rows += more
    return Results(rows=rows, details=details, captions={"table1": _caption(images)})


def _expected(
    setting: Setting, plan: Table1Plan, cases: Sequence[Case], images: SplitImages, fashion: SplitImages | None
) -> dict[str, float]:
    """About how many seconds each piece takes."""
    pieces = expected_networks(setting, plan, cases, images)
    pieces[f"table1-{images.name}-rbf"] = _rbf_seconds(setting, images)
    if fashion is not None:
        pieces |= {_piece(c, fashion): estimate(setting, c.network, fashion) for c in _without_gain1(cases)}
    return pieces


def expected_networks(
    setting: Setting, plan: Table1Plan, cases: Sequence[Case], images: SplitImages
) -> dict[str, float]:
    """The same of the pieces of the networks; of the fully connected one, which is yet to be chosen, the largest."""
    pieces = {_piece(case, images): estimate(setting, case.network, images) for case in cases}
    pieces[f"table1-{images.name}-dense-choice"] = _choice_seconds(setting, plan, images)
    pieces[f"table1-{images.name}-dense-nngp"] = max(estimate(setting, _dense(c), images) for c in plan.dense)
    return pieces


def _piece(case: Case, images: SplitImages) -> str:
    return f"table1-{images.name}-{case.label}"


def case_piece(setting: Setting, case: Case, images: SplitImages) -> dict[str, Any]:
    """One network: kernels, both fits, errors."""

    def compute() -> dict[str, Any]:
        kernel = Kernel(case.network, setting.device, threads=setting.threads)
        return network_errors(setting, kernel, images, f"{images.name}-{case.label}")

    return setting.piece(
        _piece(case, images),
        compute,
        depends={"network": case.network.fingerprint, **images.facts},
        seconds=estimate(setting, case.network, images),
    )


def dense_pieces(setting: Setting, plan: Table1Plan, images: SplitImages) -> tuple[Case, dict[str, Any]]:
    """The fully connected network that does best on validation with few images, then at full size."""
    n = min(plan.chosen_on, images.train)

    def choose() -> dict[str, Any]:
        few = slice(0, n)
        errors = []
        for candidate in plan.dense:
            kernel = Kernel(_dense(candidate), setting.device, threads=setting.threads)
            output = output_on(kernel.device)
            clf = GPClassifier(kernel, solver="cholesky").fit(images.X[few], images.y[few])
            K = kernel(images.X[images.train :], images.X[few], output=output)
            errors.append(percent(clf.predict(K=K) != images.y[images.train :]))
        return {"candidates": [list(c) for c in plan.dense], "validation_errors": errors}

    chosen = setting.piece(
        f"table1-{images.name}-dense-choice",
        choose,
        depends={"candidates": [list(c) for c in plan.dense], "chosen_on": n, **images.facts},
        seconds=_choice_seconds(setting, plan, images),
    )
    best = plan.dense[int(np.argmin(chosen["validation_errors"]))]
    depth, weight_var, bias_var, nonlinearity = best
    note = (
        f"hidden layers {depth}, {nonlinearity}, weight_var {weight_var:g}, bias_var {bias_var:g}: the best of "
        f"{len(plan.dense)} on validation with {n:,} training images; published: Lee et al., 2018"
    )
    case = Case("dense-nngp", "Dense NNGP", _dense(best), test=1.21, note=note)
    return case, case_piece(setting, case, images) | {"choice": chosen}


def _choice_seconds(setting: Setting, plan: Table1Plan, images: SplitImages) -> float:
    n = min(plan.chosen_on, images.train)
    return 20.0 + len(plan.dense) * (3.0 if setting.actual_device == "cuda" else 3.0 + 1e-6 * n * n)


def rbf_piece(setting: Setting, plan: Table1Plan, images: SplitImages) -> dict[str, Any]:
    """The squared-exponential kernel with its most likely lengthscale."""

    def compute() -> dict[str, Any]:
        on_card = setting.actual_device == "cuda"
        X, X_test = (
            to_cupy(flat) if on_card else flat
            for flat in (x.reshape(len(x), -1).astype(np.float64) for x in (images.X, images.X_test))
        )
        n = min(plan.lengthscale_on, images.train)
        lengthscale = most_likely_lengthscale(X[:n], images.y[:n])
        began = time.perf_counter()
        K, K_test = rbf(X, X, lengthscale), rbf(X_test, X, lengthscale)
        wait(K)
        seconds = time.perf_counter() - began
        values = fits(images, K, K_test, None)
        del K, K_test
        release(setting.actual_device)
        return {"lengthscale": lengthscale, "pairs": images.pairs, "kernel_seconds": seconds, **values}

    depends = {"kernel": "rbf", "lengthscale_on": plan.lengthscale_on, **images.facts}
    seconds = _rbf_seconds(setting, images)
    return setting.piece(f"table1-{images.name}-rbf", compute, depends=depends, seconds=seconds)


def _rbf_seconds(setting: Setting, images: SplitImages) -> float:
    return 60.0 if setting.actual_device == "cuda" else 20.0 + 1e-10 * len(images.X) ** 3


def _dense(candidate: tuple[int, float, float, str]) -> Network:
    depth, weight_var, bias_var, nonlinearity = candidate
    return zoo.dense_nngp(depth, weight_var, bias_var, nonlinearity)  # type: ignore[arg-type]


def _without_gain1(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if "gain1" not in case.label]


def _fashion_images(setting: Setting, plan: Table1Plan) -> SplitImages | None:
    if not setting.at_hand("fashion_mnist"):
        return None
    return SplitImages.of(setting.dataset("fashion_mnist", "paper"), plan.train, plan.validation, plan.test)


def _fashion(setting: Setting, plan: Table1Plan, cases: Sequence[Case]) -> tuple[dict[str, Any] | str, list[Row]]:
    images = _fashion_images(setting, plan)
    if images is None:
        return "not at hand", []
    rows: list[Row] = []
    details: dict[str, Any] = {}
    for case in _without_gain1(cases):
        details[case.name] = values = case_piece(setting, case, images)
        rows += rows_of(heading(images), case.name, values)
    return details, rows


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
    everything = values["all"]
    columns: tuple[tuple[str, float | None, float], ...] = (
        ("validation", validation, values["validation_error"]),
        ("test", test, values["test_error"]),
        ("leave-one-out", None, values["loo_error"]),
        (f"all {everything['images']:,}: test", None, everything["test_error"]),
        (f"all {everything['images']:,}: leave-one-out", None, everything["loo_error"]),
    )
    seconds = values["seconds"]
    return [
        row(table, name, quantity, unit="%", published=published, ours=ours, seconds=seconds, note=note)
        for quantity, published, ours in columns
    ]


def estimate(setting: Setting, network: Network, images: SplitImages) -> float:
    """About how many seconds a network's kernels and fits take."""
    kernels = images.pairs * network.shapes(images.X.shape[1:]).cost / _SPEED[setting.actual_device]
    solve = 1.5e-13 if setting.actual_device == "cuda" else 3e-11
    return 10.0 + kernels + solve * len(images.X) ** 3


def _caption(images: SplitImages) -> str:
    return (
        f"Test errors of exact GPs trained on {images.train:,} and on all {len(images.X):,} images, and the published "
        "errors, which are for 50,000."
    )


def draw(results: Results, folder: Path) -> list[Path]:
    """Test errors of the first table, ours beside the published ones."""
    rows = [r for r in results["rows"] if r["table"] == results["rows"][0]["table"]]
    names = list(dict.fromkeys(r["result"] for r in rows))
    figure, axes = new_figure(7.2, 0.42 * len(names) + 1.1)
    for i, name in enumerate(names):
        of_it = [r for r in rows if r["result"] == name]
        for r in of_it:
            if r["quantity"] == "test":
                if r["published"] is not None:
                    axes.plot(r["published"], i, "D", color=GREY, markersize=6, label="published")
                if r["ours"] is not None:
                    axes.plot(r["ours"], i, "o", color=BLUE, markersize=6, label="cnngp")
            elif r["quantity"].endswith(": test"):
                axes.plot(
                    r["ours"], i, "|", color=ORANGE, markersize=13, markeredgewidth=2.5, label="cnngp, all images"
                )
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), frameon=False, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    axes.set_xlim(0, 1.08 * max(max(r["published"] or 0.0, r["ours"] or 0.0) for r in rows if "test" in r["quantity"]))
    axes.set_xlabel("test error, %")
    return save_figure(figure, folder, "table1")
