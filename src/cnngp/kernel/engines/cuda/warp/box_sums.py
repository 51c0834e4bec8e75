"""CUDA text of box sums over maps whose rows are registers and whose columns are lanes.

Down the rows a sum is a few additions that outputs share; across the columns it consists of shuffles, in two levels if
that takes fewer, with a 0/1 factor where a window leaves the map.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from cnngp.network.geometry import AxisSum

from ..kernel_frame import Writer
from .warp_layout import LANES, Stage


class SumWriter(Writer):
    """Writes sums over the arrays of a lane."""

    def row_sums(self, sums: AxisSum) -> str:
        partial, outputs = additions(sums)

        def symbol(k: int) -> str:
            return f"v[{k}]" if k < sums.size else f"s{k - sums.size}"

        lines = [f"__device__ __forceinline__ void NAME(real (&out)[{sums.out_size}], const real* v)", "{"]
        written: set[int] = set()

        def need(k: int) -> None:
            if k < sums.size or k in written:
                return
            written.add(k)
            a, b = partial[k - sums.size]
            need(a)
            need(b)
            lines.append(f"    const real {symbol(k)} = {symbol(a)} + {symbol(b)};")

        for m, terms in enumerate(outputs):
            for k in terms:
                need(k)
            lines.append(f"    out[{m}] = {' + '.join(map(symbol, terms)) or self.number(0.0)};")
        return self.define(("rows", sums), "row_sums", "\n".join([*lines, "}"]))

    def column_sums(self, sums: AxisSum, stage: Stage, x: str) -> list[str]:
        """Statements that store the sum along the map's width in `x`; also puts the declarations that they need."""
        window = sums.offsets(1)
        gap = stage.lanes - max(sums.size, sums.out_size)
        zero, one = self.number(0.0), self.number(1.0)
        if is_total(sums):
            return [f"real x = col < {sums.size} ? {x} : {zero};", *_halving("x", sums.size)]
        if window is None:
            return self.gathered(sums, stage.pack, x)
        inside = all(0 <= m + d < sums.size for m in range(sums.out_size) for d in window)
        inner, blocks, singles = plan = two_level(window)
        fewer = 2 * shuffles(plan) + 1 < 2 * shuffles([window])
        if blocks and (inside or gap >= max(-min(window), max(window))) and fewer:
            lines = [f"const real v = {x};" if inside else f"const real v = col < {sums.size} ? {x} : {zero};"]
            terms = [_rotated("v", d) for d in inner]
            lines.append(f"const real w = {' + '.join(terms)};")
            terms = [_rotated("w", d) for d in blocks] + [_rotated("v", d) for d in singles]
            return [*lines, f"const real x = {' + '.join(terms)};"]
        own = x if sums.out_size <= sums.size else f"(col < {sums.size} ? {x} : {zero})"
        lines = [f"real x = {own if 0 in window else zero};"]
        for d in window:
            if d == 0:
                continue
            shuffle = shifted(x, d)
            if inside:
                lines.append(f"x += {shuffle};")
                continue
            mask = mask_of(d)
            self.put(
                f"const real {mask} = col < {sums.out_size} && (unsigned)(col + {d}) < {sums.size}u ? {one} : {zero};"
            )
            lines.append(f"x = fma({mask}, {shuffle}, x);")
        return lines

    def folded_column_sums(self, sums: AxisSum, stage: Stage, rows: str, folded: bool) -> list[str]:
        """Sums along the width for a lane that holds columns 2l and 2l + 1 of row r in `rows`[2r] and [2r + 1].

        The result is in x0 and x1 if it is `folded` too, else in x0. A term of an output is one of a lane's two columns
        or, if the window has both, their sum, from the same lane or from one some lanes away.
        """
        zero, one, lanes = self.number(0.0), self.number(1.0), sums.size // 2
        even, odd = f"{rows}[2 * r]", f"{rows}[2 * r + 1]"
        if is_total(sums):
            return [f"real x0 = col < {lanes} ? {even} + {odd} : {zero};", *_halving("x0", lanes)]
        taps = folded_taps(sums, folded)
        assert taps
        terms = [[("both" if len(w) == 2 else "odd" if 1 in w else "even", at) for at, w in o.items()] for o in taps]
        for at in sorted({at for output in terms for _, at in output if at != 0}):
            self.put(f"const real {mask_of(at)} = (unsigned)(col + {at}) < {lanes}u ? {one} : {zero};")
        lines = [f"const real even = {even}, odd = {odd}, both = even + odd;"]
        common = [t for t in terms[0] if t in terms[-1]] if folded else []
        if common:
            lines.append(f"const real y = {_weighted(common, '')};")
        for slot, output in enumerate(terms):
            rest = [t for t in output if t not in common]
            lines.append(f"const real x{slot} = {_weighted(rest, 'y' if common else '')};")
        return lines

    def gathered(self, sums: AxisSum, pack: int, x: str, walls: bool = False) -> list[str]:
        """Statements for any sum: each term is fetched from the lane given by a table, −1 for no term.

        With `walls` the table gives columns, and a term counts if it is on its sum's side of the wall.
        """
        n, out, zero, one = sums.size, sums.out_size, self.number(0.0), self.number(1.0)
        lanes, taps = LANES // pack, max(map(len, sums.sources))
        # For each lane the terms of its output, padded with −1.
        terms = [(*row, *[-1] * (taps - len(row))) for row in (*sums.sources, *[()] * (lanes - out))]
        columns = [[terms[lane % lanes][t] for lane in range(LANES)] for t in range(taps)]
        table = [[nu if nu < 0 else lane // lanes * lanes + nu for lane, nu in enumerate(row)] for row in columns]
        text = ",\n    ".join("{" + ", ".join(map(str, row)) + "}" for row in table)
        text = f"__device__ const signed char NAME[{max(taps, 1)}][{LANES}] = {{\n    {text or '{0}'}}};"
        name = self.define(("gather", sums, pack), "from_column" if walls else "from_lane", text)
        lines = [f"real x = {zero};"]
        for t in range(taps):
            self.put(f"const int g{t} = {name}[{t}][{'col' if walls else 'lane'}];")
            whole, there = all(len(row) > t for row in sums.sources), f"g{t} < 0 ? {zero} : {one}"
            if walls:
                whole, there = False, f"g{t} >= 0 && (col < {out} - sx_{out}) == (g{t} < {n} - sx_{n}) ? {one} : {zero}"
            if not whole:
                self.put(f"const real w{t} = {there};")
            term = f"__shfl_sync(ALL, {x}, {f'(lane - col + g{t})' if walls else f'g{t}'} & {LANES - 1})"
            lines.append(f"x += {term};" if whole else f"x = fma(w{t}, {term}, x);")
        return lines


def additions(sums: AxisSum) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Reduce sums of rows to few additions: symbol `size` + k is the sum of the k-th pair of symbols, and each output
    is the sum of the symbols listed for it; symbols below `size` are the rows.

    Neighbouring terms are shared greedily: a window of 3 takes 1.4 additions per output, one of 7 takes 2.0.
    """
    outputs = [list(row) for row in sums.sources]
    partial: list[tuple[int, int]] = []
    while True:
        seen: Counter[tuple[int, int]] = Counter()
        for row in outputs:
            seen.update(set(pairwise(row)))
        pair, count = max(seen.items(), key=lambda item: (item[1], [-x for x in item[0]]), default=((0, 0), 0))
        if count < 2:
            return partial, outputs
        symbol = sums.size + len(partial)
        partial.append(pair)
        for row in outputs:
            i = 0
            while i < len(row) - 1:
                if (row[i], row[i + 1]) == pair:
                    row[i : i + 2] = [symbol]
                i += 1


TwoLevel = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def two_level(offsets: Sequence[int]) -> TwoLevel:
    """Split a window into two levels: offsets within blocks, positions of the blocks, and single offsets.

    The window −3 … 3 is {−1, 0, 1} at −2 and 2 and the middle: 4 shuffles instead of 6.
    """
    best: TwoLevel = (0,), (), tuple(offsets)
    steps = {b - a for a, b in pairwise(offsets)}
    if len(steps) != 1:
        return best
    d = steps.pop()
    n = len(offsets)
    for size in range(2, n // 2 + 1):
        for before in range(size):
            inner = tuple(d * (k - before) for k in range(size))
            # cover[k]: the cheapest way to cover the first k offsets with blocks and singles
            cover: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [(0, (), ())]
            for k in range(1, n + 1):
                cost, blocks, singles = cover[k - 1]
                at = offsets[k - 1]
                options = [(cost + (at != 0), blocks, (*singles, at))]
                if k >= size:
                    cost, blocks, singles = cover[k - size]
                    at = offsets[k - size] + before * d
                    options.append((cost + (at != 0), (*blocks, at), singles))
                cover.append(min(options, key=lambda o: (o[0], len(o[1]) + len(o[2]))))
            candidate = (inner, *cover[n][1:])
            if shuffles(candidate) < shuffles(best):
                best = candidate
    return best


def shuffles(levels: Sequence[Sequence[int]]) -> int:
    return sum(d != 0 for level in levels for d in level)


def is_total(sums: AxisSum) -> bool:
    """True for a single output that sums everything."""
    return sums.out_size == 1 and sums.sources[0] == tuple(range(sums.size))


def folded_taps(sums: AxisSum, folded: bool) -> list[dict[int, set[int]]] | None:
    """For each output of a lane, the lanes it reads, as distances, and the columns of these (0 or 1) that it reads.

    None if the sum is not of this kind: the same window everywhere, with zeros outside, of stride 1 if the result is
    folded too and of stride 2 if it is not, and no output beyond the last lane that holds inputs.
    """
    stride = 1 if folded else 2
    if sums.size % 2 or (folded and sums.out_size % 2) or stride * sums.out_size > sums.size:
        return None
    offsets = sums.offsets(stride)
    if offsets is None or not all(sums.sources):
        return None
    found: list[dict[int, set[int]]] = [{} for _ in range(1 + folded)]
    for slot, seen in enumerate(found):
        for d in offsets:
            at, which = divmod(slot + d, 2)
            seen.setdefault(at, set()).add(which)
    return found


def folded_rows(sums: AxisSum) -> AxisSum:
    """Sums down the rows of a folded map, whose two interleaved columns are summed separately."""
    sources = (tuple(2 * nu + slot for nu in row) for row in sums.sources for slot in (0, 1))
    return AxisSum(2 * sums.size, tuple(sources))


def _halving(x: str, lanes: int) -> list[str]:
    """Statements that add `x` over the first lanes of a pair; every lane gets the sum."""
    return [f"{x} += __shfl_xor_sync(ALL, {x}, {1 << k});" for k in range((lanes - 1).bit_length())]


def mask_of(at: int) -> str:
    """Name of the factor of terms from `at` columns away."""
    return f"at_{'m' if at < 0 else 'p'}{abs(at)}"


def _weighted(terms: list[tuple[str, int]], start: str) -> str:
    """Write start + Σ of terms, each from the lane at distance `at` and times its mask."""
    text = start
    for name, at in sorted(terms, key=lambda t: (t[1] != 0, t[1])):
        if at == 0:
            text = f"{text} + {name}" if text else name
        else:
            value, mask = shifted(name, at), mask_of(at)
            text = f"fma({mask}, {value}, {text})" if text else f"{mask} * {value}"
    return text


def shifted(x: str, d: int) -> str:
    """Write the value of x in the lane at distance d."""
    return x if d == 0 else f"__shfl_{'up' if d < 0 else 'down'}_sync(ALL, {x}, {abs(d)})"


def _rotated(x: str, d: int) -> str:
    return x if d == 0 else f"__shfl_sync(ALL, {x}, lane {'+' if d > 0 else '-'} {abs(d)})"
