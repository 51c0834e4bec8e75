"""The noise that is chosen: as much as there is, of a part of many points, and with one thread of BLAS."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from cnngp.gp import linalg
from cnngp.gp import noise as noise_module
from cnngp.gp.exact import ExactGP
from cnngp.gp.noise import chosen_noise


def problem(n: int, level: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of one variable with noise, two outputs."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, n))
    K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    f = np.stack([np.sin(x), np.cos(2 * x)], 1)
    return K, f + level * rng.standard_normal(f.shape)


def test_more_noise_is_chosen_where_there_is_more():
    quiet, loud = (ExactGP(*problem(80, level, 1), noise="loo").noise for level in (0.05, 0.5))
    assert 10 * quiet < loud


def test_many_points_are_thinned_evenly(monkeypatch):
    K, Y = problem(90, 0.3, 2)
    monkeypatch.setattr(noise_module, "_MOST_POINTS", 45)
    assert ExactGP(K, Y, noise="loo").noise == ExactGP(K[::2, ::2], Y[::2], noise="loo").noise


def test_noise_by_leave_one_out_is_no_less_than_what_rounding_does() -> None:
    """Of two points that differ by less than rounding, leave-one-out alone would take the difference at its word."""
    rng = np.random.default_rng(0)
    X = np.concatenate([x := rng.random((30, 3)), x[:1] + 1e-7])
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    Y = np.sin(3.0 * X[:, :1])
    exact, rounded = ExactGP(K, Y, noise="loo").noise, ExactGP(K, Y, noise="loo", rounding=1e-4).noise
    assert exact < 1e-4
    assert rounded == pytest.approx(math.sqrt(31) * 1e-4)
    assert ExactGP(K, Y, noise="ml", rounding=1e-4).noise == ExactGP(K, Y, noise="ml").noise


def test_noise_by_likelihood_goes_as_far_as_noise_and_then_says_so() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(70, 4))
    K = np.exp(-((points[:, None] - points) ** 2).sum(-1) / 4.5)
    root = np.linalg.cholesky(K + 1e-10 * np.eye(70))
    mostly = 0.03 * root @ rng.normal(size=(70, 20_000)) + rng.normal(size=(70, 20_000))
    found = chosen_noise(K, mostly, "ml", "ml")
    assert found == pytest.approx(1.0 / 0.03**2, rel=0.3)  # the mean eigenvalue is 1
    noise = rng.normal(size=(70, 1))
    with pytest.warns(UserWarning, match="^noise='ml' chose the most noise that is tried: .* pure noise; check"):
        chosen_noise(np.eye(70) + 0.999 * (np.ones((70, 70)) - np.eye(70)), noise - noise.mean(), "ml", "ml")


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize(("noise", "most", "expected"), [("ml", 3000, 1), ("loo", 3000, 1), ("loo", 5, 2)])
def test_small_matrices_are_decomposed_with_one_thread(monkeypatch, noise, most, expected):
    """And the process has as many as before, also where several fits run at once."""
    K, seen, eigh = np.eye(6) + 0.5, [], np.linalg.eigh
    monkeypatch.setattr(linalg, "ONE_THREAD", most)
    monkeypatch.setattr(np.linalg, "eigh", lambda A: (seen.append(threads()), eigh(A))[1])
    with threadpool_limits(2, "blas"):
        ExactGP(K, np.eye(6), noise=noise, amplitude=1.0)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: ExactGP(K, np.eye(6), noise=noise, amplitude=1.0), range(20)))
        assert threads() == {2}
    assert seen[0] == {expected}


def test_solves_for_many_points_keep_their_threads(monkeypatch):
    """One column is solved with one thread, and what is a large product with all."""
    gp, seen, solve = ExactGP(np.eye(6) + 0.5, np.eye(6), noise=0.1), [], linalg.triangular_solve
    monkeypatch.setattr(
        linalg, "triangular_solve", lambda *args, **how: (seen.append(threads()), solve(*args, **how))[1]
    )
    monkeypatch.setattr(linalg, "_WORTH_THREADS", 6 * 6 * 3)
    with threadpool_limits(2, "blas"):
        for columns in (3, 4):
            gp.factor.solve_lower(np.ones((6, columns)))
    assert seen == [{1}, {2}]
