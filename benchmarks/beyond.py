"""Exact GPs on MNIST with preprocessed images: `python -m benchmarks.beyond --data FOLDER`.

Nothing is trained. Images are deskewed by their moments, and their gradients are split into eight orientations and
blurred, as in descriptors like SIFT; the eight maps are the input channels of the network. A few networks and
preparations are compared on the validation images with few training images; the best is fitted once with the paper's
50,000 and once with all 60,000, and only then are the test images used.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform, gaussian_filter

from cnngp import Conv, Dense, Kernel, LeakyReLU, Sequential, zoo
from cnngp.network import Network
from cnngp.paper.setting import Setting
from cnngp.paper.table1 import SplitImages, network_errors
from cnngp.search.scoring import Problem, score

Array = NDArray[np.float32]
_CHUNK = 500


def deskewed(X: Array) -> Array:
    """Images centred and sheared along their rows, so that the two axes are uncorrelated."""
    rows, columns = np.mgrid[: X.shape[2], : X.shape[3]]
    middle = (np.array(X.shape[2:]) - 1) / 2
    out = np.empty_like(X)
    for image, to in zip(X[:, 0], out[:, 0], strict=True):
        p = image / max(float(image.sum()), 1e-6)
        y, x = float((p * rows).sum()), float((p * columns).sum())
        shear = float((p * (rows - y) * (columns - x)).sum()) / max(float((p * (rows - y) ** 2).sum()), 1e-6)
        A = np.array([[1.0, 0.0], [shear, 1.0]])
        to[:] = affine_transform(image, A, offset=np.array([y, x]) - A @ middle, order=1)
    return out


def orientations(X: Array, blur: float, directions: int = 8) -> Array:
    """(N, directions, H, W): the positive part of the gradient along each direction, blurred."""

    def derivative(*order: int) -> Any:
        return gaussian_filter(X, (0, 0, 0.7, 0.7), order=(0, 0, *order))

    dy, dx = derivative(1, 0), derivative(0, 1)
    angles = 2 * np.pi * np.arange(directions) / directions
    maps = np.concatenate([np.maximum(np.cos(a) * dx + np.sin(a) * dy, 0.0) for a in angles], axis=1)
    return np.asarray(gaussian_filter(maps, (0, 0, blur, blur)), np.float32)


PREPARATIONS: dict[str, Callable[[Array], Array]] = {
    "pixels": lambda X: X,
    "deskewed": deskewed,
    "orientations, blur 2": lambda X: orientations(X, 2.0),
    "deskewed, orientations, blur 1": lambda X: orientations(deskewed(X), 1.0),
    "deskewed, orientations, blur 1.5": lambda X: orientations(deskewed(X), 1.5),
    "deskewed, orientations, blur 2": lambda X: orientations(deskewed(X), 2.0),
    "deskewed, orientations, blur 2.5": lambda X: orientations(deskewed(X), 2.5),
}


def leaky_cnn(slope: float = -0.4, bias: float = 1e-3) -> Network:
    """Seven convolutions whose filters grow as the maps shrink; the weights preserve the variance between layers."""
    w, f = 2.0 / (1.0 + slope**2), LeakyReLU(slope)
    layers: list[Network] = [Conv(3, weight_var=10.0, bias_var=bias)]
    for size, stride in ((3, 1), (3, 1), (5, 2), (5, 1), (7, 2), (7, 1)):
        layers += [f, Conv(size, stride, weight_var=w, bias_var=bias)]
    return Sequential(*layers, f, Dense(w, bias), f, Dense(w, bias))


NETWORKS = {"resnet(32)": lambda: zoo.resnet(32), "leaky_cnn()": leaky_cnn}


def prepared(f: Callable[[Array], Array], X: Array) -> Array:
    with ThreadPoolExecutor() as pool:
        return np.concatenate(list(pool.map(f, [X[i : i + _CHUNK] for i in range(0, len(X), _CHUNK)])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder above mnist/; CNNGP_DATA by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--choose-on", type=int, default=10_000, help="training images for the choice")
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--validation", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    setting = Setting(Path(), device=options.device, data=options.data)
    images = SplitImages.of(setting.dataset("mnist", "paper"), options.train, options.validation, options.test)
    n, few = images.train, slice(0, min(options.choose_on, images.train))
    y = images.y.astype(np.intp)
    choice = []
    for preparation, f in PREPARATIONS.items():
        X, V = prepared(f, images.X[few]), prepared(f, images.X[n:])
        for name, make in NETWORKS.items():
            found = score(make(), Problem("mnist", X, y[few], V, y[n:], 10, options.device))
            choice.append({"network": name, "preparation": preparation, "validation": 100 * found.error})
            print(f"{name:12} {preparation:34} validation {100 * found.error:.2f} %", flush=True)
    best = min(choice, key=lambda c: float(c["validation"]))
    network, f = NETWORKS[best["network"]](), PREPARATIONS[best["preparation"]]
    chosen = SplitImages(images.name, prepared(f, images.X), images.y, n, prepared(f, images.X_test), images.y_test)
    values = network_errors(setting, Kernel(network, options.device), chosen, "beyond")
    print(f"chosen: {best['network']}, {best['preparation']}, fitted with {n:,} and {len(images.X):,} images")
    print(f"validation {values['validation_error']:.2f} %, leave-one-out {values['loo_error']:.2f} %")
    print(f"test {values['test_error']:.2f} % with {n:,} images, {values['all']['test_error']:.2f} % with all")
    seconds = time.perf_counter() - began
    print(f"{seconds:.0f} s")
    if options.json:
        result = {"choice": choice, "choose_on": few.stop, "chosen": best, "values": values, "seconds": seconds}
        options.json.write_text(json.dumps(result | {"network": network.to_json()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
