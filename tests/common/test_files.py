"""Files that are whole or not there, and arrays that are what they say."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp.common.errors import ModelFileError
from cnngp.common.files import read, replacing, write

HEADER, ARRAYS = {"a": 1}, {"X": np.arange(6.0).reshape(2, 3), "names": np.array(["b", "c"])}


# ---- the writer -----------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    columns = np.asfortranarray(np.arange(6).reshape(2, 3))
    write(tmp_path / "m", HEADER, ARRAYS | {"columns": columns, "none": np.zeros((0, 3)), "one": np.array(2.5)})
    header, arrays = read(tmp_path / "m")
    assert header["a"] == 1
    np.testing.assert_array_equal(arrays["X"], ARRAYS["X"])
    np.testing.assert_array_equal(arrays["names"], ARRAYS["names"])
    np.testing.assert_array_equal(arrays["columns"], columns)
    assert arrays["columns"].flags.f_contiguous  # algebra on another order has other last digits
    assert arrays["none"].shape == (0, 3)
    assert arrays["one"][()] == 2.5
    arrays["X"][0] = 0.0  # an array of the reader's own


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write(path, HEADER, ARRAYS)
    usual = stat.S_IMODE(path.stat().st_mode)
    (tmp_path / "any").write_text("")
    assert usual == stat.S_IMODE((tmp_path / "any").stat().st_mode)
    for mode in (0o600, 0o640, 0o604):
        path.chmod(mode)
        write(path, HEADER, ARRAYS)
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_file_is_never_readable_by_more_people_than_the_one_that_it_replaces(tmp_path: Path) -> None:
    path, names = tmp_path / "m", set()
    path.write_text("old")
    path.chmod(0o600)
    for _ in range(3):
        with replacing(path) as file:
            file.write(b"new")
            (temporary,) = tmp_path.glob(".m.*.part")
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
            assert path.read_text() == ("new" if names else "old")
        names.add(temporary.name)
    assert path.read_text() == "new"
    assert len(names) == 3  # they cannot be known beforehand
    assert all(str(os.getpid()) not in name.split(".") for name in names)


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("old")

    def fail() -> None:
        with replacing(tmp_path / "m") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m").read_text() == "old"


# ---- files of others ------------------------------------------------------------------------------------------------


def craft(path: Path, parts: dict[str, bytes]) -> None:
    """The model file `path` with these members instead of its own."""
    with zipfile.ZipFile(path) as file:
        held = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in (held | parts).items():
            file.writestr(name, data)


def npy(shape: str, dtype: str = "'<f8'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "data",
    [
        npy("(1000000000, 1000000000)"),
        npy("(3,)", data=b"\0" * 8),
        npy("(-1,)", data=b"\0" * 8),
        npy("(1,)", dtype="'O'", data=b"\0" * 8),
        npy("(1,)", dtype="'nonsense'", data=b"\0" * 8),
        npy("(" * 3000),
        b"\x93NUMPY",
    ],
)
def test_arrays_that_are_not_what_they_say(data: bytes, tmp_path: Path) -> None:
    write(tmp_path / "m", HEADER, {})
    craft(tmp_path / "m", {"X.npy": data})
    with pytest.raises(ModelFileError, match=r"is damaged|never unpickled") as caught:
        read(tmp_path / "m")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header", ["[]", "{", "null", "[" * 100_000, '{"cnngp_model": 1}', '{"cnngp_model": [1]}'])
def test_headers_that_are_none(header: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", header=np.frombuffer(header.encode(), np.uint8))
    with pytest.raises(ModelFileError, match="has model format"):
        read(tmp_path / "m.npz")


def test_any_flip_of_a_bit_is_found(tmp_path: Path) -> None:
    """All but those that Python's zipfile does not look at, which change nothing that is read."""
    write(tmp_path / "m", HEADER, ARRAYS)
    whole = (tmp_path / "m").read_bytes()
    wanted = read(tmp_path / "m")[0]
    refused = 0
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        (tmp_path / "f").write_bytes(data)
        try:
            header, arrays = read(tmp_path / "f")
        except ModelFileError:
            refused += 1
            continue
        assert header == wanted
        assert all((arrays[name] == array).all() for name, array in ARRAYS.items())
    assert refused > len(whole) // 2


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "m", HEADER, ARRAYS)

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as m:
        m.setattr(Path, "open", denied)
        with pytest.raises(ModelFileError, match=r"m cannot be read \(Permission denied\)"):
            read(tmp_path / "m")
    with pytest.raises(ModelFileError, match="is not a regular file"):
        read(tmp_path)
