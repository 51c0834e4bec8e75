"""Kernels averaged over mirror images, against the definition with all four pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Kernel, ReLU, Sequential, augmentation, flip_averaged, zoo
from cnngp.common.arrays import DataError
from cnngp.gp.exact import ExactGP
from cnngp.matrix import flips

RNG = np.random.default_rng(0)
X, Z = RNG.random((23, 3, 8, 8)), RNG.random((7, 3, 8, 8))
NET = Sequential(Conv(3, bias_var=0.1), ReLU(), AvgPool(2), Conv(3), ReLU(), Dense())
KERNEL = Kernel(NET, device="cpu", dtype="float64")


def mirrored(A: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(A[..., ::-1])


def test_it_is_the_average_over_all_four() -> None:
    def average(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return sum(KERNEL(a, b) for a in (A, mirrored(A)) for b in (B, mirrored(B))) / 4

    np.testing.assert_allclose(flip_averaged(KERNEL, X, Z), average(X, Z), rtol=1e-12)
    K = flip_averaged(KERNEL, X)
    np.testing.assert_allclose(K, average(X, X), rtol=1e-12)
    np.testing.assert_array_equal(K, K.T)
    assert np.linalg.eigvalsh(K).min() > 0.0


def test_mirror_images_are_the_same_to_it_as_to_a_gp_of_both() -> None:
    """The GP of averaged kernels is that of all images and their copies, which have twice the noise."""
    Y = RNG.standard_normal((len(X), 2))
    averaged = ExactGP(flip_averaged(KERNEL, X), Y, noise=0.1).mean(flip_averaged(KERNEL, Z, X))
    X2, Y2 = augmentation.flipped(X, np.arange(len(X)))
    both = ExactGP(KERNEL(X2), Y[Y2], noise=0.2)
    for images in (Z, mirrored(Z)):
        np.testing.assert_allclose(both.mean(KERNEL(images, X2)), averaged, rtol=1e-8, atol=1e-10)


def test_tiles_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flips, "_ROWS", 2)  # ten stripes of two rows or three
    assert flips.flip_pairs(23) == 2 * (23 + 18 + 16 + 11 + 9 + 7 + 2) + 3 * (21 + 14 + 5)
    kernel = Kernel(NET, device="cpu")
    K = flip_averaged(kernel, X, store=tmp_path)
    np.testing.assert_allclose(K, flip_averaged(kernel, X), rtol=1e-6)
    places = {p.name for p in tmp_path.iterdir()}
    assert places == {"plain", *(f"mirrored-{i}" for i in range(10))}
    engine = kernel.engine_for((3, 8, 8))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a kernel was computed twice")

    monkeypatch.setattr(type(engine), "cross", never)
    np.testing.assert_array_equal(flip_averaged(kernel, X, store=tmp_path), K)


@pytest.mark.parametrize(
    "net",
    [
        Sequential(Conv(4), ReLU(), Dense()),
        Sequential(Conv(3, stride=2), ReLU(), Conv(3, bias_var=0.1), ReLU(), Dense()),
    ],
)
def test_networks_that_reach_to_one_side_are_refused(net: Sequential) -> None:
    with pytest.raises(DataError, match="not mirror-symmetric"):
        flip_averaged(Kernel(net, device="cpu"), X)
    blank_first = np.concatenate([np.zeros((3, 3, 8, 8)), X])  # three images that are mirror-symmetric themselves
    with pytest.raises(DataError, match="not mirror-symmetric"):
        flip_averaged(Kernel(net, device="cpu"), blank_first)


def test_the_published_networks_are_mirror_symmetric() -> None:
    small = RNG.random((3, 3, 8, 8))
    for depth in (5, 7, 10):
        K = flip_averaged(Kernel(zoo.myrtle(depth), device="cpu"), small)
        assert K.shape == (3, 3)
