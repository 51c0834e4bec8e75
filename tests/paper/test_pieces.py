"""Pieces of an experiment that survive a kill, and the data that they are made from."""

from __future__ import annotations

import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import cnngp
from cnngp.paper import setting
from cnngp.paper.setting import OutOfTime, Piece, Setting, digest


def test_a_piece_is_computed_once_and_values_of_every_kind_are_read_again(tmp_path: Path) -> None:
    outputs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    values = {"z": {10: 1.5, 9: float("nan"), 100: (1, 2)}, "a": 0.1 + 0.2, "é": None, "x": [1e300, -0.0]}
    compute = Mock(return_value=values | {"outputs": outputs})
    first = Setting(tmp_path, device="cpu").values(Piece("p", compute, depends={"n": 3}))
    again = Setting(tmp_path, device="cpu")
    second = again.values(Piece("p", compute, depends={"n": 3}))
    assert compute.call_count == 1
    assert (second["a"], second["x"], second["z"]["100"], second["é"]) == (0.1 + 0.2, [1e300, -0.0], [1, 2], None)
    assert second["outputs"].dtype == np.float32
    assert np.array_equal(second["outputs"], outputs)
    assert second["seconds"] == first["seconds"] > 0
    assert "core" in second["hardware"]
    for name in (f"cnngp {cnngp.__version__}", f"Python {platform.python_version()}", f"NumPy {np.__version__}"):
        assert name in second["software"]
    assert [(d.name, d.reused) for d in again.done] == [("p", True)]


def test_a_piece_of_something_else_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under the name of another, with which it may share all that it depends on."""
    made = iter(range(9))
    usual = Setting(tmp_path, device="cpu")
    for n, s, depends in (
        (0, usual, {"n": 3}),
        (1, usual, {"n": 4}),
        (2, Setting(tmp_path, device="cpu", seed=1), {"n": 4}),
        (3, Setting(tmp_path, device="cpu", quick=True), {"n": 4}),
    ):
        assert s.values(Piece("p", lambda: {"x": next(made)}, depends=depends))["x"] == n
    monkeypatch.setattr(setting, "__version__", "99")
    assert s.values(Piece("p", lambda: {"x": next(made)}, depends=depends))["x"] == 4
    shutil.copy(tmp_path / "pieces" / "p.piece", tmp_path / "pieces" / "q.piece")
    assert s.values(Piece("q", lambda: {"x": next(made)}, depends=depends))["x"] == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes().replace(b'"x": 1', b'"x": 7')),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_text("[]"),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes().replace(np.float64(39).tobytes(), np.float64(38).tobytes())),
    ],
)
def test_a_damaged_piece_is_computed_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    compute = Mock(return_value={"x": 1, "a": np.arange(40.0)})
    Setting(tmp_path, device="cpu").values(Piece("p", compute, depends={}))
    damage(tmp_path / "pieces" / "p.piece")
    again = Setting(tmp_path, device="cpu").values(Piece("p", compute, depends={}))
    assert (again["x"], again["a"].tolist()) == (1, list(range(40)))
    assert compute.call_count == 2


def test_a_budget_stops_between_pieces_and_every_run_gets_on(tmp_path: Path) -> None:
    """Pieces that each claim more than the budget: a run does the first that is missing, and no other."""
    counted = {name: Mock(return_value={"x": 1}) for name in "abc"}

    def attempt() -> None:
        s = Setting(tmp_path, device="cpu", budget=50.0)
        for name, compute in counted.items():
            s.values(Piece(name, compute, depends={}, seconds=100.0))

    for done in (1, 2):
        with pytest.raises(OutOfTime, match="run again to continue"):
            attempt()
        assert sum(c.call_count for c in counted.values()) == done
    attempt()
    attempt()
    assert [c.call_count for c in counted.values()] == [1, 1, 1]


KILLED = """
import os, signal, sys
from pathlib import Path
from cnngp.paper.setting import Piece, Setting

def compute(name):
    with open(sys.argv[2], "a") as log:
        log.write(name)
    if name == "b" and sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": len(name)}

s = Setting(Path(sys.argv[1]), device="cpu")
for name in "abc":
    s.values(Piece(name, lambda: compute(name), depends={}))
"""


def test_killed_in_the_middle_of_a_piece(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "out"), str(log)]
    killed = subprocess.run([*arguments, "kill"], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([*arguments, "go on"], check=True)
    assert log.read_text() == "ab" + "bc"


def test_names_and_digests_tell_pieces_and_arrays_apart(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="small letters"):
        Setting(tmp_path, device="cpu").values(Piece("../p", dict, depends={}))
    a = np.arange(6.0)
    others = (a.reshape(2, 3), a.astype(np.float32), a + 1, a[::-1])
    assert len({digest(a), *map(digest, others)}) == 5
    assert digest(a) == digest(a.copy())
