"""Small eigendecompositions take one BLAS thread, and leave the process as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from cnngp.gp import blas
from cnngp.gp.exact import ExactGP

K = np.eye(6) + 0.5


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, "blas"):
        yield
        assert threads() == {2}


@pytest.mark.parametrize("noise", ["ml", "loo"])
def test_the_noise_is_searched_with_one_thread(monkeypatch, noise):
    seen, eigh = [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda A: (seen.append(threads()), eigh(A))[1])
    ExactGP(K, np.eye(6), noise=noise, amplitude=1.0)
    assert seen == [{1}]


def test_a_large_matrix_has_all_threads(monkeypatch):
    monkeypatch.setattr(blas, "_MOST_COLUMNS", 5)
    with blas.one_thread_if_small(K):
        assert threads() == {2}


def test_the_limit_ends_with_the_last_of_several_users():
    """Entered in turn and left in the same order, as two threads do, nested limits would leave one thread behind."""
    first, second = blas.one_thread_if_small(K), blas.one_thread_if_small(K)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert threads() == {1}
    second.__exit__(None, None, None)
    assert threads() == {2}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ExactGP(K, np.eye(6), noise="loo", amplitude=1.0), range(20)))
