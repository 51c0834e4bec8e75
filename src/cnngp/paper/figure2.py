"""Figure 2: outputs of finite random ResNets against the Gaussian process that they become with many filters.

At each width C, thousands of networks with random weights are run on the same training images. A: the density of the
output for one image. B: its quantiles against the normal distribution's. C: variances and covariances over all images
against the kernel's. Exact Gaussian draws in the same number give the floor: what even the limit would measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.figures import new_figure, save_figure
from cnngp.common.progress import progress_bar
from cnngp.kernel.kernel import Kernel
from cnngp.network import zoo

from .common import GREY, INK
from .results import Results, Row, row
from .setting import Setting, digest

TITLE = "Figure 2: finite networks approach the limit"
TABLE = "Distance of the outputs of finite networks to the Gaussian process"
QUANTITIES = {
    "ks_first": "Kolmogorov–Smirnov distance, one image",
    "ks_mean": "the same, mean over images",
    "moment_error": "relative error of the covariance",
    "standard_error": "standard error of the mean square",
}
COLOURS = ("#dd6b20", "#d69e2e", "#38a169", "#2b6cb0", "#6b46c1")
Array = NDArray[np.float64]
_FLOOR_SECONDS = 30.0


@dataclass(frozen=True)
class Figure2Plan:
    """How large the experiment is."""

    depth: int
    """Of the ResNet."""
    widths: Sequence[int]
    networks: int
    images: int
    floors: int = 20
    """How often the Gaussian draws are repeated."""


FULL = Figure2Plan(32, (3, 10, 30, 100), 10_000, 100)
QUICK = Figure2Plan(8, (3, 10, 30), 200, 10)


def run(setting: Setting, plan: Figure2Plan | None = None, X: NDArray[np.float32] | None = None) -> Results:
    """The distances at each width; `X` are the images, the first training images of MNIST unless given."""
    plan = plan or (QUICK if setting.quick else FULL)
    X = (setting.dataset("mnist", "paper").X if X is None else X)[: plan.images]
    network = zoo.resnet(plan.depth)
    K = np.asarray(Kernel(network, "cpu", "float64", setting.threads)(X, progress=False))
    depends = {"network": network.fingerprint, "images": digest(X), "networks": plan.networks}
    expected = {width: _estimate(setting, plan, len(X), width) for width in plan.widths}
    names = {width: f"figure2-width-{width}" for width in plan.widths}
    setting.expect({"figure2-floor": _FLOOR_SECONDS, **{names[width]: seconds for width, seconds in expected.items()}})
    floor = setting.piece(
        "figure2-floor",
        lambda: _floor(K, plan, setting.seed),
        depends={**depends, "floors": plan.floors},
        seconds=_FLOOR_SECONDS,
    )
    outputs: dict[int, Array] = {}
    details: dict[str, Any] = {"network": f"resnet({plan.depth})", "networks": plan.networks, "images": len(X)}
    details |= {"widths": {}, "floor": {key: floor[key] for key in floor if key not in ("hardware", "software")}}
    rows: list[Row] = []

    def add(name: str, found: dict[str, Any], seconds: float, note: str) -> None:
        shared: Any = {"seconds": seconds, "note": note}
        rows.extend(row(TABLE, name, quantity, ours=found[key], **shared) for key, quantity in QUANTITIES.items())

    for width, seconds in expected.items():
        piece = setting.piece(
            names[width],
            lambda width=width: {"outputs": _outputs(setting, plan, X, width)},  # type: ignore[misc]
            depends={**depends, "width": width},
            seconds=seconds,
        )
        outputs[width] = np.asarray(piece["outputs"], np.float64)
        found = measure(outputs[width], K)
        details["widths"][str(width)] = {**found, "seconds": piece["seconds"]}
        name = f"C = {width}: {plan.networks:,} networks {details['network']}"
        tail = f"the ten largest of the networks hold {100 * found['largest_ten']:.0f} % of the sum of squares"
        add(name, found, piece["seconds"], tail)
    note = f"mean of {plan.floors} times; no network can be expected to come below it"
    add(f"the limit: {plan.networks:,} exact Gaussian draws", floor, floor["seconds"], note)
    captions = {
        "figure2-a": f"A. Density of the output for one image, {plan.networks:,} random networks at each width C.",
        "figure2-b": "B. Quantiles of the output for the same image against those of the limit; grey: the middle 95 % "
        "of as many Gaussian draws.",
        "figure2-c": f"C. Variances and covariances over {len(X)} training images against the kernel's.",
    }
    return Results(rows=rows, details=details, captions=captions, arrays={"K": K, "outputs": outputs})


def measure(f: Array, K: Array) -> dict[str, float]:
    """How far outputs f (networks, images) are from N(0, K).

    `ks_mean`, `ks_first`: sup |F − Φ| of the outputs over √K_ii, over all images and for the first.
    `moment_error`: ‖fᵀf/n − K‖/‖K‖ in the Frobenius norm.
    `standard_error`: of the mean of f² over networks and images, relative to the kernel's. A network's scale is common
    to all images and has heavy tails where C is small, so few networks decide; `largest_ten` is what ten of them hold.
    """
    from scipy.special import ndtr

    n = len(f)
    F = ndtr(np.sort(f / np.sqrt(np.diagonal(K)), axis=0))
    steps = np.arange(n + 1)[:, None] / n
    ks = np.maximum(np.abs(F - steps[1:]), np.abs(F - steps[:-1])).max(axis=0)
    squares = np.sort((f * f).mean(axis=1))
    return {
        "ks_mean": float(ks.mean()),
        "ks_first": float(ks[0]),
        "moment_error": float(np.linalg.norm(f.T @ f / n - K) / np.linalg.norm(K)),
        "standard_error": float(squares.std(ddof=1) / math.sqrt(n) / np.diagonal(K).mean()),
        "largest_ten": float(squares[-10:].sum() / squares.sum()),
    }


def _floor(K: Array, plan: Figure2Plan, seed: int) -> dict[str, Any]:
    """The same measures of exact draws from N(0, K): their means, and the 95 % quantiles."""
    values, Q = np.linalg.eigh(K)
    root = Q * np.sqrt(np.maximum(values, 0.0))
    rng = np.random.default_rng(seed)
    found = [measure(rng.standard_normal((plan.networks, len(K))) @ root.T, K) for _ in range(plan.floors)]
    means = {key: float(np.mean([f[key] for f in found])) for key in found[0]}
    return means | {f"{key}_95": float(np.quantile([f[key] for f in found], 0.95)) for key in found[0]}


def _outputs(setting: Setting, plan: Figure2Plan, X: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """(networks, images). The seed differs between widths, so that their errors are independent."""
    from cnngp.torch_bridge import need_torch, sample_outputs

    need_torch("reproduce figure2")
    network, seed, device = zoo.resnet(plan.depth), _seed(setting.seed, width), setting.actual_device
    with progress_bar(plan.networks, f"{width} channels", "network") as bar:
        drawn = sample_outputs(network, X, width, plan.networks, seed, device=device, progress=bar.update)
    return np.asarray(drawn, np.float32)


def _seed(seed: int, width: int) -> int:
    return int(np.random.SeedSequence((seed, width)).generate_state(1, np.uint32)[0])


def _estimate(setting: Setting, plan: Figure2Plan, images: int, width: int) -> float:
    """Seconds: a network's cost grows with C² once its layers are wide; measured on `resnet(32)`."""
    each, wide = (2e-5, 2e-8) if setting.actual_device == "cuda" else (3e-4, 3e-6)
    return 15.0 + plan.networks * images * plan.depth / 32 * (each + wide * width**2)


def draw(results: Results, folder: Path) -> list[Path]:
    """Panels A, B and C."""
    K, outputs = results["arrays"]["K"], results["arrays"]["outputs"]
    return [*_densities(K, outputs, folder), *_quantiles(K, outputs, folder), *_moments(K, outputs, folder)]


def _densities(K: Array, outputs: dict[int, Array], folder: Path) -> list[Path]:
    std = math.sqrt(K[0, 0])
    figure, axes = new_figure(4.8, 3.6)
    z = np.linspace(-4, 4, 201)
    bins = np.linspace(-4, 4, 20 if len(next(iter(outputs.values()))) < 2000 else 60)
    for (width, f), colour in zip(outputs.items(), COLOURS, strict=False):
        axes.hist(f[:, 0], bins * std, density=True, histtype="step", linewidth=1.2, color=colour, label=f"C = {width}")
    axes.plot(z * std, np.exp(-0.5 * z**2) / (std * math.sqrt(2 * math.pi)), color=INK, linewidth=1.4, label="limit")
    axes.set_xlabel("output for one image")
    axes.set_ylabel("density")
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "figure2-a")


def _quantiles(K: Array, outputs: dict[int, Array], folder: Path) -> list[Path]:
    from scipy.special import ndtri
    from scipy.stats import beta

    std = math.sqrt(K[0, 0])
    figure, axes = new_figure(4.2, 3.9)
    for (width, f), colour in zip(outputs.items(), COLOURS, strict=False):
        n = len(f)
        at = np.unique(np.round(np.geomspace(1, n / 2, 200))).astype(int)
        ranks = np.unique(np.r_[at, n + 1 - at])
        points = ndtri(ranks / (n + 1)), np.sort(f[:, 0])[ranks - 1] / std
        axes.plot(*points, ".", markersize=3, color=colour, label=f"C = {width}")
    # The r-th of n uniform draws has a Beta(r, n + 1 − r) distribution.
    low, high = (ndtri(beta.ppf(q, ranks, n + 1 - ranks)) for q in (0.025, 0.975))
    axes.fill_between(ndtri(ranks / (n + 1)), low, high, color=GREY, alpha=0.4, linewidth=0)
    ends = [float(ndtri(1 / (n + 1))), float(ndtri(n / (n + 1)))]
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    axes.set_ylim(2.2 * ends[0], 2.2 * ends[1])
    axes.set_xlabel("quantile of the limit, in standard deviations")
    axes.set_ylabel("quantile of the networks")
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "figure2-b")


def _moments(K: Array, outputs: dict[int, Array], folder: Path) -> list[Path]:
    upper = np.triu_indices(len(K), 1)
    figure, grid = new_figure(2.5 * len(outputs) + 0.4, 3.0, 1, len(outputs), sharex=True, sharey=True, squeeze=False)
    for (width, f), colour, axes in zip(outputs.items(), COLOURS, grid[0], strict=False):
        C = f.T @ f / len(f)
        axes.plot(K[upper], C[upper], ".", markersize=1.5, color=colour, rasterized=True, label="covariances")
        axes.plot(np.diagonal(K), np.diagonal(C), "+", markersize=5, color=INK, label="variances")
        ends = [float(K.min()), float(K.max())]
        axes.plot(ends, ends, color=GREY, linewidth=0.8)
        axes.set_title(f"C = {width}", fontsize=9)
        axes.set_xlabel("kernel")
    grid[0][0].set_ylabel("over networks")
    grid[0][0].legend(frameon=False, fontsize=7)
    return save_figure(figure, folder, "figure2-c")
