"""Choice and launch of the kernel for chains of segments and pools (sheet_kernel.py)."""

from __future__ import annotations

import math

from ..kernel_frame import Launch
from ..program_data import ProgramData
from ..warp.warp_launch import live_words
from ..warp.warp_layout import LANES
from .sheet_chain import Chain
from .sheet_kernel import SheetLaunch, SheetWriter

LINE = 128  # bytes of a line of the cache: the first image's rows begin at one
CACHED = 160 * 1024  # bytes of table rows that stay in a multiprocessor's first cache
HELD_MOST = 200 * 1024  # bytes of the second image's tables that leave enough of the first cache for the first image's
OWN_MOST = 3072  # entries of pooled sheets up to which a warp keeps a pair's in its shared memory


def fits(chain: Chain, dtype: str) -> bool:
    """Whether maps are narrow enough for a warp and few enough for its registers."""
    for segment in chain.segments:
        maps = [segment.start, *(s.dst for s in segment.steps)]
        if max(m.shape[2] for m in maps) > LANES or live_words(segment.registers, dtype) > 136:
            return False
    return True


def launch(writer: SheetWriter) -> SheetLaunch:
    """A warp for a pair where its pooled sheets are few, and else a block; as measured (docs/gpu.md)."""
    chain, program = writer.chain, writer.program
    pooled = sum(s.rows.count * s.columns.count * math.prod(s.start.shape) for s in chain.segments[1:])
    shifts = chain.segments[0].rows.count * chain.segments[0].columns.count
    wide = writer.dtype == "double" or max(live_words(s.registers, writer.dtype) for s in chain.segments) > 64
    # What is carried for Θ takes as many registers again: 12 warps of a multiprocessor were faster than 16.
    warps = 16 if program.theta is None else 12
    if shifts <= 100 and pooled <= OWN_MOST:
        if wide:
            return SheetLaunch(1, 8, 1)
        if len(program.activations) <= 8:
            return SheetLaunch(1, 4, 4)
        if len(chain.segments) > 1:
            return SheetLaunch(1, 16, 1)
        # The tables of many layers do not stay in the first cache for as many pairs as there are warps.
        tasks = chain.segments[0].rows.count * writer.groups[0]
        own = max(k for k in range(1, 9) if tasks % k == 0)
        return SheetLaunch(own, warps // own, 1)
    if wide:
        return SheetLaunch(8, 1, 1)
    if writer.held_entries(1) * 4 <= HELD_MOST and program.theta is None:  # not measured with Θ
        return SheetLaunch(16, 1, 1, 1)
    # As many blocks as have their rows in the first cache together: planes of one image, and twice those of the other.
    planes = [program.channels * math.prod(program.shape), *(a.size for a in program.activations)]
    blocks = next((k for k in (4, 2) if k * 3 * 4 * sum(planes) <= CACHED), 1)
    return SheetLaunch(warps // blocks, 1, blocks)


def sheet_kernel(
    data: ProgramData, chain: Chain, dtype: str, shared_limit: int, shape: tuple[int, int, int, int] | None = None
) -> tuple[str, Launch]:
    """The kernel as it is launched by default, with less shared memory where a block may not have so much."""
    chosen = launch(SheetWriter(data, chain, dtype)) if shape is None else SheetLaunch(*shape)
    while True:
        text, made = SheetWriter(data, chain, dtype).kernel(chosen)
        if made.shared <= shared_limit or shape is not None:
            return text, made
        if chosen.held:
            chosen = chosen._replace(held=0)
        elif chosen.pairs > 1:
            chosen = chosen._replace(pairs=chosen.pairs // 2)
        elif chosen.warps > 2:
            chosen = chosen._replace(warps=chosen.warps // 2)
        else:
            return text, made
