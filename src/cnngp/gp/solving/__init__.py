"""`solve`: the weights (K + noise·I)⁻¹Y by Cholesky or conjugate gradients, as memory allows, and their accuracy."""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.cluster import ClusterError
from cnngp.common import memory
from cnngp.common.arrays import is_on_gpu, to_numpy
from cnngp.common.devices import ActualDevice, Device, actual_device, array_module, check_device
from cnngp.common.errors import is_number, is_whole
from cnngp.common.progress import progress_bar
from cnngp.matrix.store.places import local_path
from cnngp.matrix.store.store import store_of

from ..checks import MatrixError, check_targets, float64_buffer
from ..linalg import Array, factorised, namespace, warn_of_jitter
from ..posterior import METHODS, Method
from .conjugate import Checkpoint, Limits, Nystrom, Outcome, State, relative_residuals, solve_block
from .matrices import SymmetricMatrix, opened_matrix

log = logging.getLogger("cnngp")

# Largest rank of the preconditioner: each column takes 8 bytes a point, and the cost of its algebra grows with the
# square of the rank.
_RANK = 1000
_CARRIED = 7  # arrays of the size of the right-hand side that the iteration carries
# Version of the checkpoint's content; increment it when that changes.
_STATE = 3
_USUAL = Limits()


class ConvergenceWarning(UserWarning):
    """Warning that the linear system was not solved to the tolerance; the message states the residual."""


@dataclass(frozen=True)
class Solution:
    """Result of `solve`: weights, their accuracy, and how they were computed.

    `residuals` are ‖(K + noise·I)w − y‖/‖y‖ of each output, measured with a separate product after the solve.
    """

    weights: NDArray[np.float64]
    residuals: NDArray[np.float64]
    iterations: int
    method: str
    converged: bool
    message: str
    error_bound: float
    """Bound of the solve's error in any prediction k(x, X)w with k(x, x) up to the largest diagonal entry:
    √(max K_ii/noise)·‖residual‖. Infinite without noise."""

    def __repr__(self) -> str:
        return f"<Solution by {self.method}: {self.message}>"


def solve(
    store: Any,
    Y: Any,
    noise: float,
    method: Method = "auto",
    *,
    tolerance: float = 1e-9,
    iterations: int = 1000,
    rank: int | None = None,
    checkpoint: str | Path | None = None,
    client: Any = None,
    device: Device = "auto",
    progress: bool = True,
) -> Solution:
    """Solve (K + noise·I)w = Y for the weights w (N, outputs); predictions are K(test, training) @ w.

    Parameters
    ----------
    store : result of `gram`, path or URL of its store, or a NumPy, CuPy or PyTorch matrix (N, N).
    Y : targets, (N,) or (N, outputs).
    noise : variance added to the diagonal, in the kernel's units.
    method : "cholesky", exact, 8 bytes per entry; "cg", block conjugate gradients that stream the tiles of a store, in
        memory independent of the matrix; "auto", Cholesky if it fits in memory and no `client` is given, else "cg".
    tolerance : largest relative residual of each output, for "cg".
    iterations : largest number of passes over the matrix.
    rank : rank of the Nyström preconditioner of "cg"; 0 for none, None for a quarter of N, at most 1,000.
    checkpoint : file in which "cg" keeps its state, unless `rank` is 0; by default next to a store on this machine. A
        solve that was killed, or ran out of iterations, continues when run again; a finished one leaves no files.
    client : a `dask.distributed.Client` whose workers can read the store; for "cg".
    device : device of the linear algebra; "auto" for the GPU if there is one.

    >>> import numpy as np
    >>> from cnngp.gp import solve
    >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> solve(K, [3.0, 3.0], noise=1.0, method="cg", device="cpu").weights.round(6)
    array([0.75, 0.75])
    """
    # Convert numbers in arrays without axes, such as a mean on a GPU, to Python numbers.
    noise, tolerance = (v.item() if getattr(v, "ndim", None) == 0 else v for v in (noise, tolerance))  # type: ignore[attr-defined]
    _check_parameters(method, noise, tolerance, iterations, rank, checkpoint, client)
    K = opened_matrix(store)
    matrix = SymmetricMatrix(K, client, progress)
    check_device(device)
    actual: ActualDevice = "cuda" if device == "auto" and is_on_gpu(K) else actual_device(device)
    Y_host = to_numpy(Y, "Y")
    one = Y_host.ndim == 1
    B = check_targets(array_module(actual), Y_host[:, None] if one else Y_host, matrix.n)
    if method == "auto":
        free = memory.available(actual)
        fits = client is None and (free is None or 8 * matrix.n**2 <= free)
        method = "cholesky" if fits else "cg"
    limits, path = Limits(float(tolerance), int(iterations)), None if checkpoint is None else Path(checkpoint)
    solution = solve_matrix(matrix, B, float(noise), method, limits, None if rank is None else int(rank), path)
    if not solution.converged:
        warnings.warn(f"the linear system was not solved: {solution.message}", ConvergenceWarning, stacklevel=2)
    weights = to_numpy(solution.weights)
    return replace(solution, weights=weights[:, 0] if one else weights, residuals=to_numpy(solution.residuals))


def _check_parameters(
    method: object, noise: object, tolerance: object, iterations: object, rank: object, checkpoint: object, client: Any
) -> None:
    """Raise `ValueError` for parameters out of range or of a wrong type, before the matrix is read."""
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method={method!r} is not one of {', '.join(map(repr, METHODS))}")
    if not is_number(noise, least=0.0):
        raise MatrixError(f"noise={noise!r}: expected a variance of 0 or more")
    if not is_number(tolerance, 0.0) or not 0.0 < float(tolerance) < 1.0:
        raise ValueError(f"tolerance={tolerance!r}: expected a number between 0 and 1")
    if not is_whole(iterations, 1):
        raise ValueError(f"iterations={iterations!r}: expected a whole number of 1 or more")
    if rank is not None and not is_whole(rank, 0):
        raise ValueError(f"rank={rank!r}: expected a whole number of 0 or more, or None")
    if checkpoint is not None and not (isinstance(checkpoint, str | Path) and Path(checkpoint).name):
        raise ValueError(f"checkpoint={checkpoint!r}: expected the path of a file, or None")
    if client is not None and not all(hasattr(client, name) for name in ("scatter", "map", "gather")):
        raise ValueError(f"client={client!r}: expected a dask.distributed.Client, or None")


def solve_matrix(
    matrix: SymmetricMatrix,
    B: Array,
    noise: float,
    method: str,
    limits: Limits = _USUAL,
    rank: int | None = None,
    checkpoint: Path | None = None,
    keep_unfinished: bool = True,
) -> Solution:
    """Solve as in `solve`, for checked arguments, with the weights on the device of B and without a warning.

    `keep_unfinished` keeps the checkpoint of a solve that ran out of iterations.
    """
    (n, columns), xp = B.shape, namespace(B)
    rank = min(_RANK, n // 4) if rank is None else min(rank, n)
    # The factor, or the basis and the iteration's arrays: directions, residuals, solutions and their products.
    need = 8 * n * (n if method == "cholesky" else rank + _CARRIED * columns)
    memory.require(need, f"solving for {n:,} points by {method}", "cuda" if is_on_gpu(B) else "cpu")
    diagonal = matrix.diagonal()
    if not (diagonal >= 0.0).all():
        raise MatrixError("the kernel matrix has negative numbers on its diagonal; it is not the matrix of a kernel")
    if method == "cholesky":
        found = _cholesky(matrix, B, noise, limits)
    else:
        found = _conjugate_gradients(matrix, B, noise, limits, rank, checkpoint, keep_unfinished)
    worst = float((found.residuals * xp.linalg.norm(B, axis=0)).max())
    bound = math.sqrt(diagonal.max() / noise) * worst if noise > 0 else (math.inf if worst > 0 else 0.0)
    message = f"relative residual {float(found.residuals.max()):.1e} after {found.iterations} iterations"
    if not found.converged:
        message += f", {limits.tolerance:g} was asked for; {found.reason}"
    return Solution(found.X, found.residuals, found.iterations, method, found.converged, message, bound)


def _cholesky(matrix: SymmetricMatrix, B: Array, noise: float, limits: Limits) -> Outcome:
    factor, jitter = factorised(float64_buffer(matrix.K, on_gpu=is_on_gpu(B)), noise)
    if jitter:
        warn_of_jitter(len(factor), jitter, factor.diagonal, stacklevel=4)
    X = factor.solve(B)
    residuals = relative_residuals(factor.multiply(X, noise) - B, B)
    reason = f"{jitter:g} of the mean diagonal had to be added" if jitter else "float64 allows no more"
    return Outcome(X, residuals, 0, bool((residuals <= max(limits.tolerance, 1e-9)).all()), reason)


def _conjugate_gradients(
    matrix: SymmetricMatrix, B: Array, noise: float, limits: Limits, rank: int, path: Path | None, keep_unfinished: bool
) -> Outcome:
    keep = _checkpoint(matrix, B, noise, rank, path) if rank > 0 else None
    state = None if keep is None else keep.read(namespace(B))
    if state is not None:
        log.info("the solve goes on after iteration %d", state.iteration)
    E = Nystrom.of(matrix.multiply, namespace(B), matrix.n, rank, noise, seed=0)
    try:
        with progress_bar(None, "solve", "iteration", wanted=matrix.progress, keep=True) as bar:

            def watch(state: State) -> None:
                log.info("iteration %d: relative residual %.1e", state.iteration, state.history[-1])
                bar.set_postfix_str(f"residual {state.history[-1]:.1e}", refresh=False)
                bar.update()
                if keep is not None:
                    keep.see(state)

            outcome = solve_block(lambda V: matrix.multiply(V) + noise * V, B, E, limits, state, watch)
    except (KeyboardInterrupt, ClusterError) as error:
        if keep is None or keep.latest is None:
            raise
        keep.write()
        told = str(error) if isinstance(error, ClusterError) else "interrupted"
        raise type(error)(
            f"{told}; iteration {keep.latest.iteration} is kept in {keep.path}. Run it again to continue"
        ) from None
    if keep is None:
        return outcome
    if keep_unfinished and not outcome.converged and outcome.iterations >= limits.iterations:
        keep.write()
        return replace(outcome, reason=f"{outcome.reason}; more of them go on from {keep.path}")
    keep.remove()
    return outcome


def _checkpoint(matrix: SymmetricMatrix, B: Array, noise: float, rank: int, path: Path | None) -> Checkpoint | None:
    """Checkpoint at the given path, or next to a store on this machine under a name unique to the problem."""
    folder = None
    if path is None and matrix.stored:
        store = store_of(matrix.K)
        folder = local_path(matrix.K) if store is None else store.local
    if path is None and folder is None:
        return None
    digest = hashlib.sha256(f"{_STATE} {matrix.fingerprint()} {noise!r} {rank} {B.shape}".encode())
    digest.update(np.ascontiguousarray(to_numpy(B)).data)
    problem = digest.hexdigest()
    return Checkpoint(path or folder.with_name(f"{folder.name}.solve-{problem[:12]}"), problem)  # type: ignore[union-attr]
