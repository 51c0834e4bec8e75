"""Where a store may be: read-only places, full disks, links of somebody else, folders whose name is taken away."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore, StorePath

from cnngp import Dense, GPRegressor, gram
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.store.places import prototype
from cnngp.matrix.store.store import GramStore
from helpers.stores import KERNEL, TILE, TILES, X, contents, expected

SYSTEM_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

# ---- full disks and read-only places ---------------------------------------------------------------------------------


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


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def test_a_store_that_runs_full_keeps_what_it_has(tmp_path: Path, calls: list[int]) -> None:
    folder = tmp_path / "disk"
    with mounted(folder, "size=140k"):
        full = r"the disk is full; \d+ of 28 tiles are there and stay valid\. Free some"
        with pytest.raises(StoreError, match=full) as caught:
            gram(KERNEL, X, store=folder / "K.zarr", tile=TILE)
        assert "\n" not in str(caught.value)
        assert not list(folder.rglob("*.partial"))
        remount(folder, "size=10m")
        calls.clear()
        np.testing.assert_array_equal(gram(KERNEL, X, store=folder / "K.zarr")[:], expected())
        assert 0 < len(calls) - 1 < TILES  # `expected` is the one


def in_memory(store: Path) -> MemoryStore:
    files = [path for path in store.rglob("*") if path.is_file()]
    held = {str(path.relative_to(store)): prototype().buffer.from_bytes(path.read_bytes()) for path in files}
    return MemoryStore(held).with_read_only(True)


def remounted(store: Path) -> Path:
    remount(store.parent, "ro")
    return store


READ_ONLY: dict[str, Callable[[Path], Any]] = {
    "a Zarr store": lambda store: LocalStore(store).with_read_only(True),
    "a place in a Zarr store": lambda store: StorePath(LocalStore(store.parent).with_read_only(True), store.name),
    "a store in memory": in_memory,
    "a file system": remounted,
}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_a_read_only_place(kind: str, store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A whole matrix can be read there; anything else says that it cannot be written."""
    folder = tmp_path / "disk"
    with mounted(folder, "size=10m") if kind == "a file system" else contextlib.nullcontext():
        shutil.copytree(store, folder / "whole")
        (folder / "whole/K/.lock").unlink()
        for name, path in (("damaged", "K/c/0/1"), ("part", "K/c/2/5")):
            shutil.copytree(store, folder / name)
            (folder / name / path).write_bytes(b"")
        (folder / "part/K/c/2/5").unlink()
        places = {name: READ_ONLY[kind](folder / name) for name in ("whole", "damaged", "part", "new")}
        np.testing.assert_array_equal(gram(KERNEL, X, store=places["whole"])[:], expected())
        for name, images in (("whole", np.concatenate([X, X])), ("damaged", X), ("part", X)):
            with pytest.raises(StoreError, match="lacks tiles and cannot be written; copy it"):
                gram(KERNEL, images, store=places[name])
        assert not (folder / "whole/K/.lock").exists()
        assert "computed again" not in caplog.text
        with pytest.raises(StoreError, match=r"cannot be (written|made: Read-only file system); choose a place"):
            gram(KERNEL, X, store=places["new"])


@pytest.mark.skipif(SYSTEM_ROOT, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)  # pytest deletes it all the same
    with pytest.raises(StoreError, match="cannot be made: Permission denied"):
        gram(KERNEL, X, store=tmp_path / "K.zarr")


def test_notes_that_cannot_be_written_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a run nor the opening of a matrix that is whole."""
    monkeypatch.setattr(GramStore, "_update", fill_the_disk)
    for _ in range(2):
        np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K", tile=TILE)[:], expected())
    assert "its progress could not be noted (No space left on device)" in caplog.text


# ---- what happens in the middle of a run ----------------------------------------------------------------------------


def link(place: Path, other: Path) -> None:
    place.rename(place.with_name("aside"))
    place.symlink_to(other)


def lose_metadata(place: Path, other: Path) -> None:
    (place / "zarr.json").unlink()


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def fill_the_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def spoil(place: Path, other: Path) -> Any:
    """A tile that is not finite."""
    return np.full((TILE, TILE), np.nan, np.float32)


TAKEN_AWAY = r"K\.zarr was moved, deleted or replaced while it was in use"
TILES_AT = "0–31, columns 0–31|32–63, columns 64–95|160–191, columns 192–199"  # the tiles that are computed as below
NOT_FINITE = f"rows ({TILES_AT}) of the kernel came out as NaN or infinite; nothing of it was written"
FULL = r"K\.zarr: the disk is full; \d+ of 28 tiles are there and stay valid\. Free some space and run the same again"
INTERRUPTED = r"interrupted; \d+ of 28 tiles are there and stay valid in \S+\. Run it again to continue$"


@pytest.mark.parametrize(
    ("harm", "error", "message"),
    [
        (link, StoreError, TAKEN_AWAY),
        (interrupt, KeyboardInterrupt, INTERRUPTED),
        (fill_the_disk, StoreError, FULL),
        (spoil, StoreError, NOT_FINITE),
        (lose_metadata, None, ""),
    ],
)
@pytest.mark.parametrize("tiles", [1, 9, 27])
def test_what_happens_in_the_middle_of_a_run_makes_nothing_wrong(
    harm: Any, error: Any, message: str, tiles: int, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written elsewhere, and nothing is left that the next run would refuse or take for right."""
    place, other = tmp_path / "K.zarr", Path(shutil.copytree(stores / "other images", tmp_path / "other.zarr"))
    whole = contents(other)
    calls: list[int] = []
    monkeypatch.setattr("cnngp.kernel.kernel.compared", lambda *given: None)

    def harmed(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(1)
            made = harm(place, other) if len(calls) == tiles else None
            return original(*arguments) if made is None else made

        return call

    with monkeypatch.context() as m:
        for name in ("cross", "symmetric"):
            m.setattr(CpuEngine, name, harmed(getattr(CpuEngine, name)))
        with contextlib.nullcontext() if error is None else pytest.raises(error, match=message) as caught:
            gram(KERNEL, X, store=place, tile=TILE)
    assert error is None or "\n" not in str(caught.value)
    assert contents(other) == whole
    if harm is link:
        place.unlink()
    np.testing.assert_array_equal(gram(KERNEL, X, store=place, tile=TILE, verify=False)[:], expected())


def test_a_damaged_tile_is_gone_before_it_is_computed_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, a later run without verification must not take it for good."""
    (store / "K/c/2/5").write_bytes(bytes((store / "K/c/2/5").stat().st_size))
    with monkeypatch.context() as m:
        m.setattr(CpuEngine, "cross", interrupt)
        with pytest.raises(KeyboardInterrupt):
            gram(KERNEL, X, store=store)
    np.testing.assert_array_equal(gram(KERNEL, X, store=store, verify=False)[:], expected())


# ---- stores of somebody else ----------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of ours that a store from somebody else points into."""
    folder = tmp_path / "private"
    folder.mkdir()
    for name in ("0", "1", "5.0a.partial", "zarr.json"):
        (folder / name).write_text('"chapter 1"')
    return folder


FOLDERS = ("K", "K/c", "K/c/0", "K/seals", "K/seals/0", "images")


@pytest.mark.parametrize("name", ["K/.lock", "zarr.json", "K/zarr.json", *FOLDERS])
def test_a_link_in_a_store_is_not_followed(name: str, theirs: Path, store: Path) -> None:
    path = store / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(theirs if name in FOLDERS else theirs / "zarr.json")
    before = contents(theirs)
    with pytest.raises(StoreError, match=r"makes no links in a store and follows none|cannot be read") as caught:
        gram(KERNEL, X + 1, store=store)
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError):
        gram(KERNEL, np.concatenate([X, X]), store=store)
    assert contents(theirs) == before


@pytest.mark.parametrize("name", ["K.zarr", "cross-validation.zarr"])
def test_a_store_behind_a_link_is_the_users_own_choice(name: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "disk")
    np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / name, tile=TILE)[:], expected())


def test_a_link_in_the_place_of_a_prediction_is_not_followed(theirs: Path, tmp_path: Path) -> None:
    model = GPRegressor(Dense(), noise=0.1, device="cpu", store=tmp_path / "fit").fit(X, X[:, 0])
    model.predict(X[:5])
    (cross,) = (tmp_path / "fit").glob("cross-*")
    shutil.rmtree(cross)
    cross.symlink_to(theirs)
    before = contents(theirs)
    with pytest.raises(StoreError, match="follows none"):
        model.predict(X[:5])
    assert contents(theirs) == before


def test_places_that_hold_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    zarr.create_group(tmp_path / "theirs" / "group")
    zarr.create_group(tmp_path / "newer" / "K", attributes={"cnngp_gram": 99})
    before = contents(tmp_path)
    for place, message in (
        (tmp_path / "file", "is a file"),
        *((where, r"did not make \(it holds file") for where in (tmp_path, LocalStore(tmp_path))),
        (StorePath(LocalStore(tmp_path.parent), tmp_path.name), r"did not make \(it holds file"),
        (tmp_path / "theirs" / "group", "a Zarr group that cnngp did not make"),
        (3, "expected a path, a URL"),
        ("nonsense://there/K", "nonsense"),
        (tmp_path / "newer" / "K", "format 99; this version of cnngp reads format 3"),
    ):
        with pytest.raises(StoreError, match=message):
            gram(KERNEL, X, store=place)
    assert contents(tmp_path) == before
