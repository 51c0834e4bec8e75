"""Few labelled images: the exact ResNet GP against what a user would pick instead, on the same split.

    python -m benchmarks.small_data [--data mnist] [--sizes 100 500 1000 5000] [--methods …] [--json FILE]

Each method sees the first N training images and nothing else; all are tested on the same test images. Times are wall
clock for training with its model selection, and for predicting the test set.

- resnet32 GP: this package, no settings to choose.
- RBF SVM: scikit-learn, C and gamma by 5-fold cross-validation over 3 × 3 values.
- RBF GP: scikit-learn's GaussianProcessRegressor on ±1 targets, length scale, amplitude and noise by maximum likelihood
  (on the first 1,000 images where there are more: its optimiser needs a Cholesky factorisation and a gradient a step).
- CNN: two 3 × 3 convolutions (32 and 64 filters), max pooling, a dense layer of 128 with dropout 0.5; AdamW with a
  cosine schedule for 1,500 steps of 64 images; the mean of two seeds.
- CNN, shifts: the same with the training images shifted at random by up to two pixels, which no other method is given.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import GPClassifier, datasets, zoo
from cnngp.gp import calibration

Result = dict[str, float]


def resnet_gp(data: datasets.Dataset) -> Result:
    start = time.perf_counter()
    clf = GPClassifier(zoo.resnet(32), device="cpu").fit(data.X, data.y)
    fitted = time.perf_counter()
    P = clf.predict_proba(data.X_test)
    scores = calibration.scores(P, np.searchsorted(clf.classes_, data.y_test))
    return {
        "error": scores.error,
        "loo_error": clf.loo_error_,
        "nll": scores.nll,
        "ece": scores.ece,
        "train_s": fitted - start,
        "test_s": time.perf_counter() - fitted,
    }


def rbf_svm(data: datasets.Dataset) -> Result:
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.svm import SVC

    X, X_test = _flat(data)
    scale = 1.0 / (X.shape[1] * X.var())
    grid = {"C": [1.0, 10.0, 100.0], "gamma": [0.3 * scale, scale, 3.0 * scale]}
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer than five images, at N = 100
        search = GridSearchCV(SVC(), grid, cv=folds, n_jobs=2).fit(X, data.y)
    fitted = time.perf_counter()
    error = 1.0 - search.score(X_test, data.y_test)
    return {"error": error, "train_s": fitted - start, "test_s": time.perf_counter() - fitted}


def rbf_gp(data: datasets.Dataset) -> Result:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    X, X_test = _flat(data)
    classes, codes = np.unique(data.y, return_inverse=True)
    Y = 2.0 * np.eye(len(classes))[codes] - 1.0
    start = time.perf_counter()
    kernel = ConstantKernel(1.0) * RBF(5.0, (0.1, 100.0)) + WhiteKernel(1e-2, (1e-6, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        small = GaussianProcessRegressor(kernel, alpha=1e-10).fit(X[:1000], Y[:1000])
    model = small
    if len(X) > 1000:
        model = GaussianProcessRegressor(small.kernel_, alpha=1e-10, optimizer=None).fit(X, Y)
    fitted = time.perf_counter()
    error = float((model.predict(X_test).argmax(1) != np.searchsorted(classes, data.y_test)).mean())
    return {"error": error, "train_s": fitted - start, "test_s": time.perf_counter() - fitted}


def cnn(data: datasets.Dataset, shifts: int = 0, steps: int = 1500, batch: int = 64, seeds: int = 2) -> Result:
    import torch
    from torch import nn

    classes, codes = np.unique(data.y, return_inverse=True)
    X, y = torch.from_numpy(data.X), torch.from_numpy(codes)
    X_test, y_test = torch.from_numpy(data.X_test), np.searchsorted(classes, data.y_test)
    channels, height, width = data.image_shape

    def train(seed: int) -> tuple[calibration.Scores, float, float]:
        torch.manual_seed(seed)
        start = time.perf_counter()
        net = nn.Sequential(
            *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(128, len(classes)),
        )
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        padded = nn.functional.pad(X, (shifts, shifts, shifts, shifts))
        for _ in range(steps):
            rows = torch.randint(len(X), (min(batch, len(X)),))
            top, left = torch.randint(2 * shifts + 1, (2,)).tolist()
            loss = nn.functional.cross_entropy(net(padded[rows, :, top : top + height, left : left + width]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        fitted = time.perf_counter()
        net.eval()
        with torch.no_grad():
            logits = torch.cat([net(part) for part in X_test.split(1000)])
        P = torch.softmax(logits.double(), 1).numpy()
        return calibration.scores(P, y_test), fitted - start, time.perf_counter() - fitted

    runs = [train(seed) for seed in range(seeds)]
    return {
        "error": float(np.mean([s.error for s, _, _ in runs])),
        "nll": float(np.mean([s.nll for s, _, _ in runs])),
        "ece": float(np.mean([s.ece for s, _, _ in runs])),
        "train_s": float(np.mean([t for _, t, _ in runs])),
        "test_s": float(np.mean([t for _, _, t in runs])),
    }


METHODS: dict[str, Callable[[datasets.Dataset], Result]] = {
    "resnet32 GP": resnet_gp,
    "RBF SVM": rbf_svm,
    "RBF GP": rbf_gp,
    "CNN": cnn,
    "CNN, shifts": lambda data: cnn(data, shifts=2),
}


def _flat(data: datasets.Dataset) -> tuple[Any, Any]:
    return tuple(X.reshape(len(X), -1).astype(np.float64) for X in (data.X, data.X_test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 5000])
    parser.add_argument("--test", type=int, default=None, help="test images; all by default")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file as well")
    options = parser.parse_args()
    data = datasets.load(options.data)
    print(f"{data!r} on {platform.machine()}")
    print(f"{'N':>6}  {'method':<12}  {'error %':>8}  {'NLL':>7}  {'ECE':>7}  {'train s':>8}  {'test s':>8}")
    rows = []
    for n in options.sizes:
        for name in options.methods:
            r = METHODS[name](data.take(n, options.test))
            nll, ece = (f"{r[k]:.4f}" if k in r else "" for k in ("nll", "ece"))
            times = f"{r['train_s']:>8.1f}  {r['test_s']:>8.1f}"
            print(f"{n:>6}  {name:<12}  {100 * r['error']:>8.2f}  {nll:>7}  {ece:>7}  {times}", flush=True)
            rows.append({"n": n, "method": name, **r})
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
