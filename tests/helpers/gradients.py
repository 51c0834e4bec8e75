"""What tests of gradients share, on a processor, on cards and on cards that are fakes.

Errors are those of the largest derivative: in float64 1e-10 of it, in float32 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Elementwise, Identity, Sequential, Sum
from cnngp.kernel.engines.cuda.engine import CudaGradient
from cnngp.kernel.program.reverse import reverse
from cnngp.network import Network
from helpers.kernels import random_images
from helpers.nonlinearities import DIFFERENTIABLE

from . import adjoint

CLOSE = {"float32": 1e-5, "float64": 1e-10}
EVERY: tuple[Network, ...] = DIFFERENTIABLE
Agrees = Callable[[Network, np.ndarray, "np.ndarray | None", np.ndarray, str], None]


def flat(X: np.ndarray | None, dtype: str) -> np.ndarray | None:
    return None if X is None else np.ascontiguousarray(X.reshape(*X.shape[:2], -1), dtype)


def found_by_cuda(
    net: Network, X: np.ndarray, Z: np.ndarray | None, G: np.ndarray, dtype: str, tile: int | None = None
) -> dict[str, float]:
    engine = CudaGradient(reverse(net, X.shape[1:]), dtype, tile=tile)
    return engine.gradient(flat(X, dtype), flat(Z, dtype), G).parameters  # type: ignore[arg-type]


def cuda_agrees(
    net: Network,
    X: np.ndarray,
    Z: np.ndarray | None,
    G: np.ndarray,
    dtype: str,
    tile: int | None = None,
    at_one: bool = False,
) -> None:
    """`at_one`: some patches may be multiples of each other. Then the derivatives by a bias of 0 are known less well,
    because θ moves with the square root of a rounding at correlation one (docs/gradients.md).
    """
    found, expected = found_by_cuda(net, X, Z, G, dtype, tile), adjoint.gradient(net, X, Z, G)
    size = max(map(abs, expected.values()))
    assert list(found) == list(net.parameters())
    for name, value in net.parameters().items():
        rough = at_one and name.endswith("bias_var") and value == 0.0
        close = {"float32": 1e-3, "float64": 1e-8}[dtype] if rough else CLOSE[dtype]
        assert found[name] == pytest.approx(expected[name], rel=0, abs=close * size), name


def check_nonlinearities(layers: Sequence[Network], dtype: str, agrees: Agrees) -> None:
    """Each in a branch of its own: beside a skip, and under a pool, where an image meets itself at two places."""
    plain = [
        Sequential(Sum(Identity(), Sequential(layer, Conv(2))), layer, Dense(1.5 + 0.1 * i, 0.2))
        for i, layer in enumerate(layers)
    ]
    under = [
        Sequential(layer, AvgPool(2), Conv(1, weight_var=0.7), layer, Dense(1.5 + 0.1 * i))
        for i, layer in enumerate(layers)
    ]
    rng = np.random.default_rng(0)
    # The oracle takes a quadrature for each number of an Elementwise.
    shape = (1, 2, 2) if any(isinstance(layer, Elementwise) for layer in layers) else (1, 3, 3)
    for branches in (plain, under):
        net = Sequential(Conv(2, bias_var=0.1), Sum(*branches) if len(layers) > 1 else branches[0])
        X, Z = random_images(3, shape), random_images(2, shape, seed=1)
        agrees(net, X, Z, rng.normal(size=(3, 2)), dtype)
        agrees(net, X, None, rng.normal(size=(3, 3)), dtype)
