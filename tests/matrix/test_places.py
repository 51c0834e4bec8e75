"""Stores on full disks, in read-only places, and in folders whose name is taken away while they are filled."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore, StorePath

from cnngp import Dense, Kernel, gram
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.store.store import GramStore
from helpers.stores import KERNEL, TILE, TILES, X, computed, contents, expected

SYSTEM_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


class FullStore(zarr.storage.LocalStore):
    """A disk with room for a given number of chunks."""

    room = 12

    async def set(self, key: str, value: Any) -> None:
        if "/c/" in f"/{key}":
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= 1
        await super().set(key, value)


def test_a_store_that_runs_full_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullStore(tmp_path / "K.zarr")
    with pytest.raises(StoreError, match=r"the disk is full; (\d+) of 28 tiles are there and stay valid\. Free some"):
        gram(KERNEL, X, store=full, tile=TILE)
    calls = computed(monkeypatch)
    np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K.zarr")[:], expected())
    assert 20 <= len(calls) <= TILES - 4


def test_notes_that_cannot_be_written_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a run nor the opening of a matrix that is whole."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GramStore, "_update", full)
    for _ in range(2):
        np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K", tile=TILE)[:], expected())
    assert "its progress could not be noted (No space left on device)" in caplog.text


@pytest.mark.parametrize("local", [False, True])
def test_a_zarr_store_that_is_read_only(local: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalStore(tmp_path / "K") if local else MemoryStore()
    with pytest.raises(StoreError, match="cannot be written; choose a place where you may write"):
        gram(KERNEL, X, store=store.with_read_only(True))
    gram(KERNEL, X, store=store, tile=TILE)
    (tmp_path / "K/K/.lock").unlink(missing_ok=True)
    reading = store.with_read_only(True)
    for place in (reading, StorePath(reading)):
        np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], expected())
        with pytest.raises(StoreError, match="lacks tiles and cannot be written"):
            gram(KERNEL, np.concatenate([X, X]), store=place)
    assert not (tmp_path / "K/K/.lock").exists()
    if local:
        (tmp_path / "K/K/c/0/1").write_bytes(b"")
        with pytest.raises(StoreError, match="lacks tiles and cannot be written"):
            gram(KERNEL, X, store=reading)
        assert "computed again" not in caplog.text


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if not SYSTEM_ROOT or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "disk"
    with mounted(folder, "size=140k"):
        with pytest.raises(StoreError, match=r"the disk is full; \d+ of 28 tiles are there and stay valid") as caught:
            gram(KERNEL, X, store=folder / "K.zarr", tile=TILE)
        assert "\n" not in str(caught.value)
        assert not list(folder.rglob("*.partial"))
        subprocess.run(["mount", "-o", "remount,size=10m", str(folder)], check=True)
        calls = computed(monkeypatch)
        np.testing.assert_array_equal(gram(KERNEL, X, store=folder / "K.zarr")[:], expected())
        assert 0 < len(calls) < TILES


def test_a_read_only_place(store: Path, tmp_path: Path) -> None:
    """A whole matrix can be read there; anything else says that it cannot be written."""
    folder = tmp_path / "disk"
    with mounted(folder, "size=10m"):
        shutil.copytree(store, folder / "whole")
        shutil.copytree(store, folder / "part")
        (folder / "part/K/c/2/5").unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        np.testing.assert_array_equal(gram(KERNEL, X, store=folder / "whole")[:], expected())
        with pytest.raises(StoreError, match="part lacks tiles and cannot be written; copy it"):
            gram(KERNEL, X, store=folder / "part")
        with pytest.raises(StoreError, match="whole lacks tiles and cannot be written"):
            gram(KERNEL, np.concatenate([X, X]), store=folder / "whole")
        with pytest.raises(StoreError, match=r"cannot be made: Read-only file system; choose a place"):
            gram(KERNEL, X, store=folder / "new.zarr")


@pytest.mark.skipif(SYSTEM_ROOT, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="cannot be made: Permission denied"):
            gram(KERNEL, X, store=tmp_path / "K.zarr")
    finally:
        tmp_path.chmod(0o700)


def test_a_tile_that_is_not_finite_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuEngine, "cross", lambda self, a, b, *_: np.full((len(a), len(b)), np.nan, np.float32))
    with pytest.raises(StoreError, match="columns 32–63 of the kernel came out as NaN"):
        gram(KERNEL, X, store=tmp_path / "K.zarr", tile=TILE)
    monkeypatch.undo()
    np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K.zarr")[:], expected())


# ---- a name that is taken away --------------------------------------------------------------------------------------


def delete(place: Path, other: Path) -> None:
    place.rename(place.with_name("aside"))
    shutil.rmtree(place.with_name("aside"), ignore_errors=True)  # in which a tile may just be written


def replace(place: Path, other: Path) -> None:
    place.rename(place.with_name("aside"))
    shutil.copytree(other, place)


def link(place: Path, other: Path) -> None:
    place.rename(place.with_name("aside"))
    place.symlink_to(other)


@pytest.mark.parametrize("harm", [delete, replace, link])
@pytest.mark.parametrize("tiles", [1, 9, 27])
def test_a_store_whose_name_is_taken_away_while_it_is_filled(
    harm: Any, tiles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written elsewhere, and nothing is left that the next run would refuse."""
    place, other = tmp_path / "K.zarr", tmp_path / "other.zarr"
    gram(Kernel(Dense(bias_var=1.0), device="cpu", threads=1), X, store=other, tile=TILE)
    whole = contents(other)
    calls: list[int] = []
    monkeypatch.setattr("cnngp.kernel.kernel.compared", lambda *given: None)

    def harmed(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == tiles:
                harm(place, other)
            return original(*arguments)

        return call

    with monkeypatch.context() as m:
        for name in ("cross", "symmetric"):
            m.setattr(CpuEngine, name, harmed(getattr(CpuEngine, name)))
        with pytest.raises(StoreError, match=r"K\.zarr was moved, deleted or replaced while it was in use") as caught:
            gram(KERNEL, X, store=place, tile=TILE)
    assert "\n" not in str(caught.value)
    assert contents(other) == whole
    if harm is replace:
        assert contents(place) == whole
        shutil.rmtree(place)
    elif harm is link:
        place.unlink()
    else:
        assert not place.exists()
    np.testing.assert_array_equal(gram(KERNEL, X, store=place, tile=TILE)[:], expected())


def test_metadata_that_is_lost_meanwhile_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, cross = tmp_path / "K.zarr", CpuEngine.cross

    def lose(*arguments: Any) -> Any:
        (place / "zarr.json").unlink(missing_ok=True)
        return cross(*arguments)

    with monkeypatch.context() as m:
        m.setattr(CpuEngine, "cross", lose)
        gram(KERNEL, X, store=place, tile=TILE)
    np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], expected())
