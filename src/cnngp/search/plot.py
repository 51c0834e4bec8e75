"""The pictures of a search: validation error by draw, against each hyperparameter, and against the cost."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cnngp.common.figures import bare_figure, save_figure

if TYPE_CHECKING:
    from .result import SearchResult
    from .study import Trial

_BLUE, _ORANGE = "#2b6cb0", "#dd6b20"


def plot(result: SearchResult, folder: Path) -> list[Path]:
    """Writes draws, cost and hyperparameters, each as PNG and SVG."""
    figures = {"draws": bare_figure(7, 4), "cost": bare_figure(7, 4)}
    _by_draw(figures["draws"].subplots(), result)
    _against_cost(figures["cost"].subplots(), result)
    names = list(dict.fromkeys(name for t in result.trials for name in t.params))
    columns = min(4, max(1, len(names)))
    rows = max(1, math.ceil(len(names) / columns))
    figures["hyperparameters"] = bare_figure(3.0 * columns, 2.6 * rows)
    grid = figures["hyperparameters"].subplots(rows, columns, squeeze=False).ravel()
    for axes, name in itertools.zip_longest(grid, names):
        if name is None:
            axes.set_axis_off()
        else:
            _against(axes, name, [t for t in result.trials if name in t.params])
    return [path for name, figure in figures.items() for path in save_figure(figure, folder, name)]


def _by_draw(axes: Any, result: SearchResult) -> None:
    draws, errors = [t.draw for t in result.trials], _percent(result.trials)
    images = f"{result.trials[0].score.train:,} images"
    axes.plot(draws, errors, "o", ms=4, color=_BLUE, label=f"{len(draws)} draws with {images}")
    axes.step(draws, np.minimum.accumulate(errors), where="post", color=_BLUE, lw=1, label="best so far")
    for rung in result.rungs:
        numbers = [t.draw for t in rung.trials]
        axes.plot(numbers, _percent(rung.trials), "D", ms=5, color=_ORANGE, label=f"again with {rung.train:,} images")
    _finish(axes, "draw", f"{result.space}: {result.images}")


def _against_cost(axes: Any, result: SearchResult) -> None:
    """Every draw, and the front: those that no cheaper draw beats."""
    costs = [t.score.operations for t in result.trials]
    axes.plot(costs, _percent(result.trials), "o", ms=4, color=_BLUE)
    front = [t.score.operations for t in result.front]
    label = "no cheaper draw is better"
    axes.step(front, _percent(result.front), "o-", where="post", ms=5, color=_ORANGE, label=label)
    if min(costs) > 0:
        axes.set_xscale("log")
    _finish(axes, "operations a pair of images", f"{result.space}: {result.images}")


def _against(axes: Any, name: str, trials: list[Trial]) -> None:
    values: list[Any] = [t.params[name] for t in trials]
    errors = _percent(trials)
    if all(isinstance(v, float) for v in values):
        axes.plot(values, errors, "o", ms=3, color=_BLUE)
        if min(values) > 0 and max(values) > 100 * min(values):
            axes.set_xscale("log")
    else:  # a few values: each in its place, the points side by side
        words = any(isinstance(v, (str, bool)) for v in values)
        labels = sorted({str(v) for v in values}) if words else [str(v) for v in range(min(values), max(values) + 1)]
        places = [labels.index(str(v)) for v in values]
        spread = np.random.default_rng(0).uniform(-0.15, 0.15, len(values))
        axes.plot(np.array(places) + spread, errors, "o", ms=3, color=_BLUE)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(labelsize=8)
    _finish(axes, name, "")


def _percent(trials: Any) -> list[float]:
    """In percent; none wrong is drawn as half an image wrong, which a logarithmic axis can show."""
    return [100 * max(t.error, 0.5 / t.score.validation) for t in trials]


def _finish(axes: Any, x: str, title: str) -> None:
    """Labels, and the logarithmic axis of errors in percent."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set(xlabel=x, ylabel="validation error, %")
    if title:
        axes.set_title(title, parse_math=False)  # a folder's name may hold a $
        axes.legend(frameon=False, fontsize=8)
    axes.set_yscale("log")
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(plain)
    low, high = axes.get_ylim()
    # Within a decade there may be no power of ten to read; beyond, the labels between them would lie on each other.
    axes.yaxis.set_minor_formatter(plain if high < 10 * low else NullFormatter())
    axes.tick_params(axis="y", which="minor", labelsize=6)
