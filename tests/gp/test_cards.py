"""Inference from arrays on a card: as in host memory, also on a stand-in that refuses what CuPy refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cnngp.common import memory
from cnngp.gp import linalg, trained_ensemble
from cnngp.gp.conformal import intervals
from cnngp.gp.exact import ExactGP, posterior_samples
from cnngp.gp.inducing import InducingGP
from cnngp.gp.iterative import IterativeGP
from cnngp.gp.linalg import JitterWarning, namespace
from cnngp.gp.near_copies import near_copies
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


def assert_same(there: Posterior, here: Posterior, new: tuple[Any, Any, Any], on_card: Move) -> None:
    """Numbers and answers; `new` are K(test, points), K(test, test) and k(x, x)."""
    K, K_test, diagonal = new
    assert there.noise == pytest.approx(here.noise, rel=1e-5)
    assert there.solved().residual < 1e-8
    assert there.solved().smallest_eigenvalue == pytest.approx(here.solved().smallest_eigenvalue, rel=1e-5)
    pairs = [
        (there.mean(on_card(K)), here.mean(K)),
        (there.variance(on_card(K), on_card(diagonal)), here.variance(K, diagonal)),
        *zip(there.leave_one_out().moments, here.leave_one_out().moments, strict=True),
    ]
    if here.kind != "iterative":
        assert there.log_marginal_likelihood == pytest.approx(here.log_marginal_likelihood, rel=1e-6)
        pairs.append((there.covariance(on_card(K), on_card(K_test)), here.covariance(K, K_test)))
    for theirs, ours in pairs:
        np.testing.assert_allclose(theirs.get(), ours, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("noise", [0.02, "ml", "loo"])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact(on_card: Move, noise: Any, seed: int) -> None:
    """Alone and in groups, with a few points added; conformal intervals, near copies and what to label next."""
    problem = Problem(seed)
    n, k, groups = problem.n, problem.n - 3, problem.groups
    K, Y, first = problem.K[:n, :n], problem.Y, None if problem.groups is None else problem.groups[: problem.n - 3]

    def made(move: Move) -> ExactGP:
        gp = ExactGP(move(K[:k, :k].copy()), move(Y[:k]), noise=noise, amplitude="loo", groups=first)
        gp.add(move(K[k:, :k]), move(K[k:, k:]), move(Y[k:]), groups=groups)
        return gp

    here, there = made(np.asarray), made(on_card)
    assert_same(there, here, problem.new, on_card)
    K_new, K_new_new, diagonal = problem.new
    found = intervals(there, on_card(K_new), on_card(diagonal), 0.5)
    np.testing.assert_allclose(found, intervals(here, K_new, diagonal, 0.5), rtol=1e-5)
    np.testing.assert_array_equal(near_copies(there, None), near_copies(here, None))
    np.testing.assert_allclose(there.novelty().get(), here.novelty(), atol=1e-12)
    picked = [chosen(3, m(K_new_new), gp, m(K_new)).rows for gp, m in ((here, np.asarray), (there, on_card))]
    np.testing.assert_array_equal(*picked)
    moments = there.mean(on_card(K_new)), there.covariance(on_card(K_new), on_card(K_new_new))
    expected = posterior_samples(here.mean(K_new), here.covariance(K_new, K_new_new), 200, seed=0)
    draws = posterior_samples(*moments, 200, seed=0).get()
    np.testing.assert_allclose(draws.mean(0), expected.mean(0), atol=0.5)  # eigenvectors have a sign of their own
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

    assert_same(made(on_card), made(np.asarray), (K_new[:, at], K_new_new, diagonal), on_card)


def test_iterative_and_trained_ensembles(on_card: Move) -> None:
    problem = Problem(1)
    K, Y, (K_new, K_new_new, _) = problem.K[: problem.n, : problem.n], problem.Y, problem.new

    def made(move: Move) -> IterativeGP:
        matrix = SymmetricMatrix(move(K))
        return IterativeGP(matrix, move(Y), namespace(matrix.K), noise=0.1, groups=problem.groups)

    assert_same(made(on_card), made(np.asarray), problem.new, on_card)
    ours, theirs = (
        vars(trained_ensemble(move(K), move(K), move(Y), ridge=0.1).predict(*map(move, (K_new, K_new, K_new_new))))
        for move in (np.asarray, on_card)
    )
    for name, found in theirs.items():
        np.testing.assert_allclose(found.get(), ours[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["cg", "cholesky"])
def test_solve(on_card: Move, method: str) -> None:
    K, Y = KERNEL(DIGITS.X[:100]), targets(100)
    here = solve_matrix(SymmetricMatrix(K), Y, 0.01, method)
    there = solve_matrix(SymmetricMatrix(on_card(K)), on_card(Y), 0.01, method)
    np.testing.assert_allclose(there.weights.get(), here.weights, rtol=1e-8, atol=1e-10)
