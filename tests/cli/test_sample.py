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


def test_a_picture_and_without_matplotlib_the_table_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    picture = tmp_path / "deep" / "limit.png"
    words = f"sample --channels 4,8 --samples 30 --images 2 --outputs 16 --output {picture} --json"
    said = command(words)
    assert picture.stat().st_size > 10_000
    assert said.json["files"] == {"picture": str(picture)}
    picture.unlink()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    without = command(words)
    assert 'not drawn: a figure needs matplotlib: pip install "cnngp[plots]"' in without.err
    assert without.json["files"] == {}
    assert not picture.exists()
    for each in (said, without):
        assert "channels  deviation from the kernel" in each.err
        assert each.json["command"] == "sample"
        assert each.json["verdict"] in ("agrees", "undecided")
        assert [w["channels"] for w in each.json["widths"]] == [4, 8]


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has a card here")
def test_a_card_that_pytorch_does_not_have(refused: Any) -> None:
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
