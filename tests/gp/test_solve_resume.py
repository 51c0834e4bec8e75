"""Solves that are killed or run out of iterations go on where they were; checkpoints of other problems are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp.common.errors import StoreError
from cnngp.gp import solve
from cnngp.gp.solving import ConvergenceWarning, conjugate
from cnngp.gp.solving import checkpoint as checkpoint_module
from cnngp.gp.solving.checkpoint import Checkpoint
from cnngp.gp.solving.matrices import SymmetricMatrix
from helpers.solves import DIGITS, KERNEL, targets


class Killed(BaseException):
    pass


def _kill_after(monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
    """Every iteration is kept, and the process dies right after that of one of them was."""
    monkeypatch.setattr(checkpoint_module, "SECONDS", 0.0)
    see = Checkpoint.see

    def seen(self: Checkpoint, state: conjugate.State) -> None:
        see(self, state)
        if state.iteration == iterations:
            raise Killed

    monkeypatch.setattr(Checkpoint, "see", seen)


def test_a_killed_solve_goes_on_where_it_was(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu"}
    whole = solve(stored, targets(), 1e-3, **options)
    assert whole.iterations > 8
    passes = []
    multiply = SymmetricMatrix.multiply
    monkeypatch.setattr(SymmetricMatrix, "multiply", lambda self, V: (passes.append(1), multiply(self, V))[1])
    with monkeypatch.context() as patch:
        _kill_after(patch, 7)
        with pytest.raises(Killed):
            solve(stored, targets(), 1e-3, **options)
    assert len(list(stored.parent.glob("K.zarr.solve-*"))) == 1
    passes.clear()
    again = solve(stored, targets(), 1e-3, **options)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.iterations == whole.iterations
    assert len(passes) == 1 + whole.iterations - 7 + 1  # the preconditioner, the rest, and the check
    assert [p.name for p in stored.parent.iterdir()] == ["K.zarr"]


def test_an_interrupted_solve_keeps_its_last_iteration(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu"}
    whole = solve(stored, targets(), 1e-3, **options)
    multiply = SymmetricMatrix.multiply
    passes = []

    def interrupted(self: SymmetricMatrix, V: np.ndarray) -> np.ndarray:
        passes.append(1)
        if len(passes) == 8:  # the sketch and six iterations are done
            raise KeyboardInterrupt
        return multiply(self, V)

    with monkeypatch.context() as patch:
        patch.setattr(SymmetricMatrix, "multiply", interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"iteration 6 is kept in .*Run it again to continue"):
            solve(stored, targets(), 1e-3, **options)
    assert len(list(stored.parent.glob("K.zarr.solve-*"))) == 1  # as it says
    again = solve(stored, targets(), 1e-3, **options)
    np.testing.assert_array_equal(again.weights, whole.weights)


def test_what_is_no_checkpoint_of_this_problem_is_left_as_it_is(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "solve.state"
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu", "checkpoint": path}
    with monkeypatch.context() as patch:
        _kill_after(patch, 5)
        with pytest.raises(Killed):
            solve(stored, targets(), 1e-3, **options)
    for problem in ((stored, targets(), 2e-3), (stored, -targets(), 1e-3), (KERNEL(DIGITS.X) * 2, targets(), 1e-3)):
        with pytest.raises(StoreError, match="checkpoint of another problem"):
            solve(*problem, **options)
    data = path.read_bytes()
    for other in (data[: len(data) // 2], b"precious"):
        path.write_bytes(other)
        with pytest.raises(StoreError, match=r"solve.state is not a .*; it is left as it is: give another checkpoint="):
            solve(stored, targets(), 1e-3, **options)
        assert path.read_bytes() == other
    solve(stored, targets(), 1e-3, **options | {"rank": 0})
    assert path.read_bytes() == b"precious"


def test_a_solve_that_ran_out_of_iterations_goes_on(stored: Path, tmp_path: Path) -> None:
    path = tmp_path / "solve.state"
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu", "checkpoint": path}
    whole = solve(stored, targets(), 1e-3, **options)
    for _ in range(2):  # the second has nothing to add
        with pytest.warns(ConvergenceWarning, match="5 iterations were not enough; more of them go on from .*state"):
            solve(stored, targets(), 1e-3, **options, iterations=5)
        assert list(tmp_path.iterdir()) == [path]
    again = solve(stored, targets(), 1e-3, **options)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.iterations == whole.iterations
    assert not list(tmp_path.iterdir())


def test_matrices_with_one_diagonal_have_other_fingerprints() -> None:
    D = (np.arange(9.0)[:, None] - np.arange(9.0)[None]) ** 2
    assert SymmetricMatrix(np.exp(-D)).fingerprint() == SymmetricMatrix(np.exp(-D)).fingerprint()
    assert SymmetricMatrix(np.exp(-D)).fingerprint() != SymmetricMatrix(np.exp(-D / 4)).fingerprint()


def test_a_checkpoint_gives_back_all_that_an_iteration_carries(tmp_path: Path) -> None:
    """Also what only decides when to begin anew, and so shows in no result of a solve that goes well."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((5, 2)) for name in ("X", "Q", "S", "C", "best", "least", "energy")}
    state = conjugate.State(**arrays, start=0.1 + 0.2, iteration=7, history=(0.5, 1 / 3), gains=(0.25, 1e-300))
    kept = Checkpoint(tmp_path / "c", "this")
    kept.see(state)
    kept.write()
    found = Checkpoint(tmp_path / "c", "this").read(np)
    assert found is not None
    for field in dataclasses.fields(conjugate.State):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(state, field.name), err_msg=field.name)
