"""Which solver a fit takes: the exact factor where it fits into memory, iterations over a stored matrix where not."""

from __future__ import annotations

from typing import Any

from cnngp.common import memory
from cnngp.common.devices import ActualDevice
from cnngp.gp.exact import Noise
from cnngp.gp.noise import searched_points
from cnngp.gp.solving import Method, choose_method


def choose_solver(asked: Method, n: int, K: Any, store: bool, entry: int, noise: Noise, device: ActualDevice) -> str:
    """Cholesky unless another solver was asked for, or the matrix is in a store and its factor does not fit.

    `entry` is the size in bytes of an entry of the kernel matrix as it is computed.
    """
    stored = store or isinstance(getattr(K, "chunks", None), tuple)
    # The matrix as it comes (from a store it comes by tiles), the float64 buffer; "ml" needs eigenvectors and workspace
    # for all points, "loo" for a few thousand.
    first = 0 if K is not None or stored else entry
    searched = searched_points(noise, n)
    need = (first + 8) * n * n + 24 * searched * searched
    what = f"an exact fit of {n:,} images"
    if asked == "auto":
        free = memory.available(device)
        if free is None or need <= free:
            return "cholesky"
        if stored and not searched:
            return choose_method(n, device, without=("cholesky",))
    elif asked != "cholesky":
        memory.require((first + (4 if asked == "mixed" else 0)) * n * n, what, device)
        return asked
    try:
        memory.require(need, what, device)
    except MemoryError as error:
        if searched:
            raise MemoryError(f"{error}; noise={noise!r} takes most of it, give a number") from None
        raise MemoryError(
            f"{error}; or keep the matrix on disk with store=, where it is solved by iteration; or use inducing="
        ) from None
    return "cholesky"
