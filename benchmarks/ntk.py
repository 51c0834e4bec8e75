"""Compare the GP's kernel with the tangent kernel as classifiers of MNIST: `python -m benchmarks.ntk`.

    python -m benchmarks.ntk --images 5000 --test 1000
    python -m benchmarks.ntk --networks "pooled" --images 1000

Both kernels of the largest training set come from one pass (`Kernel.both`), and the smaller sets are its first images.
Both are used for noise-free regression on ±1 targets, which predicts the class with the largest mean; test errors are
shown beside closed-form leave-one-out errors.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

from cnngp import AvgPool, Conv, Dense, Kernel, ReLU, Sequential, datasets, zoo
from cnngp.gp.exact import ExactGP
from cnngp.gp.linalg import JitterWarning
from cnngp.network import Network

NETWORKS: dict[str, Network] = {
    "resnet(32)": zoo.resnet(32),
    "convnet()": zoo.convnet(),
    "pooled": Sequential(
        *[Conv(3, weight_var=2.0), ReLU()] * 2,
        AvgPool(2),
        *[Conv(3, weight_var=2.0), ReLU()] * 2,
        AvgPool(2),
        *(Conv(3, weight_var=2.0), ReLU(), Dense()),
    ),
}
SIZES = (100, 200, 500, 1_000, 2_000, 5_000)


def errors(K: Any, K_test: Any, y: Any, y_test: Any) -> tuple[float, float]:
    """Test error, and leave-one-out error on the training images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        gp = ExactGP(K, 2.0 * np.eye(10)[y] - 1.0)
    left_out = np.asarray(gp.leave_one_out().mean)
    return float((np.asarray(gp.mean(K_test)).argmax(1) != y_test).mean()), float((left_out.argmax(1) != y).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--test", type=int, default=1_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    data = datasets.load(options.data).take(options.images, options.test)
    sizes = sorted({*(n for n in SIZES if n < len(data.X)), len(data.X)})
    for name in options.networks:
        kernel = Kernel(NETWORKS[name], options.device, options.dtype)
        kernel.both(data.X[:2])
        begun = time.perf_counter()
        own = kernel.both(data.X)
        across = kernel.both(data.X_test, data.X)
        seconds = time.perf_counter() - begun
        pairs = len(data.X) * (len(data.X) - 1) // 2 + len(data.X) * len(data.X_test)
        print(f"{name}: {pairs:,} pairs of both kernels in {seconds:.0f} s, {pairs / seconds:,.0f} pairs/s", flush=True)
        print("| images | GP, test | NTK, test | GP, leave-one-out | NTK, leave-one-out |\n|---|---|---|---|---|")
        for n in sizes:
            found = [
                errors(K[:n, :n].astype(np.float64), K_test[:, :n].astype(np.float64), data.y[:n], data.y_test)
                for K, K_test in zip(own, across, strict=True)
            ]
            cells = " | ".join(f"{100 * found[kind][which]:.2f} %" for which in (0, 1) for kind in (0, 1))
            print(f"| {n:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
