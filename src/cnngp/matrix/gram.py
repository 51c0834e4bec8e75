"""`gram`: a kernel matrix in memory, or tile by tile in a store that survives interruptions.

An entry depends only on its two images, so tiles may be computed in any order, by any process, at any time, and the
matrix is the same to the last bit. A run therefore computes exactly the tiles that its store lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal, overload

from numpy.typing import NDArray

from cnngp.cluster import ClusterError
from cnngp.common import memory
from cnngp.common.arrays import DataError, Output, check_output
from cnngp.common.errors import StoreError
from cnngp.common.progress import progress_bar
from cnngp.common.tiles import Tile
from cnngp.kernel.kernel import Kernel, as_kernel
from cnngp.kernel.program import Kind
from cnngp.network.layers import Network, NetworkError

from .cluster.filling import ClusterFill
from .fill import fill, lanes, not_done_by_others
from .images import ImageRows, end_run
from .store.spec import Data, Spec
from .store.store import GramStore, opened
from .tile_size import check_tile, default_tile, tile_here

log = logging.getLogger("cnngp")


Side = int | tuple[int, int] | None


@overload
def gram(
    kernel: Kernel | Network, X: Any, Z: Any = None, *, store: None = None, tile: Side = None, verify: bool = True,
    progress: bool = True, output: Literal["numpy"] = "numpy", client: None = None, kind: Kind = "nngp",
) -> NDArray[Any]: ...  # fmt: skip
@overload
def gram(
    kernel: Kernel | Network, X: Any, Z: Any = None, *, store: Any = None, tile: Side = None, verify: bool = True,
    progress: bool = True, output: Output = "numpy", client: Any = None, kind: Kind = "nngp",
) -> Any: ...  # fmt: skip
def gram(
    kernel: Kernel | Network,
    X: Any,
    Z: Any = None,
    *,
    store: Any = None,
    tile: Side = None,
    verify: bool = True,
    progress: bool = True,
    output: Output = "numpy",
    client: Any = None,
    kind: Kind = "nngp",
) -> Any:
    """Compute K(X, Z) or K(X, X), bit-identical to `kernel(X, Z)`: in memory, or tile by tile in a store.

    After a crash, a kill or a full disk, call it again with the same store: only the missing tiles are computed. If
    images were appended to X or Z, the tiles of the old ones are kept.

    Parameters
    ----------
    kernel : a `Kernel`, or a network to make one from.
    X : images of the rows: an array or a memory map, read a tile's rows at a time.
    Z : images of the columns; None for X itself.
    store : None for an array in memory; a path, an fsspec URL or a Zarr store for a read-only `zarr.Array`.
    tile : side of a tile in the store, or (rows, columns); by default that of an existing store, else a few seconds of
        work.
    verify : read and check the tiles already in the store; damaged ones are reported and computed again.
    progress : show a progress bar on a terminal.
    output : "numpy", "cupy" or "torch", for a matrix in memory; on a GPU the last two leave it there.
    client : a `dask.distributed.Client` whose workers compute the tiles. They write them directly to `store`, which
        must be a path or URL that all of them can open.
    kind : kind of the kernel made from a network; see `Kernel`. A `Kernel` has its own.

    >>> import numpy as np, tempfile
    >>> from cnngp import Dense, Kernel, gram
    >>> kernel = Kernel(Dense(), device="cpu")
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> gram(kernel, X)
    array([[ 0.5,  1.5,  2.5],
           [ 1.5,  6.5, 11.5],
           [ 2.5, 11.5, 20.5]], dtype=float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     K = gram(kernel, X, store=folder + "/K.zarr")
    ...     bool((K[:] == kernel(X)).all())
    True
    """
    kernel = as_kernel(kernel, kind=kind)
    side = check_tile(tile)
    check_output(output)
    if store is None and client is not None:
        raise ValueError("client= needs store=, a path or URL that every worker sees: they write their tiles there")
    if store is not None and output != "numpy":
        raise ValueError(f"output={output!r} is for a matrix in memory; with store= the result is a zarr.Array")
    x = ImageRows(X, kernel, "X")
    z = None if Z is None else ImageRows(Z, kernel, "Z")
    if z is not None and x.image_shape != z.image_shape:
        raise DataError(f"X holds images of shape {x.image_shape} and Z of shape {z.image_shape}; they must agree")
    kernel.engine_for(x.image_shape)  # raises NetworkError for images that do not fit the network
    if store is None:
        n, m = len(x), len(x if z is None else z)
        what, device = f"a kernel matrix of {n:,} × {m:,}", "cpu" if output == "numpy" else kernel.device
        try:
            memory.require(n * m * x.dtype.itemsize, what, device)
        except MemoryError as error:
            raise MemoryError(f"{error}; or keep it on disk with store=") from None
        return kernel(x.X, None if z is None else z.X, output=output, progress=progress)
    on_cluster = None if client is None else ClusterFill(client, kernel, x.image_shape, store)
    with opened(store) as gram_store:
        return _in_store(gram_store, kernel, x, z, side, verify, progress, on_cluster)


def _in_store(
    store: GramStore,
    kernel: Kernel,
    x: ImageRows,
    z: ImageRows | None,
    tile: tuple[int, int] | None,
    verify: bool,
    progress: bool,
    on_cluster: ClusterFill | None,
) -> Any:
    found = store.found
    engine, device = kernel.engine_for(x.image_shape).identity, kernel.device
    if on_cluster is not None:
        engine, device = on_cluster.engine(None if found is None else found.engine)
    shape = (len(x), len(x if z is None else z))
    if tile is not None or found is not None:
        taken = tile or found.tile  # type: ignore[union-attr]
    elif on_cluster is None:
        taken = tile_here(x, shape, z is None)
    else:
        cost = kernel.network.shapes(x.image_shape).elements
        taken = default_tile(cost, device, shape, z is None, on_cluster.workers)
    spec = specify(found, kernel, x, z, taken, engine)
    old = (0, 0)
    if found is not None:
        old = found.shape
        found.refuse_unless_same_or_grown(spec, store.name)
        if old != spec.shape:
            _refuse_to_fill(store, engine)
        if not store.read_only:
            end_run(store)  # ends a cluster run whose client was killed
    x.check_range(old[0])
    if z is not None:
        z.check_range(old[1])
    store.prepare(spec, any_tile=tile is None)
    there = store.present()
    missing = store.missing(there)
    damaged = store.damaged(missing, progress) if verify and there.any() else []
    if missing or damaged:
        _refuse_to_fill(store, engine)
        _check(store, kernel, x, on_cluster)
        if damaged:
            shown = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
            what = f"{len(damaged)} of {len(store.grid)} tiles were damaged and are computed again: {shown}"
            log.warning("%s: %s", store.name, what)
        with store.writing("its other tiles stay valid"):
            for at in damaged:  # deleted, so that a later run without verification does not use them
                store.forget(*at)
        _compute(store, kernel, x, z, sorted([*missing, *damaged]), progress, on_cluster)
    if not store.read_only:
        store.note("progress", {"tiles": len(store.grid), "of": len(store.grid)})
    return store.array()


def specify(
    found: Spec | None, kernel: Kernel, x: ImageRows, z: ImageRows | None, tile: tuple[int, int], engine: str
) -> Spec:
    """Return the identity of the requested matrix. Reads the data once."""
    try:
        network: str | None = kernel.network.to_json()
    except NetworkError:
        network = None

    def data(rows: ImageRows, there: Data | None) -> Data:
        prefix, whole = rows.fingerprints(None if there is None else there.images)
        return Data(len(rows), rows.image_shape, whole, prefix)

    spec = Spec(
        network=network,
        network_fingerprint=kernel.network.fingerprint,
        X=data(x, None if found is None else found.X),
        Z=None if z is None else data(z, None if found is None else found.Z),
        engine=engine,
        dtype=kernel.dtype,
        tile=tile,
        kind=kernel.kind if kernel.symmetry is None else f"{kernel.kind}, symmetry {kernel.symmetry!r}",
        id="" if found is None else found.id,
    )
    return spec.identified() if found is None else spec


def _refuse_to_fill(store: GramStore, engine: str) -> None:
    """Raise `StoreError` if tiles cannot be added. Any machine may read a complete matrix; adding needs its engine."""
    if store.read_only:
        raise StoreError(f"{store.name} lacks tiles and cannot be written; copy it to where you may write")
    if store.spec.engine != engine:
        raise StoreError(
            f"{store.name} was begun by the engine {store.spec.engine} and lacks tiles; this one is {engine}, whose "
            "last digits differ. Continue on a machine with that engine, or choose another store"
        )


def _check(store: GramStore, kernel: Kernel, x: ImageRows, on_cluster: ClusterFill | None) -> None:
    """Compare the kernel of two images with the reference before hours of work, and note the result in the store.

    On a cluster each worker does this for its own engine.
    """
    if not kernel.check or on_cluster is not None:
        store.note("check", {"by": "each worker" if kernel.check else "nobody: check=False"})
        return
    verdict = kernel.verify(x.X)
    store.note("check", {"by": "this process"} | ({} if verdict is None else asdict(verdict)))


def _compute(
    store: GramStore,
    kernel: Kernel,
    x: ImageRows,
    z: ImageRows | None,
    todo: list[tuple[int, int]],
    progress: bool,
    on_cluster: ClusterFill | None,
) -> None:
    """Fill the tiles `todo`. After any error the written tiles stay, and the message says how to continue."""
    grid = store.grid
    left = set(todo)

    def write(t: Tile, block: Any) -> None:
        store.write(t, block)
        left.discard((t.i, t.j))

    def state() -> str:
        return f"{len(grid) - len(left):,} of {len(grid):,} tiles are there and stay valid"

    try:
        already = grid.pairs - sum(grid.at(i, j).pairs for i, j in todo)
        with progress_bar(grid.pairs, "kernel", "pair", done=already, wanted=progress, keep=True) as bar:

            def done_by_another(t: Tile) -> None:
                left.discard((t.i, t.j))
                bar.update(t.pairs)

            if on_cluster is not None:
                on_cluster.fill(store, x, z, done_by_another)
                return
            if kernel.device == "cuda":
                x.room = (memory.available("cuda") or 0) // 8
            tiles: Iterable[Tile] = (grid.at(i, j) for i, j in todo)
            if not store.locked:
                tiles = not_done_by_others(store, todo, None, done=done_by_another)
            fill(tiles, lanes(kernel, x.image_shape), x, z, write, bar.update)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {state()} in {store.name}. Run it again to continue") from None
    except ClusterError as error:
        raise ClusterError(f"{error}; {state()} in {store.name}. Run it again to continue") from None
    except OSError as error:
        raise store.fault(error, state()) from error
