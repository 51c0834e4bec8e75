"""The frame of the warp kernel as CUDA text: which pairs a warp takes, its stages, and what goes in and comes out.

The steps within a stage are written by warp_steps.py.
"""

from __future__ import annotations

from cnngp.kernel.program import Program

from ..kernel_frame import THETA_ARGUMENTS, Launch, stores
from ..registers import in_registers
from ..table_layout import TableLayout
from .warp_layout import LANES, Stage, parked, stages
from .warp_steps import StepWriter

BAND = 16  # blocks run in bands this many wide, so that the table rows in use at one time stay in the L2 cache


class KernelWriter(StepWriter):
    """Writes the kernel of one program, laid over the warp in the stages of `plan`, for `pack` pairs at a time."""

    def __init__(self, program: Program, layout: TableLayout, dtype: str) -> None:
        super().__init__(dtype, layout)
        self.program = program
        self.registers = in_registers(program)
        self.plan = stages(self.registers, layout.fold)
        self.pack = max(s.pack for s in self.plan)
        self.parks, self.shared = parked(self.plan, self.pack)

    def kernel(self, shared_limit: int, rows: int, columns: int, resident: int, repeat: int) -> tuple[str, Launch]:
        """The whole text. Blocks that would not get their shared memory are halved.

        A block has `rows` × `columns` warps, and a warp takes its pairs along the columns.
        """
        pack, shared = self.pack, self.shared
        item = 4 if self.dtype == "float" else 8
        while rows > 1 and rows * columns * shared * item > shared_limit:
            rows, resident = rows // 2, 2 * resident
        warps, each = rows * columns, pack * repeat
        for k, stage in enumerate(self.plan):
            self._stage(k, stage)
        park = (
            f"    extern __shared__ vec dynamic_shared[];\n    real* park = (real*)dynamic_shared + warp * {shared};\n"
        )
        text = f"""\
{chr(10).join(self.definitions)}
extern "C" __global__ void __launch_bounds__({LANES * warps}, {resident})
pairs(const vec* __restrict__ first, const vec* __restrict__ second, real* __restrict__ out, real* __restrict__ mirror,
      int n, int m, long long ld, long long below{THETA_ARGUMENTS * (self.program.theta is not None)})
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
{chr(10).join(self.lines)}
    }}
}}
"""
        return text, Launch(LANES * warps, shared * warps * item, rows=rows, columns=columns * each)

    def _stage(self, k: int, stage: Stage) -> None:
        layout, count = self.layout, len(self.plan)
        with self.stage(stage, f"{k + 1} of {count}", self.pack, str(self.pack)) as maps:
            lanes = stage.lanes
            self.put(
                f"const int col = lane % {lanes}, pair = q + lane / {lanes}, j = min(j0 + pair, m - 1);",
                f"const vec* t2 = second + (long long)j * {layout.row // layout.vector};",
            )
            self.declare(maps)
            if k == 0:
                start = self.registers.starts[0]
                w = layout.held(start.shape)[2]
                self.product(start, f"t2 + min(col, {w - 1}) + c * {layout.input.plane // layout.vector} + g * {w}")
            else:
                self.unpark(stage.live_in, self.parks[k - 1], "pair")
            self.steps(stage)
            if k + 1 < count:
                self.park(stage.live_out, self.parks[k], "pair")
            else:
                self._output()
        if count > 1:
            self.put("__syncwarp();")

    def _output(self) -> None:
        K, *rest = self.registers.ends
        with self.block("if (col == 0 && j0 + pair < m) {"):
            self.put(f"const real K = {self.number(self.program.unit)} * m{K.name}[0];")
            for theta in rest:
                self.put(f"const real T = {self.number(self.program.theta_unit)} * m{theta.name}[0];")
            self.put(*stores("K", bool(rest), "").split("\n"))
