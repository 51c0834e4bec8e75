"""Few labelled images: exact Gaussian processes compared with other usual methods on the same split.

    python -m benchmarks.small_data [--data mnist] [--sizes 100 500 1000 5000] [--methods …] [--device cuda] [--json F]

Each method sees only the first N training images; all are tested on the same test images. Times are wall clock for
training with model selection, and for predicting the test set. `--data things` are drawn shapes of ten classes in
colour (benchmarks/made.py), and benchmarks/drawn.py has thirteen more sets.

- GP, default: `GPClassifier()`, which chooses network, preparation of the images and noise by leave-one-out.
- GP, plain: the same without preparation of the images.
- GP, searched: the best of a few networks by the leave-one-out likelihood of the training images, noise likewise.
- GP, resnet32: the paper's network, without pooling and noise.
- RBF SVM: scikit-learn, C and gamma by 5-fold cross-validation over 3 × 3 values.
- RBF GP: scikit-learn's GaussianProcessRegressor on ±1 targets, length scale, amplitude and noise by maximum likelihood
  (on at most 1,000 images, because every step of its optimiser needs a Cholesky factorisation and a gradient).
- CNN, "CNN, shifts", "ResNet, tuned": trained networks of benchmarks/trained.py. The last two see images that are moved
  at random at every step, which the methods above do not.
- "GP, default + shifts", "GP, resnet32 + shifts": the second table. Each training image and its copies shifted by a
  pixel up, down, left and right, five times as many. "GP, pooled + warps": `zoo.pooled_cnn("medium")` and copies that
  are rotated by 12° either way, and wider and narrower by a fifth.
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

from cnngp import AvgPool, Conv, Dense, GPClassifier, LeakyReLU, ReLU, Sequential, datasets, zoo
from cnngp.datasets.augmentation import shifted, warped
from cnngp.gp import calibration
from cnngp.network import Network
from cnngp.network.names import default_names, network_by_name

from .drawn import SETS, drawn
from .made import made

Result = dict[str, Any]


def gp(
    data: datasets.Dataset,
    device: Any,
    network: Network | None = None,
    noise: Any = None,
    preparation: Any = None,
    groups: Any = None,
) -> Result:
    start = time.perf_counter()
    shape = data.image_shape  # must be given for signals
    clf = GPClassifier(network, noise=noise, device=device, preparation=preparation, input_shape=shape)
    clf.fit(data.X, data.y, groups=groups)
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
        "chosen": clf.recipe_.name,
    }


def _late_pool(convolutions: int, pool: int, activation: Any) -> Network:
    """`zoo.pooled_cnn("large")` with another depth, pool or nonlinearity."""
    conv = Conv(3, weight_var=2.0)
    first = [conv, activation, conv, activation, AvgPool(2)]
    return Sequential(*first, *[conv, activation] * convolutions, AvgPool(pool, stride=1), Dense())


def _candidates(shape: tuple[int, ...]) -> dict[str, Network]:
    """The first two networks of the default's candidates and, for images of about 28 × 28, variants of the first."""
    networks = {name: network_by_name(name) for name in default_names(shape)[:2]}
    found = {name: network for name, network in networks.items() if network is not None}
    if zoo.halvings_for(min(shape[1:])) == 1:
        found["5 convolutions"] = _late_pool(5, 5, ReLU())
        found["slope -0.3"] = _late_pool(3, 5, LeakyReLU(-0.3))
        found["pool 7"] = _late_pool(3, 7, ReLU())
    return found


_JUDGED_ON = 1000  # at most this many training images are used for the choice
_FEW = 1000  # with more images, networks may cost only 1.3 times as much as the first candidate, else ten times


def searched(data: datasets.Dataset, device: Any) -> Result:
    start = time.perf_counter()
    candidates = _candidates(data.image_shape)
    dearest = next(iter(candidates.values())).shapes(data.image_shape).elements
    most = dearest * (1.3 if len(data.X) > _FEW else 10.0)
    losses = {}
    for name, network in candidates.items():
        if network.shapes(data.image_shape).elements > most:
            continue
        X, y = data.X[:_JUDGED_ON], data.y[:_JUDGED_ON]
        clf = GPClassifier(network, noise="loo", device=device).fit(X, y)
        own = clf.loo_probabilities_[np.arange(len(y)), np.searchsorted(clf.classes_, y)]
        losses[name] = float(-np.log(np.maximum(own, 1e-300)).mean())
    best = min(losses, key=losses.__getitem__)
    searching = time.perf_counter() - start
    found = gp(data, device, candidates[best], "loo")
    return found | {"train_s": found["train_s"] + searching, "chosen": best, "loo_nll": losses}


def with_copies(
    data: datasets.Dataset, device: Any, network: Network | None = None, make: Callable[..., Any] = shifted
) -> Result:
    copies, y = make(data.X, data.y)
    many = datasets.Dataset(data.name, copies[:], y, data.X_test, data.y_test)
    return gp(many, device, network, "loo", groups=copies.groups)


def rbf_svm(data: datasets.Dataset, _: Any) -> Result:
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


def rbf_gp(data: datasets.Dataset, _: Any) -> Result:
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


TRAINING: dict[str, int] = {}
"""Steps and seeds of the trained networks, if they differ from the defaults of benchmarks/trained.py."""


def trained(name: str, **settings: Any) -> Callable[[datasets.Dataset, Any], Result]:
    """A method of benchmarks/trained.py, which needs PyTorch."""

    def run(data: datasets.Dataset, device: Any) -> Result:
        from . import trained as networks

        given = settings | TRAINING
        result: Result = getattr(networks, name)(data, "cuda" if device == "cuda" else "cpu", **given)
        return result

    return run


METHODS: dict[str, Callable[[datasets.Dataset, Any], Result]] = {
    "GP, default": gp,
    "GP, plain": lambda data, device: gp(data, device, preparation="plain"),
    "GP, searched": searched,
    "GP, resnet32": lambda data, device: gp(data, device, zoo.resnet(32)),
    "RBF SVM": rbf_svm,
    "RBF GP": rbf_gp,
    "CNN": trained("cnn"),
    "CNN, shifts": trained("cnn", moved=True),
    "ResNet, tuned": trained("residual"),
    "GP, default + shifts": with_copies,
    "GP, resnet32 + shifts": lambda data, device: with_copies(data, device, zoo.resnet(32)),
    "GP, pooled + warps": lambda data, device: with_copies(
        data, device, zoo.pooled_cnn("medium", zoo.halvings_for(min(data.image_shape[1:]))), warped
    ),
}


TRAINED = ("CNN", "CNN, shifts", "ResNet, tuned")


def _flat(data: datasets.Dataset) -> tuple[Any, Any]:
    return tuple(X.reshape(len(X), -1).astype(np.float64) for X in (data.X, data.X_test))


drawn_names = ", ".join(SETS)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        nargs="+",
        default=["mnist"],
        help="names or paths of `cnngp classify --data`, things, or " + drawn_names,
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 5000])
    parser.add_argument("--test", type=int, default=None, help="test images; all by default")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--device", default="auto", help="of the GPs and, where it is cuda, of the trained networks")
    parser.add_argument("--steps", type=int, default=None, help="of training; benchmarks/trained.py says how many")
    parser.add_argument("--seeds", type=int, default=None, help="of training, whose mean is shown")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file as well")
    asked = parser.parse_args(arguments)
    TRAINING.update({k: v for k in ("steps", "seeds") if (v := getattr(asked, k)) is not None})
    rows: list[Result] = []
    for source in asked.data:
        rows += judged(
            images(source, max(asked.sizes), asked.test), asked.sizes, asked.methods, asked.test, asked.device
        )
        if asked.json is not None:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def images(source: str, train: int, test: int | None) -> datasets.Dataset:
    if source in SETS:
        return drawn(source, train, test or 2000)
    return made(train, test or 2000, 28, 3) if source == "things" else datasets.load(source)


def judged(data: datasets.Dataset, sizes: list[int], methods: list[str], test: int | None, device: Any) -> list[Result]:
    print(f"{data!r} on {platform.machine()}")
    columns = f"{'error %':>8}  {'loo %':>6}  {'NLL':>7}  {'ECE':>7}  {'train s':>8}  {'test s':>8}"
    print(f"{'N':>6}  {'method':<22}  {columns}")
    rows: list[Result] = []
    for n in sizes:
        for name in methods:
            if len(data.image_shape) != 3 and name in TRAINED:
                continue  # networks for pictures
            r = METHODS[name](data.take(n, test), device)
            nll, ece = (f"{r[k]:.4f}" if k in r else "" for k in ("nll", "ece"))
            loo = f"{100 * r['loo_error']:.1f}" if "loo_error" in r else ""
            times = f"{r['train_s']:>8.1f}  {r['test_s']:>8.1f}  {r.get('chosen', '')}"
            print(f"{n:>6}  {name:<22}  {100 * r['error']:>8.2f}  {loo:>6}  {nll:>7}  {ece:>7}  {times}", flush=True)
            rows.append({"data": data.name, "n": n, "method": name, **r})
    return rows


if __name__ == "__main__":
    main()
