"""Every number that is read from a store is the one that was written there: its metadata, its chunks, their places."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from cnngp import Dense, GPRegressor, Kernel, ReLU, Sequential, gram
from cnngp.common.errors import StoreError
from cnngp.common.tiles import Grid
from cnngp.gp import solve
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import GramStore
from cnngp.matrix.store.tile_bytes import seal, sealed_sum
from helpers.sealed import KERNEL, TILE, X, Z, contents, swap
from helpers.tile_count import computed

# ---- metadata -------------------------------------------------------------------------------------------------------


def test_a_store_that_lost_its_metadata_is_refused_by_its_name(store: Path) -> None:
    (store / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"K\.zarr has no zarr.json, so it is not known what matrix it holds"):
        GramStore(store, read_only=True).array()


def changes(document: dict[str, Any]) -> list[tuple[str, Any]]:
    """A document that says something else about how numbers are to be read, in each of its parts."""
    other_codecs = [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}]
    more_codecs = [{"name": "transpose", "configuration": {"order": [1, 0]}}, *document["codecs"]]
    return [
        ("chunk_key_encoding", {"name": "default", "configuration": {"separator": "."}}),
        ("chunk_key_encoding", {"name": "v2", "configuration": {"separator": "/"}}),
        ("codecs", other_codecs),
        ("codecs", more_codecs),
        ("codecs", document["codecs"][:1]),
        ("data_type", "int32"),
        ("fill_value", 0.0),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [32, 16]}}),
        ("shape", [100, 99]),
        ("shape", [96, 96]),
        ("storage_transformers", [{"name": "offset"}]),
        ("zarr_format", 2),
        ("node_type", "group"),
        ("attribupes", {}),  # nothing in it, and yet Zarr reads no document with such a key
    ]


def test_all_metadata_of_the_array_is_compared(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One letter there and Zarr reads other numbers, or none: status and solve refuse, gram writes it anew."""
    path = store / "K" / "zarr.json"
    text = path.read_text()
    document = json.loads(text)
    for key, value in changes(document):
        path.write_text(json.dumps(document | {key: value}))
        for use in (lambda: status(store), lambda: solve(store, np.ones(100), 0.1, device="cpu")):
            with pytest.raises(StoreError, match=r"K/zarr\.json does not fit the matrix: changed in .*; run gram"):
                use()
        caplog.clear()
        np.testing.assert_array_equal(gram(KERNEL, X, store=store)[:], KERNEL(X))
        assert json.loads(path.read_text()) == document
        assert key == "shape" or f"K/zarr.json was damaged (changed in {key}" in caplog.text


def test_all_that_the_attributes_say_is_compared(store: Path) -> None:
    """What the matrix is of, and by whom: altered, it could be given out as that of other images."""
    document = json.loads((store / "zarr.json").read_text())
    attributes = document["attributes"]
    images = attributes["X"]
    others = {"X": images | {"sha256": "0" * 64}, "Z": images, "tile": [16, 16]}
    for key in attributes.keys() - {"progress", "check", "cnngp_gram"}:  # notes for people; the format
        other = others.get(key, "x")
        altered = document | {"attributes": attributes | {key: other}}
        (store / "zarr.json").write_text(json.dumps(altered))
        for use in (lambda: status(store), lambda: GramStore(store, read_only=True)):
            with pytest.raises(StoreError, match="its metadata is damaged"):
                use()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"a"', "\0", "[" * 5000])
def test_nonsense_in_the_place_of_metadata(store: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    whole = contents(store)
    (store / "K" / "zarr.json").write_text(text)
    with pytest.raises(StoreError, match=r"K/zarr\.json does not fit .* cannot be read") as caught:
        solve(store, np.ones(100), 0.1, device="cpu")
    assert "\n" not in str(caught.value)
    gram(KERNEL, X, store=store)
    assert contents(store) == whole
    (store / "zarr.json").write_text(text)
    for use in (lambda: status(store), lambda: solve(store, np.ones(100), 0.1), lambda: gram(KERNEL, X, store=store)):
        with pytest.raises(StoreError, match=r"its zarr\.json cannot be read \(.*\); bring it back") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_no_flip_of_a_bit_in_the_metadata_changes_a_number(store: Path) -> None:
    """Whatever bit: the matrix is right, or there is one line."""
    rng = random.Random(0)
    for name in ("zarr.json", "K/zarr.json"):
        whole = (store / name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            (store / name).write_bytes(data)
            with contextlib.suppress(StoreError):
                K = GramStore(store, read_only=True).array()
                np.testing.assert_array_equal(K[:], KERNEL(X))
        (store / name).write_bytes(whole)


def test_how_numbers_are_read_follows_from_the_attributes_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the array's document is altered between the check of it and the reading."""
    path = store / "K" / "zarr.json"
    document = json.loads(path.read_text())
    document["codecs"][0]["configuration"] = {"endian": "big"}
    path.write_text(json.dumps(document))
    monkeypatch.setattr(GramStore, "check_array", lambda self: None)
    np.testing.assert_array_equal(GramStore(store, read_only=True).array()[:], KERNEL(X))


def test_attributes_of_others_are_left_alone(store: Path) -> None:
    zarr.open_group(store, mode="r+").attrs["title"] = "mine"
    zarr.open_array(store, path="K", mode="r+").attrs["units"] = "mine"
    gram(KERNEL, np.concatenate([X, Z]), store=store)
    assert zarr.open_group(store, mode="r").attrs["title"] == "mine"


# ---- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seals", [False, True])
@pytest.mark.parametrize(
    ("a", "b"), [((0, 0), (1, 1)), ((0, 1), (0, 2)), ((0, 2), (1, 2)), ((0, 1), (1, 0)), ((0, 0), (2, 1))]
)
def test_a_good_chunk_in_a_wrong_place_is_found(
    stores: Path,
    tmp_path: Path,
    a: tuple[int, int],
    b: tuple[int, int],
    seals: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the diagonal and in K(X, Z) too, and where the seal was moved along with its tile."""
    for name, others in (("K", None), ("cross", Z)):
        store = Path(shutil.copytree(stores / name, tmp_path / f"{name}-{seals}"))
        whole = contents(store)
        swap(store, f"K/c/{a[0]}/{a[1]}", f"K/c/{b[0]}/{b[1]}")
        first, second = (f"K/seals/{i}/{j}" for i, j in (a, b))
        if seals and (store / first).exists() and (store / second).exists():
            swap(store, first, second)
        assert status(store).damaged
        calls = computed(monkeypatch)
        K = gram(KERNEL, X, others, store=store)
        assert 1 <= len(calls) <= 2
        np.testing.assert_array_equal(K[:], KERNEL(X, others))
        assert contents(store) == whole


def test_a_chunk_is_checked_by_whoever_reads_it(store: Path, cross: Path) -> None:
    """Also what is moved after gram has verified it: by the array of gram, a fit, a solve by any method."""
    K, across = gram(KERNEL, X, store=store), gram(KERNEL, X, Z, store=cross)
    plain = zarr.open_array(store, path="K", mode="r")  # as any reader opens it
    model = GPRegressor(noise=0.1).fit(K=KERNEL(X), y=X[:, 0])
    swap(store, "K/c/0/0", "K/c/1/1")
    swap(cross, "K/c/0/0", "K/c/1/0")
    y = np.ones(100)
    uses: list[Any] = [
        lambda: K[:],
        lambda: np.asarray(K),
        lambda: across[40:50],
        lambda: GPRegressor(noise=0.1).fit(K=plain, y=y),
        lambda: GPRegressor(noise=0.1, solver="cg").fit(K=plain, y=y),
        lambda: model.predict(K=plain),
        *(lambda m=m: solve(store, y, 100.0, m, device="cpu") for m in ("cholesky", "mixed", "cg")),
        *(lambda m=m: solve(plain, y, 100.0, m, device="cpu") for m in ("cholesky", "mixed", "cg")),
    ]
    for use in uses:
        with pytest.raises(
            StoreError, match=r"chunk \(\d, \d\) of the kernel matrix cannot be used: it is another one"
        ):
            use()


def test_a_tile_of_another_matrix_is_found(store: Path, tmp_path: Path) -> None:
    """With its seal, from a store of other images, or of another network."""
    for k, (kernel, images) in enumerate(
        [(KERNEL, X[::-1].copy()), (Kernel(Sequential(Dense(), ReLU(), Dense()), device="cpu"), X)]
    ):
        gram(kernel, images, store=tmp_path / f"{k}", tile=TILE)
        for name in ("K/c/1/1", "K/seals/1/1"):
            shutil.copy(tmp_path / f"{k}" / name, store / name)
        assert status(store).damaged == 1
        np.testing.assert_array_equal(gram(KERNEL, X, store=store)[:], KERNEL(X))


def test_a_seal_holds_for_one_tile_of_one_matrix_alone() -> None:
    """Not for another row, column, size or matrix, also where the growth of a matrix left a chunk that it had cut."""
    grid = Grid((50, 50), (20, 20), symmetric=True)
    data = seal("this", grid, 1, 2, [b"abcd", b"efgh"])
    assert (sealed_sum(data, "this", grid, 1, 2), sealed_sum(data, "this", grid, 2, 1)) == (b"abcd", b"efgh")
    grown, across = Grid((55, 55), (20, 20), symmetric=True), Grid((50, 50), (20, 20), symmetric=False)
    for matrix, of, i, j in (
        ("that", grid, 1, 2),
        ("this", grid, 0, 2),
        ("this", grid, 1, 1),
        ("this", grid, 0, 1),
        ("this", grown, 1, 2),
        ("this", across, 1, 2),
    ):
        with pytest.raises(ValueError, match="its seal is that of another tile, or damaged"):
            sealed_sum(data, matrix, of, i, j)


@pytest.mark.parametrize("damage", ["missing", "flipped", "empty", "longer"])
def test_a_damaged_seal_is_a_damaged_tile(store: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(store)
    seal = store / "K/seals/1/2"
    data = seal.read_bytes()
    flipped = bytes([data[0] ^ 1, *data[1:]])
    seal.unlink()
    if damage != "missing":
        seal.write_bytes({"flipped": flipped, "empty": b"", "longer": data + b"\0"}[damage])
    found = status(store)
    assert (found.missing, found.damaged) == ((1, 0) if damage == "missing" else (0, 1))
    calls = computed(monkeypatch)
    gram(KERNEL, X, store=store)
    assert len(calls) == 1
    assert contents(store) == whole


def test_a_tile_without_its_seal_was_not_finished(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal is written last: a process killed between the two leaves a tile that does not count."""
    order: list[str] = []
    put = zarr.storage.LocalStore.set

    async def note(self: Any, key: str, value: Any) -> None:
        await put(self, key, value)
        order.append(key)

    shutil.rmtree(store / "K/c/2")
    monkeypatch.setattr(zarr.storage.LocalStore, "set", note)
    gram(KERNEL, X, store=store)
    for i, j in ((0, 2), (1, 2), (2, 2), (2, 3)):
        assert order.index(f"K/seals/{i}/{j}") > max(order.index(f"K/c/{i}/{j}"), order.index(f"K/c/{j}/{i}"))


def test_the_array_of_gram_travels_to_other_processes(store: Path) -> None:
    K = pickle.loads(pickle.dumps(gram(KERNEL, X, store=store)))
    np.testing.assert_array_equal(K[:], KERNEL(X))
    swap(store, "K/c/0/0", "K/c/1/1")
    with pytest.raises(StoreError, match="it is another one"):
        K[:]


def test_a_tile_that_goes_missing_is_no_nan(store: Path) -> None:
    K = gram(KERNEL, X, store=store)
    (store / "K/c/1/2").unlink()
    with pytest.raises(StoreError, match=r"chunk \(1, 2\) .* cannot be used: it is not there; run gram"):
        K[:]
