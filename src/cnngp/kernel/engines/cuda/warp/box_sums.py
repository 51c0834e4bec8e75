"""Box sums over maps whose rows are registers and whose columns are lanes, as CUDA text.

Down the rows a sum is a few shared additions; across the columns it is shuffles, with a 0/1 factor where a window
leaves the map. The two share the small tools for writing text that the warp kernel uses too.
"""

from __future__ import annotations

from cnngp.network.geometry import AxisSum

from ..formula_text import literal
from .additions import additions, two_level
from .warp_layout import LANES, Stage


class Writer:
    """Lines of a kernel's body, and the helpers that they call."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.functions: dict[object, str] = {}
        self.definitions: list[str] = []
        self.lines: list[str] = []
        self.depth = 1

    def put(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line if not line.startswith("#") else line for line in lines]

    def define(self, key: object, prefix: str, text: str) -> str:
        """The name of a helper, written once however often it is used; `NAME` in the text stands for it."""
        if key not in self.functions:
            name = f"{prefix}_{sum(n.startswith(prefix + '_') for n in self.functions.values())}"
            self.functions[key] = name
            self.definitions.append(text.replace("NAME", name))
        return self.functions[key]

    def number(self, value: float) -> str:
        return literal(value, self.dtype)

    def per_row(self, rows: int, statement: str) -> None:
        self.put("#pragma unroll", f"for (int r = 0; r < {rows}; r++) {statement}")

    def row_sums(self, sums: AxisSum) -> str:
        plan = additions(sums)

        def symbol(k: int) -> str:
            return f"v[{k}]" if k < plan.first else f"s{k - plan.first}"

        lines = [f"__device__ __forceinline__ void NAME(real (&out)[{sums.out_size}], const real* v)", "{"]
        written: set[int] = set()

        def need(k: int) -> None:
            if k < plan.first or k in written:
                return
            written.add(k)
            a, b = plan.partial[k - plan.first]
            need(a)
            need(b)
            lines.append(f"    const real {symbol(k)} = {symbol(a)} + {symbol(b)};")

        for m, terms in enumerate(plan.outputs):
            for k in terms:
                need(k)
            lines.append(f"    out[{m}] = {' + '.join(map(symbol, terms)) or self.number(0.0)};")
        return self.define(("rows", sums), "row_sums", "\n".join([*lines, "}"]))

    def column_sums(self, sums: AxisSum, stage: Stage, x: str) -> list[str]:
        """Statements that leave in `x` the sum along the map's width; what they need once is written ahead of them."""
        window = sums.offsets(1)
        gap = stage.lanes - max(sums.size, sums.out_size)
        zero, one = self.number(0.0), self.number(1.0)
        if is_total(sums):
            return [f"real x = col < {sums.size} ? {x} : {zero};", *_halving("x", sums.size)]
        if window is None:
            return self._gathered(sums, stage, x)
        inside = all(0 <= m + d < sums.size for m in range(sums.out_size) for d in window)
        plan = two_level(window)
        direct = sum(d != 0 for d in window)
        if plan.blocks and (inside or gap >= max(-min(window), max(window))) and 2 * plan.shuffles + 1 < 2 * direct:
            lines = [f"const real v = {x};" if inside else f"const real v = col < {sums.size} ? {x} : {zero};"]
            terms = [_rotated("v", d) for d in plan.inner]
            lines.append(f"const real w = {' + '.join(terms)};")
            terms = [_rotated("w", d) for d in plan.blocks] + [_rotated("v", d) for d in plan.singles]
            return [*lines, f"const real x = {' + '.join(terms)};"]
        own = x if sums.out_size <= sums.size else f"(col < {sums.size} ? {x} : {zero})"
        lines = [f"real x = {own if 0 in window else zero};"]
        for d in window:
            if d == 0:
                continue
            shuffle = f"__shfl_{'up' if d < 0 else 'down'}_sync(ALL, {x}, {abs(d)})"
            if inside:
                lines.append(f"x += {shuffle};")
                continue
            mask = _mask(d)
            self.put(
                f"const real {mask} = col < {sums.out_size} && (unsigned)(col + {d}) < {sums.size}u ? {one} : {zero};"
            )
            lines.append(f"x = fma({mask}, {shuffle}, x);")
        return lines

    def folded_column_sums(self, sums: AxisSum, stage: Stage, rows: str, folded: bool) -> list[str]:
        """Sums along the width where a lane holds columns 2l and 2l + 1 of row r in `rows`[2r] and [2r + 1].

        The result is left in x0 and x1 if it is `folded` too, else in x0. A term of an output is one of a lane's two
        columns, or where the window has both their sum, at the same lane or some lanes away.
        """
        zero, one, lanes = self.number(0.0), self.number(1.0), sums.size // 2
        even, odd = f"{rows}[2 * r]", f"{rows}[2 * r + 1]"
        if is_total(sums):
            return [f"real x0 = col < {lanes} ? {even} + {odd} : {zero};", *_halving("x0", lanes)]
        taps = folded_taps(sums, folded)
        assert taps
        terms = [[("both" if len(w) == 2 else "odd" if 1 in w else "even", at) for at, w in o.items()] for o in taps]
        for at in sorted({at for output in terms for _, at in output if at != 0}):
            self.put(f"const real {_mask(at)} = (unsigned)(col + {at}) < {lanes}u ? {one} : {zero};")
        lines = [f"const real even = {even}, odd = {odd}, both = even + odd;"]
        common = [t for t in terms[0] if t in terms[-1]] if folded else []
        if common:
            lines.append(f"const real y = {_weighted(common, '')};")
        for slot, output in enumerate(terms):
            rest = [t for t in output if t not in common]
            lines.append(f"const real x{slot} = {_weighted(rest, 'y' if common else '')};")
        return lines

    def _gathered(self, sums: AxisSum, stage: Stage, x: str) -> list[str]:
        """Any sum: each term is fetched from the lane that a table names; −1 for a term that is not there."""
        taps = max(map(len, sums.sources))
        table = []
        for t in range(taps):
            row = []
            for lane in range(LANES):
                pair, col = divmod(lane, stage.lanes)
                there = col < sums.out_size and t < len(sums.sources[col])
                row.append(pair * stage.lanes + sums.sources[col][t] if there else -1)
            table.append(row)
        text = ",\n    ".join("{" + ", ".join(map(str, row)) + "}" for row in table)
        text = f"__device__ const signed char NAME[{max(taps, 1)}][{LANES}] = {{\n    {text or '{0}'}}};"
        name = self.define(("gather", sums, stage.pack), "from_lane", text)
        lines = [f"real x = {self.number(0.0)};"]
        for t in range(taps):
            self.put(f"const int g{t} = {name}[{t}][lane];")
            whole = all(len(row) > t for row in sums.sources)
            if not whole:
                self.put(f"const real w{t} = g{t} < 0 ? {self.number(0.0)} : {self.number(1.0)};")
            term = f"__shfl_sync(ALL, {x}, g{t} & {LANES - 1})"
            lines.append(f"x += {term};" if whole else f"x = fma(w{t}, {term}, x);")
        return lines


def is_total(sums: AxisSum) -> bool:
    """One output that sums everything."""
    return sums.out_size == 1 and sums.sources[0] == tuple(range(sums.size))


def folded_taps(sums: AxisSum, folded: bool) -> list[dict[int, set[int]]] | None:
    """For each output of a lane, the lanes it reads, as distances, and which of their two columns.

    None where the sum is not of this kind: the same window everywhere, with zeros outside, of stride 1 if the result is
    folded too and of stride 2 if it is not, and no output beyond the last lane that holds inputs.
    """
    stride = 1 if folded else 2
    if sums.size % 2 or (folded and sums.out_size % 2) or stride * sums.out_size > sums.size:
        return None
    offsets = sums.offsets(stride)
    if offsets is None or not all(sums.sources):
        return None
    found: list[dict[int, set[int]]] = []
    for slot in (0, 1) if folded else (0,):
        seen: dict[int, set[int]] = {}
        for d in offsets:
            at, which = divmod(slot + d, 2)
            seen.setdefault(at, set()).add(which)
        found.append(seen)
    return found


def folded_rows(sums: AxisSum) -> AxisSum:
    """Sums down the rows of a folded map: its two columns are interleaved, and summed each for itself."""
    sources = (tuple(2 * nu + slot for nu in row) for row in sums.sources for slot in (0, 1))
    return AxisSum(2 * sums.size, tuple(sources))


def _halving(x: str, lanes: int) -> list[str]:
    """Adds up `x` over the first lanes of a pair; every lane gets the sum."""
    steps = []
    half = 1
    while half < lanes:
        steps.append(f"{x} += __shfl_xor_sync(ALL, {x}, {half});")
        half *= 2
    return steps


def _mask(at: int) -> str:
    return f"at_{'m' if at < 0 else 'p'}{abs(at)}"


def _weighted(terms: list[tuple[str, int]], start: str) -> str:
    """start + Σ of terms, each from the lane `at` places away, times its mask."""
    text = start
    for name, at in sorted(terms, key=lambda t: (t[1] != 0, t[1])):
        value = name if at == 0 else f"__shfl_{'up' if at < 0 else 'down'}_sync(ALL, {name}, {abs(at)})"
        if at == 0:
            text = f"{text} + {value}" if text else value
        else:
            text = f"fma({_mask(at)}, {value}, {text})" if text else f"{_mask(at)} * {value}"
    return text


def _rotated(x: str, d: int) -> str:
    return x if d == 0 else f"__shfl_sync(ALL, {x}, lane {'+' if d > 0 else '-'} {abs(d)})"
