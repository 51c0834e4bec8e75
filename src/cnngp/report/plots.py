"""Figures of a report as PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.figures import PlotsUnavailable as PlotsUnavailable
from cnngp.common.figures import need_matplotlib, new_figure
from cnngp.common.tables import printable, wilson
from cnngp.gp.calibration import Reliability

Array = NDArray[Any]
_INK = "#1f2933"
_BLUE, _ORANGE = "#2b6cb0", "#c05621"
# Number of characters of a class name that fit at an axis.
_NAME = 20


def confusion(counts: NDArray[np.int64], classes: Sequence[str]) -> bytes:
    """Confusion matrix with mistakes in orange; a deeper colour is a larger share of the label."""
    n = len(classes)
    figure, axes = new_figure(max(4.2, 0.42 * n + 1.4), max(3.9, 0.40 * n + 1.2))
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    right = np.eye(n, dtype=bool)
    axes.imshow(np.ma.array(share, mask=~right), cmap="Blues", vmin=0, vmax=1)
    axes.imshow(np.ma.array(0.15 + 0.5 * share, mask=right | (counts == 0)), cmap="Oranges", vmin=0, vmax=1)
    if n <= 25:
        for i, j in zip(*np.nonzero(counts), strict=True):
            colour = "white" if share[i, j] > 0.6 else _INK
            axes.text(j, i, str(counts[i, j]), ha="center", va="center", fontsize=8, color=colour)
    if n <= 40:
        _name_ticks(axes, range(n), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    return _png(figure)


def reliability(curve: Reliability) -> bytes:
    """Reliability diagram: accuracy by confidence, above the number of images in each bin."""
    figure, (upper, lower) = new_figure(4.4, 4.6, rows=2, height_ratios=[3, 1], sharex=True)
    width = 1.0 / len(curve.count)
    centres = (np.arange(len(curve.count)) + 0.5) * width
    filled = curve.count > 0
    upper.plot([0, 1], [0, 1], color="#9aa5b1", linewidth=1, linestyle="--", label="perfectly calibrated")
    upper.bar(centres[filled], curve.accuracy[filled], width * 0.9, color=_BLUE, alpha=0.25)
    low, high = wilson(curve.accuracy[filled], curve.count[filled])
    bars = [curve.accuracy[filled] - low, high - curve.accuracy[filled]]
    upper.errorbar(
        *(curve.confidence[filled], curve.accuracy[filled], bars),
        fmt="o", color=_BLUE, markersize=4, linewidth=1, clip_on=False, label="this model, with 95 % intervals",
    )  # fmt: skip
    upper.set_ylim(0, 1.02)
    upper.set_ylabel("share that is right")
    figure.legend(frameon=False, fontsize=8, loc="outside upper left", ncols=2)  # no bar is below it
    lower.bar(centres, curve.count, width * 0.9, color=_BLUE)
    lower.set_yscale("symlog", linthresh=1)
    lower.set_ylabel("images")
    lower.set_xlabel("probability of the predicted class")
    lower.set_xlim(0, 1)
    return _png(figure)


def predictions(measured: Array, mean: Array, std: Array) -> bytes:
    """Predicted against measured numbers with error bars, and the diagonal."""
    figure, axes = new_figure(4.6, 4.4)
    ends = [min(measured.min(), mean.min()), max(measured.max(), mean.max())]
    axes.plot(ends, ends, color="#9aa5b1", linewidth=1, linestyle="--")
    alpha = float(np.clip(60.0 / len(mean), 0.15, 0.9))
    axes.errorbar(measured, mean, std, fmt="o", color=_BLUE, markersize=3, linewidth=0.7, alpha=alpha)
    axes.set_xlabel("measured")
    axes.set_ylabel("predicted")
    return _png(figure)


def _name_ticks(axes: Any, places: Sequence[float], classes: Sequence[str]) -> None:
    """Put class names on both axes, literally (a dollar sign starts no formula) and shortened in the middle if long."""
    tail = _NAME // 3
    names = [c if len(c) <= _NAME else f"{c[: _NAME - tail - 1]}…{c[-tail:]}" for c in map(printable, classes)]
    axes.set_xticks(places, names, rotation=0 if max(map(len, names)) <= 3 else 90, fontsize=8, parse_math=False)
    axes.set_yticks(places, names, fontsize=8, parse_math=False)


def picture(pixels: Array) -> bytes:
    """One image (C, H, W) at its own resolution: grey, or colour for three channels; otherwise the first channel.

    For a volume (C, D, H, W) the middle slice is shown, and signals (C, length) are drawn as curves.
    """
    need_matplotlib()
    if pixels.ndim == 2:
        pixels = _curves(pixels)
    elif pixels.ndim == 4:
        pixels = pixels[:, pixels.shape[1] // 2]
    low, high = float(pixels.min()), float(pixels.max())
    if low >= 0.0 and high <= 1.0:  # keep the brightness of a dark image
        high = 1.0
    unit = np.clip((pixels - min(low, 0.0)) / max(high - min(low, 0.0), 1e-12), 0.0, 1.0)
    rgb = np.moveaxis(unit, 0, 2) if len(pixels) == 3 else np.repeat(unit[0][:, :, None], 3, axis=2)
    return _image(rgb)


def saliency(pixels: Array, where: Array) -> bytes:
    """An image (C, H, W) in grey, overlaid with orange where |`where`| is large; `where` has any scale."""
    size = np.abs(where).reshape(-1, *pixels.shape[1:]).sum(0)
    share = np.clip(size / max(float(np.quantile(size, 0.99)), 1e-30), 0.0, 1.0)[..., None]
    low, high = float(pixels.min()), float(pixels.max())
    grey = (0.25 + 0.6 * (pixels.mean(0) - low) / max(high - low, 1e-12))[..., None]
    return _image(grey * (1.0 - share) + share * np.array([1.0, 0.45, 0.0]))


def _image(rgb: Array) -> bytes:
    """PNG of an array (H, W, 3) from 0 to 1, one pixel for each entry."""
    import matplotlib.image

    out = io.BytesIO()
    matplotlib.image.imsave(out, (255 * rgb).round().astype(np.uint8), format="png")
    return out.getvalue()


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", facecolor="white")
    return out.getvalue()


def _curves(signal: Array) -> Array:
    """A signal (C, length) as a grey image (1, height, length): white curves on black, one for each channel."""
    length = signal.shape[1]
    height = max(16, min(length, 256) // 2)
    low, high = float(signal.min()), float(signal.max())
    rows = np.rint((height - 1) * (1.0 - (signal - low) / max(high - low, 1e-12)))
    before = np.concatenate([rows[:, :1], rows[:, :-1]], axis=1)  # each sample is joined to the one before it
    line = np.arange(height)[None, :, None]
    drawn = (line >= np.minimum(rows, before)[:, None]) & (line <= np.maximum(rows, before)[:, None])
    return np.asarray(drawn.any(0)[None], np.float64)
