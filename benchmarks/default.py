"""Is what `GPClassifier()` chooses right? Its error beside its own candidates in hindsight, and beside other methods.

    python -m benchmarks.default --data photographs.npz mnist digits --sizes 100 500 1000 [--effort normal best]
        [--hindsight] [--network] [--test 2000] [--device cuda] [--json F]

Every method sees the first N training images and nothing else, and all are tested on the same images. `--hindsight`
fits every affordable candidate of the table to all N images, and the best of them by the test images is what no choice
could beat by more than luck; the test images play no other part. `--network` adds a ResNet trained on images that are
moved at random (benchmarks/trained.py, needs PyTorch). A line at the end of each block says whether the choice is
within a point, or two standard errors of the difference, of the best of the others. `--data` takes what
`cnngp classify --data` takes, and the names of benchmarks/drawn.py.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable
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
from cnngp.gp import calibration
from cnngp.network.names import AN_IMAGE, IN_ALL

from .small_data import images

Wrong = np.ndarray[Any, np.dtype[np.bool_]]


def probabilities(clf: Any, data: datasets.Dataset, X: Any, X_test: Any) -> tuple[Wrong, str]:
    """Which test images are wrong, and error, NLL and ECE as text."""
    P = clf.fit(X, data.y).predict_proba(X_test)
    codes = np.searchsorted(clf.classes_, data.y_test)
    scores = calibration.scores(P, codes)
    return P.argmax(1) != codes, f"{100 * scores.error:>8.2f}  {scores.nll:>7.4f}  {scores.ece:>7.4f}"


def process(data: datasets.Dataset, device: str, **settings: Any) -> tuple[Wrong, str]:
    clf = GPClassifier(device=device, input_shape=data.image_shape, **settings)
    wrong, text = probabilities(clf, data, data.X, data.X_test)
    chosen = "" if clf.choice_ is None else f"  {clf.choice_.name}, compared on {clf.choice_.images:,} images"
    return wrong, f"{text}  leave-one-out {100 * clf.loo_error_:.2f}{chosen}"


def rival(model: Any, data: datasets.Dataset) -> tuple[Wrong, str]:
    X, X_test = (a.reshape(len(a), -1).astype(np.float64) for a in (data.X, data.X_test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes with fewer images than folds, and steps of the optimiser
        return (w := model.fit(X, data.y).predict(X_test) != data.y_test), f"{100 * w.mean():>8.2f}"


def rivals() -> dict[str, Any]:
    """What else one would use, with its parameters chosen by five folds."""
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
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


def methods(data: datasets.Dataset, asked: argparse.Namespace) -> dict[str, Callable[[], tuple[Wrong, str]]]:
    found: dict[str, Callable[[], tuple[Wrong, str]]] = {
        f"default, {effort}": lambda effort=effort: process(data, asked.device, effort=effort)
        for effort in asked.effort
    }
    found |= {name: lambda model=model: rival(model, data) for name, model in rivals().items()}
    if asked.network:
        found["ResNet, trained"] = lambda: network(data, asked.device)
    if asked.hindsight:
        n = len(data.X)
        limit = min(AN_IMAGE * n, IN_ALL) * max(EFFORTS[effort] for effort in asked.effort)
        for c in candidates(data.X[:200].reshape(-1, *data.image_shape)):
            if c.elements * n * (n - 1) // 2 <= limit and c.images_for(data.image_shape) <= n:
                recipe = Recipe((c.term,), "loo")
                found[str(c)] = lambda recipe=recipe: process(data, asked.device, network=recipe)
    return found


def network(data: datasets.Dataset, device: str) -> tuple[Wrong, str]:
    from . import trained

    r = trained.residual(data, "cuda" if device == "cuda" else "cpu")
    # The mean of several seeds: only its share of wrong images is known.
    wrong = np.arange(len(data.y_test)) < round(r["error"] * len(data.y_test))
    return wrong, f"{100 * r['error']:>8.2f}  {r['nll']:>7.4f}  {r['ece']:>7.4f}"


def verdict(name: str, wrong: dict[str, Wrong]) -> str:
    """Whether the choice is within a point, or two standard errors, of the best of the others."""
    others = {other: w for other, w in wrong.items() if not other.startswith("default, ")}
    best = min(others, key=lambda other: others[other].mean())
    worse = wrong[name].astype(float) - others[best]
    error = 2.0 * float(worse.std()) / math.sqrt(len(worse))
    inside = "within" if worse.mean() <= max(0.01, error) else "BEYOND"
    return f"{name}: {100 * worse.mean():+.2f} ± {100 * error:.2f} points beside {best}: {inside}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--test", type=int, default=2000, help="test images, at most")
    parser.add_argument("--effort", nargs="+", choices=list(EFFORTS), default=["normal"])
    parser.add_argument("--hindsight", action="store_true", help="every affordable candidate by itself as well")
    parser.add_argument("--network", action="store_true", help="a trained ResNet as well")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file as well")
    asked = parser.parse_args(arguments)
    rows = []
    for source in asked.data:
        whole = images(source, max(asked.sizes), asked.test)
        for n in asked.sizes:
            data = whole.take(n, min(asked.test, len(whole.X_test)))
            print(f"\n{data.name}, {n:,} images of {data.image_shape}, tested on {len(data.X_test):,}")
            print(f"{'':<40}  {'error %':>8}  {'NLL':>7}  {'ECE':>7}")
            wrong: dict[str, Wrong] = {}
            for name, run in methods(data, asked).items():
                wrong[name], text = run()
                print(f"{name:<40}  {text}", flush=True)
                rows.append({"data": data.name, "n": n, "method": name, "error": float(wrong[name].mean())})
            for effort in asked.effort:
                print(verdict(f"default, {effort}", wrong), flush=True)
            if asked.json is not None:
                asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
