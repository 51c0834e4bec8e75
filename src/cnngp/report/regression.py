"""Evaluation of a regressor: errors, calibration of its error bars, intervals, and images worth a look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from . import page, plots
from .evaluation import COVERAGE, TRIED, Array, Evaluation, counted, likelihood

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NumberScores:
    """Scores of predicted numbers: R² (None if all numbers are equal), root mean square error, mean log density."""

    r2: float | None
    rmse: float
    log_density: float

    @classmethod
    def of(cls, y: Floats, mean: Floats, std: Floats) -> NumberScores:
        errors, spread = y - mean, y - y.mean()
        s = np.maximum(std, np.finfo(np.float64).tiny)
        density = -0.5 * (errors / s) ** 2 - np.log(s) - 0.5 * np.log(2.0 * np.pi)
        r2 = 1.0 - float(errors @ errors) / float(spread @ spread) if len(y) > 1 and spread.any() else None
        return cls(r2, float(np.sqrt((errors**2).mean())), float(density.mean()))

    def __str__(self) -> str:
        r2 = "not known" if self.r2 is None else f"{self.r2:.3f}"
        return f"R² {r2}, RMSE {self.rmse:.4g}, log density {self.log_density:.3f}"


class Numbers(Evaluation):
    """Evaluation of a fitted regressor, with one number for each image, on a data set."""

    command, title = "regress", "Exact Gaussian process regression"
    texts: ClassVar[dict[str, tuple[str, str]]] = {
        "coverage": (
            "Error bars and intervals",
            "Error bars are as wide as the model believes. Intervals hold the number as often as asked whether or not "
            "it is right, as long as new images are like these; where a recipe was chosen by few images they are "
            "somewhat too narrow. <code>cnngp predict</code> prints them.",
        ),
        "wrong": (
            "Furthest off",
            "Images whose number is furthest from the prediction, in its standard deviations; without a test set, "
            "training images, left out. Below each are the training images most like it, with their numbers and how "
            "alike they are (1: the same). Orange is where it looks: the pixels whose change would change the "
            "prediction most.",
        ),
        "suspect": (
            "Suspect numbers",
            "By leave-one-out, the most suspect first: look at these when cleaning data. What the others predict comes "
            "first.",
        ),
        "uncertain": (
            "Most uncertain",
            "Test images with the widest error bars: look at these, or measure more like them, next.",
        ),
    }
    behind = "near"

    def _left_out(self) -> tuple[Array, ...]:
        return self.model.loo_predictions_, self.model.loo_std_

    def _labels(self, y: Any) -> Floats:
        return np.asarray(y, np.float64)

    def _predict(self, X: Any = None, **kernels: Any) -> tuple[Array, ...]:
        found: tuple[Array, ...] = self.model.predict(X, return_std=True, noise=True, **kernels)
        return found

    def _scores(self, labels: Array, *found: Array) -> NumberScores:
        return NumberScores.of(labels, *found)

    # ---- images worth a look -------------------------------------------------------------------------------------

    def _worth_a_look(self) -> tuple[Array, Array]:
        """Rows with the widest error bars first, and rows furthest off first."""
        return np.argsort(-self.found[2], kind="stable"), np.argsort(-_off(*self.found), kind="stable")

    def _said(self, row: int) -> dict[str, Any]:
        y, mean, std = (float(column[row]) for column in self.found)
        words = {"label": self._label(y), "predicted": self._label(mean), "sure": f"± {std:.2g}"}
        return words | {"facts": {"measured": y, "value": mean, "std": std}, "wrong": True}

    def _label(self, label: Any) -> str:
        return page.minus(f"{float(label):.4g}")

    def _doubt(self, score: float) -> tuple[str, dict[str, Any]]:
        return f"{score:.1f} standard deviations", {"score": score}

    # ---- intervals -----------------------------------------------------------------------------------------------

    def _coverage(self) -> dict[str, Any] | None:
        if not self.loo_images:
            return None
        bars = float((_off(*self.left_out) <= ndtri(0.5 + 0.5 * COVERAGE)).mean())
        found: dict[str, Any] = {"asked": COVERAGE, "error_bars": bars, "right": None, "width": None}
        if self.tested and self.model.gp_.exact is not None:
            low, high = self.model.predict_interval(coverage=COVERAGE, **self._of_test(slice(TRIED))).T
            y, width = self.found[0][:TRIED], float(np.median(high - low))
            found["right"] = float(((low <= y) & (y <= high)).mean())
            found |= {"images": len(y), "width": width if np.isfinite(width) else None}
        return found

    def covered(self) -> list[tuple[str, str]]:
        if (of := self.coverage) is None:
            return []
        bars = f"hold {counted(of['error_bars'], self.loo_images)} of the numbers, left out"
        found = [("error bars for 90 %", bars)]
        if of["right"] is not None:
            held = f"hold {counted(of['right'], of['images'])} of the test images' numbers"
            width = "unbounded: too few images" if of["width"] is None else f"{of['width']:.3g}"
            found.append(("intervals for 90 %", f"{held}; width {width}"))
        return found

    # ---- what is said --------------------------------------------------------------------------------------------

    def tiles(self) -> list[tuple[str, str]]:
        found = []
        of = (self.test, "test images"), (self.validation, "validation images"), (self.loo, "left out")
        for scores, name in of:
            if scores is not None:
                r2 = "not known" if scores.r2 is None else page.minus(f"{scores.r2:.3f}")
                found += [(r2, f"R², {name}"), (f"{scores.rmse:.4g}", f"root mean square error, {name}")]
        density = (self.test or self.loo).log_density
        found.append((page.minus(f"{density:.3f}"), "log density of an image"))
        return [*found, likelihood(self.model.log_marginal_likelihood_)]

    def summary(self) -> str:
        tested = ""
        if self.test is not None:
            tested = f"Predictions for {self.tested:,} test images are off by {self.test.rmse:.4g}. "
        return (
            f"The model was trained on {self.images:,} images by one linear solve. {tested}By leave-one-out, which "
            f"needs no test set, predictions of the training images are off by {self.loo.rmse:.4g} (root mean square), "
            f"each from all the others; always the mean would be by {float(self.left_out[0].std()):.4g}."
        )

    def figures(self) -> tuple[str, list[str]]:
        of = "test images" if self.tested else "training images, left out"
        caption = f"Predicted against measured numbers of the {of}; bars are one standard deviation."
        return "Predicted and measured", [page.figure(plots.predictions(*self.found), caption)]


def _off(y: Floats, mean: Floats, std: Floats) -> Floats:
    """Absolute errors in units of the predicted standard deviations."""
    return np.asarray(np.abs(y - mean) / np.maximum(std, np.finfo(np.float64).tiny))
