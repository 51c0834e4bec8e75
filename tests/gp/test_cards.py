"""Inference from arrays on a card: as in host memory, also on a stand-in that refuses what CuPy refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cnngp.common import memory
from cnngp.common.arrays import to_numpy
from cnngp.gp import linalg, trained_ensemble
from cnngp.gp.conformal import intervals
from cnngp.gp.exact import ExactGP, posterior_samples
from cnngp.gp.inducing import InducingGP
from cnngp.gp.iterative import IterativeGP
from cnngp.gp.linalg import JitterWarning, namespace
from cnngp.gp.posterior import Posterior
from cnngp.gp.selection import chosen
from cnngp.gp.solving import solve_matrix
from cnngp.gp.solving.matrices import SymmetricMatrix
from helpers import fake_cupy
from helpers.refits import Problem
from helpers.solves import DIGITS, KERNEL, targets

Move = Callable[[Any], Any]


@pytest.fixture(params=["imitated", pytest.param("real", marks=pytest.mark.gpu)])
def on_card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Move:
    """Matrices of a test's size cross several blocks."""
    monkeypatch.setattr(linalg, "_block_size", lambda A: 4)
    if request.param == "real":
        return pytest.importorskip("cupy").asarray
    fake_cupy.install(monkeypatch)
    monkeypatch.setattr(memory, "available", lambda device="cpu": None)
    return fake_cupy.ndarray


def answers(gp: Posterior, K: Any, K_test: Any, diagonal: Any) -> dict[str, Any]:
    """All that is asked of a model, from K(test, points), K(test, test) and k(x, x)."""
    assert gp.solved().residual < 1e-8
    found = {"noise": gp.noise, "smallest eigenvalue": gp.solved().smallest_eigenvalue}
    found |= {"mean": gp.mean(K), "variance": gp.variance(K, diagonal)}
    found |= dict(zip(("left out", "variance left out"), gp.leave_one_out().moments, strict=True))
    if gp.kind != "iterative":
        found |= {"likelihood": gp.log_marginal_likelihood, "covariance": gp.covariance(K, K_test)}
    if isinstance(gp, ExactGP):
        found |= {"intervals": intervals(gp, K, diagonal, 0.5), "next": chosen(3, K_test, gp, K).rows}
        found |= {"novelty": gp.novelty(), "kernel": gp.kernel_between([2, 0, 5])}
    return found


def assert_same(made: Callable[[Move], Posterior], new: tuple[Any, Any, Any], on_card: Move) -> None:
    here, there = (answers(made(move), *map(move, new)) for move in (np.asarray, on_card))
    for name, expected in here.items():
        np.testing.assert_allclose(to_numpy(there[name]), expected, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("noise", [0.02, "ml", "loo"])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact(on_card: Move, noise: Any, seed: int) -> None:
    """Alone and in groups, with a few points added."""
    problem = Problem(seed)
    n, k, groups = problem.n, problem.n - 3, problem.groups
    K, Y = problem.K[:n, :n], problem.Y

    def made(move: Move) -> ExactGP:
        first = None if groups is None else groups[:k]
        gp = ExactGP(move(K[:k, :k].copy()), move(Y[:k]), noise=noise, amplitude="loo", groups=first)
        gp.add(move(K[k:, :k]), move(K[k:, k:]), move(Y[k:]), groups=groups)
        return gp

    assert_same(made, problem.new, on_card)
    variances = np.linspace(0.0, 2.0, k)  # of a diagonal matrix, whose eigenvectors have one sign
    expected, draws = (posterior_samples(m(Y[:k]), m(np.diag(variances)), 3, seed=0) for m in (np.asarray, on_card))
    np.testing.assert_allclose(draws.get(), expected, rtol=1e-12)
    with pytest.warns(JitterWarning):
        ExactGP(on_card(np.ones((3, 3))), on_card(Y[:3]))


@pytest.mark.parametrize("noise", [0.03, 0.0, "ml"])
def test_inducing(on_card: Move, noise: Any) -> None:
    problem = Problem(1)
    n, at = problem.n, np.arange(0, problem.n, 2)
    K, (K_new, K_new_new, diagonal) = problem.K[:n, :n] + 1e-6 * np.eye(n), problem.new
    own = np.where(np.arange(n) % 2 == 0, np.arange(n) // 2, -1)
    options: dict[str, Any] = {"noise": noise, "own": own, "groups": problem.group, "discounts": (0.0, 30.0)}

    def made(move: Move) -> InducingGP:
        parts = [(slice(0, n), move(K[:, at]), move(problem.Y), move(K.diagonal()))]
        return InducingGP(move(K[np.ix_(at, at)]), parts, np.arange(n), **options)

    assert_same(made, (K_new[:, at], K_new_new, diagonal), on_card)


def test_iterative_and_trained_ensembles(on_card: Move) -> None:
    problem = Problem(1)
    K, Y, (K_new, K_new_new, _) = problem.K[: problem.n, : problem.n], problem.Y, problem.new

    def made(move: Move) -> IterativeGP:
        matrix = SymmetricMatrix(move(K))
        return IterativeGP(matrix, move(Y), namespace(matrix.K), noise=0.1, groups=problem.groups)

    assert_same(made, problem.new, on_card)
    ours, theirs = (
        vars(trained_ensemble(move(K), move(K), move(Y), ridge=0.1).predict(*map(move, (K_new, K_new, K_new_new))))
        for move in (np.asarray, on_card)
    )
    for name, found in theirs.items():
        np.testing.assert_allclose(found.get(), ours[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["cg", "cholesky"])
def test_solve(on_card: Move, method: str) -> None:
    K, Y = KERNEL(DIGITS.X[:100]), targets(100)
    here, there = (solve_matrix(SymmetricMatrix(m(K)), m(Y), 0.01, method) for m in (np.asarray, on_card))
    np.testing.assert_allclose(there.weights.get(), here.weights, rtol=1e-8, atol=1e-10)
