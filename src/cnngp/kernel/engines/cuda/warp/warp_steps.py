"""The steps of a stage of the warp kernel as CUDA text: a nonlinearity, the sums, and how they are added to a map.

Steps that repeat are one loop with tables of what differs, so that code size does not grow with depth (`Loop`, `Run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnngp.network.geometry import AxisSum

from ..math import Constants, pair_formula, slope_formula, takes_unit
from ..registers import Step
from ..table_layout import TableLayout
from .box_sums import Writer, folded_rows
from .warp_layout import Loop, Run, Stage, segments


class StepWriter(Writer):
    """Writes steps over the arrays m0, m1, … of a lane; t1 and t2 are the two images' table rows."""

    def __init__(self, dtype: str, layout: TableLayout) -> None:
        super().__init__(dtype)
        self.layout = layout

    def steps(self, stage: Stage) -> None:
        """All steps of a stage, from the maps that come in to those that go on."""
        for segment in segments(stage, self.layout):
            if isinstance(segment, Run):
                self._run(segment, stage)
            else:
                self._loop(segment, stage)

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
        source, target = _arrays(step)
        self._core(same, stage, source, target, loop.stride * (loop.count > 1), None)
        self.depth -= 1
        self.put("}")

    def _run(self, run: Run, stage: Stage) -> None:
        """Steps with one core. A step's source is copied to the work array as soon as the step before has made it."""
        steps, carried = list(run.steps), run.carried
        rows, out_rows = (self.layout.held(s)[1] for s in (steps[0].op.shape, steps[0].op.out_shape))
        self.put(f"// {_described(steps[0])}, to {steps[-1].op.place}")
        for work, parts in carried:
            if parts[0][0].name != work:
                self.per_row(rows, f"m{work}[r] = m{parts[0][0].name}[r];")
        ahead = self._ahead(steps, run.stride)
        self.put("#pragma unroll 1", f"for (int b = 0; b < {len(steps)}; b++) {{")
        self.depth += 1
        self.put("{")
        self.depth += 1
        arrays = tuple(f"m{work}" for work, _ in carried)
        self._core(steps, stage, arrays, arrays, run.stride, ahead)
        self.depth -= 1
        self.put("}")
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
            self.put(f"if ({condition}) {{")
            self.depth += 1
            self.per_row(out_rows, " ".join(["{", *statements, "}"]))
            self.depth -= 1
            self.put("}")
        self.depth -= 1
        self.put("}")

    def _ahead(self, steps: list[Step], stride: int) -> str:
        """Declares the first table entries of a run, which each step loads for the next; the name of their index."""
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

    def _core(
        self, same: list[Step], stage: Stage, source: Arrays, target: Arrays, stride: int, ahead: str | None
    ) -> None:
        """f and the sums of one step or of several alike, left in `target`; in a run (`ahead`) not yet combined.

        `source` and `target` are the arrays of K and, for a step with another beside it, of what is carried for Θ.
        """
        step = same[0]
        rows = source
        if step.activation is not None:
            self._activation(same, source, stride, ahead or "")
            rows = ("V", "W")
        if step.beside is not None:
            self.put("{")
            self.depth += 1
            self._sums([s.beside for s in same if s.beside is not None], stage, rows[1], target[1], ahead is not None)
            self.depth -= 1
            self.put("}")
        self._sums(same, stage, rows[0], target[0], ahead is not None)

    def _sums(self, same: list[Step], stage: Stage, rows: str, array: str, plain: bool) -> None:
        """The sums over `rows` and what follows them, unless they are left `plain`, into `array`."""
        op, target = same[0].op, f"{array}[r]"
        folded = self.layout.folds(op.shape)
        if op.sums is not None and not op.sums[1].is_identity:
            down = folded_rows(op.sums[1]) if folded else op.sums[1]
            self.put(f"real S[{down.out_size}];", *self.down(down, rows))
            rows = "S"
        if folded and op.sums is not None and not op.sums[2].is_identity:
            self._folded_across(same, stage, rows, target, plain)
            return
        value = f"{rows}[r]"
        across: list[str] = []
        if op.sums is not None and not op.sums[2].is_identity:
            across = self.column_sums(op.sums[2], stage, value)
            value = "x"
        result = value if plain else self._combine(same, target, value)
        out_rows = self.layout.held(op.out_shape)[1]
        if across:
            self.per_row(out_rows, "{")
            self.put(*("    " + line for line in across), f"    {target} = {result};", "}")
        else:
            self.per_row(out_rows, f"{target} = {result};")

    def down(self, sums: AxisSum, rows: str) -> list[str]:
        """Statements that leave the sums down the rows in S."""
        return [f"{self.row_sums(sums)}(S, {rows});"]

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

    def _activation(self, same: list[Step], source: Arrays, stride: int, ahead: str) -> None:
        """f of the source in V; for a step with a slope beside it, that in W."""
        step = same[0]
        a = step.activation
        assert a is not None
        site, v = self.layout.sites[a.site], self.layout.vector
        _, h, w = self.layout.held(a.shape)
        # The first entries come from the caller, which may have loaded them well ahead.
        early = site.planes == 1
        loads = [
            f"        const vec a{k} = {'g == 0 ? first1 : ' * early}__ldg(t1 + {k * site.plane // v} + g * {w}), "
            f"b{k} = {'g == 0 ? first2 : ' * early}__ldg(t2 + {k * site.plane // v} + g * {w});"
            for k in range(site.planes)
        ]
        f = self.pointwise(same, h)
        sign = "not negative" if step.src.nonneg else "of any sign"
        groups = -(-h // v)
        body = [
            f"// {a.layer!r} on {h} x {w} maps, {sign}",
            f"__device__ __forceinline__ void NAME({f.parameters}, const vec* t1, const vec* t2,",
            f"                                     real unit{', real own' * f.has_own}"
            f"{', vec first1, vec first2' * early})",
            "{",
            "#pragma unroll",
            f"    for (int g = 0; g < {groups}; g++) {{",
            *loads,
            "#pragma unroll",
            f"        for (int k = 0; k < {v}; k++) {f.statement}",
            "    }",
            "}",
        ]
        name = self.define(
            ("f", a.layer, h, w, step.src.nonneg, f.parameters, f.statement), "activation", "\n".join(body)
        )
        move = f" + b * {stride // v}" if len(same) > 1 else ""
        at = f"{site.offset // v}{move} + min(col, {w - 1})"
        loaded = ""
        if early:
            loaded = ", next1, next2" if ahead else f", __ldg(t1 + {at}), __ldg(t2 + {at})"
        self.put(f"real {f.results};", f"{name}({f.arguments(source)}, t1 + {at}, t2 + {at}, {f.unit}{f.own}{loaded});")
        if ahead:
            self.put(f"next1 = __ldg(t1 + {ahead});", f"next2 = __ldg(t2 + {ahead});")

    def pointwise(self, same: list[Step], h: int) -> Pointwise:
        """What a step does at one place of its maps of `h` rows: f, the slope times a map, or both."""
        step, v = same[0], self.layout.vector
        a = step.activation
        assert a is not None
        planes = range(self.layout.sites[a.site].planes)
        at = f"[{v} * g + k]"
        literals = Constants.literals(a, self.dtype)
        args = (
            a.layer,
            f"K{at}",
            Constants("unit", literals.alpha, literals.beta),
            [f"part(a{k}, k)" for k in planes],
            [f"part(b{k}, k)" for k in planes],
            step.src.nonneg,
        )
        guard = f"if ({v} * g + k < {h}) " if h % v else ""
        slopes = [s.beside or s for s in same] if step.beside or step.op.tangent else []
        takes = takes_unit(a.layer, bool(slopes))
        unit = self._constant([s.activation.unit for s in same if s.activation]) if takes else self.number(1.0)
        if not slopes:
            return Pointwise("V", f"{guard}V{at} = {pair_formula(*args)};", h, unit)
        owns = [s.op.tangent.own for s in slopes if s.op.tangent]
        times = slopes[0].times is not None
        plain = set(owns) == {1.0}
        value = f"K{at}" if plain else f"own * K{at}"
        if times:
            value = f"T{at} + K{at}" if plain else f"fma(own, K{at}, T{at})"
        own = "" if plain else ", " + self._constant(owns)
        result = "V, W" if step.beside else "V"
        statement = f"{result[-1]}{at} = ({slope_formula(*args)}) * ({value});"
        if step.beside:
            statement = f"{{ V{at} = {pair_formula(*args)}; {statement} }}"
        return Pointwise(result, guard + statement, h, unit, times, own)


@dataclass(frozen=True)
class Pointwise:
    """A nonlinearity's statement for place [vector * g + k] of K, and how a function that has it is called."""

    arrays: str
    statement: str
    rows: int
    unit: str
    times: bool = False
    own: str = ""

    @property
    def has_own(self) -> bool:
        return self.own != ""

    @property
    def results(self) -> str:
        return ", ".join(f"{name}[{self.rows}]" for name in self.arrays.split(", "))

    @property
    def parameters(self) -> str:
        results = ", ".join(f"real (&{name})[{self.rows}]" for name in self.arrays.split(", "))
        return f"{results}, const real* K{', const real* T' * self.times}"

    def arguments(self, source: Arrays) -> str:
        return ", ".join([self.arrays, *(source if self.times else source[:1])])


Arrays = tuple[str, ...]


def _arrays(step: Step) -> tuple[Arrays, Arrays]:
    """The arrays that a step reads and those that it makes: of K, and of what is carried for Θ where it has that."""
    parts = (step.src,) if step.factor is None else (step.src, step.factor)
    return tuple(f"m{m.name}" for m in parts), tuple(f"m{s.dst.name}" for s in step.both)


def _kind(step: Step) -> tuple[int, float, bool, bool]:
    """Steps of a run that combine their result by one statement."""
    return step.dst.name, step.op.keep, step.op.scale == 1.0, step.op.bias == 0.0


def _described(step: Step) -> str:
    op = step.op
    layer = "" if step.activation is None else f"{step.activation.layer!r}, "
    what = "sums" if op.sums is not None else "pointwise"
    (_, h, w), (_, out_h, out_w) = op.shape, op.out_shape
    return f"{op.place or '(network)'}: {layer}{what}, {h} x {w} -> {out_h} x {out_w}"
