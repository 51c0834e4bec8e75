"""What a run finds about a regressor: errors, how honest its error bars are, intervals, and images worth a look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from cnngp.common.arrays import DataError
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.regressor import GPRegressor

from . import page, plots
from .evaluation import COVERAGE, PICTURES, TRIED, Evaluation, Picture, counted, likelihood, word

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NumberScores:
    """How good predictions of numbers are: R² (None where the numbers do not differ), error, and log density."""

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
    """A fitted regressor of one number an image on a data set."""

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

    def __init__(self, reg: GPRegressor, data: Dataset) -> None:
        super().__init__(reg, data)
        self.loo_y = np.asarray(data.y, np.float64)[reg.loo_rows_]
        self.loo_mean, self.loo_std = reg.loo_predictions_, reg.loo_std_
        self.y, self.mean, self.std = self.loo_y, self.loo_mean, self.loo_std
        """Of the test set, or of leave-one-out where there is none; noise is in the standard deviations."""
        self.loo = NumberScores.of(self.y, self.mean, self.std)
        if self.tested:
            self.y, (self.mean, self.std) = np.asarray(data.y_test, np.float64), self._timed(self._predict)
            self.test = NumberScores.of(self.y, self.mean, self.std)
        if data.X_validation is not None:
            y = np.asarray(data.y_validation, np.float64)
            self.validation = NumberScores.of(y, *self._predict(data.X_validation))
        self.coverage = self._coverage()
        self.wrong = self._furthest()
        self.uncertain = self._pictures(np.argsort(-self.std, kind="stable")) if self.tested else ()
        self.suspect = self._suspect()

    def _predict(self, X: Any = None, **kernels: Any) -> tuple[Floats, Floats]:
        found: tuple[Floats, Floats] = self.model.predict(X, return_std=True, noise=True, **kernels)
        return found

    # ---- images worth a look -------------------------------------------------------------------------------------

    def _label(self, label: Any) -> str:
        return page.minus(f"{float(label):.4g}")

    def _of(self, rows: NDArray[np.intp]) -> tuple[Any, Any]:
        """Images and names of the predictions in `rows`."""
        if self.tested:
            return self.shown_test[rows], self.data.names_test
        at = self.model.loo_rows_
        return self.shown[at[rows]], None if self.data.names is None else self.data.names[at]

    def _pictures(self, rows: NDArray[np.intp]) -> tuple[Picture, ...]:
        rows = rows[:PICTURES]
        X, names = self._of(rows)
        return tuple(
            Picture(
                x,
                self._label(self.y[i]),
                self._label(self.mean[i]),
                f"± {self.std[i]:.2g}",
                None if names is None else word(names[i]),
                {"measured": float(self.y[i]), "value": float(self.mean[i]), "std": float(self.std[i])},
                wrong=True,
            )
            for x, i in zip(X, rows, strict=True)
        )

    def _furthest(self) -> tuple[Picture, ...]:
        off = np.abs(self.y - self.mean) / np.maximum(self.std, np.finfo(np.float64).tiny)
        rows = np.argsort(-off, kind="stable")[:PICTURES]
        pictures = self._pictures(rows)
        return self._explained(pictures, rows, "near") if self.tested else pictures

    def _doubt(self, score: float) -> tuple[str, dict[str, Any]]:
        return f"{score:.1f} standard deviations", {"score": score}

    # ---- intervals -----------------------------------------------------------------------------------------------

    def _coverage(self) -> dict[str, Any] | None:
        if not self.loo_images:
            return None
        errors = np.abs(self.loo_y - self.loo_mean) / np.maximum(self.loo_std, np.finfo(np.float64).tiny)
        bars = float((errors <= ndtri(0.5 + 0.5 * COVERAGE)).mean())
        found: dict[str, Any] = {"asked": COVERAGE, "error_bars": bars, "right": None, "width": None}
        if self.tested and self.model.gp_.exact is not None:
            low, high = self.model.predict_interval(coverage=COVERAGE, **self._of_test(slice(TRIED))).T
            y, width = self.y[:TRIED], float(np.median(high - low))
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
        for scores, name in (
            (self.test, "test images"),
            (self.validation, "validation images"),
            (self.loo, "left out"),
        ):
            if scores is not None:
                r2 = "not known" if scores.r2 is None else page.minus(f"{scores.r2:.3f}")
                found += [(r2, f"R², {name}"), (f"{scores.rmse:.4g}", f"root mean square error, {name}")]
        density = (self.test or self.loo).log_density
        found.append((page.minus(f"{density:.3f}"), "log density of an image"))
        return [*found, (likelihood(self.model.log_marginal_likelihood_), "log marginal likelihood")]

    def summary(self) -> str:
        tested = ""
        if self.test is not None:
            tested = f"Predictions for {self.tested:,} test images are off by {self.test.rmse:.4g}. "
        return (
            f"The model was trained on {self.images:,} images by one linear solve. {tested}By leave-one-out, which "
            f"needs no test set, predictions of the training images are off by {self.loo.rmse:.4g} (root mean square), "
            f"each from all the others; always the mean would be by {float(self.loo_y.std()):.4g}."
        )

    def figures(self) -> tuple[str, list[str]]:
        of = "test images" if self.tested else "training images, left out"
        caption = f"Predicted against measured numbers of the {of}; bars are one standard deviation."
        return "Predicted and measured", [page.figure(plots.predictions(self.y, self.mean, self.std), caption)]


def check_numbers(y: Any, name: str) -> None:
    """Refuse targets that a regression cannot be of, before the kernel is computed."""
    if y.dtype.kind not in "fiub":
        raise DataError(
            f"{name} has words such as {str(y.ravel()[0])[:30]!r} for numbers; `cnngp classify` takes classes"
        )
    if np.ptp(np.asarray(y, np.float64)) == 0.0:
        raise DataError(
            f"{name} has the same number, {float(y.ravel()[0]):g}, for every image; there is nothing to predict"
        )
