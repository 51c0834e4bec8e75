"""Full conformal prediction compared with split conformal prediction on the same images; and active learning.

    python -m benchmarks.labels sets [--data digits clothing …] [--draws 30] [--sizes 50 100 200 500] [--noise loo]
    python -m benchmarks.labels next [--data digits clothing tissue] [--draws 5] [--steps 5 --each 10]

`sets`: in every draw, N images are labelled and 300 others are new. Full conformal prediction (`predict_set`) is fitted
to all N; split conformal prediction is fitted to half of them and takes its threshold from the other half. Both use the
same kernel and a coverage of 90 %; the output is how often the right class is in the set, and the mean size of a set.
The guarantee is exact for a given noise; `--noise loo` shows the effect of choosing the noise by the labels.

`next`: starting from 10 random labels, `--each` more are chosen at a time from a pool of 400 images: by `choose`, by
`most_uncertain`, or at random. The output is the error on 500 other images after each step, averaged over draws.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from cnngp import GPClassifier, Kernel, datasets, zoo
from cnngp.gp.selection import chosen

from .small_data import images

Matrix = NDArray[np.float64]

COVERAGE = 0.9


def whole(source: str, n: int) -> tuple[Matrix, NDArray[np.intp]]:
    """Kernel matrix of n images, and their classes as 0, 1, …"""
    data: datasets.Dataset = images(source, n, 1).take(n)
    K = Kernel(zoo.small_cnn())(data.X.reshape(-1, *data.image_shape)).astype(np.float64)
    return K, np.unique(data.y, return_inverse=True)[1]


def fitted(K: Matrix, y: NDArray[np.intp], rows: NDArray[np.intp], noise: float | str = "loo") -> GPClassifier:
    return GPClassifier(noise=noise).fit(K=K[np.ix_(rows, rows)], y=y[rows])


def split_set(
    K: Matrix, y: NDArray[np.intp], train: NDArray[np.intp], new: NDArray[np.intp], noise: float | str
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Prediction sets from half of the images, with the score 1 − P(class) and a threshold from the other half."""
    half, rest = train[: len(train) // 2], train[len(train) // 2 :]
    clf = fitted(K, y, half, noise)

    def scores(rows: NDArray[np.intp]) -> Matrix:
        found = np.ones((len(rows), y.max() + 1))
        P = clf.predict_proba(K=K[np.ix_(rows, half)], diagonal=K.diagonal()[rows])
        found[:, clf.classes_] -= P
        return found

    held = np.sort(scores(rest)[np.arange(len(rest)), y[rest]])
    at = math.ceil(COVERAGE * (len(held) + 1)) - 1
    threshold = held[at] if at < len(held) else np.inf
    return scores(new) <= threshold, np.arange(y.max() + 1)


def sets(source: str, draws: int, sizes: list[int], noise: float | str) -> None:
    K, y = whole(source, max(sizes) + 300)
    for n in sizes:
        found: list[tuple[float, float, float, float]] = []
        for seed in range(draws):
            rows = np.random.default_rng(seed).permutation(len(y))
            train, new = rows[:n], rows[n : n + 300]
            clf = fitted(K, y, train, noise)
            full = clf.predict_set(K=K[np.ix_(new, train)], diagonal=K.diagonal()[new], coverage=COVERAGE)
            half, classes = split_set(K, y, train, new, noise)
            found.append(
                (
                    float((full & (clf.classes_ == y[new, None])).any(1).mean()),
                    float(full.sum(1).mean()),
                    float((half & (classes == y[new, None])).any(1).mean()),
                    float(half.sum(1).mean()),
                )
            )
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0)
        print(
            f"{source:<12} N = {n:<4} full: right in {mean[0]:.1%} ± {spread[0]:.1%}, {mean[1]:.2f} classes;"
            f"  split: {mean[2]:.1%} ± {spread[2]:.1%}, {mean[3]:.2f} classes",
            flush=True,
        )


def next_labels(source: str, draws: int, steps: int, each: int) -> None:
    K, y = whole(source, 900)
    errors: dict[str, list[list[float]]] = {}
    for seed in range(draws):
        rows = np.random.default_rng(seed).permutation(len(y))
        pool, test = rows[:400], rows[400:]
        for way in ("choose", "most_uncertain", "random"):
            rng, labelled, error = np.random.default_rng(seed), list(pool[:10]), []
            for _ in range(steps):
                left = np.setdiff1d(pool, labelled)
                clf = fitted(K, y, np.array(labelled))
                to_pool = K[np.ix_(left, labelled)]
                if way == "choose":
                    at = chosen(each, K[np.ix_(left, left)], clf.gp_, to_pool).rows
                elif way == "most_uncertain":
                    P = clf.predict_proba(K=to_pool, diagonal=K.diagonal()[left])
                    at = np.argsort(np.sort(P, axis=1)[:, -1])[:each]
                else:
                    at = rng.choice(len(left), each, replace=False)
                labelled += list(left[at])
                clf = fitted(K, y, np.array(labelled))
                error.append(float((clf.predict(K=K[np.ix_(test, labelled)]) != y[test]).mean()))
            errors.setdefault(way, []).append(error)
    for way, found in errors.items():
        path = "  ".join(f"{10 + each * (k + 1)}: {e:.1%}" for k, e in enumerate(np.mean(found, axis=0)))
        print(f"{source:<12} {way:<15} {path}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sets", "next"))
    parser.add_argument("--data", nargs="+", default=None)
    parser.add_argument("--draws", type=int, default=None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--noise", default="0.01", help="loo, or a number")
    asked = parser.parse_args(arguments)
    if asked.what == "sets":
        for source in asked.data or ["digits", "clothing", "textures", "tissue", "signals"]:
            sets(source, asked.draws or 30, asked.sizes, asked.noise if asked.noise == "loo" else float(asked.noise))
    else:
        for source in asked.data or ["digits", "clothing", "tissue"]:
            next_labels(source, asked.draws or 5, asked.steps, asked.each)


if __name__ == "__main__":
    main()
