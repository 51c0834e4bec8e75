"""Solving a kernel matrix by every method: against Cholesky on real images, when it fails, and when it is killed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Kernel, datasets, zoo
from cnngp.common.errors import StoreError
from cnngp.gp import solve
from cnngp.gp.exact import ExactGP
from cnngp.gp.linalg import JitterWarning
from cnngp.gp.solving import ConvergenceWarning, conjugate
from cnngp.gp.solving.conjugate import Checkpoint, Nystrom
from cnngp.gp.solving.matrices import SymmetricMatrix
from helpers.solves import DIGITS, KERNEL, targets, twice


@pytest.fixture(scope="module")
def real() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K, K(test, training) and targets of 600 images of MNIST where it is there, else of digits."""
    there = Path(os.environ.get("CNNGP_DATA", ""), "mnist").is_dir() and "CNNGP_DATA" in os.environ
    data = (datasets.mnist() if there else datasets.digits()).take(600, 100)
    kernel = Kernel(zoo.small_cnn(), device="cpu")
    return kernel(data.X), kernel(data.X_test, data.X).astype(float), 2.0 * np.eye(10)[data.y] - 1.0


@pytest.mark.parametrize("relative", [1e-2, 1e-3])
@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_predictions_are_those_of_cholesky_on_real_images(real: Any, method: Any, relative: float) -> None:
    K, K_test, Y = real
    noise = relative * float(K.diagonal().mean())
    exact = K_test @ ExactGP(K, Y, noise=noise).alpha
    found = solve(K, Y, noise, method, device="cpu")
    assert found.converged
    assert found.method == method
    difference = np.abs(K_test @ found.weights - exact).max()
    assert difference < 1e-6
    # The bound is one: nothing that a prediction can be off by is larger.
    assert difference <= found.error_bound + 1e-12
    residual = np.linalg.norm(K @ found.weights + noise * found.weights - Y, axis=0) / np.linalg.norm(Y, axis=0)
    np.testing.assert_allclose(found.residuals, residual, atol=1e-13)


def test_store_path_and_array_are_one_matrix(stored: Path) -> None:
    import zarr

    K = KERNEL(DIGITS.X)
    weights = ExactGP(K, targets(), noise=0.01).alpha
    array = zarr.open_array(str(stored), path="K", mode="r")
    for matrix in (stored, str(stored), array, K):
        for method in ("cg", "cholesky"):
            found = solve(matrix, targets(), 0.01, method, device="cpu")
            np.testing.assert_allclose(found.weights, weights, atol=1e-6 * np.abs(weights).max())
    assert sorted(p.name for p in stored.parent.iterdir()) == ["K.zarr"]  # no checkpoint is left


class Tiles:
    """An array in chunks that counts what is read of it."""

    def __init__(self, K: np.ndarray, chunks: tuple[int, int]) -> None:
        self.K, self.chunks, self.shape, self.dtype = K, chunks, K.shape, K.dtype
        self.reads: list[tuple[int, int, int, int]] = []

    def __getitem__(self, key: tuple[slice, slice]) -> np.ndarray:
        rows, columns = key
        self.reads.append((rows.start, rows.stop, columns.start, columns.stop))
        return self.K[key]


@pytest.mark.parametrize(("chunks", "tiles"), [((80, 80), 10), ((80, 100), 12)])
def test_a_pass_reads_every_tile_of_one_triangle_once(chunks: tuple[int, int], tiles: int) -> None:
    """Tiles that are not square have no mirror images among them, so all of them are read."""
    K = KERNEL(DIGITS.X)
    there = Tiles(K, chunks)
    V = np.random.default_rng(0).normal(size=(300, 3))
    np.testing.assert_allclose(SymmetricMatrix(there).multiply(V), K.astype(float) @ V, rtol=1e-12)
    assert len(there.reads) == len(set(there.reads)) == tiles
    assert max((b - a) * (d - c) for a, b, c, d in there.reads) <= chunks[0] * chunks[1]


def test_dependent_and_empty_right_hand_sides() -> None:
    """Two outputs of opposite sign, one of zeros, one alone, and more outputs than points."""
    K = KERNEL(DIGITS.X[:120])
    y = np.where(DIGITS.y[:120] < 5, 1.0, -1.0)
    exact = np.linalg.solve(K + 0.01 * np.eye(120), y)
    found = solve(K, np.stack([y, -y, 0 * y], 1), 0.01, "cg", device="cpu")
    np.testing.assert_allclose(found.weights, np.stack([exact, -exact, 0 * exact], 1), atol=1e-6)
    assert not found.weights[:, 2].any()
    one = solve(K, y, 0.01, "cg", device="cpu")
    assert one.weights.shape == (120,)
    np.testing.assert_allclose(one.weights, exact, atol=1e-6)
    few = K[:4, :4]
    Y = np.random.default_rng(0).normal(size=(4, 7))
    found = solve(few, Y, 0.01, "cg", device="cpu")
    np.testing.assert_allclose(found.weights, np.linalg.solve(few + 0.01 * np.eye(4), Y), atol=1e-6)


def test_the_preconditioner_is_what_it_says_and_saves_passes(real: Any) -> None:
    K, _, Y = real
    noise = 1e-2 * float(K.diagonal().mean())
    E = Nystrom.of(SymmetricMatrix(K).multiply, np, 600, 100, noise, seed=0)
    V = np.random.default_rng(1).normal(size=(600, 2))
    np.testing.assert_allclose(E.solve(E.multiply(V)), V, atol=1e-9)
    np.testing.assert_allclose(E.U.T @ E.U, np.eye(100), atol=1e-9)
    top = np.linalg.eigvalsh(K.astype(float))[::-1][:5]
    # Nyström's eigenvalues are never above the matrix's own.
    assert (E.values[:5] <= top * (1 + 1e-9)).all()
    assert (E.values[:5] > 0.9 * top).all()
    passes = [solve(K, Y, noise, "cg", device="cpu", rank=rank).iterations for rank in (0, 50, 300)]
    assert passes[0] > 1.2 * passes[1] > 1.44 * passes[2]


def test_a_system_that_has_no_solution_is_not_claimed_to_be_solved() -> None:
    """The same images twice with other targets, without noise."""
    K = KERNEL(np.concatenate([DIGITS.X[:60]] * 2))
    Y = np.random.default_rng(0).normal(size=(120, 2))
    with pytest.warns(ConvergenceWarning, match=r"not solved: relative residual \d\.\de[-+]\d+ after"):
        found = solve(K, Y, 0.0, "cg", device="cpu")
    assert not found.converged
    assert found.error_bound == np.inf
    true = np.linalg.norm(K @ found.weights - Y, axis=0) / np.linalg.norm(Y, axis=0)
    assert 0.1 < true.max() <= 1.0  # not solved, and not worse than no weights at all
    np.testing.assert_allclose(found.residuals, true, rtol=1e-6)
    assert f"{true.max():.1e}" in found.message


def test_a_column_without_a_solution_does_not_cost_the_others_theirs() -> None:
    """The last image twice: its unit vector is out of the matrix's range, the targets are in it."""
    rows = np.r_[0:200, 199]
    K, Y = twice(rows), targets()[rows]
    B = np.concatenate([Y, np.eye(201)[:, -1:]], axis=1)
    with pytest.warns(ConvergenceWarning, match="not solved"):
        found = solve(K, B, 0.0, "cg", device="cpu", rank=0)
    assert (found.residuals[:-1] < 1e-3).all()
    assert found.residuals[-1] > 0.5
    np.testing.assert_allclose(
        found.residuals, np.linalg.norm(K @ found.weights - B, axis=0) / np.linalg.norm(B, axis=0), rtol=1e-6
    )


def test_a_residual_that_rises_first_is_no_stall(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    K = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / (2 * 0.1**2))
    y = np.random.default_rng(1).normal(size=500)
    found = solve(K, y, 1e-4, "cg", device="cpu", iterations=3000)
    assert found.converged
    assert found.iterations > 100  # the residual is above its start for the first fifty and more
    np.testing.assert_allclose(found.weights, np.linalg.solve(K + 1e-4 * np.eye(500), y), rtol=1e-3, atol=1e-3)
    with pytest.warns(ConvergenceWarning, match="70 iterations were not enough"):
        solve(K, y, 1e-4, "cg", device="cpu", iterations=70, checkpoint=tmp_path / "state")
    again = solve(K, y, 1e-4, "cg", device="cpu", iterations=3000, checkpoint=tmp_path / "state")
    np.testing.assert_array_equal(again.weights, found.weights)


@pytest.mark.parametrize(
    ("K", "noise", "options", "message"),
    [
        (
            KERNEL(DIGITS.X),
            1e-4,
            {"iterations": 3},
            "after 3 iterations, 1e-09 was asked for; 3 iterations were not eno",
        ),
        (2.0 * np.ones((30, 30)) - np.eye(30), 0.0, {}, "not positive definite"),
    ],
)
def test_what_was_not_solved_says_why(K: Any, noise: float, options: dict[str, Any], message: str) -> None:
    np.testing.assert_allclose(solve(np.zeros((8, 8)), np.ones(8), 2.0, "cg", device="cpu").weights, 0.5)
    with pytest.warns(ConvergenceWarning, match=message):
        found = solve(K, np.arange(len(K)), noise, "cg", device="cpu", rank=0, **options)
    assert not found.converged
    assert found.residuals > 1e-9
    assert found.iterations == options.get("iterations", found.iterations)


def test_cholesky_of_a_singular_matrix_says_that_it_added_something() -> None:
    K = KERNEL(np.concatenate([DIGITS.X[:30]] * 2))
    Y = np.random.default_rng(0).normal(size=(60, 1))
    with pytest.warns(JitterWarning), pytest.warns(ConvergenceWarning, match="mean diagonal had to be added"):
        assert not solve(K, Y, 0.0, "cholesky", device="cpu").converged


# ---- killed, and run again -------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def _kill_after(monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
    """Every iteration is kept, and the process dies right after that of one of them was."""
    monkeypatch.setattr(conjugate, "SECONDS", 0.0)
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
    for field in dataclasses.fields(conjugate.State):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(state, field.name), err_msg=field.name)
