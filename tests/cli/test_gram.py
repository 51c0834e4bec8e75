"""`cnngp gram`: the cost of a matrix, the matrix in a store, what a store holds, and who finds it there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from cnngp import Conv, Dense, GPClassifier, Kernel, ReLU, Sequential, datasets, zoo
from cnngp.cli.gram import tell_cost
from cnngp.cli.output import speaking
from cnngp.estimators import Recipe, Term

from .conftest import Command, signals, slanted

SMALL = Kernel(zoo.small_cnn(), device="cpu")


def matrix(place: Path) -> Any:
    return zarr.open_array(str(place), path="K", mode="r")


def test_a_store_from_its_plan_to_its_repair(tmp_path: Path, command: Command, refused: Any) -> None:
    place, of = tmp_path / "K.zarr", "--train 150 --tile 64 --device cpu"
    planned = command(f"gram --plan {of} --network small_cnn --json").json
    assert (planned["pairs"], planned["tiles"], planned["tile"]) == (150 * 149 // 2, 6, 64)
    assert planned["disk_bytes"] == 9 * (64 * 64 * 4 + 4)
    assert planned["pairs_per_second"] > 0
    assert not place.exists()
    said = command(f"gram --store {place} {of} --network small_cnn --json")
    assert said.json["shape"] == [150, 150]
    assert "continues" not in said.err
    np.testing.assert_array_equal(matrix(place)[:], SMALL(datasets.digits().X[:150]))
    assert sum(p.stat().st_size for p in place.glob("K/c/*/*")) == planned["disk_bytes"]
    held = command(f"gram --status {place} --json").json
    assert (held["whole"], held["tiles"], held["missing"], held["damaged"]) == (True, 6, 0, 0)
    assert held["bytes"] == planned["disk_bytes"]

    (tmp_path / "own.json").write_text(Sequential(Conv(5), ReLU(), Dense()).to_json())
    own = "small_cnn there, Sequential(Conv(5), ReLU(), Dense()) now; layers[0].kernel_size is 3 there, 5 now"
    for other, told in (("resnet8", "small_cnn there, resnet8 now"), (tmp_path / "own.json", own)):
        assert told in refused(f"gram --store {place} {of} --network {other}")

    (place / "K/c/0/1").unlink()
    (place / "K/c/2/2").write_bytes(b"broken")
    before = sorted(place.rglob("*"))
    for option, whole in (("--verify", "no: 1 tiles missing, 1 damaged;"), ("--no-verify", "no: 1 tiles missing")):
        said = command(f"gram --status {place} {option}")
        assert said.line("whole").startswith(whole)
        assert said.line("network") == "small_cnn"
    assert sorted(place.rglob("*")) == before
    assert command(f"gram --store {place} {of} --network small_cnn").line("continues").startswith("5 of 6 tiles are")
    assert command(f"gram --status {place}").line("whole") == "yes, every tile was read and is good"
    (place / "K/zarr.json").write_text("{")
    assert "K/zarr.json does not fit the matrix: it cannot be read" in refused(f"gram --status {place}")


NO_STORES = ["list", "array", "bytes", "folder", "file", "file/inside", "nothing", "''", "memory://nobody/here"]
NO_STORES += ["nonsense://there/K", "file:///nowhere/K", "zip::nonsense"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "say where the matrix goes"),
        ("--status nowhere.zarr", "nowhere.zarr does not exist"),
        ("--status .", "is not a store of cnngp"),
        ("--store s4://bucket/K", "store='s4://bucket/K' cannot be opened: Protocol not known"),
        *((f"--status {where}", "") for where in NO_STORES),
    ],
)
def test_what_is_no_store_is_refused_and_left_alone(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    for name, text in (("list", "[]"), ("array", '{"zarr_format": 3, "node_type": "array"}'), ("bytes", "\0\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(text)
    (tmp_path / "folder" / "zarr.json").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    error = refused(f"gram {words}")
    assert message in error
    assert "Please report" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_all_pictures_of_a_folder_prepared_as_a_fit_prepares_them(
    tmp_path: Path, command: Command, refused: Any
) -> None:
    """None is kept for a test, so `classify --test 0` finds the matrix there; one of other images says what differs."""
    store = tmp_path / "K.zarr"
    words = f"--data {slanted(tmp_path / 'a', broken=True)} --skip-bad --network small_cnn --store {store}"
    printed = command(f"gram {words} --preparation contrast").out
    assert "24 images of " in printed
    assert "kept for testing" not in printed
    assert matrix(store).shape == (24, 24)
    kept = {path: path.stat().st_mtime_ns for path in store.glob("K/c/*/*")}
    fit = f"classify {words} --test 0 --no-model --output {tmp_path / 'out'}"
    command(f"{fit} --preparation contrast")
    assert {path: path.stat().st_mtime_ns for path in store.glob("K/c/*/*")} == kept
    assert "This fit prepares its images, by 'edges'" in command(f"{fit} --preparation edges", 1).err


def test_the_rows_of_a_file_are_in_order(tmp_path: Path, command: Command) -> None:
    signals(tmp_path / "s.npz")
    data = f"--data {tmp_path / 's.npz'} --input-shape 1,32 --device cpu"
    command(f"gram {data} --network small_cnn --store {tmp_path / 'K.zarr'}")
    with np.load(tmp_path / "s.npz") as file:
        K = SMALL(file["X"].astype(np.float32), progress=False)
    np.testing.assert_array_equal(matrix(tmp_path / "K.zarr")[:], K)
    command(f"search {data} --draws 1 --output {tmp_path / 'out'}")


def test_the_matrices_of_a_recipe_are_those_of_its_fit(tmp_path: Path, command: Command, refused: Any) -> None:
    recipe = Recipe([Term("small_cnn", symmetry="flip"), Term("dense_nngp", preparation="zca")], noise=0.1)
    (tmp_path / "r.json").write_text(recipe.to_json())
    data = datasets.digits().take(40, 10)
    store = tmp_path / "store"
    words = f"gram --recipe {tmp_path / 'r.json'} --train 40 --store {store} --json"
    terms = command(words).json["terms"]
    assert {Path(t["store"]).name for t in terms} == {t.store_name for t in recipe.terms}
    stored = GPClassifier(recipe, store=store, device="cpu").fit(data.X, data.y)
    plain = GPClassifier(recipe, device="cpu").fit(data.X, data.y)
    assert {p.name for p in store.glob("term-*")} == {t.store_name for t in recipe.terms}
    np.testing.assert_array_equal(stored.loo_probabilities_, plain.loo_probabilities_)
    assert "leave out --preparation" in refused(f"{words} --preparation edges")


def test_only_long_work_is_measured_and_only_hours_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    X = np.random.default_rng(0).random((8, 1, 8, 8)).astype(np.float32)
    told = []
    with speaking():  # with the options of no other
        for rate, pairs in ((1000.0, 28), (1000.0, 600_000_000), (1e6, 600_000_000)):
            monkeypatch.setattr("cnngp.matrix.tile_size.measured_rate", lambda rows, side, rate=rate: rate)
            tell_cost(SMALL, X, pairs)
            told.append("".join(capsys.readouterr()))
    short, hours, minutes = told
    assert short == ""
    assert "about 166 h 40 min for the kernels of 600,000,000 pairs" in hours
    assert "more than an hour" in hours
    assert "about 10 min for" in minutes
    assert "hour" not in minutes
