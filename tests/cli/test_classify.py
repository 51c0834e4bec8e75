"""`cnngp classify`: what it writes and prints, for sets by name, .npz files and folders of pictures."""

from __future__ import annotations

import errno
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import GPClassifier, datasets, zoo
from cnngp.cli import run
from cnngp.common import files


def test_classify_writes_report_results_and_model(classified: Path) -> None:
    results = json.loads((classified / "results.json").read_text())
    assert results["train"] == 200
    assert results["test_error"] < 0.15
    data = datasets.digits().take(200, 100)
    again = GPClassifier.load(classified / "model.gp")
    assert 1 - again.score(data.X_test, data.y_test) == pytest.approx(results["test_error"])
    page = (classified / "report.html").read_text()
    assert "cnngp classify --network small_cnn --train 200 --test 100" in page


def test_classify_prints_the_certificate_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--train", "60", "--test", "30", "--noise", "ml", "--output", str(tmp_path), "--json"]
    assert run([*arguments, "--verbose"]) == 0
    printed = capsys.readouterr()
    for text in (
        "digits: 60 training, 30 test images",
        "(chosen), ",
        "cpu-",
        "leave-one-out",
        "kernel error",
    ):
        assert text in printed.err
    last = json.loads(printed.out)
    assert last["command"] == "classify"
    assert last["fit"]["noise"] > 0
    assert set(last["files"]) == {"model", "results", "report"}


NUMERICS = ("kernel error", "residual of the solve", "smallest eigenvalue", "noise, jitter", "amplitude", "log likel")


def test_what_was_measured_about_the_fit_is_for_those_who_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "classify",
        "--train",
        "200",
        "--test",
        "40",
        "--network",
        "small_cnn",
        "--output",
        str(tmp_path / "o"),
    ]
    for verbose in (False, True):
        assert run([*arguments, "--verbose"] if verbose else arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [sum(line.startswith(name) for line in lines) for name in NUMERICS] == [verbose] * len(NUMERICS)
        assert any("exact kernel" in line for line in lines) == verbose  # nothing is wrong, so it is no news
        test = next(line for line in lines if line.startswith("test "))
        assert test.endswith(" of 40 wrong")
    model = tmp_path / "o" / "model.gp"
    assert lines[-2:] == [f"{'what to do next':<22} cnngp predict {model} NEW.jpg", f"{'':<22} cnngp view {model}"]
    page = (tmp_path / "o" / "report.html").read_text()
    assert all(name in page for name in NUMERICS[:-1])


def test_a_second_run_says_that_it_replaces_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--train", "40", "--test", "20", "--network", "small_cnn", "--output", str(tmp_path)]
    said = []
    for options in ([], [], ["--no-model"]):
        assert run([*arguments, *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        said.append([line for line in lines if line.startswith(("replaced", "note"))])
        assert any(line.startswith("what to do next") for line in lines) == (not options)
    assert said[0] == []
    assert said[1] == [f"{'replaced':<22} model.gp, report.html, results.json of an earlier run in {tmp_path}"]
    assert said[2] == [
        f"{'note':<22} {tmp_path / 'model.gp'} stays as it is: it is of an earlier run, unlike the files below"
    ]


def test_a_run_that_learned_nothing_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((84, 8, 8)), np.arange(84) % 3
    np.savez(tmp_path / "noise.npz", x_train=X[:60], y_train=y[:60], x_test=X[60:], y_test=y[60:])
    quiet = ["--output", str(tmp_path / "out"), "--quiet"]
    assert run(["classify", "--data", str(tmp_path / "noise.npz"), "--network", "small_cnn", *quiet]) == 0
    error = capsys.readouterr().err
    assert error.startswith("warning: No better than guessing: leave-one-out is wrong on ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("seconds", "shown"), [(8.123, True), (0.3, False)])
def test_compiling_is_an_item_of_its_own_where_it_takes_long(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    shown: bool,
) -> None:
    fit = GPClassifier.fit

    def compiled(clf: GPClassifier, X: Any, y: Any, **options: Any) -> GPClassifier:
        fit(clf, X, y, **options)
        clf.fit_ = replace(clf.fit_, report=replace(clf.fit_report_, compile_seconds=seconds))
        return clf

    monkeypatch.setattr(GPClassifier, "fit", compiled)
    few = ["--network", "small_cnn", "--train", "40", "--test", "20", "--no-model", "--output", str(tmp_path)]
    assert run(["classify", *few]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("compiling")] == [
        ["compiling,", "loading", "8.12", "s"]
    ] * shown
    assert (
        "compiling, or loading compiled code</th><td>8.12 s</td>" in (tmp_path / "report.html").read_text()
    ) == shown
    assert json.loads((tmp_path / "results.json").read_text())["fit"]["compile_seconds"] == seconds


def test_learned_variances_are_printed_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--train", "40", "--test", "20", "--network", "small_cnn", "--learn", "likelihood"]
    assert run([*arguments, "--output", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    assert "−log likelihood" in printed.err
    learned = json.loads(printed.out)["learned"]
    assert learned["after"] < learned["before"]
    model = GPClassifier.load(tmp_path / "model.gp")
    assert model.learned_ is not None
    assert model.network_.to_json() == learned["network"] != zoo.small_cnn().to_json()
    page = (tmp_path / "report.html").read_text()
    assert "What was learned" in page
    assert "cnngp classify --network small_cnn --train 40 --test 20 --learn likelihood" in page
    assert run(["classify", "--learn", "map"]) != 0
    assert capsys.readouterr().err == "error: --learn map: expected loo or likelihood\n"


def test_a_network_from_a_json_file_and_no_model(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(zoo.small_cnn().to_json())
    arguments = ["classify", "--network", str(tmp_path / "net.json"), "--train", "50", "--test", "20", "--no-model"]
    assert run([*arguments, "--output", str(tmp_path / "out")]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.html", "results.json"]


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(["classify", "--output", str(tmp_path / "file" / "out")]) == 1
    printed = capsys.readouterr()
    assert (
        printed.err
        == f"error: --output {tmp_path / 'file' / 'out'} cannot be written: Not a directory; choose another\n"
    )
    assert printed.out == ""


def test_a_folder_that_is_there_but_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even root may write to /proc; making sure of the folder alone would find that out after the work."""
    if not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    assert run(["classify", "--train", "40", "--output", "/proc"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: --output /proc cannot be written: ")
    assert printed.out == ""


def test_what_is_refused_makes_no_folder(tmp_path: Path) -> None:
    refused = ((["--noise", "-1"], 2), (["--device", "tpu"], 2), (["--train", "5"], 1), (["--dtype", "float16"], 2))
    for arguments, code in refused:
        assert run(["classify", *arguments, "--output", str(tmp_path / "out")]) == code
    assert not list(tmp_path.iterdir())


def test_a_folder_in_class_order_is_tested_on_all_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for shift, name in enumerate("abc"):
            (tmp_path / "f" / part / name).mkdir(parents=True)
            for i in range(15):
                pixels = 200.0 * np.eye(8)[np.roll(np.arange(8), 2 * shift)] + rng.uniform(0, 50, (8, 8))
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "f" / part / name / f"{i}.png")
    monkeypatch.chdir(tmp_path / "f")
    assert run(["classify", "--data", ".", "--train", "24", "--test", "15", "--no-model", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["train"], last["classes"]) == (24, 3)
    assert last["test_error"] == 0
    assert (tmp_path / "f" / "out" / "f-auto-24" / "report.html").is_file()


def test_an_npz_in_class_order_is_tested_on_all_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = datasets.digits()
    rows, rows_test = np.argsort(data.y, kind="stable"), np.argsort(data.y_test, kind="stable")
    arrays = {"x_train": data.X[rows], "y_train": data.y[rows]}
    np.savez(tmp_path / "sorted.npz", **arrays, x_test=data.X_test[rows_test], y_test=data.y_test[rows_test])
    seen: list[Any] = []
    fit = GPClassifier.fit
    monkeypatch.setattr(GPClassifier, "fit", lambda clf, X, y, **_: (seen.append(y), fit(clf, X, y))[1])
    arguments = ["classify", "--data", str(tmp_path / "sorted.npz"), "--train", "100", "--test", "40", "--no-model"]
    assert run([*arguments, "--output", str(tmp_path / "out"), "--json"]) == 0
    assert set(seen[0]) == set(range(10))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["test_error"] < 0.3


def test_class_names_that_no_figure_expects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken formula, letters that the font lacks (one warning line), a name wider than the figure."""
    names = np.array(["$x_$ % {y}", "汉", "a" * 120, *"3456789"])
    data = datasets.digits().take(60, 30)
    arrays = {"x_train": data.X, "y_train": names[data.y], "x_test": data.X_test, "y_test": names[data.y_test]}
    np.savez(tmp_path / "named.npz", **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as at a user's command line
        arguments = ["--network", "small_cnn", "--output", str(tmp_path / "out")]
        assert run(["classify", "--data", str(tmp_path / "named.npz"), *arguments]) == 0
    error = capsys.readouterr().err.splitlines()
    assert error
    assert all(line.startswith("warning: Glyph 27721 ") for line in error)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["model.gp", "report.html", "results.json"]


@pytest.mark.parametrize("full", ["results.json", "model.gp", "report.html"])
def test_a_full_disk_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full: str
) -> None:
    replacing = files.replacing

    def no_room(path: Path) -> Any:
        if path.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # without the name, as of `write`
        return replacing(path)

    monkeypatch.setattr(files, "replacing", no_room)
    few = ["--network", "small_cnn", "--train", "40", "--test", "20"]
    assert run(["classify", *few, "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / full} cannot be written: No space left on device; ")
    assert error.count("\n") == 1
    assert (tmp_path / "results.json").exists() == (full != "results.json")  # the small file first
