"""Solving a kernel matrix by every method: against Cholesky on real images, through kills, and what it admits."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cnngp import (
    Conv,
    Dense,
    GPClassifier,
    GPRegressor,
    Kernel,
    ReLU,
    Sequential,
    datasets,
    gram,
    solve,
    zoo,
)
from cnngp.common import memory
from cnngp.common.errors import StoreError
from cnngp.gp import iterative as iterative_gp
from cnngp.gp import solving
from cnngp.gp.exact import ExactGP, JitterWarning, MatrixError
from cnngp.gp.solving import ConvergenceWarning, conjugate, solve_matrix
from cnngp.gp.solving import checkpoint as checkpoint_module
from cnngp.gp.solving.matrices import SymmetricMatrix
from cnngp.gp.solving.preconditioner import Nystrom, RoughFactor
from cnngp.report.evaluation import evaluate
from helpers import fake_cupy

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DIGITS = datasets.digits().take(300, 60)
KERNEL = Kernel(NET, device="cpu")


@pytest.fixture(scope="module")
def real() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K, K(test, training) and targets of 600 images of MNIST where it is there, else of digits."""
    there = Path(os.environ.get("CNNGP_DATA", ""), "mnist").is_dir() and "CNNGP_DATA" in os.environ
    data = (datasets.mnist() if there else datasets.digits()).take(600, 100)
    kernel = Kernel(zoo.small_cnn(), device="cpu")
    return kernel(data.X), kernel(data.X_test, data.X).astype(float), 2.0 * np.eye(10)[data.y] - 1.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 digits in 16 tiles, of which 10 are on or above the diagonal."""
    path = tmp_path_factory.mktemp("solve") / "K.zarr"
    gram(KERNEL, DIGITS.X, store=path, tile=80)
    return path


def targets(n: int = 300) -> np.ndarray:
    return 2.0 * np.eye(10)[DIGITS.y[:n]] - 1.0


# ---- right -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [1e-2, 1e-3])
@pytest.mark.parametrize("method", ["cholesky", "mixed", "cg"])
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
        for method in ("cg", "mixed", "cholesky"):
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


def test_one_factor_of_float32_serves_products_too(real: Any) -> None:
    """`mixed` needs 4 bytes an entry: the matrix survives above the diagonal of the factor's buffer."""
    K, _, _ = real
    rough = RoughFactor(K.copy(), 1e-3)
    V = np.random.default_rng(1).normal(size=(600, 2))
    assert rough.factor.A.dtype == np.float32
    np.testing.assert_allclose(rough.product(V), K.astype(float) @ V + 1e-3 * V, rtol=1e-12)
    np.testing.assert_allclose(rough.solve_transposed(rough.solve(rough.product(V))), V, atol=0.05)


def twice(rows: np.ndarray) -> np.ndarray:
    """The matrix of images some of which are there twice, singular to the last bit."""
    return KERNEL(DIGITS.X).astype(float)[np.ix_(rows, rows)]


# ---- honest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["cg", "mixed"])
def test_a_system_that_has_no_solution_is_not_claimed_to_be_solved(method: Any) -> None:
    """The same images twice with other targets, without noise."""
    K = KERNEL(np.concatenate([DIGITS.X[:60]] * 2))
    Y = np.random.default_rng(0).normal(size=(120, 2))
    with pytest.warns(ConvergenceWarning, match=r"not solved: relative residual \d\.\de[-+]\d+ after"):
        found = solve(K, Y, 0.0, method, device="cpu")
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


def test_a_matrix_of_zeros_is_solved() -> None:
    np.testing.assert_allclose(solve(np.zeros((8, 8)), np.ones(8), 2.0, "cg", device="cpu").weights, 0.5)


def test_too_few_iterations_are_said() -> None:
    with pytest.warns(
        ConvergenceWarning, match="after 3 iterations, 1e-09 was asked for; 3 iterations were not enough"
    ):
        found = solve(KERNEL(DIGITS.X), targets(), 1e-4, "cg", device="cpu", iterations=3, rank=0)
    assert found.iterations == 3
    assert found.residuals.max() > 1e-9


def test_a_matrix_that_is_not_positive_definite_is_named() -> None:
    K = -np.eye(30) + 2.0 * np.ones((30, 30))
    with pytest.warns(ConvergenceWarning, match="not positive definite"):
        found = solve(K, np.arange(30.0), 0.0, "cg", device="cpu", rank=0)
    assert not found.converged


def test_cholesky_of_a_singular_matrix_says_that_it_added_something() -> None:
    K = KERNEL(np.concatenate([DIGITS.X[:30]] * 2))
    Y = np.random.default_rng(0).normal(size=(60, 1))
    with pytest.warns(JitterWarning), pytest.warns(ConvergenceWarning, match="mean diagonal had to be added"):
        assert not solve(K, Y, 0.0, "cholesky", device="cpu").converged


# ---- killed ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def _kill_after(monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
    """Every iteration is kept, and the process dies right after that of one of them was."""
    monkeypatch.setattr(checkpoint_module, "SECONDS", 0.0)
    save = checkpoint_module.Checkpoint.save

    def saved(self: Any, E: Any, state: conjugate.State, every: float | None = None) -> None:
        save(self, E, state, every)
        if state.iteration == iterations:
            raise Killed

    monkeypatch.setattr(checkpoint_module.Checkpoint, "save", saved)


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
    left = sorted(p.name for p in stored.parent.iterdir() if p.name != "K.zarr")
    assert len(left) == 2
    assert left[1] == left[0] + "-basis"
    passes.clear()
    again = solve(stored, targets(), 1e-3, **options)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.iterations == whole.iterations
    assert len(passes) == whole.iterations - 7 + 1  # the rest, and the check; no new preconditioner
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
        with pytest.raises(KeyboardInterrupt, match=r"iteration 6 is kept in .*Run the same again to go on"):
            solve(stored, targets(), 1e-3, **options)
    again = solve(stored, targets(), 1e-3, **options)
    np.testing.assert_array_equal(again.weights, whole.weights)


def test_checkpoints_of_other_problems_and_damaged_ones(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "solve.state"
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu", "checkpoint": path}
    whole = solve(stored, targets(), 1e-3, **options)
    with monkeypatch.context() as patch:
        _kill_after(patch, 5)
        with pytest.raises(Killed):
            solve(stored, targets(), 1e-3, **options)
    for problem in ((stored, targets(), 2e-3), (stored, -targets(), 1e-3), (KERNEL(DIGITS.X) * 2, targets(), 1e-3)):
        with pytest.raises(StoreError, match="checkpoint of another problem"):
            solve(*problem, **options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with caplog.at_level("WARNING", "cnngp"):
        again = solve(stored, targets(), 1e-3, **options)
    assert "not a whole checkpoint file" in caplog.text
    assert (tmp_path / "solve.state.damaged").read_bytes() == data[: len(data) // 2]
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert not path.exists()


def test_a_file_that_is_no_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    K, path = KERNEL(DIGITS.X[:60]), tmp_path / "results.npz"
    for name in ("results.npz", "results.npz-basis"):
        (tmp_path / name).write_text("precious")
        with pytest.raises(StoreError, match=rf"{name} is no checkpoint of a solve, so it is left as it is"):
            solve(K, targets(60), 1e-2, "cg", device="cpu", checkpoint=path)
        assert (tmp_path / name).read_text() == "precious"
        if name == "results.npz":
            solve(K, targets(60), 1e-2, "cg", device="cpu", checkpoint=path, rank=0)
            assert path.read_text() == "precious"
            path.unlink()


def test_a_solve_that_ran_out_of_iterations_goes_on(stored: Path, tmp_path: Path) -> None:
    path = tmp_path / "solve.state"
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu", "checkpoint": path}
    whole = solve(stored, targets(), 1e-3, **options)
    for _ in range(2):  # the second has nothing to add
        with pytest.warns(ConvergenceWarning, match="5 iterations were not enough; more of them go on from .*state"):
            solve(stored, targets(), 1e-3, **options, iterations=5)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["solve.state", "solve.state-basis"]
    again = solve(stored, targets(), 1e-3, **options)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.iterations == whole.iterations
    assert not list(tmp_path.iterdir())


def test_matrices_with_one_diagonal_have_other_fingerprints() -> None:
    D = (np.arange(9.0)[:, None] - np.arange(9.0)[None]) ** 2
    assert SymmetricMatrix(np.exp(-D)).fingerprint() == SymmetricMatrix(np.exp(-D)).fingerprint()
    assert SymmetricMatrix(np.exp(-D)).fingerprint() != SymmetricMatrix(np.exp(-D / 4)).fingerprint()


# ---- choosing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("free", "method"), [(720_000, "cholesky"), (719_999, "mixed"), (359_999, "cg")])
def test_auto_takes_what_fits(stored: Path, monkeypatch: pytest.MonkeyPatch, free: int, method: str) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": free)
    assert solve(stored, targets(), 0.01, device="cpu").method == method


def test_cards_with_slow_float64_take_a_float32_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": 10**9)
    for slow, method in ((True, "mixed"), (False, "cholesky")):
        monkeypatch.setattr(solving, "_float64_is_slow", lambda slow=slow: slow)
        assert solving.choose_method(1000, "cuda") == method
    assert solving.choose_method(1000, "cpu") == "cholesky"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "lu"}, "method='lu' is not one of 'auto', 'cholesky', 'mixed', 'cg'"),
        ({"noise": -1.0}, "noise=-1.0: expected a variance"),
        ({"noise": "ml"}, "noise='ml': expected a variance"),
        ({"tolerance": 2.0}, "tolerance=2.0: expected a number between 0 and 1"),
        ({"device": "tpu"}, "device='tpu' is not"),
        ({"Y": np.ones(5)}, r"targets have shape \(5, 1\); expected \(4 points"),
        ({"store": np.ones((3, 4))}, r"shape \(3, 4\); expected \(N, N\)"),
        ({"store": np.diag([1.0, np.nan, 1.0, 1.0])}, "contains NaN or infinity"),
        ({"store": np.diag([1.0, -1.0, 1.0, 1.0])}, "negative numbers on its diagonal"),
        ({"client": SimpleNamespace(scatter=0, map=0, gather=0)}, "client= needs a matrix in a store"),
        ({"client": "tcp://host:8786"}, "client='tcp://host:8786': expected a dask.distributed.Client"),
        ({"method": ["cg"]}, r"method=\['cg'\] is not one of"),
        ({"noise": None}, "noise=None: expected a variance"),
        ({"noise": [0.1]}, r"noise=\[0.1\]: expected a variance"),
        ({"noise": 1j}, "noise=1j: expected a variance"),
        ({"tolerance": "1e-6"}, "tolerance='1e-6': expected a number between 0 and 1"),
        ({"tolerance": None}, "tolerance=None: expected a number"),
        ({"rank": -1}, "rank=-1: expected a whole number of 0 or more, or None"),
        ({"rank": 2.5}, "rank=2.5: expected a whole number"),
        ({"rank": True}, "rank=True: expected a whole number"),
        ({"iterations": 0}, "iterations=0: expected a whole number of 1 or more"),
        ({"iterations": 2.5}, "iterations=2.5: expected a whole number"),
        ({"iterations": None}, "iterations=None: expected a whole number"),
        ({"checkpoint": 3}, "checkpoint=3: expected the path of a file, or None"),
        ({"checkpoint": ""}, "checkpoint='': expected the path of a file"),
        ({"Y": np.ones(4) + 0j}, "^Y has type complex128; expected real numbers$"),
        ({"Y": np.full(4, "1")}, "^Y has type <U1; expected real numbers$"),
        ({"Y": [1, "2", 3, 4]}, "^Y has type <U21; expected real numbers$"),
        ({"store": np.eye(4) + 0j}, "^the kernel matrix has type complex128; expected real numbers$"),
        ({"store": [[1j]]}, "^the kernel matrix has type complex128; expected real numbers$"),
        ({"store": np.eye(4).astype("S8")}, r"^the kernel matrix has type \|S8; expected real numbers$"),
        ({"store": np.full((4, 4), "1", object)}, "^the kernel matrix holds Python objects that are not all real"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    good = {"store": np.eye(4), "Y": np.ones(4), "noise": 0.1, "method": "cg", "device": "cpu"}
    for method in ("cg", "mixed", "cholesky") if {"Y", "store"} & set(arguments) and "has type" in message else ("cg",):
        with pytest.raises(ValueError, match=message) as caught:
            solve(**(good | {"method": method} | arguments))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["cholesky", "mixed", "cg"])
def test_any_library_and_any_real_type(method: Any) -> None:
    K = np.diag([1.0, 2.0, 3.0]) + 1.0
    expected = np.linalg.solve(K + 0.5 * np.eye(3), [1.0, 2.0, 3.0])
    torch_K = torch.tensor(K, requires_grad=True)
    for matrix in (K.astype(np.float32), K.astype(np.int64), K.astype(object), K.tolist(), torch_K):
        Y = torch.tensor([1.0, 2.0, 3.0]) if matrix is torch_K else [1, 2, 3]
        options = {"rank": np.int64(1), "iterations": np.int32(50), "tolerance": np.float64(1e-10)}
        noise = {"cg": np.float32(0.5), "mixed": np.array(0.5), "cholesky": torch.tensor(0.5)}[method]
        found = solve(matrix, Y, noise, method, device="cpu", **options)
        np.testing.assert_allclose(found.weights, expected, rtol=1e-8)


def test_stores_that_cannot_be_solved(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no store of a kernel matrix; compute it there with gram"):
        solve(tmp_path / "nothing.zarr", targets(), 0.1)
    assert not (tmp_path / "nothing.zarr").exists()
    gram(KERNEL, DIGITS.X[:40], DIGITS.X[40:60], store=tmp_path / "cross.zarr")
    with pytest.raises(StoreError, match="matrix of two sets of images"):
        solve(tmp_path / "cross.zarr", targets(40), 0.1)
    K = gram(KERNEL, DIGITS.X[:60], store=tmp_path / "K.zarr", tile=32)
    chunk = tmp_path / "K.zarr" / "K" / "c" / "0" / "1"
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=r"cannot be read .*run gram on the store again"):
        solve(K, targets(60), 0.1, "cg", device="cpu")
    chunk.unlink()
    with pytest.raises(StoreError, match="lacks 1 of 3 tiles; run gram"):
        solve(tmp_path / "K.zarr", targets(60), 0.1)
    with pytest.raises(MatrixError, match="an unfinished store does too"):
        solve(K, targets(60), 0.1, "cg", device="cpu")


# ---- elsewhere -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["cg", "mixed", "cholesky"])
def test_arrays_on_a_card_take_the_same_path(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    K, Y = KERNEL(DIGITS.X[:100]), targets(100)
    for name, module in fake_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(memory, "available", lambda device="cpu": None)
    here = solve_matrix(SymmetricMatrix(K), Y, 0.01, method)
    there = solve_matrix(SymmetricMatrix(fake_cupy.ndarray(K)), fake_cupy.ndarray(Y), 0.01, method)
    assert isinstance(there.weights, fake_cupy.ndarray)
    np.testing.assert_allclose(there.weights.get(), here.weights, rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["auto", "cg", "mixed", "cholesky"])
def test_on_a_real_card(stored: Path, method: Any) -> None:
    cupy = pytest.importorskip("cupy")
    exact = ExactGP(KERNEL(DIGITS.X), targets(), noise=0.01).alpha
    K = KERNEL(DIGITS.X)
    tensors = [torch.as_tensor(K, device="cuda")] if torch.cuda.is_available() else []
    for matrix in (stored, K, cupy.asarray(K), *tensors):
        found = solve(matrix, targets(), cupy.asarray(0.01), method, device="cuda")
        assert found.converged
        assert isinstance(found.weights, np.ndarray)
        np.testing.assert_allclose(found.weights, exact, atol=1e-6 * np.abs(exact).max())


def test_workers_multiply_rows_of_tiles(stored: Path) -> None:
    distributed = pytest.importorskip("distributed")
    alone = solve(stored, targets(), 0.01, "cg", device="cpu")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        found = solve(stored, targets(), 0.01, client=client, device="cpu")
    assert found.method == "cg"
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-7, atol=1e-9)


# ---- estimators ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact() -> GPClassifier:
    return GPClassifier(NET, noise=1e-3, device="cpu").fit(DIGITS.X, DIGITS.y)


@pytest.mark.parametrize("solver", ["cg", "mixed"])
def test_an_estimator_without_a_factor(exact: GPClassifier, tmp_path: Path, solver: Any) -> None:
    clf = GPClassifier(NET, noise=1e-3, device="cpu", solver=solver, amplitude=exact.gp_.amplitude)
    clf.fit(DIGITS.X, DIGITS.y)
    mean, variance = exact.predict_latent(DIGITS.X_test)
    np.testing.assert_allclose(clf.predict_latent(DIGITS.X_test)[0], mean, atol=1e-6)
    np.testing.assert_allclose(clf.predict_latent(DIGITS.X_test)[1], variance, rtol=1e-3)
    np.testing.assert_array_equal(clf.predict(DIGITS.X_test), exact.predict(DIGITS.X_test))
    # Leave-one-out of a sample is that of the exact fit, image by image.
    assert len(clf.loo_rows_) == 256
    np.testing.assert_array_equal(clf.loo_predictions_, exact.loo_predictions_[clf.loo_rows_])
    loo_mean, loo_variance = exact.gp_.leave_one_out()
    np.testing.assert_allclose(clf.gp_.leave_one_out()[0], loo_mean[clf.loo_rows_], atol=1e-6)
    np.testing.assert_allclose(clf.gp_.leave_one_out()[1], loo_variance[clf.loo_rows_], rtol=1e-6)
    P = clf.predict_proba(DIGITS.X_test)
    np.testing.assert_allclose(P.sum(1), 1.0)
    assert np.abs(P - exact.predict_proba(DIGITS.X_test)).max() < 0.15
    assert clf.log_marginal_likelihood_ is None
    assert clf.fit_report_.method == solver
    assert clf.fit_report_.residual < 1e-8
    assert set(clf.most_uncertain(3)) <= set(clf.loo_rows_)
    clf.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(DIGITS.X_test), P)
    assert again.loo_error_ == clf.loo_error_
    with pytest.raises(MatrixError, match="no kernel matrix, so it gives means and no variances"):
        again.predict_latent(DIGITS.X_test)
    with pytest.raises(MatrixError, match=r"adding images needs a Cholesky factor.*use solver='cholesky'"):
        clf.add(DIGITS.X_test[:2], DIGITS.y_test[:2])
    reg = GPRegressor(NET, noise=1e-3, device="cpu", solver=solver).fit(DIGITS.X, DIGITS.y)
    with pytest.raises(MatrixError, match="covariance between test points needs"):
        reg.predict(DIGITS.X_test, return_cov=True)
    with pytest.raises(MatrixError, match="sample of functions needs"):
        reg.sample_y(DIGITS.X_test)
    with pytest.raises(MatrixError, match="noise='ml' needs an eigendecomposition"):
        GPClassifier(NET, noise="ml", device="cpu", solver=solver).fit(DIGITS.X, DIGITS.y)


@pytest.mark.parametrize("options", [{"solver": "cg", "noise": 1e-3}, {"inducing": 80}])
def test_the_report_of_a_model_without_a_factor(options: dict[str, Any]) -> None:
    clf = GPClassifier(NET, device="cpu", **options).fit(DIGITS.X, DIGITS.y)
    found = evaluate(clf, DIGITS)
    assert found.images == 300
    assert found.correlations.shape == (300, 300)
    assert found.loo.error == clf.loo_error_
    assert json.dumps(found.as_dict())


def test_auto_is_cholesky_until_it_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 images: a factor takes 8 MB, one of float32 4 MB, the vectors of an iteration with 18 columns 3 MB."""
    data = datasets.digits().take(1000, 100)
    clf = GPClassifier(NET, noise=1e-3, device="cpu", store=tmp_path / "K.zarr")
    assert clf.fit(data.X, data.y).fit_report_.method == "cholesky"
    expected = clf.predict(data.X_test)
    monkeypatch.setattr(iterative_gp, "SAMPLE", 8)
    for free, method in ((7_000_000, "mixed"), (3_500_000, "cg")):
        monkeypatch.setattr(memory, "available", lambda device="cpu", free=free: free)
        assert clf.fit(data.X, data.y).fit_report_.method == method
        np.testing.assert_array_equal(clf.predict(data.X_test), expected)
    with pytest.raises(MemoryError, match=r"use fewer images.*keep the matrix on disk with store=.*or use inducing="):
        GPClassifier(NET, noise=1e-3, device="cpu").fit(data.X, data.y)
    with pytest.raises(MemoryError, match="noise='ml' takes most of it, give a number"):
        GPClassifier(NET, noise="ml", device="cpu", store=tmp_path / "K.zarr").fit(data.X, data.y)
    monkeypatch.setattr(iterative_gp, "SAMPLE", 256)
    with pytest.raises(MemoryError, match="solving for 1,000 points by cg needs"):
        clf.fit(data.X, data.y)
    with pytest.raises(ValueError, match="solver='lu' is not one of"):
        GPClassifier(NET, solver="lu", device="cpu").fit(data.X, data.y)


def test_repeated_images_without_noise_cost_only_their_own_leave_one_out() -> None:
    rows = np.r_[0:300, 0:30]
    K, K_test, y = twice(rows), KERNEL(DIGITS.X_test, DIGITS.X)[:, rows], DIGITS.y[rows]
    clf = GPClassifier(device="cpu", solver="cg")
    with pytest.warns(ConvergenceWarning, match=r"unit vectors of \d+ of 256 images.*loo_rows_; add noise") as told:
        clf.fit(K=K, y=y)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert clf.fit_report_.residual < 1e-8
    assert 200 <= len(clf.loo_rows_) < 240
    assert not set(clf.loo_rows_) & {*range(30), *range(300, 330)}
    exact = GPClassifier(NET, device="cpu").fit(DIGITS.X, DIGITS.y)  # noiseless copies of an image add nothing
    np.testing.assert_array_equal(clf.predict(K=K_test), exact.predict(DIGITS.X_test))
    np.testing.assert_array_equal(clf.loo_predictions_, exact.loo_predictions_[clf.loo_rows_])
    # The bound from the other rows would praise a singular matrix.
    assert clf.fit_report_.smallest_eigenvalue[1] < 1e-10


def test_unit_vectors_without_a_solution_do_not_hold_up_the_others() -> None:
    """On a badly conditioned matrix they do when they are in one block: it is solved again without them."""
    x = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    single = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / (2 * 0.3**2)) + 1e-7 * np.eye(300)
    rows = np.r_[0:300, 0:10]
    with pytest.warns(ConvergenceWarning, match="16 of 256 images"):
        gp = iterative_gp.IterativeGP(SymmetricMatrix(single[np.ix_(rows, rows)]), np.sin(3 * x)[rows], np, noise=0.0)
    assert not set(gp.loo_rows) & {*range(10), *range(300, 310)}
    np.testing.assert_allclose(gp.inverse_diagonal, np.linalg.inv(single).diagonal()[gp.loo_rows], rtol=1e-3)


def test_without_any_leave_one_out_there_are_still_predictions() -> None:
    """Every image twice: no unit vector is solvable."""
    rows = np.r_[0:100, 0:100]
    K, K_test, y = twice(rows), KERNEL(DIGITS.X_test, DIGITS.X)[:, rows], DIGITS.y[rows]
    clf = GPClassifier(device="cpu", solver="cg", amplitude="loo")
    with pytest.warns(ConvergenceWarning, match="has none: loo_error_ is NaN and the temperature 1"):
        clf.fit(K=K, y=y)
    assert np.isnan(clf.loo_error_)
    assert clf.temperature_ == 1.0
    assert len(clf.loo_rows_) == len(clf.loo_predictions_) == len(clf.loo_probabilities_) == 0
    exact = GPClassifier(NET, device="cpu").fit(DIGITS.X[:100], DIGITS.y[:100])
    np.testing.assert_array_equal(clf.predict(K=K_test), exact.predict(DIGITS.X_test))
    np.testing.assert_allclose(clf.predict_proba(K=K_test).sum(1), 1.0)
    with pytest.warns(ConvergenceWarning, match="has none"):
        reg = GPRegressor(device="cpu", solver="cg").fit(K=K, y=y)
    assert np.isnan(reg.loo_error_)


def test_variances_that_were_not_solved_for_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reg = GPRegressor(NET, noise=1e-3, device="cpu", solver="cg", store=tmp_path / "K.zarr").fit(DIGITS.X, DIGITS.y)
    _, right = reg.predict(DIGITS.X_test, return_std=True)
    monkeypatch.setattr(iterative_gp, "solve_matrix", functools.partial(solve_matrix, iterations=2))
    with pytest.warns(
        ConvergenceWarning, match="variances were not solved, so these are too large as a rule: rel"
    ) as told:
        _, std = reg.predict(DIGITS.X_test, return_std=True)
    assert told[0].filename == __file__
    assert (std > right).all()
    assert not list(tmp_path.glob("*solve*"))  # a state for every block of test images would fill the disk
