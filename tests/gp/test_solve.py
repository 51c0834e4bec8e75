"""Solving a kernel matrix: against Cholesky, what is refused, when it fails, and when it is killed."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import zarr

from cnngp import gram
from cnngp.common import memory
from cnngp.common.errors import StoreError
from cnngp.gp import solve
from cnngp.gp.exact import ExactGP
from cnngp.gp.linalg import JitterWarning
from cnngp.gp.solving import ConvergenceWarning, conjugate
from cnngp.gp.solving.conjugate import Checkpoint, Nystrom
from cnngp.gp.solving.matrices import SymmetricMatrix
from helpers.refits import rbf
from helpers.solves import DIGITS, KERNEL, targets, twice


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 digits in 16 tiles, of which 10 are on or above the diagonal."""
    path = tmp_path_factory.mktemp("solve") / "K.zarr"
    gram(KERNEL, DIGITS.X, store=path, tile=80)
    return path


@pytest.mark.parametrize("relative", [1e-2, 1e-3])
@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_store_path_and_array_are_one_matrix_and_solved_as_by_cholesky(stored: Path, method: Any, relative: float):
    K, K_test = KERNEL(DIGITS.X), KERNEL(DIGITS.X_test, DIGITS.X).astype(float)
    Y, noise = targets(), relative * float(K.diagonal().mean())
    exact = ExactGP(K, Y, noise=noise).alpha
    for matrix in (stored, str(stored), zarr.open_array(str(stored), path="K", mode="r"), K):
        found = solve(matrix, Y, noise, method, device="cpu")
        assert (found.converged, found.method) == (True, method)
        np.testing.assert_allclose(found.weights, exact, atol=1e-6 * np.abs(exact).max())
        difference = np.abs(K_test @ (found.weights - exact)).max()
        # The bound is one: nothing that a prediction can be off by is larger.
        assert difference <= found.error_bound + 1e-12 < 1e-6
        residual = np.linalg.norm(K @ found.weights + noise * found.weights - Y, axis=0) / np.linalg.norm(Y, axis=0)
        np.testing.assert_allclose(found.residuals, residual, atol=1e-13)
    assert sorted(p.name for p in stored.parent.iterdir()) == ["K.zarr"]  # no checkpoint is left


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["auto", "cg", "cholesky"])
def test_solve_takes_stores_and_tensors_to_a_real_card(stored: Any, method: Any) -> None:
    cupy = pytest.importorskip("cupy")
    K = KERNEL(DIGITS.X)
    exact = ExactGP(K, targets(), noise=0.01).alpha
    tensors = [torch.as_tensor(K, device="cuda")] if torch.cuda.is_available() else []
    for matrix in (stored, K, cupy.asarray(K), *tensors):
        found = solve(matrix, targets(), cupy.asarray(0.01), method, device="cuda")
        assert found.converged
        assert isinstance(found.weights, np.ndarray)
        np.testing.assert_allclose(found.weights, exact, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("chunks", [(80, 80), (80, 100)])
def test_a_pass_over_tiles_that_are_square_or_not(chunks: tuple[int, int]) -> None:
    """Tiles that are not square have no mirror images among them, so all of them are read."""
    K, V = KERNEL(DIGITS.X), np.random.default_rng(0).normal(size=(300, 3))
    matrix = SymmetricMatrix(zarr.array(K, chunks=chunks), progress=False)
    np.testing.assert_allclose(matrix.multiply(V), K.astype(float) @ V, rtol=1e-12)


def test_dependent_and_empty_right_hand_sides() -> None:
    """Two outputs of opposite sign, one of zeros, one alone, more outputs than points, and noise alone."""
    K = KERNEL(DIGITS.X[:120])
    y = np.where(DIGITS.y[:120] < 5, 1.0, -1.0)
    exact = np.linalg.solve(K + 0.01 * np.eye(120), y)
    several = np.stack([exact, -exact, 0 * exact], 1)
    few, Y = K[:4, :4], np.random.default_rng(0).normal(size=(4, 7))
    for matrix, noise, right, expected in (
        (K, 0.01, np.stack([y, -y, 0 * y], 1), several),
        (K, 0.01, y, exact),
        (few, 0.01, Y, np.linalg.solve(few + 0.01 * np.eye(4), Y)),
    ):
        found = solve(matrix, right, noise, "cg", device="cpu").weights
        assert found.shape == right.shape
        np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(solve(np.zeros((8, 8)), np.ones(8), 2.0, "cg", device="cpu").weights, 0.5)
    assert not solve(K, several, 0.01, "cg", device="cpu").weights[:, 2].any()


def test_the_preconditioner_is_what_it_says_and_saves_passes() -> None:
    K, Y = KERNEL(DIGITS.X), targets()
    noise = 1e-2 * float(K.diagonal().mean())
    E = Nystrom.of(SymmetricMatrix(K).multiply, np, 300, 100, noise, seed=0)
    V = np.random.default_rng(1).normal(size=(300, 2))
    np.testing.assert_allclose(E.solve(E.multiply(V)), V, atol=1e-9)
    np.testing.assert_allclose(E.U.T @ E.U, np.eye(100), atol=1e-9)
    top = np.linalg.eigvalsh(K.astype(float))[::-1][:5]
    # Nyström's eigenvalues are never above the matrix's own.
    assert (E.values[:5] <= top * (1 + 1e-9)).all()
    assert (E.values[:5] > 0.9 * top).all()
    passes = [solve(K, Y, noise, "cg", device="cpu", rank=rank).iterations for rank in (0, 50, 300)]
    assert passes[0] > 1.2 * passes[1] > 1.44 * passes[2]


def test_a_residual_that_rises_first_is_no_stall() -> None:
    K = rbf(np.random.default_rng(0).uniform(-1, 1, (500, 2)), length=0.1)
    y = np.random.default_rng(1).normal(size=500)
    found = solve(K, y, 1e-4, "cg", device="cpu", iterations=3000)
    assert found.converged
    assert found.iterations > 100  # the residual is above its start for the first fifty and more
    np.testing.assert_allclose(found.weights, np.linalg.solve(K + 1e-4 * np.eye(500), y), rtol=1e-3, atol=1e-3)


LAST_TWICE = np.r_[0:200, 199]  # its unit vector is out of the matrix's range, the targets are in it
UNSOLVED: dict[str, tuple[Any, ...]] = {
    "copies": (twice(np.r_[:60, :60]), np.random.default_rng(0).normal(size=(120, 2)), 0.0, {}, "not solved"),
    "a column": (twice(LAST_TWICE), np.c_[targets()[LAST_TWICE], np.eye(201)[:, -1:]], 0.0, {"rank": 0}, "not solved"),
    "passes": (KERNEL(DIGITS.X), targets(), 1e-4, {"rank": 0, "iterations": 3}, "1e-09 was .* 3 iterations were not"),
    "sign": (2.0 * np.ones((30, 30)) - np.eye(30), np.arange(30.0)[:, None], 0.0, {"rank": 0}, "not positive definite"),
}


@pytest.mark.parametrize("case", UNSOLVED)
def test_what_was_not_solved_says_why_and_is_no_worse_than_nothing(case: str) -> None:
    """One column without a solution does not cost the others theirs."""
    K, Y, noise, options, message = UNSOLVED[case]
    with pytest.warns(ConvergenceWarning, match=message):
        found = solve(K, Y, noise, "cg", device="cpu", **options)
    assert not found.converged
    assert found.error_bound == np.inf or noise > 0.0
    true = np.linalg.norm(K @ found.weights + noise * found.weights - Y, axis=0) / np.linalg.norm(Y, axis=0)
    assert 1e-9 < true.max() <= 1.0
    np.testing.assert_allclose(found.residuals, true, rtol=1e-6)
    assert f"{true.max():.1e} after {found.iterations} iterations" in found.message
    assert found.iterations == options.get("iterations", found.iterations)
    if case == "a column":
        assert (true[:-1] < 1e-3).all()
        assert true[-1] > 0.5


def test_cholesky_of_a_singular_matrix_says_that_it_added_something() -> None:
    K = twice(np.r_[:30, :30])
    with pytest.warns(JitterWarning), pytest.warns(ConvergenceWarning, match="mean diagonal had to be added"):
        assert not solve(K, np.arange(60.0), 0.0, "cholesky", device="cpu").converged


@pytest.mark.parametrize(("free", "method"), [(720_000, "cholesky"), (719_999, "cg")])
def test_auto_takes_what_fits(stored: Path, monkeypatch: pytest.MonkeyPatch, free: int, method: str) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": free)
    assert solve(stored, targets(), 0.01, device="cpu").method == method


WRONG = [
    ("method", "is not one of 'auto', 'cholesky', 'cg'", ("lu", ["cg"])),
    ("noise", ": expected a variance", (-1.0, "ml", [0.1])),
    ("tolerance", ": expected a number between 0 and 1", (2.0, "1e-6")),
    ("rank", ": expected a whole number of 0 or more, or None", (-1, 2.5)),
    ("iterations", ": expected a whole number of 1 or more", (0, None)),
    ("checkpoint", ": expected the path of a file, or None", (3, "")),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({name: v}, re.escape(f"{name}={v!r}") + f" ?{told}") for name, told, values in WRONG for v in values),
        ({"device": "tpu"}, "device='tpu' is not"),
        ({"Y": np.ones(5)}, r"shape of the targets is \(5, 1\); expected \(4 points"),
        ({"store": np.ones((3, 4))}, r"shape \(3, 4\); expected \(N, N\)"),
        ({"store": np.diag([1.0, np.nan, 1.0, 1.0])}, "contains NaN or infinity"),
        ({"store": np.diag([1.0, -1.0, 1.0, 1.0])}, "negative numbers on its diagonal"),
        ({"client": SimpleNamespace(scatter=0, map=0, gather=0)}, "client= needs a matrix in a store"),
        ({"client": "tcp://host:8786"}, "client='tcp://host:8786': expected a dask.distributed.Client"),
        ({"Y": np.ones(4) + 0j}, "^Y has type complex128; expected real numbers$"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    good = {"store": np.eye(4), "Y": np.ones(4), "noise": 0.1, "method": "cg", "device": "cpu"}
    with pytest.raises(ValueError, match=message) as caught:
        solve(**(good | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_any_library_and_any_real_type(method: Any) -> None:
    K = np.diag([1.0, 2.0, 3.0]) + 1.0
    expected = np.linalg.solve(K + 0.5 * np.eye(3), [1.0, 2.0, 3.0])
    torch_K = torch.tensor(K, requires_grad=True)
    for matrix in (K.astype(np.float32), K.astype(np.int64), K.astype(object), K.tolist(), torch_K):
        Y = torch.tensor([1.0, 2.0, 3.0]) if matrix is torch_K else [1, 2, 3]
        options = {"rank": np.int64(1), "iterations": np.int32(50), "tolerance": np.float64(1e-10)}
        for noise in (np.float32(0.5), np.array(0.5), torch.tensor(0.5)):
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
    data = chunk.read_bytes()
    chunk.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(StoreError, match=r"cannot be used: its checksum is wrong; run gram on the store again"):
        solve(K, targets(60), 0.1, "cg", device="cpu")
    chunk.unlink()
    with pytest.raises(StoreError, match="lacks 1 of 3 tiles; run gram"):
        solve(tmp_path / "K.zarr", targets(60), 0.1)
    with pytest.raises(StoreError, match=r"chunk \(0, 1\) .* cannot be used: it is not there; run gram"):
        solve(K, targets(60), 0.1, "cg", device="cpu")


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


# ---- killed, and run again -------------------------------------------------------------------------------------------


class Killed(BaseException): ...


def _stop_after(monkeypatch: pytest.MonkeyPatch, iterations: int, error: BaseException) -> None:
    """The process ends right after one of its iterations was seen."""
    see = Checkpoint.see

    def seen(self: Checkpoint, state: conjugate.State) -> None:
        see(self, state)
        if state.iteration == iterations:
            raise error

    monkeypatch.setattr(Checkpoint, "see", seen)


@pytest.mark.parametrize("stop", ["killed", "interrupted", "iterations"])
def test_a_solve_that_was_stopped_goes_on_where_it_was(stored: Path, monkeypatch: Any, stop: str) -> None:
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu"}
    whole = solve(stored, targets(), 1e-3, **options)
    assert whole.iterations > 8
    with monkeypatch.context() as patch:
        if stop == "killed":
            patch.setattr(conjugate, "SECONDS", 0.0)  # every iteration is kept
            _stop_after(patch, 7, Killed())
            with pytest.raises(Killed):
                solve(stored, targets(), 1e-3, **options)
        elif stop == "interrupted":
            _stop_after(patch, 7, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt, match=r"iteration 7 is kept in .*Run it again to continue"):
                solve(stored, targets(), 1e-3, **options)
        else:
            for _ in range(2):  # the second has nothing to add
                with pytest.warns(ConvergenceWarning, match="7 iterations were not enough; more of them go on from .*"):
                    solve(stored, targets(), 1e-3, **options, iterations=7)
    assert len(list(stored.parent.glob("K.zarr.solve-*"))) == 1
    with mock.patch.object(
        SymmetricMatrix, "multiply", autospec=True, side_effect=SymmetricMatrix.multiply
    ) as multiply:
        again = solve(stored, targets(), 1e-3, **options)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.iterations == whole.iterations
    assert multiply.call_count == 1 + whole.iterations - 7 + 1  # the preconditioner, the rest, and the check
    assert [p.name for p in stored.parent.iterdir()] == ["K.zarr"]


def test_what_is_no_checkpoint_of_this_problem_is_left_as_it_is(stored: Path, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "solve.state"
    options: dict[str, Any] = {"method": "cg", "rank": 20, "device": "cpu", "checkpoint": path}
    with monkeypatch.context() as patch:
        _stop_after(patch, 5, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
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


def test_a_checkpoint_gives_back_all_that_an_iteration_carries_and_knows_its_matrix(tmp_path: Path) -> None:
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
    D = (np.arange(9.0)[:, None] - np.arange(9.0)[None]) ** 2  # matrices of one diagonal
    first, same, other = (SymmetricMatrix(np.exp(-D / length)).fingerprint() for length in (1.0, 1.0, 4.0))
    assert first == same != other
