"""From pictures in folders to `cnngp predict`, with pixels on the scale of the fit."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, GPRegressor, datasets, zoo
from cnngp.cli import run
from cnngp.cli.predict import how_unusual


def test_a_folder_of_images_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What users have: folders of PNGs, then a new image."""
    rng = np.random.default_rng(0)
    for name, slant in (("left", 1), ("right", -1)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(20):
            pixels = 255.0 * np.eye(12)[:, ::slant] + rng.uniform(0, 60, (12, 12))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / "data" / name / f"{i}.png")
    words = ["--data", str(tmp_path / "data"), "--network", "small_cnn", "--output", str(tmp_path / "out")]
    assert run(["classify", *words]) == 0
    Image.fromarray((255 * np.eye(24)).astype(np.uint8)).save(tmp_path / "new.png")
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "out" / "model.gp"), str(tmp_path / "new.png"), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("engine")
    assert "left" in printed.err.splitlines()[2]
    assert printed.err.splitlines()[1].endswith("more unusual than")
    rank = json.loads(printed.out)["images"][0]["novelty_rank"]
    assert printed.err.splitlines()[2].endswith("all of the training images")
    assert rank == 1.0
    image = json.loads(printed.out)["images"][0]
    assert image["class"] == "left"
    assert image["for"][0]["name"].startswith("left/")
    total = sum(voice["share"] for voice in (*image["for"], *image["against"])) + image["rest"]
    assert total == pytest.approx(image["mean"], abs=1e-12)
    assert 0 < image["novelty"] < 1


@pytest.mark.parametrize(("scale", "pixels"), [(255, 255), (1, 1)])
def test_predict_takes_pixels_on_the_scale_of_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: int, pixels: int
) -> None:
    """A model of bytes fitted in Python: with pixels from 0 to 1 every image would be all but black to it."""
    data = datasets.digits().take(100)
    X = (255 * data.X).astype(np.uint8)
    clf = GPClassifier(zoo.small_cnn()).fit(X if scale == 255 else X / np.float32(255), data.y)
    clf.save(tmp_path / "m.gp")
    new = (255 * data.X_test[0, 0]).astype(np.uint8)
    Image.fromarray(new).save(tmp_path / "new.png")
    assert run(["predict", str(tmp_path / "m.gp"), str(tmp_path / "new.png"), "--json"]) == 0
    printed = capsys.readouterr()
    last = json.loads(printed.out)
    assert last["images"][0]["class"] == str(data.y_test[0])
    expected = clf.predict_proba((new if scale == 255 else new / np.float32(255))[None, None])[0]
    assert list(last["images"][0]["probabilities"].values()) == pytest.approx(expected, abs=1e-6)
    assert last["pixels"] == pixels
    assert ("pixels                 from 0 to 255, as in the images that" in printed.err) == (scale == 255)


@pytest.mark.parametrize(("factor", "shift", "range_"), [(16.0, 0.0, "0 to 16"), (2.0, -1.0, "-1 to 1")])
def test_predict_refuses_a_scale_that_files_do_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, shift: float, range_: str
) -> None:
    data = datasets.digits().take(40)
    GPClassifier(zoo.small_cnn()).fit(factor * data.X + shift, data.y).save(tmp_path / "m.gp")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "new.png")
    assert run(["predict", str(tmp_path / "m.gp"), str(tmp_path / "new.png")]) == 1
    error = capsys.readouterr().err
    assert f"m.gp was fitted on pixels from {range_}, and image files are read as 0 to 1 or 0 to 255" in error
    assert len(error.splitlines()) == 1


def slanted(folder: Path, suffix: str = "png", n: int = 12) -> None:
    rng = np.random.default_rng(0)
    for name, slant in (("left", 1), ("right", -1)):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = 255.0 * np.eye(12)[:, ::slant] + rng.uniform(0, 60, (12, 12))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:02}.{suffix}")


def test_photographs_start_to_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slanted(tmp_path / "data", "webp")
    (tmp_path / "data" / "left" / "05.webp").rename(tmp_path / "data" / "right" / "wrong.webp")
    (tmp_path / "data" / "left" / "broken.png").write_bytes(b"hello")
    (tmp_path / "data" / "left" / "notes.txt").write_text("hello")
    arguments = ["classify", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out"), "--size", "10x12"]
    arguments += ["--aspect", "pad", "--suspects", str(tmp_path / "deep" / "suspects.csv")]
    assert run(arguments) == 1
    assert "broken.png is not a readable image" in capsys.readouterr().err
    assert run([*arguments, "--skip-bad", "--json"]) == 0
    printed = capsys.readouterr()
    assert "24 images of 24 brought to 10 × 12; 24 of another aspect ratio padded with black" in printed.err
    assert "left out 1 file of other kinds: 1 .txt; left out 1 image that cannot be read" in printed.err
    result = json.loads(printed.out)
    assert len(result["notes"]) == 3  # the size, the test set, what was left out
    with (tmp_path / "deep" / "suspects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() == {"row", "name", "given", "proposed", "score"}
    assert len(rows) == result["train"]
    first = rows[0] if result["test_error"] == 0 else None
    shown = [s["name"] for s in result["suspects"]] + [m["name"] for m in result["mistakes"]]
    assert "right/wrong.webp" in shown
    if first is not None:
        assert (first["name"], first["given"], first["proposed"]) == ("right/wrong.webp", "right", "left")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "right/wrong.webp" in page
    assert "--size 10x12 --aspect pad --skip-bad" in page
    model = str(tmp_path / "out" / "model.gp")
    assert GPClassifier.load(model).image_aspect_ == "pad"
    assert run(["predict", model, str(tmp_path / "data" / "left"), "--json"]) == 1
    printed = capsys.readouterr()
    assert "warning: " in printed.err
    assert "broken.png is not a readable image" in printed.err
    result = json.loads(printed.out)
    assert len(result["images"]) == 11
    assert {image["class"] for image in result["images"]} == {"left"}
    assert result["unreadable"][0]["image"].endswith("broken.png")
    assert run(["predict", model, str(tmp_path / "none.png")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none.png'}: no such file\n"


@pytest.mark.parametrize("size", ["ten", "10x", "0"])
def test_sizes_that_are_none(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slanted(tmp_path / "data", n=3)
    assert run(["classify", "--data", str(tmp_path / "data"), "--size", size]) == 2
    assert "expected a height and a width such as 48x64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (0.0, "none of the training images"),
        (0.7999, "79 % of the training images"),
        (0.999, "99 % of the training images"),
        (1.0, "all of the training images"),
        (float("nan"), "not known"),
    ],
)
def test_how_unusual_an_image_is_in_words(rank: float, said: str) -> None:
    assert how_unusual(rank) == said


def test_a_picture_of_noise_is_more_unusual_than_those_of_the_fit(
    classified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / "noise.png")
    known = datasets.digits().X[0, 0]
    Image.fromarray((255 * known).round().astype(np.uint8)).save(tmp_path / "known.png")
    assert run(["predict", str(classified), str(tmp_path / "noise.png"), str(tmp_path / "known.png")]) == 0
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.endswith("99 % of the training images")
    assert second.endswith("none of the training images")


def test_a_folder_stands_for_the_model_in_it(
    classified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "new.png")
    assert run(["predict", str(classified), str(tmp_path / "new.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(classified / "model.gp")
    for command in (["predict", str(tmp_path), "new.png"], ["view", str(tmp_path)]):
        assert run(command) == 1
        assert (
            capsys.readouterr().err
            == f"error: {tmp_path} is a folder without a model.gp; give a file that `cnngp classify` wrote\n"
        )


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0 a picture"])
def test_a_file_of_another_kind_is_no_model(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.jpg").write_bytes(content)
    assert run(["predict", str(tmp_path / "new.jpg"), "a.png"]) == 1
    assert (
        capsys.readouterr().err == f"error: {tmp_path / 'new.jpg'} is not a cnngp model, but a file of another kind\n"
    )


def test_a_regressor_is_not_for_these_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = datasets.digits().take(40)
    GPRegressor(zoo.small_cnn()).fit(data.X, data.y.astype(float)).save(tmp_path / "reg.gp")
    for command in (["predict", str(tmp_path / "reg.gp"), "a.png"], ["view", str(tmp_path / "reg.gp")]):
        assert run(command) == 1
        assert (
            "reg.gp holds a GPRegressor, and this command is for classifiers; use it in Python, with GPRegressor"
            in (capsys.readouterr().err)
        )
