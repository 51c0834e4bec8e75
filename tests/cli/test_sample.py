"""`cnngp sample` as a user types it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import zoo

from .conftest import Command

torch = pytest.importorskip("torch")
limits = pytest.importorskip("cnngp.torch_bridge.limits")
FEW = "sample --channels 2,4 --samples 20 --images 2 --output"


def test_sample_draws_the_picture(tmp_path: Path, command: Command) -> None:
    picture = tmp_path / "deep" / "limit.png"
    said = command(f"sample --channels 4,8 --samples 30 --images 2 --outputs 16 --output {picture} --json")
    assert picture.stat().st_size > 10_000
    assert "channels  deviation from the kernel" in said.err
    assert said.json["command"] == "sample"
    assert said.json["verdict"] in ("agrees", "undecided")
    assert [w["channels"] for w in said.json["widths"]] == [4, 8]


def test_what_cannot_be_is_refused_before_networks_are_drawn(
    tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(*_: Any, **__: Any) -> None:
        raise AssertionError("networks were sampled")

    monkeypatch.setattr(limits, "check_limit", sampled)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.png").mkdir()
    for picture, reason in (("file/a.png", "Not a directory"), ("folder.png", "it is a folder")):
        error = refused(f"sample --output {tmp_path / picture}")
        assert error.startswith(f"error: --output {tmp_path / picture} cannot be written: {reason}")
    assert "expected a .png, .pdf or .svg file" in refused("sample --output picture.txt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.png"]
    if not torch.cuda.is_available():
        assert refused("sample --device cuda").startswith("error: --device cuda cannot be used by PyTorch")


def test_auto_is_chosen_by_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    X = np.random.default_rng(0).random((20, 28, 28))
    np.savez(tmp_path / "large.npz", X=X, y=np.arange(20) % 2)
    seen: list[Any] = []

    def stop(network: Any, *_: Any, **__: Any) -> None:
        seen.append(network)
        raise ValueError("enough")

    monkeypatch.setattr(limits, "check_limit", stop)
    for data, name in ((tmp_path / "large.npz", "pooled_cnn-large-exp"), ("digits", "pooled_cnn-large-halved0-exp")):
        said = command(f"sample --network auto --data {data} --output {tmp_path / 'a.png'}", 1)
        assert said.line("network") == f"{name} (chosen)"
    assert seen == [zoo.pooled_cnn("large", h, nonlinearity="exp") for h in (1, 0)]


def test_without_matplotlib_the_table_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = command(f"{FEW} {tmp_path / 'a.png'} --json")
    assert "channels  deviation from the kernel" in said.err
    assert 'not drawn: a figure needs matplotlib: pip install "cnngp[plots]"' in said.err
    assert said.json["files"] == {}
    assert not list(tmp_path.iterdir())
