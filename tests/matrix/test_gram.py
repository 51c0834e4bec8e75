"""Kernel matrices by tiles: bit for bit the kernel's own, resumed exactly, refused where they are of something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import cnngp
from cnngp import Conv, DataError, Dense, Elementwise, Kernel, ReLU, Sequential, gram
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.store.spec import Spec
from helpers.tile_count import computed

NET = Sequential(Conv(3), ReLU(), Dense())
rng = np.random.default_rng(0)
X = rng.random((37, 1, 4, 4))
Z = rng.random((23, 1, 4, 4))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(NET, device="cpu", threads=1)


class Count:
    """Counts the tiles that an engine computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls = computed(monkeypatch)

    def take(self) -> int:
        """Those since it was last asked."""
        tiles = len(self._calls)
        self._calls.clear()
        return tiles


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    return Count(monkeypatch)


# ---- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [1, 5, 16, 37, 100, None])
@pytest.mark.parametrize("where", ["memory", "store"])
def test_tiles_give_the_bits_of_the_kernel(kernel: Kernel, tile: int | None, where: str, tmp_path: Path) -> None:
    if tile == 1 and where == "store":
        pytest.skip("many files, nothing new")
    place = None if where == "memory" else tmp_path / "K.zarr"
    K = gram(kernel, X, store=place, tile=tile)
    assert K.dtype == np.float32
    np.testing.assert_array_equal(K[:], kernel(X))
    np.testing.assert_array_equal(np.diagonal(K[:]), kernel.diag(X))


@pytest.mark.parametrize("tile", [7, (5, 9), None])
@pytest.mark.parametrize("where", ["memory", "store"])
def test_two_sets_of_images(kernel: Kernel, tile: Any, where: str, tmp_path: Path) -> None:
    place = None if where == "memory" else str(tmp_path / "K.zarr")
    np.testing.assert_array_equal(gram(kernel, X, Z, store=place, tile=tile)[:], kernel(X, Z))


def test_float64_features_elementwise_and_a_network_in_place_of_a_kernel(tmp_path: Path) -> None:
    features = rng.random((11, 3))
    net = Sequential(Dense(), Elementwise("tanh"), Dense())
    kernel = Kernel(net, device="cpu", dtype="float64")
    for net_or_kernel, expected in ((kernel, kernel(features)), (net, Kernel(net)(features))):
        np.testing.assert_array_equal(gram(net_or_kernel, features, tile=4), expected)
    K = gram(kernel, features, store=tmp_path / "K", tile=4)
    assert K.dtype == np.float64
    np.testing.assert_array_equal(K[:], kernel(features))


def test_a_python_function_in_the_network_is_known_by_its_values(tmp_path: Path, count: Count) -> None:
    features = rng.random((5, 3))
    for fn, tiles in ((lambda z: np.tanh(z), 1), (lambda z: np.tanh(z), 0)):
        gram(Sequential(Dense(), Elementwise(fn), Dense()), features, store=tmp_path / "K")
        assert count.take() == tiles
    with pytest.raises(StoreError, match="the network"):
        gram(Sequential(Dense(), Elementwise(lambda z: np.tanh(z) + 0.1 * z), Dense()), features, store=tmp_path / "K")


def test_lists_memory_maps_and_zarr_arrays_are_images_too(kernel: Kernel, tmp_path: Path) -> None:
    expected = kernel(X)
    np.save(tmp_path / "X.npy", X)
    kept = zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(10, 1, 4, 4))
    for images in (X.tolist(), np.load(tmp_path / "X.npy", mmap_mode="r"), kept):
        np.testing.assert_array_equal(gram(kernel, images, tile=16), expected)
    gram(kernel, X, store=tmp_path / "K")
    gram(kernel, np.load(tmp_path / "X.npy", mmap_mode="r"), store=tmp_path / "K")


def test_the_name_gram_is_the_function() -> None:
    import cnngp.matrix.gram

    assert cnngp.gram is cnngp.matrix.gram.gram


# ---- the store ------------------------------------------------------------------------------------------------------


def test_any_zarr_reader_opens_it(kernel: Kernel, tmp_path: Path) -> None:
    gram(kernel, X, store=tmp_path / "K.zarr", tile=16)
    group = zarr.open_group(tmp_path / "K.zarr", mode="r")
    assert [name for name, _ in group.members(max_depth=None)] == ["K"]
    a = dict(group.attrs)
    assert cnngp.from_json(a["network"]) == NET
    assert a["network_fingerprint"] == NET.fingerprint
    assert a["X"]["images"] == 37
    assert a["Z"] is None
    assert (a["engine"], a["dtype"], a["tile"]) == (kernel.engine_for((1, 4, 4)).identity, "float32", [16, 16])
    assert a["progress"] == {"tiles": 6, "of": 6}
    metadata = json.loads((tmp_path / "K.zarr" / "K" / "zarr.json").read_text())
    assert metadata["zarr_format"] == 3
    assert metadata["fill_value"] == "NaN"
    assert [c["name"] for c in metadata["codecs"]] == ["bytes", "crc32c"]
    assert metadata["chunk_grid"]["configuration"]["chunk_shape"] == [16, 16]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chunks_have_the_bytes_that_zarr_writes(dtype: str, tmp_path: Path) -> None:
    kernel = Kernel(NET, device="cpu", dtype=dtype)
    K = gram(kernel, X, store=tmp_path / "ours", tile=16)
    theirs = zarr.create_array(
        tmp_path / "theirs", shape=K.shape, chunks=K.chunks, dtype=K.dtype, fill_value=np.nan,
        compressors=[zarr.codecs.Crc32cCodec()],
    )  # fmt: skip
    theirs[:] = kernel(X)
    chunks = sorted((tmp_path / "theirs" / "c").glob("*/*"))
    assert len(chunks) == 9
    for path in chunks:
        ours = tmp_path / "ours" / "K" / path.relative_to(tmp_path / "theirs")
        assert ours.read_bytes() == path.read_bytes()


def test_the_result_is_read_only(kernel: Kernel, tmp_path: Path) -> None:
    K = gram(kernel, X, store=tmp_path / "K.zarr")
    assert isinstance(K, zarr.Array)
    with pytest.raises(ValueError, match="read-only"):
        K[0, 0] = 1.0


def test_a_memory_url_a_file_url_and_a_zarr_store(kernel: Kernel, tmp_path: Path, count: Count) -> None:
    expected = kernel(X)
    count.take()
    for place in ("memory://cnngp-test/K.zarr", f"file://{tmp_path}/K.zarr", zarr.storage.MemoryStore()):
        np.testing.assert_array_equal(gram(kernel, X, store=place, tile=16)[:], expected)
        assert count.take() == 6
        np.testing.assert_array_equal(gram(kernel, X, store=place)[:], expected)
        assert count.take() == 0
        np.testing.assert_array_equal(gram(kernel, np.concatenate([X, Z]), store=place)[:37, :37], expected)
        assert count.take() == 7
    assert (tmp_path / "K.zarr" / "zarr.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"network": Sequential(Conv(5), ReLU(), Dense())},
            r"the network \(layers\[0\]\.kernel_size is 3 there, 5 now\)",
        ),
        ({"dtype": "float64"}, r"the type \(float32 there, float64 now\)"),
        ({"tile": 8}, r"the tile \(16 there, 8 now\)"),
        ({"X": X[::-1]}, r"X \(the pixels of its 37 images\)"),
        ({"X": X[:30]}, r"X \(37 images there, only 30 now\)"),
        ({"X": np.concatenate([Z, X])}, r"X \(the first 37 of its 60 images are not those"),
        ({"X": X.reshape(37, 1, 2, 8)}, r"X \(37 images of shape \(1, 4, 4\) there, 37 of \(1, 2, 8\) now\)"),
        ({"Z": Z}, r"the kind \(the matrix of one set of images there, the matrix of two sets now\)"),
    ],
)
def test_a_store_of_something_else_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path, count: Count
) -> None:
    asked = {"network": NET, "dtype": "float32", "X": X, "Z": None, "tile": None}
    gram(Kernel(NET, device="cpu"), X, store=tmp_path / "K", tile=16)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    count.take()
    asked |= change
    kernel = Kernel(asked["network"], device="cpu", dtype=asked["dtype"])
    with pytest.raises(StoreError, match=message):
        gram(kernel, asked["X"], asked["Z"], store=tmp_path / "K", tile=asked["tile"])
    assert count.take() == 0
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}


def test_another_engine_may_read_a_whole_store_but_not_fill_it(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    K = gram(kernel, X, store=tmp_path / "K", tile=16)[:]
    other = Kernel(NET, device="cpu")
    other.engine_for((1, 4, 4)).identity = "cuda-1"
    np.testing.assert_array_equal(gram(other, X, store=tmp_path / "K")[:], K)
    with pytest.raises(StoreError, match=r"begun by the engine cpu-.*this one is cuda-1"):
        gram(other, np.concatenate([X, Z]), store=tmp_path / "K")
    assert gram(kernel, X, store=tmp_path / "K").shape == (37, 37)
    (tmp_path / "K/K/c/0/1").unlink()
    with pytest.raises(StoreError, match="lacks tiles"):
        gram(other, X, store=tmp_path / "K")


def test_places_that_hold_something_else_are_left_alone(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        gram(kernel, X, store=tmp_path / "file")
    with pytest.raises(StoreError, match=r"did not make \(it holds file"):
        gram(kernel, X, store=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
    zarr.create_group(tmp_path / "theirs")
    with pytest.raises(StoreError, match="a Zarr group that cnngp did not make"):
        gram(kernel, X, store=tmp_path / "theirs")
    with pytest.raises(StoreError, match="expected a path, a URL"):
        gram(kernel, X, store=3)
    with pytest.raises(StoreError, match="nonsense"):
        gram(kernel, X, store="nonsense://there/K")
    (tmp_path / "newer").mkdir()
    zarr.create_group(tmp_path / "newer" / "K", attributes={"cnngp_gram": 99})
    with pytest.raises(StoreError, match="format 99; this version of cnngp reads format 3"):
        gram(kernel, X, store=tmp_path / "newer" / "K")


# ---- growth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new", "tiles"), [(32, 60, 7), (37, 60, 7), (37, 38, 3), (16, 17, 2), (1, 60, 10)])
def test_more_images_reuse_the_tiles(
    kernel: Kernel, old: int, new: int, tiles: int, tmp_path: Path, count: Count
) -> None:
    images = np.concatenate([X, Z])
    gram(kernel, images[:old], store=tmp_path / "K", tile=16)
    count.take()
    K = gram(kernel, images[:new], store=tmp_path / "K", verify=False)
    assert count.take() == tiles
    np.testing.assert_array_equal(K[:], kernel(images[:new]))


def test_either_set_may_grow(kernel: Kernel, tmp_path: Path, count: Count) -> None:
    for x, z, tiles in ((20, 10, 2), (20, 23, 4), (37, 23, 4), (37, 23, 0)):
        K = gram(kernel, X[:x], Z[:z], store=tmp_path / "K", tile=16)
        assert count.take() == tiles
        np.testing.assert_array_equal(K[:], kernel(X[:x], Z[:z]))
        count.take()


def test_growth_that_was_killed_goes_back_or_on(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between any two of its steps, both the old and the new matrix can be had."""
    from cnngp.matrix.store.store import GramStore

    images = np.concatenate([X, Z])
    expected = kernel(images)
    for step in ("_update", "_open_array"):
        for n in (37, 60):
            place = tmp_path / f"{step}{n}"
            gram(kernel, X, store=place, tile=16)
            with monkeypatch.context() as m:
                m.setattr(GramStore, step, lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    gram(kernel, images, store=place)
            if step == "_open_array" and n == 37:  # the metadata says 60 by then
                with pytest.raises(StoreError, match="60 images there, only 37 now"):
                    gram(kernel, X, store=place)
                continue
            np.testing.assert_array_equal(gram(kernel, images[:n], store=place)[:], expected[:n, :n])


def test_a_damaged_tile_is_deleted_before_anything_can_go_wrong_again(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a later run that does not verify would take it for good."""
    place = tmp_path / "K.zarr"
    gram(kernel, X, store=place, tile=16)
    (place / "K/c/0/1").write_bytes(b"broken")
    with monkeypatch.context() as m:
        m.setattr(CpuEngine, "cross", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            gram(kernel, X, store=place)
    np.testing.assert_array_equal(gram(kernel, X, store=place, verify=False)[:], kernel(X))


# ---- what is refused before any work --------------------------------------------------------------------------------


def test_bad_arguments(kernel: Kernel, tmp_path: Path) -> None:
    for tile in (0, -1, 2.5, "8", (4, 0), (1, 2, 3), True):
        with pytest.raises(ValueError, match="tile="):
            gram(kernel, X, tile=tile)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="empty"):
        gram(kernel, X[:0], store=tmp_path / "K")
    with pytest.raises(DataError, match="they must agree"):
        gram(kernel, X, Z[:, :, :3], store=tmp_path / "K")
    bad = X.copy()
    bad[33] = 1e30
    with pytest.raises(RangeError, match=r"X\[33\] has pixels of 1e\+30"):
        gram(kernel, bad, store=tmp_path / "K")
    assert not (tmp_path / "K" / "zarr.json").exists()
    assert gram(kernel, X, store=tmp_path / "K").shape == (37, 37)


def test_a_matrix_that_does_not_fit_in_memory_is_refused(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cnngp.common.memory.available", lambda device="cpu": 1000)
    with pytest.raises(MemoryError, match="or keep it on disk with store="):
        gram(kernel, X)


def test_the_identity_of_a_store_survives_its_metadata(kernel: Kernel, tmp_path: Path) -> None:
    gram(kernel, X, Z, store=tmp_path / "K")
    a = dict(zarr.open_group(tmp_path / "K", mode="r").attrs)
    spec = Spec.of_attributes(a, "K")
    assert spec.attributes() == {k: v for k, v in a.items() if k not in ("progress", "check")}
