"""`cnngp sample` as a user types it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from cnngp import zoo
from cnngp.cli import run
from cnngp.cli.sample import sample
from cnngp.torch_bridge import limits


def _run(arguments: list[str]) -> None:
    app = typer.Typer()
    app.command()(sample)
    app(arguments, standalone_mode=False)


def test_sample_draws_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "deep" / "limit.png"
    _run(
        ["--channels", "4,8", "--samples", "30", "--images", "2", "--outputs", "16", "--output", str(picture), "--json"]
    )
    printed = capsys.readouterr()
    assert picture.stat().st_size > 10_000
    assert "channels  deviation from the kernel" in printed.err
    last = json.loads(printed.out)
    assert last["command"] == "sample"
    assert last["verdict"] in ("agrees", "undecided")
    assert [w["channels"] for w in last["widths"]] == [4, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--channels", "4,many"], "--channels 4,many: expected integers with commas"),
        (["--output", "picture.txt"], "expected a .png, .pdf or .svg file"),
        (["--channels", "4"], "give at least two different positive widths"),
        (["--network", "nothing"], "no network 'nothing'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _run(arguments)


@pytest.fixture
def nothing_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused before the long work."""

    def sampled(*_: Any, **__: Any) -> None:
        raise AssertionError("networks were sampled")

    monkeypatch.setattr(limits, "check_limit", sampled)


@pytest.mark.usefixtures("nothing_sampled")
@pytest.mark.parametrize("device", ["cuda", "foo"])
def test_a_device_that_is_not_there_is_one_line_and_nothing_before_it(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a card here")
    assert run(["sample", "--device", device]) == {"cuda": 1, "foo": 2}[device]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    expected = {"cuda": "error: --device cuda cannot be used by PyTorch", "foo": "error: --device foo: expected cpu or"}
    assert printed.err.startswith(expected[device])


@pytest.mark.usefixtures("nothing_sampled")
def test_a_picture_that_cannot_be_written_is_found_out_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.png").mkdir()
    for picture, reason in (("file/a.png", "Not a directory"), ("folder.png", "it is a folder")):
        assert run(["sample", "--output", str(tmp_path / picture)]) == 1
        printed = capsys.readouterr()
        assert printed.err.startswith(f"error: --output {tmp_path / picture} cannot be written: {reason}")
        assert printed.out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.png"]


class _Stderr(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_the_progress_bar_is_for_terminals(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_limit = limits.check_limit

    def slow(*arguments: Any, progress: Any, **named: Any) -> Any:
        progress.__self__.delay = 0  # as after two seconds
        progress(1)
        progress.__self__.refresh()
        return check_limit(*arguments, progress=progress, **named)

    monkeypatch.setattr(limits, "check_limit", slow)
    error = _Stderr(terminal)
    monkeypatch.setattr(sys, "stderr", error)
    _run(["--channels", "2,4", "--samples", "20", "--images", "2", "--output", str(tmp_path / "a.png")])
    assert ("sampling" in error.getvalue()) == terminal


def test_auto_is_chosen_by_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    X = np.random.default_rng(0).random((20, 28, 28))
    np.savez(tmp_path / "large.npz", X=X, y=np.arange(20) % 2)
    seen: list[Any] = []

    def stop(network: Any, *_: Any, **__: Any) -> None:
        seen.append(network)
        raise ValueError("enough")

    monkeypatch.setattr(limits, "check_limit", stop)
    picture = str(tmp_path / "a.png")
    assert run(["sample", "--network", "auto", "--data", str(tmp_path / "large.npz"), "--output", picture]) == 1
    assert "pooled_cnn-large (chosen)" in capsys.readouterr().out
    assert run(["sample", "--network", "auto", "--output", picture]) == 1
    assert "pooled_cnn-large-halved0 (chosen)" in capsys.readouterr().out
    assert seen == [zoo.pooled_cnn("large"), zoo.pooled_cnn("large", 0)]


def test_without_matplotlib_the_table_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = ["sample", "--channels", "2,4", "--samples", "20", "--images", "2", "--json"]
    assert run([*arguments, "--output", str(tmp_path / "a.png")]) == 0
    printed = capsys.readouterr()
    assert "channels  deviation from the kernel" in printed.err
    assert 'not drawn: a figure needs matplotlib: pip install "cnngp[plots]"' in printed.err
    assert json.loads(printed.out)["files"] == {}
    assert not list(tmp_path.iterdir())
