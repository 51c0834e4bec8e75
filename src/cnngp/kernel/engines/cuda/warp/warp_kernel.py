"""The frame of the warp kernel as CUDA text: which pairs a warp takes, its stages, and what goes in and comes out.

The steps within a stage are written by warp_steps.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from cnngp.kernel.program import Program

from ..kernel_frame import THETA_ARGUMENTS, stores
from ..registers import Map, in_registers
from ..table_layout import TableLayout
from .warp_layout import LANES, Stage, parked, stages, width
from .warp_steps import StepWriter

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


class KernelWriter(StepWriter):
    """Writes the kernel of one program, laid over the warp in the stages of `plan`, for `pack` pairs at a time."""

    def __init__(self, program: Program, layout: TableLayout, dtype: str) -> None:
        super().__init__(dtype, layout)
        self.program = program
        self.registers = in_registers(program)
        self.plan = stages(self.registers, layout.fold)
        self.pack = max(s.pack for s in self.plan)

    def kernel(self, shared_limit: int, rows: int, columns: int, resident: int, repeat: int) -> WarpKernel:
        """The whole text. Blocks that would not get their shared memory are halved."""
        program, plan, pack = self.program, self.plan, self.pack
        parks, shared = parked(plan, pack)
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
      int n, int m, long long ld, long long below{THETA_ARGUMENTS * (program.theta is not None)})
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

    def _stage(self, k: int, stage: Stage, plan: tuple[Stage, ...], pack: int, parks: list[dict[int, int]]) -> None:
        lanes = stage.lanes
        maps = [*stage.live_in, *(part.dst for s in stage.steps for part in s.both)]
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
            self._input(self.registers.starts[0])
        else:
            for m in stage.live_in:
                _, h, w = self.layout.held(m.shape)
                at = f"{parks[k - 1][m.name]} + pair * {h * w} + min(col, {w - 1})"
                self.per_row(h, f"m{m.name}[r] = park[{at} + r * {w}];")
        self.steps(stage)
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
            self._output()
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

    def _output(self) -> None:
        program, (K, *rest) = self.program, self.registers.ends
        self.put("if (col == 0 && j0 + pair < m) {")
        self.depth += 1
        self.put(f"const real K = {self.number(program.unit)} * m{K.name}[0];")
        for theta in rest:
            self.put(f"const real T = {self.number(program.theta_unit)} * m{theta.name}[0];")
        self.put(*stores("K", bool(rest), "").split("\n"))
        self.depth -= 1
        self.put("}")
