"""Figure 2: outputs of finite random ResNets compared with the Gaussian process limit of many filters.

At each width C, thousands of networks with random weights are run on the same training images. A: the density of the
output for one image. B: its quantiles against those of the normal distribution. C: variances and covariances over all
images against the kernel. The same number of exact Gaussian draws gives the floor: the distance from sampling alone.
"""

from __future__ import annotations

import functools
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

from .results import GREY, INK, Results, Row, row
from .setting import Piece, Setting, digest

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


@dataclass(frozen=True)
class Figure2Plan:
    """Size of the experiment: `depth` of the ResNet, `floors` repetitions of the Gaussian draws."""

    depth: int
    widths: Sequence[int]
    networks: int
    images: int
    floors: int = 20


FULL = Figure2Plan(32, (3, 10, 30, 100), 10_000, 100)
QUICK = Figure2Plan(8, (3, 10, 30), 200, 10)


def run(setting: Setting, plan: Figure2Plan | None = None, X: NDArray[np.float32] | None = None) -> Results:
    """Compute the distances at each width; the images `X` default to the first training images of MNIST."""
    plan = plan or (QUICK if setting.quick else FULL)
    X = (setting.dataset("mnist", "paper").X if X is None else X)[: plan.images]
    network = zoo.resnet(plan.depth)
    K = np.asarray(Kernel(network, "cpu", "float64", setting.threads)(X, progress=False))
    depends = {"network": network.fingerprint, "images": digest(X), "networks": plan.networks}
    pieces = [Piece("figure2-floor", lambda: _floor(K, plan, setting.seed), depends | {"floors": plan.floors}, 30.0)]
    for w in plan.widths:
        compute = functools.partial(_outputs, setting, plan, X, w)
        seconds = _estimate(setting, plan, len(X), w)
        pieces.append(Piece(f"figure2-width-{w}", compute, depends | {"width": w}, seconds))
    floor, *found_at = setting.run(pieces)
    outputs: dict[int, Array] = {}
    widths: dict[str, Any] = {}
    rows: list[Row] = []
    for w, values in zip(plan.widths, found_at, strict=True):
        outputs[w] = np.asarray(values["outputs"], np.float64)
        widths[str(w)] = found = measure(outputs[w], K) | {"seconds": values["seconds"]}
        note = f"the ten largest of the networks hold {100 * found['largest_ten']:.0f} % of the sum of squares"
        rows += _rows(f"C = {w}: {plan.networks:,} networks resnet({plan.depth})", found, note)
    note = f"mean of {plan.floors} times; no network can be expected to come below it"
    rows += _rows(f"the limit: {plan.networks:,} exact Gaussian draws", floor, note)
    details = {"network": f"resnet({plan.depth})", "networks": plan.networks, "images": len(X), "widths": widths}
    details["floor"] = {key: floor[key] for key in floor if key not in ("hardware", "software")}
    captions = {
        "figure2-a": f"A. Density of the output for one image, {plan.networks:,} random networks at each width C.",
        "figure2-b": "B. Quantiles of the output for the same image against those of the limit; grey: the middle 95 % "
        "of as many Gaussian draws.",
        "figure2-c": f"C. Variances and covariances over {len(X)} training images against the kernel's.",
    }
    return Results(rows=rows, details=details, captions=captions, arrays={"K": K, "outputs": outputs})


def _rows(name: str, found: dict[str, Any], note: str) -> list[Row]:
    shared: Any = {"seconds": found["seconds"], "note": note}
    return [row(TABLE, name, quantity, ours=found[key], **shared) for key, quantity in QUANTITIES.items()]


def measure(f: Array, K: Array) -> dict[str, float]:
    """Distances of outputs f (networks, images) from N(0, K).

    `ks_mean`, `ks_first`: sup |F − Φ| of the outputs divided by √K_ii, mean over images and for the first image.
    `moment_error`: ‖fᵀf/n − K‖/‖K‖ in the Frobenius norm.
    `standard_error`: of the mean of f² over networks and images, relative to the kernel's. A network's scale is common
    to all images and heavy-tailed for small C, so few networks dominate; `largest_ten` is the share of ten of them.
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
    """Means and 95 % quantiles of the same distances for exact draws from N(0, K)."""
    values, Q = np.linalg.eigh(K)
    root = Q * np.sqrt(np.maximum(values, 0.0))
    rng = np.random.default_rng(seed)
    found = [measure(rng.standard_normal((plan.networks, len(K))) @ root.T, K) for _ in range(plan.floors)]
    means = {key: float(np.mean([f[key] for f in found])) for key in found[0]}
    return means | {f"{key}_95": float(np.quantile([f[key] for f in found], 0.95)) for key in found[0]}


def _outputs(setting: Setting, plan: Figure2Plan, X: NDArray[np.float32], width: int) -> dict[str, Any]:
    """Output of each network on each image. Widths have different seeds, so that their errors are independent."""
    from cnngp.torch_bridge import need_torch, sample_outputs

    need_torch("reproduce figure2")
    network, seed, device = zoo.resnet(plan.depth), _seed(setting.seed, width), setting.actual_device
    with progress_bar(plan.networks, f"{width} channels", "network") as bar:
        drawn = sample_outputs(network, X, width, plan.networks, seed, device=device, progress=bar.update)
    return {"outputs": np.asarray(drawn, np.float32)}


def _seed(seed: int, width: int) -> int:
    return int(np.random.SeedSequence((seed, width)).generate_state(1, np.uint32)[0])


def _estimate(setting: Setting, plan: Figure2Plan, images: int, width: int) -> float:
    """Approximate seconds, measured on `resnet(32)`: a network's cost grows with C² once its layers are wide."""
    each, wide = (2e-5, 2e-8) if setting.actual_device == "cuda" else (3e-4, 3e-6)
    return 15.0 + plan.networks * images * plan.depth / 32 * (each + wide * width**2)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw panels A, B and C."""
    K, outputs = results["arrays"]["K"], results["arrays"]["outputs"]
    first = {width: f[:, 0] / math.sqrt(K[0, 0]) for width, f in outputs.items()}
    return [*_densities(K, first, folder), *_quantiles(first, folder), *_moments(K, outputs, folder)]


def _densities(K: Array, first: dict[int, Array], folder: Path) -> list[Path]:
    std, z = math.sqrt(K[0, 0]), np.linspace(-4, 4, 201)
    figure, axes = new_figure(4.8, 3.6)
    bins = np.linspace(-4, 4, 20 if len(next(iter(first.values()))) < 2000 else 60)
    for (width, f), colour in zip(first.items(), COLOURS, strict=False):
        style = {"histtype": "step", "linewidth": 1.2, "color": colour, "label": f"C = {width}"}
        axes.hist(f * std, bins * std, density=True, **style)
    axes.plot(z * std, np.exp(-0.5 * z**2) / (std * math.sqrt(2 * math.pi)), color=INK, linewidth=1.4, label="limit")
    axes.set(xlabel="output for one image", ylabel="density")
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "figure2-a")


def _quantiles(first: dict[int, Array], folder: Path) -> list[Path]:
    from scipy.special import ndtri
    from scipy.stats import beta

    figure, axes = new_figure(4.2, 3.9)
    n = len(next(iter(first.values())))
    few = np.unique(np.round(np.geomspace(1, n / 2, 200))).astype(int)
    ranks = np.unique(np.r_[few, n + 1 - few])
    at = ndtri(ranks / (n + 1))
    for (width, f), colour in zip(first.items(), COLOURS, strict=False):
        axes.plot(at, np.sort(f)[ranks - 1], ".", markersize=3, color=colour, label=f"C = {width}")
    # The r-th of n uniform draws has a Beta(r, n + 1 − r) distribution.
    low, high = (ndtri(beta.ppf(q, ranks, n + 1 - ranks)) for q in (0.025, 0.975))
    axes.fill_between(at, low, high, color=GREY, alpha=0.4, linewidth=0)
    axes.plot(at[[0, -1]], at[[0, -1]], color=INK, linewidth=0.8)
    axes.set(ylim=2.2 * at[[0, -1]], ylabel="quantile of the networks")
    axes.set_xlabel("quantile of the limit, in standard deviations")
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "figure2-b")


def _moments(K: Array, outputs: dict[int, Array], folder: Path) -> list[Path]:
    upper = np.triu_indices(len(K), 1)
    figure, grid = new_figure(2.5 * len(outputs) + 0.4, 3.0, 1, len(outputs), sharex=True, sharey=True, squeeze=False)
    for (width, f), colour, axes in zip(outputs.items(), COLOURS, grid[0], strict=False):
        C = f.T @ f / len(f)
        axes.plot(K[upper], C[upper], ".", markersize=1.5, color=colour, rasterized=True, label="covariances")
        axes.plot(np.diagonal(K), np.diagonal(C), "+", markersize=5, color=INK, label="variances")
        axes.plot([K.min(), K.max()], [K.min(), K.max()], color=GREY, linewidth=0.8)
        axes.set_title(f"C = {width}", fontsize=9)
        axes.set_xlabel("kernel")
    grid[0][0].set_ylabel("over networks")
    grid[0][0].legend(frameon=False, fontsize=7)
    return save_figure(figure, folder, "figure2-c")
