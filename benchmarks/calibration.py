"""Calibration: compare ways to turn a GP's latent means and variances into class probabilities.

    python -m benchmarks.calibration [--data mnist] [--sizes 100 500 1000 2000] [--test 10000]
    python -m benchmarks.calibration --flipped 0 0.1 0.3 --data digits clothing textures --sizes 100 250 --test 500

One kernel matrix serves all sizes. If a method has a temperature T, it is chosen on the leave-one-out predictions of
the training images; scores are for the test images.

With `--flipped`, this share of the training and test labels is redrawn at random, and `GPClassifier()` is scored with a
temperature alone, and also with the share ε of random labels that it chooses itself. `--data` also takes the sets of
benchmarks/drawn.py and benchmarks/made.py.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cnngp import GPClassifier, Kernel, datasets, zoo
from cnngp.estimators.labels import Calibration, at_best_temperature, moderated_scores, probabilities
from cnngp.gp import calibration
from cnngp.gp.calibration import probability_of_largest, softmax
from cnngp.gp.exact import ExactGP
from cnngp.gp.objectives import minimised

from .drawn import SETS, drawn
from .made import made

Array = NDArray[np.float64]

# (mean (M, C), standard deviation (M,), T) -> probabilities (M, C)
METHODS: dict[str, Callable[[Array, Array, float], Array]] = {
    "largest, no T": lambda m, s, t: probability_of_largest(m, s),
    "largest, s·T": lambda m, s, t: probability_of_largest(m, s * t),
    "largest, s = T": lambda m, s, t: probability_of_largest(m, np.full_like(s, t)),
    "softmax m/T": lambda m, s, t: softmax(m / t),
    "softmax m/(T·s)": lambda m, s, t: softmax(m / (t * s[:, None])),
    "softmax m/(T·√(1+s²))": lambda m, s, t: softmax(m / (t * np.sqrt(1.0 + s**2)[:, None])),
}


def best_temperature(probabilities: Callable[[float], Array], labels: NDArray[np.intp]) -> float:
    """The temperature T whose `probabilities(T)` fit these labels best."""

    def loss(log_t: float) -> float:
        return calibration.smoothed_loss(probabilities(math.exp(log_t)), labels)

    return math.exp(minimised(loss, math.log(1e-3), math.log(1e3), points=25, tolerance=1e-3).at)


def compare_methods(name: str, sizes: list[int], test: int | None) -> None:
    data = datasets.load(name).take(max(sizes), test)
    kernel = Kernel(zoo.resnet(32))
    K, K_test, diagonal = kernel(data.X), kernel(data.X_test, data.X), kernel.diag(data.X_test)
    classes, codes = np.unique(data.y, return_inverse=True)
    codes_test = np.searchsorted(classes, data.y_test)
    print(f"{'N':>5}  {'method':<22}  {'T':>6}  {'NLL':>7}  {'ECE':>7}  {'Brier':>7}")
    for n in sizes:
        gp = ExactGP(K[:n, :n], 2.0 * np.eye(len(classes))[codes[:n]] - 1.0)
        mean, std = gp.mean(K_test[:, :n]), np.sqrt(gp.variance(K_test[:, :n], diagonal))
        loo_mean, loo_variance = gp.leave_one_out().moments
        for label, method in METHODS.items():
            t = 1.0
            if label != "largest, no T":
                t = best_temperature(lambda t: method(loo_mean, np.sqrt(loo_variance), t), codes[:n])  # noqa: B023
            s = calibration.scores(method(mean, std, t), codes_test)
            print(f"{n:>5}  {label:<22}  {t:>6.3f}  {s.nll:>7.4f}  {s.ece:>7.4f}  {s.brier:>7.4f}", flush=True)


def loaded(name: str, train: int, test: int) -> datasets.Dataset:
    if name == "things":
        return made(train, test)
    return drawn(name, train, test) if name in SETS else datasets.load(name).take(train, test)


def compare_noise(names: list[str], sizes: list[int], test: int, shares: list[float]) -> None:
    print("set              N flipped    error  T alone: NLL    ECE  with ε: NLL    ECE  ε")
    for name in names:
        data = loaded(name, max(sizes), test)
        classes = np.unique(data.y)
        for n in sizes:
            for share in shares:
                rng = np.random.default_rng(0)
                y, y_test = (
                    np.where(rng.random(len(labels)) < share, rng.choice(classes, len(labels)), labels)
                    for labels in (data.y[:n], data.y_test)
                )
                clf = GPClassifier(input_shape=data.image_shape, device="cpu").fit(data.X[:n], y)
                codes = np.searchsorted(clf.classes_, y_test)
                targets = np.asarray(clf.gp_.leave_one_out().targets)
                mean, variance = clf.gp_.leave_one_out().moments
                moderated = clf._calibration.moderated
                scores = moderated_scores(clf._coding, mean, variance if moderated else np.zeros(len(mean)))
                alone = Calibration(at_best_temperature(scores, clf._coding.codes(targets))[0], 0.0, moderated)
                moments = clf._moments(data.X_test, None, None)
                was = calibration.scores(probabilities(clf._coding, *moments, alone), codes)
                now = calibration.scores(clf.predict_proba(data.X_test), codes)
                print(
                    f"{name:<13} {n:>4} {share:>7}  {100 * now.error:>5.1f} %  {was.nll:>12.3f} {was.ece:>6.3f}  "
                    f"{now.nll:>11.3f} {now.ece:>6.3f}  {clf.label_noise_:.3f}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 2000])
    parser.add_argument("--test", type=int, default=None, help="test images; all by default, or 500 with --flipped")
    parser.add_argument("--flipped", type=float, nargs="+", help="shares of labels that are drawn anew")
    options = parser.parse_args()
    if options.flipped is not None:
        compare_noise(options.data, options.sizes, options.test or 500, options.flipped)
    else:
        for name in options.data:
            compare_methods(name, options.sizes, options.test)


if __name__ == "__main__":
    main()
