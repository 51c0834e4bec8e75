"""Kernel matrices by tiles: bit for bit the kernel's own, resumed exactly, refused where they are of something else."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

import cnngp
from cnngp import Conv, DataError, Dense, Elementwise, GPClassifier, Kernel, ReLU, Sequential, gram
from cnngp.common.errors import StoreError
from cnngp.gp.checks import float64_buffer
from cnngp.kernel.engines.base import RangeError
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import GramStore
from helpers.stores import contents

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


FEATURES = rng.random((37, 3)), rng.random((23, 3))
ODD = Sequential(Dense(), Elementwise("tanh"), Dense())


@pytest.mark.parametrize("tile", [5, 16, 100, (5, 9), None])
@pytest.mark.parametrize(("network", "images", "dtype"), [(NET, (X, Z), "float32"), (ODD, FEATURES, "float64")])
def test_tiles_give_the_bits_of_the_kernel(network: Any, images: Any, dtype: Any, tile: Any, tmp_path: Path) -> None:
    """Of one set and of two, whatever the tile, the threads and the number of images in a call."""
    one, several = (Kernel(network, device="cpu", dtype=dtype, threads=threads) for threads in (1, 3))
    for other in (None, images[1]):
        if other is None and isinstance(tile, tuple):
            continue
        expected = one(images[0]) if other is None else one(images[0], other)
        np.testing.assert_array_equal(gram(several, images[0], other), expected)
        K = gram(several, images[0], other, store=tmp_path / f"{other is None}", tile=tile)
        assert K.dtype == dtype
        np.testing.assert_array_equal(K[:], expected)
        if other is None:
            np.testing.assert_array_equal(np.diagonal(K[:]), one.diag(images[0]))


def test_a_network_in_place_of_a_kernel() -> None:
    np.testing.assert_array_equal(gram(NET, X, kind="ntk"), Kernel(NET, kind="ntk")(X))


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_zarr_reader_opens_it(dtype: Any, tmp_path: Path) -> None:
    """It is an array as Zarr itself writes it, to the last byte, beside what the matrix is of."""
    kernel = Kernel(NET, device="cpu", dtype=dtype)
    K = gram(kernel, X, store=tmp_path / "ours", tile=16)
    assert isinstance(K, zarr.Array)
    with pytest.raises(ValueError, match="read-only"):
        K[0, 0] = 1.0
    group = zarr.open_group(tmp_path / "ours", mode="r")
    assert [name for name, _ in group.members(max_depth=None)] == ["K"]
    a = dict(group.attrs)
    assert cnngp.from_json(a["network"]) == NET
    assert a["network_fingerprint"] == NET.fingerprint
    assert (a["X"]["images"], a["Z"], a["dtype"], a["tile"]) == (37, None, dtype, [16, 16])
    assert a["engine"] == kernel.engine_for((1, 4, 4)).identity
    assert a["progress"] == {"tiles": 6, "of": 6}
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


KINDS = "the Gaussian process's, kind 'nngp', there, the tangent kernel, kind 'ntk', now"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": Sequential(Conv(5), ReLU(), Dense())}, "the network (layers[0].kernel_size is 3 there, 5 now)"),
        ({"kind": "ntk"}, f"the kernel ({KINDS}"),
        ({"dtype": "float64"}, "the type (float32 there, float64 now)"),
        ({"tile": 8}, "the tile (16 there, 8 now)"),
        ({"tile": (8, 16)}, "the tile (16 there, 8 × 16 now)"),
        ({"X": X[::-1]}, "X (the pixels of its 37 images)"),
        ({"X": X[:30]}, "X (37 images there, only 30 now)"),
        ({"X": np.concatenate([Z, X])}, "X (the first 37 of its 60 images are not those"),
        ({"X": X.reshape(37, 1, 2, 8)}, "X (37 images of shape (1, 4, 4) there, 37 of (1, 2, 8) now)"),
        ({"Z": Z}, "the kind (the matrix of one set of images there, the matrix of two sets now)"),
    ],
)
def test_a_store_of_something_else_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path, calls: list[int]
) -> None:
    asked = {"network": NET, "dtype": "float32", "kind": "nngp", "X": X, "Z": None, "tile": None} | change
    gram(Kernel(NET, device="cpu"), X, store=tmp_path / "K", tile=16)
    before = contents(tmp_path)
    calls.clear()
    kernel = Kernel(asked["network"], device="cpu", dtype=asked["dtype"], kind=asked["kind"])
    with pytest.raises(StoreError, match=re.escape(message)):
        gram(kernel, asked["X"], asked["Z"], store=tmp_path / "K", tile=asked["tile"])
    assert not calls
    assert contents(tmp_path) == before


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


# ---- growth ---------------------------------------------------------------------------------------------------------


IMAGES = np.concatenate([X, Z])


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "tiles"),
    [
        *(((32, None), (60, None), 7), ((37, None), (60, None), 7), ((37, None), (38, None), 3)),
        *(((16, None), (17, None), 2), ((1, None), (60, None), 10), ((37, None), (37, None), 0)),
        *(((20, 10), (20, 23), 4), ((20, 23), (37, 23), 4), ((37, 16), (37, 17), 3), ((37, 23), (37, 23), 0)),
    ],
)
def test_more_images_reuse_the_tiles(
    kernel: Kernel, old: Any, new: Any, tiles: int, verify: bool, tmp_path: Path, calls: list[int]
) -> None:
    """Of either set. An edge chunk holds NaN where the new images are, verified or not."""

    def matrix(sizes: Any, **options: Any) -> Any:
        other = None if sizes[1] is None else Z[: sizes[1]]
        expected = kernel(IMAGES[: sizes[0]]) if other is None else kernel(IMAGES[: sizes[0]], other)
        calls.clear()
        K = gram(kernel, IMAGES[: sizes[0]], other, store=tmp_path / "K", verify=verify, **options)
        np.testing.assert_array_equal(K[:], expected)

    matrix(old, tile=16)
    matrix(new)
    assert len(calls) == tiles


def test_growth_that_was_killed_goes_back_or_on(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between any two of its steps, both the old and the new matrix can be had, without the chunks it cuts."""
    expected = kernel(IMAGES)
    for step in ("_update", "_open_array"):
        for n in (37, 60):
            place = tmp_path / f"{step}{n}"
            gram(kernel, X, store=place, tile=16)
            with monkeypatch.context() as m:
                m.setattr(GramStore, step, lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    gram(kernel, IMAGES, store=place)
            assert not any((place / f"K/{kind}/{i}/2").exists() for kind in ("c", "seals") for i in range(3))
            if step == "_open_array" and n == 37:  # the metadata says 60 by then
                with pytest.raises(StoreError, match="60 images there, only 37 now"):
                    gram(kernel, X, store=place)
                continue
            np.testing.assert_array_equal(gram(kernel, IMAGES[:n], store=place)[:], expected[:n, :n])


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


# ---- behind estimators ----------------------------------------------------------------------------------------------


def test_an_estimator_computes_each_kernel_once(tmp_path: Path, calls: list[int]) -> None:
    """On a disk or in memory, in the store that `gram` filled before it."""
    y = np.arange(37) % 3
    plain = GPClassifier(NET, device="cpu").fit(X, y)
    expected = plain.predict_proba(Z)
    for place in (str(tmp_path / "run.zarr"), "memory://cnngp-estimators/run.zarr"):
        gram(Kernel(NET, device="cpu"), X, store=place)
        for matrices in (1, 0):
            calls.clear()
            clf = GPClassifier(NET, device="cpu", store=place).fit(X, y)
            np.testing.assert_array_equal(clf.predict_proba(Z), expected)
            np.testing.assert_array_equal(clf.predict(Z), clf.classes_[expected.argmax(axis=1)])
            assert clf.loo_error_ == plain.loo_error_
            assert len(calls) == matrices
    names = sorted(name for name, _ in zarr.open_group(tmp_path / "run.zarr", mode="r").members())
    assert [name.partition("-")[0] for name in names] == ["K", "cross"]


def test_the_buffer_of_a_fit_reads_each_chunk_of_a_store_once(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    K = gram(kernel, X, store=tmp_path / "K", tile=16)
    read: list[str] = []
    get = zarr.storage.LocalStore.get

    async def counted(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        read.append(key)
        return await get(self, key, *args, **kwargs)

    monkeypatch.setattr(zarr.storage.LocalStore, "get", counted)
    A = float64_buffer(K)
    chunks = [f"K/c/{i}/{j}" for i in range(3) for j in range(3)]
    assert sorted(read) == chunks + [f"K/seals/{i}/{j}" for i in range(3) for j in range(i, 3)]
    assert A.dtype == np.float64
    np.testing.assert_array_equal(A, kernel(X).astype(np.float64))
