"""Iterations and time of the solver by number of images and noise:

    python -m benchmarks.solver [--data mnist] [--network small_cnn] [--images 300 600 1200] [--noises 0.1 0.01 0.001]

The noise is in units of the mean diagonal. Every method solves all ten outputs of the classification together; "cg"
reads the tiles of a store on disk, "cholesky" holds the matrix. The last column is the largest difference of
predictions on 200 test images from those of a float64 Cholesky factorisation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import Kernel, datasets, gram, zoo
from cnngp.gp import solve
from cnngp.gp.solving import ConvergenceWarning

NETWORKS = {"small_cnn": zoo.small_cnn, "resnet32": lambda: zoo.resnet(32)}


def measure(
    data: str = "digits",
    network: str = "small_cnn",
    images: Sequence[int] = (300, 600, 1200),
    noises: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4),
    ranks: Sequence[int | None] = (None, 0),
    device: Any = "auto",
    tile: int | None = None,
) -> list[dict[str, Any]]:
    """One row per number of images, noise and method; `ranks` are those of the preconditioner, None for the default."""
    kernel = Kernel(NETWORKS[network](), device=device)
    rows = []
    for n in images:
        part = datasets.load(data).take(n, 200)
        Y = 2.0 * np.eye(10)[part.y] - 1.0
        K_test = kernel(part.X_test, part.X, progress=False).astype(np.float64)
        with tempfile.TemporaryDirectory() as folder:
            K = gram(kernel, part.X, store=Path(folder) / "K.zarr", tile=tile, progress=False)
            held = K[:]
            scale = float(held.diagonal().mean())
            for noise in noises:
                exact = solve(held, Y, noise * scale, "cholesky", device=device, progress=False).weights
                ways: list[tuple[str, Any, dict[str, Any]]] = [("cholesky", held, {})]
                ways += [("cg", K, {"rank": rank}) for rank in ranks]
                for method, matrix, settings in ways:
                    start = time.perf_counter()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", ConvergenceWarning)  # the row contains it
                        found = solve(matrix, Y, noise * scale, method, device=device, progress=False, **settings)
                    rows.append(
                        {
                            "images": n,
                            "noise": noise,
                            "method": method if settings.get("rank") != 0 else "cg, no preconditioner",
                            "iterations": found.iterations,
                            "seconds": time.perf_counter() - start,
                            "residual": float(found.residuals.max()),
                            "converged": found.converged,
                            "difference": float(np.abs(K_test @ (found.weights - exact)).max()),
                        }
                    )
    return rows


def report(**settings: Any) -> list[dict[str, Any]]:
    """Run `measure` and print the rows."""
    rows = measure(**settings)
    print(f"{'images':>8} {'noise':>7}  {'method':24} {'iterations':>10} {'seconds':>8} {'residual':>9}  difference")
    for r in rows:
        mark = "" if r["converged"] else "  not converged"
        print(
            f"{r['images']:>8,} {r['noise']:>7g}  {r['method']:24} {r['iterations']:>10} {r['seconds']:>8.2f} "
            f"{r['residual']:>9.1e} {r['difference']:>10.1e}{mark}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--network", choices=tuple(NETWORKS), default="small_cnn")
    parser.add_argument("--images", type=int, nargs="+", default=[300, 600, 1200])
    parser.add_argument("--noises", type=float, nargs="+", default=[1e-1, 1e-2, 1e-3, 1e-4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tile", type=int)
    parser.add_argument("--json", type=Path)
    options = vars(parser.parse_args())
    target = options.pop("json")
    rows = report(**options)
    if target:
        target.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
