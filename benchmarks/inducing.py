"""Regression through inducing images on MNIST, with the paper's split, against the exact GP:

    python -m benchmarks.inducing --data FOLDER --train 50000 --inducing 10000 [--shifts] [--exact] --device cuda

FOLDER is `mnist` with its four files, or the folder that holds it. The paper reports 0.68 % (validation) and 0.84 %
(test) for the exact GP of resnet(32) on 50,000 images. The noise is chosen on the validation images among a few
multiples of the mean diagonal; "leave-one-out" is the one that the estimator takes by itself. With `--shifts` every
training image is there five times: as it is, and shifted by one pixel up, down, left and right.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import GPClassifier, Kernel, datasets, zoo
from cnngp.arrays import to_numpy
from cnngp.augmentation import shifted

NETWORKS = {"resnet32": lambda: zoo.resnet(32), "small_cnn": zoo.small_cnn, "convnet": zoo.convnet}
NOISES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def read(folder: Path, train: int, validation: int, test: int) -> tuple[Any, ...]:
    """The paper's split: X, y, and (name, images, labels) of the other two sets."""
    os.environ["CNNGP_DATA"] = str(folder if (folder / "mnist").is_dir() else folder.resolve().parent)
    data = datasets.mnist("paper")
    assert data.X_validation is not None
    assert data.y_validation is not None
    others = (
        ("validation", data.X_validation[:validation], data.y_validation[:validation]),
        ("test", data.X_test[:test], data.y_test[:test]),
    )
    return data.X[:train], data.y[:train], others


def errors(clf: GPClassifier, kernels: dict[str, Any], labels: dict[str, Any]) -> dict[str, float]:
    """Per cent, from K(images, inducing) that is computed once for all noises."""
    found = {name: to_numpy(clf.gp_.mean(K)).argmax(1) for name, K in kernels.items()}
    return {name: 100.0 * float(np.mean(clf.classes_[found[name]] != labels[name])) for name in kernels}


def exact(kernel: Kernel, X: Any, y: Any, others: Any) -> dict[str, float]:
    start = time.perf_counter()
    clf = GPClassifier(kernel).fit(X, y)
    result = {name: 100.0 * (1.0 - clf.score(images, labels)) for name, images, labels in others}
    return result | {"leave_one_out": 100.0 * clf.loo_error_, "seconds": time.perf_counter() - start}


def run(options: argparse.Namespace) -> dict[str, Any]:
    X, y, others = read(options.data, options.train, options.validation, options.test)
    kernel = Kernel(NETWORKS[options.network](), device=options.device)
    result: dict[str, Any] = {
        "network": options.network,
        "train": len(X),
        "inducing": options.inducing,
        "shifts": options.shifts,
        "device": kernel.device,
    }
    if options.exact:
        result["exact"] = exact(kernel, X, y, others)
        show("exact", result["exact"])
    if options.shifts:
        X, y = shifted(X, y)
    begun = time.perf_counter()
    inducing = options.inducing
    if options.choice == "random":
        inducing = np.random.default_rng(0).choice(len(X), options.inducing, replace=False)
    clf = GPClassifier(kernel, inducing=inducing).fit(X, y)
    fitted = time.perf_counter()
    output = "cupy" if kernel.device == "cuda" else "numpy"
    kernels = {name: kernel(images, clf.X_, output=output) for name, images, _ in others}
    labels = {name: labels for name, _, labels in others}
    result |= {"images": len(X), "fit_seconds": fitted - begun, "kernel_seconds": time.perf_counter() - fitted}
    result["leave_one_out"] = errors(clf, kernels, labels) | {
        "noise": clf.gp_.noise,
        "leave_one_out": 100.0 * clf.loo_error_,
        "jitter": clf.fit_report_.jitter,
        "residual": clf.fit_report_.residual,
    }
    print(f"{len(X):,} images, {len(clf.X_):,} inducing ({options.choice}): fit {result['fit_seconds']:.1f} s")
    show("leave-one-out", result["leave_one_out"])
    scale = float(clf.gp_.basis.diagonal.mean())
    result["by_noise"] = {}
    for relative in NOISES:
        clf.gp_.set_noise(relative * scale)
        result["by_noise"][f"{relative:g}"] = errors(clf, kernels, labels)
        show(f"noise {relative:g}", result["by_noise"][f"{relative:g}"])
    best = min(result["by_noise"], key=lambda key: result["by_noise"][key]["validation"])
    result["chosen"] = {"relative_noise": float(best)} | result["by_noise"][best]
    show("chosen", result["chosen"])
    result["seconds"] = time.perf_counter() - begun
    print(f"{'whole':16} {result['seconds']:.1f} s")
    return result


def show(name: str, values: dict[str, float]) -> None:
    cells = [f"{key} {value:.4g}" + (" %" if key in ("validation", "test") else "") for key, value in values.items()]
    print(f"{name:16} {', '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--validation", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--inducing", type=int, default=10_000)
    parser.add_argument("--choice", choices=("uncertain", "random"), default="uncertain")
    parser.add_argument("--network", choices=tuple(NETWORKS), default="resnet32")
    parser.add_argument("--shifts", action="store_true")
    parser.add_argument("--exact", action="store_true", help="fit the exact GP as well, for comparison")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = run(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
