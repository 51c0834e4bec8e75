"""Generated networks: the CPU engine against the float64 reference, with random tile sizes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from cnngp import Kernel, gram
from cnngp.network import reference

from .campaign import REFUSED, SAME, expect, refused

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from helpers import generator

# Bounds on max|K − R| / max|R| for networks of ReLU, LeakyReLU and Abs, as in the tests.
TOLERANCES = {"float32": 1e-6, "float64": 1e-12}


class Networks:
    name = "a generated network against the float64 reference, in one piece and in tiles"
    promise = "no number"

    def __call__(self, rng: random.Random, folder: Path) -> str:
        pick = generator.Random(np.random.default_rng(rng.randrange(2**32)))
        network, shape = generator.network(pick, lambda: pick.among(generator.RELU_LIKE), 200)
        numbers = np.random.default_rng(rng.randrange(2**32))
        X = numbers.normal(size=(6, *shape)) * (numbers.random((6, 1, *shape[1:])) > 0.3)
        R = reference.kernel(network, X)
        for dtype, tolerance in TOLERANCES.items():
            kernel = Kernel(network, device="cpu", dtype=dtype, threads=1)
            K = refused(lambda kernel=kernel: kernel(X))
            if K is None:
                return REFUSED
            error = float(np.abs(K - R).max() / max(float(np.abs(R).max()), 1e-300))
            expect(error <= tolerance, f"an error of {error:.1e} in {dtype}: {network!r} on {shape}")
            expect(bool((K == K.T).all()), f"not symmetric: {network!r}")
            tiled = gram(kernel, X, store=folder / dtype, tile=rng.randint(1, 6), progress=False)
            expect(bool((tiled[:] == K).all()), f"other numbers in tiles: {network!r}")
        return SAME
