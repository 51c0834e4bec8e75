"""A layer norm over all locations: the one layer whose table takes a mean over a map, and that cards refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Identity, Kernel, LayerNorm, NetworkError, ReLU, Sequential, Sum
from cnngp.kernel.making import make_engine, make_gradient
from cnngp.network import reference
from helpers.differences import by_differences
from helpers.kernels import random_images

ALL, NORM = LayerNorm("all"), LayerNorm("all", eps=0.1)
C, D = Conv(3, bias_var=0.1), Dense(bias_var=0.2)
NETWORKS = {  # with biases, so that no two patches have correlation one, where slopes are those of a square root
    "before a ReLU": (Sequential(C, NORM, ReLU(), D), (2, 5, 4)),
    "before a sum of boxes": (Sequential(C, NORM, Conv((2, 3), stride=2, bias_var=0.2), D), (1, 6, 5)),
    "in a branch": (Sequential(C, Sum(C, Sequential(ALL, C)), ReLU(), D), (1, 4, 4)),
    "under a pool": (Sequential(C, NORM, ReLU(), AvgPool(2), C, ALL, ReLU(), D), (2, 4, 6)),
    "of volumes": (Sequential(C, NORM, ReLU(), Conv(2, padding="valid", bias_var=0.1), NORM, D), (1, 3, 4, 3)),
    "of features": (Sequential(D, NORM, ReLU(), D), (7,)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_matrices_are_those_of_the_reference(name: str, dtype: str, kind: Any) -> None:
    net, shape = NETWORKS[name]
    X, Z = random_images(5, shape), random_images(20, shape, seed=1)
    X[0] = 0.0
    kernel = Kernel(net, device="cpu", dtype=dtype, kind=kind, check=False)
    for other in (None, Z):
        R = reference.kernel(net, X, other, kind)
        assert np.abs(kernel(X, other) - R).max() <= {"float32": 1e-6, "float64": 1e-12}[dtype] * np.abs(R).max()


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_reference(name: str) -> None:
    net, shape = NETWORKS[name]
    rng, kernel = np.random.default_rng(0), Kernel(net, device="cpu", dtype="float64", check=False)
    X, Z = random_images(3, shape).astype(np.float64), random_images(2, shape, seed=1).astype(np.float64)
    for other, G in ((None, rng.normal(size=(3, 3))), (Z, rng.normal(size=(3, 2)))):
        expected = by_differences(net, X, other, G)
        assert kernel.gradient(X, other, G) == pytest.approx(expected, rel=1e-6, abs=1e-7)
        found = kernel.gradient(X, other, G, wrt="images")
        for _ in range(4):
            step = np.zeros_like(X)
            step[tuple(rng.integers(n) for n in X.shape)] = 1e-5
            up, down = ((G * reference.kernel(net, X + moved, other)).sum() for moved in (step, -step))
            of_x = found if other is None else found[0]
            assert of_x[step > 0] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-7)


def test_cards_refuse_it_by_its_place() -> None:
    for make in (lambda: make_engine(*NETWORKS["under a pool"], "nngp", "cuda", "float32"),
                 lambda: make_gradient(*NETWORKS["under a pool"], False, "cuda", "float32")):  # fmt: skip
        with pytest.raises(NetworkError, match=r"layers\[1\]: LayerNorm\(over='all', eps=0.1\) runs on the CPU alone"):
            make()


def test_a_skip_beside_it_is_no_branch_of_its_own() -> None:
    with pytest.raises(NetworkError, match="2 paths without weights"):
        Sequential(Conv(3), Sum(Identity(), NORM))
