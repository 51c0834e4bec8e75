"""The pair kernel for maps up to 32 wide: a warp owns its pairs, a lane a column, and the rows are registers.

Vertical sums are register additions and horizontal ones shuffles. Where maps have shrunk, several pairs lie side by
side in the warp (`Stage`); maps wait in shared memory until their neighbours are there too. The whole network is one
launch, and nothing but table rows is read and one number a pair written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..network import Elementwise
from ..program import Program
from .cuda_layout import Map, Step, TableLayout, folds, in_registers
from .cuda_math import Constants, pair_formula, takes_unit
from .cuda_plan import LANES, Loop, Run, Stage, segments, stages, width
from .cuda_sums import Writer, folded_rows, folded_taps, is_total

PREFETCH = True  # a step of a run loads the next step's first table entries before its sums
BAND = 16  # blocks run in bands this many wide, so that the table rows in use at one time stay in the L2 cache


@dataclass(frozen=True)
class WarpKernel:
    """The text and how to launch it: a block has `rows` × `columns` warps, a warp `pairs` pairs along the columns."""

    text: str
    rows: int
    columns: int
    pairs: int
    shared: int

    @property
    def threads(self) -> int:
        return LANES * self.rows * self.columns


def words(program: Program, dtype: str) -> int:
    """32-bit registers that the live maps take at the worst moment, roughly."""
    start, steps = in_registers(program)
    before = [frozenset({start}), *(s.live for s in steps[:-1])]
    most = 0
    for live, step in zip(before, steps, strict=True):
        rows = sum(m.shape[1] for m in live | {step.src})
        stays = step.src.name != step.dst.name and step.src in step.live
        most = max(most, rows + (step.op.out_shape[1] if stays else 0))
    return most * (1 if dtype == "float" else 2)


def fits(program: Program, dtype: str) -> bool:
    """Whether maps are flat, narrow enough for a warp and few enough for its registers, and formulas short."""
    if any(isinstance(a.layer, Elementwise) for a in program.activations):
        return False  # dozens of table entries a location: nothing is gained by keeping the map itself in registers
    shapes = [program.shape, *(op.out_shape for op in program.ops)]
    return all(d == 1 and w <= LANES for d, _, w in shapes) and words(program, dtype) <= 136


def fold_from(program: Program) -> int:
    """The width from which on a lane holds two neighbouring columns: fewer shuffles and additions, more registers.

    Only where a single map is alive at a time; two would leave too few warps (docs/gpu.md). 0: nowhere.
    """
    shapes = [program.shape, *(op.out_shape for op in program.ops)]
    if words(program, "float") > min(36, max(h for _, h, _ in shapes)):
        return 0
    widths = sorted({w for _, _, w in shapes if w % 2 == 0})
    return next((w for w in widths if foldable(program, w)), 0)


def foldable(program: Program, fold: int) -> bool:
    """Whether every sum across a folded map is one that `folded_column_sums` knows."""
    for op in program.ops:
        across = None if op.sums is None or op.sums[2].is_identity else op.sums[2]
        if across is None:
            continue
        if folds(op.shape, fold):
            if not (is_total(across) or folded_taps(across, folds(op.out_shape, fold))):
                return False
        elif folds(op.out_shape, fold):
            return False
    return True


def launch_shape(program: Program, dtype: str, folded: bool, pack: int) -> tuple[int, int, int, int]:
    """(rows of warps in a block, columns of warps, blocks a multiprocessor should hold, groups of pairs a warp).

    As measured (docs/gpu.md): 16 warps a multiprocessor, in blocks whose warps share the table rows of one column image
    and stay close enough to share instructions too; 20 where only one small map is alive. A warp takes several groups
    one after the other only where pairs are few: over many stages the warps of a block drift apart.
    """
    need = words(program, dtype)
    if folded:
        return (8, 1, 2, 4) if dtype == "float" else (8, 1, 1, 2)
    if dtype == "double":
        return (4, 1, 3, 4) if need <= 64 else (8, 1, 1, 2)
    again = 8 if pack == 1 else 1
    if need <= 40:
        return 4, 1, 5, again
    return (8, 1, 2, again) if need <= 56 else (16, 1, 1, 2)


def warp_kernel(
    program: Program,
    layout: TableLayout,
    dtype: str,
    shared_limit: int,
    shape: tuple[int, int, int, int] | None = None,
) -> WarpKernel:
    writer = _WarpWriter(program, layout, dtype)
    return writer.kernel(shared_limit, *(shape or launch_shape(program, dtype, bool(layout.fold), writer.pack)))


class _WarpWriter(Writer):
    def __init__(self, program: Program, layout: TableLayout, dtype: str) -> None:
        super().__init__(dtype)
        self.program, self.layout = program, layout
        start, steps = in_registers(program)
        self.plan = stages(start, steps, layout.fold)
        self.pack = max(s.pack for s in self.plan)

    # ---- the kernel ----

    def kernel(self, shared_limit: int, rows: int, columns: int, resident: int, repeat: int) -> WarpKernel:
        """The whole text. Blocks that would not get their shared memory are halved."""
        plan, pack = self.plan, self.pack
        parks, shared = self._parks(plan, pack)
        item = 4 if self.dtype == "float" else 8
        while rows > 1 and rows * columns * shared * item > shared_limit:
            rows, resident = rows // 2, 2 * resident
        warps, each = rows * columns, pack * repeat
        self.depth += 1
        for k, stage in enumerate(plan):
            self._stage(k, stage, plan, pack, parks)
        body = "\n".join(self.lines)
        park = (
            f"    extern __shared__ vec dynamic_shared[];\n    real* park = (real*)dynamic_shared + warp * {shared};\n"
        )
        text = (
            "\n".join(self.definitions)
            + f"""
extern "C" __global__ void __launch_bounds__({LANES * warps}, {resident})
pairs(const vec* __restrict__ first, const vec* __restrict__ second, real* __restrict__ out, real* __restrict__ mirror,
      int n, int m, long long ld, long long below)
{{
    // Broadcast, so that the compiler knows it is one number for the whole warp and branches on it do not diverge.
    const int lane = threadIdx.x % {LANES}, warp = __shfl_sync(ALL, (int)threadIdx.x / {LANES}, 0);
    // Blocks in bands of {BAND} columns.
    const int tall = (n + {rows - 1}) / {rows}, wide = (m + {columns * each - 1}) / {columns * each};
    const int band = blockIdx.x / (tall * {BAND}), rest = blockIdx.x - band * tall * {BAND};
    const int across = min({BAND}, wide - band * {BAND});
    const int i = rest / across * {rows} + warp % {rows};
    const int start = ((band * {BAND} + rest % across) * {columns} + warp / {rows}) * {each};
    const int end = min(start + {each}, m);
    if (i >= n) return;
    const vec* t1 = first + (long long)i * {self.layout.row // self.layout.vector};
{park if shared else ""}    int j0 = start;
    while (j0 < end && j0 + {pack - 1} < i + below) j0 += {pack};
#pragma unroll 1
    for (; j0 < end; j0 += {pack}) {{
{body}
    }}
}}
"""
        )
        return WarpKernel(text, rows, columns, each, shared * warps * item)

    def _parks(self, plan: tuple[Stage, ...], pack: int) -> tuple[list[dict[int, int]], int]:
        """Where each stage leaves its maps in shared memory: even stages from 0 on, odd ones behind them."""
        sizes = [pack * sum(math.prod(m.shape) for m in s.live_out) for s in plan[:-1]]
        even = max(sizes[0::2], default=0)
        parks: list[dict[int, int]] = []
        for k, stage in enumerate(plan[:-1]):
            at = even if k % 2 else 0
            places = {}
            for m in stage.live_out:
                places[m.name] = at
                at += pack * math.prod(m.shape)
            parks.append(places)
        return parks, -(-(even + max(sizes[1::2], default=0)) // 4) * 4

    def _stage(self, k: int, stage: Stage, plan: tuple[Stage, ...], pack: int, parks: list[dict[int, int]]) -> None:
        lanes = stage.lanes
        maps = [*stage.live_in, *(s.dst for s in stage.steps)]
        pairs = "1 pair" if stage.pack == 1 else f"{stage.pack} pairs side by side"
        self.put("", f"// ---- stage {k + 1} of {len(plan)}: {pairs}, maps up to {width(maps)} wide")
        head = "#pragma unroll 1", f"for (int q = 0; q < {pack}; q += {stage.pack})"
        self.put(*(head if stage.pack < pack else ()), "{")
        self.depth += 1
        self.put("" if stage.pack < pack else "const int q = 0;")
        self.put(
            f"const int col = lane % {lanes}, pair = q + lane / {lanes}, j = min(j0 + pair, m - 1);",
            f"const vec* t2 = second + (long long)j * {self.layout.row // self.layout.vector};",
        )
        for name in sorted({m.name for m in maps}):
            self.put(f"real m{name}[{max(self.layout.held(m.shape)[1] for m in maps if m.name == name)}];")
        if k == 0:
            self._input(stage.live_in[0])
        else:
            for m in stage.live_in:
                _, h, w = self.layout.held(m.shape)
                at = f"{parks[k - 1][m.name]} + pair * {h * w} + min(col, {w - 1})"
                self.per_row(h, f"m{m.name}[r] = park[{at} + r * {w}];")
        for segment in segments(stage, self.layout):
            if isinstance(segment, Run):
                self._run(segment, stage)
            else:
                self._loop(segment, stage)
        if k + 1 < len(plan):
            for m in stage.live_out:
                _, h, w = self.layout.held(m.shape)
                at = f"{parks[k][m.name]} + pair * {h * w} + col"
                self.put(f"if (col < {w}) {{")
                self.depth += 1
                self.per_row(h, f"park[{at} + r * {w}] = m{m.name}[r];")
                self.depth -= 1
                self.put("}")
        else:
            self._output(stage.live_out[0])
        self.depth -= 1
        self.put("}")
        if len(plan) > 1:
            self.put("__syncwarp();")

    def _input(self, m: Map) -> None:
        """K⁰ = Σ_c x_c x'_c."""
        site, v = self.layout.input, self.layout.vector
        per = site.plane // v
        _, height, wide = self.layout.held(m.shape)
        self.put("{   // the images' product", f"    const int at = min(col, {wide - 1});")
        self.depth += 1
        self.per_row(height, f"m{m.name}[r] = {self.number(0.0)};")
        self.put(
            "#pragma unroll 1" if site.planes > 4 else "#pragma unroll",
            f"for (int c = 0; c < {site.planes}; c++) {{",
            "#pragma unroll",
            f"    for (int r = 0; r < {height}; r += {v}) {{",
            f"        const vec a = __ldg(t1 + at + c * {per} + r / {v} * {wide}), "
            f"b = __ldg(t2 + at + c * {per} + r / {v} * {wide});",
            "#pragma unroll",
            f"        for (int k = 0; k < {v}; k++)",
            f"            if (r + k < {height}) m{m.name}[r + k] = fma(part(a, k), part(b, k), m{m.name}[r + k]);",
            "    }",
            "}",
        )
        self.depth -= 1
        self.put("}")

    def _output(self, m: Map) -> None:
        value = f"{self.number(self.program.unit)} * m{m.name}[0]"
        self.put(
            "if (col == 0 && j0 + pair < m) {",
            f"    const real K = {value};",
            "    out[i * ld + j] = K;",
            "    if (mirror) mirror[j * ld + i] = K;",
            "}",
        )

    # ---- steps ----

    def _loop(self, loop: Loop, stage: Stage) -> None:
        if loop.count == 1:
            for step in loop.steps[0]:
                self._step([step], stage, loop)
            return
        self.put("#pragma unroll 1", f"for (int b = 0; b < {loop.count}; b++) {{")
        self.depth += 1
        for same in zip(*loop.steps, strict=True):
            self._step(list(same), stage, loop)
        self.depth -= 1
        self.put("}")

    def _constant(self, values: list[float]) -> str:
        """A literal, or where repetitions of a loop differ the entry of a table."""
        if len(set(values)) == 1:
            return self.number(values[0])
        inside = ", ".join(map(self.number, values))
        text = f"__constant__ real NAME[{len(values)}] = {{{inside}}};"
        return self.define(("constant", tuple(values)), "each", text) + "[b]"

    def _step(self, same: list[Step], stage: Stage, loop: Loop) -> None:
        """One step, or the corresponding steps of all repetitions of a loop."""
        step = same[0]
        again = f" and {loop.count - 1} more" if loop.count > 1 else ""
        self.put("{" + f"   // {_described(step)}{again}")
        self.depth += 1
        self._core(same, stage, f"m{step.src.name}", f"m{step.dst.name}[r]", loop.stride * (loop.count > 1), None)
        self.depth -= 1
        self.put("}")

    def _run(self, run: Run, stage: Stage) -> None:
        """Steps with one core. A step's source is copied to the work array as soon as the step before has made it."""
        steps, work = list(run.steps), f"m{run.work}"
        rows, out_rows = (self.layout.held(s)[1] for s in (steps[0].op.shape, steps[0].op.out_shape))
        self.put(f"// {_described(steps[0])}, to {steps[-1].op.place}")
        if steps[0].src.name != run.work:
            self.per_row(rows, f"{work}[r] = m{steps[0].src.name}[r];")
        ahead = self._ahead(steps, run.stride)
        self.put("#pragma unroll 1", f"for (int b = 0; b < {len(steps)}; b++) {{")
        self.depth += 1
        self.put("{")
        self.depth += 1
        self._core(steps, stage, work, f"{work}[r]", run.stride, ahead)
        self.depth -= 1
        self.put("}")
        after: dict[str, list[str]] = {}
        for key in dict.fromkeys(map(_kind, steps)):
            chosen = [_kind(s) == key for s in steps]
            mine = steps[chosen.index(True)]
            target = f"m{mine.dst.name}[r]"
            result = self._combine([s if c else mine for s, c in zip(steps, chosen, strict=True)], target, f"{work}[r]")
            if result != target:
                after.setdefault(self._among(chosen), []).append(f"{target} = {result};")
        for name in sorted({s.src.name for s in steps[1:] if s.src.name != run.work}):
            free = None if steps[-1].dst.name != run.work else False
            chosen_next = [*(s.src.name == name for s in steps[1:]), free]
            after.setdefault(self._among(chosen_next), []).append(f"{work}[r] = m{name}[r];")
        for condition, statements in after.items():
            self.put(f"if ({condition}) {{")
            self.depth += 1
            self.per_row(out_rows, " ".join(["{", *statements, "}"]))
            self.depth -= 1
            self.put("}")
        self.depth -= 1
        self.put("}")

    def _ahead(self, steps: list[Step], stride: int) -> str:
        """Declares the first table entries of a run, which each step loads for the next; the name of their index."""
        if not PREFETCH:
            return ""
        a = steps[0].activation
        assert a is not None
        site, v = self.layout.sites[a.site], self.layout.vector
        if site.planes != 1:
            return ""
        lanes = self.layout.held(a.shape)[2]
        at = f"{site.offset // v} + min(col, {lanes - 1})"
        self.put(f"vec next1 = __ldg(t1 + {at}), next2 = __ldg(t2 + {at});")
        return f"{site.offset // v} + min(b + 1, {len(steps) - 1}) * {stride // v} + min(col, {lanes - 1})"

    def _among(self, chosen: Sequence[bool | None]) -> str:
        """A condition on the loop's counter b: true for the chosen steps; None where it does not matter."""
        for parity in (0, 1):
            if all(c is None or c == (k % 2 == parity) for k, c in enumerate(chosen)):
                return f"b % 2 == {parity}"
        inside = ", ".join(str(int(bool(c))) for c in chosen)
        text = f"__constant__ unsigned char NAME[{len(chosen)}] = {{{inside}}};"
        return self.define(("chosen", tuple(chosen)), "chosen", text) + "[b]"

    def _core(self, same: list[Step], stage: Stage, source: str, target: str, stride: int, ahead: str | None) -> None:
        """f and the sums of one step or of several alike, left in `target`; in a run (`ahead`) not yet combined."""
        step = same[0]
        op = step.op
        rows = source
        if step.activation is not None:
            self._activation(same, source, stride, ahead or "")
            rows = "V"
        folded = self.layout.folds(op.shape)
        if op.sums is not None and not op.sums[1].is_identity:
            down = folded_rows(op.sums[1]) if folded else op.sums[1]
            self.put(f"real S[{down.out_size}];", f"{self.row_sums(down)}(S, {rows});")
            rows = "S"
        if folded and op.sums is not None and not op.sums[2].is_identity:
            self._folded_across(same, stage, rows, target, ahead is not None)
            return
        value = f"{rows}[r]"
        across: list[str] = []
        if op.sums is not None and not op.sums[2].is_identity:
            across = self.column_sums(op.sums[2], stage, value)
            value = "x"
        result = value if ahead is not None else self._combine(same, target, value)
        out_rows = self.layout.held(op.out_shape)[1]
        if across:
            self.per_row(out_rows, "{")
            self.put(*("    " + line for line in across), f"    {target} = {result};", "}")
        else:
            self.per_row(out_rows, f"{target} = {result};")

    def _folded_across(self, same: list[Step], stage: Stage, rows: str, target: str, plain: bool) -> None:
        """The sums across where a lane holds two columns, and what follows them unless they are left `plain`."""
        op = same[0].op
        assert op.sums is not None
        both = self.layout.folds(op.out_shape)
        lines = self.folded_column_sums(op.sums[2], stage, rows, both)
        array = target.removesuffix("[r]")
        for k in range(1 + both):
            place = f"{array}[2 * r + {k}]" if both else target
            lines.append(f"{place} = {f'x{k}' if plain else self._combine(same, place, f'x{k}')};")
        self.per_row(op.out_shape[1], "{")
        self.put(*("    " + line for line in lines), "}")

    def _combine(self, same: list[Step], old: str, value: str) -> str:
        """keep · old + scale · value + bias, with what is 0 or 1 left out."""
        keep, scale, bias = ([getattr(s.op, field) for s in same] for field in ("keep", "scale", "bias"))
        plain = set(scale) == {1.0}
        rest = ""
        if set(keep) == {1.0}:
            rest = old
        elif set(keep) != {0.0}:
            rest = f"{self._constant(keep)} * {old}"
        if set(bias) != {0.0}:
            rest = f"({rest} + {self._constant(bias)})" if rest else self._constant(bias)
        if plain:
            return f"{value} + {rest}" if rest else value
        factor = self._constant(scale)
        return f"fma({factor}, {value}, {rest})" if rest else f"{factor} * {value}"

    def _activation(self, same: list[Step], source: str, stride: int, ahead: str) -> None:
        step = same[0]
        a = step.activation
        assert a is not None
        site, v = self.layout.sites[a.site], self.layout.vector
        _, h, w = self.layout.held(a.shape)
        unit = self._constant([s.activation.unit for s in same if s.activation]) if takes_unit(a.layer) else ""
        # The first entries come from the caller, which may have loaded them well ahead.
        early = site.planes == 1
        loads = [
            f"        const vec a{k} = {'g == 0 ? first1 : ' * early}__ldg(t1 + {k * site.plane // v} + g * {w}), "
            f"b{k} = {'g == 0 ? first2 : ' * early}__ldg(t2 + {k * site.plane // v} + g * {w});"
            for k in range(site.planes)
        ]
        constants = Constants.literals(a, self.dtype)
        f = pair_formula(
            a.layer,
            f"K[{v} * g + k]",
            Constants("unit", constants.alpha, constants.beta),
            [f"part(a{k}, k)" for k in range(site.planes)],
            [f"part(b{k}, k)" for k in range(site.planes)],
            step.src.nonneg,
        )
        sign = "not negative" if step.src.nonneg else "of any sign"
        groups = -(-h // v)
        guard = f"if ({v} * g + k < {h}) " if h % v else ""
        body = [
            f"// {a.layer!r} on {h} x {w} maps, {sign}",
            f"__device__ __forceinline__ void NAME(real (&V)[{h}], const real* K, const vec* t1, const vec* t2,",
            f"                                     real unit{', vec first1, vec first2' * early})",
            "{",
            "#pragma unroll",
            f"    for (int g = 0; g < {groups}; g++) {{",
            *loads,
            "#pragma unroll",
            f"        for (int k = 0; k < {v}; k++) {guard}V[{v} * g + k] = {f};",
            "    }",
            "}",
        ]
        name = self.define(("f", a.layer, h, w, step.src.nonneg), "activation", "\n".join(body))
        move = f" + b * {stride // v}" if len(same) > 1 else ""
        at = f"{site.offset // v}{move} + min(col, {w - 1})"
        loaded = ""
        if early:
            loaded = ", next1, next2" if ahead else f", __ldg(t1 + {at}), __ldg(t2 + {at})"
        unit = unit or self.number(1.0)
        self.put(f"real V[{h}];", f"{name}(V, {source}, t1 + {at}, t2 + {at}, {unit}{loaded});")
        if ahead:
            self.put(f"next1 = __ldg(t1 + {ahead});", f"next2 = __ldg(t2 + {ahead});")


def _kind(step: Step) -> tuple[int, float, bool, bool]:
    """Steps of a run that combine their result by one statement."""
    return step.dst.name, step.op.keep, step.op.scale == 1.0, step.op.bias == 0.0


def _described(step: Step) -> str:
    op = step.op
    layer = "" if step.activation is None else f"{step.activation.layer!r}, "
    what = "sums" if op.sums is not None else "pointwise"
    (_, h, w), (_, out_h, out_w) = op.shape, op.out_shape
    return f"{op.place or '(network)'}: {layer}{what}, {h} x {w} -> {out_h} x {out_w}"
