"""Every number that is read from a store is the one that was written there, whatever disks and people do to files."""

import errno
import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore, StorePath

from cnngp import Dense, GPRegressor, Kernel, ReLU, Sequential, gram
from cnngp.common.errors import StoreError
from cnngp.common.tiles import Grid
from cnngp.gp import solve
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import GramStore
from cnngp.matrix.store.tile_bytes import seal, sealed_sum
from helpers.stores import KERNEL, X, Z, contents, expected

N = len(X)


def swap(store: Path, a: str, b: str) -> None:
    first, second = store / a, store / b
    one, two = first.read_bytes(), second.read_bytes()
    assert one != two
    first.write_bytes(two)
    second.write_bytes(one)


def uses(store: Path) -> list[Any]:
    return [
        lambda: status(store),
        lambda: status(store, verify=False),
        lambda: GramStore(store, read_only=True).array(),
        lambda: solve(store, np.ones(N), 0.1, device="cpu"),
    ]


# ---- metadata -------------------------------------------------------------------------------------------------------

NONSENSE = ["", "{", "[]", "null", '"a"', "\0", "[" * 5000]


CHANGES: list[tuple[str, Any]] = [
    ("chunk_key_encoding", {"name": "v2", "configuration": {"separator": "/"}}),
    ("codecs", [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}]),
    ("codecs", [{"name": "bytes", "configuration": {"endian": "little"}}]),
    ("data_type", "int32"),
    ("fill_value", 0.0),
    ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [32, 16]}}),
    ("shape", [N, N - 1]),
    ("storage_transformers", [{"name": "offset"}]),
    ("node_type", "group"),
    ("attribupes", {}),  # nothing in it, and yet Zarr reads no document with such a key
]


def test_all_metadata_of_the_array_is_compared(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One letter there and Zarr reads other numbers, or none: every reader refuses, gram writes it anew."""
    whole = contents(store)
    path = store / "K" / "zarr.json"
    document = json.loads(path.read_text())
    spoilt = [(f"changed in {key}", json.dumps(document | {key: value})) for key, value in CHANGES]
    spoilt += [(r"it cannot be read \(", text) for text in NONSENSE]
    for what, text in [*spoilt, ("it is missing", None)]:
        path.unlink()
        if text is not None:
            path.write_text(text)
        for use in uses(store):
            with pytest.raises(StoreError, match=rf"K/zarr\.json does not fit the matrix: {what}.*; run gr") as caught:
                use()
            assert "\n" not in str(caught.value)
        caplog.clear()
        np.testing.assert_array_equal(gram(KERNEL, X, store=store)[:], expected())
        assert contents(store) == whole
        assert ("K/zarr.json was damaged" in caplog.text) == (what not in ("changed in shape", "it is missing"))


def test_all_that_the_attributes_say_is_compared(store: Path) -> None:
    """What the matrix is of, and by whom: altered, it could be given out as that of other images."""
    document = json.loads((store / "zarr.json").read_text())
    attributes = document["attributes"]
    images = attributes["X"]
    others = {"X": images | {"sha256": "0" * 64}, "Z": images, "tile": [16, 16]}
    for key in attributes.keys() - {"progress", "check", "cnngp_gram"}:  # notes for people; the format
        altered = document | {"attributes": attributes | {key: others.get(key, "x")}}
        (store / "zarr.json").write_text(json.dumps(altered))
        for use in uses(store):
            with pytest.raises(StoreError, match="its metadata is damaged"):
                use()
    for text in NONSENSE:
        (store / "zarr.json").write_text(text)
        for use in (*uses(store), lambda: gram(KERNEL, X, store=store)):
            with pytest.raises(StoreError, match=r"its zarr\.json cannot be read \(.*\); bring it back") as caught:
                use()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "place",
    ["memory://cnngp-faults/K", StorePath(MemoryStore(), "a/b"), LocalStore],
    ids=["a URL", "a store of Zarr", "a folder"],
)
def test_tiles_without_metadata_are_those_of_any_matrix(place: Any, tmp_path: Path) -> None:
    """Not to be given out as those of the matrix that is asked for, wherever they are."""
    where = place(tmp_path / "K") if place is LocalStore else place
    name = re.escape(str(tmp_path / "K" if place is LocalStore else place))
    gram(KERNEL, X, store=where, tile=64)
    GramStore(where).delete("zarr.json")
    with pytest.raises(StoreError, match=rf"^{name} holds tiles, but no zarr\.json that says of what; give a place"):
        gram(Kernel(Sequential(Dense(), ReLU(), Dense()), device="cpu"), X, store=where, tile=64)
    with pytest.raises(StoreError, match=rf"^{name} has no zarr.json, so it is not known what matrix it holds"):
        GramStore(where, read_only=True).array()
    assert not GramStore(where).exists("zarr.json")


def test_how_numbers_are_read_follows_from_the_attributes_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the array's document is altered between the check of it and the reading."""
    path = store / "K" / "zarr.json"
    document = json.loads(path.read_text())
    document["codecs"][0]["configuration"] = {"endian": "big"}
    path.write_text(json.dumps(document))
    monkeypatch.setattr(GramStore, "check_array", lambda self: None)
    np.testing.assert_array_equal(GramStore(store, read_only=True).array()[:], expected())


def test_attributes_of_others_are_left_alone(store: Path) -> None:
    zarr.open_group(store, mode="r+").attrs["title"] = "mine"
    zarr.open_array(store, path="K", mode="r+").attrs["units"] = "mine"
    gram(KERNEL, np.concatenate([X, Z]), store=store)
    assert zarr.open_group(store, mode="r").attrs["title"] == "mine"


# ---- tiles ----------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(0).randrange(len(data))] ^= 4
    path.write_bytes(data)


Damage = Callable[[Path, Path, Path], Any]
"""Of a chunk and the seal of its tile; the third is the folder of whole stores."""


def moved(source: str, at: str = "", with_seal: bool = True) -> Damage:
    """A tile of a mixed-up copy, by default that of the same place in another matrix."""

    def damage(chunk: Path, sealed: Path, stores: Path) -> None:
        place = at or "/".join(sealed.parts[-2:])
        shutil.copy(stores / source / "K/c" / place, chunk)
        if with_seal:
            shutil.copy(stores / source / "K/seals" / place, sealed)

    return damage


DAMAGES: dict[str, Damage] = {
    "a flipped bit": lambda chunk, sealed, stores: flip(chunk),
    "nothing with its checksum": lambda chunk, sealed, stores: chunk.write_bytes(bytes(4)),
    "a flipped bit of the seal": lambda chunk, sealed, stores: flip(sealed),
    "an empty seal": lambda chunk, sealed, stores: sealed.write_bytes(b""),
    "a longer seal": lambda chunk, sealed, stores: sealed.write_bytes(sealed.read_bytes() + b"\0"),
    "another chunk": moved("K", "1/1", with_seal=False),
    "another tile": moved("K", "1/1"),
    "another tile with a mirror image": moved("K", "1/2"),
    "another tile of two sets": moved("cross", "1/0"),
    "a tile of other images": moved("other images"),
    "a tile of another network": moved("other network"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("name", "i", "j"), [("K", 5, 2), ("K", 3, 3), ("K", 0, 6), ("cross", 0, 2)])
def test_a_damaged_tile_is_found_reported_and_computed_again(
    name: str, i: int, j: int, damage: str, stores: Path, tmp_path: Path, calls: list[int], caplog: Any
) -> None:
    store = Path(shutil.copytree(stores / name, tmp_path / name))
    whole = contents(store)
    tile = (i, j) if name == "cross" else (min(i, j), max(i, j))
    DAMAGES[damage](store / f"K/c/{i}/{j}", store / f"K/seals/{tile[0]}/{tile[1]}", stores)
    assert contents(store) != whole
    found = status(store)
    assert (found.missing, found.damaged) == (0, 1)
    gram(KERNEL, X, Z if name == "cross" else None, store=store)
    assert len(calls) == 1
    assert f"1 of {found.tiles} tiles were damaged and are computed again: {tile}" in caplog.text
    assert contents(store) == whole


def test_verify_false_trusts_what_is_there_and_computes_what_is_not(store: Path, calls: list[int]) -> None:
    whole = contents(store)
    flip(store / "K/c/2/5")
    (store / "K/c/6/3").unlink()
    (store / "K/c/0/0").unlink()
    gram(KERNEL, X, store=store, verify=False)
    assert len(calls) == 2
    assert [k for k, v in contents(store).items() if v != whole[k]] == ["K/c/2/5"]


def test_deleted_chunks_seals_and_metadata_come_back(store: Path, calls: list[int]) -> None:
    whole = contents(store)
    for path in ("K/c/2/5", "K/c/5/2", "K/c/6/0", "K/seals/1/2", "K/zarr.json"):
        (store / path).unlink()
    shutil.rmtree(store / "K/c/4")
    partial = ("zarr.0a.partial", "K/zarr.0b.partial", "K/c/2/5.0c.partial", "K/seals/2/5.0d.partial")
    for path in partial:  # of a process killed while writing
        (store / path).write_bytes(b"half")
    K = gram(KERNEL, X, store=store)
    assert len(calls) == 3 + 7
    np.testing.assert_array_equal(K[:], expected())
    assert contents(store) == whole


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_chunk_that_cannot_be_read(
    number: int, store: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A sector that the disk cannot read is damage; what may not be read now is kept."""
    whole, get = contents(store), LocalStore.get

    async def fail(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        if key == "K/c/5/2":
            raise OSError(number, os.strerror(number))
        return await get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, "get", fail)
    if number == errno.EIO:
        gram(KERNEL, X, store=store)
        assert len(calls) == 1
        assert "1 of 28 tiles were damaged and are computed again: (2, 5)" in caplog.text
    else:
        with pytest.raises(StoreError, match=r"K\.zarr: tile \(2, 5\) could not be read \(Permission denied\)\. Run"):
            gram(KERNEL, X, store=store)
    assert contents(store) == whole


def test_a_chunk_is_checked_by_whoever_reads_it(store: Path, stores: Path, tmp_path: Path) -> None:
    """Also what is moved after gram has verified it: by the array of gram, a fit, a solve, and in other processes."""
    cross = Path(shutil.copytree(stores / "cross", tmp_path / "cross.zarr"))
    K, across = gram(KERNEL, X, store=store), gram(KERNEL, X, Z, store=cross)
    plain = zarr.open_array(store, path="K", mode="r")  # as any reader opens it
    model = GPRegressor(noise=0.1).fit(K=expected(), y=X[:, 0])
    elsewhere = pickle.loads(pickle.dumps(K))
    np.testing.assert_array_equal(elsewhere[:], expected())
    swap(store, "K/c/0/0", "K/c/1/1")
    swap(cross, "K/c/0/0", "K/c/1/0")
    y = np.ones(N)
    readers: list[Any] = [
        lambda: K[:],
        lambda: np.asarray(K),
        lambda: elsewhere[:],
        lambda: across[40:50],
        lambda: GPRegressor(noise=0.1).fit(K=plain, y=y),
        lambda: GPRegressor(noise=0.1, solver="cg").fit(K=plain, y=y),
        lambda: model.predict(K=plain),
        *(lambda m=m, p=p: solve(p, y, 100.0, m, device="cpu") for m in ("cholesky", "cg") for p in (store, plain)),
    ]
    for use in readers:
        with pytest.raises(StoreError, match=r"chunk \(\d, \d\) of the kernel matrix cannot be used: it is another"):
            use()
    swap(store, "K/c/0/0", "K/c/1/1")
    (store / "K/c/1/2").unlink()
    with pytest.raises(StoreError, match=r"chunk \(1, 2\) .* cannot be used: it is not there; run gram"):
        K[:]


def test_a_seal_does_not_hold_for_a_chunk_that_growth_cut() -> None:
    """Should one be left by the growth of a matrix, whose identity stays the same."""
    grid, grown = (Grid((n, n), (20, 20), symmetric=True) for n in (50, 55))
    data = seal("this", grid, 1, 2, [b"abcd", b"efgh"])
    assert (sealed_sum(data, "this", grid, 1, 2), sealed_sum(data, "this", grid, 2, 1)) == (b"abcd", b"efgh")
    with pytest.raises(ValueError, match="its seal is that of another tile, or damaged"):
        sealed_sum(data, "this", grown, 1, 2)


def test_the_seal_is_written_last(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed before it leaves a tile that does not count."""
    order: list[str] = []
    put = LocalStore.set

    async def note(self: Any, key: str, value: Any) -> None:
        await put(self, key, value)
        order.append(key)

    shutil.rmtree(store / "K/c/2")
    monkeypatch.setattr(LocalStore, "set", note)
    gram(KERNEL, X, store=store)
    for i, j in ((0, 2), (1, 2), (2, 2), (2, 3)):
        assert order.index(f"K/seals/{i}/{j}") > max(order.index(f"K/c/{i}/{j}"), order.index(f"K/c/{j}/{i}"))
