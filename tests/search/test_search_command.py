"""`cnngp search`: its files, its pictures and its one-line errors."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, ReLU, Sequential, datasets
from cnngp.cli import run
from cnngp.network.names import network_by_name
from cnngp.search import Draw, Space, plot, pool, random_search
from cnngp.search.scoring import score
from helpers.searches import DIGITS


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, best = tmp_path / "out", tmp_path / "best.json"
    arguments = ["search", "--draws", "4", "--train", "80", "--validation", "60", "--full", "2@120", "--full", "1"]
    arguments += ["--test", "--device", "cpu", "--output", str(folder), "--best", str(best), "--json"]
    assert run(arguments) == 0
    printed = capsys.readouterr()
    for text in ("digits: 1,297 training", "invalid ones replaced", "with 120 images", "looked at once", "engine"):
        assert text in printed.err
    last = json.loads(printed.out)
    assert last["command"] == "search"
    assert last["draws"] == 4
    assert [rung["train"] for rung in last["rungs"]] == [120, 1237]
    assert last["test"]["looks"] == 1
    for name in ("draws.png", "draws.svg", "cost.png", "cost.svg", "hyperparameters.png", "hyperparameters.svg"):
        assert (folder / name).stat().st_size > 5_000
    results = json.loads((folder / "results.json").read_text())
    drawn = [t["draw"] for t in results["trials"]]
    assert len(drawn) == 4
    assert drawn == sorted(set(drawn))  # impossible networks take a number too
    assert results["best"]["error"] == last["best"]["error"]
    chosen = next(t for t in results["trials"] if t["draw"] == last["best"]["draw"])
    network = network_by_name(str(best))  # what --network FILE does
    split = DIGITS.hold_out(60)
    clf = GPClassifier(network, device="cpu").fit(split.X[:80], split.y[:80])
    assert clf.loo_error_ == chosen["loo_error"]
    assert run([a for a in arguments if a != "--test"]) == 0  # what was seen stays seen
    assert json.loads((folder / "results.json").read_text())["test"] == results["test"] == last["test"]
    assert "looked at once" in capsys.readouterr().err


def test_a_failing_look_at_the_test_images_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(network: Any, problem: Any) -> Any:
        if len(problem.X_validation) == 500:
            raise MemoryError("too many test images")
        return score(network, problem)

    monkeypatch.setattr(pool, "score", full)
    arguments = ["search", "--draws", "2", "--train", "60", "--validation", "60", "--test", "--device", "cpu"]
    assert run([*arguments, "--output", str(tmp_path)]) == 1
    assert "too many test images" in capsys.readouterr().err
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["draws"] == 2
    assert results["test"] is None
    assert network_by_name(str(tmp_path / "best.json")) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--full", "three"], "--full three: expected how many, such as 3"),
        (["--space", "narrow"], "no space 'narrow'"),
        (["--draws", "0"], "--draws 0: expected a whole number of 1 or more"),
        (["--data", "nothing"], "no data 'nothing'"),
        (["--train", "5"], "use more training images"),
        (["--device", "tpu"], "--device tpu: expected auto, cpu or cuda"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", "--output", str(tmp_path / "out"), *arguments]) in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "out").exists()  # what is refused leaves nothing behind


@pytest.mark.parametrize("option", ["--output", "--best", "--study"])
def test_what_cannot_be_written_is_found_out_first(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / "x"
    arguments = ["search", "--draws", "1", "--train", "60", "--device", "cpu", "--output", str(tmp_path / "out")]
    assert run([*arguments, option, str(place)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"error: {option} {place} cannot be written: Not a directory; choose another\n"
    assert printed.out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def _sometimes_biased(draw: Draw) -> Sequential:
    bias_var = draw.real("bias_var", 1e-4, 1e-1, log=True) if draw.choice("biased", (False, True)) else 0.0
    return Sequential(Conv(3, weight_var=2.0, bias_var=bias_var), ReLU(), Dense())


def test_plots_of_a_search_with_no_errors_at_all(tmp_path: Path) -> None:
    """Zero on a logarithmic axis, and hyperparameters that not every draw has."""
    easy = np.isin(DIGITS.y, (0, 1))
    simple = datasets.Dataset("easy", DIGITS.X[easy], DIGITS.y[easy], DIGITS.X_test, DIGITS.y_test)
    result = random_search(simple, Space("mine", 1, _sometimes_biased, ""), 6, train=60, validation=40, device="cpu")
    assert len({len(t.params) for t in result.trials}) == 2
    assert result.best.error == 0.0
    names = [f"{name}.{kind}" for name in ("draws", "cost", "hyperparameters") for kind in ("png", "svg")]
    assert [p.name for p in result.plot(tmp_path / "new")] == names
    assert "<svg" in (tmp_path / "new" / "hyperparameters.svg").read_text()


@pytest.mark.parametrize(("errors", "labelled"), [((2.0, 9.0), True), ((0.9, 9.5), False), ((1.0, 90.0), False)])
def test_labels_between_powers_of_ten_only_within_one(errors: tuple[float, float], labelled: bool) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    axes.plot([0, 1], errors)
    plot._finish(axes, "", "")
    figure.draw_without_rendering()
    low, high = axes.get_ylim()
    shown = [t.get_text() for t in axes.yaxis.get_minorticklabels() if low <= t.get_position()[1] <= high]
    assert any(shown) is labelled
    between = axes.yaxis.get_majorticklabels() + axes.yaxis.get_minorticklabels()
    boxes = [t.get_window_extent() for t in between if t.get_text() and low <= t.get_position()[1] <= high]
    assert boxes
    boxes.sort(key=lambda box: box.y0)
    assert all(a.y1 <= b.y0 for a, b in itertools.pairwise(boxes))
