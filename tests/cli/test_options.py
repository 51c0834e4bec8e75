"""Options and their values: refused in their own words, before anything is read; data options on every command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr
from PIL import Image

from cnngp.cli import run
from cnngp.common.devices import Device
from cnngp.datasets.images import Aspect
from cnngp.datasets.preparation import NAMED as PREPARATIONS
from cnngp.gp.objectives import RULES
from cnngp.kernel.making import DTYPES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preparation", "foo"], f"--preparation foo: expected {', '.join(list(PREPARATIONS)[:-2])}"),
        (["--network", "nosuch"], "no network 'nosuch': expected auto, resnet32"),
        (["--network", "resnet9"], "depth=9 is not 6n + 2"),
        (["--kind", "foo"], "--kind foo: expected nngp or ntk"),
        (["--dtype", "float16"], f"--dtype float16: expected {' or '.join(DTYPES)}"),
        (["--device", "tpu"], "--device tpu: expected "),
        (["--effort", "all"], "--effort all: expected quick, normal or best"),
        (["--recipe", "no.json", "--network", "small_cnn"], "--recipe names the networks"),
        (["--learn", "foo"], "--learn foo: expected loo or likelihood"),
        (["--learn", ""], "--learn '': expected loo or likelihood"),
        (
            ["--kind", "ntk", "--learn", "loo"],
            "--learn follows the gradient of the Gaussian process's kernel; leave out",
        ),
        (["--noise", "-1"], "--noise -1: expected a variance of 0 or more"),
        (["--noise", "some"], "--noise some: expected a variance of 0 or more"),
        (["--amplitude", "no"], "--amplitude no: expected ml, loo or a positive number"),
        (["--amplitude", "0"], "--amplitude 0: expected ml, loo or a positive number"),
        (["--aspect", "crop"], f"--aspect crop: expected {' or '.join(get_args(Aspect))}"),
        (["--split", "mine"], "--split mine: expected standard or paper"),
        (["--size", "8x"], "--size 8x: expected a height and a width such as 48x64"),
        (["--input-shape", "128"], "--input-shape 128: expected the channels, then the sizes, such as 1,28,28"),
        (["--input-shape", "1,0"], "--input-shape 1,0: expected the channels, then the sizes"),
        (["--train", "0"], "--train 0: expected a whole number of 1 or more"),
        (["--threads", "two"], "--threads two: expected a whole number of 1 or more"),
        (["--draws", "0"], "--draws 0: expected a whole number of 1 or more"),
        (["--samples", "10"], "--samples 10: expected a whole number of 20 or more"),
        (["--channels", "4"], "--channels 4: give at least two different positive widths"),
    ],
)
def test_options_are_checked_before_anything_is_read(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By every command that has them. The data is not there, which would be the error if it were looked for."""
    having = 0
    for command in ("classify", "gram", "search", "sample"):
        assert run([command, "--help"]) == 0
        page = capsys.readouterr().out
        if not all(f" {word} " in page for word in words if word.startswith("--")):
            continue
        having += 1
        place = {"gram": ["--plan"], "sample": ["--output", str(tmp_path / "a.png")]}.get(command, [])
        assert run([command, "--data", str(tmp_path / "no such data"), *place, *words]) in (1, 2)
        told = capsys.readouterr()
        assert told.err.startswith("error: ")
        assert message in told.err
        assert told.err.count("\n") == 1
        assert told.out == ""
    assert having > 0


def test_every_word_that_an_option_lists_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the words of the command line stay those of the library."""
    words = [("--preparation", p) for p in (*PREPARATIONS, "loo")] + [("--learn", r) for r in RULES]
    words += [("--aspect", a) for a in get_args(Aspect)] + [("--dtype", d) for d in DTYPES]
    words += [("--device", d) for d in get_args(Device) if d != "cuda"]
    for option, word in words:
        assert run(["classify", "--data", str(tmp_path / "none"), option, word]) == 1
        assert "no data" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["classify", "gram", "search", "sample"])
def test_no_data_is_not_this_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run([command, "--data", "", *(["--plan"] if command == "gram" else [])]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --data '': expected the name of a data set, an .npz file or a folder"
    )


def test_help_shows_no_types_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("classify", "gram", "predict", "view", "sample", "search", "reproduce", "networks", "info"):
        assert run([command, "--help"]) == 0
        page = capsys.readouterr().out
        assert "list[" not in page
        assert re.search("<(int|float|str|path|range)", page) is None
        assert "{" not in page
    assert run(["predict", "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: cnngp predict [OPTIONS] MODEL IMAGES...\n")
    assert "\n  MODEL  " in page


# ---- folders and files on every command ------------------------------------------------------------------------------


def pictures(folder: Path, n: int = 10) -> None:
    """Two classes of grey pictures, of all sizes, with one file that cannot be read."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(("flat", "steep")):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = rng.uniform(0, 60, (8, 8 + i)) + 150 * (np.indices((8, 8 + i))[k] % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    (folder / "flat" / "broken.png").write_bytes(b"hello")


def signals(path: Path, flat: bool = False) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = np.sin(np.linspace(0, 1, 32) * 2 * np.pi * (2 + 3 * y[:, None])) + rng.normal(0, 0.2, (60, 32))
    np.savez(path, X=X if flat else X[:, None], y=y)


def test_search_takes_the_options_that_it_advises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures(tmp_path / "a")
    arguments = ["search", "--data", str(tmp_path / "a"), "--draws", "1", "--device", "cpu", "--aspect", "pad"]
    arguments += ["--size", "8", "--output", str(tmp_path / "out")]
    assert run(arguments) == 1
    assert "leave it out with skip_bad=True (--skip-bad)" in capsys.readouterr().err
    assert run([*arguments, "--skip-bad"]) == 0
    printed = capsys.readouterr().out
    assert "padded with black" in printed
    assert "left out 1 image that cannot be read" in printed


def test_sample_takes_the_options_of_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pictures(tmp_path / "a")
    arguments = ["sample", "--data", str(tmp_path / "a"), "--images", "2", "--channels", "2,4", "--samples", "20"]
    arguments += ["--size", "6x8", "--aspect", "pad", "--output", str(tmp_path / "a.png")]
    assert run(arguments) == 1
    assert "leave it out with skip_bad=True (--skip-bad)" in capsys.readouterr().err
    assert run([*arguments, "--skip-bad"]) == 0
    assert "20 images of 20 brought to 6 × 8" in capsys.readouterr().out


def test_gram_of_a_folder_is_of_all_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And `classify --test 0` finds the matrix there."""
    pictures(tmp_path / "a")
    common = [
        "--data",
        str(tmp_path / "a"),
        "--skip-bad",
        "--network",
        "small_cnn",
        "--store",
        str(tmp_path / "K.zarr"),
    ]
    assert run(["gram", *common]) == 0
    printed = capsys.readouterr().out
    assert "20 images of " in printed
    assert "kept for testing" not in printed
    assert zarr.open_array(str(tmp_path / "K.zarr"), path="K", mode="r").shape == (20, 20)
    assert run(["classify", *common, "--test", "0", "--no-model", "--output", str(tmp_path / "out")]) == 0


def test_gram_of_a_file_has_its_rows_in_order(tmp_path: Path) -> None:
    from cnngp import Kernel, zoo

    signals(tmp_path / "s.npz")
    arguments = ["gram", "--data", str(tmp_path / "s.npz"), "--input-shape", "1,32", "--network", "small_cnn"]
    assert run([*arguments, "--store", str(tmp_path / "K.zarr"), "--device", "cpu"]) == 0
    with np.load(tmp_path / "s.npz") as file:
        K = Kernel(zoo.small_cnn(), device="cpu")(file["X"].astype(np.float32), progress=False)
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "K.zarr"), path="K", mode="r")[:], K)


@pytest.mark.parametrize("flat", [False, True])
def test_signals_from_a_file(flat: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signals(tmp_path / "s.npz", flat)
    arguments = ["classify", "--data", str(tmp_path / "s.npz"), "--output", str(tmp_path / "out")]
    assert run(arguments) == 1
    error = capsys.readouterr().err
    assert "(--input-shape 1,32) for signals" in error
    assert error.count("\n") == 1
    assert run([*arguments, "--input-shape", "1x32", "--json"]) == 0
    printed = capsys.readouterr()
    assert "s: 48 training, 12 test images of 1 × 32" in printed.err
    assert json.loads(printed.out)["test_error"] <= 0.1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "--input-shape 1x32" in page
    assert "Most uncertain" in page  # with pictures of curves
    assert run([*arguments, "--input-shape", "2,32"]) == 1
    assert "does not hold images of (2, 32), 64 numbers each" in capsys.readouterr().err


def test_search_takes_signals(tmp_path: Path) -> None:
    signals(tmp_path / "s.npz")
    arguments = [
        "search",
        "--data",
        str(tmp_path / "s.npz"),
        "--input-shape",
        "1,32",
        "--draws",
        "1",
        "--device",
        "cpu",
    ]
    assert run([*arguments, "--output", str(tmp_path / "out")]) == 0


# ---- no test set -----------------------------------------------------------------------------------------------------


def without_test_set(arguments: list[str], folder: Path, capsys: Any) -> tuple[dict[str, Any], str, str]:
    assert run(["classify", *arguments, "--test", "0", "--output", str(folder), "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["test"] is None
    assert result["test_error"] is None
    assert result["mistakes"] == result["uncertain"] == []
    assert json.loads((folder / "results.json").read_text())["loo_error"] == result["loo_error"]
    assert not any(line.startswith(("test ", "predict ")) for line in printed.err.splitlines())
    assert any(line.startswith("leave-one-out ") for line in printed.err.splitlines())
    page = (folder / "report.html").read_text()
    for text in ("test error", "test images wrong", "test image", "Confidently wrong", "Most uncertain"):
        assert text not in page
    assert "Confusion matrix of the leave-one-out predictions" in page
    assert "--test 0" in page
    return result, printed.err, page


def test_no_test_set_of_a_named_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, printed, page = without_test_set(["--train", "60", "--network", "small_cnn"], tmp_path, capsys)
    assert result["train"] == 60
    assert "digits: 60 training images of 1 × 8 × 8" in printed
    assert "The model was trained on 60 images by one linear solve. By leave-one-out" in page


def test_all_pictures_of_a_folder_are_fitted_even_a_class_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures(tmp_path / "b")
    (tmp_path / "b" / "lonely").mkdir()
    Image.new("L", (8, 8), 90).save(tmp_path / "b" / "lonely" / "0.png")
    arguments = ["--data", str(tmp_path / "b"), "--skip-bad", "--size", "8", "--network", "small_cnn"]
    assert run(["classify", *arguments]) == 1
    error = capsys.readouterr().err
    assert "class lonely has a single image, and one of each class is kept for testing; add another" in error
    assert "leave the class out, or fit all images without a test set: `cnngp classify --test 0`" in error
    result, printed, _ = without_test_set(arguments, tmp_path / "out", capsys)
    assert (result["train"], result["classes"]) == (21, 3)
    assert "kept for testing" not in printed


def test_validation_images_stay_without_a_test_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures(tmp_path / "b" / "train")
    pictures(tmp_path / "b" / "val", n=4)
    arguments = ["--data", str(tmp_path / "b"), "--skip-bad", "--size", "8", "--network", "small_cnn"]
    result, printed, page = without_test_set(arguments, tmp_path / "out", capsys)
    assert result["train"] == 20
    assert result["validation"] is not None
    assert "b: 20 training, 8 validation images of 1 × 8 × 8" in printed
    assert "validation error" in page
