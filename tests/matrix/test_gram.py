"""Kernel matrices by tiles: bit for bit the kernel's own, resumed exactly, refused where they are of something else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

import cnngp
from cnngp import Conv, DataError, Dense, Elementwise, Kernel, ReLU, Sequential, gram
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.base import RangeError
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import GramStore

NET = Sequential(Conv(3), ReLU(), Dense())
rng = np.random.default_rng(0)
X = rng.random((37, 1, 4, 4))
Z = rng.random((23, 1, 4, 4))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(NET, device="cpu", threads=1)


def taken(calls: list[int]) -> int:
    """Tiles that were computed since it was last asked."""
    tiles = len(calls)
    calls.clear()
    return tiles


# ---- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [5, 16, 100, (5, 9), None])
def test_tiles_give_the_bits_of_the_kernel(kernel: Kernel, tile: Any, tmp_path: Path) -> None:
    """Of one set and of two, whatever the tile, the threads and the number of images in a call."""
    several = Kernel(NET, device="cpu", threads=3)
    for k, (other, expected) in enumerate(((None, kernel(X)), (Z, kernel(X, Z)))):
        if other is None and isinstance(tile, tuple):
            continue
        np.testing.assert_array_equal(gram(several, X, other), expected)
        K = gram(several, X, other, store=tmp_path / f"{k}", tile=tile)
        assert K.dtype == np.float32
        np.testing.assert_array_equal(K[:], expected)
        if other is None:
            np.testing.assert_array_equal(np.diagonal(K[:]), kernel.diag(X))


def test_float64_features_elementwise_and_a_network_in_place_of_a_kernel(tmp_path: Path) -> None:
    features = rng.random((11, 3))
    net = Sequential(Dense(), Elementwise("tanh"), Dense())
    kernel = Kernel(net, device="cpu", dtype="float64")
    for net_or_kernel, expected in ((kernel, kernel(features)), (net, Kernel(net)(features))):
        np.testing.assert_array_equal(gram(net_or_kernel, features), expected)
    K = gram(kernel, features, store=tmp_path / "K", tile=4)
    assert K.dtype == np.float64
    np.testing.assert_array_equal(K[:], kernel(features))


def test_a_python_function_in_the_network_is_known_by_its_values(tmp_path: Path, calls: list[int]) -> None:
    features = rng.random((5, 3))
    for fn, tiles in ((lambda z: np.tanh(z), 1), (lambda z: np.tanh(z), 0)):
        gram(Sequential(Dense(), Elementwise(fn), Dense()), features, store=tmp_path / "K")
        assert taken(calls) == tiles
    with pytest.raises(StoreError, match="the network"):
        gram(Sequential(Dense(), Elementwise(lambda z: np.tanh(z) + 0.1 * z), Dense()), features, store=tmp_path / "K")


def test_lists_memory_maps_and_zarr_arrays_are_images_too(kernel: Kernel, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    kept = zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(10, 1, 4, 4))
    for images in (X.tolist(), np.load(tmp_path / "X.npy", mmap_mode="r"), kept):
        np.testing.assert_array_equal(gram(kernel, images, store=tmp_path / "K", tile=16)[:], kernel(X))


def test_progress_counts_every_pair_once_and_resumes(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[tuple[int, int, list[int]]] = []

    @contextmanager
    def bar(total: int, *_: Any, done: int = 0, **options: Any) -> Iterator[Any]:
        bars.append((total, done, []))
        yield SimpleNamespace(update=bars[-1][2].append)

    monkeypatch.setattr("cnngp.matrix.gram.progress_bar", bar)
    gram(kernel, X, store=tmp_path / "K", tile=16)
    (tmp_path / "K/K/c/1/0").unlink()
    gram(kernel, X, store=tmp_path / "K", verify=False)
    pairs = 37 * 36 // 2
    found = [(total, done, sum(steps)) for total, done, steps in bars]
    assert found == [(pairs, 0, pairs), (pairs, pairs - 256, 256)]


# ---- the store ------------------------------------------------------------------------------------------------------


def test_any_zarr_reader_opens_it(kernel: Kernel, tmp_path: Path) -> None:
    K = gram(kernel, X, store=tmp_path / "K.zarr", tile=16)
    assert isinstance(K, zarr.Array)
    with pytest.raises(ValueError, match="read-only"):
        K[0, 0] = 1.0
    group = zarr.open_group(tmp_path / "K.zarr", mode="r")
    assert [name for name, _ in group.members(max_depth=None)] == ["K"]
    a = dict(group.attrs)
    assert cnngp.from_json(a["network"]) == NET
    assert a["network_fingerprint"] == NET.fingerprint
    assert (a["X"]["images"], a["Z"], a["dtype"], a["tile"]) == (37, None, "float32", [16, 16])
    assert a["engine"] == kernel.engine_for((1, 4, 4)).identity
    assert a["progress"] == {"tiles": 6, "of": 6}
    metadata = json.loads((tmp_path / "K.zarr" / "K" / "zarr.json").read_text())
    assert (metadata["zarr_format"], metadata["fill_value"]) == (3, "NaN")
    assert [c["name"] for c in metadata["codecs"]] == ["bytes", "crc32c"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chunks_have_the_bytes_that_zarr_writes(dtype: str, tmp_path: Path) -> None:
    kernel = Kernel(NET, device="cpu", dtype=dtype)
    K = gram(kernel, X, store=tmp_path / "ours", tile=16)
    options: dict[str, Any] = {"shape": K.shape, "chunks": K.chunks, "dtype": K.dtype, "fill_value": np.nan}
    theirs = zarr.create_array(tmp_path / "theirs", compressors=[zarr.codecs.Crc32cCodec()], **options)
    theirs[:] = kernel(X)
    chunks = sorted((tmp_path / "theirs" / "c").glob("*/*"))
    assert len(chunks) == 9
    for path in chunks:
        ours = tmp_path / "ours" / "K" / path.relative_to(tmp_path / "theirs")
        assert ours.read_bytes() == path.read_bytes()


def test_a_memory_url_a_file_url_and_a_zarr_store(kernel: Kernel, tmp_path: Path, calls: list[int]) -> None:
    expected = kernel(X)
    taken(calls)
    for place in ("memory://cnngp-test/K.zarr", f"file://{tmp_path}/K.zarr", zarr.storage.MemoryStore()):
        for images, tiles in ((X, 6), (X, 0), (np.concatenate([X, Z]), 7)):
            K = gram(kernel, images, store=place, tile=16)
            assert taken(calls) == tiles
            np.testing.assert_array_equal(K[:37, :37], expected)
    assert (tmp_path / "K.zarr" / "zarr.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"network": Sequential(Conv(5), ReLU(), Dense())},
            r"the network \(layers\[0\]\.kernel_size is 3 there, 5 now\)",
        ),
        (
            {"kind": "ntk"},
            r"the kernel \(the Gaussian process's, kind 'nngp', there, the tangent kernel, kind 'ntk', now",
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
    change: dict[str, Any], message: str, tmp_path: Path, calls: list[int]
) -> None:
    asked = {"network": NET, "dtype": "float32", "kind": "nngp", "X": X, "Z": None, "tile": None} | change
    gram(Kernel(NET, device="cpu"), X, store=tmp_path / "K", tile=16)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    calls.clear()
    kernel = Kernel(asked["network"], device="cpu", dtype=asked["dtype"], kind=asked["kind"])
    with pytest.raises(StoreError, match=message):
        gram(kernel, asked["X"], asked["Z"], store=tmp_path / "K", tile=asked["tile"])
    assert not calls
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}


def test_another_engine_may_read_a_whole_store_but_not_fill_it(kernel: Kernel, tmp_path: Path) -> None:
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
    zarr.create_group(tmp_path / "theirs" / "group")
    zarr.create_group(tmp_path / "newer" / "K", attributes={"cnngp_gram": 99})
    for place, message in (
        (tmp_path / "file", "is a file"),
        (tmp_path, r"did not make \(it holds file"),
        (tmp_path / "theirs" / "group", "a Zarr group that cnngp did not make"),
        (3, "expected a path, a URL"),
        ("nonsense://there/K", "nonsense"),
        (tmp_path / "newer" / "K", "format 99; this version of cnngp reads format 3"),
    ):
        with pytest.raises(StoreError, match=message):
            gram(kernel, X, store=place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "newer", "theirs"]
    assert [p.name for p in (tmp_path / "theirs" / "group").iterdir()] == ["zarr.json"]


# ---- growth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new", "tiles"), [(32, 60, 7), (37, 60, 7), (37, 38, 3), (16, 17, 2), (1, 60, 10)])
def test_more_images_reuse_the_tiles(
    kernel: Kernel, old: int, new: int, tiles: int, tmp_path: Path, calls: list[int]
) -> None:
    images = np.concatenate([X, Z])
    gram(kernel, images[:old], store=tmp_path / "K", tile=16)
    taken(calls)
    K = gram(kernel, images[:new], store=tmp_path / "K", verify=False)
    assert taken(calls) == tiles
    np.testing.assert_array_equal(K[:], kernel(images[:new]))


@pytest.mark.parametrize("verify", [True, False])
def test_either_set_may_grow(kernel: Kernel, verify: bool, tmp_path: Path, calls: list[int]) -> None:
    """An edge chunk holds NaN where the new images are, verified or not."""
    for x, z, tiles in ((20, 10, 2), (20, 23, 4), (37, 23, 4), (37, 23, 0)):
        K = gram(kernel, X[:x], Z[:z], store=tmp_path / "K", tile=16, verify=verify)
        assert taken(calls) == tiles
        np.testing.assert_array_equal(K[:], kernel(X[:x], Z[:z]))
        taken(calls)


def test_growth_that_was_killed_goes_back_or_on(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between any two of its steps, both the old and the new matrix can be had, without the chunks it cuts."""
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
            assert not any((place / f"K/{kind}/{i}/2").exists() for kind in ("c", "seals") for i in range(3))
            if step == "_open_array" and n == 37:  # the metadata says 60 by then
                with pytest.raises(StoreError, match="60 images there, only 37 now"):
                    gram(kernel, X, store=place)
                continue
            np.testing.assert_array_equal(gram(kernel, images[:n], store=place)[:], expected[:n, :n])


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
    assert gram(kernel, X, store=tmp_path / "K", tile=(np.int32(16), np.int64(16))).chunks == (16, 16)
    assert status(tmp_path / "K").whole
