"""`gram`: the one loop over the tiles of a kernel matrix, into memory or into a store that survives anything.

An entry depends on its two images alone, so tiles may be computed in any order, by any process, at any time, and the
matrix is the same to the last bit. All else follows: what is missing is what has to be computed.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cnngp.common import memory
from cnngp.common import progress as bars
from cnngp.common.arrays import DataError, Output, check_output, to_numpy, to_output
from cnngp.common.errors import StoreError
from cnngp.common.tiles import Grid, Tile
from cnngp.kernel.kernel import Kernel, as_kernel
from cnngp.kernel.program import Kind
from cnngp.network.layers import Network, NetworkError

from .cluster import cluster
from .cluster import mark as store_run
from .fill import Lane, fill, lanes
from .images import ImageRows
from .store.spec import Data, Spec
from .store.store import GramStore, opened
from .tile_size import check_tile, default_tile

log = logging.getLogger("cnngp")

# Seconds between notes of progress in the metadata.
_NOTE_SECONDS = 30.0
# What two engines may differ by, relative to the largest entry, in the check of stores of format 1.
_SAME = 1e-5


def gram(
    kernel: Kernel | Network,
    X: Any,
    Z: Any = None,
    *,
    store: Any = None,
    tile: int | tuple[int, int] | None = None,
    verify: bool = True,
    progress: bool = True,
    output: Output = "numpy",
    client: Any = None,
    kind: Kind = "nngp",
) -> Any:
    """K(X, Z), or K(X, X), tile by tile: bit for bit `kernel(X, Z)`, in memory or in a store.

    Run again after a crash, a kill or a full disk, it computes the tiles that are missing and no others. A set of
    images that grew at its end keeps its tiles.

    Parameters
    ----------
    kernel : a `Kernel`, or a network to make one of.
    X, Z : images; arrays or memory maps, of which a tile's rows are read at a time.
    store : None for an array in memory; a path, an fsspec URL or a Zarr store for a read-only `zarr.Array`.
    tile : side of a tile, or (rows, columns); by default a few seconds of work, and what a store already has. In memory
        the whole matrix is one tile, which is the fastest, unless it is given.
    verify : read and check the tiles that a store has; bad ones are reported and computed again.
    progress : a progress bar, on a terminal.
    output : "numpy", "cupy" or "torch", for a matrix in memory; on a GPU the last two leave it there.
    client : a `dask.distributed.Client` whose workers compute the tiles. They write them straight into `store`, which
        must be a path or URL that every one of them sees.
    kind : of the kernel that is made of a network; see `Kernel`. A `Kernel` has its own.

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
    kernel.engine_for(x.image_shape)  # refuses images that do not fit the network
    if store is None:
        return _in_memory(kernel, x, z, side, progress, output)
    crew = None if client is None else cluster.Crew(client, kernel, x.image_shape, store)
    with opened(store) as place:
        return _in_store(place, kernel, x, z, side, verify, progress, crew)


def _in_memory(
    kernel: Kernel, x: ImageRows, z: ImageRows | None, tile: tuple[int, int] | None, progress: bool, output: Output
) -> Any:
    shape = (len(x), len(x if z is None else z))
    try:
        memory.require(
            shape[0] * shape[1] * x.dtype.itemsize,
            f"a kernel matrix of {shape[0]:,} × {shape[1]:,}",
            "cpu" if output == "numpy" else kernel.device,
        )
    except MemoryError as error:
        raise MemoryError(f"{error}; or keep it on disk with store=") from None
    if tile is None:
        return kernel(x.X, None if z is None else z.X, output=output, progress=progress)
    x.check_range()
    if z is not None:
        z.check_range()
    if kernel.check:
        kernel.verify(x.X)
    grid = Grid(shape, tile, z is None)
    K = np.empty(shape, x.dtype)

    def write(t: Tile, block: Any) -> None:
        block = to_numpy(block)
        K[t.rows, t.columns] = block
        if t.mirrored:
            K[t.columns, t.rows] = block.T

    with progress_bar(grid.pairs, 0, progress) as advance:
        fill(grid, [Lane(kernel.engine_for(x.image_shape))], x, z, write, advance)
    return to_output(K, output)


def _in_store(
    place: GramStore,
    kernel: Kernel,
    x: ImageRows,
    z: ImageRows | None,
    tile: tuple[int, int] | None,
    verify: bool,
    progress: bool,
    crew: cluster.Crew | None,
) -> Any:
    made_by = None if place.found is None else place.found.engine
    own = kernel.engine_for(x.image_shape)
    engine, device = (own.identity, kernel.device) if crew is None else crew.engine(made_by)
    shape = (len(x), len(x if z is None else z))
    if tile is None:
        cost = kernel.network.shapes(x.image_shape).elements
        workers = 1 if crew is None else crew.workers
        tile = default_tile(cost, device, shape, z is None, workers) if place.found is None else place.found.tile
    spec = _specify(place.found, kernel, x, z, tile, engine)
    old = (0, 0)
    if place.found is not None:
        old = place.found.shape
        place.found.refuse_unless_same_or_grown(spec, place.name)
        if old != spec.shape:
            _refuse_to_fill(place, spec.engine)
        if not place.read_only:
            store_run.end(place)  # a run on a cluster whose client was killed
    x.check_range(old[0])
    if z is not None:
        z.check_range(old[1])
    place.prepare(spec)
    missing, damaged = _todo(place, verify, progress)
    if not place.sealed:
        damaged += _seal(place, kernel, x, z, [*missing, *damaged], verify, progress)
    if missing or damaged:
        _refuse_to_fill(place, spec.engine)
        _note_check(place, kernel, x, crew)
        if damaged:
            _report(place, damaged)
        with place.writing("its other tiles stay valid"):
            for at in damaged:  # gone, so that no later run without verification takes them for good
                place.forget(*at)
        _compute(place, kernel, x, z, sorted([*missing, *damaged]), progress, crew)
    place.note_progress(len(place.grid))
    return place.array()


def _note_check(place: GramStore, kernel: Kernel, x: ImageRows, crew: cluster.Crew | None) -> None:
    """Compare two images with the reference before hours of work; the store says that it was done, and what came out.

    On a cluster each worker does so for its own engine.
    """
    if not kernel.check:
        note: dict[str, Any] = {"by": "nobody: check=False"}
    elif crew is not None:
        note = {"by": "each worker"}
    else:
        verdict = kernel.verify(x.X)
        note = {"by": "this process"} | ({} if verdict is None else verdict.as_dict())
    place.note_check(note)


def _specify(
    found: Spec | None, kernel: Kernel, x: ImageRows, z: ImageRows | None, tile: tuple[int, int], engine: str
) -> Spec:
    """The identity of the matrix that is asked for. The data are read once."""
    try:
        network: str | None = kernel.network.to_json()
    except NetworkError:
        network = None

    def data(rows: ImageRows, there: Data | None) -> Data:
        prefix, whole = rows.fingerprints(None if there is None else there.images)
        return Data(len(rows), rows.image_shape, whole, prefix)

    spec = Spec(
        network=network,
        fingerprint=kernel.network.fingerprint,
        X=data(x, None if found is None else found.X),
        Z=None if z is None else data(z, None if found is None else found.Z),
        engine=engine,
        dtype=kernel.dtype,
        tile=tile,
        id=None if found is None else found.id,
        kind=kernel.kind,
    )
    return spec.identified() if found is None else spec


def _todo(place: GramStore, verify: bool, progress: bool) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Tiles to compute: those that are not there, and, when asked to look, those that are damaged."""
    there = place.present()
    missing = place.missing(there)
    if not verify or not there.any():
        return missing, []
    absent = set(missing)
    present = [(t.i, t.j) for t in place.grid if (t.i, t.j) not in absent]
    bad = []
    with progress_bar(len(present), 0, progress, "verifying", "tile") as advance:
        for at, damaged in place.damaged(present):
            if damaged:
                bad.append(at)
            advance(1)
    return missing, bad


def _report(place: GramStore, bad: list[tuple[int, int]]) -> None:
    places = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
    log.warning(
        "%s: %d of %d tiles were damaged and are computed again: %s", place.name, len(bad), len(place.grid), places
    )


def _seal(
    place: GramStore,
    kernel: Kernel,
    x: ImageRows,
    z: ImageRows | None,
    lacking: list[tuple[int, int]],
    verify: bool,
    progress: bool,
) -> list[tuple[int, int]]:
    """Bring a store of format 1 to the present one. Its tiles do not say where they belong, so in each some entries are
    computed and compared. Gives those that belong elsewhere.
    """
    if place.read_only or not verify:
        log.warning(
            "%s was written by an earlier version, whose tiles do not say where they belong; a tile in a wrong place "
            "would not be noticed. Run gram on it once, with verify=True and where it can be written, to check that",
            place.name,
        )
        return []
    misplaced: list[tuple[int, int]] = []
    without = set(lacking)
    good = [t for t in place.grid if (t.i, t.j) not in without]
    with progress_bar(len(good), 0, progress, "checking", "tile") as advance, place.writing("its tiles stay valid"):
        for t in good:
            if _belongs(place, kernel, x, z, t):
                place.seal(t.i, t.j)
            else:
                misplaced.append((t.i, t.j))
            advance(1)
    place.adopt_seals()
    return misplaced


def _belongs(place: GramStore, kernel: Kernel, x: ImageRows, z: ImageRows | None, t: Tile) -> bool:
    """Whether the corners of a tile are those of its images, as far as engines agree."""
    block = place.read(t.i, t.j)
    r, c = [0, block.shape[0] - 1], [0, block.shape[1] - 1]
    card = 0 if kernel.device == "cuda" else None
    engine, rows = kernel.engine_for(x.image_shape), x.block(t.rows, card)[r]
    if t.on_diagonal:
        wanted = engine.symmetric(rows, "numpy", None)
    else:
        wanted = engine.cross(rows, (x if z is None else z).block(t.columns, card)[c], "numpy", None)
    return bool(np.abs(block[np.ix_(r, c)] - wanted).max() <= _SAME * np.abs(wanted).max())


def _refuse_to_fill(place: GramStore, engine: str) -> None:
    """A matrix that is whole is given out on any machine; only what has to be computed needs the same engine."""
    if place.read_only:
        raise StoreError(f"{place.name} lacks tiles and cannot be written; copy it to where you may write")
    made_by = engine if place.found is None else place.found.engine
    if made_by != engine:
        raise StoreError(
            f"{place.name} was begun by the engine {made_by} and lacks tiles; this one is {engine}, whose last digits "
            "differ. Continue on a machine with that engine, or choose another store"
        )


def _compute(
    place: GramStore,
    kernel: Kernel,
    x: ImageRows,
    z: ImageRows | None,
    todo: list[tuple[int, int]],
    progress: bool,
    crew: cluster.Crew | None,
) -> None:
    """Fill the tiles `todo`. Whatever ends it, the tiles that were written stay, and the message says how to go on."""
    grid = place.grid
    done = len(grid) - len(todo)
    noted = time.monotonic()
    counting = threading.Lock()

    def count(tiles: int) -> None:
        nonlocal done, noted
        with counting:
            done += tiles
            if time.monotonic() - noted > _NOTE_SECONDS:
                noted = time.monotonic()
                place.note_progress(done)

    def write(t: Tile, block: Any) -> None:
        place.write(t, block)
        count(1)

    def state() -> str:
        return f"{done:,} of {len(grid):,} tiles are there and stay valid"

    try:
        with progress_bar(grid.pairs, grid.pairs - sum(grid.at(i, j).pairs for i, j in todo), progress) as advance:
            if crew is not None:
                crew.fill(place, x, z, todo, count, advance)
            else:
                if kernel.device == "cuda":
                    x.room = (memory.available("cuda") or 0) // 8

                def done_by_another(t: Tile) -> None:
                    count(1)
                    advance(t.pairs)

                tiles = (grid.at(i, j) for i, j in todo) if place.locked else _shared(place, todo, done_by_another)
                fill(tiles, lanes(kernel, x.image_shape), x, z, write, advance)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {state()} in {place.name}. Run it again to continue") from None
    except cluster.ClusterError as error:
        raise cluster.ClusterError(f"{error}; {state()} in {place.name}. Run it again to continue") from None
    except OSError as error:
        raise place.fault(error, state()) from error


def _shared(place: GramStore, todo: list[tuple[int, int]], done: Callable[[Tile], None]) -> Iterator[Tile]:
    """The tiles where no lock holds, as on object stores, and other processes may be at the same matrix: each takes
    them in an order of its own and looks before it computes one, so that few are computed twice.
    """
    for i, j in random.sample(todo, len(todo)):
        tile = place.grid.at(i, j)
        if place.has(tile):
            done(tile)
        else:
            yield tile


@contextmanager
def progress_bar(
    total: int, done: int, wanted: bool, what: str = "kernel", unit: str = "pair"
) -> Iterator[Callable[[int], Any]]:
    """A progress bar that starts at what is done already; only on a terminal."""
    with bars.progress_bar(total, what, unit, done=done, wanted=wanted, keep=True) as bar:
        yield bar.update
