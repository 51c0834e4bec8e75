"""`cnngp sample` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from cnngp.cli.sample import sample


def _run(arguments: list[str]) -> None:
    app = typer.Typer()
    app.command()(sample)
    app(arguments, standalone_mode=False)


def test_sample_draws_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "deep" / "limit.png"
    _run(
        ["--channels", "4,8", "--samples", "30", "--images", "2", "--outputs", "16", "--output", str(picture), "--json"]
    )
    printed = capsys.readouterr().out
    assert picture.stat().st_size > 10_000
    assert "channels  deviation from the kernel" in printed
    last = json.loads(printed.splitlines()[-1])
    assert last["command"] == "sample"
    assert last["verdict"] in ("agrees", "undecided")
    assert [w["channels"] for w in last["widths"]] == [4, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--channels", "4,many"], "--channels 4,many: expected integers with commas"),
        (["--output", "picture.txt"], "expected a .png, .pdf or .svg file"),
        (["--device", "tpu"], "expected cpu or cuda"),
        (["--channels", "4"], "give at least two different widths"),
        (["--network", "nothing"], "no network 'nothing'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _run(arguments)
