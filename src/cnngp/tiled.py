"""`gram`: the one loop over the tiles of a kernel matrix, into memory or into a store that survives anything.

An entry depends on its two images alone, so tiles may be computed in any order, by any process, at any time, and the
matrix is the same to the last bit. All else follows: what is missing is what has to be computed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import memory
from .arrays import DataError, Output, to_numpy
from .errors import StoreError
from .image_rows import ImageRows
from .kernel import Kernel, as_kernel
from .network import Network, NetworkError
from .store import GramStore, opened
from .store_spec import Data, Spec
from .tiles import Grid, Tile, check_tile, default_tile

log = logging.getLogger("cnngp")

# Seconds between notes of progress in the metadata.
_NOTE_SECONDS = 30.0


def gram(
    kernel: Kernel | Network,
    X: Any,
    Z: Any = None,
    *,
    store: Any = None,
    tile: int | tuple[int, int] | None = None,
    verify: bool = True,
    progress: bool = True,
) -> Any:
    """K(X, Z), or K(X, X), tile by tile: bit for bit `kernel(X, Z)`, in memory or in a store.

    Run again after a crash, a kill or a full disk, it computes the tiles that are missing and no others. A set of
    images that grew at its end keeps its tiles.

    Parameters
    ----------
    kernel : a `Kernel`, or a network to make one of.
    X, Z : images; arrays or memory maps, of which a tile's rows are read at a time.
    store : None for a NumPy array; a path, an fsspec URL or a Zarr store for a read-only `zarr.Array`.
    tile : side of a tile, or (rows, columns); by default a few seconds of work, and what a store already has.
    verify : read and check the tiles that a store has; bad ones are reported and computed again.
    progress : a progress bar, on a terminal.

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
    kernel = as_kernel(kernel)
    side = check_tile(tile)
    x = ImageRows(X, kernel, "X")
    z = None if Z is None else ImageRows(Z, kernel, "Z")
    if z is not None and x.image_shape != z.image_shape:
        raise DataError(f"X holds images of shape {x.image_shape} and Z of shape {z.image_shape}; they must agree")
    kernel.engine_for(x.image_shape)  # refuses images that do not fit the network
    if store is None:
        return _in_memory(kernel, x, z, side, progress)
    with opened(store) as place:
        return _in_store(place, kernel, x, z, side, verify, progress)


def _in_memory(kernel: Kernel, x: ImageRows, z: ImageRows | None, tile: Any, progress: bool) -> NDArray[Any]:
    shape = (len(x), len(x if z is None else z))
    try:
        memory.require(shape[0] * shape[1] * x.dtype.itemsize, f"a kernel matrix of {shape[0]:,} × {shape[1]:,}")
    except MemoryError as error:
        raise MemoryError(f"{error}; or keep it on disk with store=") from None
    x.check_range()
    if z is not None:
        z.check_range()
    engine = kernel.engine_for(x.image_shape)
    grid = Grid(shape, tile or default_tile(engine, kernel.device, shape, z is None), z is None)
    K = np.empty(shape, x.dtype)

    def write(t: Tile, block: Any) -> None:
        block = to_numpy(block)
        K[t.rows, t.columns] = block
        if grid.symmetric and t.i != t.j:
            K[t.columns, t.rows] = block.T

    with progress_bar(grid.pairs, 0, progress) as advance:
        _fill(grid, kernel, x, z, write, advance)
    return K


def _in_store(
    place: GramStore, kernel: Kernel, x: ImageRows, z: ImageRows | None, tile: Any, verify: bool, progress: bool
) -> Any:
    spec = _specify(place.found, kernel, x, z, tile)
    old = (0, 0)
    if place.found is not None:
        old = place.found.shape
        place.found.refuse_unless_same_or_grown(spec, place.name)
        if old != spec.shape:
            _refuse_to_fill(place, spec.engine)
    x.check_range(old[0])
    if z is not None:
        z.check_range(old[1])
    place.prepare(spec)
    todo = _todo(place, verify, progress)
    if todo:
        _refuse_to_fill(place, spec.engine)
        _compute(place, kernel, x, z, todo, progress)
    place.note_progress(len(place.grid))
    return place.array()


def _specify(found: Spec | None, kernel: Kernel, x: ImageRows, z: ImageRows | None, tile: Any) -> Spec:
    """The identity of the matrix that is asked for. The data are read once."""
    engine = kernel.engine_for(x.image_shape)
    shape = (len(x), len(x if z is None else z))
    if tile is None:
        tile = found.tile if found is not None else default_tile(engine, kernel.device, shape, z is None)
    try:
        network: str | None = kernel.network.to_json()
    except NetworkError:
        network = None

    def data(rows: ImageRows, there: Data | None) -> Data:
        prefix, whole = rows.fingerprints(None if there is None else there.images)
        return Data(len(rows), rows.image_shape, whole, prefix)

    return Spec(
        network=network,
        fingerprint=kernel.network.fingerprint,
        X=data(x, None if found is None else found.X),
        Z=None if z is None else data(z, None if found is None else found.Z),
        engine=engine.identity,
        dtype=kernel.dtype,
        tile=tile,
    )


def _todo(place: GramStore, verify: bool, progress: bool) -> list[Tile]:
    """Tiles to compute: those that are not there, and, when asked to look, those that are damaged."""
    there = place.present()
    todo = place.missing(there)
    if not verify or not there.any():
        return todo
    absent = {(t.i, t.j) for t in todo}
    present = [t for t in place.grid if (t.i, t.j) not in absent]
    bad = []
    with progress_bar(len(present), 0, progress, "verifying", "tile") as advance:
        for t, damaged in place.damaged(present):
            if damaged:
                bad.append(t)
            advance(1)
    if bad:
        places = ", ".join(f"({t.i}, {t.j})" for t in bad[:5]) + (", …" if len(bad) > 5 else "")
        log.warning(
            "%s: %d of %d tiles were damaged and are computed again: %s", place.name, len(bad), len(place.grid), places
        )
    return sorted([*todo, *bad], key=lambda t: (t.i, t.j))


def _refuse_to_fill(place: GramStore, engine: str) -> None:
    """A matrix that is whole is given out on any machine; only what has to be computed needs the same engine."""
    if place.read_only:
        raise StoreError(f"{place.name} lacks tiles and cannot be written; copy it to where you may write")
    made_by = engine if place.found is None else place.found.engine
    if made_by != engine:
        raise StoreError(
            f"{place.name} was begun by the engine {made_by} and lacks tiles; this one is {engine}, whose last digits "
            "differ. Go on where it was begun, or give another store"
        )


def _compute(
    place: GramStore, kernel: Kernel, x: ImageRows, z: ImageRows | None, todo: list[Tile], progress: bool
) -> None:
    """Fill the tiles `todo`. Whatever ends it, the tiles that were written stay, and the message says how to go on."""
    grid = place.grid
    done = len(grid) - len(todo)
    noted = time.monotonic()

    def write(t: Tile, block: Any) -> None:
        nonlocal done, noted
        place.write(t, block)
        done += 1
        if time.monotonic() - noted > _NOTE_SECONDS:
            noted = time.monotonic()
            place.note_progress(done)

    def state() -> str:
        return f"{done:,} of {len(grid):,} tiles are there and stay valid"

    try:
        with progress_bar(grid.pairs, grid.pairs - sum(t.pairs for t in todo), progress) as advance:
            _fill(todo, kernel, x, z, write, advance)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {state()} in {place.name}. Run the same again to go on") from None
    except OSError as error:
        raise place.fault(error, state()) from error


def _fill(
    tiles: Any,
    kernel: Kernel,
    x: ImageRows,
    z: ImageRows | None,
    write: Callable[[Tile, Any], None],
    advance: Callable[[int], Any],
) -> None:
    """The loop. A tile is written, by a thread, while the next one is computed; two are in memory at a time. On a card
    they stay there until that thread fetches them.
    """
    engine = kernel.engine_for(x.image_shape)
    output: Output = "cupy" if kernel.device == "cuda" else "numpy"
    rows: tuple[int, Any] = (-1, None)
    writing: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="cnngp-write") as writer:
        for t in tiles:
            if rows[0] != t.i:
                rows = (t.i, x.block(t.rows))
            if z is None and t.i == t.j:
                block = engine.symmetric(rows[1], output, advance)
            else:
                block = engine.cross(rows[1], (x if z is None else z).block(t.columns), output, advance)
            if writing is not None:
                writing.result()
            writing = writer.submit(write, t, block)
        if writing is not None:
            writing.result()


@contextmanager
def progress_bar(
    total: int, done: int, wanted: bool, what: str = "kernel", unit: str = "pair"
) -> Iterator[Callable[[int], Any]]:
    """A progress bar that starts at what is done already; only on a terminal."""
    from tqdm.auto import tqdm

    disable = None if wanted else True
    with tqdm(total=total, initial=done, desc=what, unit=unit, unit_scale=True, disable=disable, delay=1.0) as bar:
        yield bar.update
