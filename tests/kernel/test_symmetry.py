"""Kernels averaged over mirror images and turns, against the definition with all pairs of them."""

from pathlib import Path

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Kernel, ReLU, Sequential, gram, zoo
from cnngp.common.arrays import DataError
from cnngp.common.errors import StoreError
from cnngp.kernel import symmetry as symmetries
from cnngp.kernel.symmetry import SymmetricEngine, maps_of

RNG = np.random.default_rng(0)
X, Z = RNG.random((11, 3, 8, 8)), RNG.random((4, 3, 8, 8))
POOLED = Sequential(Conv(3, bias_var=0.1), ReLU(), AvgPool(2), Conv(3), ReLU(), Dense())
ONE_SIDED = Sequential(Conv(3, stride=2, bias_var=0.1), ReLU(), Conv(2), ReLU(), Dense())


@pytest.mark.parametrize("symmetry", ["flip", "d4"])
@pytest.mark.parametrize("net", [POOLED, ONE_SIDED], ids=["commutes", "does not"])
def test_it_is_the_average_over_all_pairs(net: Sequential, symmetry: symmetries.Symmetry) -> None:
    plain = Kernel(net, device="cpu", dtype="float64")
    kernel = Kernel(net, device="cpu", dtype="float64", symmetry=symmetry)
    engine = kernel.engine_for((3, 8, 8))
    assert isinstance(engine, SymmetricEngine)
    assert engine.commutes == (net is POOLED)
    maps = maps_of(symmetry)

    def average(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        pairs = [plain(np.ascontiguousarray(g(A)), np.ascontiguousarray(h(B))) for g in maps for h in maps]
        return np.mean(pairs, axis=0)

    np.testing.assert_allclose(kernel(X, Z), average(X, Z), rtol=1e-12)
    K = kernel(X)
    np.testing.assert_allclose(K, average(X, X), rtol=1e-12)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(K.diagonal(), kernel.diag(X))
    np.testing.assert_array_equal(kernel(X[2:7])[0], K[2, 2:7])
    turned = np.ascontiguousarray(maps[-1](Z))
    np.testing.assert_allclose(kernel(X, turned), kernel(X, Z), rtol=1e-12)


def test_maps_are_the_eight_symmetries_of_a_square() -> None:
    square = np.arange(9.0).reshape(1, 1, 3, 3)
    seen = {g(square).tobytes() for g in maps_of("d4")}
    assert len(seen) == 8
    assert {h(g(square)).tobytes() for g in maps_of("d4") for h in maps_of("d4")} == seen


def test_stripes_make_the_same_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(POOLED, device="cpu", symmetry="flip")
    whole = kernel(X)
    monkeypatch.setattr(symmetries, "_ROWS", 2)
    np.testing.assert_array_equal(kernel(X), whole)


def test_a_store_knows_the_symmetry(tmp_path: Path) -> None:
    kernel = Kernel(POOLED, device="cpu", symmetry="flip")
    K = gram(kernel, X, store=tmp_path / "K", tile=4)
    np.testing.assert_array_equal(K[:], kernel(X))
    for other in (Kernel(POOLED, device="cpu"), Kernel(POOLED, device="cpu", symmetry="d4")):
        with pytest.raises((StoreError, ValueError), match="the kernel"):
            gram(other, X, store=tmp_path / "K")


def test_what_has_no_such_symmetry_is_refused() -> None:
    with pytest.raises(ValueError, match=r"symmetry='mirror' is not None, 'flip' or 'd4'"):
        Kernel(POOLED, device="cpu", symmetry="mirror")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="d4' is for square images; of 8 × 6 use 'flip'"):
        Kernel(POOLED, device="cpu", symmetry="d4")(X[..., :6])
    with pytest.raises(DataError, match="have no left and right"):
        Kernel(zoo.dense_nngp(), device="cpu", symmetry="flip")(np.ones((2, 3)))
    with pytest.raises(ValueError, match="gradient is for kernels without symmetry='flip'"):
        Kernel(POOLED, device="cpu", symmetry="flip").gradient(X, None, np.ones((11, 11)))
