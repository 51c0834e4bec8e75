"""Beyond the paper: exact GPs with average pooling on the plain pixels of MNIST; leave-one-out chooses the network.

The authors left out pooling because its kernel needs covariances between different locations, and expected it to close
the gap to trained networks. Here networks of similar cost are compared by the leave-one-out log loss of their exact GPs
on a few training images; the best is then fitted to the paper's 50,000 and to all 60,000. Nothing is chosen by
validation or test images.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cnngp.common import memory
from cnngp.common.progress import duration
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import AvgPool, Conv, Dense, Network, ReLU, Sequential
from cnngp.paper import table1
from cnngp.paper.results import Results, Row, percent, row
from cnngp.paper.setting import Piece, Setting
from cnngp.paper.table1 import SplitImages, network_errors

TITLE = "Beyond the paper: pooled networks on all of MNIST"
LONG = 600.0
"""Seconds from which kernels are stored on disk tile by tile, so that a killed run loses little."""


def pooled(*parts: Conv | AvgPool, dense: int = 1) -> Network:
    """A network of convolutions, each followed by a ReLU, and pools; then `dense` hidden dense layers."""
    layers: list[Network] = []
    for part in parts:
        layers += [part, ReLU()] if isinstance(part, Conv) else [part]
    return Sequential(*layers, *[Dense(weight_var=2.0), ReLU()] * dense, Dense())


def candidates() -> dict[str, Network]:
    """Networks to choose from, with at most 70,000 covariances per pair of 28 × 28 images."""
    conv, half = Conv(3, weight_var=2.0), Conv(3, stride=2, weight_var=2.0)
    first, valid = Conv(5, stride=2, weight_var=2.0), Conv(5, padding="valid", weight_var=2.0)
    blurred: tuple[Conv | AvgPool, ...] = (valid, AvgPool(2), *[conv] * 3, AvgPool(3, stride=1))
    return {
        "conv, stride 2, 3 conv, pool 3, 1 dense": pooled(conv, half, *[conv] * 3, AvgPool(3, stride=1)),
        "conv, stride 2, 4 conv, pool 4, 1 dense": pooled(conv, half, *[conv] * 4, AvgPool(4, stride=1)),
        "stride 2, 4 conv, pool 5, 1 dense": pooled(first, *[conv] * 4, AvgPool(5, stride=1)),
        "stride 2, 4 conv, pool 5, 3 dense": pooled(first, *[conv] * 4, AvgPool(5, stride=1), dense=3),
        "stride 2, 2 conv, halving pool, 2 conv, pool 3, 1 dense": pooled(
            first, conv, conv, AvgPool(2), conv, conv, AvgPool(3, stride=1)
        ),
        "conv, halving pool, 3 conv, pool 3": pooled(*blurred, dense=0),
        "conv, halving pool, 3 conv, pool 3, 1 dense": pooled(*blurred),
        "conv, halving pool, 3 conv, pool 3, 3 dense": pooled(*blurred, dense=3),
        "conv, halving pool, 5 conv, pool 3, 1 dense": pooled(*blurred[:2], conv, conv, *blurred[2:]),
    }


@dataclass(frozen=True)
class BeyondPlan:
    """Size of the experiment."""

    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    chosen_on: int = 6_000
    """Number of random training images on which the network is chosen."""
    candidates: Mapping[str, Network] | None = None


FULL = BeyondPlan()
QUICK = BeyondPlan(train=1_000, validation=500, test=1_000, chosen_on=300)

# Covariances per second, to estimate times: of the slowest candidate on one H200, and of two busy CPU cores.
_SPEED = {"cuda": 2.7e11, "cpu": 2e9}


def run(setting: Setting, plan: BeyondPlan | None = None, data: Dataset | None = None) -> Results:
    """Choose a network and compute it at full size; `data` needs a validation part and defaults to MNIST."""
    plan = plan or (QUICK if setting.quick else FULL)
    networks = dict(plan.candidates or candidates())
    images = SplitImages.of(data or setting.dataset("mnist", "paper"), plan.train, plan.validation, plan.test)
    _tell_plan(setting, plan, networks, images)
    choice = choice_piece(setting, plan, networks, images)
    best = min(networks, key=lambda name: choice["networks"][name]["loo_log_loss"])
    values = best_piece(setting, best, networks[best], images)
    table = table1.heading(images)
    note = f"{best}; the best of {len(networks)} by leave-one-out of {choice['images']:,} training images"
    rows = table1.rows_of(table, "pooled CNN GP", values, note=note)
    paper = table1.paper_cases()[-1]
    published = (("validation", paper.validation), ("test", paper.test))
    rows += [
        row(table, f"{paper.name} (the paper)", name, unit="%", published=error, note="no pooling")
        for name, error in published
    ]
    rows += _choice_rows(choice, networks, images)
    details = {"train": images.train, "chosen": best, "network": repr(networks[best]), "choice": choice, "fit": values}
    return Results(rows=rows, details=details, captions={})


def choice_piece(
    setting: Setting, plan: BeyondPlan, networks: Mapping[str, Network], images: SplitImages
) -> dict[str, Any]:
    """Compute leave-one-out scores of each network's exact GP on a few training images."""
    n = min(plan.chosen_on, images.train)
    few = np.sort(np.random.default_rng(setting.seed).choice(images.train, n, replace=False))
    X, y = images.X[few], images.y[few]

    def compute() -> dict[str, Any]:
        return {"images": n, "networks": {name: _left_out(setting, net, X, y) for name, net in networks.items()}}

    shape = images.X.shape[1:]
    work = sum(net.shapes(shape).elements for net in networks.values()) * n * n / 2
    return setting.values(
        Piece(
            f"beyond-{images.name}-choice",
            compute,
            depends={"networks": [net.fingerprint for net in networks.values()], "chosen_on": n, **images.facts},
            seconds=5.0 * len(networks) + work / _SPEED[setting.actual_device],
        )
    )


def best_piece(setting: Setting, name: str, network: Network, images: SplitImages) -> dict[str, Any]:
    """Compute the chosen network: kernels, both fits, errors."""
    seconds = kernel_seconds(setting, network, images)

    def compute() -> dict[str, Any]:
        kernel = Kernel(network, setting.device, threads=setting.threads)
        label = f"beyond-{images.name}-{network.fingerprint[:12]}"
        return {"name": name} | network_errors(setting, kernel, images, label, keep=seconds > LONG)

    depends = {"network": network.fingerprint, **images.facts}
    return setting.values(Piece(f"beyond-{images.name}-best", compute, depends=depends, seconds=60.0 + seconds))


def kernel_seconds(setting: Setting, network: Network, images: SplitImages) -> float:
    """Approximate seconds for K(all, all) and K(test, all)."""
    return images.pairs * network.shapes(images.X.shape[1:]).elements / _SPEED[setting.actual_device]


def _left_out(setting: Setting, network: Network, X: Any, y: Any) -> dict[str, float]:
    kernel = Kernel(network, setting.device, threads=setting.threads)
    began = time.perf_counter()
    clf = GPClassifier(kernel, solver="cholesky").fit(X, y)
    right = clf.loo_probabilities_[np.arange(len(y)), np.searchsorted(clf.classes_, y)]
    n = len(y)
    return {
        "covariances": network.shapes(X.shape[1:]).elements,
        "pairs_per_second": n * (n - 1) / 2 / clf.fit_report_.kernel_seconds,
        "loo_error": percent(clf.loo_predictions_ != y),
        "loo_log_loss": float(-np.log(np.maximum(right, 1e-300)).mean()),
        "seconds": time.perf_counter() - began,
    }


def _tell_plan(setting: Setting, plan: BeyondPlan, networks: Mapping[str, Network], images: SplitImages) -> None:
    """Print pairs, time and memory before anything is computed; raise if the memory is not available."""
    n = len(images.X)
    least, most = (f([kernel_seconds(setting, net, images) for net in networks.values()]) for f in (min, max))
    few = min(plan.chosen_on, images.train)
    need = 12 * n * n  # the matrix in float32, and a copy in float64 that becomes the factor
    setting.say(
        "plan",
        f"{len(networks)} networks on {few:,} images, then {images.pairs:,} pairs with the best, about "
        f"{duration(least)} to {duration(most)} here, and {need / 1e9:.0f} GB of memory",
    )
    memory.require(need, f"an exact fit of {n:,} images", setting.actual_device)


def _choice_rows(choice: Mapping[str, Any], networks: Mapping[str, Network], images: SplitImages) -> list[Row]:
    table = f"The choice, on {choice['images']:,} training images"
    rows = []
    for name in networks:
        of = choice["networks"][name]
        rows += [
            row(table, name, "covariances", ours=float(of["covariances"]), unit=" a pair"),
            row(table, name, "leave-one-out error", unit="%", ours=of["loo_error"]),
            row(table, name, "leave-one-out log loss", ours=of["loo_log_loss"]),
        ]
    return rows


if __name__ == "__main__":
    from experiments.command import run as run_command

    run_command("beyond")
