"""`cnngp predict`: image files through a saved model of classes or of numbers, with sets and intervals."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, GPRegressor, datasets, zoo
from cnngp.cli.models import how_unusual

from .conftest import Command, discs

DIGITS = datasets.digits().take(60, 40)


def picture(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def test_a_folder_stands_for_its_model_and_all_numbers_are_in_the_json(
    classified: Path, tmp_path: Path, command: Command
) -> None:
    data = datasets.digits().take(200, 100)
    clf = GPClassifier.load(classified / "model.gp")
    new = picture(tmp_path / "new.png", 255 * data.X_test[0, 0])
    said = command(f"predict {classified} {new} --json")
    found = said.json
    assert found["model"] == str(classified / "model.gp")
    image = found["images"][0]
    shown = (np.floor(255 * data.X_test[:1]) / 255).astype(np.float32)
    assert image["class"] == str(clf.predict(shown)[0])
    assert list(image["probabilities"].values()) == pytest.approx(clf.predict_proba(shown)[0], abs=1e-6)
    total = sum(voice["share"] for voice in (*image["for"], *image["against"])) + image["rest"]
    assert total == pytest.approx(image["mean"], abs=1e-12)
    assert 0 < image["novelty"] < 1
    assert "set" not in image
    assert said.err.splitlines()[1].split()[:3] == ["image", "class", "probability"]


def test_sets_hold_the_classes_that_an_image_may_have(classified: Path, tmp_path: Path, command: Command) -> None:
    clf = GPClassifier.load(classified / "model.gp")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8))
    known = picture(tmp_path / "known.png", 255 * datasets.digits().X[0, 0])
    files = f"{known} {picture(tmp_path / 'noise.png', noise)}"
    said = command(f"predict {classified} {files} --coverage 0.9 --json")
    sets = [image["set"] for image in said.json["images"]]
    X = np.stack([np.asarray(Image.open(file), np.float32)[None] / 255 for file in files.split()])
    expected = [clf.classes_[mask].astype(str).tolist() for mask in clf.predict_set(X, coverage=0.9)]
    assert sets == expected
    table = said.err.splitlines()[-3:]
    assert "set at 90 %" in table[0]
    assert table[1].endswith("none of the training images")
    assert ("none of these" in table[2]) == (not sets[1])
    assert re.search("(all|99 %) of the training images$", table[2])
    assert all(len(image["set"]) == 10 for image in command(
        f"predict {classified} {files} --coverage 0.999 --json").json["images"])  # fmt: skip


def test_numbers_come_with_an_interval(tmp_path: Path, command: Command, refused: Any) -> None:
    table, out = discs(tmp_path / "d"), tmp_path / "out"
    command(f"regress --data {table} --columns radius --network small_cnn --output {out}")
    said = command(f"predict {out} {tmp_path / 'd'} --json")
    reg, data = GPRegressor.load(out / "model.gp"), datasets.load(table, columns="radius")
    found = {Path(image["image"]).name: image for image in said.json["images"]}
    mean, std = reg.predict(data.X_test, return_std=True)
    for name, value, bar, ends in zip(data.names_test, mean, std, reg.predict_interval(data.X_test), strict=True):
        assert found[name]["value"] == pytest.approx(value, rel=1e-5)
        assert found[name]["interval"] == pytest.approx(ends, rel=1e-5)
        assert found[name]["std"] > bar  # noise is in it
        assert found[name]["near"][0]["share"] >= found[name]["near"][1]["share"]
    assert "interval at 90 %" in said.err
    few = command(f"predict {out} {tmp_path / 'd' / '00.png'} --coverage 0.999 --json")
    assert few.json["images"][0]["interval"] == [None, None]
    assert "any: too few images" in few.err
    both = GPRegressor(zoo.small_cnn()).fit(data.X, np.stack([data.y, data.y], 1))
    both.save(tmp_path / "both.gp")
    assert "several numbers for each image" in refused(f"predict {tmp_path / 'both.gp'} {tmp_path / 'd'}")


def test_models_without_a_factor_have_no_sets(tmp_path: Path, command: Command, refused: Any) -> None:
    new = picture(tmp_path / "new.png", 255 * DIGITS.X_test[0, 0])
    for kind in (GPClassifier, GPRegressor):
        kind(zoo.small_cnn(), inducing=20, device="cpu").fit(DIGITS.X, DIGITS.y).save(tmp_path / "m.gp")
        command(f"predict {tmp_path / 'm.gp'} {new}")
        assert "needs a factor of all images" in refused(f"predict {tmp_path / 'm.gp'} {new} --coverage 0.9")


@pytest.mark.parametrize("scale", [255, 1])
def test_predict_takes_pixels_on_the_scale_of_the_fit(tmp_path: Path, command: Command, scale: int) -> None:
    """A model of bytes fitted in Python: with pixels from 0 to 1 every image would be all but black to it."""
    X = (255 * DIGITS.X).astype(np.uint8)
    clf = GPClassifier(zoo.small_cnn()).fit(X if scale == 255 else X / np.float32(255), DIGITS.y)
    clf.save(tmp_path / "m.gp")
    new = (255 * DIGITS.X_test[0, 0]).astype(np.uint8)
    said = command(f"predict {tmp_path / 'm.gp'} {picture(tmp_path / 'new.png', new)} --json")
    expected = clf.predict_proba((new if scale == 255 else new / np.float32(255))[None, None])[0]
    assert list(said.json["images"][0]["probabilities"].values()) == pytest.approx(expected, abs=1e-6)
    assert said.json["pixels"] == scale
    assert ("from 0 to 255, as in the images that" in said.err) == (scale == 255)


@pytest.mark.parametrize(("factor", "shift", "range_"), [(16.0, 0.0, "0 to 16"), (2.0, -1.0, "-1 to 1")])
def test_a_scale_that_files_do_not_have_is_refused(
    tmp_path: Path, refused: Any, factor: float, shift: float, range_: str
) -> None:
    GPClassifier(zoo.small_cnn()).fit(factor * DIGITS.X + shift, DIGITS.y).save(tmp_path / "m.gp")
    error = refused(f"predict {tmp_path / 'm.gp'} {picture(tmp_path / 'new.png', np.zeros((8, 8)))}")
    assert f"m.gp was fitted on pixels from {range_}, and image files are read as 0 to 1 or 0 to 255" in error


@pytest.mark.parametrize(
    ("rank", "said"),
    [(0.0, "none of"), (0.7999, "79 % of"), (0.999, "99 % of"), (1.0, "all of"), (None, "not known")],
)
def test_how_unusual_an_image_is_in_words(rank: float | None, said: str) -> None:
    assert how_unusual(rank) == (said if rank is None else f"{said} the training images")
