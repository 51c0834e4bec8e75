"""The paper's ResNet run on one card: `python -m benchmarks.paper_resnet FOLDER`, with MNIST's four files in FOLDER.

Kernels of 50,000 training images with themselves and with 10,000 validation and 10,000 test images, a float64 Cholesky
factorisation, and the errors: the paper reports 0.68 % and 0.84 %. The kernels are 2.25·10⁹ pairs.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import zoo
from cnngp.kernel.engines.cuda.engine import CudaEngine
from cnngp.kernel.program import lower


def read(folder: Path, name: str) -> np.ndarray:
    raw = gzip.decompress((folder / f"{name}.gz").read_bytes())
    axes = raw[3]
    shape = np.frombuffer(raw, ">u4", count=axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=50_000, help="fewer training images, for a quick try")
    options = parser.parse_args()
    import cupy
    from cupyx.scipy.linalg import solve_triangular

    def split(prefix: str) -> tuple[np.ndarray, np.ndarray]:
        x = read(options.folder, f"{prefix}-images-idx3-ubyte").reshape(-1, 1, 784)
        return (x / 255).astype(np.float32), read(options.folder, f"{prefix}-labels-idx1-ubyte")

    (x, y), (x_test, y_test) = split("train"), split("t10k")
    # The authors' split: rows 5000 to 54999 train, 55000 to 59999 and 0 to 4999 validate.
    validation = np.r_[55_000:60_000, 0:5_000]
    train = np.r_[5_000 : 5_000 + options.train]

    start = time.perf_counter()
    engine = CudaEngine(lower(zoo.resnet(32), (1, 28, 28)), "float32", devices=[0])
    _ = engine._cards[0].functions
    print(f"compile            {time.perf_counter() - start:8.2f} s")

    def timed(what: str, f: Any) -> Any:
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        result = f()
        cupy.cuda.Device().synchronize()
        seconds[what] = time.perf_counter() - begin
        print(f"{what:18} {seconds[what]:8.2f} s", flush=True)
        return result

    seconds: dict[str, float] = {}
    X = x[train]
    K = timed("K(train, train)", lambda: engine.symmetric(X, "cupy"))
    cross = {
        "validation": timed("K(validation, …)", lambda: engine.cross(x[validation], X, "cupy")),
        "test": timed("K(test, …)", lambda: engine.cross(x_test, X, "cupy")),
    }
    kernels = sum(seconds.values())
    n = len(X)
    pairs = n * (n - 1) // 2 + sum(len(k) for k in cross.values()) * n
    print(f"kernels            {kernels:8.2f} s, {pairs / kernels / 1e6:.1f} million pairs/s")

    targets = cupy.where(cupy.asarray(y[train])[:, None] == cupy.arange(10), 1.0, -1.0)

    def solve() -> Any:
        L = cupy.linalg.cholesky(K.astype(cupy.float64))
        half = solve_triangular(L, targets, lower=True)
        return solve_triangular(L, half, lower=True, trans="T")

    weights = timed("Cholesky, solve", solve)
    for name, labels in (("validation", y[validation]), ("test", y_test)):
        found = cupy.argmax(cross[name].astype(cupy.float64) @ weights, axis=1).get()
        print(f"{name} error   {100 * float(np.mean(found != labels)):.2f} %")


if __name__ == "__main__":
    main()
