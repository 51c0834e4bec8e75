"""`cnngp predict`: image files through a saved model of classes or of numbers, with sets and intervals."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, GPRegressor, datasets, zoo
from cnngp.cli.models import how_unusual
from cnngp.common.tables import read_csv

from .conftest import Command, discs

DIGITS = datasets.digits().take(60, 40)


def picture(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def read(path: Path) -> np.ndarray:
    """As a file is read by default."""
    return np.asarray(Image.open(path), np.float32)[None, None] / 255


def test_classes_with_their_probabilities_sets_and_neighbours(
    classified: Path, tmp_path: Path, command: Command
) -> None:
    """A folder stands for the model in it, and all that is said is in the JSON."""
    clf = GPClassifier.load(classified / "model.gp")
    known = picture(tmp_path / "known.png", 255 * datasets.digits().X[0, 0])
    noise = picture(tmp_path / "noise.png", np.random.default_rng(0).integers(0, 256, (8, 8)))
    X = np.concatenate([read(known), read(noise)])
    said = command(f"predict {classified} {known} {noise} --coverage 0.9 --json")
    assert said.json["model"] == str(classified / "model.gp")
    images = said.json["images"]
    assert [image["class"] for image in images] == clf.predict(X).astype(str).tolist()
    assert [image["set"] for image in images] == [
        clf.classes_[mask].astype(str).tolist() for mask in clf.predict_set(X, coverage=0.9)
    ]
    for image, probabilities in zip(images, clf.predict_proba(X), strict=True):
        assert list(image["probabilities"].values()) == pytest.approx(probabilities, abs=1e-6)
        total = sum(voice["share"] for voice in (*image["for"], *image["against"])) + image["rest"]
        assert total == pytest.approx(image["mean"], abs=1e-12)
        assert 0 <= image["novelty"] <= 1
    heads, first, second = said.err.splitlines()[-3:]
    assert heads.split()[:3] == ["image", "class", "probability"]
    assert "set at 90 %" in heads
    assert first.endswith("none of the training images")
    assert ("none of these" in second) == (not images[1]["set"])
    assert re.search("(all|99 %) of the training images$", second)
    sure = command(f"predict {classified} {known} {noise} --coverage 0.999 --json").json["images"]
    assert [len(image["set"]) for image in sure] == [10, 10]
    assert "set" not in command(f"predict {classified} {known} --json").json["images"][0]


def test_numbers_come_with_an_interval(tmp_path: Path, command: Command, refused: Any) -> None:
    """From a table of images to a report, and from its model to the numbers of others."""
    table, out = discs(tmp_path / "d"), tmp_path / "out"
    words = f"regress --data {table} --columns radius --network small_cnn"
    said = command(f"{words} --output {out} --suspects {tmp_path / 's.csv'} --json")
    found, data = said.json, datasets.load(table, columns="radius")
    reg = GPRegressor.load(out / "model.gp")
    mean, std = reg.predict(data.X_test, return_std=True)
    intervals = reg.predict_interval(data.X_test, coverage=0.9)
    assert (found["command"], found["train"]) == ("regress", 32)
    assert found["loo"]["rmse"] == pytest.approx(reg.loo_error_)
    assert 0.8 < found["loo"]["r2"] == pytest.approx(1 - reg.loo_error_**2 / data.y.var())
    assert found["test"]["r2"] == pytest.approx(reg.score(data.X_test, data.y_test))
    assert found["coverage"]["width"] == pytest.approx(np.median(np.diff(intervals)))
    assert said.line("leave-one-out").startswith("R² 0.")
    assert "hold " in said.line("intervals for 90 %")
    assert f"cnngp {words}" in (out / "report.html").read_text()
    assert len(read_csv(tmp_path / "s.csv")[1]) == 32

    said = command(f"predict {out} {tmp_path / 'd'} --json")
    images = {Path(image["image"]).name: image for image in said.json["images"]}
    for name, value, bar, ends in zip(data.names_test, mean, std, intervals, strict=True):
        assert images[name]["value"] == pytest.approx(value, rel=1e-5)
        assert images[name]["interval"] == pytest.approx(ends, rel=1e-5)
        assert images[name]["std"] > bar  # noise is in it
        assert images[name]["near"][0]["share"] >= images[name]["near"][1]["share"]
    assert "interval at 90 %" in said.err
    few = command(f"predict {out} {tmp_path / 'd' / '00.png'} --coverage 0.999 --json")
    assert few.json["images"][0]["interval"] == [None, None]
    assert "any: too few images" in few.err

    without = command(f"{words} --test 0 --no-model --output {out} --json").json
    assert (without["train"], without["test"]) == (40, None)
    assert without["mistakes"][0]["name"]  # of the training images, left out
    assert without["coverage"]["right"] is None
    both = GPRegressor(zoo.small_cnn()).fit(data.X, np.stack([data.y, data.y], 1))
    both.save(tmp_path / "both.gp")
    assert "several numbers for each image" in refused(f"predict {tmp_path / 'both.gp'} {tmp_path / 'd'}")


def test_models_without_a_factor_have_no_sets(tmp_path: Path, command: Command, refused: Any) -> None:
    new = picture(tmp_path / "new.png", 255 * DIGITS.X_test[0, 0])
    for kind in (GPClassifier, GPRegressor):
        kind(zoo.small_cnn(), inducing=20, device="cpu").fit(DIGITS.X, DIGITS.y).save(tmp_path / "m.gp")
        command(f"predict {tmp_path / 'm.gp'} {new}")
        assert "needs a factor of all images" in refused(f"predict {tmp_path / 'm.gp'} {new} --coverage 0.9")


@pytest.mark.parametrize(
    ("scale", "shift", "dtype", "range_"),
    [(255, 0, np.uint8, None), (1, 0, np.float32, None), (16, 0, float, "0 to 16"), (2, -1, float, "-1 to 1")],
)
def test_predict_takes_pixels_on_the_scale_of_the_fit(
    scale: int, shift: int, dtype: Any, range_: str | None, tmp_path: Path, command: Command, refused: Any
) -> None:
    """To a model of bytes an image with pixels from 0 to 1 would be all but black. Files have no other scales."""
    clf = GPClassifier(zoo.small_cnn()).fit((scale * DIGITS.X + shift).astype(dtype), DIGITS.y)
    clf.save(tmp_path / "m.gp")
    new = picture(tmp_path / "new.png", 255 * DIGITS.X_test[0, 0])
    if range_ is not None:
        told = f"m.gp was fitted on pixels from {range_}, and image files are read as 0 to 1 or 0 to 255"
        assert told in refused(f"predict {tmp_path / 'm.gp'} {new}")
        return
    said = command(f"predict {tmp_path / 'm.gp'} {new} --json")
    expected = clf.predict_proba((scale * read(new)).astype(dtype))[0]
    assert list(said.json["images"][0]["probabilities"].values()) == pytest.approx(expected, abs=1e-6)
    assert said.json["pixels"] == scale
    assert ("from 0 to 255, as in the images that" in said.err) == (scale == 255)


@pytest.mark.parametrize(
    ("rank", "said"),
    [(0.0, "none of"), (0.7999, "79 % of"), (0.999, "99 % of"), (1.0, "all of"), (None, "not known")],
)
def test_how_unusual_an_image_is_in_words(rank: float | None, said: str) -> None:
    assert how_unusual(rank) == (said if rank is None else f"{said} the training images")
