"""Compare pooled networks: cost per pair of images, and accuracy of the exact GP with few labels.

    python -m benchmarks.recipes [--device cuda] [--networks small,medium] [--sizes 100 500 1000 5000] [--json FILE]

Each network is fitted to the first N images of MNIST's training set; its leave-one-out error, by which one would
choose, is shown beside the error on all 10,000 test images. Then the same networks are fitted to digits that are
rotated, scaled, shifted and laid over a texture (`hard`), on which no network here was chosen. The noise is chosen by
leave-one-out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import GPClassifier, Kernel, datasets, zoo
from cnngp.gp import calibration
from cnngp.network.layers import Nonlinearity
from cnngp.network.placed import placed

NETWORKS = {
    "resnet32": zoo.resnet(32),
    "lenet": zoo.lenet(),
    "small": zoo.pooled_cnn("small"),
    "medium": zoo.pooled_cnn("medium"),
    "large": zoo.pooled_cnn("large"),
    "small-exp": zoo.pooled_cnn("small", nonlinearity="exp"),
    "medium-exp": zoo.pooled_cnn("medium", nonlinearity="exp"),
    "large-exp": zoo.pooled_cnn("large", nonlinearity="exp"),
}


def hard(X: np.ndarray, seed: int) -> np.ndarray:
    """Digits rotated by up to 34°, scaled by up to a quarter, shifted by up to two pixels, over a random texture."""
    from scipy.ndimage import affine_transform, gaussian_filter

    rng = np.random.default_rng(seed)
    out = np.empty_like(X)
    centre = np.array([13.5, 13.5])
    for i, (image,) in enumerate(X):
        turn, scale = rng.uniform(-0.6, 0.6), rng.uniform(0.75, 1.25)
        A = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) / scale
        digit = affine_transform(image, A, offset=centre - A @ (centre + rng.uniform(-2, 2, 2)), order=1)
        texture = gaussian_filter(rng.standard_normal(image.shape), rng.uniform(0.7, 2.0))
        texture = 0.6 * (texture - texture.min()) / np.ptp(texture)
        out[i, 0] = np.maximum(digit, texture * (1.0 - digit))
    return out


def run(name: str, set_name: str, data: datasets.Dataset, sizes: list[int], device: Any) -> list[dict[str, Any]]:
    net = NETWORKS[name]
    kernel = Kernel(net, device=device)
    n = max(sizes)
    kernel(data.X[:32])  # compiled before the clock starts
    start = time.perf_counter()
    K, K_test, diagonal = kernel(data.X[:n]), kernel(data.X_test, data.X[:n]), kernel.diag(data.X_test)
    rate = (n * (n - 1) // 2 + n * len(data.X_test)) / (time.perf_counter() - start)
    elements = sum(p.elements for p in placed(net, data.X.shape[2:]).walk() if isinstance(p.layer, Nonlinearity))
    rows = []
    for m in sizes:
        clf = GPClassifier(net, noise="loo", device=device).fit(K=K[:m, :m], y=data.y[:m])
        P = clf.predict_proba(K=K_test[:, :m], diagonal=diagonal)
        scores = calibration.scores(P, np.searchsorted(clf.classes_, data.y_test))
        row = {"data": set_name, "network": name, "elements": elements, "pairs_per_s": round(rate), "N": m}
        row |= {"loo_error": clf.loo_error_, "error": scores.error, "nll": scores.nll, "ece": scores.ece}
        rows.append(row)
        print(
            f"{set_name:6} {name:9} {elements:8,} elements {rate / 1e6:8.3f} M pairs/s  N = {m:5,}  leave-one-out "
            f"{clf.loo_error_:6.2%}  test {scores.error:6.2%}  NLL {scores.nll:.4f}  ECE {scores.ece:.4f}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 5000])
    parser.add_argument("--hard-sizes", type=int, nargs="*", default=[500, 2000])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    mnist = datasets.mnist()
    rows: list[dict[str, Any]] = []
    for name in given.networks.split(","):
        rows += run(name, "mnist", mnist, given.sizes, given.device)
    if given.hard_sizes:
        n, kept = max(given.hard_sizes), slice(20_000, 20_000 + max(given.hard_sizes))
        textured = datasets.Dataset(
            "hard", hard(mnist.X[kept], 0), mnist.y[kept], hard(mnist.X_test[:n], 1), mnist.y_test[:n]
        )
        for name in given.networks.split(","):
            rows += run(name, "hard", textured, given.hard_sizes, given.device)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
