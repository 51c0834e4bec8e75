"""`cnngp gram`: compute a kernel matrix into a resumable store, estimate its cost, or show what a store holds."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from cnngp.common.progress import duration, progress_bar

from .inputs import chosen_network, given_network, read_data
from .options import Asked
from .output import last_line, say, warn, warnings_as_lines


def gram(asked: Asked) -> None:
    """Compute a kernel matrix into a store. After an interruption, run the same command again to continue."""
    if asked.status is not None:
        _status(asked.status, asked.verify)
        return
    if asked.store is None and not asked.plan:
        raise ValueError("say where the matrix goes, such as --store digits.zarr, or use --plan to see the cost")
    if asked.scheduler is not None and asked.plan:
        raise ValueError("--plan measures this machine, so it cannot be combined with --scheduler")
    if asked.recipe is not None and asked.preparation != "plain":
        raise ValueError("--recipe names the networks and preparations; leave out --preparation")
    from cnngp.cluster import connect
    from cnngp.estimators.kernels import prepared
    from cnngp.estimators.recipe import Recipe, Term
    from cnngp.kernel.kernel import Kernel
    from cnngp.matrix.store.places import child

    with nullcontext() if asked.scheduler is None else connect(asked.scheduler) as client:
        given = given_network(asked)
        # All images of a folder or a file: nothing is predicted here, so no test set is split off.
        images = read_data(asked, whole=True).take(asked.train)
        say("data", f"{len(images.X):,} images of {asked.data}")
        terms, name = given.terms if isinstance(given, Recipe) else (), ""
        if not terms:
            network, name = chosen_network(given, images.X, asked.network)
            terms = (Term(network, asked.preparation),)
        done = []
        for term in terms:
            kernel = Kernel(term.network, asked.device, asked.dtype, asked.threads, asked.kind, symmetry=term.symmetry)
            X = prepared(term, images.X)
            place = asked.store if asked.store is None or len(terms) == 1 else child(asked.store, term.store_name)
            say("network", f"{name or term.name}, {term.network.shapes(X.shape[1:]).cost:,} operations per pair")
            if client is None:
                say("engine", f"{kernel.device} ({kernel.engine_for(X.shape[1:]).identity})")
            else:
                threads = client.nthreads().values()
                say("cluster", f"{asked.scheduler}, {len(threads):,} workers, {sum(threads):,} threads")
            if asked.plan:
                done.append(_plan(kernel, X, asked.tile, place))
            else:
                done.append(_compute(kernel, X, place, asked, client))
        last_line(done[0] if len(done) == 1 else {"command": "gram", "terms": done})


def tell_cost(kernel: Any, X: Any, pairs: int) -> None:
    """Time a few pairs and print the expected time for all of them, unless it is clearly short."""
    from cnngp.matrix.tile_size import expected_seconds
    from cnngp.report.run import WORTH_MEASURING, said_of_hours

    if kernel.network.shapes(X.shape[1:]).cost * pairs < WORTH_MEASURING:
        return
    with progress_bar(1, "timing a few pairs", "run", delay=0.0):
        seconds = expected_seconds(kernel, X, pairs)
    say("expected time", f"about {duration(seconds)} for the kernels of {pairs:,} pairs, timed on a few")
    if hours := said_of_hours(seconds, "kernel"):
        warn(hours)


def _compute(kernel: Any, X: Any, store: Any, asked: Asked, client: Any) -> dict[str, Any]:
    from cnngp.common.memory import size
    from cnngp.matrix.gram import gram as compute
    from cnngp.matrix.plan import begun

    left = begun(kernel, X, store, asked.tile)
    if left is not None:
        say("continues", f"{left.tiles:,} of {left.of:,} tiles are there already")
    pairs = len(X) * (len(X) - 1) // 2 if left is None else left.pairs_left
    if client is None and pairs:
        tell_cost(kernel, X, pairs)
    began = time.perf_counter()
    with warnings_as_lines():
        K = compute(kernel, X, store=store, tile=asked.tile, verify=asked.verify, client=client)
    seconds = time.perf_counter() - began
    say("store", str(store))
    say("matrix", f"{K.shape[0]:,} × {K.shape[1]:,} {K.dtype}, {size(K.nbytes)} in tiles of {K.chunks[0]}")
    say("time", f"{seconds:.1f} s")
    result = {"shape": list(K.shape), "dtype": str(K.dtype), "tile": K.chunks[0], "store": str(store)}
    return {"command": "gram", **result, "seconds": seconds}


def _plan(kernel: Any, X: Any, tile: int | None, store: Any) -> dict[str, Any]:
    from cnngp.common.memory import size
    from cnngp.matrix.plan import plan
    from cnngp.report.run import said_of_hours

    p = plan(kernel, X, tile=tile, store=store)
    free = "" if p.disk_free_bytes is None else f" ({size(p.disk_free_bytes)} free)"
    say("pairs", f"{p.pairs:,}")
    say("tiles", f"{p.tiles:,} of {p.tile} × {p.tile}")
    if p.tiles_left < p.tiles:
        say("continues", f"{p.tiles - p.tiles_left:,} of {p.tiles:,} tiles are there already")
    say("disk", f"{size(p.disk_bytes)}{free}")
    if p.memory_bytes is not None:
        say("memory", f"{size(p.memory_bytes)} to compute; an exact fit needs {size(p.fit_bytes)}")
    say("speed", f"{p.pairs_per_second:,.0f} pairs/s, measured on a few pairs")
    say("time", f"about {duration(p.seconds)} for {p.pairs_left:,} pairs")
    if hours := said_of_hours(p.seconds, "kernel"):
        warn(hours)
    return {"command": "gram --plan", **asdict(p)}


def _status(where: str, verify: bool) -> None:
    from cnngp.common.memory import size
    from cnngp.matrix.plan import status
    from cnngp.matrix.store.spec import told
    from cnngp.network.serialize import from_json

    s = status(where, verify=verify)
    spec = s.spec
    say("store", where)
    say("network", "with a Python function" if spec.network is None else told(from_json(spec.network)))
    shape = " × ".join(map(str, spec.X.shape))
    other = "" if spec.Z is None else f" and {spec.Z.images:,}"
    say("images", f"{spec.X.images:,}{other} of {shape}")
    say("matrix", f"{spec.shape[0]:,} × {spec.shape[1]:,} {spec.dtype} in tiles of {spec.tile[0]} × {spec.tile[1]}")
    say("kernel", spec.kind)
    say("engine", spec.engine)
    say("tiles", f"{s.tiles - s.missing:,} of {s.tiles:,} there, {size(s.chunk_bytes)}")
    if s.damaged is None:
        say("whole", "all tiles are there; not read" if s.whole else f"no: {s.missing:,} tiles missing")
    else:
        missing = f"no: {s.missing:,} tiles missing, {s.damaged:,} damaged; the command that made it computes them"
        say("whole", "yes, every tile was read and is good" if s.whole else missing)
    last_line({"command": "gram --status", "store": where, **s.as_dict()})
