"""The command `cnngp reproduce`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cnngp import zoo
from cnngp.cli import run
from cnngp.paper import results, setting, table1
from cnngp.report import plots
from helpers.experiments import digits_in_three


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--quick` on digits, in seconds."""
    cases = (
        table1.Case("cnn", "small CNN", zoo.small_cnn(), 0.7, 0.9),
        table1.Case("dense", "dense", zoo.dense_nngp(2)),
    )
    monkeypatch.setattr(setting, "load", lambda name, split, data: digits_in_three(200, 100, 150))
    plan = table1.Table1Plan(100, 50, 50, cases)
    monkeypatch.setattr(table1, "QUICK", plan)


@pytest.mark.usefixtures("small")
def test_the_command_says_its_plan_and_where_it_is_and_writes_numbers_figures_and_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(tmp_path / "out"), "--json"]
    assert run(arguments) == 0
    output = capsys.readouterr()
    doc = results.read(tmp_path / "out" / "table1.json")
    assert (doc["command"], doc["quick"]) == ("cnngp reproduce table1 --quick --device cpu", True)
    assert {"table1.png", "table1.svg"} == {f["file"] for f in doc["figures"]}
    text = (tmp_path / "out" / results.PAGE).read_text()
    for r in doc["rows"]:
        for shown in (results.shown(r[key], r["unit"]) for key in ("ours", "published") if r[key] is not None):
            assert shown in text
            assert shown in output.err
    last = json.loads(output.out)
    assert last["finished"]
    assert [r["ours"] for r in last["rows"]] == [r["ours"] for r in doc["rows"]]
    lines = output.err.splitlines()
    assert lines[1].startswith(f"{'plan':<22} 2 pieces; the whole up to about ")
    told = [line.split(maxsplit=1)[1].split(": ") for line in lines if line.startswith("piece")]
    pieces = [f"{i} of 2, table1-digits-{p}" for i, p in enumerate(("cnn", "dense"), 1)]
    assert [name for name, _ in told] == [pieces[0], pieces[0], pieces[1], pieces[1]]
    assert all(text.startswith(("up to about ", "done in ")[k % 2]) for k, (_, text) in enumerate(told))
    assert "In brackets: published values, of the full experiment; larger errors are no failure" in output.err
    (tmp_path / "out" / "pieces" / "table1-digits-dense.piece").unlink()
    assert run(arguments) == 0
    again = capsys.readouterr().err
    assert "2 pieces, 1 of them from an earlier run; the others up to about 10.0 s" in again
    assert again.count("kept from an earlier run") == 1


@pytest.mark.usefixtures("small")
def test_interrupted_the_command_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = table1.network_errors

    def stopped(setting: Any, kernel: Any, images: Any, label: str) -> Any:
        if label == "digits-dense":
            raise KeyboardInterrupt
        return real(setting, kernel, images, label)

    monkeypatch.setattr(table1, "network_errors", stopped)
    assert run(["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == (
        f"error: interrupted; the finished pieces are kept in {tmp_path / 'pieces'}: run the same command again and it "
        "goes on from there\n"
    )
    assert len(list((tmp_path / "pieces").glob("*.piece"))) == 1


@pytest.mark.usefixtures("small")
def test_the_command_stops_at_its_budget_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every estimate is above a second, so each run computes one piece."""
    arguments = ["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(tmp_path), "--budget", "1", "--json"]
    codes = []
    while not codes or (codes[-1] == 75 and len(codes) < 9):
        codes.append(run(arguments))
        printed = capsys.readouterr()
        assert ("run again to continue" in printed.err) == (codes[-1] == 75)
        assert json.loads(printed.out.splitlines()[-1])["finished"] == (codes[-1] == 0)
        assert (tmp_path / "table1.json").exists() == (codes[-1] == 0)
    assert codes == [75, 0]


@pytest.mark.usefixtures("small")
def test_without_matplotlib_the_numbers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*args: Any) -> None:
        raise plots.PlotsUnavailable('a figure needs matplotlib: pip install "cnngp[plots]"')

    monkeypatch.setattr(table1, "draw", missing)
    assert run(["reproduce", "table1", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert "not drawn: a figure needs matplotlib" in capsys.readouterr().out
    assert results.read(tmp_path / "table1.json")["figures"] == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["table1", "--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda'", 2),
        (["table1", "--budget", "-1"], "expected a positive number of seconds", 2),
        (["table1", "--budget", "nan"], "expected a positive number of seconds", 2),
        (["table9"], "table9", 2),
        (["table1", "--out", "/dev/null/here"], "/dev/null", 1),
        (["table1", "--scheduler", "nowhere"], "nowhere", 1),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    options: list[str], message: str, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = [] if "--out" in options else ["--out", str(tmp_path)]
    assert run(["reproduce", *options, "--quick", *out]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert "piece" not in printed.out


def test_without_mnist_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)
    (tmp_path / "data").mkdir()
    for options in (["--data", str(tmp_path / "data")], ["--data", str(tmp_path / "none")]):
        assert run(["reproduce", "all", "--quick", "--device", "cpu", "--out", str(tmp_path / "out"), *options]) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert options[1] in err
        assert "mnist" in err
    assert not (tmp_path / "out").exists()
