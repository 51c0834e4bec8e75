"""One BLAS thread for matrices that are too small to share out.

An eigendecomposition hands over between its threads at every column. Up to a few thousand columns that is never quicker
than one thread, and beside other work many times slower: each hand-over then waits for a thread that is not running.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .linalg import Array, namespace

# Columns up to which one thread is used. On two busy cores 500, 1,300 and 3,000 columns took 0.13, 1.0 and 11 s with
# one thread, and 1.2 to 7, 3.7 and 34 s with two.
_MOST_COLUMNS = 3000

_lock = threading.Lock()
_users = 0
_limits: Any = None


@contextmanager
def one_thread_if_small(A: Array) -> Iterator[None]:
    """Limit BLAS to one thread while the matrix `A` is worked on, where it is small and NumPy's.

    The limit is the whole process's, so it is lifted when the last of several threads is done.
    """
    if namespace(A) is not np or len(A) > _MOST_COLUMNS:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    from threadpoolctl import threadpool_limits

    global _users, _limits
    with _lock:
        if _users == 0:
            _limits = threadpool_limits(1, "blas")
        _users += 1


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _limits.restore_original_limits()
