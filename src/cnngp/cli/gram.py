"""`cnngp gram`: compute a kernel matrix into a store that can be continued; show its cost, or what a store holds."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from . import values
from .common import (
    Aspect,
    Columns,
    Data,
    Device,
    Dtype,
    InputShape,
    Kind,
    MaxPixels,
    NetworkName,
    RecipeFile,
    Size,
    SkipBad,
    SplitName,
    Threads,
    Train,
    network_by_name,
    read_data,
    warnings_as_lines,
    zoo_name,
)
from .cost import tell_cost, warn_if_long
from .output import Json, Quiet, last_line, say


def gram(
    data: Data = "digits",
    network: NetworkName = "auto",
    recipe: RecipeFile = None,
    train: Train = None,
    split: SplitName = "standard",
    size: Size = None,
    aspect: Aspect = "squash",
    skip_bad: SkipBad = False,
    max_pixels: MaxPixels = None,
    columns: Columns = None,
    input_shape: InputShape = None,
    preparation: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            parser=values.choice("plain", "contrast", "detail", "edges", "normalised", "zca", "patches"),
            help="How each image is prepared: plain, contrast, detail, edges, normalised, zca or patches.",
        ),
    ] = "plain",
    store: Annotated[
        str | None, typer.Option(metavar="STORE", help="Where the matrix goes: a folder or an fsspec URL.")
    ] = None,
    tile: Annotated[
        int | None, typer.Option(metavar="N", help="Side of a tile in images; by default a few seconds of work.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Check the tiles that are already in the store.")] = True,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what it would cost, after timing a few pairs; nothing is stored.")
    ] = False,
    status: Annotated[str | None, typer.Option(metavar="STORE", help="Show what a store holds.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Compute on the workers of a Dask cluster, such as tcp://host:8786."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    threads: Threads = None,
    kind: Kind = "nngp",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compute a kernel matrix into a store. If it is interrupted, run it again and it continues where it stopped."""
    if status is not None:
        _status(status, verify, as_json)
        return
    if store is None and not plan:
        raise ValueError("say where the matrix goes, such as --store digits.zarr, or use --plan to see the cost")
    if scheduler is not None and plan:
        raise ValueError("--plan measures this machine, so it cannot be combined with --scheduler")
    from cnngp.estimators.kernels import prepared
    from cnngp.estimators.recipe import Recipe, Term
    from cnngp.kernel.kernel import Kernel
    from cnngp.matrix.cluster.connection import connect
    from cnngp.matrix.plan import begun
    from cnngp.matrix.store.places import child
    from cnngp.network.names import default_network

    with nullcontext() if scheduler is None else connect(scheduler) as client:
        given = network_by_name(network)
        if recipe is not None and (given is not None or preparation != "plain"):
            raise ValueError("--recipe names the networks and preparations; leave out --network and --preparation")
        asked = None if recipe is None else Recipe.read(recipe)
        # All images of a folder or a file: nothing is predicted here, so none are kept for a test.
        read = read_data(
            data,
            split=split,
            size=size,
            aspect=aspect,
            skip_bad=skip_bad,
            max_pixels=max_pixels,
            columns=columns,
            input_shape=input_shape,
            whole=True,
        )
        images = read.some(train)
        say("data", f"{len(images.X):,} images of {data}")
        if asked is None:
            net = given or default_network(images.X.shape[1:], len(images.X))
            terms: Any = [Term(net, preparation)]
            name = network if given is not None else f"{zoo_name(net)} (chosen)"
        else:
            terms, name = asked.terms, ""
        done = []
        for term in terms:
            kernel = Kernel(term.network, device, dtype, threads, kind, symmetry=term.symmetry)  # type: ignore[arg-type]
            X = prepared(term, images.X)
            place = store if store is None or len(terms) == 1 else child(store, term.store_name)
            say("network", f"{name or term.name}, {term.network.shapes(X.shape[1:]).cost:,} operations per pair")
            if client is None:
                say("engine", f"{kernel.device} ({kernel.engine_for(X.shape[1:]).identity})")
            else:
                say("cluster", f"{scheduler}, {_workers(client)}")
            if plan:
                done.append(_plan(kernel, X, tile, place))
                continue
            left = begun(kernel, X, place, tile)
            if left is not None:
                say("continues", f"{left.tiles:,} of {left.of:,} tiles are there already")
            pairs = len(X) * (len(X) - 1) // 2 if left is None else left.pairs_left
            if client is None and pairs:
                tell_cost(kernel, X, pairs)
            done.append(_compute(kernel, X, place, tile, verify, client))
        last_line(as_json, done[0] if len(done) == 1 else {"command": "gram", "terms": done})


def _workers(client: Any) -> str:
    threads = client.nthreads().values()
    return f"{len(threads):,} workers, {sum(threads):,} threads"


def _compute(kernel: Any, X: Any, store: Any, tile: int | None, verify: bool, client: Any) -> dict[str, Any]:
    from cnngp.common.memory import size
    from cnngp.matrix.gram import gram as compute

    began = time.perf_counter()
    with warnings_as_lines():
        K = compute(kernel, X, store=store, tile=tile, verify=verify, client=client)
    seconds = time.perf_counter() - began
    say("store", str(store))
    say("matrix", f"{K.shape[0]:,} × {K.shape[1]:,} {K.dtype}, {size(K.nbytes)} in tiles of {K.chunks[0]}")
    say("time", f"{seconds:.1f} s")
    result = {"shape": list(K.shape), "dtype": str(K.dtype), "tile": K.chunks[0], "store": str(store)}
    return {"command": "gram", **result, "seconds": seconds}


def _plan(kernel: Any, X: Any, tile: int | None, store: Any) -> dict[str, Any]:
    from cnngp.common.memory import size
    from cnngp.common.progress import duration
    from cnngp.matrix.plan import plan

    p = plan(kernel, X, tile=tile, store=store)
    free = "" if p.disk_free_bytes is None else f" ({size(p.disk_free_bytes)} free)"
    say("pairs", f"{p.pairs:,}")
    say("tiles", f"{p.tiles:,} of {p.tile} × {p.tile}")
    say("disk", f"{size(p.disk_bytes)}{free}")
    if p.memory_bytes is not None:
        say("memory", f"{size(p.memory_bytes)} to compute; an exact fit needs {size(p.fit_bytes)}")
    say("speed", f"{p.pairs_per_second:,.0f} pairs/s, measured on a few pairs")
    say("time", f"about {duration(p.seconds)}")
    warn_if_long(p.seconds)
    return {"command": "gram --plan", **p.as_dict()}


def _status(where: str, verify: bool, as_json: bool) -> None:
    from cnngp.common.memory import size
    from cnngp.matrix.plan import status
    from cnngp.matrix.store.differences import told
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
    last_line(as_json, {"command": "gram --status", "store": where, **s.as_dict()})
