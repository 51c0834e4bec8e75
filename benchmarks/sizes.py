"""Compare pooled networks by image size, with leave-one-out errors and errors on held-out training images.

    python -m benchmarks.sizes [--sets digits-100 things-16 …] [--networks "3 conv, pool 5" …]

No test images are used. Sets of 8 × 8: scikit-learn's digits, the same shifted by up to a pixel, those with a random
texture on top, and drawn shapes (benchmarks/made.py) in grey and in colour. Larger sets: MNIST at half and at twice its
size, and shapes of 16 × 16. `zoo.halvings_for` and the default network are based on it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, GPClassifier, ReLU, Sequential, datasets, zoo
from cnngp.gp import calibration
from cnngp.network import Network

from .made import things

Split = tuple[Any, Any, Any, Any]  # images and labels to fit, held-out images and labels


def plain(convolutions: int, pool: int | None) -> Network:
    """Convolutions and a pool of stride 1, or a global pool for None, without halving the size."""
    last = GlobalAvgPool() if pool is None else AvgPool(pool, stride=1)
    return Sequential(*[Conv(3, weight_var=2.0), ReLU()] * convolutions, last, Dense())


NETWORKS = {
    "small_cnn": zoo.small_cnn(),
    "resnet32": zoo.resnet(32),
    **{f"{d} conv, pool {p}": plain(d, p) for d in (2, 3, 5) for p in (2, 3, 4, 5, 7)},
    "3 conv, global pool": plain(3, None),
    **{f"halved {h}, {size}": zoo.pooled_cnn(size, h) for h in (1, 2) for size in ("small", "medium", "large")},
}


def _shifted(X: Any, rng: np.random.Generator) -> Any:
    out, padded = np.zeros_like(X), np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for i in range(len(X)):
        top, left = rng.integers(0, 3, 2)
        out[i] = padded[i, :, top : top + X.shape[2], left : left + X.shape[3]]
    return out


def small_sets() -> dict[str, Split]:
    digits, rng = datasets.digits(), np.random.default_rng(0)
    moved = _shifted(digits.X, rng)
    textured = np.clip(moved + 0.25 * rng.random(moved.shape).astype(np.float32), 0, 1)

    def of(X: Any, n: int) -> Split:
        return X[:n], digits.y[:n], X[400:], digits.y[400:]

    (X, y), (X_colour, y_colour) = things(1000, 8, 1, 0, 0.03), things(400, 8, 3, 3, 0.03)
    return {
        "digits-100": of(digits.X, 100),
        "digits-400": of(digits.X, 400),
        "shifted-300": of(moved, 300),
        "textured-300": of(textured, 300),
        "things-400": (X[:400], y[:400], *things(600, 8, 1, 7, 0.03)),
        "colour-400": (X_colour, y_colour, *things(600, 8, 3, 9, 0.03)),
    }


def other_sets() -> dict[str, Split]:
    mnist = datasets.mnist()

    def half(X: Any) -> Any:
        return X.reshape(len(X), 1, 14, 2, 14, 2).mean((3, 5))

    def twice(X: Any) -> Any:
        return np.kron(X, np.ones((1, 1, 2, 2), np.float32))

    def of(change: Any, n: int, m: int) -> Split:
        rows = slice(30_000, 30_000 + m)
        return change(mnist.X[:n]), mnist.y[:n], change(mnist.X[rows]), mnist.y[rows]

    return {
        "mnist-14": of(half, 300, 500),
        "mnist-56": of(twice, 100, 150),
        "things-16": (*things(300, 16, 1, 0), *things(500, 16, 1, 7)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=None)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    sets = small_sets() | (other_sets() if given.sets is None or set(given.sets) - set(small_sets()) else {})
    for set_name in given.sets or sets:
        X, y, X_held, y_held = sets[set_name]
        for name in given.networks:
            net, start = NETWORKS[name], time.perf_counter()
            if min(X.shape[2:]) < 14 and name.startswith("halved"):
                continue  # the maps are too small for its pool
            clf = GPClassifier(net, noise="loo", device=given.device).fit(X, y)
            P = clf.predict_proba(X_held)
            scores = calibration.scores(P, np.searchsorted(clf.classes_, y_held))
            print(
                f"{set_name:13} {name:20} {net.shapes(X.shape[1:]).elements:9,} a pair  leave-one-out "
                f"{clf.loo_error_:6.1%}  held out {scores.error:6.1%}  NLL {scores.nll:.3f}  "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
