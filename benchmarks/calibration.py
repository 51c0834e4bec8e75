"""Which probabilities are honest: ways to turn a GP's latent means and variances into class probabilities.

    python -m benchmarks.calibration [--data mnist] [--sizes 100 500 1000 2000] [--test 10000]

One kernel matrix serves all sizes. A temperature T, where a method has one, is chosen on the leave-one-out predictions
of the training images; the figures are of the test images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cnngp import Kernel, datasets, zoo
from cnngp.gp import calibration
from cnngp.gp.calibration import probability_of_largest, softmax
from cnngp.gp.exact import ExactGP

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 2000])
    parser.add_argument("--test", type=int, default=None, help="test images; all by default")
    options = parser.parse_args()
    data = datasets.load(options.data).take(max(options.sizes), options.test)
    kernel = Kernel(zoo.resnet(32))
    K, K_test, diagonal = kernel(data.X), kernel(data.X_test, data.X), kernel.diag(data.X_test)
    classes, codes = np.unique(data.y, return_inverse=True)
    codes_test = np.searchsorted(classes, data.y_test)
    print(f"{'N':>5}  {'method':<22}  {'T':>6}  {'NLL':>7}  {'ECE':>7}  {'Brier':>7}")
    for n in options.sizes:
        gp = ExactGP(K[:n, :n], 2.0 * np.eye(len(classes))[codes[:n]] - 1.0)
        mean, std = gp.mean(K_test[:, :n]), np.sqrt(gp.variance(K_test[:, :n], diagonal))
        loo_mean, loo_variance = gp.leave_one_out()
        for name, method in METHODS.items():
            t = 1.0
            if name != "largest, no T":
                t = calibration.fit_temperature(lambda t: method(loo_mean, np.sqrt(loo_variance), t), codes[:n])  # noqa: B023
            s = calibration.scores(method(mean, std, t), codes_test)
            print(f"{n:>5}  {name:<22}  {t:>6.3f}  {s.nll:>7.4f}  {s.ece:>7.4f}  {s.brier:>7.4f}", flush=True)


if __name__ == "__main__":
    main()
