"""What `solve` refuses on entry, each in one line: before a matrix is read, or a factor made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from cnngp.common.checks import is_number, is_whole

from ..checks import MatrixError

Method = Literal["auto", "cholesky", "mixed", "cg"]
METHODS: tuple[Method, ...] = get_args(Method)


def check_parameters(
    method: object, noise: object, tolerance: object, iterations: object, rank: object, checkpoint: object, client: Any
) -> None:
    """`ValueError` for what is out of range or of another type."""
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method={method!r} is not one of {', '.join(map(repr, METHODS))}")
    if not is_number(noise, least=0.0):
        raise MatrixError(f"noise={noise!r}: expected a variance of 0 or more")
    if not is_number(tolerance, least=0.0) or not 0.0 < float(tolerance) < 1.0:
        raise ValueError(f"tolerance={tolerance!r}: expected a number between 0 and 1")
    if not is_whole(iterations, 1):
        raise ValueError(f"iterations={iterations!r}: expected a whole number of 1 or more")
    if rank is not None and not is_whole(rank, 0):
        raise ValueError(f"rank={rank!r}: expected a whole number of 0 or more, or None")
    if checkpoint is not None and (not isinstance(checkpoint, str | Path) or not Path(checkpoint).name):
        raise ValueError(f"checkpoint={checkpoint!r}: expected the path of a file, or None")
    if client is not None and not all(hasattr(client, name) for name in ("scatter", "map", "gather")):
        raise ValueError(f"client={client!r}: expected a dask.distributed.Client, or None")


def plain(value: Any) -> Any:
    """A number in an array without axes, such as a mean on a card, as Python's own."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
