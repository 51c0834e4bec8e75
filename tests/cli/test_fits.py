"""`cnngp classify` and `cnngp regress`: what they print and write, for sets by name, files, folders and tables."""

import errno
import json
import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, datasets, zoo
from cnngp.common import files
from cnngp.common.tables import csv_cell, original, read_csv
from cnngp.estimators import Recipe
from cnngp.report import apply_decisions
from cnngp.report.answers import Answers

from .conftest import FEW, Command, slanted

NUMERICS = ("kernel error", "residual of the solve", "smallest eigenvalue", "noise, jitter", "amplitude", "log likel")


def test_a_run_writes_report_results_and_model_and_the_next_one_replaces_them(tmp_path: Path, command: Command) -> None:
    """What was measured about the fit is for those who ask: nothing is wrong with it, so it is no news."""
    words = f"classify --network small_cnn --train 200 --test 40 --output {tmp_path}"
    model = tmp_path / "model.gp"
    first, second, third = (command(f"{words}{more}") for more in ("", " --verbose", " --no-model"))
    for said, verbose in ((first, False), (second, True), (third, False)):
        lines = said.out.splitlines()
        assert [sum(line.startswith(name) for line in lines) for name in NUMERICS] == [verbose] * len(NUMERICS)
        assert any("exact kernel" in line for line in lines) == verbose
        assert said.line("test").endswith(" of 40 wrong")
    steps = [f"{'what to do next':<22} cnngp predict {model} NEW.jpg", f"{'':<22} cnngp view {model}"]
    assert first.out.splitlines()[-2:] == steps
    assert "what to do next" not in third.out
    assert "replaced" not in first.out
    assert second.line("replaced") == f"model.gp, report.html, results.json of an earlier run in {tmp_path}"
    assert third.line("note") == f"{model} stays as it is: it is of an earlier run, unlike the files below"
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["command"], results["train"]) == ("classify", 200)
    assert results["test_error"] < 0.15
    data = datasets.digits().take(200, 40)
    assert 1 - GPClassifier.load(model).score(data.X_test, data.y_test) == pytest.approx(results["test_error"])
    page = (tmp_path / "report.html").read_text()
    assert f"cnngp {words} --no-model" in page  # as it was typed
    assert all(name in page for name in NUMERICS[:-1])


@pytest.mark.filterwarnings("always:noise='loo' chose the most noise")
def test_a_run_that_learned_nothing_warns(tmp_path: Path, command: Command) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((84, 8, 8)), np.arange(84) % 3
    np.savez(tmp_path / "noise.npz", x_train=X[:60], y_train=y[:60], x_test=X[60:], y_test=y[60:])
    words = f"--network small_cnn --data {tmp_path / 'noise.npz'} --output {tmp_path / 'out'} --quiet"
    error = command(f"classify {words}").err
    assert error.startswith("warning: No better than guessing: leave-one-out is wrong on ")
    assert error.count("\n") == 1
    assert "the labels or targets look like pure noise" in command(f"regress {words}").err


@pytest.mark.parametrize(("seconds", "shown"), [(8.123, True), (0.3, False)])
def test_long_compiling_and_warnings_of_other_packages_are_lines_of_their_own(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, seconds: float, shown: bool
) -> None:
    """Without the file and the line of code that Python adds to a warning."""
    fit = GPClassifier.fit

    def compiled(clf: GPClassifier, X: Any, y: Any, **options: Any) -> GPClassifier:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("more classes\n than half of the samples", UserWarning, stacklevel=1)
        fit(clf, X, y, **options)
        clf.fit_ = replace(clf.fit_, report=replace(clf.fit_report_, compile_seconds=seconds))
        return clf

    monkeypatch.setattr(GPClassifier, "fit", compiled)
    said = command(f"{FEW} --no-model --output {tmp_path}")
    assert said.err == "warning: more classes than half of the samples\n"
    assert (f"{'compiling, loading':<22} 8.12 s" in said.out) == shown
    cell = "compiling, or loading compiled code</th><td>8.12 s</td>"
    assert (cell in (tmp_path / "report.html").read_text()) == shown
    assert json.loads((tmp_path / "results.json").read_text())["fit"]["compile_seconds"] == seconds


def test_learned_variances_are_printed_written_and_shown(tmp_path: Path, command: Command) -> None:
    said = command(f"{FEW} --learn likelihood --output {tmp_path} --json")
    assert "−log likelihood" in said.err
    learned = said.json["learned"]
    assert learned["after"] < learned["before"]
    model = GPClassifier.load(tmp_path / "model.gp")
    assert model.learned_ is not None
    assert model.network_.to_json() == learned["network"] != zoo.small_cnn().to_json()
    page = (tmp_path / "report.html").read_text()
    assert "What was learned" in page
    assert f"cnngp {FEW} --learn likelihood --output " in page


@pytest.mark.parametrize("full", ["results.json", "model.gp", "report.html"])
def test_a_full_disk_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, full: str
) -> None:
    replacing = files.replacing

    def no_room(path: Path) -> Any:
        if path.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # without the name, as of `write`
        return replacing(path)

    monkeypatch.setattr(files, "replacing", no_room)
    error = command(f"{FEW} --output {tmp_path}", 1).err
    assert error.startswith(f"error: {tmp_path / full} cannot be written: No space left on device; ")
    assert error.count("\n") == 1
    assert (tmp_path / "results.json").exists() == (full != "results.json")  # the small file first


# ---- what is chosen, and how long it takes ---------------------------------------------------------------------------


def test_classify_says_and_repeats_what_it_chooses(tmp_path: Path, command: Command) -> None:
    words = f"classify --train 60 --test 20 --output {tmp_path}"
    said = command(words)
    clf = GPClassifier.load(tmp_path / "model.gp", device="cpu")
    data = datasets.digits().take(60, 20)
    same = GPClassifier(device="cpu").fit(data.X, data.y)
    assert same.choice_ is not None
    assert said.line("choice").startswith(f"{same.choice_.name}, {same.choice_.reason}")
    assert said.line("network").startswith(f"{same.recipe_.name} (chosen), ")
    assert clf.recipe_ == same.recipe_
    assert np.array_equal(clf.predict_proba(data.X_test), same.predict_proba(data.X_test))
    (tmp_path / "r.json").write_text(clf.recipe_.to_json())
    found = command(f"{words} --recipe {tmp_path / 'r.json'} --json").json
    assert Recipe.from_json(json.dumps(found["recipe"])) == clf.recipe_
    assert found["test_error"] == pytest.approx(1.0 - same.score(data.X_test, data.y_test))
    assert "--recipe" in (tmp_path / "report.html").read_text()


# ---- images of one's own ---------------------------------------------------------------------------------------------


def test_what_stands_in_class_order_is_tested_on_all_classes(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the options of the fit are repeated in the report."""
    for part in ("train", "test"):
        slanted(tmp_path / "f" / part)
    (tmp_path / "net.json").write_text(zoo.small_cnn().to_json())
    monkeypatch.chdir(tmp_path / "f")
    words = "classify --data . --train 16 --test 12 --size 12 --network ../net.json --noise 0.01 --preparation edges"
    found = command(f"{words} --kind ntk --no-model --json").json
    assert (found["train"], found["classes"], found["test_error"]) == (16, 2, 0.0)
    assert (found["preparation"], found["fit"]["noise"]) == ("edges", 0.01)
    out = tmp_path / "f" / "out" / "f-net-ntk-16"
    assert sorted(p.name for p in out.iterdir()) == ["report.html", "results.json"]
    assert f"cnngp {words} --kind ntk --no-model" in (out / "report.html").read_text()


def test_no_test_set(tmp_path: Path, command: Command, refused: Any) -> None:
    """All pictures of a folder are fitted, even a class of one; validation images stay."""
    train = slanted(tmp_path / "b" / "train", broken=True)
    (train / "lonely").mkdir()
    Image.new("L", (8, 8), 90).save(train / "lonely" / "0.png")
    words = f"classify --skip-bad --size 8 --network small_cnn --output {tmp_path / 'out'} --data"
    error = refused(f"{words} {train}")
    assert "class lonely has a single image, and one of each class is kept for testing; add another, leave" in error
    assert error.endswith("or whole=True in Python\n")
    slanted(tmp_path / "b" / "val", n=4)
    said = command(f"{words} {tmp_path / 'b'} --test 0 --json")
    found, page = said.json, (tmp_path / "out" / "report.html").read_text()
    assert (found["train"], found["classes"], found["test"], found["test_error"]) == (25, 3, None, None)
    assert found["mistakes"] == found["uncertain"] == []
    assert found["validation"] is not None
    assert said.line("data") == "b: 25 training, 8 validation images of 1 × 8 × 8"
    assert said.line("leave-one-out")
    assert re.search("^(test|predict) |kept for testing", said.err, re.MULTILINE) is None
    for text in ("test error", "test images", "test image", "Confidently wrong", "Most uncertain"):
        assert text not in page
    for text in ("validation error", "Confusion matrix of the leave-one-out predictions", "--test 0"):
        assert text in page
    assert "The model was trained on 25 images by one linear solve. By leave-one-out" in page


NAMES = (os.fsdecode(b"caf\xe9"), "=1+1\r naïve $x_$ <b>\x1b[2J")
STEM = os.fsdecode(b"@\n\xff")


def test_photographs_of_any_name_start_to_finish(tmp_path: Path, command: Command, refused: Any) -> None:
    """From a folder to the report, the tables, new predictions and decisions."""
    folder, table = tmp_path / "data", tmp_path / "deep" / "suspects.csv"
    slanted(folder, suffix="webp", broken=True, names=NAMES, stem=STEM)
    (folder / NAMES[0] / f"{STEM}05.webp").rename(folder / NAMES[1] / "wrong.webp")
    (folder / NAMES[0] / "notes.txt").write_text("hello")
    out = tmp_path / "out"
    words = f"classify --data {folder} --network small_cnn --size 10x12 --aspect pad --output {out} --suspects {table}"
    assert "broken.png is not a readable image" in refused(words)
    said = command(f"{words} --skip-bad --json")
    assert "24 images of 24 brought to 10 × 12; " in said.err
    assert "left out 2 files: 1 .txt, 1 not readable" in said.err
    found = said.json
    assert len(found["notes"]) == 3  # the size, the test set, what was left out
    wrong = f"{NAMES[1]}/wrong.webp"
    assert wrong in [original(picture["name"]) for picture in (*found["suspects"], *found["mistakes"])]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "/wrong.webp" in page
    assert r"caf\xe9" in page
    assert "--size 10x12 --aspect pad --output " in page
    model = GPClassifier.load(out / "model.gp")
    assert model.image_aspect_ == "pad"
    predicted = command(f"predict {out} '{folder / NAMES[0]}' --json", 1)
    assert "broken.png is not a readable image" in predicted.err
    assert predicted.json["unreadable"][0]["image"].endswith("broken.png")
    assert [original(image["class"]) for image in predicted.json["images"]] == [NAMES[0]] * 11
    for text in (said.err, predicted.err, page, table.read_text(encoding="utf-8")):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)

    held = datasets.load(folder, size=(10, 12), aspect="pad", skip_bad=True)
    heads, rows = read_csv(table)
    assert heads == ["row", "name", "given", "proposed", "score"]
    assert len(rows) == found["train"]
    assert {csv_cell(row[1]) for row in rows} == set(held.names)
    assert {csv_cell(row[2]) for row in rows} == set(held.y) == set(NAMES)
    answers = Answers(model, "m", out / "model.labels.csv", suspects=5)
    first, classes = answers.about()["suspects"][0], answers.about()["classes"]
    answers.decide({"row": first["row"], "decision": "relabel", "label": classes[0]})
    _, labels = apply_decisions(out / "model.labels.csv", held.X, held.y, held.names)
    assert labels[first["row"]] == min(NAMES)
