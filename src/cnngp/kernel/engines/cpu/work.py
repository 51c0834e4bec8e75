"""Arguments and calls of compiled functions, and their access to tables and maps.

An operation works on a whole map and takes a `Work`. A row function applies a nonlinearity to one row of a map; it
takes the same and the position of the row. LLVM splits a tuple into its fields, so passing one costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import columns as col
from .compiling import inlined
from .machine_code import Kind
from .simd import constant, fma, lanes, load, splat, store


class Work(NamedTuple):
    """Pointers to everything that an operation reads and writes.

    A lane is a pair of images, or an image in the variance recursion. `own` is the table of the row image, one number
    per entry, or in the variance recursion the peaks of the lanes; `table` is that of the column images, one vector per
    entry. `op` and `numbers` are the operation's row of the plan, `taps` and `panels` are shared by all rows; `frame`
    locates the images being processed.
    """

    m: Any
    own: Any
    table: Any
    op: Any
    numbers: Any
    taps: Any
    panels: Any
    frame: Any


def signature(kind: Kind, function: Callable[..., None], dtype: str) -> tuple[Any, ...]:
    """Argument types of a function: an operation takes (work), a row function (work, src, dst, n, own_at, at).

    src and dst are the offsets in the maps where the row's n vectors are read and written, own_at and at the offsets of
    its first location's entries in the tables. The annotations of an entry declare the meaning of its integers.
    """
    real, whole = types.CPointer(getattr(types, dtype)), types.CPointer(types.int64)
    double, i = types.CPointer(types.float64), types.intp
    if kind == "entry":
        known = {"Reals": real, "Ints": whole, "Doubles": double, "int": i}
        return tuple(known[name] for name in list(function.__annotations__.values())[:-1])
    work = types.NamedTuple((real, real, real, whole, double, whole, double, whole), Work)
    return (work, i, i, i, i, i) if kind == "row" else (work,)


def _call_address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    function_type = ir.FunctionType(ir.VoidType(), [a.type for a in args[1:]])
    builder.call(builder.inttoptr(args[0], function_type.as_pointer()), args[1:])
    return context.get_dummy_value()


@intrinsic
def call_op(typing_context: Any, address: Any, work: Any) -> Any:
    """Call the operation at an address."""
    return types.void(types.intp, work), _call_address


@intrinsic
def call_row(typing_context: Any, address: Any, work: Any, src: Any, dst: Any, n: Any, own_at: Any, at: Any) -> Any:
    """Call the row function at an address."""
    i = types.intp
    return types.void(i, work, i, i, i, i, i), _call_address


@inlined
def image_at(w: Any, image: int) -> Any:
    """Offsets of a row image's maps, and of the operation's entries in its table."""
    frame = w.frame
    own_at = frame[col.OWN_AT] + image * frame[col.OWN_STEP] + w.op[col.OWN_TABLE]
    return frame[col.BASE] + image * frame[col.MAP_STEP], own_at


@inlined
def factors(w: Any) -> Any:
    """Return keep, scale and bias as vectors."""
    m, numbers = w.m, w.numbers
    return constant(m, numbers[col.KEEP]), constant(m, numbers[col.SCALE]), constant(m, numbers[col.BIAS])


@inlined
def entry_of_row(op: Any, r: int) -> int:
    """Offset of the entries of a map's row r from its first location; rows are counted through all planes."""
    if op[col.A0] == 1:
        return r * op[col.TABLE_ROW]  # type: ignore[no-any-return]
    return (r // op[col.B0]) * op[col.TABLE_PLANE] + (r % op[col.B0]) * op[col.TABLE_ROW]  # type: ignore[no-any-return]


@inlined
def own_entry(w: Any, at: int, both: bool) -> Any:
    """Entry of the row image's table in all lanes; with `both`, of each column image's own table."""
    return load(w.table, at * lanes(w.table)) if both else splat(w.own, at)


@inlined
def entry(w: Any, at: int) -> Any:
    """Entry of the column images' tables."""
    return load(w.table, at * lanes(w.table))


@inlined
def entry_product(w: Any, own_at: int, at: int, both: bool) -> Any:
    """Product of the two images' entries."""
    return own_entry(w, own_at, both) * entry(w, at)


@inlined
def write(m: Any, at: int, r: Any, how: int, keep: Any, scale: Any, bias: Any) -> None:
    """dst ← keep · dst + scale · r + bias, in its cheapest form; with keep = 0 the old content is not read."""
    if how == col.STORE:
        store(m, at, r)
    elif how == col.AFFINE:
        store(m, at, fma(r, scale, bias))
    elif how == col.ADD:
        store(m, at, fma(r, scale, load(m, at)))
    else:
        store(m, at, fma(load(m, at), keep, fma(r, scale, bias)))
