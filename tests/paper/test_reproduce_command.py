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

DATA = digits_in_three(200, 100, 150)
CASES = (table1.Case("cnn", "small CNN", zoo.small_cnn(), 0.7, 0.9), table1.Case("dense", "dense", zoo.dense_nngp(2)))
PLAN = table1.Table1Plan(100, 50, 50, CASES)
QUICK = ["reproduce", "table1", "--quick", "--device", "cpu", "--out"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--quick` on digits, in seconds."""
    monkeypatch.setattr(setting, "load", lambda name, split, data: DATA)
    monkeypatch.setattr(table1, "QUICK", PLAN)


@pytest.mark.usefixtures("small")
def test_the_command_says_its_plan_and_where_it_is_and_writes_numbers_figures_and_the_page(tmp_path: Path, capsys: Any):
    arguments = [*QUICK, str(tmp_path), "--json"]
    assert run(arguments) == 0
    output = capsys.readouterr()
    doc = results.read(tmp_path / "table1.json")
    assert (doc["command"], doc["quick"]) == ("cnngp reproduce table1 --quick --device cpu", True)
    assert {"table1.png", "table1.svg"} == {f["file"] for f in doc["figures"]}
    text = (tmp_path / results.PAGE).read_text()
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
    (tmp_path / "pieces" / "table1-digits-dense.piece").unlink()
    assert run(arguments) == 0
    again = capsys.readouterr().err
    assert "2 pieces, 1 of them from an earlier run; the others up to about 10.0 s" in again
    assert again.count("kept from an earlier run") == 1


@pytest.mark.usefixtures("small")
def test_stopped_by_its_budget_or_interrupted_it_goes_on_and_ends_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, asked, real = tmp_path / "out", list[str](), table1.network_errors
    arguments = [*QUICK, str(out)]

    def counted(setting: Any, kernel: Any, images: Any, label: str) -> Any:
        asked.append(label)
        if asked == ["digits-cnn", "digits-dense"]:
            raise KeyboardInterrupt
        return real(setting, kernel, images, label)

    monkeypatch.setattr(table1, "network_errors", counted)
    assert run([*arguments, "--budget", "1", "--json"]) == 75  # every estimate is above a second
    printed = capsys.readouterr()
    assert "run again to continue" in printed.err
    assert not json.loads(printed.out.splitlines()[-1])["finished"]
    assert not (out / "table1.json").exists()
    assert run(arguments) == 130
    told = (
        f"error: interrupted; the finished pieces are kept in {out / 'pieces'}: run the same command again and it goes "
    )
    assert capsys.readouterr().err == told + "on from there\n"
    assert len(list((out / "pieces").glob("*.piece"))) == 1

    def no_figure(*args: Any) -> None:
        raise plots.PlotsUnavailable('a figure needs matplotlib: pip install "cnngp[plots]"')

    monkeypatch.setattr(table1, "draw", no_figure)
    assert run([*arguments, "--budget", "1"]) == 0  # the last piece that is missing, without matplotlib
    printed = capsys.readouterr()
    assert "run again to continue" not in printed.err
    assert "not drawn: a figure needs matplotlib" in printed.out
    doc = results.read(out / "table1.json")
    assert doc["figures"] == []
    assert asked == ["digits-cnn", "digits-dense", "digits-dense"]
    whole = table1.run(setting.Setting(tmp_path / "whole", quick=True, device="cpu"), PLAN, DATA)
    assert [r["ours"] for r in doc["rows"] if r["unit"] == "%"] == [
        r["ours"] for r in whole["rows"] if r["unit"] == "%"
    ]


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
def test_mistakes_are_one_line_before_any_work(options: Any, message: str, code: int, capsys: Any, tmp_path: Path):
    out = [] if "--out" in options else ["--out", str(tmp_path)]
    assert run(["reproduce", *options, "--quick", *out]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert "piece" not in printed.out


def test_without_mnist_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
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
