"""Files that are whole or not there, and zips that are what they say."""

import io
import json
import os
import random
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, GPRegressor, ReLU, Sequential
from cnngp.common import files
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


def test_a_file_is_replaced_as_a_whole_and_never_readable_by_more_people(tmp_path: Path) -> None:
    """It keeps its mode, and after an error its content; nothing else is left."""
    path, names = tmp_path / "m", set()
    path.write_text("old")
    usual = path.stat().st_mode
    for mode in (0o600, 0o640, 0o604):
        path.chmod(mode)
        before = path.read_text()
        with replacing(path) as file:
            file.write(f"new {mode}".encode())
            (temporary,) = tmp_path.glob(".m.*.part")
            assert stat.S_IMODE(temporary.stat().st_mode) == mode
            assert path.read_text() == before
        names.add(temporary.name)
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (f"new {mode}", mode)
    with pytest.raises(RuntimeError), replacing(path):
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert path.read_text() == f"new {mode}"
    write(tmp_path / "other", HEADER, ARRAYS)
    assert (tmp_path / "other").stat().st_mode == usual
    assert len(names) == 3  # they cannot be known beforehand
    assert all(str(os.getpid()) not in name.split(".") for name in names)


def test_what_a_killed_process_left_goes_and_what_another_writes_stays(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from cnngp.common.files import replacing
with replacing(Path({str(tmp_path / "m")!r})) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code])
    assert len(list(tmp_path.glob(".m.*.part"))) == 1
    with replacing(tmp_path / "m") as file:
        file.write(b"other")
        (alive,) = tmp_path.glob(".m.*.part")  # the dead one's is gone
        write(tmp_path / "m", HEADER, ARRAYS)  # sweeps, and leaves the one that is being written
        assert alive.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m").read_bytes() == b"other"


@pytest.mark.parametrize("name", [".m.old.part", ".m..part", ".m.0123456789ABCDEF.part", ".m.0123456789abcdef0.part"])
def test_a_file_of_another_name_is_not_taken_for_a_leftover(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("chapter 1")
    (tmp_path / ".m.0123456789abcdef.part").symlink_to(tmp_path / name)  # a link in the place of a leftover
    write(tmp_path / "m", HEADER, ARRAYS)
    assert (tmp_path / name).read_text() == "chapter 1"


# ---- zips of others -------------------------------------------------------------------------------------------------


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if name != "sha256"}


def craft(path: Path, parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """A zip whose checksum is right."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in parts.items():
            file.writestr(name, data)
        file.writestr("sha256", files._digest(parts))
    return path


def test_compressed_members_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    write(tmp_path / "m", HEADER, ARRAYS)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        craft(tmp_path / "c", members(tmp_path / "m") | {"big.npy": b"\0" * 1_000_000}, method)
        with pytest.raises(ModelFileError, match="is not a model saved by cnngp"):
            read(tmp_path / "c")


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    """Many names for the same bytes: ten megabytes would become gigabytes."""
    path = tmp_path / "m"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", b'{"cnngp_model": 1}')
        file.writestr("big.npy", b"\0" * 100_000)
        big = file.getinfo("big.npy")
        for k in range(20):
            again = zipfile.ZipInfo(f"big{k}.npy")
            again.file_size = again.compress_size = big.file_size
            again.CRC, again.header_offset = big.CRC, big.header_offset
            file.filelist.append(again)
            file.NameToInfo[again.filename] = again
        file.writestr("last.npy", b"\0" * 100)  # so that no name reaches into the directory at the end
        file._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(ModelFileError, match="is not a model saved by cnngp"):
        read(path)


def npy(shape: str, dtype: str = "'<f8'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


NO_HEADERS = ["[]", "{", "null", "[" * 100_000, '{"cnngp_model": 2}', '{"cnngp_model": [1]}']
NO_ARRAYS = [
    npy("(1000000000, 1000000000)"),
    npy("(3,)", data=b"\0" * 8),
    npy("(-1,)", data=b"\0" * 8),
    npy("(1,)", dtype="'O'", data=b"\0" * 8),
    npy("(1,)", dtype="'nonsense'", data=b"\0" * 8),
    npy("(" * 3000),
    npy("()", data=b"\0" * 9),
    npy("(1000000000,)", dtype="'<U0'"),  # four gigabytes of text from a file of two hundred bytes
    npy("(1000000000,)", dtype="'|V0'"),
    b"\x93NUMPY\x03\x00",
    b"\x93NUMPY",
    b"",
]


@pytest.mark.parametrize(
    ("part", "data", "message"),
    [
        *(("header.json", text.encode(), "has model format .*; this version reads 1") for text in NO_HEADERS),
        *(("X.npy", data, "holds an array that cannot be read") for data in NO_ARRAYS),
    ],
)
def test_parts_that_are_not_what_they_say(part: str, data: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path / "m", HEADER, {})
    craft(tmp_path / "c", members(tmp_path / "m") | {part: data})
    with pytest.raises(ModelFileError, match=message) as caught:
        read(tmp_path / "c")
    assert "\n" not in str(caught.value)


def test_any_flip_of_a_bit_is_found(tmp_path: Path) -> None:
    """All but those that Python's zipfile does not look at, which change nothing that is read."""
    write(tmp_path / "m", HEADER, ARRAYS)
    whole = (tmp_path / "m").read_bytes()
    wanted = json.dumps(read(tmp_path / "m")[0], sort_keys=True)
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
        assert json.dumps(header, sort_keys=True) == wanted
        assert all((arrays[name] == array).all() for name, array in ARRAYS.items())
    assert refused > len(whole) // 2


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "m", HEADER, ARRAYS)

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as m:
        m.setattr(zipfile, "ZipFile", denied)
        with pytest.raises(ModelFileError, match=r"m cannot be read \(Permission denied\)"):
            read(tmp_path / "m")
    with pytest.raises(ModelFileError, match="no such model file"):
        read(tmp_path)


# ---- models of others -----------------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(0).random((24, 1, 4, 4)).astype(np.float32)
NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
MODELS: dict[str, dict[str, Any]] = {
    "classifier": {"network": Dense(), "noise": 0.1},
    "regressor": {"network": Dense(), "noise": 0.1},
    "inducing": {"network": NET, "noise": 0.1, "inducing": 8},
    "prepared": {"network": NET, "noise": 0.1, "preparation": "contrast", "kind": "ntk"},
    "learned": {"network": NET, "learn": "loo"},
}


def saved(kind: str, path: Path) -> tuple[Any, dict[str, bytes]]:
    """A model, and the parts of its file."""
    if kind == "regressor":
        model: Any = GPRegressor(**MODELS[kind], device="cpu").fit(IMAGES, IMAGES[:, 0, 0, :2])
    else:
        model = GPClassifier(**MODELS[kind], device="cpu").fit(IMAGES, np.arange(24) % 3)
    model.save(path)
    return model, members(path)


def as_npy(a: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, a)
    return buffer.getvalue()


def crafted_parts(whole: dict[str, bytes]) -> list[dict[str, bytes]]:
    """A model without each of its parts, and with each of them changed for something else."""
    made = [{k: v for k, v in whole.items() if k != name} for name in whole if name != "header.json"]
    for name in [name for name in whole if name.endswith(".npy")]:
        one_nan = np.load(io.BytesIO(whole[name]))
        if one_nan.dtype.kind == "f" and one_nan.size:
            one_nan.flat[-1] = np.nan
        others = (np.zeros(0), np.zeros(8), np.array(3), np.zeros((0, 4)), np.full((24, 4), np.nan), np.array(["a"]))
        made += [whole | {name: as_npy(a)} for a in (*others, one_nan)]
    header = json.loads(whole["header.json"])
    strange: list[Any] = [None, [], {}, "x", -1, 1e308, [[1]], float("nan"), "a\nb"]
    headers = [{k: v for k, v in header.items() if k != key} for key in header]
    for key, value in header.items():
        if key != "cnngp_model":
            headers += [header | {key: other} for other in strange]
            inner = value if isinstance(value, dict) else {}
            headers += [header | {key: value | {k: other}} for k in inner for other in strange]
    return made + [whole | {"header.json": json.dumps(h).encode()} for h in random.Random(0).sample(headers, 60)]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")  # of numbers that make a poor model
@pytest.mark.parametrize(
    "kind", [*list(MODELS)[:3], *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("prepared", "learned"))]
)
def test_a_crafted_model_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    """Never with a KeyError, an IndexError or a MemoryError, and never later, when it predicts or is shown."""
    model, whole = saved(kind, tmp_path / "whole.gp")
    refused, every = 0, crafted_parts(whole)
    type(model).load(craft(tmp_path / "m.gp", whole), device="cpu")
    for made in every:
        path = craft(tmp_path / "m.gp", made)
        try:
            again = type(model).load(path, device="cpu")
            found = (again.predict if kind == "regressor" else again.predict_proba)(IMAGES[:3])
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017
            continue
        assert np.isfinite(found).all()
        if MODELS[kind]["network"] is NET:
            again.explain(IMAGES[:3])
        assert again.fit_report_.verdict
        assert again.fit_report_.rows()
    assert refused > len(every) // 3


def test_a_network_of_absurd_size_in_a_model_takes_no_time(tmp_path: Path) -> None:
    _, whole = saved("inducing", tmp_path / "m.gp")
    header = json.loads(whole["header.json"])
    recipe = json.loads(header["recipe"])
    began = time.monotonic()
    for field in ("kernel_size", "padding", "dilation", "stride"):
        network = json.loads(recipe["terms"][0]["network"])
        network["network"]["layers"][0][field] = 10**9
        term = recipe["terms"][0] | {"network": json.dumps(network)}
        absurd = header | {"recipe": json.dumps(recipe | {"terms": [term]})}
        craft(tmp_path / "m.gp", whole | {"header.json": json.dumps(absurd).encode()})
        try:
            GPClassifier.load(tmp_path / "m.gp", device="cpu").predict(np.zeros((1, 1, 4, 4)))
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
    assert time.monotonic() - began < 40


def test_a_model_names_no_store_and_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.gp"
    model, whole = saved("classifier", path)
    header = json.loads(whole["header.json"])
    for place in (str(tmp_path / "chosen"), "memory://chosen", "../chosen"):
        header["parameters"]["store"] = place
        loaded = GPClassifier.load(craft(path, whole | {"header.json": json.dumps(header).encode()}), device="cpu")
        assert loaded.store is None
        np.testing.assert_array_equal(loaded.predict(IMAGES), model.predict(IMAGES))
    assert list(tmp_path.iterdir()) == [path]
    craft(path, {k: v for k, v in whole.items() if k != "classes.npy"})
    with pytest.raises(ModelFileError, match=r"m\.gp is not a model that this version can read: it has no 'classes'"):
        GPClassifier.load(path, device="cpu")
    craft(path, whole | {"X.npy": as_npy(IMAGES[:23])})
    with pytest.raises(ModelFileError, match=r"can read: .*23"):
        GPClassifier.load(path, device="cpu")
