"""Test error of the default `GPClassifier()`, beside its own candidates in hindsight and other methods.

    python -m benchmarks.default --data photographs.npz mnist digits --sizes 100 500 1000 [--effort normal best]
        [--hindsight] [--network] [--no-rivals] [--draws D] [--test 2000] [--device cuda] [--json F]

Every method sees only the same N training images, and all are tested on the same images. The training images are the
first N of the set, or with `--draws D` D random draws, balanced by class, as is usual for few labels. `--hindsight`
fits the largest affordable network of every row of the candidates' table to all N images; the best of them by test
error is a bound that a choice can beat only by luck. The test images are used for nothing else. `--network` adds a
ResNet-18 trained on random crops and mirror images (benchmarks/trained.py, needs PyTorch). The last line of each block
says whether the choice is within a point, or two standard errors of the difference, of the best other method. `--data`
takes the same values as `cnngp classify --data`, and the names of benchmarks/drawn.py.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from cnngp import GPClassifier, datasets
from cnngp.estimators import Recipe
from cnngp.estimators.candidates import candidates
from cnngp.estimators.choosing import EFFORTS
from cnngp.estimators.training_images import balanced
from cnngp.gp import calibration
from cnngp.network.names import AN_IMAGE, IN_ALL

from .small_data import images

Bools = np.ndarray[Any, np.dtype[np.bool_]]

# Number of folds in which rivals choose their parameters, and so the minimum of images per class.
_FOLDS = 5


@dataclass(frozen=True)
class Result:
    """Result of one method on the test images: which are wrong, and the scores of its probabilities, if it has any."""

    wrong: Bools
    nll: float | None = None
    ece: float | None = None
    said: str = ""

    @property
    def error(self) -> float:
        return float(self.wrong.mean())

    def __str__(self) -> str:
        scores = "" if self.nll is None else f"  {self.nll:>7.4f}  {self.ece:>7.4f}"
        return f"{100 * self.error:>8.2f}{scores}  {self.said}".rstrip()


def process(data: datasets.Dataset, device: str, **settings: Any) -> Result:
    clf = GPClassifier(device=device, input_shape=data.image_shape, **settings)
    P = clf.fit(data.X, data.y).predict_proba(data.X_test)
    codes = np.searchsorted(clf.classes_, data.y_test)
    scores = calibration.scores(P, codes)
    chosen = "" if clf.choice_ is None else f"  {clf.choice_.name}, compared on {clf.choice_.images:,} images"
    said = f"leave-one-out {100 * clf.loo_error_:.2f}{chosen}"
    return Result(P.argmax(1) != codes, float(scores.nll), float(scores.ece), said)


def rival(model: Any, data: datasets.Dataset) -> Result:
    X, X_test = (a.reshape(len(a), -1).astype(np.float64) for a in (data.X, data.X_test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as an optimiser that did not converge
        return Result(model.fit(X, data.y).predict(X_test) != data.y_test)


def rivals() -> dict[str, Any]:
    """Standard methods of scikit-learn, with parameters chosen by five-fold cross-validation."""
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    grids: dict[str, tuple[Any, dict[str, list[float]]]] = {
        "logistic regression": (LogisticRegression(max_iter=300), {"C": [0.001, 0.01, 0.1, 1.0]}),
        "nearest neighbours": (KNeighborsClassifier(), {"n_neighbors": [1, 3, 5, 10]}),
        "RBF SVM": (SVC(), {"C": [1.0, 10.0, 100.0], "gamma": ["scale", "auto"]}),
    }
    return {
        name: GridSearchCV(
            make_pipeline(StandardScaler(), m), {f"{type(m).__name__.lower()}__{k}": v for k, v in g.items()}, cv=folds
        )
        for name, (m, g) in grids.items()
    }


def methods(data: datasets.Dataset, asked: argparse.Namespace) -> dict[str, Callable[[], Result]]:
    found: dict[str, Callable[[], Result]] = {
        f"default, {effort}": lambda effort=effort: process(data, asked.device, effort=effort)
        for effort in asked.effort
    }
    if asked.rivals and np.unique(data.y, return_counts=True)[1].min() >= _FOLDS:
        found |= {name: lambda model=model: rival(model, data) for name, model in rivals().items()}
    if asked.network:
        found["ResNet-18, trained"] = lambda: network(data, asked.device)
    if asked.hindsight:
        n = len(data.X)
        limit = min(AN_IMAGE * n, IN_ALL) * max(EFFORTS[effort] for effort in asked.effort)
        for sizes in candidates(data.X[:200].reshape(-1, *data.image_shape)):
            for c in [c for c in sizes if c.elements * n * (n - 1) // 2 <= limit][-1:]:
                recipe = Recipe((c.term,), "loo")
                found[str(c)] = lambda recipe=recipe: process(data, asked.device, network=recipe)
    return found


def network(data: datasets.Dataset, device: str) -> Result:
    from . import trained

    r = trained.resnet18(data, "cuda" if device == "cuda" else "cpu")
    # Only the share of wrong images is known, so the positions are arbitrary.
    wrong = np.arange(len(data.y_test)) < round(r["error"] * len(data.y_test))
    return Result(wrong, r["nll"], r["ece"])


def verdict(name: str, results: dict[str, Result]) -> str:
    """A line that says whether the choice is within a point, or two standard errors, of the best other method."""
    others = {other: r for other, r in results.items() if not other.startswith("default, ")}
    if not others:
        return f"{name}: beside no other method"
    best = min(others, key=lambda other: others[other].error)
    worse = results[name].wrong.astype(float) - others[best].wrong
    error = 2.0 * float(worse.std()) / math.sqrt(len(worse))
    inside = "within" if worse.mean() <= max(0.01, error) else "BEYOND"
    return f"{name}: {100 * worse.mean():+.2f} ± {100 * error:.2f} points beside {best}: {inside}"


def training_sets(whole: datasets.Dataset, n: int, test: int, draws: int) -> Iterator[datasets.Dataset]:
    """Yield the first n images, or `draws` random sets of n images, balanced by class."""
    if not draws:
        yield whole.take(n, test)
        return
    targets = (whole.y[:, None] == np.unique(whole.y)).astype(float)
    for seed in range(draws):
        rows = balanced(targets, n, seed)
        yield replace(whole.take(n, test), X=whole.X[rows], y=whole.y[rows])


def compared(data: datasets.Dataset, asked: argparse.Namespace) -> dict[str, Result]:
    """Run every method on these images and print a line for each."""
    print(f"\n{data.name}, {len(data.X):,} images of {data.image_shape}, tested on {len(data.X_test):,}")
    print(f"{'':<40}  {'error %':>8}  {'NLL':>7}  {'ECE':>7}")
    results: dict[str, Result] = {}
    for name, run in methods(data, asked).items():
        results[name] = run()
        print(f"{name:<40}  {results[name]}", flush=True)
    for effort in asked.effort:
        print(verdict(f"default, {effort}", results), flush=True)
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--draws", type=int, default=0, help="random training sets of each size; 0: the first images")
    parser.add_argument("--test", type=int, default=2000, help="test images, at most")
    parser.add_argument("--effort", nargs="+", choices=list(EFFORTS), default=["normal"])
    parser.add_argument("--hindsight", action="store_true", help="every row of the table by itself as well")
    parser.add_argument("--network", action="store_true", help="a trained ResNet-18 as well")
    parser.add_argument("--no-rivals", dest="rivals", action="store_false", help="leave out scikit-learn's methods")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file as well")
    asked = parser.parse_args(arguments)
    rows = []
    for source in asked.data:
        whole = images(source, max(asked.sizes), asked.test)
        for n in asked.sizes:
            errors: dict[str, list[float]] = {}
            for data in training_sets(whole, n, min(asked.test, len(whole.X_test)), asked.draws):
                for name, r in compared(data, asked).items():
                    errors.setdefault(name, []).append(r.error)
                    row = {"data": data.name, "n": n, "method": name, "error": r.error, "nll": r.nll, "ece": r.ece}
                    rows.append(row | {"said": r.said})
                if asked.json is not None:
                    asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            if asked.draws:
                for name, found in errors.items():
                    correct = 100 * (1 - np.array(found))
                    print(f"{whole.name}, {n:,} labels, {name}: {correct.mean():.1f} ± {correct.std():.1f} % correct")


if __name__ == "__main__":
    main()
