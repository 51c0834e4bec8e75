"""`cnngp search`: its files and its one-line errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from cnngp import GPClassifier
from cnngp.cli import run
from cnngp.network.names import network_by_name
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
    assert [rung[0]["train"] for rung in last["rungs"]] == [120, 1237]
    assert last["test"]["looks"] == 1
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


NOT_WRITTEN = "error: {0} file/x cannot be written: Not a directory; choose another"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(([option, "file/x"], NOT_WRITTEN.format(option)) for option in ("--output", "--best", "--study")),
        (["--full", "three"], "--full three: expected how many, such as 3"),
        (["--draws", "0"], "0 is not in the range x>=1"),
        (["--data", "nothing"], "no data 'nothing'"),
        (["--train", "5"], "use more training images"),
        (["--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_made(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    assert run(["search", "--draws", "1", "--train", "60", "--device", "cpu", "--output", "out", *arguments]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
