"""What tests of gradients share, on a processor, on cards and on cards that are fakes (`on` of kernel/conftest.py)."""

import numpy as np
import pytest

from cnngp import Kernel
from cnngp.kernel.engines.cuda.engine import CudaGradient
from cnngp.kernel.program.reverse import reverse
from cnngp.network import Network
from helpers import derivatives

CLOSE = {"float32": 1e-5, "float64": 1e-10}
"""Errors in units of the largest derivative."""


def flat(X: np.ndarray | None, dtype: str) -> np.ndarray | None:
    return None if X is None else np.ascontiguousarray(X.reshape(*X.shape[:2], -1), dtype)


def found_on(
    on: str, net: Network, X: np.ndarray, Z: np.ndarray | None, G: np.ndarray, dtype: str, tile: int | None = None
) -> dict[str, float]:
    if on == "cpu":
        return Kernel(net, device="cpu", dtype=dtype, check=False).gradient(X, Z, G)
    engine = CudaGradient(reverse(net, X.shape[1:]), dtype, tile=tile)
    return engine.gradient(flat(X, dtype), flat(Z, dtype), G).parameters  # type: ignore[arg-type]


def agrees(
    on: str,
    net: Network,
    X: np.ndarray,
    Z: np.ndarray | None,
    G: np.ndarray,
    dtype: str,
    tile: int | None = None,
    at_one: bool = False,
    expected: dict[str, float] | None = None,
) -> None:
    """`at_one`: some patches may be multiples of each other. Then the derivatives by a bias of 0 are known less well,
    because θ moves with the square root of a rounding at correlation one (docs/gradients.md).
    """
    found = found_on(on, net, X, Z, G, dtype, tile)
    expected = derivatives.gradient(net, X, Z, G) if expected is None else expected
    size = max(map(abs, expected.values()))
    assert list(found) == list(net.parameters())
    for name, value in net.parameters().items():
        rough = at_one and name.endswith("bias_var") and value == 0.0
        close = {"float32": 1e-3, "float64": 1e-8}[dtype] if rough else CLOSE[dtype]
        assert found[name] == pytest.approx(expected[name], rel=0, abs=close * size), name
