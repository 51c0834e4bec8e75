"""Pieces of an experiment that survive a kill, and the data that they are made from."""

from __future__ import annotations

import platform
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnngp
from cnngp.paper import setting
from cnngp.paper.setting import OutOfTime, Setting, digest


class Counted:
    """A computation that knows how often it ran."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values, self.calls = values, 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return self.values


def test_a_piece_is_computed_once(tmp_path: Path) -> None:
    outputs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    compute = Counted({"error": 0.84, "names": ["a"], "outputs": outputs})
    first = Setting(tmp_path, device="cpu").piece("p", compute, depends={"n": 3})
    again = Setting(tmp_path, device="cpu")
    second = again.piece("p", compute, depends={"n": 3})
    assert compute.calls == 1
    assert second["error"] == 0.84
    assert second["outputs"].dtype == np.float32
    assert np.array_equal(second["outputs"], outputs)
    assert second["seconds"] == first["seconds"] > 0
    assert "core" in second["hardware"]
    for name in (f"cnngp {cnngp.__version__}", f"Python {platform.python_version()}", f"NumPy {np.__version__}"):
        assert name in second["software"]
    assert [(d.name, d.reused) for d in again.done] == [("p", True)]
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: (Setting(folder, device="cpu"), {"n": 4}),
        lambda folder: (Setting(folder, device="cpu", seed=1), {"n": 3}),
        lambda folder: (Setting(folder, device="cpu", quick=True), {"n": 3}),
    ],
)
def test_a_piece_of_something_else_is_computed_again(
    tmp_path: Path, other: Callable[[Path], tuple[Setting, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Setting(tmp_path, device="cpu").piece("p", lambda: {"x": 1}, depends={"n": 3})
    s, depends = other(tmp_path)
    assert s.piece("p", lambda: {"x": 2}, depends=depends)["x"] == 2
    monkeypatch.setattr(setting, "__version__", "99")
    assert s.piece("p", lambda: {"x": 3}, depends=depends)["x"] == 3


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _change_a_number(path: Path) -> None:
    content = path.read_text()
    assert content.count('"x": 1') == 1
    path.write_text(content.replace('"x": 1', '"x": 7'))


@pytest.mark.parametrize(
    "damage",
    [
        lambda pieces: _change_a_number(pieces / "p.json"),
        lambda pieces: _cut(pieces / "p.json"),
        lambda pieces: (pieces / "p.json").write_text("[]"),
        lambda pieces: (pieces / "p.json").unlink(),  # killed after the arrays, before the values
        lambda pieces: (pieces / "p.npz").unlink(),
        lambda pieces: _cut(pieces / "p.npz"),
        lambda pieces: _flip(pieces / "p.npz"),
        lambda pieces: np.savez(pieces / "p.npz", a=np.zeros(40)),  # of another run
    ],
)
def test_a_damaged_piece_is_computed_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    compute = Counted({"x": 1, "a": np.arange(40.0)})
    Setting(tmp_path, device="cpu").piece("p", compute, depends={})
    damage(tmp_path / "pieces")
    assert np.array_equal(Setting(tmp_path, device="cpu").piece("p", compute, depends={})["a"], np.arange(40.0))
    assert compute.calls == 2


def test_a_piece_under_the_name_of_another_is_computed_again(tmp_path: Path) -> None:
    """Two pieces may depend on the same images and nothing else."""
    setting = Setting(tmp_path, device="cpu")
    depends = {"images": "abc"}
    assert setting.piece("error", lambda: {"value": 1.0}, depends=depends)["value"] == 1.0
    assert setting.piece("seconds", lambda: {"value": 2.0}, depends=depends)["value"] == 2.0
    shutil.copy(tmp_path / "pieces" / "seconds.json", tmp_path / "pieces" / "error.json")
    assert setting.piece("error", lambda: {"value": 3.0}, depends=depends)["value"] == 3.0


def test_values_of_every_kind_are_read_again(tmp_path: Path) -> None:
    """The checksum is of the values as JSON has them: keys as text, in an order of their own, and NaN."""
    values = {"z": {10: 1.5, 9: float("nan"), 100: (1, 2)}, "a": 0.1 + 0.2, "é": None, "x": [1e300, -0.0]}
    compute = Counted(values)
    for _ in range(2):
        found = Setting(tmp_path, device="cpu").piece("p", compute, depends={})
        assert (found["a"], found["x"]) == (0.1 + 0.2, [1e300, -0.0])
    assert compute.calls == 1


def test_a_budget_stops_between_pieces_and_every_run_gets_on(tmp_path: Path) -> None:
    """Pieces that each claim more than the budget: a run does the first that is missing, and no other."""
    counted = {name: Counted({"x": 1}) for name in "abc"}

    def attempt(seconds: float) -> None:
        s = Setting(tmp_path, device="cpu", budget=50.0)
        for name, compute in counted.items():
            s.piece(name, compute, depends={}, seconds=seconds)

    for done in (1, 2):
        with pytest.raises(OutOfTime, match="run again to continue"):
            attempt(100.0)
        assert sum(c.calls for c in counted.values()) == done
    attempt(100.0)
    attempt(100.0)
    assert [c.calls for c in counted.values()] == [1, 1, 1]


def test_bad_pieces(tmp_path: Path) -> None:
    s = Setting(tmp_path, device="cpu")
    with pytest.raises(ValueError, match="small letters"):
        s.piece("../p", dict, depends={})
    for added in ("seconds", "hardware", "software"):
        with pytest.raises(ValueError, match=f"returns {added}"):
            s.piece("p", lambda added=added: {added: 1.0}, depends={})


def test_killed_in_the_middle_of_a_piece(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from cnngp.paper.setting import Setting

        log = Path(sys.argv[2])
        def compute(name):
            with log.open("a") as f:
                f.write(name)
            if name == "b" and sys.argv[3] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            return {"x": len(name)}

        s = Setting(Path(sys.argv[1]), device="cpu")
        for name in "abc":
            s.piece(name, lambda: compute(name), depends={})
    """)
    log = tmp_path / "log"
    arguments = [sys.executable, "-c", script, str(tmp_path / "out"), str(log)]
    killed = subprocess.run([*arguments, "kill"], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([*arguments, "go on"], check=True)
    assert log.read_text() == "ab" + "bc"


def test_digest_tells_arrays_apart() -> None:
    a = np.arange(6.0)
    others = (a.reshape(2, 3), a.astype(np.float32), a + 1, a[::-1])
    assert len({digest(a), *map(digest, others)}) == 5
    assert digest(a) == digest(a.copy())


def test_data_that_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CNNGP_DATA", raising=False)
    s = Setting(tmp_path, data=tmp_path / "data")
    assert not s.at_hand("fashion_mnist")
    with pytest.raises(ValueError, match="no such folder"):
        s.dataset("mnist", "paper")
    (tmp_path / "data" / "fashion_mnist").mkdir(parents=True)
    assert s.at_hand("fashion_mnist")
    (tmp_path / "data" / "mnist").mkdir()
    (tmp_path / "data" / "mnist" / "train-images-idx3-ubyte").write_bytes(b"wrong")
    with pytest.raises(ValueError, match=r"data/mnist/train-images-idx3-ubyte is not the original"):
        s.dataset("mnist", "paper")
