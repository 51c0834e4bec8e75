"""Windows of neighbours, of which window.py sums one map and both.py two: sums along columns and along rows.

The arithmetic of the ReLU and the loads and additions of the sums use different parts of a core, so they overlap. With
B_j = V_2j + V_2j+1, seven rows that end at 2j are V_2j + B_j−1 + B_j−2 + B_j−3, and seven that end at 2j + 1 are
B_j + B_j−1 + B_j−2 + V_2j−5: two loads for each output, and only the B and the odd rows are kept, so they stay in L1.
Along a row the sums never leave the registers (`slide`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.extending import intrinsic

from ..compiling import inlined
from ..plan import ACT, C0, NO_ACT, RELU, ROW_CALL, TABLE_ROW, TABLE_SIZE, kept_rows
from ..rows.elementary import relu_value
from ..simd import Vec, constant_of, lanes, load, store
from ..work import call_row, entry_product


@inlined
def relu_entries(w: Any, own_at: int, at: int, size: int) -> Any:
    """p = ss' and q = 1/p at a location."""
    return entry_product(w, own_at, at, False), entry_product(w, own_at + size, at + size, False)


@inlined
def relu_row(w: Any, src: int, dst: int, own_at: int, at: int) -> None:
    """The ReLU of a row of a map, without a call, which on sheets is often longer than the row."""
    m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
    for c in range(w.op[C0]):
        p, q = relu_entries(w, own_at + c, at + c, size)
        store(m, dst + c * L, relu_value(load(m, src + c * L), p, q))


@inlined
def ready_row(w: Any, r: int, src: int, fresh: int, own_at: int, entry: int) -> int:
    """Where row r of f(map) is: made in `fresh`, or the map's own where there is no f."""
    n = w.op[C0]
    row = src + r * n * lanes(w.m)
    if w.op[ACT] == NO_ACT:
        return row  # type: ignore[no-any-return]
    at = entry + r * w.op[TABLE_ROW]
    if w.op[ACT] == RELU:
        relu_row(w, row, fresh, own_at + at, at)
    else:
        call_row(w.op[ROW_CALL], w, row, fresh, n, own_at + at, at)
    return fresh


class Kept(NamedTuple):
    """Where rows are kept: B_j and V_2j+1 of this turn, in place of the oldest, and the last three B."""

    sum_at: int
    single_at: int
    back1: int
    back2: int
    back3: int


def sums_of_rows(height: int) -> tuple[Any, Any]:
    """For windows of a height: (where rows are kept in turn j, the sums of a column's rows)."""
    sums, singles = kept_rows(height)
    middle = (height - 2) // 2  # how many B are common to both rows of output
    odd = height % 2 == 1

    @inlined
    def kept_in(j: int, sum_rows: int, single_rows: int, row_size: int) -> Any:
        return Kept(
            sum_rows + (j % sums) * row_size,
            single_rows + (j % singles) * row_size,
            sum_rows + ((j - 1) % sums) * row_size,
            sum_rows + ((j - 2) % sums) * row_size,
            sum_rows + ((j - 3) % sums) * row_size,
        )

    @inlined
    def column(m: Any, Va: Any, Vb: Any, kept: Any, o: int) -> Any:
        """The sums of rows that end at the first and at the second row, which are kept."""
        B = Va + Vb
        Sb = B
        if odd:
            Sa = load(m, kept.sum_at + o)
            Sb = Sb + load(m, kept.single_at + o)
        else:
            Sa = load(m, kept.single_at + o)
        if middle > 0:
            common = load(m, kept.back1 + o)
            if middle > 1:
                common = common + load(m, kept.back2 + o)
            if middle > 2:
                common = common + load(m, kept.back3 + o)
            Sa, Sb = common + Sa, common + Sb
        Sa = Sa + Va
        store(m, kept.sum_at + o, B)
        store(m, kept.single_at + o, Vb)
        return Sa, Sb

    return kept_in, column


@intrinsic(prefer_literal=True)
def empty_window(typing_context: Any, p: Any, k: Any) -> Any:
    """The state of `slide` for windows of k ≥ 2 columns, a constant, with nothing but zeros so far."""
    vec = Vec(p.dtype)
    state = types.UniTuple(vec, k.literal_value - 1)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_tuple(builder, state, [constant_of(vec, 0.0)] * state.count)

    return state(p, k), codegen


@intrinsic
def slide(typing_context: Any, state: Any, S: Any) -> Any:
    """Add a column; (sum of the last k columns, state).

    The state is the last column and the last k − 2 sums P of two neighbours: seven columns are S + P + P + P and four
    are P + P, each P two columns before the other.
    """
    k = state.count + 1

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        last, *pairs = (builder.extract_value(args[0], i) for i in range(k - 1))
        pair = builder.fadd(args[1], last)
        total, terms = (args[1], pairs[0::2]) if k % 2 else (pair, pairs[1::2])
        for term in terms:
            total = builder.fadd(total, term)
        new = context.make_tuple(builder, state, [args[1], *[pair, *pairs][: k - 2]])
        return context.make_tuple(builder, signature.return_type, [total, new])

    return types.Tuple((S, state))(state, S), codegen
