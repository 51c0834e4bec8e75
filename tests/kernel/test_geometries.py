"""Every geometry that a layer can be given, on the engines, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import Conv, ConvTranspose, Dense, Kernel, Network, ReLU, Sequential, reference

# Geometries that were once wrong on an engine, without a word.
ONCE_WRONG: dict[str, tuple[Network, tuple[int, ...]]] = {
    "a window that starts behind the first place": (ConvTranspose(2, padding=2), (1, 6, 6)),
    "an output wider than the input": (Conv(3, padding=2), (1, 8, 8)),
    "much padding": (Conv(5, padding=3), (1, 28, 28)),
    "an even filter with padding on both sides": (Conv(2, padding=1), (1, 28, 28)),
    "one location that is summed more than once": (Conv(3, padding_mode="replicate"), (2, 1, 1)),
    "depth one, repeated": (Conv(3, padding_mode="replicate"), (1, 1, 5, 4)),
    "depth one, around": (Conv(3, padding_mode="circular"), (1, 1, 5, 4)),
}


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_geometries_that_were_once_wrong(name: str) -> None:
    layer, shape = ONCE_WRONG[name]
    net = Sequential(layer, ReLU(), Dense())
    X = np.random.default_rng(0).normal(size=(4, *shape))
    R = reference.kernel(net, X)
    K = Kernel(net, device="cpu", dtype="float64")(X)
    assert np.abs(K - R).max() <= 1e-12 * np.abs(R).max()
