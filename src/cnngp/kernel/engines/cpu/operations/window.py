"""Convolutions with stride 1: ReLU and box sum in one loop, two rows at a time.

The arithmetic of the ReLU and the loads and additions of the sums use different parts of a core, so they overlap. With
B_j = V_2j + V_2j+1, seven rows that end at 2j are V_2j + B_j−1 + B_j−2 + B_j−3, and seven that end at 2j + 1 are
B_j + B_j−1 + B_j−2 + V_2j−5: two loads for each output, and only the B and the odd rows are kept, so they stay in L1.
Along a row the sums never leave the registers (`slide`). A window's size is a compile-time constant, and each size is
compiled when a network first uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types
from numba.extending import intrinsic

from .. import columns as col
from ..compiling import inlined
from ..rows.forms import relu_value
from ..simd import Vec, constant, constant_of, lanes, load, store
from ..work import call_row, factors, image_at, write
from .box import next_operation, relu_entries, relu_row, relu_rows


@inlined
def ready_row(w: Any, r: int, src: int, fresh: int, own_at: int, entry: int) -> int:
    """Offset of row r of f(map): computed into `fresh`, or the map's own row if there is no f."""
    n = w.op[col.C0]
    row = src + r * n * lanes(w.m)
    if w.op[col.ACT] == col.NO_ACT:
        return row  # type: ignore[no-any-return]
    at = entry + r * w.op[col.TABLE_ROW]
    if w.op[col.ACT] == col.RELU:
        relu_row(w, row, fresh, own_at + at, at)
    else:
        call_row(w.op[col.ROW_CALL], w, row, fresh, n, own_at + at, at)
    return fresh


class Kept(NamedTuple):
    """Offsets of kept rows: B_j and V_2j+1 of this turn, which replace the oldest, and the last three B."""

    sum_at: int
    single_at: int
    back1: int
    back2: int
    back3: int


def sums_of_rows(height: int) -> tuple[Any, Any]:
    """For windows of a height, return functions for the offsets of kept rows in turn j and for the sums of rows."""
    sums, singles = col.kept_rows(height)
    middle = (height - 2) // 2  # number of B that both output rows share
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
        """Return the sums of rows that end at the first and at the second row, and keep these two rows."""
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
    """Initial state of `slide` for windows of k ≥ 2 columns, a constant, after only zeros."""
    vec = Vec(p.dtype)
    state = types.UniTuple(vec, k.literal_value - 1)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_tuple(builder, state, [constant_of(vec, 0.0)] * state.count)

    return state(p, k), codegen


@intrinsic
def slide(typing_context: Any, state: Any, S: Any) -> Any:
    """Add a column and return (sum of the last k columns, new state).

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


def window(height: int, width: int) -> Callable[..., None]:
    """Operation for windows of height × width, both at least 2."""
    sums, singles = col.kept_rows(height)
    kept_in, column = sums_of_rows(height)

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        zero = constant(m, 0.0)
        keep, scale, bias = factors(w)
        rows, n, how, act = op[col.B0], op[col.C0], op[col.WRITE], op[col.ACT]
        row_size, out_size = n * L, op[col.C1] * L
        size, pitch = op[col.TABLE_SIZE], op[col.TABLE_ROW]
        after = height - 1 - op[col.ROW_BEFORE]
        first_output = op[col.FIRST_ROW] - after
        sum_rows = frame[col.SCRATCH]
        single_rows = sum_rows + sums * row_size
        fresh = single_rows + singles * row_size
        unused = fresh + 2 * row_size
        # One more than the columns before the first output, because sums lag one column behind.
        ready = op[col.COL_K] + op[col.COL_START]
        for image in range(frame[col.IMAGES]):
            maps, own_at = image_at(w, image)
            own_at -= op[col.TABLE]
            for plane in range(op[col.A1]):
                src = maps + op[col.SRC] * L + plane * rows * row_size
                dst = maps + op[col.DST] * L + plane * op[col.B1] * out_size
                entry = op[col.TABLE] + plane * op[col.TABLE_PLANE]
                for x in range(0, (sums + singles) * row_size, L):
                    store(m, sum_rows + x, zero)
                for j in range((op[col.B1] - first_output + 1) // 2):
                    output = first_output + 2 * j
                    r = output + after
                    together = act == col.RELU and r >= 0 and r + 1 < rows
                    first = second = col.POWERS * L  # the row of zeros
                    if not together:
                        if 0 <= r < rows:
                            first = ready_row(w, r, src, fresh, own_at, entry)
                        if 0 <= r + 1 < rows:
                            second = ready_row(w, r + 1, src, fresh + row_size, own_at, entry)
                    to_a = dst + output * out_size if output >= 0 else unused
                    to_b = dst + (output + 1) * out_size if output + 1 < op[col.B1] else unused
                    columns, begin = op[col.C1] + ready, ready
                    if output + 1 < 0:
                        columns, begin = n + 1, n + 1
                    kept = kept_in(j, sum_rows, single_rows, row_size)
                    map_a, map_b = src + r * row_size, src + (r + 1) * row_size
                    at = entry + r * pitch
                    own_a = own_at + at
                    state_a = empty_window(m, width)
                    state_b = empty_window(m, width)
                    Va = Vb = zero
                    for x in range(columns):
                        Sa = Sb = zero
                        if 0 < x <= n:
                            Sa, Sb = column(m, Va, Vb, kept, (x - 1) * L)
                        wa, state_a = slide(state_a, Sa)
                        wb, state_b = slide(state_b, Sb)
                        if x >= begin:
                            write(m, to_a + (x - ready) * L, wa, how, keep, scale, bias)
                            write(m, to_b + (x - ready) * L, wb, how, keep, scale, bias)
                        if x < n:
                            o = x * L
                            if together:
                                p, q = relu_entries(w, own_a + x, at + x, size)
                                Va = relu_value(load(m, map_a + o), p, q)
                                p, q = relu_entries(w, own_a + pitch + x, at + pitch + x, size)
                                Vb = relu_value(load(m, map_b + o), p, q)
                            else:
                                Va, Vb = load(m, first + o), load(m, second + o)

    return run


def windows(height: int, width: int) -> Callable[..., None]:
    """Operation for the windows of a ReLU's value V and slope W, of height × width, both at least 2.

    Two rows are activated first and then summed, V and W one after the other: the windows of both at once would not fit
    into a core's registers.
    """
    sums, singles = col.kept_rows(height)
    kept_in, column = sums_of_rows(height)

    @inlined
    def sum_windows(w: Any, a: int, b: int, kept: Any, to_a: int, to_b: int, columns: int, begin: int) -> None:
        """Add two activated rows to the kept ones, and write the two output rows that they complete."""
        m, op, L = w.m, w.op, lanes(w.m)
        keep, scale, bias = factors(w)
        how, n, ready = op[col.WRITE], op[col.C0], op[col.COL_K] + op[col.COL_START] - 1
        zero = constant(m, 0.0)
        state_a, state_b = empty_window(m, width), empty_window(m, width)
        for x in range(columns):
            Sa = Sb = zero
            if x < n:
                o = x * L
                Sa, Sb = column(m, load(m, a + o), load(m, b + o), kept, o)
            va, state_a = slide(state_a, Sa)
            vb, state_b = slide(state_b, Sb)
            if x >= begin:
                o = (x - ready) * L
                write(m, to_a + o, va, how, keep, scale, bias)
                write(m, to_b + o, vb, how, keep, scale, bias)

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        of_value = next_operation(w)
        rows, n, far = op[col.B0], op[col.C0], op[col.TIMES] * L
        row_size, out_size, pitch = n * L, op[col.C1] * L, op[col.TABLE_ROW]
        after = height - 1 - op[col.ROW_BEFORE]
        first_output = op[col.FIRST_ROW] - after
        sum_rows = frame[col.SCRATCH]
        single_rows = sum_rows + sums * row_size
        apart = (sums + singles) * row_size  # distance from the rows of V to those of W
        fresh = sum_rows + 2 * apart
        unused = fresh + 4 * row_size
        nothing = col.POWERS * L  # the row of zeros
        ready = op[col.COL_K] + op[col.COL_START] - 1
        for image in range(frame[col.IMAGES]):
            maps, own_at = image_at(w, image)
            own_at -= op[col.TABLE]
            for plane in range(op[col.A1]):
                src = maps + op[col.SRC] * L + plane * rows * row_size
                dst = maps + op[col.DST] * L + plane * op[col.B1] * out_size
                dst_V = maps + of_value.op[col.DST] * L + plane * op[col.B1] * out_size
                entry = op[col.TABLE] + plane * op[col.TABLE_PLANE]
                for x in range(0, 2 * apart, L):
                    store(m, sum_rows + x, constant(m, 0.0))
                for j in range((op[col.B1] - first_output + 1) // 2):
                    output = first_output + 2 * j
                    r = output + after
                    Va = Vb = Wa = Wb = nothing
                    if 0 <= r < rows:
                        Va, Wa = fresh, fresh + row_size
                        at = entry + r * pitch
                        relu_rows(w, src + r * row_size, far, Va, Wa, own_at + at, at)
                    if 0 <= r + 1 < rows:
                        Vb, Wb = fresh + 2 * row_size, fresh + 3 * row_size
                        at = entry + (r + 1) * pitch
                        relu_rows(w, src + (r + 1) * row_size, far, Vb, Wb, own_at + at, at)
                    to_a, to_V = dst + output * out_size, dst_V + output * out_size
                    to_b, to_Vb = (to_a + out_size, to_V + out_size) if output + 1 < op[col.B1] else (unused, unused)
                    if output < 0:
                        to_a = to_V = unused
                    columns, begin = op[col.C1] + ready, ready
                    if output + 1 < 0:
                        columns, begin = n, n
                    kept_V = kept_in(j, sum_rows, single_rows, row_size)
                    kept_W = kept_in(j, sum_rows + apart, single_rows + apart, row_size)
                    sum_windows(of_value, Va, Vb, kept_V, to_V, to_Vb, columns, begin)
                    sum_windows(w, Wa, Wb, kept_W, to_a, to_b, columns, begin)

    return run
