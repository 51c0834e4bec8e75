"""CUDA text of the steps of a stage of the warp kernel: a nonlinearity, the sums, and their addition to a map.

Repeated steps are one loop with tables of their differences, so that code size does not grow with depth (`Loop`,
`Run`). The kernel for pools writes its steps likewise, with a shifted second image (sheets/sheet_steps.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from cnngp.network.geometry import AxisSum

from ..formula_text.device_functions import text_of
from ..formula_text.formula_writer import filled, literals
from ..kernel_frame import TableLayout
from ..registers import Map, Step
from .box_sums import SumWriter, folded_rows
from .warp_layout import Run, Stage, segments

Arrays = tuple[str, ...]


class StepWriter(SumWriter):
    """Writes steps over the arrays m0, m1, … of a lane; t1 and t2 are the two images' table rows."""

    early = True
    """True if the first table entries are loaded ahead of the nonlinearity that uses them."""

    def __init__(self, dtype: str, layout: TableLayout) -> None:
        super().__init__(dtype)
        self.layout = layout

    # ---- stages -----------------------------------------------------------------------------------------------------

    def stages(self, plan: Sequence[Stage], parks: Sequence[dict[int, int]], pairs: str, own: tuple[str, str]) -> None:
        """Write all stages of a plan, for up to `pairs` pairs side by side.

        Between stages maps wait in shared memory; `own` are the indices there at which a lane reads and writes.
        """
        pack = max(s.pack for s in plan)
        for k, stage in enumerate(plan):
            maps = [*stage.live_in, *(part.dst for s in stage.steps for part in s.both)]
            widest, number = max(m.shape[2] for m in maps), f"{k + 1} of {len(plan)}"
            self.put("", f"// ---- stage {number}: {stage.pack} side by side, maps up to {widest} wide")
            loop = ["#pragma unroll 1", f"for (int q = 0; q < {pairs}; q += {stage.pack}) {{"]
            with self.block(*(loop if stage.pack < pack else ["{"])):
                self.put("" if stage.pack < pack else "const int q = 0;")
                self.names(stage, maps)
                for name in sorted({m.name for m in maps}):
                    rows = max(self.layout.held(m.shape)[1] for m in maps if m.name == name)
                    self.put(f"real m{name}[{rows}];")
                if k == 0:
                    self.first_maps()
                for m in stage.live_in if k > 0 else ():
                    _, h, w = self.layout.held(m.shape)
                    at = f"{parks[k - 1][m.name]} + {own[0]} * {h * w} + min(col, {w - 1})"
                    self.per_row(h, f"m{m.name}[r] = park[{at} + r * {w}];")
                if len(plan) > 1 or not self.chained(stage):
                    self.steps(stage)
                for m in stage.live_out if k + 1 < len(plan) else ():
                    _, h, w = self.layout.held(m.shape)
                    with self.block(f"if (col < {w}) {{"):
                        at = f"{parks[k][m.name]} + {own[1]} * {h * w} + col"
                        self.per_row(h, f"park[{at} + r * {w}] = m{m.name}[r];")
                if k + 1 == len(plan):
                    self.last_maps(stage)
            if len(plan) > 1:
                self.put("__syncwarp();")

    def names(self, stage: Stage, maps: Sequence[Map]) -> None:
        """Write the declarations of a lane's position: its column, and its index among the maps side by side."""
        raise NotImplementedError

    def first_maps(self) -> None:
        """Write the computation of the maps from which the first stage starts."""
        raise NotImplementedError

    def last_maps(self, stage: Stage) -> None:
        """Write the output of the last stage's maps."""
        raise NotImplementedError

    def chained(self, stage: Stage) -> bool:
        """Write the only stage in a shorter way if possible; True if that was done."""
        return False

    def product(self, m: Map, second: str, held: bool = False) -> None:
        """Write K⁰ = Σ_c x_c x'_c; `second` is the address of the second image's channel c in group g of rows."""
        site, v = self.layout.input, self.layout.vector
        _, h, w = self.layout.held(m.shape)
        at = f"t1 + min(col, {w - 1}) + c * {site.plane // v} + g * {self.layout.pitch(w)}"
        self.per_row(h, f"m{m.name}[r] = {self.number(0.0)};")
        self.put(
            "#pragma unroll 1" if site.planes > 4 else "#pragma unroll",
            f"for (int c = 0; c < {site.planes}; c++) {{",
            "#pragma unroll",
            f"    for (int g = 0; g < {-(-h // v)}; g++) {{",
            f"        const vec a = __ldg({at}), b = {loaded(second, held)};",
            "#pragma unroll",
            f"        for (int k = 0; k < {v}; k++)",
            f"            if ({v} * g + k < {h}) m{m.name}[{v} * g + k] = "
            f"fma(part(a, k), part(b, k), m{m.name}[{v} * g + k]);",
            "    }",
            "}",
        )

    # ---- loops over steps --------------------------------------------------------------------------------------------

    def steps(self, stage: Stage) -> None:
        """Write all steps of a stage, from its initial maps to those handed on."""
        for segment in segments(stage, self.layout):
            if isinstance(segment, Run):
                self._run(segment, stage)
                continue
            loop = "#pragma unroll 1", f"for (int b = 0; b < {len(segment.steps)}; b++) {{"
            with self.block(*loop) if len(segment.steps) > 1 else nullcontext():
                for same in zip(*segment.steps, strict=True):
                    self._step(same, stage, segment.stride)

    def _step(self, same: Sequence[Step], stage: Stage, stride: int) -> None:
        """Write one step, or the corresponding steps of all repetitions of a loop."""
        step = same[0]
        parts = (step.src,) if step.factor is None else (step.src, step.factor)
        source, target = (tuple(f"m{m.name}" for m in maps) for maps in (parts, [s.dst for s in step.both]))
        with self.block("{"):
            self.core(same, stage, source, target, stride, None)

    def _run(self, run: Run, stage: Stage) -> None:
        """Write steps that share a core. A step's source is copied to the work array as soon as it is computed."""
        steps, carried = run.steps, run.carried
        rows, out_rows = (self.layout.held(s)[1] for s in (steps[0].op.shape, steps[0].op.out_shape))
        for work, parts in carried:
            if parts[0][0].name != work:
                self.per_row(rows, f"m{work}[r] = m{parts[0][0].name}[r];")
        ahead = self._ahead(steps, run.stride)
        with self.block("#pragma unroll 1", f"for (int b = 0; b < {len(steps)}; b++) {{"):
            arrays = tuple(f"m{work}" for work, _ in carried)
            with self.block("{"):
                self.core(steps, stage, arrays, arrays, run.stride, ahead)
            after: dict[str, list[str]] = {}
            for work, parts in carried:
                done = [step for _, step in parts]
                for key in dict.fromkeys(map(_kind, done)):
                    chosen = [_kind(s) == key for s in done]
                    mine = done[chosen.index(True)]
                    target = f"m{mine.dst.name}[r]"
                    like = [s if c else mine for s, c in zip(done, chosen, strict=True)]
                    result = self._combine(like, target, f"m{work}[r]")
                    if result != target:
                        after.setdefault(self._among(chosen), []).append(f"{target} = {result};")
                for name in sorted({source.name for source, _ in parts[1:] if source.name != work}):
                    free = None if done[-1].dst.name != work else False
                    chosen_next = [*(source.name == name for source, _ in parts[1:]), free]
                    after.setdefault(self._among(chosen_next), []).append(f"m{work}[r] = m{name}[r];")
            for condition, statements in after.items():
                with self.block(f"if ({condition}) {{"):
                    self.per_row(out_rows, " ".join(["{", *statements, "}"]))

    def _ahead(self, steps: Sequence[Step], stride: int) -> str:
        """Declare the first table entries of a run, which each step loads for the next; return their index as text."""
        a, v = steps[0].curve, self.layout.vector
        site = self.layout.sites[a.site]
        if site.planes != 1 or not self.early:
            return ""
        lanes = self.layout.held(a.shape)[2]
        at = f"{site.offset // v} + min(col, {lanes - 1})"
        self.put(f"vec next1 = __ldg(t1 + {at}), next2 = __ldg(t2 + {at});")
        return f"{site.offset // v} + min(b + 1, {len(steps) - 1}) * {stride // v} + min(col, {lanes - 1})"

    def _among(self, chosen: Sequence[bool | None]) -> str:
        """Condition on the loop's counter b that is true for the chosen steps; None marks steps that do not matter."""
        for parity in (0, 1):
            if all(c is None or c == (k % 2 == parity) for k, c in enumerate(chosen)):
                return f"b % 2 == {parity}"
        return self.array("chosen", "__constant__ unsigned char", tuple(int(bool(c)) for c in chosen)) + "[b]"

    def _constant(self, values: list[float]) -> str:
        """Write a literal, or a table entry if the repetitions of a loop differ."""
        if len(set(values)) == 1:
            return self.number(values[0])
        return self.array("each", "__constant__ real", tuple(map(self.number, values))) + "[b]"

    # ---- one step ----------------------------------------------------------------------------------------------------

    def core(
        self, same: Sequence[Step], stage: Stage, source: Arrays, target: Arrays, stride: int, ahead: str | None
    ) -> None:
        """Write f and the sums of one step or of several equal ones into `target`; in a run (`ahead`) not yet combined.

        `source` and `target` are the arrays of K and, for a step with another beside it, of the map for Θ.
        """
        rows = source
        if same[0].activation is not None:
            self.activation(same, source, stride, ahead or "")
            rows = ("V", "W")
        beside = [s.beside for s in same if s.beside is not None]
        if beside:
            with self.block("{"):
                self._sums(beside, stage, rows[1], target[1], ahead is not None)
        self._sums(same, stage, rows[0], target[0], ahead is not None)

    def _sums(self, same: Sequence[Step], stage: Stage, rows: str, array: str, plain: bool) -> None:
        """Write the sums over `rows` into `array`, combined with its old values unless `plain`."""
        op = same[0].op
        folded, both = self.layout.folds(op.shape), self.layout.folds(op.out_shape)
        down, across = (None, None) if op.sums is None else (s if not s.is_identity else None for s in op.sums[1:])
        if down is not None:
            down = folded_rows(down) if folded else down
            self.put(f"real S[{down.out_size}];", *self.down(down, rows))
            rows = "S"
        targets, values, lines = [f"{array}[r]"], [f"{rows}[r]"], []
        out_rows = self.layout.held(op.out_shape)[1]
        if across is not None and folded:
            lines = self.folded_column_sums(across, stage, rows, both)
            targets = [f"{array}[2 * r + {k}]" for k in (0, 1)] if both else targets
            values, out_rows = ["x0", "x1"][: 1 + both], op.out_shape[1]
        elif across is not None:
            lines, values = self.column_sums(across, stage, f"{rows}[r]"), ["x"]
        results = [
            f"{target} = {value if plain else self._combine(same, target, value)};"
            for target, value in zip(targets, values, strict=True)
        ]
        if lines:
            self.per_row(out_rows, "{")
            self.put(*(f"    {line}" for line in (*lines, *results)), "}")
        else:
            self.per_row(out_rows, results[0])

    def down(self, sums: AxisSum, rows: str) -> list[str]:
        """Statements that store the sums down the rows in S."""
        return [f"{self.row_sums(sums)}(S, {rows});"]

    def _combine(self, same: Sequence[Step], old: str, value: str) -> str:
        """Write keep · old + scale · value + bias, without zero terms and unit factors."""
        keep, scale, bias = ([getattr(s.op, field) for s in same] for field in ("keep", "scale", "bias"))
        rest = ""
        if set(keep) == {1.0}:
            rest = old
        elif set(keep) != {0.0}:
            rest = f"{self._constant(keep)} * {old}"
        if set(bias) != {0.0}:
            rest = f"({rest} + {self._constant(bias)})" if rest else self._constant(bias)
        if set(scale) == {1.0}:
            return f"{value} + {rest}" if rest else value
        factor = self._constant(scale)
        return f"fma({factor}, {value}, {rest})" if rest else f"{factor} * {value}"

    def activation(self, same: Sequence[Step], source: Arrays, stride: int, ahead: str) -> None:
        """Write f of the source into V and, for a step with a slope beside it, the slope's result into W."""
        step, a, v = same[0], same[0].curve, self.layout.vector
        site = self.layout.sites[a.site]
        _, h, w = self.layout.held(a.shape)
        # The first entries come from the caller, which may have loaded them early.
        early = self.early and site.planes == 1
        first = f"t1 + {site.offset // v}{f' + b * {stride // v}' * (len(same) > 1)} + min(col, {w - 1})"
        second, plane, held = self.second(same, stride)
        loads = [
            f"        const vec a{k} = {'g == 0 ? first1 : ' * early}"
            f"__ldg(t1 + {k * site.plane // v} + g * {self.layout.pitch(w)}), b{k} = "
            f"{'g == 0 ? first2 : ' * early}{loaded(f't2 + {k * plane // v} + g * {w}', held)};"
            for k in range(site.planes)
        ]
        results, statement, unit, factor, own = self._pointwise(same, h)
        arrays = [f"{name}[{h}]" for name in results]
        parameters = ", ".join(f"real (&{name})[{h}]" for name in results)
        parameters += f", const real* K{', const real* T' * factor}"
        body = [
            f"// {type(a.layer).__name__} on {h} x {w} maps, {'not negative' if step.src.nonneg else 'of any sign'}",
            f"__device__ __forceinline__ void NAME({parameters}, const vec* t1, const vec* t2,",
            f"                                     real unit{', real own' * bool(own)}"
            f"{', vec first1, vec first2' * early})",
            "{",
            "#pragma unroll",
            f"    for (int g = 0; g < {-(-h // v)}; g++) {{",
            *loads,
            "#pragma unroll",
            f"        for (int k = 0; k < {v}; k++) {statement}",
            "    }",
            "}",
        ]
        key = ("f", a.layer, h, w, step.src.nonneg, held, parameters, statement)
        name = self.define(key, "activation", "\n".join(body))
        arguments = [*results, *(source if factor else source[:1]), first, second, unit, *([own] if own else [])]
        if early:
            arguments += ["next1", "next2"] if ahead else [f"__ldg({first})", f"__ldg({second})"]
        self.put(f"real {', '.join(arrays)};", f"{name}({', '.join(arguments)});")
        if ahead:
            self.put(f"next1 = __ldg(t1 + {ahead});", f"next2 = __ldg(t2 + {ahead});")

    def second(self, same: Sequence[Step], stride: int) -> tuple[str, int, bool]:
        """Address of the second image's numbers, entries of one of their planes, and True if in shared memory."""
        a, v = same[0].curve, self.layout.vector
        site = self.layout.sites[a.site]
        move = f" + b * {stride // v}" if len(same) > 1 else ""
        at = f"t2 + {site.offset // v}{move} + min(col, {self.layout.held(a.shape)[2] - 1})"
        return at, site.plane, False

    def _pointwise(self, same: Sequence[Step], h: int) -> tuple[list[str], str, str, bool, str]:
        """Text of a step at one location of its maps of `h` rows: f, the slope times a map, or both.

        Returns the arrays written, the statement, the unit of K, True if there is a map T, and the factor of K added
        to it.
        """
        step, a, v = same[0], same[0].curve, self.layout.vector
        text, at, constants = text_of(a.layer), f"[{v} * g + k]", literals(a, self.dtype) | {"unit": "unit"}
        first, second = ([f"part({image}{k}, k)" for k in range(text.planes)] for image in "ab")
        f, slope = (filled(x, constants, f"K{at}", first, second, step.src.nonneg) for x in (text.pair, text.slope))
        guard = f"if ({v} * g + k < {h}) " if h % v else ""
        slopes = [s.beside or s for s in same] if step.beside or step.op.tangent else []
        takes_unit = text.takes_unit or (slopes and text.slope_takes_unit)
        unit = self._constant([s.curve.unit for s in same]) if takes_unit else self.number(1.0)
        if not slopes:
            return ["V"], f"{guard}V{at} = {f};", unit, False, ""
        owns = [s.op.tangent.own for s in slopes if s.op.tangent]
        times = slopes[0].times is not None
        plain = set(owns) == {1.0}
        value = f"K{at}" if plain else f"own * K{at}"
        if times:
            value = f"T{at} + K{at}" if plain else f"fma(own, K{at}, T{at})"
        own = "" if plain else self._constant(owns)
        results = ["V", "W"] if step.beside else ["V"]
        statement = f"{results[-1]}{at} = ({slope}) * ({value});"
        if step.beside:
            statement = f"{{ V{at} = {f}; {statement} }}"
        return results, guard + statement, unit, times, own


def loaded(at: str, held: bool) -> str:
    """Read the vector at an address, in shared memory or in read-only global memory."""
    return f"*({at})" if held else f"__ldg({at})"


def _kind(step: Step) -> tuple[int, float, bool, bool]:
    """Key of the steps of a run that combine their result by the same statement."""
    return step.dst.name, step.op.keep, step.op.scale == 1.0, step.op.bias == 0.0
