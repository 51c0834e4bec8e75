"""Stores behind estimators and the command line: what was computed once is never computed again."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, datasets, gram, zoo
from cnngp.cli import run
from cnngp.gp.checks import float64_buffer
from cnngp.matrix.plan import plan

DIGITS = datasets.digits().take(150, 40)
NET = zoo.small_cnn()


def test_an_estimator_computes_each_kernel_once(tmp_path: Path, calls: list[int]) -> None:
    place = str(tmp_path / "run.zarr")
    plain = GPClassifier(NET, device="cpu").fit(DIGITS.X, DIGITS.y)
    expected = plain.predict_proba(DIGITS.X_test)
    calls.clear()
    for matrices in (2, 0):
        clf = GPClassifier(NET, device="cpu", store=place).fit(DIGITS.X, DIGITS.y)
        np.testing.assert_array_equal(clf.predict_proba(DIGITS.X_test), expected)
        np.testing.assert_array_equal(clf.predict(DIGITS.X_test), plain.predict(DIGITS.X_test))
        assert clf.loo_error_ == plain.loo_error_
        calls_now = len(calls)
        calls.clear()
        assert calls_now - 1 == matrices  # `plain.predict` above is the one
    group = zarr.open_group(place, mode="r")
    names = sorted(name for name, _ in group.members())
    assert names[0] == "K"
    assert names[1].startswith("cross-")
    assert len(names) == 2


def test_the_store_of_gram_is_the_store_of_an_estimator(tmp_path: Path, calls: list[int]) -> None:
    """On a disk or in memory; the second fit computes nothing."""
    y = DIGITS.X.mean(axis=(1, 2, 3))
    expected = GPRegressor(NET, noise=1e-3, device="cpu").fit(DIGITS.X, y).predict(DIGITS.X_test, return_std=True)
    for place in (tmp_path / "K.zarr", "memory://cnngp-estimators/run.zarr"):
        gram(Kernel(NET, device="cpu"), DIGITS.X, store=place)
        calls.clear()
        reg = GPRegressor(NET, noise=1e-3, device="cpu", store=place).fit(DIGITS.X, y)
        assert not calls
        for a, b in zip(reg.predict(DIGITS.X_test, return_std=True), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_buffer_reads_each_chunk_of_a_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(NET, device="cpu")
    K = gram(kernel, DIGITS.X, store=tmp_path / "K", tile=64)
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
    np.testing.assert_array_equal(A, kernel(DIGITS.X).astype(np.float64))


# ---- the command line -----------------------------------------------------------------------------------------------


def last_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_gram_plan_and_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "K.zarr")
    asked = ["--network", "small_cnn", "--tile", "64", "--train", "150", "--device", "cpu", "--json"]
    assert run(["gram", "--plan", *asked]) == 0
    planned = last_json(capsys)
    assert (planned["pairs"], planned["tiles"], planned["tile"]) == (150 * 149 // 2, 6, 64)
    assert planned["disk_bytes"] == 9 * (64 * 64 * 4 + 4)
    assert planned["pairs_per_second"] > 0
    assert not (tmp_path / "K.zarr").exists()
    assert run(["gram", "--store", place, *asked]) == 0
    assert last_json(capsys)["shape"] == [150, 150]
    assert sum(p.stat().st_size for p in Path(place).glob("K/c/*/*")) == planned["disk_bytes"]
    assert run(["gram", "--status", place, "--json"]) == 0
    held = last_json(capsys)
    assert (held["whole"], held["tiles"], held["missing"], held["damaged"]) == (True, 6, 0, 0)
    assert held["bytes"] == planned["disk_bytes"]
    np.testing.assert_array_equal(
        zarr.open_array(place, path="K", mode="r")[:], Kernel(NET, device="cpu")(DIGITS.X, progress=False)
    )


def test_status_of_a_store_that_is_not_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "K.zarr"
    gram(Kernel(NET, device="cpu"), DIGITS.X, store=place, tile=64)
    (place / "K/c/0/1").unlink()
    (place / "K/c/2/2").write_bytes(b"broken")
    before = sorted(place.rglob("*"))
    for option, told in (("--verify", "no: 1 tiles missing, 1 damaged"), ("--no-verify", "no: 1 tiles missing")):
        assert run(["gram", "--status", str(place), option]) == 0
        assert told in capsys.readouterr().out
    assert sorted(place.rglob("*")) == before
    gram(Kernel(NET, device="cpu"), DIGITS.X, store=place)
    assert run(["gram", "--status", str(place)]) == 0
    assert "yes, every tile was read and is good" in capsys.readouterr().out


@pytest.mark.parametrize("verify", ["--verify", "--no-verify"])
def test_status_of_a_store_that_cannot_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verify: str
) -> None:
    place = tmp_path / "K.zarr"
    K = gram(Kernel(NET, device="cpu"), DIGITS.X, store=place, tile=64)[:]
    metadata = place / "K/zarr.json"
    for content, told in (
        ("{", "it cannot be read"),
        (metadata.read_text().replace('"float32"', '"float64"'), "changed in data_type"),
        (None, "it is missing; run gram on the store again"),
    ):
        metadata.unlink()
        if content is not None:
            metadata.write_text(content)
        assert run(["gram", "--status", str(place), verify]) == 1
        shown = capsys.readouterr()
        assert f"K/zarr.json does not fit the matrix: {told}" in shown.err
        assert shown.err.count("\n") == 1
        assert "whole" not in shown.out
        np.testing.assert_array_equal(gram(Kernel(NET, device="cpu"), DIGITS.X, store=place)[:], K)
        assert run(["gram", "--status", str(place), verify]) == 0
        capsys.readouterr()


def test_a_store_of_another_network_is_refused_at_once_and_by_name(tmp_path: Path, capsys: Any) -> None:
    place = str(tmp_path / "K.zarr")
    asked = ["gram", "--store", place, "--train", "40", "--device", "cpu", "--network"]
    assert run([*asked, "resnet14"]) == 0
    capsys.readouterr()
    (tmp_path / "own.json").write_text(Sequential(Conv(5), ReLU(), Dense()).to_json())
    own = "resnet14 there, Sequential(Conv(5), ReLU(), Dense()) now; layers[0].kernel_size is 3 there, 5 now"
    for other, told in (("resnet8", "resnet14 there, resnet8 now"), (str(tmp_path / "own.json"), own)):
        assert run([*asked, other]) == 1
        shown = capsys.readouterr()
        assert "continues" not in shown.out + shown.err
        assert "expected time" not in shown.out + shown.err
        assert told in shown.err
        assert shown.err.count("error:") == 1
    assert run(["gram", "--status", place]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["network", "resnet14"] for line in lines)
    assert max(map(len, lines)) < 160


def test_a_plan_for_fewer_images_than_a_tile() -> None:
    p = plan(Kernel(NET, device="cpu"), DIGITS.X[:1])
    assert (p.pairs, p.tiles) == (0, 1)


NO_STORES = ["list", "array", "bytes", "folder", "file", "file/inside", "nothing", "", "memory://nobody/here"]
NO_STORES += ["nonsense://there/K", "file:///nowhere/K", "zip::nonsense"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gram"], "say where the matrix goes"),
        (["gram", "--status", "nowhere.zarr"], "nowhere.zarr does not exist"),
        (["gram", "--status", "."], "is not a store of cnngp"),
        (["gram", "--store", "s4://bucket/K"], "store='s4://bucket/K' cannot be opened: Protocol not known"),
        *((["gram", "--status", where], "") for where in NO_STORES),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, text in (("list", "[]"), ("array", '{"zarr_format": 3, "node_type": "array"}'), ("bytes", "\0\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(text)
    (tmp_path / "folder" / "zarr.json").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "Please report" not in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_classify_keeps_its_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[int]) -> None:
    arguments = ["classify", "--network", "small_cnn", "--train", "60", "--test", "20", "--device", "cpu"]
    errors = []
    for _ in range(2):
        calls.clear()
        assert run([*arguments, "--output", str(tmp_path / "out"), "--store", str(tmp_path / "K.zarr"), "--json"]) == 0
        errors.append(last_json(capsys)["test_error"])
    assert not calls
    assert errors[0] == errors[1]


@pytest.mark.parametrize(("output", "extra"), [("cupy", "cuda"), ("torch", "torch")])
def test_an_output_that_cannot_be_made(output: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, output, None)
    with pytest.raises(ImportError, match=rf'^output={output!r} needs .*: pip install "cnngp\[{extra}\]"$'):
        gram(Kernel(Dense(), device="cpu"), np.ones((3, 2)), output=output)
