"""The pair kernel for maps up to 32 wide: a warp owns its pairs, a lane a column, and the rows are registers.

Vertical sums are register additions and horizontal ones shuffles. When maps have shrunk, several pairs lie side by side
in the warp (`Stage`); maps wait in shared memory until their neighbours are ready. The whole network is one launch that
reads only table rows and writes one number per pair.

This file decides which programs run this way and how they are launched, and writes the frame: the pairs of a warp, its
stages, their input and output. warp_layout.py lays a program out over the warp, warp_steps.py writes the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnngp.kernel.program import Program
from cnngp.network.layers import Elementwise

from ..kernel_frame import THETA_ARGUMENTS, Launch, TableLayout, folds, stores
from ..registers import Map, Registers, in_registers
from .box_sums import folded_taps, is_total
from .warp_layout import LANES, Stage, parked, stages
from .warp_steps import StepWriter

BAND = 16  # width of the bands in which blocks run, so that the table rows in use stay in the L2 cache


def words(program: Program, dtype: str) -> int:
    """Approximate largest number of 32-bit registers that live maps take at once."""
    return live_words(in_registers(program), dtype)


def live_words(registers: Registers, dtype: str) -> int:
    most = 0
    for live, step in zip(registers.before, registers.steps, strict=True):
        rows = sum(m.shape[1] for m in live | step.read)
        stays = step.src.name != step.dst.name and step.src in step.live
        fresh = step.beside is not None and step.beside.dst.name not in {m.name for m in live}
        most = max(most, rows + step.op.out_shape[1] * (stays + fresh))
    return most * (1 if dtype == "float" else 2)


def fits(program: Program, dtype: str) -> bool:
    """True if maps are flat, narrow enough for a warp and few enough for its registers, and formulas are short."""
    if any(isinstance(a.layer, Elementwise) for a in program.activations):
        return False  # with dozens of table entries per location, keeping the map in registers gains nothing
    shapes = [program.shape, *(op.out_shape for op in program.ops)]
    return all(d == 1 and w <= LANES for d, _, w in shapes) and words(program, dtype) <= 136


def fold_from(program: Program) -> int:
    """Width from which on a lane holds two neighbouring columns: fewer shuffles and additions, more registers; or 0.

    Used only if a single map is alive at a time; two would leave too few warps (docs/gpu.md).
    """
    shapes = [program.shape, *(op.out_shape for op in program.ops)]
    if words(program, "float") > min(36, max(h for _, h, _ in shapes)):
        return 0
    widths = sorted({w for _, _, w in shapes if w % 2 == 0})
    return next((w for w in widths if foldable(program, w)), 0)


def foldable(program: Program, fold: int) -> bool:
    """True if `folded_column_sums` can write every sum across a folded map."""
    for op in program.ops:
        if op.sums is None or op.sums[2].is_identity:
            continue
        folded, after = folds(op.shape, fold), folds(op.out_shape, fold)
        if after > folded or (folded and not (is_total(op.sums[2]) or folded_taps(op.sums[2], after))):
            return False
    return True


def launch_shape(program: Program, dtype: str, folded: bool, pack: int) -> tuple[int, int, int, int]:
    """Return (rows of warps in a block, columns of warps, blocks per multiprocessor, groups of pairs per warp).

    As measured (docs/gpu.md): 16 warps per multiprocessor, in blocks whose warps share the table rows of one column
    image and stay close enough to share instructions too; 20 if only one small map is alive. A warp takes several
    groups one after the other only if pairs are few: over many stages the warps of a block drift apart.
    """
    need = words(program, dtype)
    if folded:
        return (8, 1, 2, 4) if dtype == "float" else (8, 1, 1, 2)
    if dtype == "double":
        return (4, 1, 3, 4) if need <= 64 else (8, 1, 1, 2)
    again = 8 if pack == 1 else 1
    if program.theta is not None and need > 96:  # four maps alive: registers for 12 or 8 warps per multiprocessor
        return (12, 1, 1, 1) if need <= 120 else (8, 1, 1, 1)
    if need <= 40:
        return 4, 1, 5, again
    return (8, 1, 2, again) if need <= 56 else (16, 1, 1, 2)


class KernelWriter(StepWriter):
    """Writes the kernel of one program, laid out over the warp in the stages of `plan`, for `pack` pairs at a time."""

    def __init__(self, program: Program, layout: TableLayout, dtype: str) -> None:
        super().__init__(dtype, layout)
        self.program = program
        self.registers = in_registers(program)
        self.plan = stages(self.registers, layout.fold)
        self.pack = max(s.pack for s in self.plan)
        self.parks, self.shared = parked(self.plan, self.pack)

    def kernel(self, shared_limit: int, shape: tuple[int, int, int, int] | None = None) -> tuple[str, Launch]:
        """Write the whole text. Blocks that would exceed the shared memory are halved.

        A block has `rows` × `columns` warps, and the pairs of a warp are along the columns.
        """
        pack, shared, folded = self.pack, self.shared, bool(self.layout.fold)
        rows, columns, resident, repeat = shape or launch_shape(self.program, self.dtype, folded, pack)
        item = 4 if self.dtype == "float" else 8
        while rows > 1 and rows * columns * shared * item > shared_limit:
            rows, resident = rows // 2, 2 * resident
        warps, each = rows * columns, pack * repeat
        self.stages(self.plan, self.parks, str(pack), ("pair", "pair"))
        park = "    extern __shared__ vec dynamic_shared[];\n"
        park += f"    real* park = (real*)dynamic_shared + warp * {shared};\n"
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

    def names(self, stage: Stage, maps: Sequence[Map]) -> None:
        lanes, row = stage.lanes, self.layout.row // self.layout.vector
        self.put(
            f"const int col = lane % {lanes}, pair = q + lane / {lanes}, j = min(j0 + pair, m - 1);",
            f"const vec* t2 = second + (long long)j * {row};",
        )

    def first_maps(self) -> None:
        start, plane = self.registers.starts[0], self.layout.input.plane // self.layout.vector
        w = self.layout.held(start.shape)[2]
        self.product(start, f"t2 + min(col, {w - 1}) + c * {plane} + g * {w}")

    def last_maps(self, stage: Stage) -> None:
        with self.block("if (col == 0 && j0 + pair < m) {"):
            results = zip("KT", (self.program.unit, self.program.theta_unit), self.registers.ends, strict=False)
            self.put(*(f"const real {name} = {self.number(unit)} * m{m.name}[0];" for name, unit, m in results))
            self.put(*stores("K", self.program.theta is not None, "").split("\n"))
